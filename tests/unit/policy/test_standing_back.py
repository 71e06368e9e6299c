"""When the policy may not act: restarts per hour, a pause, a newer daemon, work that is not permitted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from installer.daemon.decision import Action
from installer.daemon.outcome import Outcome
from installer.daemon.pass_history import RESYNC
from installer.daemon.policy import BUSY, HEARTBEAT, HOUR
from installer.model.daemon import Phase
from installer.model.fleet import FREE, Permission, PlannedWork
from installer.model.hold import BY_DAEMON
from installer.model.names import Mode
from tests.lib.policy_bench import (
    BARE,
    CHANGED,
    DEAD,
    GOOD,
    HELD,
    OK,
    Bench,
    Make,
)
from tests.lib.rules import rule


def test_too_many_restarts_are_seen_before_they_happen(make: Make) -> None:
    bench = make(restarts=(800.0, 850.0))
    bench.settle()
    off = replace(GOOD, on_relay=False, units=("off",))
    assert bench.look(off) is Action.INSTALL
    bench.end(Outcome(0, changed=True, restarts=1), GOOD)
    bench.look()
    assert bench.look(off) is Action.INSTALL
    assert bench.policy.restarts_left == 0
    bench.end(Outcome(3, would_restart=True))
    assert bench.look() is Action.HOLD
    bench.end(OK, replace(off, hold=f"{BY_DAEMON}3 times"))
    for _heartbeat in range(100):
        assert bench.look(after=HEARTBEAT) is Action.NOTHING
    assert not bench.ready
    assert bench.phase is Phase.HELD
    assert bench.look(after=HOUR) is Action.INSTALL


def test_what_needs_no_restart_is_still_repaired(make: Make) -> None:
    bench = make(restarts=(800.0, 850.0, 900.0))
    assert bench.look(GOOD) is Action.INSTALL
    assert bench.policy.restarts_left == 0
    bench.end(OK)
    assert bench.look() is Action.NOTHING
    assert bench.ready


def test_a_pass_that_finds_that_it_would_have_to_restart_is_no_failure(make: Make) -> None:
    """Nor is the next one, on a host that has changed meanwhile."""
    bench = make(restarts=(800.0, 850.0, 900.0))
    assert bench.look(GOOD) is Action.INSTALL
    off = replace(GOOD, on_relay=False, units=("off",), files=("wiped",))
    bench.end(Outcome(3, would_restart=True), off)
    assert bench.look() is Action.INSTALL
    bench.end(Outcome(3, would_restart=True))
    assert bench.look() is Action.HOLD
    assert bench.policy.state.failures == 0


def test_restarts_are_forgotten_after_an_hour(make: Make) -> None:
    bench = make(restarts=(800.0, 850.0, 900.0))
    bench.now += HOUR
    assert bench.look(GOOD) is Action.INSTALL
    assert bench.policy.state.restarts == 0


def test_kubelet_on_the_relay_is_limited_without_a_hold(make: Make) -> None:
    bench = make(restarts=(800.0, 850.0, 900.0))
    bench.look(GOOD)
    bench.end(Outcome(3, would_restart=True))
    assert bench.look() is Action.NOTHING
    assert (bench.phase, bench.ready) == (Phase.LIMITED, False)


def test_while_paused_it_only_plans(settled: Bench) -> None:
    paused = replace(GOOD, paused=True, files=("drift",))
    assert settled.look(paused) is Action.PLAN
    settled.end(Outcome(3, reason="1 to change"))
    assert settled.look() is Action.NOTHING
    assert (settled.phase, settled.ready) == (Phase.PAUSED, False)
    assert settled.look(replace(paused, relay=False, inputs=("new",))) is Action.PLAN
    settled.end(Outcome(0))
    assert settled.look(after=100) is Action.NOTHING
    assert settled.look(replace(GOOD, inputs=("new",))) is Action.INSTALL


def test_a_pause_right_after_a_change_is_planned_for_once(make: Make) -> None:
    """In the place of the pass that would verify the change."""
    bench = make()
    bench.look(GOOD)
    bench.end(CHANGED)
    paused = replace(GOOD, paused=True)
    assert bench.look(paused, after=2) is Action.PLAN
    bench.end(OK)
    assert [bench.look(after=1) for _ in range(5)] == [Action.NOTHING] * 5


def test_while_paused_a_generation_that_failed_here_is_no_failure_of_the_plan(settled: Bench) -> None:
    paused = replace(GOOD, paused=True, inputs=("new",))
    assert settled.look(paused) is Action.PLAN
    settled.end(Outcome(5, remembered=True, reason="failed here before"), paused)
    assert settled.phase is Phase.PAUSED
    assert settled.look(after=60) is Action.NOTHING


@pytest.mark.parametrize("seen", [True, False])
def test_a_pause_that_ends_while_it_plans_is_over(settled: Bench, seen: bool) -> None:
    """Whether the end was seen before the plan's or with it: what it found is repaired."""
    drifted = replace(GOOD, files=("drift",))
    assert settled.look(replace(drifted, paused=True)) is Action.PLAN
    if seen:
        assert settled.look(drifted) is Action.NOTHING
    settled.end(Outcome(3), drifted)
    assert settled.look() is Action.INSTALL


def test_a_pause_of_a_healthy_host_stays_ready(settled: Bench) -> None:
    settled.look(replace(GOOD, paused=True))
    assert (settled.phase, settled.ready) == (Phase.PAUSED, True)


