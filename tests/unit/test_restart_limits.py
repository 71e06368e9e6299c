"""How often kubelet is restarted: the daemon's policy and the program's own passes on one simulated node."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from installer.daemon.configuration import Configuration
from installer.daemon.decision import Action
from installer.daemon.policy import HOUR, Policy
from installer.daemon.poller import PollSnapshot
from installer.inputs.load import Request
from installer.model import paths
from installer.model.event import WAITING, silent
from installer.model.fleet import FREE, Permission
from installer.model.host import UnitState
from installer.model.names import Mode
from installer.node.reconcile import reconcile
from tests.faults.disks.node import KUBELET
from tests.lib.passes import LONG, WatchedNode
from tests.lib.rules import rule


class Daemon(WatchedNode):
    """A node with a daemon's policy."""

    def __init__(self, root: Path, restarts_per_hour: int = 3) -> None:
        super().__init__(root, restarts_per_hour)
        configuration = Configuration(restarts_per_hour=restarts_per_hour)
        self.policy = Policy(configuration, lambda: 0.5, self.now)
        self.permission = FREE

    def see(self) -> PollSnapshot:
        return replace(super().see(), permission=self.permission)

    def live(self, seconds: float) -> None:
        """It does what it decides for so long."""
        until = self.now + seconds
        while self.now < until:
            before = self.see()
            decision = self.policy.step(self.now, before)
            if decision.action in (Action.NOTHING, Action.STOP):
                self.node.fake.clock.sleep(max(0.1, min(decision.due, until) - self.now))
                continue
            self.policy.begun(decision, before)
            outcome = self.begin(decision, self.policy.restarts_left)
            self.policy.ended(self.now, outcome, self.see())


def change(watched: Daemon, reserved: int, last: float, *, slow: bool) -> None:
    """Another configuration, on a node whose proxy took so long to start."""
    watched.starts_take(last, slow=slow)
    watched.configure(reserved)


@pytest.fixture
def watched(tmp_path: Path) -> Daemon:
    made = Daemon(tmp_path)
    made.live(60)
    return made


def spend(watched: Daemon, count: int) -> None:
    watched.policy.restarts = [watched.now] * count


def waited(watched: Daemon) -> set[str]:
    """What passes have said that had to wait."""
    return {event.message for event in watched.said if event.kind == WAITING}


@rule("R3", "R8")
@pytest.mark.parametrize("took", [1.0, LONG])
@pytest.mark.parametrize("slow", [True, False])
def test_a_change_of_the_proxy_restarts_kubelet_never(watched: Daemon, took: float, slow: bool) -> None:
    """However slowly it starts, and though no restart is left."""
    spend(watched, 3)
    change(watched, 500, took, slow=slow)
    watched.live(60)
    assert watched.restarts == []
    assert (watched.node.off_relay_at is not None) is slow
    assert watched.node.on_relay
    assert b"500m" in (watched.node.read(paths.FALLBACK_CONFIG) or b"")
    assert watched.policy.state.phase == "converged"


@rule("R3", "R4")
def test_a_proxy_that_is_stopped_is_left_and_kubelet_returns(watched: Daemon) -> None:
    spend(watched, 3)
    watched.starts_take(LONG, slow=True)
    watched.node.systemd.stop(paths.PROXY_UNIT, 0)
    watched.live(10)
    assert watched.node.kubelet_healthy()
    watched.live(120)
    assert watched.node.on_relay
    assert watched.restarts == []
    assert watched.policy.state.phase == "converged"


@rule("R8")
def test_a_first_installation_that_somebody_else_disturbs_is_tried_again_within_the_limit(
    tmp_path: Path,
) -> None:
    """Each time kubelet settles on the relay somebody else restarts it, so that it returns to its base."""
    watched = Daemon(tmp_path)
    node, clock = watched.node, watched.node.fake.clock
    reconcile(Request(Mode.REMOVE, watched.settings, None), node.fake.host, silent)
    watched.restarts.clear()
    move, wait = node.systemd.on_job[KUBELET], clock.on_sleep

    def disturb(time: float) -> None:
        wait(time)
        clock.on_sleep = wait
        process = node.process(KUBELET)
        assert process is not None
        unit = node.systemd.units[KUBELET] = node.systemd.started(node.systemd.unit(KUBELET))
        node.fake.processes.processes[unit.main_pid] = process

    def restart(method: str, unit: UnitState) -> tuple[str, UnitState]:
        done = move(method, unit)
        clock.on_sleep = disturb if watched.moves[-1] else wait
        return done

    node.systemd.on_job[KUBELET] = restart
    watched.live(HOUR - 60)
    assert watched.moves == [True, False, True, False]  # the way off the relay is always open
    assert watched.policy.state.phase == "limited"
    assert node.read(paths.HOLD) is None
    node.systemd.on_job[KUBELET] = move
    watched.live(HOUR)
    assert watched.moves[4:] == [True]
    assert watched.policy.state.phase == "converged"


