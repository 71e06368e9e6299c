"""May this node begin its planned work? What the rollout's Leases say in, the next request or the answer out.
Pure.

A node reads all of them (`read_board`), does what `Rollout.next_move` says, adds to the board what it has
learnt by that, and asks again, until the move is to wait or to take a permit. `ask.py` makes the requests.
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
    annotations_of,
    breaker_name,
    metadata_of,
    permits_of,
    read_permits,
)
from installer.cluster.permits import choose, suspect
from installer.cluster.size import CROWD, FleetSize, heard_by, pace_of, read_size
from installer.model.event import name_some
from installer.model.fleet import FLEET, FleetRules, PlannedWork
from installer.model.hold import PAUSE_ANNOTATION

_GRANT_SECONDS = 7.0  # a fleet that waits asks once in twice that time for each permit there is
_MANY = 11.0  # the same, at most, where there are many permits: one is often free, and is used for longer
_SHORTEST = 4.0  # seconds until a node asks again

_OTHERS_FIRST = "other nodes go first"
_LOST = "every permit is dated years ahead; `cri-resmgr-installer rollout retry` deletes them"


@dataclass(frozen=True, slots=True)
class Board:
    """`paused`: why planned work is stopped, None if it is not. `breaker` is that of the generation that was
    asked for, None if no node has begun it; `fault` says why it cannot be read. `size` is the last one that a
    node has written down, None if there is none; this node itself, if it `is_counted`. `labelled`: how many
    nodes have the label of canaries, where that was asked for. `gone`: the holder of a permit whose Node is
    no more, empty where the one that was looked at is there; None: nobody was."""

    permits: tuple[Permit, ...] = ()
    paused: str | None = None
    breaker: Breaker | None = None
    fault: str = ""
    size: FleetSize | None = None
    is_counted: bool = False
    labelled: int | None = None
    gone: str | None = None

    @property
    def nodes(self) -> int:
        return self.size.nodes if self.size else 1

    def knows_size(self, daemonset: str, now: float) -> bool:
        return self.is_counted or (self.size is not None and self.size.is_fresh(daemonset, now))


def read_board(leases: object, generation: str, now: float) -> Board:
    """Of the items of a LeaseList, at the time `now` of the epoch."""
    found = {
        str(metadata_of(each).get("name", "")): each
        for each in (leases if isinstance(leases, list) else ())
        if isinstance(each, dict)
    }
    fleet, lease = found.get(FLEET, {}), found.get(breaker_name(generation))
    breaker, fault = None, ""
    try:
        breaker = read_breaker(generation, lease, now) if lease is not None else None
    except ValueError as error:
        fault = str(error)
    return Board(read_permits(leases), read_pause(fleet), breaker, fault, read_size(fleet))


def read_pause(lease: Mapping[str, Any]) -> str | None:
    """Of the Lease `fleet`."""
    why = annotations_of(lease).get(PAUSE_ANNOTATION)
    return None if why is None else str(why)


@dataclass(frozen=True, slots=True)
class Wait:
    """Why nothing may begin now, and what of that soon changes (`detail`). It is asked for again after
    `seconds`, and up to `spread` seconds more, so that a fleet does not ask in step."""

    why: str
    detail: str = ""
    seconds: float = 0.0
    spread: float = 0.0


class Look(Enum):
    SIZE = "of the fleet, by its DaemonSet"
    CANARIES = "how many nodes have their label"


@dataclass(frozen=True, slots=True)
class Doubt:
    """A look whether the Node of its holder is still there."""

    permit: Permit


@dataclass(frozen=True, slots=True)
class Write:
    breaker: Breaker


@dataclass(frozen=True, slots=True)
class Take:
    """The first of these permits that no other node takes at the same time; the work begins then. None is
    needed where there are none."""

    permits: tuple[Permit, ...] = ()


Move = Wait | Look | Doubt | Write | Take


def wait_for_others(why: str) -> Wait:
    """They did at the same time what this node was about to do."""
    return Wait(_OTHERS_FIRST, f": they {why} at the same time", _SHORTEST / 2, _SHORTEST)


@dataclass(frozen=True, slots=True)
class Rollout:
    """As `me` sees it, at the time `now` of the epoch. `daemonset` is the path of the one that says how large
    the fleet is. `labelled`: whether the Node of `me` has the label of canaries."""

    board: Board
    me: Holder
    work: PlannedWork
    rules: FleetRules
    daemonset: str
    now: float
    random: Callable[[], float]
    labelled: bool = False

    def next_move(self) -> Move:
        board = self.board
        if board.fault and self.work.begins:
            return self._for_people(f"{board.fault}; `cri-resmgr-installer rollout retry` deletes it")
        if board.paused is not None:
            return self._for_people("the rollout is paused" + (f": {board.paused}" if board.paused else ""))
        if not board.knows_size(self.daemonset, self.now):
            return Look.SIZE
        move = self._pass_breaker() if self.work.begins else None
        move = move or (self._find_permit() if self.work.restarts_kubelet else Take())
        # What another node has said of the size is enough to wait by, but not to begin by.
        told = isinstance(move, Take) and not board.is_counted
        return Look.SIZE if told and breakers.allows_more(self.rules, board.nodes) else move

    @property
    def is_canary(self) -> bool:
        return self.board.breaker is not None and self.me.node in self.board.breaker.canaries

    def _for_people(self, why: str, detail: str = "") -> Wait:
        """What ends at any moment: when people say so, or when a canary has ended. A node with their label
        is waited for by all others, and hears of it as soon as in a small fleet."""
        pace = pace_of(1 if self.labelled else self.board.nodes)
        return Wait(why, detail, pace / 2, pace)

    # -- the breaker ------------------------------------------------------------------------------

    def _pass_breaker(self) -> Move | None:
        """None where the generation may begin on this node."""
        breaker = self.board.breaker
        if breaker is None:  # no node has begun it yet: the first one writes that it goes first
            if self.board.labelled is None:
                return Look.CANARIES
            ring = breakers.LABELLED if self.board.labelled else breakers.FIRST
            breaker = Breaker(self.work.generation, ring, self.now, labelled=self.board.labelled)
        why = breakers.stopped(breaker, self.rules, self.board.nodes)
        if why and self.me.node not in breaker.failures:
            return self._for_people(why)
        admitted = self._admitted(breaker)
        if admitted != breaker or not breaker.version:
            return Write(admitted)
        goes_first = self.rules.order != "canary" or self.me.node in breaker.canaries
        return None if goes_first else self._await_canaries(breaker)

    def _admitted(self, breaker: Breaker) -> Breaker:
        """The breaker with this node as a canary, if it is to be one."""
        breaker, node = breakers.with_passed(breaker, self.now), self.me.node
        if breaker.passed or self.rules.order != "canary" or node in breaker.canaries:
            return breaker
        nodes = self.board.nodes
        if breakers.may_be_canary(breaker, node, labelled=self.labelled, nodes=nodes, now=self.now):
            return breakers.with_canary(breaker, node, self.now)
        return breaker

    def _await_canaries(self, breaker: Breaker) -> Wait | None:
        """While the canaries are at work, or watched."""
        soak = self.rules.soak_seconds if self.work.soaks else 0.0
        if not breaker.passed:
            awaited = sorted(set(breaker.canaries) - breaker.succeeded)
            who = name_some(awaited, 3) if awaited else f"nodes with the label {RING}={CANARY}"
            detail = f": canaries, {who}"
            if soak:
                return self._for_people(_OTHERS_FIRST, detail)
            return Wait(_OTHERS_FIRST, detail, _SHORTEST, self._queue_spread)  # they are soon through
        left = breaker.passed + soak - self.now
        detail = f": canaries, which are watched for {left:.0f} s more"
        if left > heard_by(self.board.nodes):  # meanwhile one may fail, and a person may say `rollout retry`
            return self._for_people(_OTHERS_FIRST, detail)
        return Wait(_OTHERS_FIRST, detail, left, self._queue_spread) if left > 0 else None

    # -- permits ----------------------------------------------------------------------------------

    @property
    def _limit(self) -> int:
        return permits_of(self.rules.concurrent_restarts, self.board.nodes)

    @property
    def _queue_seconds(self) -> float:
        """Seconds until a node that asks now is likely to get a permit."""
        if self.board.size is None or not self.work.restarts_kubelet:
            return 0.0
        each = min(_MANY, _GRANT_SECONDS + self._limit / 4)
        return each * self.board.size.waiting / self._limit

    @property
    def _queue_spread(self) -> float:
        """Seconds over which the questions are spread when what is waited for has ended for all at once."""
        return max(_SHORTEST, self.board.nodes / CROWD, 2 * self._queue_seconds)

    def _find_permit(self) -> Move:
        """One that may be taken; the one that this node has already is the only one."""
        board = self.board
        choice = choose(board.permits, self.me, self._limit, self.now, self.random, board.gone or "")
        if choice.mine or choice.free:
            return Take((choice.mine,) if choice.mine else choice.free)
        old = suspect(choice.held, self.now, self.random) if board.gone is None else None
        if old is not None:
            return Doubt(old)
        if not choice.held:
            return self._for_people(_LOST)
        permits_are = "the permit is" if self._limit == 1 else f"all {self._limit} permits are"
        by = name_some([permit.node or permit.name for permit in choice.held], 3)
        spread = max(_SHORTEST, 2 * self._queue_seconds)
        return Wait(_OTHERS_FIRST, f": {permits_are} taken, by {by}", _SHORTEST / 2, spread)
