"""What the daemon knows of its runs: how they ended, and when the next one may begin.

Pure: it gets the time, the picture that a run was begun on, and how it has ended. Times are seconds on the
clock of `now`.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from installer.host.command import describe_exit

if TYPE_CHECKING:
    from installer.model.fleet import PlannedWork
    from installer.model.result import RunResult
    from installer.node.picture import Picture

RESYNC = 600.0  # seconds between two pictures that nothing called for
MOST_WAITS = 8  # in a row, each twice as long as the one before: the last is RESYNC

_HINDERED_RETRY = 2.0
_BACKOFF = 5.0  # seconds of the first wait
_CALM_PASSES = 20  # a minute; runs beyond them are slowed down
_COUNTED = ("all_restarts", "passes", "changes", "repairs", "rollbacks", "rescues", "failures")
_INVALID, _UNSERVABLE = 2, 4
_KILLED = tuple(128 + number for number in (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS))


class PassHistory:
    """`spread` varies a wait, so that a fleet does not act in step.

    `failed`: the last run has, and `said` is what it reported. `goes_on`: it was killed, and the next one
    finishes at once what it has begun.
    `retry_at`: no run for the same reason before that time. `locked_until`: none at all, because another run
    holds the host's lock or systemd's bus is away.
    """

    def __init__(self, spread: Callable[[float], float]) -> None:
        self.removed = self.refused = self.was_good = self.failed = self.goes_on = False
        self.said = ""
        self.retry_at = self.locked_until = 0.0
        self.counts: dict[str, Any] = dict.fromkeys(_COUNTED, 0)
        self.last = (-1, 0.0)  # exit code and seconds of the last run
        self.inputs: str | None = None  # that the last run has tried, or with which all was right
        self.looked_after = ""  # the last start of the proxy after which a run has looked after containers
        self._spread = spread
        self._waits = 0  # in a row, each longer than the one before
        self._problem: object = None  # what the last run could not solve
        self._met: PlannedWork | None = None  # in it, by that run
        self._found_nothing = False  # to do about it, by that run
        self._remarks = ""  # of that run, on the host as it found or left it
        self._blamed = ("", "")  # inputs that failed here in a run of this daemon, and why
        self._refusal: object = None  # that the last picture has shown
        self._untouched = False  # the last run that failed was refused
        self._begun: list[float] = []

    def begun(self, now: float) -> None:
        self._begun.append(now)

    def hindered(self, now: float, why: str) -> None:
        """A run could not look: another one holds the host's lock, or systemd's bus is away."""
        self.retry_at = self.locked_until = now + _HINDERED_RETRY
        self.said = why

    def forget(self) -> None:
        """A person may have changed anything, also the cause of a failure."""
        self.retry_at, self._waits, self._problem = 0.0, 0, None

    def seen(self, picture: Picture, *, is_done: bool) -> None:
        """A new picture. `is_done`: the host is as it should be, and nothing of the last failure is left."""
        self.counts["passes"] += 1
        refusal = (picture.code, picture.reason, picture.inputs) if picture.code else None
        # A run that failed counted that itself. Drift does not make another refusal of the same one.
        self.counts["failures"] += refusal not in (None, self._refusal) and not self._is_blamed(picture)
        self._refusal = refusal
        if is_done:
            self.failed, self.said, self.was_good, self.refused = False, "", True, False
            self.inputs = picture.inputs
            self.forget()

    def ended(self, now: float, outcome: RunResult, begun_on: Picture) -> None:
        """A run has ended that was begun on this picture."""
        self.last = (outcome.code, outcome.seconds)
        if not outcome.is_blocked:
            self.inputs = begun_on.inputs
        if outcome.code == 0 or outcome.planned is not None:  # not cut off before it has looked
            self.looked_after = begun_on.unchecked or self.looked_after
        self.counts["repairs"] += outcome.changed and self.was_good
        if outcome.code == 0:
            self.counts["changes"] += outcome.changed
            self.failed, self.said, self.was_good, self.refused = False, "", True, False
        elif outcome.is_blocked:
            # Only a run that nothing refuses any more comes to the question for a permit.
            if self._untouched and outcome.planned and outcome.planned.generation == begun_on.wanted:
                self.failed, self.said, self.refused = False, "", False
        else:
            self.failed, self.refused = True, outcome.code == _UNSERVABLE
            self._untouched = outcome.code in (_INVALID, _UNSERVABLE)
            self.counts["failures"] += 1
            self.said = outcome.reason or f"a run failed: {describe_exit(outcome.code)}"
            if outcome.remembered and outcome.rolled_back:
                self._blamed = (begun_on.inputs, self.said)
            elif outcome.remembered and begun_on.inputs == self._blamed[0]:
                self.said = self._blamed[1]
        self.goes_on = False
        if outcome.code == 0 and outcome.changed:
            self.forget()
            return
        # The same problem waits, the longer the more often; a new one does not. What has failed on the host,
        # and touched it, is new only with new inputs.
        whole = outcome.code in (0, _INVALID, _UNSERVABLE) or (outcome.is_blocked and not outcome.rolled_back)
        problem = begun_on.problem if whole else begun_on.inputs
        in_vain = not outcome.changed  # else it has repaired the good generation
        self._waits = min(self._waits + 1, MOST_WAITS) if in_vain and problem == self._problem else 1
        self._problem, self._met = problem, outcome.planned
        self._found_nothing, self._remarks = outcome.code == 0, outcome.remarks
        lasts = in_vain and outcome.code == _INVALID
        wait = RESYNC if lasts else min(RESYNC, _BACKOFF * 2.0 ** (self._waits - 1))
        # What a killed run has begun is finished at once: the proxy may be stopped.
        self.goes_on = outcome.code in _KILLED and self._waits == 1
        self.retry_at = now + (0.0 if self.goes_on else self._spread(wait))

    def is_known(self, picture: Picture) -> bool:
        """Whether the last run could not solve this problem."""
        return self._problem is not None and self._problem in (picture.problem, picture.inputs)

    def is_content(self, picture: Picture) -> bool:
        """Whether the host is as it should be, or a run that has looked into it has found nothing to do: what
        becomes of pods and containers, the runtime says only to a run."""
        looked = self._found_nothing and self.is_known(picture)
        return picture.is_clean or (looked and not (picture.in_files or picture.code))

    def _is_blamed(self, picture: Picture) -> bool:
        return picture.remembered and picture.inputs == self._blamed[0]

    def why_refused(self, picture: Picture) -> str:
        """Return why the wanted generation is not installed, in the words of the run that has failed: others
        would be another Event, and another reason in the report of the fleet."""
        return self._blamed[1] if self._is_blamed(picture) else picture.reason

    def remarks(self, picture: Picture) -> str:
        """Return what a person should know of a host that is as it should be, or on which the last run has
        found nothing to do: then that run knows more."""
        return picture.remarks if picture.is_clean else self._remarks

    def is_due(self, now: float, picture: Picture) -> bool:
        """Whether a run may begin for this picture, if that calls for one."""
        return now >= self.locked_until and (now >= self.retry_at or not self.is_known(picture))

    def met(self, picture: Picture) -> PlannedWork | None:
        """The planned work that the last run has left undone for lack of a permit, if it is still to be done:
        what is known only by its inputs may meanwhile be refused, done, or other work."""
        return self.work(picture) if self._met is not None and self.is_known(picture) else None

    def work(self, picture: Picture) -> PlannedWork | None:
        """The planned work that a run would do. One that has looked into this problem knows better: it may
        have been refused before it came to that, and needs no permit to be refused again."""
        return self._met if picture.problem == self._problem else picture.work

    def calm_at(self, now: float) -> float:
        """Return when the next run may begin: many runs within a minute are slowed down, not dropped."""
        self._begun = [at for at in self._begun if now - at < 60.0]
        extra = len(self._begun) - _CALM_PASSES
        return self._begun[-1] + min(30.0, 2.0**extra) if extra > 0 else 0.0

    def moments(self, now: float) -> tuple[float, ...]:
        """Return when a run may begin though nothing happens."""
        return (self.retry_at, self.locked_until, self.calm_at(now))
