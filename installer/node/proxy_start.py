"""Waits for cri-resmgr: while it starts, and while it reads its force.cfg again.

cri-resmgr places every container before it answers, and how long that takes is not known: a number of seconds
is too few on a busy machine, and too many for a process that hangs. So a wait goes on while the process gets
on: its unit's journal grows, or it uses the CPU.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from installer.errors import StepFailedError, SystemdError
from installer.host.ports import Host, Systemd
from installer.model import paths
from installer.model.event import Emit, Event
from installer.model.host import UnitState
from installer.model.limits import ANSWER_SECONDS, HURRIED_SECONDS, answer_seconds

STILL = 10.0
"""Seconds without a sign of work, after which nothing more is expected."""

_WORKS = 0.1  # seconds of CPU time in these, which answering kubelet alone does not take
_EACH = 1.0  # seconds between two looks: the journal is read by a process


@dataclass(frozen=True, slots=True)
class _Look:
    at: float
    lines: int
    cpu: float


class AtWork:
    """The main process of a unit, as it was when the wait began; `cursor` is where the journal ended then.
    `said` are the lines since."""

    def __init__(self, unit: UnitState, cursor: str, host: Host) -> None:
        self._unit, self._cursor, self._host = unit, cursor, host
        self.said: tuple[str, ...] = ()
        self._looks = deque([self._look()])

    def look(self) -> None:
        """As often as is waited: it looks no more than once a second."""
        if self._host.clock.monotonic() - self._looks[-1].at >= _EACH:
            self._looks.append(self._look())
        while len(self._looks) > 1 and self._looks[-1].at - self._looks[1].at >= STILL:
            self._looks.popleft()

    @property
    def gets_on(self) -> bool:
        """Whether it has moved within the last ten seconds, as far as they were looked at."""
        first, last = self._looks[0], self._looks[-1]
        return last.lines > first.lines or last.cpu - first.cpu >= _WORKS

    def _look(self) -> _Look:
        self.said = self._host.journal.since(self._unit.name, self._cursor)
        process = self._host.processes.get(self._unit.main_pid)
        return _Look(self._host.clock.monotonic(), len(self.said), process.cpu if process else 0.0)


class Patience:
    """Lasts until `deadline`, and then for as long as the process gets on, but not beyond `furthest`; both on
    the host's clock."""

    def __init__(self, work: AtWork, deadline: float, furthest: float, host: Host) -> None:
        self._work, self._host = work, host
        self._deadline, self._furthest = deadline, max(deadline, furthest)

    @property
    def left(self) -> float:
        """Seconds; none when it is over."""
        self._work.look()
        now = self._host.clock.monotonic()
        if now >= self._deadline and not self._work.gets_on:
            return 0.0
        return max(0.0, (self._deadline if now < self._deadline else self._furthest) - now)


_POLL = 0.05  # seconds
TOO_LONG = "it took too long"


def why_not_started(host: Host, age: float, longest: float, furthest: float = 0.0) -> str:
    """Waits until the relay answers, and returns why it does not; empty if it does. A process may get as old
    as `age` until then, and the wait takes at most `longest`; one that gets on is waited for until it is as
    old as `furthest`. All in seconds."""
    unit, began = host.systemd.unit(paths.PROXY_UNIT), host.clock.monotonic()
    process = host.processes.get(unit.main_pid)
    end = began + (min(longest, age - process.age) if process else 0.0)
    far = began + furthest - (process.age if process else furthest)
    patience = Patience(AtWork(unit, host.journal.cursor(), host), end, far, host)
    while not host.cri.answers(paths.RELAY_ENDPOINT, answer_seconds(end - host.clock.monotonic())):
        now = host.systemd.unit(unit.name)
        if not now.main_pid or now.main_pid != unit.main_pid:
            return "it ended"
        if not patience.left:
            return TOO_LONG
        host.clock.sleep(_POLL)
    return ""


