"""The daemon: it looks, lets the policy decide, starts a pass for that, and waits for the next event.

It changes nothing of the host itself but its runtime state. What the host lacks, the assessor says; a pass
does all converging, in a process of its own. `pass_starter.py` starts it.

Nothing that fails ends the daemon or its watch. Each callback of the loop is guarded, a child that does not
start or does not end in time is a failed outcome, and there is always a next timer. kubelet sees that the
daemon works by the age of two files, which it touches only while its looks succeed and are on time.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from installer import __version__
from installer.daemon.assessor import Assessed, Assessor, Engine, attempted, rest_after
from installer.daemon.configuration import Command, Configuration, listen_address
from installer.daemon.decision import Action, Decision, Order, bounds_of
from installer.daemon.fleet import LEAVE, leave_seconds, may_remove, report_end, report_state
from installer.daemon.httpd import Addresses, Page, PageServer, find_addresses
from installer.daemon.outcome import PassReader
from installer.daemon.pages import render_page
from installer.daemon.pass_starter import PassStarter
from installer.daemon.policy import HEARTBEAT, HOUR, Policy
from installer.daemon.poller import Poller, PollSnapshot
from installer.daemon.probe_files import ProbeFiles
from installer.daemon.proxy_log import ProxyLog
from installer.daemon.runtime_state import RuntimeState, recorded_kubelet_unit
from installer.daemon.transient import TransientService
from installer.daemon.watch import NO_WATCH_LEFT, Bounded, EventLoop, find_directories
from installer.errors import BusyHostError, InstallerError, InvalidInputError
from installer.host.bus import SystemBus, require_bus
from installer.host.clock import since_boot
from installer.host.command import describe_exit
from installer.host.connections import HostConnections
from installer.host.files import RootedFiles
from installer.host.light_call import answers_version
from installer.host.ports import WatchedSystemd
from installer.host.real import build_host
from installer.host.systemd import BusSystemd
from installer.model import paths
from installer.model.daemon import Cluster, Job, Phase
from installer.model.event import Emit, Event
from installer.model.names import Mode
from installer.model.result import RunResult
from installer.node.picture import Picture

_DEBOUNCE = 0.03  # seconds; one look for all that changes within them
_STOOD_STILL = 2.0  # seconds that a timer is late; the kernel keeps 16,384 events for us (inotify(7))
_RETRY = 10.0  # seconds until the port of the pages is tried again
_FINISHED = (Action.REMOVE, Action.RESCUE, Action.HOLD)
_ERROR_PAGE = Page("500 Internal Server Error", "text/plain", "internal error; see the log of the daemon\n")


class Daemon:
    """Watches one host until a signal comes. `answers` says whether a socket answers a CRI `Version` call
    within so many seconds. Raises InvalidInputError with the faults of the settings, outside of a pod."""

    def __init__(
        self,
        command: Command,
        emit: Emit,
        cluster: Cluster,
        systemd: WatchedSystemd | None = None,
        answers: Callable[[Path, float], bool] = answers_version,
        engine: Engine | None = None,
    ) -> None:
        self._command, self._emit, self._cluster = command, emit, cluster
        self._files = RootedFiles(command.host_root)
        bus = SystemBus(self._files)
        self._systemd: WatchedSystemd = systemd or BusSystemd(self._files, bus)
        identity = command.identity or f"process {os.getpid()} {time.time():.3f}"
        self._probe_files = ProbeFiles(command, self._warn)
        installation = command.installation
        self._runtime_state = RuntimeState(self._files, identity, since_boot, self._warn, installation)
        self._said: dict[str, float] = {}
        self._engine = engine or Engine(command, build_host(command.host_root))
        configuration = self._read_settings()
        connections = HostConnections(command.host_root)
        self._poller = Poller(self._files, self._systemd, connections, configuration, command.inputs, answers)
        now = time.monotonic()
        restarts = [now - age for age in self._runtime_state.ages() if age < HOUR]
        self._policy = Policy(configuration, random.random, now, restarts, good_seconds=command.good_seconds)
        self._loop = EventLoop(self._recover)
        self._assessor = Assessor(self._loop, self._assess, self._assessed)
        self._places: tuple[str, ...] = ()  # that the last picture rests on
        self._has_new_watch = False  # since the last picture
        self._snapshot = PollSnapshot()
        self._child: Bounded | None = None
        self._timer = self._debounce = 0
        self._rests_until = 0.0
        self._wake = self._due = 0.0
        self._expected = math.inf  # when the timer comes
        self._ending = self._removing = self._is_asked = False
        self._after_child: Callable[[], None] = self._finish  # once this daemon ends
        self._said_state: object = None  # the last one that was said
        self._pages: PageServer | None = None
        self._pages_timer, self._looks_up = 0, False
        self._succeeded = 0.0  # when, of the epoch
        service = TransientService(bus, paths.PASS_UNIT)
        self._passes = PassStarter(self._loop, self._files, service, self._warn)
        self._proxy_log = ProxyLog(self._loop, command.host_root, self._log)

    def run(self) -> int:
        """Return the exit code when a signal has come. Raises UnservableHostError."""
        if not self._command.identity:  # a pod would only come back: it stays, and reports that it is refused
            require_bus(self._files)
        mode = self._policy.configuration.mode
        for ending in (signal.SIGTERM, signal.SIGINT):
            self._loop.on_signal(ending, partial(self._terminate, f"received {ending.name}"))
        self._loop.on_signal(signal.SIGHUP, self._look_now)
        self._show(alive=True)
        self._runtime_state.claim(mode)
        self._say("daemon.started", f"daemon started, mode {mode}", mode=mode.value, pid=os.getpid())
        self._guarded(lambda: self._cluster.begin(self._loop, self._stir))
        self._guarded(self._resume)
        self._timer = self._loop.after(0.0, self._on_time)
        self._serve_pages()
        try:
            self._loop.run()
        finally:
            if self._removing:
                self._guarded(partial(self._publish, Decision(Action.NOTHING)))
            self._show()
            self._guarded(self._end_reports)
            phase = self._policy.state.phase
            self._runtime_state.forget(everything=phase in (Phase.REMOVED, Phase.REFUSED))
            self._proxy_log.close()
            if self._pages is not None:
                self._pages.close()
        self._say("daemon.ended", "stopped" if self._removing else "stopped; host left unchanged")
        return 0

    def _end_reports(self) -> None:
        """A newer daemon may have come since the last look, and works with this node's permit."""
        self._cluster.end(leaves=self._removing, replaced=self._runtime_state.superseded())

    def _say(self, kind: str, message: str, **data: object) -> None:
        self._log(Event(kind, message, data))

    def _log(self, event: Event) -> None:
        with contextlib.suppress(OSError, ValueError):  # a log that takes nothing does not end the watch
            self._emit(event)

    def _warn(self, message: str, hint: str = "") -> None:
        """At most once an hour."""
        if self._is_news(message):
            self._say("warning", message, hint=hint)

    def _is_news(self, message: str) -> bool:
        """Whether it was not said within the last hour."""
        now = time.monotonic()
        self._said = {said: at for said, at in self._said.items() if now - at < HOUR}
        return self._said.setdefault(message, now) == now

    def _guarded(self, call: Callable[[], None]) -> None:
        self._loop.guarded(call, None)()

    def _recover(self, error: Exception) -> None:
        """A callback has raised: the policy must not wait for a child that does not exist, and there has to
        be a next look, a full one. Until it succeeds the files of our probes grow old."""
        self._wake = self._due = 0.0
        with contextlib.suppress(Exception):
            message = f"{type(error).__name__}: {error}"
            if self._is_news(message):
                what = f"{message} (internal error, please report; the daemon keeps running)"
                self._say("daemon.error", what, trace="".join(traceback.format_exception(error)))
            if self._child is None and self._policy.working:
                outcome = RunResult(1, reason=f"the daemon failed: {message}")
                self._policy.ended(time.monotonic(), outcome, self._snapshot)
        if self._ending and self._child is None:
            self._loop.quit()
        elif not self._timer:
            self._set_timer(HEARTBEAT)

    # -- events -----------------------------------------------------------------------

    def _stir(self) -> None:
        """Something has changed: look once for all that changes at about the same time."""
        if not self._debounce and not self._ending:
            rest = self._rests_until - time.monotonic()
            self._debounce = self._loop.after(max(_DEBOUNCE, rest), self._on_change)

    def _on_change(self) -> None:
        self._debounce = 0
        began = time.thread_time()
        self._look_closer()
        self._turn(full=True)
        self._rests_until = time.monotonic() + rest_after(time.thread_time() - began)

    def _look_closer(self, *, anew: bool = False) -> None:
        """Take a new picture, unless a pass is at work, which changes the host: the next one comes when it
        has ended, and none that was begun before counts then."""
        if self._child is None and not self._policy.state.replaced:
            self._assessor.ask(anew=anew)

    def _assess(self) -> Assessed:
        """Called in the assessor's thread. A failure of the assessment does not end the watch."""
        assessed = attempted(lambda: self._engine.assess(Mode.REMOVE if self._removing else None))
        self._places = self._places if assessed.places is None else assessed.places
        return replace(assessed, watched=find_directories(self._poller.watch_specs(self._places)))

    def _assessed(self, assessed: Assessed) -> None:
        """There is a new picture. One that a pass has begun to change says nothing. What is watched only now
        may have changed since it was read: that takes one more."""
        if assessed.watched is not None:
            is_new = self._loop.watch(assessed.watched, self._stir)
            self._has_new_watch = is_new and not self._has_new_watch
            if self._has_new_watch:
                self._look_closer()
        if self._child is None:
            self._take(assessed)
        self._answer()

    def _take(self, assessed: Assessed) -> None:
        """A picture of a host without a bus says nothing; the settings that come with it count."""
        picture, configuration = assessed.picture, assessed.configuration
        lost_bus = picture.code and self._snapshot.blind
        if configuration is not None and configuration != self._policy.configuration:
            self._configure(configuration)
        elif lost_bus:
            return
        if not lost_bus:
            for event in (*assessed.warnings, picture.error):
                if event is not None and self._is_news(event.message):
                    self._log(event)
            if picture.is_clean:
                self._succeeded = time.time()
            self._snapshot = replace(self._snapshot, picture=picture)
        if not self._ending:
            if not picture.at_work:  # a removal by hand may be deleting it
                self._restore_claim()
            self._turn(full=True)

    def _configure(self, configuration: Configuration) -> None:
        if self._removing:
            return
        if configuration.mode is not self._policy.configuration.mode:  # the last picture is of the other one
            self._snapshot = replace(self._snapshot, picture=None)
        self._policy.configuration = self._poller.configuration = configuration
        self._serve_pages()  # if none are served yet

    def _restore_claim(self) -> None:
        if not self._policy.state.replaced:  # else whoever has replaced us may have left it
            self._runtime_state.restore(self._policy.configuration.mode)

    def _look_now(self) -> None:
        """SIGHUP: look at once, and say what comes next."""
        self._is_asked = True
        self._look_closer()
        if not self._assessor.is_busy:
            self._turn(full=True)
            self._answer()

    def _answer(self) -> None:
        if self._ending or not self._is_asked:
            return
        self._is_asked = False
        state, working = self._policy.state, self._policy.working
        seconds = round(max(0.0, self._due - time.monotonic()), 1)
        why = f" ({state.reason})" if state.reason else ""
        rest = f"nothing to do for {seconds:g} s unless something changes"
        what = f"{working} is running" if working else rest
        self._say("looked", f"{state.phase}{why}: {what}", running=working.value, seconds=seconds)

    def _on_time(self) -> None:
        self._timer = 0
        now = time.monotonic()
        is_late = now > self._expected + _STOOD_STILL
        if now < self._wake - _DEBOUNCE and not is_late:  # only the probes need a sign of life
            self._show(alive=True)
            self._set_timer(self._wake - now)
            return
        is_busy = self._assessor.is_busy
        sees = not is_busy and self._loop.sees  # until then not each directory is watched
        if not (sees or is_busy):
            self._warn(*NO_WATCH_LEFT)
        hears = self._systemd.is_listening and sees
        if not (hears or is_busy):
            self._look_closer()
        self._turn(full=not (hears and self._snapshot.relay and now < self._due))

    def _set_timer(self, seconds: float) -> None:
        timer, self._timer = self._timer, 0
        self._loop.cancel(timer)
        self._expected = time.monotonic() + min(seconds, HEARTBEAT)
        self._timer = self._loop.after(min(seconds, HEARTBEAT), self._on_time)

    def _turn(self, full: bool) -> None:
        """Look, decide, act, and set the next time to look. A daemon whose successor is gone begins anew."""
        if time.monotonic() > self._expected + _STOOD_STILL:  # frozen, or starved: events may be lost
            self._look_closer()
        if self._policy.state.replaced and self._runtime_state.is_vacant():
            self._terminate("no daemon acts on this host")
        if self._ending:
            return
        snapshot = self._look(full)
        if not snapshot.relay and not full:
            snapshot = self._look(full=True)
        self._act_on(snapshot)
        if snapshot.is_ours and not snapshot.superseded:
            self._proxy_log.look()

    def _act_on(self, snapshot: PollSnapshot) -> None:
        if self._child is not None:
            self._child.read()  # what it has changed decides whether it may be stopped
        now = time.monotonic()
        decision = self._policy.step(now, snapshot)
        self._wake, self._due = decision.wake, decision.due
        if decision.action is Action.STOP and self._child is not None:
            if not self._child.stopping:
                self._say("pass.stopped", f"stopping {self._policy.working.value}: {decision.why}")
            self._child.stop(decision.grace)
        elif decision.action is not Action.NOTHING:
            self._begin(decision, snapshot)
        elif decision.looks_closer and (decision.has_changed or not self._assessor.is_busy):
            self._look_closer()
        self._publish(decision)
        self._set_timer(self._wake - now)

    def _look(self, full: bool) -> PollSnapshot:
        before = self._snapshot
        patience = self._policy.patience(time.monotonic())
        try:
            if full:
                self._listen()
            snapshot = self._poller.look(patience) if full else self._poller.heartbeat(patience)
        except (InstallerError, OSError) as error:
            snapshot = replace(before, blind=str(error))
        permission = self._cluster.permission()
        superseded = self._runtime_state.superseded()
        if superseded and not self._ending and self._runtime_state.insist():
            superseded = False
            self._policy.remove_again()
        self._snapshot = replace(
            snapshot,
            picture=before.picture,
            paused=snapshot.paused or permission.paused,
            superseded=superseded,
            foreign=self._runtime_state.foreign,
            foreign_lives=self._runtime_state.foreign_lives,
            permission=permission,
        )
        return self._snapshot

    def _listen(self) -> None:
        units = (paths.PROXY_UNIT, self._policy.configuration.kubelet_unit)
        with contextlib.suppress(InstallerError):  # the look that follows says why
            self._systemd.listen(units, self._loop.guarded(self._stir, None))

    def _read_settings(self) -> Configuration:
        """Return the settings, or in a pod the defaults if they are invalid: kubelet restarts a pod ever
        later, and meanwhile would stay on a dead relay (R4). Each pass then refuses the settings."""
        try:
            return self._engine.configure()
        except InvalidInputError as error:
            if not self._command.identity:
                raise
            self._warn(f"starting with default settings: {error.message}", error.hint)
            unit = recorded_kubelet_unit(self._files)
            return Configuration(kubelet_unit=unit) if unit else Configuration()

    # -- children -----------------------------------------------------------------------

    def _prepare(
        self, decision: Decision, snapshot: PollSnapshot, *, by_another: bool = False
    ) -> tuple[PassReader, Job]:
        """Report that a pass begins. Return what reads it, and its job."""
        action, why = decision.action, decision.why
        self._say("pass.started", f"{action.value}: {why}", verb=action.value, why=why)
        self._policy.begun(decision, snapshot, by_another=by_another)
        deadline, grace = bounds_of(action, self._policy.configuration)
        reader = PassReader(self._log, self._policy.host_changed)
        ended = partial(self._ended, reader, action, deadline)
        return reader, Job(self._command.argv("pass"), reader.line, ended, deadline, grace)

    def _begin(self, decision: Decision, snapshot: PollSnapshot) -> None:
        action = decision.action
        reader, job = self._prepare(decision, snapshot)
        left, unit = self._policy.restarts_left, self._policy.configuration.kubelet_unit
        order = Order(action, decision.why, left, decision.ask_first, decision.begins, unit)
        try:
            self._child = self._passes.start(order, job)
        except (BusyHostError, OSError) as error:
            code = error.exit_code if isinstance(error, BusyHostError) else 1
            self._settle(reader, action, code, f"`{action.value}` could not be started: {error}")
            self._wake = time.monotonic()
            if self._ending:
                self._after_child()

    def _resume(self) -> None:
        """Follow a pass that an earlier daemon began and that continues without it."""
        found = None if self._runtime_state.superseded() else self._passes.unfinished()
        if found is None:
            return
        action, log = found
        decision = Decision(action, "started by an earlier daemon")
        _reader, job = self._prepare(decision, self._look(full=True), by_another=True)
        self._child = self._passes.follow(log, job)

    def _ended(self, reader: PassReader, action: Action, deadline: float, code: int) -> None:
        child, self._child = self._child, None
        failure = f"`{action.value}`: {describe_exit(code)}" if code else ""
        if child is not None and child.overdue:
            failure = f"`{action.value}` did not end within {deadline:.0f} s and was stopped"
        self._look(full=True)
        self._settle(reader, action, code, failure)
        if self._ending:
            self._after_child()
            return
        self._restore_claim()
        self._act_on(self._snapshot)

    def _settle(self, reader: PassReader, action: Action, code: int, failure: str) -> None:
        """Report to the log, the cluster and the policy how a child has ended, or that it could not be
        started."""
        outcome = reader.end(code, failure)
        message = failure or f"{action.value}: {describe_exit(outcome.code)}"
        data = {"exitCode": outcome.code, "seconds": outcome.seconds, "changed": outcome.changed}
        self._say("pass.ended", message, verb=action.value, kubeletRestarts=outcome.restarts, **data)
        if outcome.restarts and action is not Action.REMOVE:  # which leaves nothing behind
            self._runtime_state.stamp(outcome.restarts)
        if outcome.code == 0 and action in (Action.INSTALL, Action.REMOVE):
            self._succeeded = time.time()
        report_end(self._cluster, self._policy, action, outcome)
        if (picture := self._snapshot.picture) is not None:
            self._snapshot = replace(self._snapshot, picture=replace(picture, spent=True))
        self._policy.ended(time.monotonic(), outcome, self._snapshot)
        self._look_closer(anew=True)

    # -- what others see ------------------------------------------------------------------

    def _publish(self, decision: Decision) -> None:
        """Write the files of the probes first: a statement has to be true when it is made (R13)."""
        state = self._policy.state
        self._show(alive=True)
        before, self._said_state = self._said_state, (state.summary, state.ready)
        if before != self._said_state:
            self._say("state", state.summary, phase=state.phase.value, ready=state.ready, hold=state.hold)
        report_state(self._cluster, self._policy, decision, self._snapshot)

    def _serve_pages(self) -> None:
        listen = listen_address(self._policy.configuration.listen, self._command.node_address)
        if not listen or self._pages is not None or self._looks_up:
            return

        def look_up() -> Addresses | InstallerError:
            try:
                return find_addresses(listen)
            except InstallerError as error:
                return error

        self._looks_up = True
        try:
            self._loop.beside(look_up, partial(self._serve_pages_on, listen))
        except RuntimeError as error:  # no thread can be started
            self._serve_pages_on(listen, InstallerError(f"cannot listen on {listen}: {error}"))

    def _serve_pages_on(self, listen: str, found: Addresses | InstallerError) -> None:
        self._looks_up = False
        if listen != listen_address(self._policy.configuration.listen, self._command.node_address):
            self._serve_pages()  # the settings have changed meanwhile
            return
        try:
            if isinstance(found, InstallerError):
                raise found
            self._pages = PageServer(self._loop, found, self._loop.guarded(self._page, _ERROR_PAGE))
            self._say("pages.served", f"/healthz, /readyz and /metrics are served on {listen}")
        except InstallerError as error:
            self._warn(error.message, f"retried every {_RETRY:.0f} s")
            self._loop.cancel(self._pages_timer)
            self._pages_timer = self._loop.after(_RETRY, self._serve_pages)

    def _page(self, path: str) -> Page | None:
        return render_page(path, self._policy.state, __version__, self._succeeded, self._snapshot.answered_in)

    def _show(self, *, alive: bool = False) -> None:
        self._probe_files.show(self._policy.state, alive=alive)

    # -- the end ----------------------------------------------------------------------------

    def _terminate(self, why: str) -> None:
        """Finish a removal or a rescue, and leave alone what outlives us. Anything else stops between two
        steps. The second signal ends us at once."""
        if self._ending:
            self._loop.quit()
            return
        self._ending = True
        self._say("daemon.ending", f"{why}, stopping")
        if self._child is None:
            self._finish()
        elif self._child.outlives_us:
            self._follow_to_its_end()
        elif self._policy.working not in _FINISHED:
            self._child.stop()

    def _follow_to_its_end(self) -> None:
        """Follow a pass while there is a bus. A host that shuts down waits for this process, which could not
        see the pass end. Elsewhere the next daemon follows it."""
        if self._child is not None and self._systemd.is_listening:
            self._loop.after(1.0, self._follow_to_its_end)
        elif self._child is not None:
            self._loop.quit()

    def _finish(self) -> None:
        """End without undoing anything, unless it is certain that this node is to be decommissioned."""
        configuration, snapshot = self._policy.configuration, self._snapshot
        asked = configuration.remove_on_evidence and configuration.mode is Mode.INSTALL
        if not asked or snapshot.superseded or snapshot.paused:
            self._loop.quit()
            return
        certain, why = self._cluster.removal_evidence()
        self._say("removal.evidence", f"{'removing' if certain else 'keeping'}: {why}", certain=certain)
        if not certain:
            self._loop.quit()
            return
        self._leave(why, time.monotonic() + leave_seconds())

    def _leave(self, why: str, until: float) -> None:
        """Remove this node. The nodes of a fleet leave some at a time, as far as the time of their pods
        allows: leaving takes precedence over waiting for a permit. While it waits, a newer daemon, a pause
        and a dead relay still come first."""
        again, self._removing = partial(self._leave, why, until), False
        snapshot, now = self._look(full=True), time.monotonic()
        decision = self._policy.step(now, snapshot)
        if snapshot.superseded or snapshot.paused:
            self._loop.quit()
        elif decision.action in (Action.RESTART_PROXY, Action.RESCUE):
            self._after_child = again
            self._begin(decision, snapshot)
        elif now >= until or may_remove(self._cluster, self._policy, snapshot):
            self._removing, self._after_child = True, partial(self._removed, again)
            # The last one, if there is one, is of what was to be installed.
            self._snapshot = snapshot = replace(snapshot, picture=Picture(installed=None))
            self._policy.configuration = replace(self._policy.configuration, mode=Mode.REMOVE)
            self._begin(Decision(Action.REMOVE, why, wants=LEAVE), snapshot)
        else:
            self._loop.after(1.0, again)

    def _removed(self, again: Callable[[], None]) -> None:
        """End, unless another run held the host's lock: then go on once that may have ended."""
        wait = self._policy.locked_until - time.monotonic()
        if wait > 0:
            self._loop.after(wait, again)
        else:
            self._loop.quit()
