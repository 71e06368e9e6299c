"""Wait for cri-resmgr while it starts.

cri-resmgr places every container before it answers, and how long that takes is unknown. A fixed number of
seconds is too short on a busy machine and too long for a process that hangs. So a wait continues while the
process makes progress: its unit logs something, or it uses CPU time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from installer.errors import StepFailedError
from installer.host.ports import Host
from installer.model import paths
from installer.model.host import UnitState
from installer.model.limits import ANSWER_SECONDS, answer_seconds

STILL = 10.0
"""Seconds without progress after which none is expected any more."""

_WORKS = 0.1  # seconds of CPU time within STILL; merely answering kubelet takes less
_EACH = 1.0  # seconds between two samples: reading the journal starts a process


@dataclass(frozen=True, slots=True)
class _Sample:
    at: float
    lines: int
    cpu: float


class Activity:
    """Whether the main process of a unit makes progress. `cursor` is the journal's end when the wait began;
    `logged` are the lines since."""

    def __init__(self, unit: UnitState, cursor: str, host: Host) -> None:
        self._unit, self._cursor, self._host = unit, cursor, host
        self.logged: tuple[str, ...] = ()
        self._samples = deque([self._sample()])

    def update(self) -> None:
        """Take a sample, at most once a second, however often this is called."""
        if self._host.clock.monotonic() - self._samples[-1].at >= _EACH:
            self._samples.append(self._sample())
        while len(self._samples) > 1 and self._samples[-1].at - self._samples[1].at >= STILL:
            self._samples.popleft()

    @property
    def progresses(self) -> bool:
        """Whether it has made progress within the last STILL seconds, as far as there are samples."""
        first, last = self._samples[0], self._samples[-1]
        return last.lines > first.lines or last.cpu - first.cpu >= _WORKS

    def left(self, deadline: float, furthest: float) -> float:
        """Seconds until `deadline` and then, as long as it makes progress, until `furthest`, both on the
        host's clock; 0 when the wait is over."""
        self.update()
        now = self._host.clock.monotonic()
        if now >= deadline and not self.progresses:
            return 0.0
        return max(0.0, (deadline if now < deadline else furthest) - now)

    def _sample(self) -> _Sample:
        self.logged = self._host.journal.since(self._unit.name, self._cursor)
        process = self._host.processes.get(self._unit.main_pid)
        return _Sample(self._host.clock.monotonic(), len(self.logged), process.cpu if process else 0.0)


_POLL = 0.05  # seconds
TOO_LONG = "it took too long"


def why_not_started(host: Host, age: float, longest: float, furthest: float) -> str:
    """Wait until the relay answers, and return why it does not; empty if it does. By then a process may be at
    most `age` old, and the wait takes at most `longest`. A process that makes progress may get as old as
    `furthest`. All in seconds."""
    unit, began = host.systemd.unit(paths.PROXY_UNIT), host.clock.monotonic()
    process = host.processes.get(unit.main_pid)
    end = began + (min(longest, age - process.age) if process else 0.0)
    far = began + furthest - (process.age if process else furthest)
    activity = Activity(unit, host.journal.cursor(), host)
    while not host.cri.answers(paths.RELAY_ENDPOINT, answer_seconds(end - host.clock.monotonic())):
        now = host.systemd.unit(unit.name)
        if not now.main_pid or now.main_pid != unit.main_pid:
            return "it ended"
        if not activity.left(end, far):
            return TOO_LONG
        host.clock.sleep(_POLL)
    return ""


def why_not_ready(
    host: Host, endpoint: str, seconds_left: Callable[[], float], check: Callable[[], None]
) -> str:
    """Wait until CRI Version and Status say that it is ready, and return why not; empty if it is. `check`
    raises if there is nothing left to wait for."""
    reason = "it did not answer"
    while (left := seconds_left()) > 0:
        try:
            status = host.cri.status(endpoint, min(ANSWER_SECONDS, left / 2))  # two calls
        except StepFailedError as error:
            reason = error.message
        else:
            if status.ready:
                return ""
            reason = status.reason
        check()
        host.clock.sleep(_POLL)
    return reason
