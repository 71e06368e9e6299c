"""What the policy does about a relay that is dead or silent."""

from __future__ import annotations

from dataclasses import replace

import pytest

from installer.daemon.decision import Action
from installer.model.daemon import Phase
from installer.model.fleet import PlannedWork
from installer.model.hold import BY_DAEMON
from installer.model.host import UnitState
from installer.model.result import RunResult
from installer.node.picture import Picture
from tests.lib.policy_bench import (
    DEAD,
    GOOD,
    HELD,
    KUBELET,
    NEW,
    OK,
    PROXY,
    SILENT,
    UNITS,
    Bench,
    Make,
)
from tests.lib.rules import rule


@rule("R4")
def test_a_silent_proxy_is_restarted_once_and_then_kubelet_leaves_it(settled: Bench) -> None:
    settled.look(SILENT)
    assert settled.look(after=9.5) is Action.NOTHING
    assert settled.look(after=1.0) is Action.RESTART_PROXY
    settled.end(took=3.0)
    assert settled.look(after=5.0) is Action.NOTHING
    assert settled.look(after=2.0) is Action.RESCUE
    assert settled.now - 1000.0 < 25.0
    settled.end(RunResult(0, restarts=1), HELD)
    settled.look()
    assert (settled.phase, settled.ready) == (Phase.HELD, False)
    assert settled.policy.state.rescues == 1


@rule("R4")
def test_a_silent_relay_has_longer_for_its_answer_until_something_has_to_be_done(settled: Bench) -> None:
    """A starved node is slow. A question that is open delays whatever comes next."""
    patience = settled.policy.patience
    assert patience(settled.now) == 1.0
    settled.look(SILENT)
    assert patience(settled.now) == 5.0
    settled.look(after=7.5)
    assert patience(settled.now) == 2.5
    assert settled.look(after=2.5) is Action.RESTART_PROXY
    assert patience(settled.now) == 1.0
    settled.end(took=3.0)
    assert patience(settled.now) == 5.0
    assert settled.look(after=7.0) is Action.RESCUE


@rule("R4")
def test_a_proxy_that_is_restarted_late_has_the_time_for_it(settled: Bench) -> None:
    settled.look(SILENT)
    assert settled.look(after=19) is Action.RESTART_PROXY
    settled.end(took=0.0)
    assert settled.look(after=9) is Action.NOTHING
    assert settled.look(after=2) is Action.RESCUE


def test_a_proxy_that_comes_back_is_forgiven(settled: Bench) -> None:
    settled.look(SILENT)
    settled.look(after=11)
    settled.end(OK, GOOD)
    assert settled.look() is Action.NOTHING
    assert settled.ready


@rule("R4")
def test_a_dead_proxy_is_left_after_dead_seconds(settled: Bench) -> None:
    settled.look(DEAD)
    assert settled.look(after=19) is Action.NOTHING
    assert settled.look(after=1.1) is Action.RESCUE


@rule("R4", "R12")
@pytest.mark.parametrize("sub_state", ["auto-restart", "auto-restart-queued"])
def test_a_proxy_that_keeps_crashing_is_restarted_by_us_once_and_left_no_later(
    settled: Bench, sub_state: str
) -> None:
    crashing = replace(PROXY, active_state="activating", sub_state=sub_state, main_pid=0)
    settled.look(replace(DEAD, proxy=crashing))
    assert settled.look(after=9.5) is Action.NOTHING
    assert settled.look(after=1.0) is Action.RESTART_PROXY
    settled.end(took=3.0)
    assert settled.look(after=5.0) is Action.NOTHING
    assert settled.look(after=2.0) is Action.RESCUE


def test_without_the_runtime_no_endpoint_is_better(settled: Bench) -> None:
    away = replace(SILENT, runtime=False)
    settled.look(away)
    assert settled.look(after=100) is Action.NOTHING
    assert settled.policy.patience(settled.now) == 1.0  # nothing lies ahead
    assert settled.look(SILENT) is Action.RESTART_PROXY
    settled.end()
    assert settled.look(after=17) is Action.NOTHING
    assert settled.look(after=2) is Action.RESCUE


