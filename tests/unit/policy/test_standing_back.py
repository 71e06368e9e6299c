"""When the policy may not act: restarts per hour, a pause, a newer daemon, work that is not permitted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from installer.daemon.decision import Action
from installer.daemon.pass_history import RESYNC
from installer.daemon.policy import BUSY, HEARTBEAT, HOUR
from installer.model.daemon import Installed, Phase
from installer.model.fleet import FREE, Permission, PlannedWork
from installer.model.hold import BY_DAEMON
from installer.model.names import Mode
from installer.model.result import RunResult
from tests.lib.policy_bench import (
    BAD,
    BARE,
    CHANGED,
    CLEAN,
    DEAD,
    DRIFT,
    DRIFTED,
    GOOD,
    HELD,
    NEW,
    NEWER,
    OK,
    UNITS,
    Bench,
    Make,
)
from tests.lib.rules import rule

OFF = replace(GOOD, on_relay=False, picture=replace(UNITS, restarts=1))
"""Kubelet cannot be moved, and has to restart."""


def test_too_many_restarts_are_seen_before_they_happen(make: Make) -> None:
    bench = make(restarts=(800.0, 850.0))
    bench.settle()
    assert bench.look(OFF) is Action.INSTALL
    bench.end(RunResult(0, changed=True, restarts=1), GOOD)
    bench.look()
    assert bench.policy.restarts_left == 0
    assert bench.look(OFF) is Action.HOLD
    bench.end(OK, replace(OFF, hold=f"{BY_DAEMON}3 times"))
    for _heartbeat in range(100):
        assert bench.look(after=HEARTBEAT) is Action.NOTHING
    assert not bench.ready
    assert bench.phase is Phase.HELD
    assert bench.look(after=HOUR) is Action.INSTALL


def test_what_needs_no_restart_is_still_repaired(make: Make) -> None:
    bench = make(restarts=(800.0, 850.0, 900.0))
    assert bench.look(DRIFTED) is Action.INSTALL
    assert bench.policy.restarts_left == 0
    bench.end(CHANGED)
    assert bench.look() is Action.NOTHING
    assert bench.ready


@rule("R8")
def test_the_good_generation_is_repaired_though_the_next_one_would_restart_kubelet_too_often(
    make: Make,
) -> None:
    bench = make(restarts=(800.0, 850.0, 900.0))
    limited = replace(GOOD, on_relay=False, moves=True, picture=replace(NEW, restarts=1))
    bench.look(replace(limited, on_relay=True))
    assert bench.phase is Phase.LIMITED
    repairs = replace(limited, picture=replace(NEW, restarts=1, repairs=True))
    assert bench.look(repairs) is Action.INSTALL  # and kubelet is not held


def test_a_run_that_finds_that_it_would_have_to_restart_is_no_failure(make: Make) -> None:
    """The runtime knows more than the picture."""
    bench = make(restarts=(800.0, 850.0, 900.0))
    assert bench.look(DRIFTED) is Action.INSTALL
    bench.end(RunResult(3, would_restart=True))
    assert bench.look(after=1) is Action.NOTHING
    assert bench.look(after=5) is Action.INSTALL
    assert bench.policy.state.failures == 0


def test_restarts_are_forgotten_after_an_hour(make: Make) -> None:
    bench = make(restarts=(800.0, 850.0, 900.0))
    bench.now += HOUR
    assert bench.look(OFF) is Action.INSTALL
    assert bench.policy.state.restarts == 0


def test_kubelet_on_the_relay_is_limited_without_a_hold(make: Make) -> None:
    bench = make(restarts=(800.0, 850.0, 900.0))
    assert bench.look(replace(OFF, on_relay=True)) is Action.NOTHING
    assert (bench.phase, bench.ready) == (Phase.LIMITED, False)


def test_while_paused_it_changes_nothing(settled: Bench) -> None:
    paused = replace(DRIFTED, paused=True)
    assert settled.look(paused) is Action.NOTHING
    assert (settled.phase, settled.ready) == (Phase.PAUSED, False)
    assert settled.look(replace(paused, relay=False, picture=NEW), after=100) is Action.NOTHING
    assert settled.look(replace(GOOD, picture=NEW)) is Action.INSTALL


def test_while_paused_a_generation_that_failed_here_is_the_reason(settled: Bench) -> None:
    failed = replace(NEW, due=False, code=5, remembered=True, reason="failed here before")
    assert settled.look(replace(GOOD, paused=True, picture=failed)) is Action.NOTHING
    assert (settled.phase, settled.policy.state.reason) == (Phase.PAUSED, "failed here before")


def test_a_pause_of_a_healthy_host_stays_ready(settled: Bench) -> None:
    settled.look(replace(GOOD, paused=True))
    assert (settled.phase, settled.ready) == (Phase.PAUSED, True)


def test_one_that_was_replaced_stays_so_and_stops_its_child(settled: Bench) -> None:
    settled.look(DRIFTED)
    assert settled.look(replace(GOOD, superseded=True)) is Action.STOP
    assert settled.last.grace == 0.0  # the child's own
    settled.end(RunResult(143))
    assert settled.look(replace(DEAD, picture=NEW), after=100) is Action.NOTHING
    assert not settled.looked_closer
    assert (settled.phase, settled.ready) == (Phase.YIELDED, False)


def test_a_removal_that_was_killed_goes_on_if_the_settings_still_want_it(make: Make) -> None:
    """Somebody may have changed them while it was at work, which the next picture tells."""
    bench = make(mode=Mode.REMOVE)
    assert bench.look(DRIFTED) is Action.REMOVE
    bench.end(RunResult(137), replace(GOOD, picture=replace(DRIFT, spent=True)))
    assert bench.look() is Action.NOTHING
    assert bench.look(DRIFTED) is Action.REMOVE


def test_a_removal_waits_for_the_run_that_is_at_work(make: Make) -> None:
    """By hand, say, for ten minutes: a run each two seconds would only find the host's lock held."""
    bench = make(mode=Mode.REMOVE)
    for _look in range(60):
        assert bench.look(replace(GOOD, picture=replace(DRIFT, at_work="pid 7")), after=2) is Action.NOTHING
        assert bench.policy.state.reason == "another run is at work on this host"
    assert bench.look(DRIFTED, after=2) is Action.REMOVE