def test_one_that_was_replaced_stays_so_and_stops_its_child(settled: Bench) -> None:
    settled.look(replace(GOOD, files=("drift",)))
    assert settled.look(replace(GOOD, superseded=True)) is Action.STOP
    assert settled.last.grace == 0.0  # the child's own
    settled.end(Outcome(143))
    assert settled.look(replace(DEAD, inputs=("new",)), after=100) is Action.NOTHING
    assert (settled.phase, settled.ready) == (Phase.YIELDED, False)


def test_a_removal_is_done_once_and_repairs_nothing(make: Make) -> None:
    bench = make(mode=Mode.REMOVE)
    assert bench.look(GOOD) is Action.REMOVE
    bench.end(Outcome(1))
    assert bench.look() is Action.NOTHING
    assert not bench.ready
    assert bench.look(after=6) is Action.REMOVE
    bench.end(CHANGED, BARE)
    assert bench.look() is Action.NOTHING
    assert (bench.phase, bench.ready) == (Phase.REMOVED, True)
    assert bench.look(replace(BARE, inputs=("new",)), after=10_000) is Action.NOTHING
    assert bench.last.wake >= bench.now + RESYNC
    bench.policy.remove_again()
    assert bench.look() is Action.REMOVE


@rule("R13")
@pytest.mark.parametrize("outcome", [Outcome(2), Outcome(5, remembered=True)])
def test_a_removal_that_other_inputs_ask_for_waits_for_no_retry_of_the_old_ones(
    make: Make, outcome: Outcome
) -> None:
    """Settings that were invalid are corrected, or a generation failed here and was then given up."""
    bench = make()
    bench.look(GOOD)
    bench.end(outcome)
    bench.policy.configuration = replace(bench.policy.configuration, mode=Mode.REMOVE)
    assert bench.look(after=5) is Action.NOTHING
    assert bench.look(replace(GOOD, inputs=("corrected",)), after=5) is Action.REMOVE
    bench.end(Outcome(BUSY))
    assert bench.look() is Action.NOTHING
    assert bench.look(after=3) is Action.REMOVE


def test_a_node_that_is_installed_again_by_hand_is_not_called_removed(make: Make) -> None:
    bench = make(mode=Mode.REMOVE)
    bench.look(GOOD)
    bench.end(CHANGED, BARE)
    assert bench.look(replace(GOOD, blind="no bus")) is Action.NOTHING  # seen before the removal
    assert bench.phase is Phase.REMOVED
    assert bench.look(GOOD) is Action.REMOVE
    assert (bench.phase, bench.ready) == (Phase.CONVERGING, False)


@rule("R4")
def test_a_removal_that_failed_leaves_no_kubelet_on_a_dead_relay(make: Make) -> None:
    """Its next attempt may be minutes away."""
    bench = make(mode=Mode.REMOVE)
    bench.look(GOOD)
    bench.end(Outcome(1))
    assert bench.look(DEAD) is Action.NOTHING
    assert bench.look(after=21) is Action.RESCUE
    silent = replace(HELD, relay=False)
    bench.end(OK, silent)
    assert bench.look(silent, after=60) is Action.REMOVE  # without a restart of the proxy, which goes


# -- a pause that nobody has heard of yet ---------------------------------------------------------

UNASKED = replace(GOOD, permission=Permission(fresh=False))


def test_before_each_pass_the_cluster_is_asked_about_a_pause(settled: Bench) -> None:
    drifted = replace(UNASKED, files=("edited",))
    assert settled.look(drifted, after=5) is Action.NOTHING
    assert settled.last.read_node
    assert settled.look(replace(drifted, permission=FREE, paused=True), after=0) is Action.PLAN
    assert not settled.last.read_node


def test_before_a_hold_for_used_up_restarts_the_cluster_is_asked_about_a_pause(make: Make) -> None:
    bench = make(restarts=(800.0, 850.0, 900.0))
    off = replace(GOOD, on_relay=False)
    assert bench.look(off) is Action.INSTALL
    bench.end(Outcome(3, would_restart=True), replace(off, permission=UNASKED.permission))
    assert bench.look() is Action.NOTHING
    assert bench.last.read_node
    assert bench.look(off) is Action.HOLD


def test_at_rest_nobody_is_asked(settled: Bench) -> None:
    for _ in range(3):
        assert settled.look(UNASKED, after=5) is Action.NOTHING
        assert not settled.last.read_node


def test_a_node_without_a_proxy_asks_nobody_while_it_waits_for_a_permit(make: Make) -> None:
    """There is nothing to rescue, though no relay answers."""
    bench = make()
    permission = Permission(True, why="all permits are taken")
    waits = replace(BARE, permission=permission)
    bench.look(waits)
    bench.end(Outcome(3, would_restart=True, planned=PlannedWork("one")), waits)
    unknown = replace(waits, permission=replace(permission, fresh=False))
    for _ in range(10):
        assert bench.look(unknown, after=5) is Action.NOTHING
        assert not bench.last.read_node


@rule("R4")
def test_a_rescue_asks_at_once_and_waits_for_no_answer(settled: Bench) -> None:
    settled.look(replace(DEAD, permission=Permission(fresh=False)))
    settled.look(after=1)
    assert settled.last.read_node
    assert settled.look(after=20) is Action.RESCUE
