"""Decides, from the rollout's Leases, the node's next request or that it may begin. Pure.

A node reads all of them (`read_fleet_state`), does what `Rollout.next_move` says, adds to the state what it
has learnt by that, and asks again, until the move is to wait or to take a permit. `permit_client.py` makes
the requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from installer.cluster import breaker as breakers
from installer.cluster.breaker import Breaker, read_breaker
from installer.cluster.leases import (
    CANARY,
    RING,
    Holder,
    Permit,
    breaker_name,
    permits_of,
    read_permits,
)
from installer.cluster.permit_choice import choose_permit, pick_suspect
from installer.cluster.size import POLLS_PER_SECOND, FleetSize, all_poll_within, poll_seconds, read_size
from installer.model.event import name_some
from installer.model.fleet import FLEET, FleetRules, PlannedWork
from installer.model.hold import PAUSE_ANNOTATION
from installer.model.instant import plain_time
from installer.model.jsontext import mapping_at, text_at
from installer.model.window import judge_windows

_GRANT_SECONDS = 7.0  # a waiting fleet asks once in twice that time for each permit there is
_MANY = 11.0  # the same, at most, with many permits: one is often free, and is used for longer
_SHORTEST = 4.0  # seconds until a node asks again

_NEW_SECONDS = 3600.0  # a Node that is younger has just joined
_NO_WINDOW = "the rollout's window is closed"
_OTHERS_FIRST = "other nodes go first"
_LOST = "every permit is dated years ahead; `cri-resmgr-installer rollout retry` deletes them"


@dataclass(frozen=True, slots=True)
class FleetState:
    size: FleetSize  # that a node has last written down
    permits: tuple[Permit, ...] = ()
    paused: str | None = None  # why planned work is paused, None if it is not
    breaker: Breaker | None = None  # of the generation that was asked for; None: no node has started it
    fault: str = ""  # why the breaker cannot be read
    is_counted: bool = False  # by this node itself
    started: float = 0.0  # when the DaemonSet that was counted was created; 0: not counted, or gone
    labelled: int | None = None  # how many nodes have the label of canaries; None: not asked
    gone: str | None = None  # the holder whose Node is gone; "": the one looked at is there; None: not asked

    @property
    def nodes(self) -> int:
        return self.size.nodes

    def knows_size(self, daemonset: str, now: float) -> bool:
        return self.is_counted or self.size.is_fresh(daemonset, now)


def read_fleet_state(leases: object, generation: str, now: float) -> FleetState:
    """Read the items of a LeaseList, at the time `now` of the epoch."""
    items = leases if isinstance(leases, list) else ()
    by_name = {text_at(lease, "metadata", "name"): lease for lease in items}
    fleet, lease = by_name.get(FLEET, {}), by_name.get(breaker_name(generation))
    breaker, fault = None, ""
    try:
        breaker = read_breaker(generation, lease, now) if lease is not None else None
    except ValueError as error:
        fault = str(error)
    return FleetState(read_size(fleet), read_permits(leases), read_pause(fleet), breaker, fault)


def read_pause(lease: Mapping[str, Any]) -> str | None:
    """Return why the Lease `fleet` pauses the rollout, None if it does not."""
    why = mapping_at(lease, "metadata", "annotations").get(PAUSE_ANNOTATION)
    return None if why is None else str(why)


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing may begin now. The node asks again after `seconds` and up to `spread` seconds more, so that a
    fleet does not ask in step."""

    why: str
    detail: str = ""  # of `why`: what differs each time
    seconds: float = 0.0
    spread: float = 0.0


class Lookup(Enum):
    SIZE = "of the fleet, by its DaemonSet"
    CANARIES = "how many nodes have their label"


@dataclass(frozen=True, slots=True)
class CheckHolder:
    """Is the Node of the permit's holder still there?"""

    permit: Permit


@dataclass(frozen=True, slots=True)
class WriteBreaker:
    breaker: Breaker


@dataclass(frozen=True, slots=True)
class TakePermit:
    """Take the first of these that no other node takes at the same time; then the work begins. None is needed
    if the list is empty."""

    permits: tuple[Permit, ...] = ()


Move = Wait | Lookup | CheckHolder | WriteBreaker | TakePermit


def wait_for_others(why: str) -> Wait:
    """Other nodes did at the same time what this node was about to do."""
    return Wait(_OTHERS_FIRST, f": they {why} at the same time", _SHORTEST / 2, _SHORTEST)


