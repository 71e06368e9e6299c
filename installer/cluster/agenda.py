"""When the next talk with the API server is due, and what for. Pure, but for its clock.

A node at rest looks at its Node before the pass that comes each ten minutes: 0.5 requests in five minutes,
17 a second for ten thousand nodes. Everything else follows a change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

_NEVER = float("inf")
_JITTER = 0.1
_SAME = 0.05  # seconds; a timer may be early by that


class Due(StrEnum):
    NODE = "node"  # a look at the Node: is it paused, is it Ready
    WORD = "word"  # an Event, or what the Node says of us


@dataclass(frozen=True, slots=True)
class Periods:
    """Seconds. `gap`: from one talk to the next, however fast the transitions come. `word`: until the Node
    says what is no transition. `waiting`: until it says that it waits for a permit, which may come at once.
    `fresh`: how old what is known of a pause may be when a pass begins. `paused`: between two looks whether a
    pause has ended. `ready`: between two looks at a Node that is to be Ready, the first and the longest.
    `retry`: after a failure, the first and the longest."""

    gap: float = 1.0
    word: float = 40.0
    waiting: float = 10.0
    fresh: float = 10.0
    paused: float = 60.0
    ready: tuple[float, float] = (5.0, 60.0)
    retry: tuple[float, float] = (10.0, 300.0)


class Agenda:
    """`clock` is monotonic, `random` is within 0 and 1."""

    def __init__(self, periods: Periods, clock: Callable[[], float], random: Callable[[], float]) -> None:
        self._periods, self._clock, self._random = periods, clock, random
        self._at = dict.fromkeys(Due, _NEVER)
        self._begun = self._looked = -_NEVER
        self._quiet_until = 0.0  # the server wants to be left alone
        self._failures = 0

    def want(self, what: Due, seconds: float = 0.0) -> None:
        """Within `seconds`."""
        self._at[what] = min(self._at[what], self._clock() + seconds)

    def put_off(self, what: Due, seconds: float) -> None:
        """Not before so many seconds, and then."""
        self._at[what] = self._clock() + seconds

    def soon(self, what: Due) -> None:
        """As soon as the last talk is `gap` seconds ago."""
        self.want(what, max(0.0, self._begun + self._periods.gap - self._clock()))

    def wait(self) -> float | None:
        """Seconds until the next talk; None if nothing is due."""
        at = min(self._at.values())
        return None if at == _NEVER else max(0.0, at - self._clock(), self._quiet_until - self._clock())

    def begin(self) -> frozenset[Due]:
        """A talk begins: what for."""
        self._begun = now = self._clock()
        due = frozenset(what for what, at in self._at.items() if at <= now + _SAME)
        for what in due:
            self._at[what] = _NEVER
        return due

    def ended(self, failed: frozenset[Due], *, looked: bool, retry_after: float = 0.0) -> None:
        """The talk has ended: what is to be tried again. `looked`: the Node was asked for, in vain or not."""
        now, (shortest, longest) = self._clock(), self._periods.retry
        self._looked = now if looked else self._looked
        self._quiet_until = now + retry_after
        self._failures = self._failures + 1 if failed else 0
        pause = min(longest, shortest * 2.0 ** min(10, self._failures - 1))
        for what in sorted(failed):
            self._at[what] = now + self._varied(max(pause, retry_after))

    def want_varied(self, what: Due, seconds: float) -> None:
        """Within about so many seconds: a fleet does not ask in step."""
        self.want(what, self._varied(seconds))

    @property
    def is_fresh(self) -> bool:
        """Whether the Node was looked at a moment ago, or may not be asked for."""
        return self._has_looked or self._clock() < self._quiet_until

    @property
    def is_kept_away(self) -> bool:
        """Whether the Node was not looked at lately, and may not be asked for."""
        return not self._has_looked and self._clock() < self._quiet_until

    @property
    def _has_looked(self) -> bool:
        return self._clock() - self._looked < self._periods.fresh

    def _varied(self, seconds: float) -> float:
        return seconds * (1 + _JITTER * (2 * self._random() - 1))
