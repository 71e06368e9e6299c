"""Runs that die at a chosen instant, as kill -9 or a power loss would end them.

The story of the program in a process of its own, with time that passes faster. A fork of a server that
never had a bus connection: one of the test session's would be dead in it.
"""

from __future__ import annotations

import functools
import itertools
import multiprocessing
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

from installer.errors import InstallerError
from installer.host.clock import SystemClock
from installer.host.disk import Kernel
from installer.host.files import RootedFiles
from installer.host.ports import Clock, Host
from installer.host.real import build_host
from installer.inputs.load import Consent, Request
from installer.inputs.settings import load_settings
from installer.model.containers import CpuResources
from installer.model.event import Event
from installer.model.names import Mode
from installer.node.reconcile import inspect, reconcile
from tests.host.node import Node

#: Longer than any run of a test takes.
_SECONDS = 120.0

Listener = Callable[[Event], None]


def die() -> None:
    """Ends this process as power loss would."""
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Instant:
    """Just before effect number `effect` on the host, or right after it; they are counted from 1, from
    the first event of the kind `since` on (empty: from the start)."""

    effect: int
    after: bool = False
    since: str = ""

    def __str__(self) -> str:
        counted = f" since {self.since}" if self.since else ""
        return f"{'after' if self.after else 'before'} effect {self.effect}{counted}"


class Effects:
    """Counts what changes the host; the process dies at the instant."""

    def __init__(self, instant: Instant) -> None:
        self._instant = instant
        self._counted = not instant.since
        self._numbers = itertools.count(1)

    def hear(self, event: Event) -> None:
        self._counted |= event.kind == self._instant.since

    @contextmanager
    def one(self) -> Iterator[None]:
        # Each effect has a number of its own, also those of threads that run at a time.
        due = self._counted and next(self._numbers) == self._instant.effect
        if due and not self._instant.after:
            die()
        try:
            yield
        finally:  # also of one that fails, such as the removal of a directory that is not empty
            if due:
                die()


#: Methods of the ports that change nothing which outlives the process: a sync is none.
_QUESTIONS = {
    *("sync", "unit", "detail", "answers", "status"),
    *("containers", "unstarted", "empty_pods", "cgroup", "validate"),
}


class Mortal:
    """A port of the host in which every call is an effect, unless it is one of `_QUESTIONS`."""

    def __init__(self, port: Any, effects: Effects) -> None:
        self._port = port
        self._effect = effects.one

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._port, name)
        return method if name in _QUESTIONS else functools.partial(self._call, method)

    def _call(self, method: Callable[..., Any], *args: Any, **named: Any) -> Any:
        with self._effect():
            return method(*args, **named)


class MortalCri(Mortal):
    """The Cri port in which each container's update is an effect."""

    def update(
        self, endpoint: str, resources: Mapping[str, CpuResources], timeout: float = 10.0
    ) -> dict[str, str]:
        said: dict[str, str] = {}
        for identifier, one in resources.items():
            said |= self._call(self._port.update, endpoint, {identifier: one}, timeout)
        return said


class HastyClock:
    """A clock on which time passes four times as fast."""

    _FASTER = 4.0

    def __init__(self) -> None:
        self._clock: Clock = SystemClock()
        self.now = self._clock.now
        self.check = self._clock.check

    def monotonic(self) -> float:
        return self._clock.monotonic() * self._FASTER

    def sleep(self, seconds: float) -> None:
        self._clock.sleep(seconds / self._FASTER)

    def sleep_through(self, seconds: float) -> None:
        self._clock.sleep_through(seconds / self._FASTER)


def build_mortal_host(root: Path, effects: Effects) -> Host:
    """The host of the command line, on which effects are counted and time is hasty."""
    host = build_host(root)
    ports: dict[str, Any] = {
        "files": RootedFiles(root, cast("Kernel", Mortal(Kernel(), effects))),
        "systemd": Mortal(host.systemd, effects),
        "cri": MortalCri(host.cri, effects),
        "validator": Mortal(host.validator, effects),
    }
    return replace(host, clock=HastyClock(), **ports)


STARTED = Event("started", "what a listener hears before the run has done anything")

# -- what listens to a run -------------------------------------------------------------------------


def do_nothing(_event: Event) -> None:
    """Hears an event and lets it pass."""


class DieAfterStep:
    """Power loss after step number `step`."""

    def __init__(self, step: int) -> None:
        self._left = step

    def __call__(self, event: Event) -> None:
        self._left -= event.kind == "step.done"
        if event.kind == "step.done" and self._left == 0:
            die()


@dataclass(frozen=True, slots=True)
class DieAfter:
    """Power loss after the step with this message."""

    message: str

    def __call__(self, event: Event) -> None:
        if event.kind == "step.done" and event.message == self.message:
            die()


