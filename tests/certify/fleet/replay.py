"""A schedule in the simulator: its own nodes, daemons and API server, on a clock that goes on."""

from __future__ import annotations

from collections.abc import Iterable

from tests.certify.fleet import happenings, moves
from tests.certify.fleet.judge import (
    describe_stuck,
    fair_move,
    judge_state,
    judge_what_is_said,
    permit_in_use,
)
from tests.certify.fleet.machine import Machine, Site
from tests.certify.fleet.moves import Fleet, Move
from tests.certify.fleet.states import next_look
from tests.certify.values import NOW
from tests.faults.fleets.sim import Clock

_DAY = 86_400.0
_FAULTS = ("crash", "surge", "replace", "boot", "gone", "dead", "slow", "stall", "steal")


class Replay:
    """One fleet. `wrong` is the first that did not hold."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.clock, self.wrong, self.is_well = fleet, Clock(), "", True
        self.clock.now = NOW
        self.site = Site(fleet.rules, self.clock)
        self.store, self.machines = moves.first_state(fleet, self.site)
        self.store.taken = None

    def play(self, schedule: Iterable[Move]) -> str:
        """Return what did not hold in it, or, when nothing more is in its way, afterwards."""
        for move in schedule:
            self.move(move)
            if self.wrong:
                return self.wrong
        began = self.clock.now
        while (following := self._fair()) is not None and not self.wrong:
            if self.clock.now - began > _DAY:
                return describe_stuck(self.store, self.machines)
            self.move(following)
        return self.wrong

    def _fair(self) -> Move | None:
        free = [move for move in happenings.store_moves(self.store, self.fleet) if not move.cost]
        for machine in self.machines:
            free += [move for move in moves.node_moves(machine) if not move.cost]
        return fair_move(self.store, self.machines, free, next_look(self.store, self.machines), self.fleet)

    def move(self, move: Move) -> None:
        if move.kind in ("wait", "stall"):
            self._wait(float(move.how))
        elif move.node < 0 or move.kind in ("pause-node", "resume-node"):
            happenings.happen(move, self.store, self.fleet)
        else:
            self._of_node(move, self.machines[move.node])
        self.store.watch_breakers()
        works = [machine.disturbs for machine in self.machines]
        permits = [permit_in_use(machine, self.fleet.rules.hold_seconds) for machine in self.machines]
        self.is_well = self.is_well and not move.cost and move.kind not in _FAULTS
        now = judge_state(self.store, works, permits, self.fleet, is_well=self.is_well)
        self.wrong = self.wrong or now

    def _of_node(self, move: Move, machine: Machine) -> None:
        before = self.store.copy()
        if move.kind in moves.ANSWERS:
            moves.answer(move, machine, self.store)
        elif move.kind in moves.WITH_REQUESTS:
            moves.with_requests(move, machine, self.store, self.site)
        else:
            moves.step(move, machine)
        said = moves.tell(machine, self.store, move)
        self.wrong = judge_what_is_said(said, before, self.fleet)

    def _wait(self, seconds: float) -> None:
        self.clock.now += seconds
        for machine in self.machines:
            moves.end_late_sync(machine)


def read_schedule(text: str) -> tuple[Move, ...]:
    """As `Move` is printed, one in a line."""
    found = list[Move]()
    for line in filter(None, map(str.strip, text.splitlines())):
        kind, _, rest = line.partition(" ")
        node, how = -1, rest
        if rest.startswith("node-"):
            name, _, how = rest.partition(" ")
            node = int(name.removeprefix("node-"))
        found.append(Move(kind, node, how))
    return tuple(found)
