"""What the daemon knows of its passes: what the last one found, and what calls for the next one, when.

Pure: it gets the time, what was seen, and how a pass has ended. Times are seconds on the clock of `now`.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from installer.daemon.poller import PollSnapshot, Token
from installer.host.command import describe_exit
from installer.model.daemon import Installed

if TYPE_CHECKING:
    from installer.daemon.outcome import Outcome

RESYNC = 600.0  # seconds between two passes that nothing called for

_HINDERED_RETRY = 2.0
_BACKOFF = (5.0, RESYNC)  # the first and the longest
_CALM_PASSES = 20  # a minute; passes beyond them are slowed down
_VERIFICATION = 1.0  # seconds after a pass that changed something
_COUNTED = ("all_restarts", "passes", "changes", "repairs", "rollbacks", "rescues", "failures")
_INVALID, _PENDING, _UNSERVABLE = 2, 3, 4
NEEDS_THE_BUS = (1, _UNSERVABLE)  # exit codes that a pass without systemd's bus may end with
_KNOWS_THE_HOST = (0, _INVALID, _PENDING, _UNSERVABLE)  # exit codes of a plan
_KILLED = tuple(128 + number for number in (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS))
_FILES_DIFFER = "a file has changed"
UNITS_DIFFER = "a unit has changed"


class PassHistory:
    """`spread` varies a wait, so that a fleet does not act in step.

    `tried` are the inputs of the last pass, None before the first. `well`: it found or left everything
    correct. `failures` counts the passes in a row that failed, and `said` is what the last one of them
    reported. `remarks`: what a person should know about the host, by the last pass that ended well.
    `retry_at`: no pass before that time, unless something changes. `locked_until`: the same, because another
    run holds the host's lock or systemd's bus is away.
    """

    def __init__(self, now: float, spread: Callable[[float], float]) -> None:
        self.tried: Token | None = None
        self.well = self.removed = False
        self.failures = 0
        self.said = self.remarks = ""
        self.retry_at = self.locked_until = 0.0
        self.counts: dict[str, Any] = dict.fromkeys(_COUNTED, 0)
        self.last = (-1, 0.0)  # exit code and seconds of the last pass
        self.installed = Installed()  # by the last pass that knew
        self.wanted = ""  # the generation that it was to install
        self._spread = spread
        self._settled: PollSnapshot | None = None  # seen when a pass last found or left nothing to do
        self._verify_at = 0.0
        self._kept: PollSnapshot | None = None  # seen when a refused pass had left the good generation
        self._refusal: Token | None = None  # what the last refusal may have been about
        self._resync_at = now
        self._passes: list[float] = []

    @property
    def refused(self) -> bool:
        """Whether the last pass was refused (exit 4)."""
        return self._refusal is not None

    @property
    def has_begun(self) -> bool:
        return bool(self.counts["passes"])

    # -- what has happened --------------------------------------------------------

    def begun(self, now: float) -> None:
        """A pass or a plan begins."""
        self.counts["passes"] += 1
        if not 0.0 < self._verify_at <= now:
            self._passes.append(now)

    def told(self, outcome: Outcome) -> None:
        """A pass has ended, well or not: take over what is installed, and what is to be."""
        self.wanted = outcome.fleet_generation
        if outcome.installed is not None or outcome.code == 0:
            self.installed = outcome.installed or Installed()

    def hindered(self, now: float, why: str) -> None:
        """A pass could not look: another run holds the host's lock, or systemd's bus is away. What called for
        it calls for the next one."""
        self.retry_at = self.locked_until = now + _HINDERED_RETRY
        self.said = why

    def forget(self) -> None:
        """A person may have changed anything during a pause, also the cause of a failure."""
        self._settled, self.retry_at = None, 0.0

    def planned(self, now: float, outcome: Outcome, before: PollSnapshot, after: PollSnapshot) -> None:
        """A plan under a pause has ended. What a verification pass would look at, it has seen."""
        self._verify_at = 0.0
        if outcome.code not in _KNOWS_THE_HOST and not outcome.remembered:
            self.tried = before.inputs
            self._fail(now, outcome)
        elif before.paused and after.paused:  # if the pause has ended meanwhile, a repair follows
            self.tried, self._settled = before.inputs, before
            self.well, self.failures, self.said = outcome.code == 0, 0, outcome.reason
            self._resync_at = now + self._spread(RESYNC)

    def ended(
        self, now: float, outcome: Outcome, before: PollSnapshot, after: PollSnapshot, *, removes: bool
    ) -> None:
        """A pass has ended; `before` and `after` it, the host looked so."""
        self.last = (outcome.code, outcome.seconds)
        self.tried = before.inputs
        self._resync_at = now + self._spread(RESYNC)
        self.counts["repairs"] += outcome.changed and self._settled is not None
        if outcome.code == 0:
            self.well, self.remarks = True, outcome.remarks
            self.counts["changes"] += outcome.changed
            # Others may have changed something while we changed the host: a verification pass follows.
            self._settled = after if outcome.changed else before
            self._verify_at = now + _VERIFICATION if outcome.changed else 0.0
            self.failures, self.retry_at, self.said = 0, 0.0, ""
            self._kept = self._refusal = None
            self.removed = removes
            return
        self._fail(now, outcome)
        if outcome.code in _KILLED and self.failures == 1:
            self.retry_at = now  # finish what it has begun: the proxy may be stopped
        refused = outcome.remembered or outcome.code in (_INVALID, _UNSERVABLE)
        self._kept = after if refused and after.proxy.loaded_digest else None
        self._refusal = after.refusable if outcome.code == _UNSERVABLE else None
        if outcome.remembered or outcome.code == _INVALID:
            self.retry_at = float("inf") if outcome.remembered else self._resync_at

    def _fail(self, now: float, outcome: Outcome) -> None:
        self.well = False
        self.failures += 1
        self.counts["failures"] += 1
        self.said = outcome.reason or f"a pass failed: {describe_exit(outcome.code)}"
        self.retry_at = now + self._spread(min(_BACKOFF[1], _BACKOFF[0] * 2.0 ** min(20, self.failures - 1)))

    # -- what calls for another pass ------------------------------------------------

    def why(self, now: float, snapshot: PollSnapshot, *, busy: bool) -> str:
        """Return what calls for a pass, empty if nothing does. `busy`: others work on kubelet's unit."""
        if self.tried is None:
            return "start" if now >= self.retry_at else ""
        if snapshot.inputs != self.tried:
            return "the inputs have changed"
        if self.failures:
            waits = snapshot.on_relay and snapshot.proxy_is_coming
            if drift := self._drift(snapshot, busy=busy or snapshot.proxy_is_coming):
                return drift
            if self._refusal is not None and self._refusal != snapshot.refusable:
                return "the cause of the refusal has changed"
            return "retry" if now >= self.retry_at and not waits else ""
        if now < self.retry_at or busy:
            return ""
        difference = self.difference(snapshot)
        if snapshot.proxy_is_coming and difference != _FILES_DIFFER:
            return ""
        if difference:
            return difference
        if 0.0 < self._verify_at <= now:
            return "verification pass"
        if self._settled is not None and snapshot.agent != self._settled.agent:
            return "cri-resmgr-agent has sent another configuration"
        return "resync" if now >= self._resync_at else ""

    def _drift(self, snapshot: PollSnapshot, *, busy: bool) -> str:
        """Return what has happened to the good generation while the new one is refused."""
        if self._kept is None:
            return ""
        if snapshot.files != self._kept.files:
            return "a file of the good generation has changed"
        drifted = not busy and snapshot.standing != self._kept.standing
        return "a unit of the good generation has changed" if drifted else ""

    def difference(self, snapshot: PollSnapshot) -> str:
        """Return what differs from the host that a pass last verified, empty if nothing does."""
        settled = self._settled
        if snapshot.inputs != self.tried:
            return "the inputs have changed"
        if settled is None:
            return "the pause has ended"
        if snapshot.files != settled.files:
            return _FILES_DIFFER
        return UNITS_DIFFER if snapshot.units != settled.units else ""

    def is_removal_due(self, now: float, snapshot: PollSnapshot) -> bool:
        """Whether a removal is to be begun, or tried again: it may have failed with other inputs."""
        has_other = snapshot.inputs != self.tried and now >= self.locked_until
        return not self.removed and now >= self.calm_at(now) and (has_other or now >= self.retry_at)

    def is_installed_again(self, snapshot: PollSnapshot) -> bool:
        """Whether the proxy's unit is ours again, which it was not when a removal had ended."""
        ours = bool(snapshot.proxy.loaded_digest) and not snapshot.blind
        was_ours = self._settled is None or bool(self._settled.proxy.loaded_digest)
        return self.removed and ours and not was_ours

    # -- when -----------------------------------------------------------------------

    def calm_at(self, now: float) -> float:
        """Return when the next pass may begin: many passes within a minute are slowed down, not dropped."""
        self._passes = [at for at in self._passes if now - at < 60.0]
        extra = len(self._passes) - _CALM_PASSES
        return self._passes[-1] + min(30.0, 2.0**extra) if extra > 0 else 0.0

    def moments(self, now: float) -> tuple[float, ...]:
        """Return when a pass may be called for though nothing happens."""
        return (self.retry_at, self._resync_at, self._verify_at, self.calm_at(now))
