"""Whether a process that is waited for gets on: its unit's journal grows, or it uses the CPU.

cri-resmgr places every container before it answers, and nobody knows how long that takes: a number of seconds
is too few on a busy machine, and too many for a process that hangs.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from installer.host.ports import Host
from installer.model.resource import UnitState

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