def test_a_removal_is_done_once_and_repairs_nothing(make: Make) -> None:
    bench = make(mode=Mode.REMOVE)
    assert bench.look(DRIFTED) is Action.REMOVE
    bench.end(RunResult(1))
    assert bench.look() is Action.NOTHING
    assert not bench.ready
    assert bench.look(after=6) is Action.REMOVE
    bare = replace(BARE, picture=replace(CLEAN, wanted=""))
    bench.end(CHANGED, bare)
    assert bench.look() is Action.NOTHING
    assert (bench.phase, bench.ready) == (Phase.REMOVED, True)
    assert bench.look(after=10_000) is Action.NOTHING
    assert bench.last.wake >= bench.now + RESYNC
    bench.policy.remove_again()
    assert bench.look() is Action.REMOVE


@rule("R13")
@pytest.mark.parametrize("outcome", [RunResult(2), RunResult(5, remembered=True)])
def test_a_removal_that_other_inputs_ask_for_waits_for_no_retry_of_the_old_ones(
    make: Make, outcome: RunResult
) -> None:
    """Settings that were invalid are corrected, or a generation failed here and was then given up."""
    bench = make()
    bench.look(DRIFTED)
    bench.end(outcome)
    bench.policy.configuration = replace(bench.policy.configuration, mode=Mode.REMOVE)
    assert bench.look(replace(GOOD, picture=NEWER), after=4) is Action.REMOVE
    bench.end(RunResult(BUSY))
    assert bench.look() is Action.NOTHING
    assert bench.look(after=3) is Action.REMOVE


def test_a_node_that_is_installed_again_by_hand_is_not_called_removed(make: Make) -> None:
    bench = make(mode=Mode.REMOVE)
    bench.look(DRIFTED)
    bench.end(CHANGED, replace(BARE, picture=replace(DRIFT, spent=True)))
    assert bench.look(replace(bench.snapshot, blind="no bus")) is Action.NOTHING
    assert bench.phase is Phase.REMOVED
    bench.look(replace(BARE, picture=CLEAN))
    assert bench.phase is Phase.REMOVED
    assert bench.look(DRIFTED) is Action.REMOVE
    assert (bench.phase, bench.ready) == (Phase.CONVERGING, False)


