"""The resident: looks, lets the policy decide, starts a child for it, and waits for the next event.

It changes nothing of the host itself but its runtime_state; all converging is a child's, in whose
process the libraries are loaded that would weigh on every node for ever.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from installer import __version__
from installer.daemon.child_run import ChildRun
from installer.daemon.configuration import Configuration, build_configuration
from installer.daemon.decision import Action, Decision
from installer.daemon.pages import render_page
from installer.daemon.policy import HOUR, Policy
from installer.daemon.poller import Poller, PollSnapshot
from installer.daemon.runtime_state import RuntimeState
from installer.errors import InstallerError, InvalidInputError
from installer.host.bus import require_bus
from installer.host.files import RootedFiles
from installer.host.http2 import serves
from installer.host.httpd import Page, PageServer
from installer.host.run import run
from installer.host.systemd import BusSystemd
from installer.host.watch import Child, EventLoop
from installer.model import paths
from installer.model.daemon import Cluster, DaemonState
from installer.model.event import Emit, Event
from installer.model.state import Mode

READY_FILE = "/run/cri-resmgr-installer/ready"

_PROGRAM = (sys.executable, "-P", "-m", "installer.cli")
_DEBOUNCE = 0.05  # seconds; what comes together is looked at once
_SETTINGS_SECONDS = 60.0
_LISTEN_RETRY = 10.0  # seconds: the pod before us may not have let go of the port yet
_END_SECONDS = 30.0  # what a child may take to stop between two steps
_BINARY = "opt/intel/bin/cri-resmgr"


@dataclass(frozen=True, slots=True)
class Command:
    """The global options as a child is given them. `ready_file` is in our own file system; `identity`
    names this resident on the host, the same after a restart of its container."""

    host_root: Path
    payload: Path
    configs: Path | None
    config: Path | None
    ready_file: Path = Path(READY_FILE)
    identity: str = ""
    good_seconds: float = 60.0

    def argv(self, *verb: str) -> tuple[str, ...]:
        words = [f"--host-root={absolute(self.host_root)}", f"--payload={absolute(self.payload)}"]
        words += [f"--configs={absolute(self.configs)}"] if self.configs else []
        words += [f"--config={absolute(self.config)}"] if self.config else []
        return (*_PROGRAM, *words, "--output=json", *verb)

    @property
    def paused_file(self) -> Path:
        """Is there while somebody has paused this node, in whatever way."""
        return self.ready_file.with_name("paused")

    @property
    def inputs(self) -> tuple[Path, ...]:
        given = (self.configs, self.config, self.payload / _BINARY)
        return tuple(absolute(path) for path in given if path is not None)


def absolute(path: Path) -> Path:
    """As a child in another directory has to spell it."""
    return path if path.is_absolute() else Path.cwd() / path


def load_configuration(command: Command) -> Configuration:
    """Asks a child, which refuses bad settings. Raises InvalidInputError with its faults."""
    done = run(command.argv("settings"), _SETTINGS_SECONDS)
    try:
        answer: Mapping[str, Any] = json.loads(done.lines[-1])
    except (ValueError, IndexError):
        raise InvalidInputError([f"the settings could not be read: {done.failure}"]) from None
    if done.code != 0:
        data = answer.get("data", {})
        faults = data.get("faults") or [answer.get("message", done.failure)]
        raise InvalidInputError(faults, data.get("hint", ""))
    return build_configuration(answer, command.good_seconds)


def _since_boot() -> float:
    """Seconds on a clock that nobody sets, for what does not outlive the boot either."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Daemon:
    """One host, until a signal comes. `cluster` is asked and told from the loop."""

    def __init__(self, command: Command, emit: Emit, cluster: Cluster) -> None:
        self._command, self._emit, self._cluster = command, emit, cluster
        self._files = RootedFiles(command.host_root)
        self._systemd = BusSystemd(self._files)
        identity = command.identity or f"process {os.getpid()} {time.time():.3f}"
        self._runtime_state = RuntimeState(self._files, identity, _since_boot)
        configuration = load_configuration(command)
        self._poller = Poller(self._files, self._systemd, configuration, command.inputs, serves)
        self._policy = self._build_policy(configuration)
        self._loop = EventLoop()
        self._snapshot = PollSnapshot()
        self._claimed = False
        self._child: Child | None = None
        self._timer = self._debounce = 0
        self._due = 0.0
        self._ending = self._removing = False
        self._published: DaemonState | None = None
        self._pages: PageServer | None = None
        self._listen_said = False

    def _build_policy(self, configuration: Configuration) -> Policy:
        now = time.monotonic()
        stamps = [now - age for age in self._runtime_state.ages() if age < HOUR]
        fresh = configuration.mode is Mode.INSTALL and self._files.read(paths.RECORD) is None
        wait = (
            spread(self._files.read("/etc/machine-id") or b"", configuration.spread_seconds) if fresh else 0.0
        )
        return Policy(configuration, random.random, now, stamps, now + wait if wait else 0.0)

    def run(self) -> int:
        """Returns the exit code, when a signal has come. Raises UnservableHostError, OSError."""
        require_bus(self._files)  # below a root that is no host, not even a directory is made
        mode = self._policy.configuration.mode
        self._show(ready=False, paused=False)
        self._loop.on_signal(signal.SIGTERM, self._terminate)
        self._loop.on_signal(signal.SIGINT, self._terminate)
        self._loop.on_signal(signal.SIGHUP, self._stir)
        self._claimed = self._runtime_state.claim(mode)
        self._say("resident.started", f"resident: mode {mode}", mode=mode.value, pid=os.getpid())
        self._cluster.begin(self._loop, self._stir)
        self._timer = self._loop.after(0.0, self._on_time)
        self._serve_pages()
        try:
            self._loop.run()
        finally:
            self._show(ready=False, paused=False)
            self._cluster.end()
            if self._pages is not None:
                self._pages.close()
        self._say("resident.ended", "resident: ended; nothing on the host was undone for that")
        return 0

    def _say(self, kind: str, message: str, **data: object) -> None:
        self._emit(Event(kind, message, data))

    # -- events -----------------------------------------------------------------------

    def _stir(self) -> None:
        """Something has changed: what comes together is looked at together."""
        if not self._debounce and not self._ending:
            self._debounce = self._loop.after(_DEBOUNCE, self._on_change)

    def _on_change(self) -> None:
        self._debounce = 0
        self._turn(full=True)

    def _on_time(self) -> None:
        self._timer = 0
        due = not self._snapshot.relay or time.monotonic() >= self._due
        self._turn(full=due or not self._systemd.is_listening)

    def _turn(self, full: bool) -> None:
        """Looks, decides, acts, and sets the next time to look."""
        if self._ending:
            return
        snapshot = self._look(full)
        if not snapshot.relay and not full:
            snapshot = self._look(full=True)
        now = time.monotonic()
        decision = self._policy.step(now, snapshot)
        self._due = decision.due
        if decision.action is Action.STOP and self._child is not None:
            self._child.signal(signal.SIGTERM)
        elif decision.action is not Action.NOTHING:
            self._begin(decision, snapshot)
        self._publish()
        if self._timer:
            self._loop.cancel(self._timer)
        self._timer = self._loop.after(decision.wake - now, self._on_time)

    def _look(self, full: bool) -> PollSnapshot:
        before = self._snapshot
        try:
            if full:
                self._listen()
            snapshot = self._poller.look() if full else self._poller.heartbeat()
            if full:
                self._loop.watch(self._poller.watch_specs(), self._stir)
        except (InstallerError, OSError) as error:
            snapshot = replace(before, blind=str(error))
        paused = snapshot.paused or self._cluster.paused()
        superseded = not self._claimed or self._runtime_state.superseded()
        self._snapshot = replace(snapshot, paused=paused, superseded=superseded)
        self._reload(before)
        return self._snapshot

    def _listen(self) -> None:
        try:
            self._systemd.listen((paths.PROXY_UNIT, self._policy.configuration.kubelet_unit), self._stir)
        except InstallerError:
            return  # the look that follows says why

    def _reload(self, before: PollSnapshot) -> None:
        """The settings may have changed in place; bad ones are refused by the pass that follows."""
        config = self._command.config
        if config is None or not before.inputs or before.inputs == self._snapshot.inputs:
            return
        place = self._command.inputs.index(absolute(config))
        if before.inputs[place] != self._snapshot.inputs[place]:
            try:
                self._policy.configuration = self._poller.configuration = load_configuration(self._command)
            except InvalidInputError as error:
                self._say("warning", f"the old settings stay: {error.message}", hint=error.hint)

    # -- children -----------------------------------------------------------------------

    def _begin(self, decision: Decision, snapshot: PollSnapshot) -> None:
        action = decision.action
        self._say("pass.started", f"{action.value}: {decision.why}", verb=action.value, why=decision.why)
        self._policy.begun(action, snapshot)
        work = ChildRun(action, snapshot, self._policy.configuration.kubelet_unit, self._emit)
        argv = self._command.argv(*_words(decision, self._policy.spent))
        self._child = Child(argv, work.line, lambda code: self._ended(work, code))

    def _ended(self, work: ChildRun, code: int) -> None:
        self._child = None
        outcome = work.outcome(code, self._look(full=True))
        self._say(
            "pass.ended",
            f"{work.action.value}: exit code {code}",
            verb=work.action.value,
            exitCode=code,
            seconds=outcome.seconds,
            changed=outcome.changed,
            kubeletRestarts=outcome.restarts,
        )
        if outcome.restarts and work.action is not Action.REMOVE:  # which leaves nothing behind
            self._runtime_state.stamp(outcome.restarts)
        self._policy.ended(time.monotonic(), outcome, self._snapshot)
        if self._ending:
            self._finish()
            return
        if not self._snapshot.superseded:
            self._runtime_state.restore(self._policy.configuration.mode)
        self._turn(full=True)

    # -- what others see ------------------------------------------------------------------

    def _publish(self) -> None:
        state, before = self._policy.state, self._published
        self._show(ready=state.ready, paused=self._snapshot.paused)
        if before is None or (state.phase, state.ready, state.reason) != (
            before.phase,
            before.ready,
            before.reason,
        ):
            message = state.phase.value + (f": {state.reason}" if state.reason else "")
            self._say("state", message, phase=state.phase.value, ready=state.ready, hold=state.hold)
        if state != before:
            self._cluster.report(state)
        self._published = state

    def _serve_pages(self) -> None:
        listen = self._policy.configuration.listen
        if not listen or self._pages is not None:
            return
        try:
            self._pages = PageServer(listen, self._page)
            self._say("pages.served", f"/healthz, /readyz and /metrics are served on {listen}")
        except InstallerError as error:
            if not self._listen_said:
                self._say("warning", error.message, hint="tried again until somebody lets go of it")
            self._listen_said = True
            self._loop.after(_LISTEN_RETRY, self._serve_pages)

    def _page(self, path: str) -> Page | None:
        return render_page(path, self._policy.state, __version__)

    def _show(self, *, ready: bool, paused: bool) -> None:
        """The runtime_state that the probes of our container look for."""
        for file, wanted in ((self._command.ready_file, ready), (self._command.paused_file, paused)):
            if wanted and not file.exists():
                file.parent.mkdir(parents=True, exist_ok=True)
                file.touch()
            elif not wanted:
                file.unlink(missing_ok=True)

    # -- the end ----------------------------------------------------------------------------

    def _terminate(self) -> None:
        """A removal or a rescue is finished, anything else stops between two steps. The second signal
        ends at once."""
        if self._ending:
            self._loop.quit()
            return
        self._ending = True
        self._say("resident.ending", "a signal asks the resident to end")
        if self._child is None:
            self._finish()
        elif self._policy.working not in (Action.REMOVE, Action.RESCUE, Action.HOLD):
            self._child.signal(signal.SIGTERM)
            self._loop.after(_END_SECONDS, self._loop.quit)

    def _finish(self) -> None:
        """Nothing is undone, unless it is certain that this node is no longer to be served."""
        configuration, snapshot = self._policy.configuration, self._snapshot
        asked = configuration.remove_on_evidence and configuration.mode is Mode.INSTALL
        if not asked or snapshot.superseded or snapshot.paused or self._removing:
            self._loop.quit()
            return
        certain, why = self._cluster.removal_evidence()
        self._say("removal.evidence", f"{'removing' if certain else 'keeping'}: {why}", certain=certain)
        if not certain:
            self._loop.quit()
            return
        self._removing = True
        self._begin(Decision(Action.REMOVE, why), snapshot)


def spread(machine_id: bytes, window: float) -> float:
    """A time within `window` that is the same for this machine each time it is asked."""
    number = int.from_bytes(hashlib.sha256(b"spread" + machine_id.strip()).digest()[:8], "big")
    return window * number / 2**64


def _words(decision: Decision, spent: bool) -> tuple[str, ...]:
    """The verb of the command line for an action."""
    if decision.action is Action.RESTART_PROXY:
        return ("rescue", "--restart-proxy")
    if decision.action in (Action.RESCUE, Action.HOLD):
        hold_only = ("--hold-only",) if decision.action is Action.HOLD else ()
        return ("rescue", f"--reason={decision.why}", *hold_only)
    if decision.action is Action.INSTALL and spent:
        return (decision.action.value, "--keep-kubelet")
    return (decision.action.value,)
