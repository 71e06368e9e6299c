"""When the resident does what: a state machine without clock, loop or host.

`step` is told the time and what is seen, and answers with one action and when to look again at the
latest; `begun` and `ended` tell it what became of the action. Nothing here waits or writes.

The rules, most important first: a resident that a newer one has replaced does nothing; a pause
means that nothing is changed; a kubelet that hangs on a dead relay is brought away from it; a hold
is kept until the relay has been good for a while; then only, what differs is converged. A pass is
not begun while systemd is still busy (the proxy between two tries, kubelet starting).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from installer.daemon.configuration import Configuration
from installer.daemon.decision import (
    Action,
    Decision,
    Outcome,
    complaint,
    everything,
    proxy_is_coming,
    refusable,
)
from installer.daemon.poller import PollSnapshot, Token
from installer.model.daemon import DaemonState, Phase
from installer.model.state import Mode

HEARTBEAT = 5.0  # seconds between two questions to the relay
SILENT_BEAT = 1.0  # the same while it does not answer
RESYNC = 600.0  # seconds between two passes that nothing called for
HOUR = 3600.0
OUR_HOLD = "run: "  # how the reason of a hold begins that the resident itself has set

_KUBELET_PATIENCE = 10.0  # seconds that somebody's restart of kubelet may take before we look into it
_BUSY_RETRY = 2.0
_LONG_SILENCE = 60.0  # from then on it is asked as seldom as one that answers
_BACKOFF = (5.0, RESYNC)  # the first and the longest
_CALM_PASSES = 20  # a minute; what comes on top of them is slowed down
_SECOND_LOOK = 1.0  # after a pass that changed something
_JITTER = 0.25
_COUNTED = ("all_restarts", "passes", "repairs", "rollbacks", "rescues", "failures")
_BUSY, _INVALID, _UNSERVABLE = 75, 2, 4


class Policy:
    """`stamps` are the times of kubelet restarts by earlier residents, on the clock of `now`;
    `not_before` is when the turn of this node comes in the rollout."""

    def __init__(
        self,
        configuration: Configuration,
        random: Callable[[], float],
        now: float,
        stamps: Iterable[float] = (),
        not_before: float = 0.0,
    ) -> None:
        self.configuration = configuration
        self.stamps = list(stamps)
        self._random = random
        self._not_before = not_before
        self._phase, self._reason = Phase.STARTING, ""
        self._now = now
        self._working = Action.NOTHING
        self._before = PollSnapshot()  # as it was when the work began
        self._settled: PollSnapshot | None = None  # as it was when a pass last found or left nothing to do
        self._second_look = 0.0
        self._quarantine: PollSnapshot | None = (
            None  # as it was when a pass said that its generation is remembered
        )
        self._refused: Token | None = None  # what a pass has refused that may have been about
        self._tried: Token | None = None  # the inputs of the last pass
        self._well = False  # the last pass found or left everything as it should be
        self._failures = 0  # in a row
        self._retry_at = 0.0
        self._resync_at = now
        self._passes: list[float] = []
        self._good_since: float | None = None
        self._silent_since: float | None = None
        self._starting_since: float | None = None
        self._runtime_since = now  # since when the runtime has answered
        self._proxy_restarts = 0  # of a silent proxy, since it last answered
        self._proxy_restart_at = 0.0
        self._rescue_at = 0.0
        self._forward_at = -HOUR
        self._yielded = self._removed = self._was_paused = False
        self._checked: Token | None = None  # for which the plan has said whether kubelet restarts
        self._would_restart = False
        self._counts = dict.fromkeys(_COUNTED, 0)
        self._last = (-1, 0.0)
        self._serving = ("", "")  # generation and version of the payload
        self._hold = ""
        self._fit = False

    # -- what is told -------------------------------------------------------------

    @property
    def state(self) -> DaemonState:
        paused = self._phase is Phase.PAUSED
        return DaemonState(
            mode=self.configuration.mode,
            phase=self._phase,
            ready=self._phase in (Phase.CONVERGED, Phase.REMOVED) or (paused and self._fit),
            reason=self._reason,
            hold=self._hold,
            last_exit=self._last[0],
            last_seconds=self._last[1],
            generation=self._serving[0],
            payload_version=self._serving[1],
            restarts=self._used(),
            **self._counts,
        )

    @property
    def working(self) -> Action:
        """What has begun and not ended."""
        return self._working

    @property
    def spent(self) -> bool:
        """Whether kubelet may not be restarted by us now. The pass is told, too: what a plan before it has
        found may be so no longer."""
        return self._used() >= self.configuration.restarts_per_hour

    def begun(self, action: Action, snapshot: PollSnapshot) -> None:
        """The action has been started, on what was seen."""
        self._working, self._before = action, snapshot
        if action is Action.RESTART_PROXY:
            wait = self.configuration.dead_seconds / 2 * 2.0**self._proxy_restarts
            self._proxy_restarts += 1
            self._proxy_restart_at = self._now + min(RESYNC, wait)
        if action in (Action.INSTALL, Action.REMOVE, Action.PLAN):
            self._counts["passes"] += 1
            if not 0.0 < self._second_look <= self._now:
                self._passes.append(self._now)
        self._judge(self._now, snapshot)

    def ended(self, now: float, outcome: Outcome, after: PollSnapshot) -> None:
        """The action that had begun has ended; `after` is what is seen then."""
        self._now = now
        action, self._working = self._working, Action.NOTHING
        self.stamps += [now] * outcome.restarts
        self._counts["all_restarts"] += outcome.restarts
        self._counts["rollbacks"] += outcome.rolled_back
        if outcome.code == _BUSY:
            self._retry_at = self._rescue_at = now + _BUSY_RETRY
            self._reason = "another run is at work on this host"
        elif action is Action.PLAN or outcome.would_restart:
            self._end_plan(outcome, after)
        elif action in (Action.INSTALL, Action.REMOVE):
            self._last = (outcome.code, outcome.seconds)
            self._end_pass(now, outcome, after)
        elif action is Action.RESCUE:
            self._counts["rescues"] += outcome.code == 0
            self._rescue_at = now + self._backoff(2.0, 1)

    def _end_plan(self, outcome: Outcome, after: PollSnapshot) -> None:
        self._checked, self._would_restart = everything(self._before), outcome.would_restart
        # A pause that has ended meanwhile: what was only looked at is to be repaired now.
        if not self._before.paused or not after.paused:
            return
        self._tried, self._settled = self._before.inputs, self._before
        self._well, self._failures, self._reason = outcome.code == 0, 0, outcome.reason
        self._resync_at = self._now + self._spread(RESYNC)

    def _end_pass(self, now: float, outcome: Outcome, after: PollSnapshot) -> None:
        self._tried = self._before.inputs
        self._resync_at = now + self._spread(RESYNC)
        self._well = outcome.code == 0
        if self._well:
            self._serving = (outcome.generation, outcome.payload_version)
            self._counts["repairs"] += outcome.changed and self._settled is not None
            # What we did ourselves differs from what was seen before, and somebody may have done something
            # meanwhile: one more pass says that all is well.
            self._settled = after if outcome.changed else self._before
            self._second_look = now + _SECOND_LOOK if outcome.changed else 0.0
            self._failures, self._retry_at, self._reason = 0, 0.0, ""
            self._quarantine = self._refused = None
            self._removed = self.configuration.mode is Mode.REMOVE
            return
        self._failures += 1
        self._counts["failures"] += 1
        self._reason = outcome.reason or f"a pass ended with exit code {outcome.code}"
        self._quarantine = after if outcome.remembered else None
        self._refused = refusable(after) if outcome.code == _UNSERVABLE else None
        lasting = outcome.remembered or outcome.code == _INVALID
        self._retry_at = self._resync_at if lasting else now + self._backoff(_BACKOFF[0], self._failures)
        if outcome.remembered:
            self._retry_at = float("inf")

    # -- what to do ---------------------------------------------------------------

    def step(self, now: float, snapshot: PollSnapshot) -> Decision:
        """One action for what is seen now, if nothing is being done already."""
        self._now, self._hold = now, snapshot.hold
        self._track(now, snapshot)
        action, why = self._choose(now, snapshot)
        if action is Action.NOTHING:
            self._judge(now, snapshot)
        due = self._due(now)
        return Decision(action, why, min(due, now + self._heartbeat(now)), due)

    def _track(self, now: float, snapshot: PollSnapshot) -> None:
        if snapshot.relay:
            self._good_since = now if self._good_since is None else self._good_since
            self._silent_since, self._proxy_restarts, self._proxy_restart_at = None, 0, 0.0
        else:
            self._silent_since = now if self._silent_since is None else self._silent_since
            self._good_since = None
        if not snapshot.runtime:
            self._runtime_since = now
        starting = snapshot.kubelet.active_state in ("activating", "deactivating")
        if not starting:
            self._starting_since = None
        elif self._starting_since is None:
            self._starting_since = now
        self._yielded = self._yielded or snapshot.superseded
        if self._was_paused and not snapshot.paused:
            self._settled = self._checked = None  # whatever was done meanwhile: look at it
        self._was_paused = snapshot.paused

    def _choose(self, now: float, snapshot: PollSnapshot) -> tuple[Action, str]:
        nothing = (Action.NOTHING, "")
        if self._working:
            stop = self._yielded and self._working is Action.INSTALL
            return (Action.STOP, "a newer resident has taken over") if stop else nothing
        if self._yielded or now < self._not_before:
            return nothing
        if snapshot.paused:
            why = self._why(now, snapshot)
            return (Action.PLAN, f"paused; {why}") if why and now >= self._calm_at(now) else nothing
        if self.configuration.mode is Mode.REMOVE:
            due = not self._removed and now >= self._retry_at
            return (Action.REMOVE, "not removed yet") if due else nothing
        if snapshot.blind:
            return nothing
        rescue = self._rescue(now, snapshot)
        if rescue[0] is not Action.NOTHING:
            return rescue
        return self._held(now, snapshot) if snapshot.hold else self._converge(now, snapshot)

    def _rescue(self, now: float, snapshot: PollSnapshot) -> tuple[Action, str]:
        """A dead or silent relay, after systemd was given its chance; nothing while the runtime is away,
        for then no endpoint is any better."""
        if self._silent_since is None or not snapshot.runtime or self._tried is None:
            return Action.NOTHING, ""
        if not snapshot.proxy.loaded_digest:
            return Action.NOTHING, ""  # somebody else's proxy
        silent = now - self._silent_since
        # Counted from the runtime's return: the proxy may need a while, and until then nothing could help.
        dead = now - max(self._silent_since, self._runtime_since) >= self.configuration.dead_seconds
        untried = snapshot.proxy.running and not self._proxy_restarts
        if dead and snapshot.on_relay and not untried and now >= max(self._rescue_at, self._first_chance()):
            return Action.RESCUE, f"{OUR_HOLD}the relay has been silent for {silent:.0f} s"
        half = silent >= self.configuration.dead_seconds / 2 and now >= self._proxy_restart_at
        if half and snapshot.proxy.running and (untried or not snapshot.on_relay):
            return Action.RESTART_PROXY, f"it runs, and its relay has been silent for {silent:.0f} s"
        return Action.NOTHING, ""

    def _first_chance(self) -> float:
        """Until when the first restart of a silent proxy may show its effect."""
        return self._proxy_restart_at if self._proxy_restarts == 1 else 0.0

    def _held(self, now: float, snapshot: PollSnapshot) -> tuple[Action, str]:
        ours = snapshot.hold.startswith(OUR_HOLD)
        good = self._good_since is not None and now - self._good_since >= self.configuration.good_seconds
        if self._tried is None and not (ours and snapshot.relay):
            return self._allowed(now, snapshot, "start, with a hold")
        if self._tried is not None and snapshot.inputs != self._tried:
            return self._allowed(now, snapshot, "the inputs have changed")
        if ours and good and now - self._forward_at >= HOUR and now >= self._retry_at:
            action = self._allowed(now, snapshot, "the relay is good again")
            if action[0] is Action.INSTALL:
                self._forward_at = now
            return action
        return Action.NOTHING, ""

    def _converge(self, now: float, snapshot: PollSnapshot) -> tuple[Action, str]:
        why = self._why(now, snapshot)
        if not why or now < self._calm_at(now):
            return Action.NOTHING, ""
        return self._allowed(now, snapshot, why)

    def _allowed(self, now: float, snapshot: PollSnapshot, why: str) -> tuple[Action, str]:
        """A pass, unless it would restart kubelet once too often: then a plan says so first."""
        if not self.spent:
            return Action.INSTALL, why
        if self._checked != everything(snapshot):
            return Action.PLAN, f"{why}; kubelet may not be restarted"
        if not self._would_restart:
            self._checked = None
            return Action.INSTALL, why
        if not snapshot.hold and not snapshot.on_relay:
            return Action.HOLD, f"{OUR_HOLD}kubelet was restarted {self._used()} times within an hour"
        return Action.NOTHING, ""

    def _why(self, now: float, snapshot: PollSnapshot) -> str:
        """What calls for a pass; empty if nothing does."""
        if self._tried is None:
            return "start" if now >= self._retry_at else ""
        if snapshot.inputs != self._tried:
            return "the inputs have changed"
        if self._failures:
            waits = snapshot.on_relay and proxy_is_coming(snapshot)
            if self._quarantine is not None and snapshot.files != self._quarantine.files:
                return "a file of the good generation has changed"
            if self._refused is not None and self._refused != refusable(snapshot):
                return "what stood in the way has changed"
            return "another try" if now >= self._retry_at and not waits else ""
        if now < self._retry_at or self._systemd_is_busy(now, snapshot):
            return ""
        settled = self._settled
        if settled is not None and snapshot.files != settled.files:
            return "a file has changed"
        if proxy_is_coming(snapshot):
            return ""
        if settled is None or 0.0 < self._second_look <= now:
            return "to see that all is well"
        if snapshot.units != settled.units:
            return "a unit has changed"
        return "resync" if now >= self._resync_at else ""

    def _systemd_is_busy(self, now: float, snapshot: PollSnapshot) -> bool:
        """Somebody's restart of kubelet is under way, or somebody has stopped it: not ours to start."""
        if self._starting_since is not None:
            return now - self._starting_since < _KUBELET_PATIENCE
        return snapshot.kubelet.active_state == "inactive"

    # -- how it is ------------------------------------------------------------------

    def _judge(self, now: float, snapshot: PollSnapshot) -> None:
        """Sets phase and reason, while nothing is being done."""
        sick = complaint(snapshot, now - self._silent_since if self._silent_since is not None else 0.0)
        self._fit = self._well and not sick
        if self._yielded:
            self._be(Phase.YIELDED, "a newer resident has taken over this host")
        elif now < self._not_before:
            self._be(Phase.WAITING, "its turn in the rollout has not come")
        elif snapshot.paused:
            self._be(Phase.PAUSED, self._reason or "nothing is changed while the pause lasts")
        elif self.configuration.mode is Mode.REMOVE:
            unfinished = Phase.FAILED if self._failures else Phase.STARTING
            self._be(Phase.REMOVED if self._removed else unfinished, self._reason)
        elif snapshot.blind:
            self._be(Phase.FAILED, snapshot.blind)
        elif snapshot.hold:
            self._be(Phase.HELD, f"kubelet is held on its base endpoint: {snapshot.hold}")
        elif self._is_limited(snapshot):
            times = f"{self._used()} times within an hour"
            self._be(Phase.LIMITED, f"kubelet would have to restart, and we have restarted it {times}")
        elif self._failures:
            self._be(Phase.FAILED, self._reason)
        elif self._tried is None:
            self._be(Phase.STARTING, self._reason)
        elif sick:
            self._be(Phase.UNWELL, sick)
        elif self._working is Action.INSTALL and self._before.inputs != self._tried:
            self._be(Phase.CONVERGING, "the inputs have changed")
        else:
            self._be(Phase.CONVERGED, "")

    def _is_limited(self, snapshot: PollSnapshot) -> bool:
        return self.spent and self._would_restart and self._checked == everything(snapshot)

    def _be(self, phase: Phase, reason: str) -> None:
        self._phase, self._reason = phase, reason

    # -- time -------------------------------------------------------------------------

    def _heartbeat(self, now: float) -> float:
        if self.configuration.mode is Mode.REMOVE or self._yielded:
            return RESYNC
        silent = self._silent_since is not None and now - self._silent_since < _LONG_SILENCE
        return SILENT_BEAT if silent else HEARTBEAT

    def _due(self, now: float) -> float:
        """When something is to be done, if nothing happens until then."""
        times = [now + RESYNC, self._not_before, self._retry_at, self._resync_at, self._calm_at(now)]
        times.append(self._second_look)
        if self.stamps:
            times.append(min(self.stamps) + HOUR + 1.0)
        if self._starting_since is not None:
            times.append(self._starting_since + _KUBELET_PATIENCE)
        return min(time for time in times if time > now)

    def _used(self) -> int:
        self.stamps = [stamp for stamp in self.stamps if self._now - HOUR < stamp <= self._now]
        return len(self.stamps)

    def _calm_at(self, now: float) -> float:
        """Passes that chase each other are slowed down, and nothing is lost by it."""
        self._passes = [at for at in self._passes if now - at < 60.0]
        extra = len(self._passes) - _CALM_PASSES
        return self._passes[-1] + min(30.0, 2.0**extra) if extra > 0 else 0.0

    def _backoff(self, first: float, times: int) -> float:
        return self._spread(min(_BACKOFF[1], first * 2.0 ** (times - 1)))

    def _spread(self, seconds: float) -> float:
        return seconds * (1 + _JITTER * (2 * self._random() - 1))
