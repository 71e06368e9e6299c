"""Breadth first: each state of a fleet within its bounds, what must never be, and the way out of each."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.certify.fleet import moves
from tests.certify.fleet.judge import (
    describe_stuck,
    fair_move,
    judge_state,
    judge_what_is_said,
    permit_in_use,
)
from tests.certify.fleet.moves import Fleet, Move
from tests.certify.fleet.states import State, States

Way = tuple[tuple[Move, ...], State, str]
"""Moves, the state after them, and what must not have begun on the way."""

_LONGEST_WAY = 3_000  # moves until a fleet with nothing in its way gets there


@dataclass
class Found:
    """What has been found in the states of a fleet. `wrong`: what did not hold, and the schedule to it."""

    fleet: Fleet
    states: int = 0
    moves: int = 0
    depth: int = 0
    seconds: float = 0.0
    is_whole: bool = True  # there are no other states within the faults
    wrong: str = ""
    schedule: tuple[Move, ...] = ()
    reached: set[str] = field(default_factory=set)


class Explorer:
    def __init__(self, fleet: Fleet, most: int, seconds: float = float("inf")) -> None:
        self.fleet, self.states = fleet, States(fleet)
        self._most, self._until = most, time.monotonic() + seconds
        self.found = Found(fleet)
        self._came: dict[State, tuple[State, tuple[Move, ...]] | None] = {}
        self._alive: set[State] = set()
        self._way: tuple[Move, ...] = ()  # that is tried

    def run(self) -> Found:
        began, found = time.monotonic(), self.found
        first = self.states.canonical(self.states.first())
        self._came[first] = None
        level = deque([first])
        while level and not found.wrong:
            following = deque[State]()
            for state in level:
                if len(self._came) >= self._most or time.monotonic() > self._until:
                    found.is_whole = False
                    break
                self._expand(state, following)
                if found.wrong:
                    break
            if not found.is_whole:
                break
            found.depth += 1 if following else 0
            level = following
        found.states, found.seconds = len(self._came), time.monotonic() - began
        return found

    def _expand(self, state: State, following: deque[State]) -> None:
        """What the program does not catch, is wrong in any state."""
        try:
            self._follow(state, following)
        except Exception as error:
            self._is_wrong(f"the program has ended with {error!r}", state, self._way)

    def _follow(self, state: State, following: deque[State]) -> None:
        wrong = self._dead_end(state)
        if wrong:
            self._is_wrong(wrong, state, ())
            return
        for way, after, wrong in self.successors(state):
            self.found.moves += 1
            after = self.states.canonical(after)
            if after not in self._came:
                self._came[after] = (state, way)
                following.append(after)
                wrong = wrong or self._unsafe(after)
            if wrong:
                self._is_wrong(wrong, state, way)
                return

    def _is_wrong(self, wrong: str, state: State, way: tuple[Move, ...]) -> None:
        self.found.wrong, self.found.schedule = wrong, self._schedule(state, way)

    def _schedule(self, state: State, way: tuple[Move, ...]) -> tuple[Move, ...]:
        """The moves to it, with each node's own name: on the way, the nodes may have changed names."""
        ways, at = [(state, way)], state
        while (came := self._came[at]) is not None:
            at = came[0]
            ways.append(came)
        states, schedule = self.states, list[Move]()
        now = states.first()
        for before, moved in reversed(ways):
            now = states.with_versions(now)
            order = next(each for each in states.orders() if states.renamed(now, each) == before)
            for number, move in enumerate(moved, 1):
                move = move._replace(node=order.index(move.node)) if move.node >= 0 else move
                schedule.append(move)
                if before != state or number < len(moved):  # the last one may be what it ends with
                    now, _ = self._move(now, move)
        return tuple(schedule)

    # -- what may follow ------------------------------------------------------------------------------

    def successors(self, state: State) -> Iterator[Way]:
        """What happens next, each with what its nodes do by themselves then."""
        for move in self._moves(state):
            self._way = (move,)
            after, wrong = self._move(state, move)
            touched = [move.node] if move.node >= 0 else range(self.fleet.nodes) if is_wait(move) else []
            ways: list[Way] = [((move,), after, wrong)]
            for node in touched:
                ways = [each for way in ways for each in self._rest(way, node)]
            yield from ways

    def _moves(self, state: State) -> Iterator[Move]:
        states = self.states
        found = list(states.store_moves(state[0]))
        for number in state[1:-1]:
            found += states.node_moves(number)
            machine = states.nodes.values[number]
            if not machine.is_dead and machine.pod_generation != states.store(state).generation:
                found += [Move("update", machine.number, how, cost) for how, cost in (("ok", 0), ("away", 1))]
        if seconds := states.tick(state):
            found.append(Move("wait", -1, f"{seconds:.0f}"))
        most = states.most_stall(state)
        found += [Move("stall", -1, f"{each:.0f}", 1) for each in moves.STALLS if each <= most]
        return (move for move in found if self._may(state, move))

    def _may(self, state: State, move: Move) -> bool:
        kinds = self.fleet.kinds
        return move.cost == 0 or (move.cost <= state[-1] and (not kinds or move.kind in kinds))

    def _move(self, state: State, move: Move) -> tuple[State, str]:
        """The state after it, and what must not have begun."""
        if is_wait(move):
            return self.states.later(state, float(move.how), move.cost), ""
        after, said = self.states.step(state, move)
        if not said:
            return after, ""
        self.found.reached |= {f"{what[0]} {what[-1]}" for what in said}
        return after, judge_what_is_said(said, self.states.store(state), self.fleet)

    def _rest(self, way: Way, node: int) -> Iterator[Way]:
        """What a node does by itself, and what no other node notices in which order: its daemon looks, asks
        for its own Node, and hears of it. One of these requests may go wrong."""
        done, state, wrong = way
        while (move := self.states.next_of_its_own(state[1 + node])) is not None:
            if move.kind == "answer":
                for fault in self.states.node_moves(state[1 + node]):
                    if fault.kind == "answer" and fault.cost and self._may(state, fault):
                        self._way = (*done, fault)
                        after, bad = self._move(state, fault)
                        yield from self._rest(((*done, fault), after, wrong or bad), node)
            self._way = (*done, move)
            state, bad = self._move(state, move)
            done, wrong = self._way, wrong or bad
        yield done, state, wrong

    # -- what must not be -----------------------------------------------------------------------------

    def _unsafe(self, state: State) -> str:
        values, seconds = self.states.nodes.values, self.fleet.rules.hold_seconds
        found = [
            self.states.remembered(
                ("w", each),
                lambda each=each: (values[each].disturbs, permit_in_use(values[each], seconds)),  # type: ignore[misc]
            )
            for each in state[1:-1]
        ]
        works, permits = zip(*found, strict=True)
        is_well, store = state[-1] == self.fleet.faults, self.states.store(state)
        return self.states.remembered(  # type: ignore[no-any-return]
            ("j", state[0], works, permits, is_well),
            lambda: judge_state(store, works, permits, self.fleet, is_well=is_well),
        )

    # -- the way out ----------------------------------------------------------------------------------

    def _dead_end(self, state: State) -> str:
        """Whether the fleet gets there when nothing more is in its way, and everyone answers."""
        self._way = ()
        now: State = (*state[:-1], 99)
        way = list[State]()
        seen = set[State]()
        while now not in self._alive:
            if now in seen or len(way) > _LONGEST_WAY:
                return describe_stuck(self.states.store(now), self.states.machines(now))
            way.append(now)
            seen.add(now)
            following = self._fair(now)
            if following is None:
                break
            now = following
        self._alive |= seen
        return ""

    def _fair(self, state: State) -> State | None:
        """What comes next if all goes well; None where the fleet has got."""
        move = self._fair_move(state)
        if move is None:
            return None
        after, _ = self._move(state, move._replace(cost=0))
        for node in [move.node] if move.node >= 0 else range(self.fleet.nodes):
            while (own := self.states.next_of_its_own(after[1 + node])) is not None:
                after, _ = self._move(after, own)
        return self.states.canonical(after)

    def _fair_move(self, state: State) -> Move | None:
        states = self.states
        free = [move for move in states.store_moves(state[0]) if not move.cost]
        free += [move for number in state[1:-1] for move in states.node_moves(number) if not move.cost]
        return fair_move(states.store(state), states.machines(state), free, states.tick(state), self.fleet)


def is_wait(move: Move) -> bool:
    return move.kind in ("wait", "stall")
