"""When the daemon does what: a state machine without clock, loop or host.

`step` gets the time and what was seen, and answers with one action and the latest time of the next
look. `begun`, `moved` and `ended` tell it what became of the action. Nothing here waits or writes.

The rules, most important first. A daemon that a newer one has replaced does nothing. A pause means that
nothing is changed. A kubelet that hangs on a dead relay is moved off it, and waits for no
repair. Only a person ends a hold that a person has set. Any other hold is kept until the relay has been good
for a while. Only then, what differs is converged, and not while systemd is still busy (the proxy between
two tries, kubelet starting).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from installer.daemon.configuration import Configuration
from installer.daemon.decision import Action, Decision
from installer.daemon.pass_history import NEEDS_THE_BUS, RESYNC, PassHistory
from installer.daemon.phase import Standing, judge
from installer.daemon.poller import PollSnapshot, Token
from installer.daemon.relay_history import RelayHistory
from installer.model.daemon import DaemonState, Phase
from installer.model.fleet import PlannedWork
from installer.model.hold import BY_DAEMON, is_of_a_run, is_operators
from installer.model.limits import HURRIED_SECONDS, answer_seconds
from installer.model.names import Mode

if TYPE_CHECKING:
    from installer.daemon.outcome import Outcome

HEARTBEAT = 5.0  # seconds between two questions to the relay
_SUCCESSOR = 30.0  # seconds between two looks at who acts in our place
SILENT_HEARTBEAT = 1.0  # the same while the relay does not answer
HOUR = 3600.0
REPAIR_BOUND = 30.0  # seconds that a repair and its rollback may take while kubelet hangs (R8)
STOP_GRACE = 10.0  # seconds from SIGTERM to SIGKILL for a child that delays a rescue

_BLIND_PATIENCE = 20.0  # seconds without systemd's bus that mean nothing: a restart of it, or a shutdown
_KUBELET_PATIENCE = 10.0  # seconds that a restart of kubelet by others may take before a pass looks into it
_LONG_SILENCE = 60.0  # from then on the relay is asked as seldom as one that answers
_RESCUE_RETRY = 2.0
_JITTER = 0.25
BUSY = 75

_Choice = tuple[Action, str]  # and why
_NOTHING: _Choice = (Action.NOTHING, "")
_IN_THE_WAY = (Action.INSTALL, Action.PLAN, Action.RESTART_PROXY)  # of a rescue


class Policy:
    """`stamps` are the times of kubelet restarts by earlier daemons, on the clock of `now`. While `reloading`
    is set, new settings are read and no pass begins. `working` is the action of the child that runs."""

    def __init__(
        self,
        configuration: Configuration,
        random: Callable[[], float],
        now: float,
        stamps: Iterable[float] = (),
    ) -> None:
        self.configuration = configuration
        self.reloading = False
        self.stamps = list(stamps)
        self._random = random
        self._phase, self._reason, self._ready = Phase.STARTING, "", False
        self._serves = False
        self._now = now
        self.working = Action.NOTHING
        self._by_another = False
        self._begun_at, self._moved = now, False  # whether the child has changed something on the host
        self._before = PollSnapshot()  # what was seen when the child began
        self._passes = PassHistory(now, self._spread)
        self._rescue_at = 0.0
        self._relay = RelayHistory(now)
        self._starting_since: float | None = None
        self._blind_since: float | None = None
        self._forward_at = -HOUR
        self._yielded = self._was_paused = self._stopped = False
        self._checked: Token | None = None  # for which a look has said how many restarts are too few
        self._too_few = -1
        self._had = 0  # of them, when the action began
        self._hold = ""
        self._planned: PlannedWork | None = None  # which has to be asked for, on the host of this token
        self._planned_for: Token | None = None
        self._wanted: PlannedWork | None = None
        self.had_lock = False  # a pass of this daemon has had the host's lock
        self.asks = ""  # what the pass that was decided on may not do unasked: "all" planned work, "restarts"
        self.wonders = False  # a pass waits for what the cluster says of a pause, or soon will need it

    # -- what it tells ------------------------------------------------------------

    @property
    def state(self) -> DaemonState:
        return DaemonState(
            mode=self.configuration.mode,
            phase=self._phase,
            ready=self._ready,
            reason=self._reason,
            hold=self._hold,
            last_exit=self._passes.last[0],
            last_seconds=self._passes.last[1],
            serves=self._serves,
            wanted=self._passes.wanted if self.configuration.mode is Mode.INSTALL else "",
            installed=self._passes.installed,
            successor="nri" if self.configuration.rules.successor else "",
            restarts=self._used(),
            **self._passes.counts,
        )

    @property
    def planned(self) -> PlannedWork | None:
        """The work that has to be asked for, or was granted."""
        return self._planned

    @property
    def wanted(self) -> PlannedWork | None:
        """The same, if nothing but a permit is missing: what could not begin would keep a permit from others
        (a person's hold, a host that cannot be looked at, no restart of kubelet left). A pass keeps its."""
        return self._wanted

    @property
    def follows(self) -> bool:
        """Whether the action was begun by an earlier daemon."""
        return self._by_another

    @property
    def restarts_left(self) -> int:
        """How often we may restart kubelet now. The order of a pass has it as well, because what an earlier
        plan has found may have changed."""
        return max(0, self.configuration.restarts_per_hour - self._used())

    def begun(self, action: Action, snapshot: PollSnapshot, *, by_another: bool = False) -> None:
        """The action begins, on what was seen. `ended` follows, also where no child could be started.
        `by_another`: an earlier daemon has begun it, on inputs that are no longer known."""
        self.working, self._before, self._by_another = action, snapshot, by_another
        # What a repair that had to wait was about is repaired when kubelet is safe.
        self._stopped |= action is Action.RESCUE and (self._is_limited(snapshot) or self._planned is not None)
        self._moved, self._begun_at, self._had = False, self._now, self.restarts_left
        if action is Action.RESTART_PROXY:
            self._relay.restarts_proxy(self._now, self.configuration.dead_seconds)
        if action in (Action.INSTALL, Action.REMOVE, Action.PLAN) and not by_another:
            self._stopped &= action is Action.PLAN
            self._passes.begun(self._now)
        self._judge(self._now, snapshot)

    def moved(self) -> None:
        """The child has changed something on the host: it and its rollback get the time that R8 bounds."""
        self._moved = True

    def ended(self, now: float, outcome: Outcome, after: PollSnapshot) -> None:
        """The action that had begun has ended, or could not begin; `after` is what is seen then."""
        self._now = now
        action, self.working = self.working, Action.NOTHING
        before, passes = self._before, self._passes
        self.stamps += [now] * outcome.restarts
        passes.counts["all_restarts"] += outcome.restarts
        passes.counts["rollbacks"] += outcome.rolled_back
        away = after.blind and outcome.code in NEEDS_THE_BUS and not outcome.touched
        told = not (away or self._by_another or outcome.code == BUSY)
        if told and action in (Action.INSTALL, Action.REMOVE):
            passes.told(outcome)
        self.had_lock |= not (self._by_another or action is Action.PLAN or outcome.code == BUSY)
        if self._by_another:
            pass  # the node is as it left it, which a pass of our own looks at
        elif away or outcome.code == BUSY:
            passes.hindered(now, outcome.reason if away else "another run holds the host's lock")
            self._rescue_at = passes.retry_at
        elif action is Action.PLAN or outcome.would_restart or outcome.planned is not None:
            if outcome.planned is not None:
                self._planned = self._wanted = outcome.planned
                self._planned_for = before.everything
            if passes.planned(now, outcome, before, after):
                refused = self._had if action is not Action.PLAN and outcome.planned is None else 0
                self._checked, self._too_few = before.everything, refused if outcome.would_restart else -1
        elif action in (Action.INSTALL, Action.REMOVE):
            self._planned = self._wanted = None
            passes.ended(now, outcome, before, after, removes=self.configuration.mode is Mode.REMOVE)
        elif action in (Action.RESCUE, Action.HOLD):
            passes.counts["rescues"] += action is Action.RESCUE and outcome.code == 0
            self._rescue_at = now + self._spread(_RESCUE_RETRY)
        self._judge(now, after)

    # -- what to do ---------------------------------------------------------------

    def step(self, now: float, snapshot: PollSnapshot) -> Decision:
        """One action for what is seen now. While a child runs, only whether it has to stop."""
        self._now, self._hold = now, snapshot.hold
        self._track(now, snapshot)
        silence = self._relay.silence(now)
        rescues = bool(snapshot.proxy.loaded_digest) and 0.0 < silence < _LONG_SILENCE
        self.wonders = rescues and not snapshot.asked  # a rescue will not wait for it
        if not self.working and now >= self._passes.locked_until:
            self._wanted = None  # unless what follows finds that it would begin
        action, why = self._interrupt(now, snapshot) if self.working else self._choose(now, snapshot)
        if action is Action.NOTHING:
            self._judge(now, snapshot)
        due = self._due(now)
        grace = STOP_GRACE if action is Action.STOP and not self._yielded else 0.0
        return Decision(action, why, min(due, now + self._heartbeat(now)), due, grace)

    def remove_again(self) -> None:
        """An installation has been at work since."""
        self._passes.removed, self._passes.retry_at = False, 0.0

    def _track(self, now: float, snapshot: PollSnapshot) -> None:
        self._relay.see(now, snapshot, self.configuration.dead_seconds)
        if snapshot.kubelet.active_state not in ("activating", "deactivating"):
            self._starting_since = None
        elif self._starting_since is None:
            self._starting_since = now
        self._yielded = self._yielded or snapshot.superseded
        if self._was_paused and not snapshot.paused:
            self._passes.forget()
            self._checked = None
        self._was_paused = snapshot.paused

    def _interrupt(self, now: float, snapshot: PollSnapshot) -> _Choice:
        """Whether the child that runs has to stop."""
        if self._yielded and self.working is Action.INSTALL:
            return Action.STOP, "a newer daemon has taken over"
        untried = self._relay.is_untried(snapshot)  # then its restart comes first
        hangs = self.working in _IN_THE_WAY and self._hangs(now, snapshot, 0.5 if untried else 1.0)
        if self._relay.silent_since is None or not hangs:
            return _NOTHING
        bound = max(self._begun_at, self._relay.silent_since) + REPAIR_BOUND if self._moved else 0.0
        why = f"kubelet hangs on a relay that has been silent for {self._relay.silence(now):.0f} s"
        self._stopped = now >= bound  # and to be repeated when kubelet is safe
        return (Action.STOP, why) if self._stopped else _NOTHING

    def _choose(self, now: float, snapshot: PollSnapshot) -> _Choice:
        if self._yielded:
            return _NOTHING
        if snapshot.paused:
            why = self._why(now, snapshot)
            return (Action.PLAN, f"paused; {why}") if why and now >= self._passes.calm_at(now) else _NOTHING
        if self.configuration.mode is Mode.REMOVE:
            due = not self._passes.removed and now >= self._passes.retry_at and not self.reloading
            return (Action.REMOVE, "not removed yet") if due and self._may_begin(snapshot) else _NOTHING
        if snapshot.blind:
            return _NOTHING
        rescue = self._rescue(now, snapshot)
        if rescue[0] is not Action.NOTHING or self.reloading:
            return rescue
        if snapshot.hold:
            return self._held(now, snapshot)
        why = self._why(now, snapshot) if now >= self._passes.calm_at(now) else ""
        return self._allowed(now, snapshot, why) if why else _NOTHING

    def _hangs(self, now: float, snapshot: PollSnapshot, share: float = 1.0) -> bool:
        """Whether kubelet hangs on our relay, which is dead, by this share of deadSeconds."""
        if snapshot.blind or snapshot.paused or self._yielded or self.configuration.mode is Mode.REMOVE:
            return False
        seen = snapshot.proxy.loaded_digest and snapshot.runtime and snapshot.on_relay
        return bool(seen) and self._relay.is_dead(now, self.configuration.dead_seconds, share)

    def _rescue(self, now: float, snapshot: PollSnapshot) -> _Choice:
        """A dead or silent relay, after systemd was given its chance."""
        persons = is_operators(snapshot.hold)
        if self._relay.silent_since is None or not snapshot.runtime or not snapshot.proxy.loaded_digest:
            return _NOTHING
        if self._passes.tried is None and self._planned is None and not persons:
            return _NOTHING  # the first pass comes first, and does all that is needed
        silent = self._relay.silence(now)
        untried = self._relay.is_untried(snapshot)
        chance = now >= self._rescue_at and now >= self._relay.rescue_at()
        if self._hangs(now, snapshot) and not untried and chance:
            # With a person's hold the child only restarts kubelet, which the hold then takes to its base.
            return Action.RESCUE, f"{BY_DAEMON}the relay has been silent for {silent:.0f} s"
        wanted = (untried and snapshot.on_relay) if persons else (untried or not snapshot.on_relay)
        if wanted and self._relay.wants_restart(now, snapshot, self.configuration.dead_seconds):
            is_ = "it runs" if snapshot.proxy.running else f"it is {snapshot.proxy.active_state}"
            return Action.RESTART_PROXY, f"{is_}, and its relay has been silent for {silent:.0f} s"
        return _NOTHING

    def _held(self, now: float, snapshot: PollSnapshot) -> _Choice:
        if is_operators(snapshot.hold):
            return _NOTHING  # ended by `install` by hand, or with the file
        if is_of_a_run(snapshot.hold):
            due = now >= self._passes.retry_at
            return self._allowed(now, snapshot, "a run was cut off that holds kubelet") if due else _NOTHING
        ours = snapshot.hold.startswith(BY_DAEMON)
        if ours and self._stopped and now >= self._passes.retry_at:
            return self._allowed(now, snapshot, "the repair that was stopped for a rescue")
        good_since = self._relay.good_since
        good = good_since is not None and now - good_since >= self.configuration.good_seconds
        if self._passes.tried is None and not (ours and snapshot.relay):
            return self._allowed(now, snapshot, "start, with a hold")
        if self._passes.tried is not None and snapshot.inputs != self._passes.tried:
            return self._allowed(now, snapshot, "the inputs have changed")
        if ours and good and now - self._forward_at >= HOUR and now >= self._passes.retry_at:
            choice = self._allowed(now, snapshot, "the relay is good again", planned=False)
            self._forward_at = now if choice[0] is Action.INSTALL else self._forward_at
            return choice
        return _NOTHING

    def _may_begin(self, snapshot: PollSnapshot, *, planned: bool = True) -> bool:
        """Whether a pass may begin now. One without a permit does only what needs none; the end of a
        rescue is not `planned`. Before each one the cluster is asked whether the node is paused."""
        permission, work = snapshot.permission, self._planned
        if not (planned and permission.asks):
            self.asks = ""
        elif work is None or not permission.allows(work):
            self.asks = "all"
        else:
            self.asks = "" if work.restarts_kubelet else "restarts"
        self._wanted = self._planned if planned else None
        return not (self.asks == "all" and self._waits(snapshot)) and self._is_asked(snapshot)

    def _is_asked(self, snapshot: PollSnapshot) -> bool:
        """Whether the cluster was asked if the node is paused."""
        self.wonders = not snapshot.asked
        return snapshot.asked

    def _waits(self, snapshot: PollSnapshot) -> bool:
        """Whether there is nothing to do but planned work that is not permitted."""
        planned = self._planned
        known = planned is not None and self._planned_for == snapshot.everything
        return known and planned is not None and not snapshot.permission.allows(planned)

    def _allowed(self, now: float, snapshot: PollSnapshot, why: str, *, planned: bool = True) -> _Choice:
        """A pass, unless it would restart kubelet once too often: where no restart is left, a plan says first
        whether it would."""
        limited = self._is_limited(snapshot)
        if not limited and (self.restarts_left or self._checked == snapshot.everything):
            if not self._may_begin(snapshot, planned=planned):
                return _NOTHING
            self._checked = self._checked if self.restarts_left else None
            return Action.INSTALL, why
        if not self._is_asked(snapshot):
            return _NOTHING
        if not limited:
            return Action.PLAN, f"{why}; not allowed now: hourly restart limit reached"
        if not snapshot.hold and not snapshot.on_relay and now >= self._rescue_at:
            return Action.HOLD, f"{BY_DAEMON}kubelet was restarted {self._used()} times within an hour"
        return _NOTHING

    def _is_limited(self, snapshot: PollSnapshot) -> bool:
        """Whether a look at this host has found that so many restarts of kubelet are too few."""
        return self._checked == snapshot.everything and self.restarts_left <= self._too_few

    def _why(self, now: float, snapshot: PollSnapshot) -> str:
        return self._passes.why(now, snapshot, busy=self._systemd_is_busy(now, snapshot))

    def _systemd_is_busy(self, now: float, snapshot: PollSnapshot) -> bool:
        """Another party restarts kubelet just now, or has stopped it, which is not ours to undo."""
        if self._starting_since is not None:
            return now - self._starting_since < _KUBELET_PATIENCE
        return snapshot.kubelet.active_state == "inactive"

    # -- phase ------------------------------------------------------------------

    def _judge(self, now: float, snapshot: PollSnapshot) -> None:
        """Sets phase, reason and readiness."""
        sick = snapshot.complaint(self._relay.silence(now))
        looked = self._passes.counts["passes"] > 0  # which is not begun before
        if not snapshot.blind:
            self._blind_since = None
        elif self._blind_since is None:
            self._blind_since = now
        patient = looked and self._blind_since is not None and now < self._blind_since + _BLIND_PATIENCE
        blind = "" if patient else snapshot.blind
        self._serves = bool(self._passes.installed.generation) and not (blind or sick)
        standing = Standing(
            superseded=self._yielded,
            tried=self._passes.tried is not None,
            blind=blind,
            unservable=snapshot.unservable and not looked,
            removed=self._passes.removed and self.configuration.mode is Mode.REMOVE,
            said=self._passes.said,
            failed=self._passes.failures > 0,
            refused=self._passes.refused,
            limited=f"restarted {self._used()} times within an hour" if self._is_limited(snapshot) else "",
            awaits=(snapshot.permission.why or "asking for a permit")
            if self._wanted is not None and self._waits(snapshot)
            else "",
            sick=sick,
            difference=self._passes.difference(snapshot),
            new_inputs=snapshot.inputs != self._passes.tried,
            at_work=self.working is not Action.NOTHING,
            well=self._passes.well,
            unplaced=self._passes.unplaced,
        )
        self._phase, self._reason, self._ready = judge(standing, snapshot, self.configuration)

    # -- time -------------------------------------------------------------------------

    def patience(self, now: float) -> float:
        """Seconds that the relay has for its next answer. A silent one may only be slow: until the silence
        means more than it does now, it has more of them, but not while a pass works that may have to stop."""
        moments = [*self._relay.moments(self.configuration.dead_seconds), self._relay.rescue_at()]
        ahead = [moment for moment in (*moments, self._rescue_at) if moment > now]
        slow = bool(ahead) and self._relay.silent_since is not None and not self.working
        return answer_seconds(min(ahead) - now) if slow else HURRIED_SECONDS

    def _heartbeat(self, now: float) -> float:
        if self._yielded:
            return _SUCCESSOR
        if self.configuration.mode is Mode.REMOVE:
            return RESYNC
        silent = self._relay.silent_since is not None and self._relay.silence(now) < _LONG_SILENCE
        return SILENT_HEARTBEAT if silent else HEARTBEAT

    def _due(self, now: float) -> float:
        """When there may be something to do, if nothing happens until then."""
        times = [now + RESYNC, self._rescue_at, *self._passes.moments(now)]
        times += self._relay.moments(self.configuration.dead_seconds)
        times += [min(self.stamps) + HOUR + 1.0] if self.stamps else []
        times += [self._starting_since + _KUBELET_PATIENCE] if self._starting_since is not None else []
        times += [self._blind_since + _BLIND_PATIENCE] if self._blind_since is not None else []
        return min(time for time in times if time > now)

    def _used(self) -> int:
        self.stamps = [stamp for stamp in self.stamps if self._now - HOUR < stamp <= self._now]
        return len(self.stamps)

    def _spread(self, seconds: float) -> float:
        return seconds * (1 + _JITTER * (2 * self._random() - 1))
