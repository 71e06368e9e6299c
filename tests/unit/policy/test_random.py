"""What holds of the policy whatever happens: dead relays, pauses, permits, drift, new inputs, holds."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest

from installer.daemon.configuration import Configuration
from installer.daemon.decision import Action
from installer.daemon.policy import BUSY, HEARTBEAT, Policy
from installer.daemon.poller import PollSnapshot
from installer.model.fleet import FREE, AskFirst, Permission, PlannedWork
from installer.model.hold import BY_DAEMON, is_operators
from installer.model.result import RunResult
from installer.node.picture import Picture
from tests.lib.policy_bench import BAD, CLEAN, DRIFT, GOOD, NEW, UNITS, Bench
from tests.lib.rules import rule

WORK = PlannedWork("new", begins=True)
WAITS = Permission(asks=True, why="others first")
ENDS = (
    RunResult(0, changed=True),
    RunResult(0),
    RunResult(1, reason="a bug"),
    RunResult(2, reason="no"),
    RunResult(3, planned=WORK),
    RunResult(3, would_restart=True),
    RunResult(4, reason="masked"),
    RunResult(5, rolled_back=True, restarts=1, reason="the disk is full"),
    RunResult(6, restarts=2, reason="twice"),
    RunResult(137, restarts=1),
    RunResult(143),
    RunResult(BUSY),
)


@dataclass
class World:
    """A node on which things happen."""

    draw: random.Random
    drifted: Picture = CLEAN
    relay: bool = True
    runtime: bool = True
    on_relay: bool = True
    hold: str = ""
    paused: bool = False
    blind: str = ""
    permission: Permission = FREE
    dead_for: float = 0.0

    def see(self) -> PollSnapshot:
        picture = self.drifted
        if picture.is_clean and not (self.on_relay and self.relay):
            picture = UNITS
        return replace(
            GOOD,
            moves=True,
            picture=replace(picture, spent=False),
            relay=self.relay,
            runtime=self.runtime,
            on_relay=self.on_relay,
            hold=self.hold,
            paused=self.paused,
            blind=self.blind,
            permission=self.permission,
        )

    def happen(self) -> None:
        draw = self.draw
        what = draw.choice(("drift", "relay", "hold", "pause", "permit", "bus", "runtime", "kubelet", "calm"))
        if what == "drift":
            self.drifted = draw.choice((CLEAN, DRIFT, UNITS, replace(NEW, work=WORK, restarts=1), BAD))
        elif what == "relay":
            self.relay = not self.relay
        elif what == "hold":
            self.hold = draw.choice(("", "", "a person's", f"{BY_DAEMON}silent"))
        elif what == "pause":
            self.paused = not self.paused
        elif what == "permit":
            self.permission = draw.choice(
                (FREE, WAITS, replace(WAITS, granted=WORK), replace(WAITS, fresh=False))
            )
        elif what == "bus":
            self.blind = "" if self.blind else "no bus"
        elif what == "runtime":
            self.runtime = draw.random() < 0.8
        elif what == "kubelet":
            self.on_relay = draw.random() < 0.7

    def carry_out(self, action: Action, permitted: bool) -> RunResult:
        result = self.draw.choice(ENDS)
        if action is Action.RESCUE:
            self.on_relay, self.hold = False, self.hold or f"{BY_DAEMON}silent"
            return RunResult(0)
        if result.code == 0 and action is Action.INSTALL and permitted:
            self.drifted, self.on_relay, self.relay, self.hold = CLEAN, True, True, ""
        return result


@rule("R3", "R4", "R13", "R15")
@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens(seed: int) -> None:
    draw = random.Random(seed)
    world = World(draw)
    bench = Bench(Policy(Configuration(), draw.random, 1000.0))
    begun, before = list[float](), bench.now
    ends_at: float | None = None
    for _step in range(1500):
        if draw.random() < 0.05:
            world.happen()
        seen = world.see()
        working = bench.policy.working
        action = bench.look(seen, after=draw.choice((0.05, 1.0, 1.0, HEARTBEAT)))
        if action is Action.STOP:
            assert working in (Action.INSTALL, Action.RESTART_PROXY)
            ends_at = bench.now
        elif action is not Action.NOTHING:
            assert not working
            assert not seen.paused
            ends_at = bench.now + draw.choice((0.5, 3.0, 30.0))
        if action is Action.INSTALL:
            begun.append(bench.now)
            assert not seen.blind
            assert not is_operators(seen.hold)
            last = bench.last
            assert last.is_return or (seen.picture is not None and seen.picture.due)
            if seen.permission.asks and not last.is_return:
                allowed = seen.permission.granted == bench.policy.planned_work
                assert last.ask_first is AskFirst.ALL or allowed
        # Kubelet hangs: it is helped in time, or one who could help is at work or may not.
        hangs = seen.on_relay and not seen.relay and seen.runtime and not (seen.paused or seen.blind)
        world.dead_for = world.dead_for + bench.now - before if hangs else 0.0
        before = bench.now
        if bench.policy.working:
            world.dead_for = 0.0
        assert world.dead_for < 4 * HEARTBEAT
        if bench.policy.working and ends_at is not None and bench.now >= ends_at:
            permitted = bench.last.ask_first is AskFirst.NOTHING
            result = world.carry_out(bench.policy.working, permitted)
            bench.end(result, world.see(), took=0.1)
            ends_at = None
        minute = [at for at in begun if bench.now - at < 60]
        assert len(minute) <= 30
    # In the end all is calm, and permitted: it converges.
    world.paused, world.blind, world.hold, world.runtime = False, "", "", True
    world.permission, world.drifted, world.relay, world.on_relay = FREE, DRIFT, True, True
    for _second in range(3600):
        if bench.policy.working:
            bench.end(RunResult(0, changed=True), replace(GOOD, moves=True))
            world.drifted, world.on_relay, world.relay, world.hold = CLEAN, True, True, ""
        bench.look(world.see(), after=1.0)
        if bench.ready:
            break
    assert bench.ready