@dataclass(frozen=True, slots=True)
class Rollout:
    """The rollout as `me` sees it, at the time `now` of the epoch."""

    state: FleetState
    me: Holder
    work: PlannedWork
    rules: FleetRules
    daemonset: str  # the path of the one that tells the size of the fleet
    now: float
    random: Callable[[], float]
    labelled: bool  # the Node of `me` has the label of canaries
    joined: float = 0.0  # when the Node of `me` was created

    def next_move(self) -> Move:
        state = self.state
        if state.fault and self.work.begins:
            return self._await_people(f"{state.fault}; `cri-resmgr-installer rollout retry` deletes it")
        if state.paused is not None:
            return self._await_people("the rollout is paused" + (f": {state.paused}" if state.paused else ""))
        # Only the DaemonSet tells whether a removal's breaker is of an earlier removal.
        is_dated = state.is_counted or state.breaker is None or not self.work.removes
        if not (is_dated and state.knows_size(self.daemonset, self.now)):
            return Lookup.SIZE
        if (closed := self._await_window()) is not None:
            return closed
        move = self._pass_breaker() if self.work.begins else None
        move = move or (self._find_permit() if self.work.restarts_kubelet else TakePermit())
        # A size that another node has written down is enough to wait by, but not to begin by.
        is_hearsay = isinstance(move, TakePermit) and not state.is_counted
        return Lookup.SIZE if is_hearsay and breakers.allows_more(self.rules, state.nodes) else move

    @property
    def is_canary(self) -> bool:
        return self.state.breaker is not None and self.me.node in self.state.breaker.canaries

    def _await_people(self, why: str, detail: str = "") -> Wait:
        """Wait for what may end at any moment: by a person, or when a canary has ended. A labelled node, for
        which all others wait, asks as often as in a small fleet."""
        pace = poll_seconds(1 if self.labelled else self.state.nodes)
        return Wait(why, detail, pace / 2, pace)

    def _await_window(self) -> Wait | None:
        """Wait for a window; None if one is open, or this work needs none. What the good generation needs
        cannot wait, and a person waits for a removal."""
        rules = self.rules
        if not rules.window or not self.work.begins or self.work.removes or self._has_joined:
            return None
        found = judge_windows(rules.window, self.now)
        if found.open:
            return None
        if found.fault:
            return self._await_people(f"{_NO_WINDOW}: {found.fault}")
        detail = f": it opens at {plain_time(found.until)}"
        return Wait(_NO_WINDOW, detail, found.until - self.now, self._queue_spread)

    @property
    def _has_joined(self) -> bool:
        """Whether the node is new: no maintenance to plan, but what it needs before it can be used."""
        breaker = self.state.breaker
        is_young = self.joined > self.now - _NEW_SECONDS
        begun = breaker is not None and not breakers.is_forgotten(breaker, self.now)
        return is_young or (breaker is not None and begun and self.joined > breaker.begun)

    # -- the circuit breaker ----------------------------------------------------------------------

    def _pass_breaker(self) -> Move | None:
        """None if the generation may begin on this node."""
        there = breaker = self.state.breaker
        if breaker is not None and breakers.is_forgotten(breaker, self.now):
            breaker = None
        if breaker is None or breakers.is_over(breaker, self.state.started):
            # No node has begun it: the first one writes that it goes first.
            if self.state.labelled is None:
                return Lookup.CANARIES
            version = there.version if there else ""
            breaker = Breaker(self.work.generation, self.now, version=version, labelled=self.state.labelled)
        why = breakers.stopped(breaker, self.rules, self.state.nodes)
        if why and self.me.node not in breaker.failures:
            return self._await_people(why)
        admitted = self._admit(breaker)
        if admitted != there:
            return WriteBreaker(admitted)
        goes_first = self.rules.order != "canary" or self.me.node in breaker.canaries
        return None if goes_first else self._await_canaries(breaker)

    def _admit(self, breaker: Breaker) -> Breaker:
        """Return the breaker with this node as a canary, if it is to be one."""
        breaker, node = breakers.with_passed(breaker, self.now), self.me.node
        if breaker.passed or self.rules.order != "canary" or node in breaker.canaries:
            return breaker
        nodes = self.state.nodes
        if breakers.may_be_canary(breaker, labelled=self.labelled, nodes=nodes, now=self.now):
            return breakers.with_canary(breaker, node, self.now)
        return breaker

    def _await_canaries(self, breaker: Breaker) -> Wait | None:
        """Wait while the canaries are at work, or watched."""
        soak = self.rules.soak_seconds if self.work.soaks else 0.0
        if not breaker.passed:
            awaited = sorted(set(breaker.canaries) - breaker.succeeded)
            who = name_some(awaited, 3) if awaited else f"nodes with the label {RING}={CANARY}"
            detail = f": the canaries ({who})"
            if soak:
                return self._await_people(_OTHERS_FIRST, detail)
            return Wait(_OTHERS_FIRST, detail, _SHORTEST, self._queue_spread)  # they are soon through
        left = breaker.passed + soak - self.now
        detail = f": the canaries, which are watched for {left:.0f} s more"
        if left > all_poll_within(self.state.nodes):  # one may fail by then, or a person type `rollout retry`
            return self._await_people(_OTHERS_FIRST, detail)
        return Wait(_OTHERS_FIRST, detail, left, self._queue_spread) if left > 0 else None

    # -- permits ----------------------------------------------------------------------------------

    @property
    def _limit(self) -> int:
        return permits_of(self.rules.concurrent_restarts, self.state.nodes)

    @property
    def _queue_seconds(self) -> float:
        """Seconds until a node that asks now is likely to get a permit."""
        if not self.work.restarts_kubelet:
            return 0.0
        each = min(_MANY, _GRANT_SECONDS + self._limit / 4)
        return each * self.state.size.waiting / self._limit

    @property
    def _queue_spread(self) -> float:
        """Seconds over which the questions are spread when all nodes have waited for the same."""
        return max(_SHORTEST, self.state.nodes / POLLS_PER_SECOND, 2 * self._queue_seconds)

    def _find_permit(self) -> Move:
        """Find one that may be taken. If this node holds one already, only that."""
        state = self.state
        choice = choose_permit(state.permits, self.me, self._limit, self.now, self.random, state.gone or "")
        if choice.mine or choice.free:
            return TakePermit((choice.mine,) if choice.mine else choice.free)
        old = pick_suspect(choice.held, self.now, self.random) if state.gone is None else None
        if old is not None:
            return CheckHolder(old)
        if not choice.held:
            return self._await_people(_LOST)
        permits_are = "the only permit is" if self._limit == 1 else f"all {self._limit} permits are"
        by = name_some([permit.node or permit.name for permit in choice.held], 3)
        spread = max(_SHORTEST, 2 * self._queue_seconds)
        return Wait(_OTHERS_FIRST, f": {permits_are} in use ({by})", _SHORTEST / 2, spread)