@rule("R4", "R13")
def test_a_daemon_that_is_to_install_again_watches_the_relay(make: Make) -> None:
    """The new generation is refused, and a person installs by hand."""
    bench = make(mode=Mode.REMOVE)
    bench.look(DRIFTED)
    bench.end(CHANGED, replace(BARE, picture=CLEAN))
    bench.policy.configuration = replace(bench.policy.configuration, mode=Mode.INSTALL)
    bench.look(replace(BARE, picture=BAD))
    bench.look(GOOD, after=60.0)
    assert bench.policy.state.installed == Installed("i")
    assert bench.last.wake == bench.now + HEARTBEAT


@pytest.mark.parametrize("code", [1, 4, 137])
def test_a_removal_that_fails_where_nothing_is_left_to_remove_waits_ever_longer(
    make: Make, code: int
) -> None:
    """Each picture shows a host that is as it should be."""
    bench = make(mode=Mode.REMOVE)
    bare, begun = replace(BARE, picture=CLEAN), 0
    for _second in range(600):
        if bench.look(replace(bare, picture=replace(CLEAN)), after=1) is Action.REMOVE:
            begun += 1
            bench.end(RunResult(code, reason="no"), bare, took=0.1)
            assert bench.phase in (Phase.FAILED, Phase.REFUSED)
    assert 4 < begun < 12


@rule("R4")
def test_a_removal_that_failed_leaves_no_kubelet_on_a_dead_relay(make: Make) -> None:
    """Its next attempt may be minutes away."""
    bench = make(mode=Mode.REMOVE)
    bench.look(DRIFTED)
    bench.end(RunResult(1))
    assert bench.look(DEAD) is Action.NOTHING
    assert bench.look(after=21) is Action.RESCUE
    silent = replace(HELD, relay=False)
    bench.end(OK, silent)
    assert bench.look(silent, after=60) is Action.REMOVE  # without a restart of the proxy, which goes


# -- a pause that nobody has heard of yet ---------------------------------------------------------

UNASKED = Permission(fresh=False)


def test_before_each_run_the_cluster_is_asked_about_a_pause(settled: Bench) -> None:
    drifted = replace(DRIFTED, permission=UNASKED)
    assert settled.look(drifted, after=5) is Action.NOTHING
    assert settled.last.read_node
    assert settled.look(replace(drifted, permission=FREE, paused=True), after=0) is Action.NOTHING
    assert not settled.last.read_node
    assert settled.look(DRIFTED) is Action.INSTALL


def test_before_a_hold_for_used_up_restarts_the_cluster_is_asked_about_a_pause(make: Make) -> None:
    bench = make(restarts=(800.0, 850.0, 900.0))
    assert bench.look(replace(OFF, permission=UNASKED)) is Action.NOTHING
    assert bench.last.read_node
    assert bench.look(OFF) is Action.HOLD


def test_at_rest_the_cluster_is_asked_about_a_pause_every_ten_minutes(settled: Bench) -> None:
    """It also tells the Node again what others have changed there."""
    unasked = replace(GOOD, permission=UNASKED)
    for _ in range(2):
        for _ in range(119):
            assert settled.look(unasked, after=5) is Action.NOTHING
            assert not settled.last.read_node
        settled.look(unasked, after=5)
        assert settled.last.read_node
        settled.look(GOOD, after=0)


def test_a_daemon_that_was_replaced_asks_nobody(settled: Bench) -> None:
    settled.look(replace(GOOD, permission=UNASKED, superseded=True), after=700)
    assert not settled.last.read_node


def test_a_node_without_a_proxy_asks_nobody_while_it_waits_for_a_permit(make: Make) -> None:
    """There is nothing to rescue, though no relay answers."""
    bench = make()
    planned = replace(BARE, picture=replace(NEW, work=PlannedWork("one")))
    unknown = replace(planned, permission=Permission(True, why="all permits are taken", fresh=False))
    for _ in range(10):
        assert bench.look(unknown, after=5) is Action.NOTHING
        assert not bench.last.read_node


@rule("R4")
def test_a_rescue_asks_at_once_and_waits_for_no_answer(settled: Bench) -> None:
    settled.look(replace(DEAD, permission=UNASKED))
    settled.look(after=1)
    assert settled.last.read_node
    assert settled.look(after=20) is Action.RESCUE