class DieSoon:
    """Power loss `seconds` after step number `step` (0: after the start), or after the last one if it has
    fewer. They are counted from the first event of the kind `since` on (empty: from the start)."""

    def __init__(self, step: int, seconds: float, since: str = "") -> None:
        self.seconds = seconds
        self._what = f"{seconds:.3f} s after step {step}" + (f" since {since}" if since else "")
        self._left = step
        self._since = since or STARTED.kind
        self._counted = False
        self._was_due = False

    def __str__(self) -> str:
        return self._what

    def is_due(self, kind: str) -> bool:
        """To be told the kind of each event; says whether this is the one from which the seconds count."""
        self._counted |= kind == self._since
        self._left -= self._counted and kind == "step.done"
        due = self._counted and (self._left == 0 or kind == "converged") and not self._was_due
        self._was_due |= due
        return due

    def __call__(self, event: Event) -> None:
        if self.is_due(event.kind):
            # Nobody handles the signal: it ends the process as SIGKILL does.
            signal.setitimer(signal.ITIMER_REAL, max(self.seconds, 0.000001))


class PowerCut:
    """Power loss after the nth step from kubelet's first one on, up to its last one."""

    def __init__(self, step: int) -> None:
        self._left = step
        self._kubelet_moves = False

    def __call__(self, event: Event) -> None:
        if event.kind != "step.done":
            return
        self._kubelet_moves |= bool(re.search(r"[ /]kubelet\.", event.message))
        self._left -= self._kubelet_moves
        if self._kubelet_moves and self._left == 0:
            die()
        if event.data["step"] == "await-kubelet":
            self._kubelet_moves = False
            self._left = 0


@dataclass(frozen=True, slots=True)
class StopRuntime:
    """The runtime stops as soon as the proxy's files are about to be written."""

    leader: int

    def __call__(self, event: Event) -> None:
        if event.data.get("step") == "mark-pending":
            inside = ["nsenter", "--target", str(self.leader), "--all", "--"]
            subprocess.run([*inside, "systemctl", "stop", "containerd"], check=True, timeout=30)


def temporary_directory(scratch: Path) -> Path:
    """Where these runs have their temporary files."""
    return scratch / "tmp"


# -- the run -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended: `changed`, `nothing`, `killed`, or the error's class and in `message` its message;
    `said` are the words of all events."""

    how: str
    message: str = ""
    said: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.how}: {self.message}" if self.message else self.how


@dataclass(frozen=True, slots=True)
class Run:
    """One converging run, to be called in a process of its own. With `only_look` it ends as it would,
    without doing it."""

    root: Path
    config: Path
    payload: Path
    configs: Path
    temporary: Path
    mode: Mode
    instant: Instant
    listen: Listener
    only_look: bool

    def __call__(self, answer: Connection) -> None:
        tempfile.tempdir = str(self.temporary)
        self.listen(STARTED)
        effects = Effects(self.instant)
        host = build_mortal_host(self.root, effects)
        said: list[str] = []

        def emit(event: Event) -> None:
            said.append(event.message)
            effects.hear(event)
            self.listen(event)

        message = ""
        settings = load_settings(self.config)
        asked = (self.mode, settings, self.payload, self.configs)
        request = Request(*asked, consent=Consent(despite_pause=True, take_over=settings.take_over))
        try:
            if self.only_look:
                changed = bool(inspect(request, host).plan.steps)
            else:
                changed = reconcile(request, host, emit).changed
            how = "changed" if changed else "nothing"
        except InstallerError as error:
            how, message = type(error).__name__, error.message
        answer.send(Ended(how, message, tuple(said)))


_NEVER = Instant(0)
_DEATHS = (-signal.SIGKILL, -signal.SIGALRM)
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload([__name__, "pydantic", "jinja2", "yaml", "psutil"])


def converge(node: Node, mode: Mode, instant: Instant = _NEVER, listen: Listener = do_nothing) -> str:
    """Converges in a process of its own, which dies at the `instant` or when `listen` wants it to.

    `listen` hears every event, in that process. Returns `killed`, `changed`, `nothing` or the error.
    """
    return str(run_apart(node, mode, instant, listen))


def run_apart(
    node: Node,
    mode: Mode,
    instant: Instant = _NEVER,
    listen: Listener = do_nothing,
    *,
    only_look: bool = False,
) -> Ended:
    """As `converge`, and also returns the messages."""
    command = node.command
    temporary = temporary_directory(node.scratch)
    temporary.mkdir(exist_ok=True)
    places = (node.host.root, command.config, command.payload, command.configs, temporary)
    receiver, sender = _FORKS.Pipe(duplex=False)
    process = _FORKS.Process(target=Run(*places, mode, instant, listen, only_look), args=(sender,))
    process.start()
    sender.close()
    ended: Ended | None = None
    try:
        if receiver.poll(_SECONDS):
            ended = receiver.recv()
        else:
            ended = Ended(f"it has not ended within {_SECONDS:g} s")
            process.kill()
    except EOFError:
        pass  # it died
    finally:
        receiver.close()
        process.join(_SECONDS)
    return ended or Ended("killed" if process.exitcode in _DEATHS else f"exit code {process.exitcode}")