def why_not_ready(host: Host, endpoint: str, patience: Patience, check: Callable[[UnitState], None]) -> str:
    """Waits until CRI Version and Status say that it is ready, and returns why not; empty if it is. `check`
    is given the proxy's unit each time, and raises where there is nothing left to wait for."""
    reason = "it did not answer"
    while (left := patience.left) > 0:
        try:
            status = host.cri.status(endpoint, min(ANSWER_SECONDS, left / 2))  # two calls
        except StepFailedError as error:
            reason = error.message
        else:
            if status.ready:
                return ""
            reason = status.reason
        check(host.systemd.unit(paths.PROXY_UNIT))
        host.clock.sleep(_POLL)
    return reason


# Whether cri-resmgr has taken a force.cfg that it was signalled to read again.
#
# It says so in its journal only. It may refuse what a fresh start accepts, and then all that comes later,
# too, until it is restarted.

_ASK_EACH = 1.0  # seconds: whether the relay answers
_ASK_JOURNAL_EACH = 0.1
# What cri-resmgr v0.8 - v0.9.2 says at the end (pkg/cri/resource-manager).
_TAKEN, _REFUSED = "successfully switched", "failed to reload"


def why_not_taken(
    unit: UnitState, cursor: str, host: Host, longest: float, silence: float = math.inf
) -> tuple[str, float]:
    """Waits for its answer to a signal: why it has not taken the file, empty if it has; and when its relay
    was last seen to answer. `unit` is the proxy's unit as it was before the signal, `cursor` where the
    journal ended then.

    It places each container anew (up to 40 ms for each): the wait goes on while it gets on, at most `longest`
    seconds, and its relay is not silent for more than `silence` seconds, for kubelet may hang on it."""
    began = answered = asked = host.clock.monotonic()
    work = AtWork(unit, cursor, host)
    while True:
        for line in work.said:
            if _TAKEN in line:
                return "", answered
            if _REFUSED in line:
                return line[line.index(_REFUSED) :], answered
        if host.systemd.unit(unit.name).main_pid != unit.main_pid:
            return "it has ended instead", answered
        now = host.clock.monotonic()
        if now - began >= STILL and (not work.gets_on or now - began >= longest):
            return f"its journal does not mention it within {now - began:.0f} s", answered
        if silence < math.inf and now - asked >= _ASK_EACH:
            answers = host.cri.answers(paths.RELAY_ENDPOINT, HURRIED_SECONDS)
            asked = host.clock.monotonic()
            answered = asked if answers else answered
            if asked - answered >= silence:
                return f"its relay does not answer, {asked - began:.0f} s after the signal", answered
        host.clock.sleep(_ASK_JOURNAL_EACH)
        work.look()


# While the proxy is stopped and is to be started again: what keeps kubelet from being left on a dead relay.
#
# Kubelet hangs on the relay meanwhile, and could not start our pod, which would repair it. So no signal ends
# a run in this gap, and where kubelet does hang, systemd has promised before the stop to start the proxy,
# should this run be killed.

_SECONDS = 20.0  # from the stop on; the node goes NotReady ~31 s after its relay has gone


class Gap:
    """`is_open` from before the stop until the proxy has started."""

    def __init__(self, systemd: Systemd, emit: Emit) -> None:
        self._systemd, self._emit = systemd, emit
        self.is_open = False

    def open(self, *, kubelet_hangs: bool) -> None:
        self.is_open = True
        try:
            if kubelet_hangs:
                self._systemd.arm_start(paths.PROXY_UNIT, _SECONDS)
        except SystemdError as error:
            data = {"code": "gap", "hint": "if this run is killed now, the next one starts the proxy"}
            self._emit(
                Event(
                    "warning", f"cannot arm the systemd timer that restarts the proxy: {error.message}", data
                )
            )

    def close(self) -> None:
        self.is_open = False
        self.kubelet_has_left()

    def kubelet_has_left(self) -> None:
        """Ends what systemd has promised, to us or to a run that was killed."""
        with suppress(SystemdError):  # at worst it starts what runs: nothing
            self._systemd.disarm_start(paths.PROXY_UNIT)
