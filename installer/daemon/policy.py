"""When the daemon does what: a state machine without clock, loop or host.

`step` gets the time and what was seen, and returns a decision. `begun`, `host_changed` and `ended` report
what became of it. Nothing here waits or writes.

The rules, most important first. A daemon that a newer one has replaced does nothing. During a pause nothing
is changed. A kubelet that hangs on a dead relay is taken off it, without waiting for a repair. Only a person
ends a hold that a person has set. Any other hold stays until the relay has answered for a while. After all
these, a run does what the picture of the host calls for, unless systemd is still busy (the proxy is between
two attempts, kubelet is starting).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from installer.daemon import held
from installer.daemon.configuration import Configuration
from installer.daemon.decision import Action, Decision, Running
from installer.daemon.pass_history import MOST_WAITS, RESYNC, PassHistory
from installer.daemon.phase_and_readiness import Obstacles, judge_phase_and_readiness
from installer.daemon.poller import PollSnapshot
from installer.daemon.relay_history import RelayHistory
from installer.model.daemon import DaemonState, Installed, Phase
from installer.model.fleet import AskFirst, PlannedWork
from installer.model.hold import BY_DAEMON, is_operators
from installer.model.limits import HURRIED_SECONDS, answer_seconds
from installer.model.names import Mode
from installer.model.result import RunResult

if TYPE_CHECKING:
    from installer.node.picture import Picture

HEARTBEAT = 5.0  # seconds between two relay probes
SILENT_HEARTBEAT = 1.0  # the same while the relay does not answer
_REPLACED_HEARTBEAT = 30.0  # the same for a daemon that was replaced
HOUR = 3600.0
REPAIR_BOUND = 30.0  # seconds that a repair and its rollback may take while kubelet hangs (R8)
STOP_GRACE = 10.0  # seconds from SIGTERM to SIGKILL for a child that delays a rescue

_BLIND_PATIENCE = 20.0  # seconds without systemd's bus that mean nothing: it restarts, or the host shuts down
_KUBELET_PATIENCE = 10.0  # seconds that others may take to restart kubelet before a run looks into it
_LONG_SILENCE = 60.0  # from then on the relay is probed as seldom as one that answers
_RESCUE_RETRY = 2.0
_FIRST_PICTURE = 5.0  # seconds that a rescue waits for it: a mount may hang
_OVERTAKEN = 10.0  # seconds; changes that never stop are not waited for longer
_GOOD_SECONDS = 5.0  # that a relay has to answer before kubelet returns to it, if that takes no restart
_LONGER = 4.0  # times as long, after each return within an hour
_FIRST_AGAIN = 5.0  # seconds until a host that is not as it should be is assessed again; then ever longer
_BUSY_AGAIN = 2.0  # the same while another run is at work there
_JITTER = 0.25
BUSY = 75
_NEEDS_THE_BUS = (1, 4)  # exit codes that a run without systemd's bus may end with

_NOTHING = Decision(Action.NOTHING)
_DELAYS_A_RESCUE = (Action.INSTALL, Action.RESTART_PROXY)


class Policy:
    """`restarts` are the times at which earlier daemons restarted kubelet, on the clock of `now`. A relay has
    to answer for `good_seconds` before kubelet returns to it by a restart. `state` is what the daemon
    reports."""

    def __init__(
        self,
        configuration: Configuration,
        random: Callable[[], float],
        now: float,
        restarts: Iterable[float] = (),
        good_seconds: float = 60.0,
    ) -> None:
        self.configuration, self._good_seconds = configuration, good_seconds
        self.restarts = list(restarts)
        self.had_lock = False  # nobody else has had it when this daemon looked, or a pass of this daemon has
        self.keeps_permit = False  # of work that an earlier daemon has begun, while systemd is busy with it
        self.state = DaemonState(configuration.mode, Phase.STARTING, ready=False)
        self._random, self._began, self._now = random, now, now
        self._child = Running(_NOTHING, None, now, by_another=False)
        self._passes = PassHistory(self._spread)
        self._relay = RelayHistory(now)
        self._picture: Picture | None = None  # the last one
        self._overtaken_since: float | None = None  # units or the relay change while each one is taken
        self._installed = Installed()
        self._unclean = 0  # pictures in a row that showed the same problem
        self._unjudged: Picture | None = None  # it may tell of the wanted generation; not reported yet
        self._judged: tuple[object, ...] = ()  # what was last reported of one, and when
        self._judged_at = -RESYNC
        self._closer_at = now  # when the host has to be assessed anew
        self._read_by = now + RESYNC  # when the Node has to be read though nothing calls for it
        self._traits: tuple[object, ...] = ()  # of the host, whose change calls for a picture
        self._wants: PlannedWork | None = None
        self._owes_repair = False  # a rescue has stopped a repair, or found one that had to wait
        self._rescue_at = 0.0
        self._returns: list[float] = []  # to the relay that it had to leave: when, within the last hour
        self._was_on_relay = self._has_left = False  # kubelet; by the guard, without a hold
        self._starting_since: float | None = None
        self._blind_since: float | None = None
        self._replaced = self._was_paused = self._has_changed = False

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
    def planned_work(self) -> PlannedWork | None:
        """What the picture shows that must not begin without a permit."""
        return None if self._picture is None else self._passes.work(self._picture)

    @property
    def permitted(self) -> PlannedWork | None:
        """The planned work that the running pass may do."""
        decision = self._child.decision
        may_begin_none = not self.working or decision.ask_first is AskFirst.ALL
        return None if may_begin_none else decision.wants or self.planned_work

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
        self._child = Running(decision, snapshot.picture, self._now, by_another)
        blocked = self._waits(snapshot) or self._is_limited(snapshot)
        self._owes_repair |= action is Action.RESCUE and blocked
        if action is Action.RESTART_PROXY:
            self._relay.restarts_proxy(self._now)
        if action in (Action.INSTALL, Action.REMOVE) and not by_another:
            self._passes.begun(self._now)
        self._update_state(self._now, snapshot)

    def host_changed(self) -> None:
        """The child has changed something on the host: it and its rollback get the time that R8 allows."""
        self._child = replace(self._child, host_changed=True)

    def ended(self, now: float, outcome: RunResult, after: PollSnapshot) -> None:
        """The action that had begun has ended, or could not begin; `after` is what is seen then. Its picture
        is that of before, until the next one comes."""
        self._now = now
        child, passes = self._child, self._passes
        action, picture = child.decision.action, child.picture
        self._child = replace(child, decision=_NOTHING)
        self.restarts += [now] * outcome.restarts
        passes.counts["all_restarts"] += outcome.restarts
        passes.counts["rollbacks"] += outcome.rolled_back
        self._owes_repair |= child.is_stopping
        self._closer_at = now
        lost_bus = after.blind and outcome.code in _NEEDS_THE_BUS and not outcome.touched
        self.had_lock |= not (child.by_another or outcome.code == BUSY)
        if child.by_another:
            pass  # the host is as that pass has left it: the next picture shows how
        elif lost_bus or outcome.code == BUSY:
            passes.hindered(now, outcome.reason if lost_bus else "another run holds the host's lock")
            self._rescue_at = passes.retry_at
        elif action in (Action.INSTALL, Action.REMOVE):
            self._wants = outcome.planned
            moved = self._has_left and (after.on_relay or outcome.changed) and not outcome.restarts
            self._returns += [child.begun_at] * (child.decision.is_return or moved)
            if not outcome.is_blocked:
                self._owes_repair = child.is_stopping
            if outcome.code == 0:
                self._judged, self._judged_at = (0, outcome.fleet_generation), now
            if picture is not None:
                passes.ended(now, outcome, picture)
                # Until the next picture comes, its permit is not given back.
                self._wants = child.decision.wants if passes.goes_on else self._wants
            passes.removed = outcome.code == 0 and self.configuration.mode is Mode.REMOVE
        elif action in (Action.RESCUE, Action.HOLD):
            self._was_on_relay = after.on_relay  # it was not the guard who has let kubelet leave
            passes.counts["rescues"] += action is Action.RESCUE and outcome.code == 0
            self._rescue_at = now + self._spread(_RESCUE_RETRY)
        self._update_state(now, after)

    # -- what to do ---------------------------------------------------------------

    def step(self, now: float, snapshot: PollSnapshot) -> Decision:
        """Decide what to do about what is seen now. While a child runs, only whether to stop it."""
        self._now, self.keeps_permit = now, False
        self._track(now, snapshot)
        decision = self._interrupt(now, snapshot) if self.working else self._choose(now, snapshot)
        if not self.working:
            # What waited for a permit before still does, until a picture shows something else.
            unknown = decision.action is Action.NOTHING and self._awaits_picture(now, snapshot)
            unknown |= now < self._passes.locked_until
            self._wants = decision.wants or (self._wants if unknown else None)
        if decision.action is Action.NOTHING:
            self._update_state(now, snapshot)
        silence = self._relay.silence(now)
        may_rescue = snapshot.is_ours and 0.0 < silence < _LONG_SILENCE
        rests = not (self.working or self._replaced or snapshot.blind) and decision.action is Action.NOTHING
        if snapshot.permission.fresh:
            self._read_by = now + self._spread(RESYNC)
        asks = may_rescue or (now >= self._read_by and not self._replaced)
        due = self._due(now)
        return replace(
            decision,
            wants=self._wants,
            read_node=decision.read_node or (asks and not snapshot.permission.fresh),
            looks_closer=rests and (self._has_changed or now >= self._closer_at),
            has_changed=self._has_changed,
            wake=min(due, now + self._heartbeat(now)),
            due=due,
        )

    def remove_again(self) -> None:
        """An installation has been at work since: of another daemon, or by hand."""
        self._passes.removed, self._passes.retry_at = False, 0.0

    def _track(self, now: float, snapshot: PollSnapshot) -> None:
        self._relay.see(now, snapshot, self.configuration.dead_seconds)
        starts = snapshot.kubelet.active_state in ("activating", "deactivating")
        self._starting_since = _since(self._starting_since, now, holds=starts)
        if not self.working:
            leaves = self._was_on_relay and not snapshot.hold
            self._has_left = not snapshot.on_relay and (self._has_left or leaves)
            self._was_on_relay = snapshot.on_relay
        self._replaced = self._replaced or snapshot.superseded
        if self._was_paused and not snapshot.paused:
            self._passes.forget()
        self._was_paused = snapshot.paused
        units = ((each.active_state, each.invocation_id) for each in (snapshot.proxy, snapshot.kubelet))
        traits = (snapshot.agent, snapshot.relay, snapshot.paused, bool(snapshot.blind), *units)
        self._has_changed = bool(self._traits) and traits != self._traits
        self._traits = traits
        if self._has_changed:
            self._closer_at = min(self._closer_at, now)
        if snapshot.picture is not None and snapshot.picture is not self._picture:
            self._see(now, snapshot.picture)
        if snapshot.picture is not None and snapshot.picture.hold and not snapshot.hold:
            self._closer_at = min(self._closer_at, now)  # the hold has ended since, or meanwhile

    def _see(self, now: float, picture: Picture) -> None:
        """A new picture. The next one comes with the next event, or in a while."""
        before, self._picture = self._picture, picture
        overtaken = picture.overtaken or self._has_changed
        self._overtaken_since = _since(self._overtaken_since, now, holds=overtaken)
        if picture.spent:
            return
        removes = self.configuration.mode is Mode.REMOVE and not self._passes.removed
        self._passes.seen(picture, is_done=picture.is_clean and not removes)
        self.had_lock |= not picture.at_work
        self._installed = picture.installed or self._installed
        is_new = before is None or before.problem != picture.problem
        self._unclean = 0 if picture.is_clean else 1 if is_new else min(self._unclean + 1, MOST_WAITS)
        self._owes_repair = self._owes_repair and not picture.is_clean
        is_refused = bool(picture.code and picture.differs)  # something of ours is there, and stays
        is_back = picture.due or is_refused or self.configuration.mode is Mode.INSTALL
        if self._passes.removed and is_back:
            self.remove_again()
        self._unjudged = picture
        wait = RESYNC
        if picture.at_work:
            wait = _BUSY_AGAIN
        elif self._unclean:
            wait = min(RESYNC, _FIRST_AGAIN * 2.0 ** (self._unclean - 1))
        self._closer_at = now + (self._spread(wait) if wait > _BUSY_AGAIN else wait)

    def take_verdict(self) -> RunResult | None:
        """Return, once for each picture, what is to be reported of the wanted generation without a run: that
        it works here, now and then, or that it has failed here by the record. A run reports its own end."""
        if self.working:
            return None
        picture, self._unjudged = self._unjudged, None
        if picture is None or not (picture.wanted and (picture.is_clean or picture.remembered)):
            return None
        code, wanted = picture.code, picture.wanted
        if (code, wanted) == self._judged and self._now - self._judged_at < RESYNC / 2:
            return None
        self._judged, self._judged_at = (code, wanted), self._now
        return RunResult(code, remembered=picture.remembered, reason=picture.reason, fleet_generation=wanted)

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
        return Decision(Action.STOP, why, grace=STOP_GRACE) if now >= bound else _NOTHING

    def _choose(self, now: float, snapshot: PollSnapshot) -> Decision:
        if self._replaced:
            return _NOTHING
        rescue = self._rescue(now, snapshot)
        if snapshot.paused or (rescue.action is not Action.NOTHING and not self._comes_first(now, snapshot)):
            return rescue
        if self.configuration.mode is Mode.REMOVE:
            return self._remove(now, snapshot)
        if snapshot.blind or now < self._passes.locked_until:
            return _NOTHING
        return self._held(now, snapshot) if snapshot.hold else self._converge(now, snapshot)

    def _comes_first(self, now: float, snapshot: PollSnapshot) -> bool:
        """Whether the first run does all that is needed, also for a dead relay."""
        if self._passes.inputs is not None or is_operators(snapshot.hold):
            return False
        if snapshot.picture is None:
            return now < self._began + _FIRST_PICTURE
        blocked = self._waits(snapshot) or self._is_limited(snapshot)
        if self.configuration.mode is Mode.INSTALL and not snapshot.hold:
            blocked = blocked or not self._may_begin(now, snapshot, snapshot.picture)
        return self._calls_for_run(now, snapshot) and not blocked

    def _remove(self, now: float, snapshot: PollSnapshot) -> Decision:
        picture, passes = snapshot.picture, self._passes
        if passes.removed or picture is None or picture.spent or picture.at_work:
            return _NOTHING  # the next one also tells whether to install
        if now < passes.calm_at(now) or not passes.is_due(now, picture):
            return _NOTHING
        return self._ask(snapshot, Decision(Action.REMOVE, picture.differs or "not removed yet"))

    def _converge(self, now: float, snapshot: PollSnapshot) -> Decision:
        picture = snapshot.picture
        if picture is None:
            return _NOTHING
        if not self._calls_for_run(now, snapshot):
            return replace(_NOTHING, wants=None if self._is_limited(snapshot) else self._passes.met(picture))
        if not self._may_begin(now, snapshot, picture):
            return replace(_NOTHING, wants=self._begun_work(now, snapshot, picture))
        return self._install(now, snapshot, picture.differs or "an earlier run has not come to its end")

    def _begun_work(self, now: float, snapshot: PollSnapshot, picture: Picture) -> PlannedWork | None:
        """What an earlier daemon has begun, while systemd is busy. The node keeps its permit for as long as a
        permitted run may take, but not while kubelet is stopped: that may last."""
        work, begun = self._passes.work(picture), snapshot.permission.begun
        is_begun = work is not None and begun is not None and work.generation == begun.generation
        passes = now < self._began + self.configuration.rules.hold_seconds
        self.keeps_permit = is_begun and passes and snapshot.kubelet.active_state != "inactive"
        return work if self.keeps_permit else None

    def _may_begin(self, now: float, snapshot: PollSnapshot, picture: Picture) -> bool:
        """Whether a run may begin, because what differs is not left to systemd or to a rescue. These see to a
        proxy that starts: a run now would blame the good generation. One that has started since the picture
        only looked as if it needed a run."""
        coming, since = snapshot.proxy_is_coming, self._overtaken_since
        overtaken = since is not None and now - since < _OVERTAKEN
        left = (coming or overtaken or self._flaps(now, snapshot)) and not picture.in_files
        again = coming and snapshot.on_relay and self._passes.failed and self._passes.is_known(picture)
        return not (left or again or self._systemd_is_busy(now, snapshot))

    def _calls_for_run(self, now: float, snapshot: PollSnapshot) -> bool:
        picture = snapshot.picture
        if picture is None or not picture.due or self._awaits_picture(now, snapshot):
            return False
        met = self._passes.met(picture)  # a permit for it is worth another run
        is_due = self._passes.is_due(now, picture) or (met is not None and snapshot.permission.allows(met))
        return now >= self._passes.calm_at(now) and is_due

    def _awaits_picture(self, now: float, snapshot: PollSnapshot) -> bool:
        """Whether only the next picture tells what there is to do: something has changed since the last
        one."""
        picture = snapshot.picture
        return picture is None or picture.spent or bool(picture.at_work) or now >= self._closer_at

    def _hangs(self, now: float, snapshot: PollSnapshot, share: float = 1.0) -> bool:
        """Whether kubelet hangs on our relay, which has been dead for this share of deadSeconds."""
        if snapshot.blind or snapshot.paused or self._replaced:
            return False
        seen = snapshot.is_ours and snapshot.runtime and snapshot.on_relay
        return seen and self._relay.is_dead(now, share)

    def _rescue(self, now: float, snapshot: PollSnapshot) -> Decision:
        """What to do about a dead or silent relay, after systemd has had its chance."""
        if snapshot.blind or snapshot.paused or not (snapshot.runtime and snapshot.is_ours):
            return _NOTHING
        silent = self._relay.silence(now)
        untried = self._relay.is_untried(snapshot)
        chance = now >= self._rescue_at and now >= self._relay.rescue_at()
        if self._hangs(now, snapshot) and (snapshot.moves or not untried) and chance:
            # Under a person's hold the child only moves kubelet, which the hold then keeps there.
            return Decision(Action.RESCUE, f"{BY_DAEMON}the relay has been silent for {silent:.0f} s")
        # Kubelet does not return to the relay.
        stays = is_operators(snapshot.hold) or self.configuration.mode is Mode.REMOVE
        helps = (untried and snapshot.on_relay) if stays else (untried or not snapshot.on_relay)
        helps = helps and not (snapshot.moves and snapshot.on_relay)  # kubelet leaves first
        if helps and self._relay.wants_restart(now, snapshot):
            is_ = self._relay.describe(snapshot)
            return Decision(Action.RESTART_PROXY, f"{is_}, and its relay has been silent for {silent:.0f} s")
        return _NOTHING

    def _held(self, now: float, snapshot: PollSnapshot) -> Decision:
        picture, passes, good_since = snapshot.picture, self._passes, self._relay.good_since
        may_begin = picture is None or passes.is_due(now, picture) or picture.remembered
        is_spent = picture is not None and picture.spent  # the next one tells whether a restart is left
        facts = held.Held(
            by=held.Holder.of(snapshot.hold),
            strays=snapshot.moves and snapshot.on_relay and now >= self._rescue_at,
            is_good=good_since is not None and now - good_since >= self._good_for(now, snapshot, good_since),
            is_due=self._calls_for_run(now, snapshot),
            # What is not retried, or waits for a permit, does not keep kubelet from the good generation.
            may_return=may_begin and not is_spent,
            waits=self._waits(snapshot),
            owes=self._owes_repair or not snapshot.proxy.loaded_digest,
            in_files=picture is not None and picture.in_files,
            is_first=passes.inputs is None,
            # Refused inputs end no hold: a run would only repair the good generation, whose relay was silent.
            is_new=picture is not None and not picture.code and passes.inputs not in (None, picture.inputs),
            answers=snapshot.relay,
        )
        row = held.decide(facts)
        if row.action is Action.INSTALL:
            return self._install(now, snapshot, row.why, is_return=row.is_return)
        return _NOTHING if row.action is Action.NOTHING else Decision(row.action, row.why or snapshot.hold)

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
        """A run, unless it would restart kubelet too often."""
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
        """A run. Without a permit it does only what needs none; the return after a rescue needs none, but
        begins nothing. Before each run the API server has to say whether the node is paused."""
        permission = snapshot.permission
        work = None if decision.is_return else self.planned_work
        if decision.is_return or not permission.asks:
            ask_first = AskFirst.NOTHING
        elif work is None or not permission.allows(work):
            ask_first = AskFirst.ALL
        else:
            ask_first = AskFirst.NOTHING if work.restarts_kubelet else AskFirst.RESTARTS
        if ask_first is AskFirst.ALL and self._waits(snapshot) and not self._looks(snapshot):
            return replace(_NOTHING, wants=work)
        if not permission.fresh:
            return replace(_NOTHING, wants=work, read_node=True)
        begins = (work.generation if work else "") if permission.asks else None
        return replace(decision, ask_first=ask_first, begins=begins, wants=work)

    def _looks(self, snapshot: PollSnapshot) -> bool:
        """Whether a run has to look after containers, once after each start of the proxy. That needs no
        permit."""
        unchecked = snapshot.picture.unchecked if snapshot.picture is not None else ""
        return unchecked not in ("", self._passes.looked_after)

    def _waits(self, snapshot: PollSnapshot) -> bool:
        """Whether only planned work without a permit is left to do."""
        picture = snapshot.picture
        if picture is None or picture.spent or picture.repairs_first:
            return False
        work = self._passes.work(picture)
        return work is not None and not snapshot.permission.allows(work)

    def _is_limited(self, snapshot: PollSnapshot) -> bool:
        """Whether too few restarts of kubelet are left for what a run would do."""
        picture = snapshot.picture
        if picture is None or picture.spent or picture.repairs_first:
            return False
        return self.restarts_left < picture.restarts

    def _systemd_is_busy(self, now: float, snapshot: PollSnapshot) -> bool:
        """Whether another party restarts kubelet now, or has stopped it, which is not ours to undo."""
        if self._starting_since is not None:
            return now - self._starting_since < _KUBELET_PATIENCE
        return snapshot.kubelet.active_state == "inactive"

    # -- phase ------------------------------------------------------------------

    def _update_state(self, now: float, snapshot: PollSnapshot) -> None:
        """Set the state that the daemon reports."""
        configuration, passes, picture = self.configuration, self._passes, snapshot.picture
        sick = snapshot.complaint(self._relay.silence(now))
        self._blind_since = _since(self._blind_since, now, holds=bool(snapshot.blind))
        is_short = self._blind_since is not None and now < self._blind_since + _BLIND_PATIENCE
        blind = "" if is_short and picture is not None else snapshot.blind
        waits = self._wants is not None and self._waits(snapshot) and not self.keeps_permit
        obstacles = Obstacles(
            replaced=self._replaced,
            blind=blind,
            limited=f"restarted {self._used()} times within an hour" if self._is_limited(snapshot) else "",
            waits=(snapshot.permission.why or "asking for a permit") if waits else "",
            sick=sick,
            at_work=self.working is not Action.NOTHING,
        )
        phase, reason, ready = judge_phase_and_readiness(passes, obstacles, snapshot, configuration)
        last, installed = passes.last, self._installed
        if picture is not None and not passes.failed and not picture.spent:
            last = (picture.code, last[1])
        self.state = DaemonState(
            mode=configuration.mode,
            phase=phase,
            ready=ready,
            reason=reason,
            replaced=self._replaced,
            hold=snapshot.hold,
            last_exit=last[0],
            last_seconds=last[1],
            serves=bool(installed.generation) and not (blind or sick),
            wanted=picture.wanted if picture is not None and configuration.mode is Mode.INSTALL else "",
            installed=Installed() if passes.removed else installed,
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
        times = [now + RESYNC, self._rescue_at, self._closer_at, self._read_by]
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


def _since(before: float | None, now: float, *, holds: bool) -> float | None:
    """Since when something holds: still since `before`, or since now; None while it does not."""
    return (now if before is None else before) if holds else None
