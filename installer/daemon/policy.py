"""When the daemon does what: a state machine without clock, loop or host.

`step` gets the time and what was seen, and returns a decision. `begun`, `host_changed` and `ended` report
what became of it. Nothing here waits or writes.

The rules, most important first. A daemon that a newer one has replaced does nothing. During a pause nothing
is changed. A kubelet that hangs on a dead relay is taken off it, without waiting for a repair. Only a person
ends a hold that a person has set. Any other hold stays until the relay has answered for a while. After all
these, the daemon converges what differs, unless systemd is still busy (the proxy is between two attempts,
kubelet is starting).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from installer.daemon.configuration import Configuration
from installer.daemon.decision import UNBLOCKED, Action, Blocked, Decision, Running
from installer.daemon.pass_history import NEEDS_THE_BUS, RESYNC, UNITS_DIFFER, PassHistory
from installer.daemon.phase_and_readiness import Obstacles, judge_phase_and_readiness
from installer.daemon.poller import PollSnapshot, Token
from installer.daemon.relay_history import RelayHistory
from installer.errors import InvalidInputError
from installer.model.daemon import DaemonState, Phase
from installer.model.fleet import PlannedWork
from installer.model.hold import BY_DAEMON, is_of_a_run, is_operators
from installer.model.limits import HURRIED_SECONDS, answer_seconds
from installer.model.names import Mode

if TYPE_CHECKING:
    from installer.daemon.outcome import Outcome

HEARTBEAT = 5.0  # seconds between two relay probes
SILENT_HEARTBEAT = 1.0  # the same while the relay does not answer
_REPLACED_HEARTBEAT = 30.0  # the same for a daemon that was replaced
HOUR = 3600.0
REPAIR_BOUND = 30.0  # seconds that a repair and its rollback may take while kubelet hangs (R8)
STOP_GRACE = 10.0  # seconds from SIGTERM to SIGKILL for a child that delays a rescue

_BLIND_PATIENCE = 20.0  # seconds without systemd's bus that mean nothing: it restarts, or the host shuts down
_KUBELET_PATIENCE = 10.0  # seconds that others may take to restart kubelet before a pass looks into it
_LONG_SILENCE = 60.0  # from then on the relay is probed as seldom as one that answers
_RESCUE_RETRY = 2.0
_GOOD_SECONDS = 5.0  # that a relay has to answer before kubelet returns to it, if that takes no restart
_LONGER = 4.0  # times as long, after each return within an hour
_SETTINGS_RETRY = 10.0
_JITTER = 0.25
BUSY = 75

_NOTHING = Decision(Action.NOTHING)
_DELAYS_A_RESCUE = (Action.INSTALL, Action.PLAN, Action.SETTINGS, Action.RESTART_PROXY)


class Policy:
    """`restarts` are the times at which earlier daemons restarted kubelet, on the clock of `now`. `settings`
    are those that the configuration is of. A relay has to answer for `good_seconds` before kubelet returns to
    it. `state` is what the daemon reports."""

    def __init__(
        self,
        configuration: Configuration,
        random: Callable[[], float],
        now: float,
        restarts: Iterable[float] = (),
        settings: Token = (),
        good_seconds: float = 60.0,
    ) -> None:
        self.configuration, self._good_seconds = configuration, good_seconds
        self.restarts = list(restarts)
        self.had_lock = False  # a pass of this daemon has had the host's lock
        self.state = DaemonState(configuration.mode, Phase.STARTING, ready=False)
        self._random, self._now = random, now
        self._child = Running(_NOTHING, PollSnapshot(), now, 0, by_another=False)
        self._passes = PassHistory(now, self._spread)
        self._relay = RelayHistory(now)
        self._blocked = UNBLOCKED
        self._wants: PlannedWork | None = None
        self._owes_repair = False  # a rescue has stopped a repair, or found one that had to wait
        self._settings, self._settings_at = settings, 0.0  # that are known, and when others may be read
        self._rescue_at = 0.0
        self._returns: list[float] = []  # to the relay that it had to leave: when, within the last hour
        self._was_on_relay = self._has_left = False  # kubelet; by the guard, without a hold
        self._starting_since: float | None = None
        self._blind_since: float | None = None
        self._replaced = self._was_paused = False

    # -- the child ----------------------------------------------------------------

    @property
    def working(self) -> Action:
        """The action of the child that runs."""
        return self._child.decision.action

    @property
    def is_following(self) -> bool:
        """Whether an earlier daemon has begun the child that runs."""
        return self._child.by_another

    @property
    def blocked_work(self) -> PlannedWork | None:
        """The planned work that a pass has found and must not begin without a permit."""
        return self._blocked.work

    @property
    def permitted(self) -> PlannedWork | None:
        """The planned work that the running pass may do."""
        decision = self._child.decision
        return None if decision.ask_first == "all" else decision.wants or self.blocked_work

    @property
    def restarts_left(self) -> int:
        """How often we may restart kubelet now."""
        return max(0, self.configuration.restarts_per_hour - self._used())

    @property
    def locked_until(self) -> float:
        """No pass before that time: another run holds the host's lock, or systemd's bus is away."""
        return self._passes.locked_until

    def begun(self, decision: Decision, snapshot: PollSnapshot, *, by_another: bool = False) -> None:
        """The action begins, on what was seen. `ended` follows, even if no child could be started.
        `by_another`: an earlier daemon has begun it, on inputs that are no longer known."""
        action = decision.action
        self._child = Running(decision, snapshot, self._now, self.restarts_left, by_another)
        self._owes_repair |= action is Action.RESCUE and self._blocked != UNBLOCKED
        if action is Action.RESTART_PROXY:
            self._relay.restarts_proxy(self._now)
        if action in (Action.INSTALL, Action.REMOVE, Action.PLAN) and not by_another:
            self._passes.begun(self._now)
        self._update_state(self._now, snapshot)

    def host_changed(self) -> None:
        """The child has changed something on the host: it and its rollback get the time that R8 allows."""
        self._child = replace(self._child, host_changed=True)

    def ended(self, now: float, outcome: Outcome, after: PollSnapshot) -> None:
        """The action that had begun has ended, or could not begin; `after` is what is seen then."""
        self._now = now
        child, passes = self._child, self._passes
        action, before = child.decision.action, child.before
        self._child = replace(child, decision=_NOTHING)
        self.restarts += [now] * outcome.restarts
        passes.counts["all_restarts"] += outcome.restarts
        passes.counts["rollbacks"] += outcome.rolled_back
        self._owes_repair |= child.is_stopping
        lost_bus = after.blind and outcome.code in NEEDS_THE_BUS and not outcome.touched
        tells = not (lost_bus or child.by_another or outcome.code == BUSY)
        if tells and action in (Action.INSTALL, Action.REMOVE):
            passes.told(outcome)
        needs_no_lock = action in (Action.PLAN, Action.SETTINGS)
        self.had_lock |= not (child.by_another or needs_no_lock or outcome.code == BUSY)
        if child.by_another:
            pass  # the host is as that pass has left it: a pass of our own finds out
        elif action is Action.SETTINGS:
            self._take_settings(now, outcome, before)
        elif lost_bus or outcome.code == BUSY:
            passes.hindered(now, outcome.reason if lost_bus else "another run holds the host's lock")
            self._rescue_at = passes.retry_at
        elif action is Action.PLAN:
            passes.planned(now, outcome, before, after)
        elif outcome.is_blocked:
            self._block(outcome, child)
        elif action in (Action.INSTALL, Action.REMOVE):
            self._blocked, self._wants = UNBLOCKED, None
            self._owes_repair = child.is_stopping
            moved = self._has_left and after.on_relay and not outcome.restarts
            self._returns += [child.begun_at] * (child.decision.is_return or moved)
            passes.ended(now, outcome, before, after, removes=self.configuration.mode is Mode.REMOVE)
        elif action in (Action.RESCUE, Action.HOLD):
            self._was_on_relay = after.on_relay  # it was not the guard who has let kubelet leave
            passes.counts["rescues"] += action is Action.RESCUE and outcome.code == 0
            self._rescue_at = now + self._spread(_RESCUE_RETRY)
        self._update_state(now, after)

    def _take_settings(self, now: float, outcome: Outcome, before: PollSnapshot) -> None:
        """Bad settings stay bad until they change, and the pass that follows refuses them. A child that could
        not tell is asked again."""
        self.configuration = outcome.configuration or self.configuration
        if outcome.configuration is not None or outcome.code == InvalidInputError.exit_code:
            self._settings = before.settings
        else:
            self._settings_at = now + _SETTINGS_RETRY

    def _block(self, outcome: Outcome, child: Running) -> None:
        """Remember what the pass must not do on the host that it saw."""
        seen = child.before.obstacles
        if outcome.planned is not None:
            self._returns += [child.begun_at] * child.decision.is_return
            self._wants = outcome.planned
            too_few = 0 if outcome.would_restart else -1
            self._blocked = Blocked(seen, outcome.planned, too_few)
        else:
            work = self._blocked_on(child.before).work
            self._blocked = Blocked(seen, work, child.restarts_left)

    # -- what to do ---------------------------------------------------------------

    def step(self, now: float, snapshot: PollSnapshot) -> Decision:
        """Decide what to do about what is seen now. While a child runs, only whether to stop it."""
        self._now = now
        self._track(now, snapshot)
        decision = self._interrupt(now, snapshot) if self.working else self._choose(now, snapshot)
        if not self.working:
            locked = now < self._passes.locked_until  # what waited for a permit before still does
            self._wants = decision.wants or (self._wants if locked else None)
        if decision.action is Action.NOTHING:
            self._update_state(now, snapshot)
        silence = self._relay.silence(now)
        may_rescue = snapshot.is_ours and 0.0 < silence < _LONG_SILENCE
        due = self._due(now)
        return replace(
            decision,
            wants=self._wants,
            read_node=decision.read_node or (may_rescue and not snapshot.permission.fresh),
            wake=min(due, now + self._heartbeat(now)),
            due=due,
            grace=STOP_GRACE if decision.action is Action.STOP and not self._replaced else 0.0,
        )

    def remove_again(self) -> None:
        """An installation has been at work since: of another daemon, or by hand."""
        self._passes.removed, self._passes.retry_at = False, 0.0

    def _track(self, now: float, snapshot: PollSnapshot) -> None:
        self._relay.see(now, snapshot, self.configuration.dead_seconds)
        if snapshot.kubelet.active_state not in ("activating", "deactivating"):
            self._starting_since = None
        elif self._starting_since is None:
            self._starting_since = now
        if not self.working:
            leaves = self._was_on_relay and not snapshot.hold
            self._has_left = not snapshot.on_relay and (self._has_left or leaves)
            self._was_on_relay = snapshot.on_relay
        self._replaced = self._replaced or snapshot.superseded
        if self._passes.is_installed_again(snapshot):
            self.remove_again()
        if self._was_paused and not snapshot.paused:
            self._passes.forget()
            self._blocked = UNBLOCKED
        self._was_paused = snapshot.paused

    def _interrupt(self, now: float, snapshot: PollSnapshot) -> Decision:
        """Whether to stop the child that runs."""
        if self._replaced and self.working is Action.INSTALL:
            return Decision(Action.STOP, "a newer daemon has taken over")
        untried = self._relay.is_untried(snapshot)  # then a restart of the proxy comes first
        hangs = self.working in _DELAYS_A_RESCUE and self._hangs(now, snapshot, 0.5 if untried else 1.0)
        if self._relay.silent_since is None or not hangs:
            return _NOTHING
        child, since = self._child, self._relay.silent_since
        bound = max(child.begun_at, since) + REPAIR_BOUND if child.host_changed else 0.0
        why = f"kubelet hangs on a relay that has been silent for {self._relay.silence(now):.0f} s"
        self._child = replace(child, is_stopping=now >= bound)
        return Decision(Action.STOP, why) if now >= bound else _NOTHING

    def _choose(self, now: float, snapshot: PollSnapshot) -> Decision:
        passes = self._passes
        if self._replaced:
            return _NOTHING
        rescue = self._rescue(now, snapshot)
        if rescue.action is not Action.NOTHING:
            return rescue
        if snapshot.settings != self._settings and now >= self._settings_at:
            return Decision(Action.SETTINGS, "the settings have changed")
        why = self._why(now, snapshot)
        if snapshot.paused:
            return Decision(Action.PLAN, f"paused; {why}") if why else _NOTHING
        if self.configuration.mode is Mode.REMOVE:
            due = passes.is_removal_due(now, snapshot)
            return self._ask(snapshot, Decision(Action.REMOVE, "not removed yet")) if due else _NOTHING
        if snapshot.blind or now < passes.locked_until:
            return _NOTHING
        if snapshot.hold:
            return self._held(now, snapshot)
        waits = why == UNITS_DIFFER and self._flaps(now, snapshot)
        return self._install(now, snapshot, why) if why and not waits else _NOTHING

    def _hangs(self, now: float, snapshot: PollSnapshot, share: float = 1.0) -> bool:
        """Whether kubelet hangs on our relay, which has been dead for this share of deadSeconds."""
        if snapshot.blind or snapshot.paused or self._replaced:
            return False
        seen = snapshot.is_ours and snapshot.runtime and snapshot.on_relay
        return seen and self._relay.is_dead(now, share)

    def _rescue(self, now: float, snapshot: PollSnapshot) -> Decision:
        """What to do about a dead or silent relay, after systemd has had its chance."""
        persons = is_operators(snapshot.hold)
        if snapshot.blind or snapshot.paused or not (snapshot.runtime and snapshot.is_ours):
            return _NOTHING
        if self._passes.tried is None and self._blocked == UNBLOCKED and not persons:
            return _NOTHING  # the first pass comes first, and does all that is needed
        silent = self._relay.silence(now)
        untried = self._relay.is_untried(snapshot)
        chance = now >= self._rescue_at and now >= self._relay.rescue_at()
        if self._hangs(now, snapshot) and (snapshot.moves or not untried) and chance:
            # Under a person's hold the child only moves kubelet, which the hold then keeps there.
            return Decision(Action.RESCUE, f"{BY_DAEMON}the relay has been silent for {silent:.0f} s")
        stays = persons or self.configuration.mode is Mode.REMOVE  # kubelet does not return to the relay
        helps = (untried and snapshot.on_relay) if stays else (untried or not snapshot.on_relay)
        helps = helps and not (snapshot.moves and snapshot.on_relay)  # kubelet leaves first
        if helps and self._relay.wants_restart(now, snapshot):
            is_ = self._relay.describe(snapshot)
            return Decision(Action.RESTART_PROXY, f"{is_}, and its relay has been silent for {silent:.0f} s")
        return _NOTHING

    def _held(self, now: float, snapshot: PollSnapshot) -> Decision:
        if is_operators(snapshot.hold):  # `install` by hand ends it, or deleting the file
            leaves = snapshot.moves and snapshot.on_relay and now >= self._rescue_at
            return Decision(Action.HOLD, snapshot.hold) if leaves else _NOTHING
        tried, is_due = self._passes.tried, now >= self._passes.retry_at
        if is_of_a_run(snapshot.hold):
            why = "an interrupted run holds kubelet"
            return self._install(now, snapshot, why) if is_due else _NOTHING
        ours = snapshot.hold.startswith(BY_DAEMON)
        good_since = self._relay.good_since
        good = good_since is not None and now - good_since >= self._good_for(now, snapshot, good_since)
        # A generation that is not retried, or waits for a permit, does not keep kubelet from the good one.
        may_return = is_due or self._passes.retry_at == float("inf")
        returns = ours and good and may_return
        if returns and self._waits(snapshot):
            return self._install(now, snapshot, "the relay answers again", is_return=True)
        if ours and is_due and (self._owes_repair or not snapshot.proxy.loaded_digest):
            return self._install(now, snapshot, "resume the repair that a rescue interrupted")
        if tried is None and not (ours and snapshot.relay):
            return self._install(now, snapshot, "start, under a hold")
        if tried is not None and snapshot.inputs != tried:
            return self._install(now, snapshot, "the inputs have changed")
        if returns:
            return self._install(now, snapshot, "the relay answers again", is_return=True)
        return _NOTHING

    def _flaps(self, now: float, snapshot: PollSnapshot) -> bool:
        """Whether the guard has let kubelet leave, once more, a proxy that crashes now and then."""
        since = self._relay.good_since
        if not (snapshot.moves and self._has_left and self._returns) or since is None:
            return False
        return now - since < self._good_for(now, snapshot, since)

    def _good_for(self, now: float, snapshot: PollSnapshot, since: float) -> float:
        """Return the seconds from `since` on that the relay has to answer before kubelet returns: longer
        after each return within an hour."""
        self._returns = [at for at in self._returns if now - at < HOUR]
        first = min(_GOOD_SECONDS, self._good_seconds) if snapshot.moves else self._good_seconds
        last = max(0.0, self._returns[-1] - since) if self._returns else 0.0
        return last + min(HOUR, first * _LONGER ** len(self._returns))

    def _install(self, now: float, snapshot: PollSnapshot, why: str, *, is_return: bool = False) -> Decision:
        """A pass, unless one has found that it would restart kubelet too often."""
        if not self._is_limited(snapshot):
            return self._ask(snapshot, Decision(Action.INSTALL, why, is_return=is_return))
        if not snapshot.permission.fresh:
            return replace(_NOTHING, read_node=True)
        installed = bool(snapshot.proxy.loaded_digest)  # else nothing heeds a hold, and nothing would end it
        if installed and not snapshot.hold and not snapshot.on_relay and now >= self._rescue_at:
            why = f"{BY_DAEMON}kubelet was restarted {self._used()} times within an hour"
            return Decision(Action.HOLD, why)
        return _NOTHING

    def _ask(self, snapshot: PollSnapshot, decision: Decision) -> Decision:
        """A pass. Without a permit it does only what needs none; the return after a rescue needs none, but
        begins nothing. Before each pass the API server has to say whether the node is paused."""
        permission = snapshot.permission
        work = None if decision.is_return else self.blocked_work
        if decision.is_return or not permission.asks:
            ask_first = ""
        elif work is None or not permission.allows(work):
            ask_first = "all"
        else:
            ask_first = "" if work.restarts_kubelet else "restarts"
        if ask_first == "all" and self._waits(snapshot):
            return replace(_NOTHING, wants=work)
        if not permission.fresh:
            return replace(_NOTHING, wants=work, read_node=True)
        begins = (work.generation if work else "") if permission.asks else None
        return replace(decision, ask_first=ask_first, begins=begins, wants=work)

    def _waits(self, snapshot: PollSnapshot) -> bool:
        """Whether only planned work without a permit is left to do."""
        work = self._blocked_on(snapshot).work
        return work is not None and not snapshot.permission.allows(work)

    def _is_limited(self, snapshot: PollSnapshot) -> bool:
        """Whether a pass has found that too few restarts of kubelet are left for this host."""
        return self.restarts_left <= self._blocked_on(snapshot).too_few

    def _blocked_on(self, snapshot: PollSnapshot) -> Blocked:
        """Return why passes are blocked on a host that looks like this."""
        return self._blocked if self._blocked.seen == snapshot.obstacles else UNBLOCKED

    def _why(self, now: float, snapshot: PollSnapshot) -> str:
        """Return what calls for a pass, empty if nothing does, or if there were many."""
        if now < self._passes.calm_at(now):
            return ""
        return self._passes.why(now, snapshot, busy=self._systemd_is_busy(now, snapshot))

    def _systemd_is_busy(self, now: float, snapshot: PollSnapshot) -> bool:
        """Whether another party restarts kubelet now, or has stopped it, which is not ours to undo."""
        if self._starting_since is not None:
            return now - self._starting_since < _KUBELET_PATIENCE
        return snapshot.kubelet.active_state == "inactive"

    # -- phase ------------------------------------------------------------------

    def _update_state(self, now: float, snapshot: PollSnapshot) -> None:
        """Set the state that the daemon reports."""
        configuration, passes = self.configuration, self._passes
        sick = snapshot.complaint(self._relay.silence(now))
        if not snapshot.blind:
            self._blind_since = None
        elif self._blind_since is None:
            self._blind_since = now
        is_short = self._blind_since is not None and now < self._blind_since + _BLIND_PATIENCE
        blind = "" if is_short and passes.has_begun else snapshot.blind
        waits = self._wants is not None and self._waits(snapshot)
        obstacles = Obstacles(
            replaced=self._replaced,
            blind=blind,
            limited=f"restarted {self._used()} times within an hour" if self._is_limited(snapshot) else "",
            waits=(snapshot.permission.why or "asking for a permit") if waits else "",
            sick=sick,
            at_work=self.working is not Action.NOTHING,
        )
        phase, reason, ready = judge_phase_and_readiness(passes, obstacles, snapshot, configuration)
        self.state = DaemonState(
            mode=configuration.mode,
            phase=phase,
            ready=ready,
            reason=reason,
            replaced=self._replaced,
            hold=snapshot.hold,
            last_exit=passes.last[0],
            last_seconds=passes.last[1],
            serves=bool(passes.installed.generation) and not (blind or sick),
            wanted=passes.wanted if configuration.mode is Mode.INSTALL else "",
            installed=passes.installed,
            successor="nri" if configuration.rules.successor else "",
            restarts=self._used(),
            **passes.counts,
        )

    # -- time -------------------------------------------------------------------------

    def patience(self, now: float) -> float:
        """Return the seconds that the relay has for its next answer. A silent relay may only be slow: it gets
        more time, but not beyond the next moment at which its silence means more, and not while a pass runs
        that may have to be stopped."""
        moments = [*self._relay.moments(), self._relay.rescue_at()]
        ahead = [moment for moment in (*moments, self._rescue_at) if moment > now]
        slow = bool(ahead) and self._relay.silent_since is not None and not self.working
        return answer_seconds(min(ahead) - now) if slow else HURRIED_SECONDS

    def _heartbeat(self, now: float) -> float:
        if self._replaced:
            return _REPLACED_HEARTBEAT
        if self._passes.removed:
            return RESYNC
        silent = self._relay.silent_since is not None and self._relay.silence(now) < _LONG_SILENCE
        return SILENT_HEARTBEAT if silent else HEARTBEAT

    def _due(self, now: float) -> float:
        """Return when there may be something to do if nothing happens until then."""
        times = [now + RESYNC, self._rescue_at, self._settings_at]
        times += [*self._passes.moments(now), *self._relay.moments()]
        times += [min(self.restarts) + HOUR + 1.0] if self.restarts else []
        times += [self._starting_since + _KUBELET_PATIENCE] if self._starting_since is not None else []
        times += [self._blind_since + _BLIND_PATIENCE] if self._blind_since is not None else []
        return min(time for time in times if time > now)

    def _used(self) -> int:
        self.restarts = [at for at in self.restarts if self._now - HOUR < at <= self._now]
        return len(self.restarts)

    def _spread(self, seconds: float) -> float:
        return seconds * (1 + _JITTER * (2 * self._random() - 1))