def test_a_proxy_that_died_with_the_runtime_gets_its_chance_after_it(settled: Bench) -> None:
    settled.look(replace(DEAD, runtime=False))
    settled.look(after=100)
    assert settled.look(DEAD, after=5) is Action.NOTHING
    assert settled.look(after=14) is Action.NOTHING
    assert settled.look(after=6) is Action.RESCUE


def test_a_rescue_that_failed_is_tried_again(settled: Bench) -> None:
    settled.look(DEAD)
    settled.look(after=21)
    settled.end(RunResult(6), replace(DEAD, hold=f"{BY_DAEMON}dead"))
    assert settled.look() is Action.NOTHING
    assert settled.look(after=2.5) is Action.RESCUE


@rule("R4")
@pytest.mark.parametrize("proxy", [replace(PROXY, environment=()), UnitState("p")])
@pytest.mark.parametrize("outcome", [RunResult(3, planned=PlannedWork("new", begins=True)), RunResult(4)])
def test_kubelet_leaves_a_dead_relay_whose_proxy_is_somebody_elses_or_gone(
    settled: Bench, proxy: UnitState, outcome: RunResult
) -> None:
    """Somebody has replaced or deleted its unit, and the pass that would repair that waits or is refused. A
    proxy that is not ours is not ours to restart."""
    silent = replace(SILENT, proxy=proxy, picture=UNITS)
    decided = [settled.look(silent)]
    for _look in range(30):
        if decided[-1] is Action.INSTALL:
            settled.end(outcome)
        if decided[-1] is Action.RESCUE:
            break
        decided.append(settled.look(after=1))
    assert decided[-1] is Action.RESCUE
    assert Action.RESTART_PROXY not in decided
    held = replace(silent, on_relay=False, hold=f"{BY_DAEMON}dead", picture=UNITS)
    settled.end(RunResult(0, restarts=1), held)
    while settled.look(after=5) is not Action.INSTALL:  # the relay comes back by a repair alone
        assert settled.now < 2000.0


def test_what_is_not_ours_is_not_ours_to_rescue(settled: Bench) -> None:
    theirs = replace(SILENT, proxy=replace(PROXY, environment=()), kubelet=replace(KUBELET, environment=()))
    settled.look(theirs)
    assert settled.look(after=60) is Action.NOTHING


def test_a_retry_does_not_meddle_with_a_rescue(settled: Bench) -> None:
    settled.look(replace(GOOD, picture=NEW))
    settled.end(RunResult(1))
    dead = replace(DEAD, picture=NEW)
    settled.look(dead, after=1)
    assert settled.look(after=10) is Action.NOTHING
    assert settled.look(after=11) is Action.RESCUE


@rule("R4")
def test_a_daemon_that_has_no_picture_yet_rescues_all_the_same(make: Make) -> None:
    """The first picture does not come: a mount hangs."""
    bench = make()
    unseen = replace(DEAD, picture=None, moves=True)
    began = bench.now
    while bench.look(unseen, after=1) is Action.NOTHING:
        assert bench.now < began + 60
    assert bench.last.action is Action.RESCUE
    assert bench.now - began <= bench.policy.configuration.dead_seconds + 1


@rule("R4")
@pytest.mark.parametrize("picture", [UNITS, replace(UNITS, overtaken=True)])
@pytest.mark.parametrize("moves", [True, False])
def test_a_first_run_that_waits_for_systemd_does_not_keep_a_rescue_waiting(
    make: Make, moves: bool, picture: Picture
) -> None:
    """A daemon begins while the proxy keeps crashing, or hangs: nothing but units differs."""
    bench = make()
    began, dead = bench.now, replace(DEAD, picture=picture, moves=moves)
    while bench.look(replace(dead, proxy=replace(DEAD.proxy, invocation_id=f"{bench.now}")), after=1) in (
        Action.NOTHING,
        Action.RESTART_PROXY,
    ):
        if bench.policy.working:
            bench.end(RunResult(1))
        assert bench.now < began + 60
    assert bench.last.action is Action.RESCUE