def test_a_proxy_that_is_stopped_while_kubelet_is_held_is_started_for_it(watched: Daemon) -> None:
    spend(watched, 3)
    (watched.node.fake.root / paths.GUARD[1:]).unlink()
    watched.node.systemd.restart(KUBELET, 0)  # by somebody, and without its guard: it leaves the relay
    watched.live(60)
    assert watched.policy.state.hold
    watched.node.systemd.stop(paths.PROXY_UNIT, 0)
    watched.live(2 * HOUR)
    assert watched.moves == [False, True]
    assert watched.policy.state.phase == "converged"


def test_a_restart_that_fails_counts_though_another_one_of_its_pass_succeeds(watched: Daemon) -> None:
    (watched.node.fake.root / paths.GUARD[1:]).unlink()
    watched.node.systemd.restart(KUBELET, 0)  # by somebody, and without its guard: it leaves the relay
    watched.restarts.clear()
    watched.failing = 1
    watched.live(60)
    assert watched.moves[:2] == [False, True]
    assert watched.policy.state.rollbacks == 1
    assert watched.policy.state.restarts == len(watched.restarts)


@pytest.mark.parametrize("seed", range(6))
def test_kubelet_comes_to_the_relay_no_more_often_than_the_limit_allows(tmp_path: Path, seed: int) -> None:
    """Whatever happens: what exceeds it takes kubelet from a relay that is silent."""
    draw = random.Random(seed)
    limit = draw.randint(1, 3)
    watched = Daemon(tmp_path, restarts_per_hour=limit)
    for _event in range(6):
        what = draw.choice(("change", "change", "change", "drift", "stop"))
        if what == "change":
            change(watched, draw.randint(100, 900), draw.choice((1.0, LONG)), slow=draw.random() < 0.7)
        elif what == "stop":
            watched.node.systemd.stop(paths.PROXY_UNIT, 0)
        else:
            (watched.node.fake.root / paths.GUARD[1:]).unlink(missing_ok=True)
            watched.node.systemd.restart(KUBELET, 0)
            watched.restarts.pop()  # not by us
        watched.live(draw.choice((30, 400, 2000)))
    watched.live(2 * HOUR)
    for number, (at, on_relay, answered) in enumerate(watched.restarts):
        before = [each for each, _relay, _answered in watched.restarts[:number] if at - each < HOUR]
        assert len(before) < limit or (not on_relay and not answered)
    assert watched.policy.state.all_restarts == len(watched.restarts)
    assert watched.node.on_relay
    assert watched.policy.state.phase == "converged"


# -- while planned work waits for a permit ---------------------------------------------------------


def installed(watched: Daemon) -> bytes:
    return watched.node.read(paths.FALLBACK_CONFIG) or b""


@rule("R3")
def test_a_proxy_that_dies_while_an_upgrade_waits_comes_back(watched: Daemon) -> None:
    """A rollout is paused, which may last for days."""
    watched.permission = Permission(True, None, "the rollout is paused")
    watched.configure(500)
    watched.live(60)
    assert watched.policy.state.phase == "waiting"
    watched.node.systemd.stop(paths.PROXY_UNIT, 0)
    watched.live(120)
    assert watched.node.on_relay
    assert watched.restarts == []
    assert b"750m" in installed(watched)
    assert (watched.policy.state.phase, watched.policy.state.hold) == ("waiting", "")
    work = watched.policy.planned_work
    assert work
    watched.permission = Permission(True, work)
    watched.live(60)
    assert b"500m" in installed(watched)
    assert watched.policy.state.phase == "converged"


def test_a_permit_for_one_generation_begins_no_other(watched: Daemon) -> None:
    """The inputs change once more, just when the permit has come."""
    watched.permission = Permission(True, None, "the rollout is paused")
    watched.configure(500)
    watched.live(60)
    first = watched.policy.planned_work
    assert first
    watched.permission = Permission(True, first)
    watched.configure(600)
    watched.live(60)
    assert b"750m" in installed(watched)
    second = watched.policy.planned_work
    assert second
    assert second != first
    watched.permission = Permission(True, second)
    watched.live(60)
    assert b"600m" in installed(watched)
