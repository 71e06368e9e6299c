"""Children that do not start, do not end, or are in the way of a rescue."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from installer.daemon.decision import Action, Decision
from installer.daemon.pass_history import RESYNC
from installer.daemon.policy import HEARTBEAT, HOUR, STOP_GRACE
from installer.daemon.poller import PollSnapshot
from installer.model.daemon import Phase
from installer.model.result import RunResult
from tests.lib.policy_bench import (
    DEAD,
    DRIFT,
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
    held,
    rescue_in_a_repair,
)
from tests.lib.rules import rule


@rule("R15")
@pytest.mark.parametrize("snapshot", [replace(GOOD, picture=NEW), replace(GOOD, picture=DRIFT)])
@pytest.mark.parametrize("fresh", [True, False])
def test_a_child_that_cannot_be_started_is_a_failure_with_back_off(
    make: Make, fresh: bool, snapshot: PollSnapshot
) -> None:
    bench = make()
    if not fresh:
        bench.settle()
        bench.now += RESYNC * 1.3
    waits = []
    assert bench.look(snapshot) is Action.INSTALL
    for _try in range(3):
        bench.end(RunResult(1, reason="no process could be started"), snapshot, took=0.0)
        assert bench.look() is Action.NOTHING
        assert (bench.phase, bench.ready) == (Phase.FAILED, False)
        began = bench.now
        while bench.look(after=1.0) is Action.NOTHING:
            pass
        waits.append(bench.now - began)
    assert waits == [5, 10, 20]
    bench.end(OK)
    bench.look()
    assert bench.ready


@rule("R7")
def test_what_a_killed_pass_has_begun_is_finished_at_once(settled: Bench) -> None:
    """It may have stopped the proxy for a moment, with kubelet on the relay."""
    stopped = replace(SILENT, proxy=replace(PROXY, active_state="inactive", main_pid=0))
    settled.look(replace(GOOD, picture=NEW))
    settled.end(RunResult(137), replace(stopped, picture=NEW))
    assert settled.look() is Action.INSTALL
    settled.end(RunResult(137))
    assert settled.look(after=1) is Action.NOTHING  # but that is no reason to spin


@rule("R15")
def test_a_hold_that_cannot_be_set_does_not_spin(make: Make) -> None:
    bench = make(restarts=(800.0, 850.0, 900.0))
    off = replace(GOOD, on_relay=False, picture=replace(UNITS, restarts=1))
    assert bench.look(off) is Action.HOLD
    bench.end(RunResult(1), took=0.0)
    assert bench.look() is Action.NOTHING
    assert bench.last.wake <= bench.now + 3.0
    assert bench.look(after=2.5) is Action.HOLD


def test_a_week_of_failures_is_no_longer_than_the_longest_wait(settled: Bench) -> None:
    drift = replace(GOOD, picture=DRIFT)
    settled.look(drift)
    for _failure in range(2000):
        settled.end(RunResult(1), drift)
        assert settled.look(after=RESYNC) is Action.INSTALL


def test_a_week_of_a_silent_proxy_is_no_longer_than_the_longest_wait(settled: Bench) -> None:
    held(settled, replace(HELD, relay=False))
    for _restart in range(2000):
        while settled.look(after=RESYNC) is not Action.RESTART_PROXY:
            pass
        settled.end(took=0.0)


@rule("R15")
@pytest.mark.parametrize("fresh", [True, False])
def test_a_rescue_does_not_wait_for_a_repair_that_changes_nothing(make: Make, fresh: bool) -> None:
    bench = make()
    if not fresh:
        bench.settle()
    assert bench.look(replace(GOOD, picture=DRIFT)) is Action.INSTALL
    dead = replace(DEAD, picture=DRIFT)
    assert bench.look(dead) is Action.NOTHING
    assert bench.look(after=19) is Action.NOTHING
    assert bench.look(after=1.1) is Action.STOP
    assert bench.last.grace == STOP_GRACE
    bench.end(RunResult(137), dead, took=10.0)
    assert bench.look() is Action.RESCUE


def test_a_repair_does_not_delay_the_restart_of_a_silent_proxy(settled: Bench) -> None:
    settled.look(replace(GOOD, picture=DRIFT))
    silent = replace(SILENT, picture=DRIFT)
    assert settled.look(silent) is Action.NOTHING
    assert settled.look(after=9.9) is Action.NOTHING
    assert settled.look(after=0.2) is Action.STOP
    settled.end(RunResult(143), silent)
    assert settled.look() is Action.RESTART_PROXY


def test_a_repair_that_was_stopped_for_a_rescue_is_repeated_under_its_hold(settled: Bench) -> None:
    """The relay may need just this repair to come back. Kubelet runs on its base meanwhile."""
    rescued = replace(rescue_in_a_repair(settled), on_relay=False, hold=HELD.hold)
    settled.end(RunResult(0, restarts=1), rescued)
    assert settled.look() is Action.NOTHING
    assert settled.look(after=5) is Action.INSTALL
    settled.end(RunResult(5), rescued)
    waits = [settled.now]
    while settled.now < waits[0] + HOUR:  # ever more rarely: what was in its way may go
        if settled.look(after=HEARTBEAT) is Action.INSTALL:
            waits.append(settled.now)
            settled.end(RunResult(5), rescued)
    assert 6 <= len(waits) <= 16
    assert waits[-1] - waits[-2] > 300


def test_a_repair_that_moves_things_has_the_time_for_its_rollback(settled: Bench) -> None:
    settled.look(replace(GOOD, picture=NEW))
    settled.policy.host_changed()
    dead = replace(DEAD, picture=NEW)
    assert settled.look(dead, after=40) is Action.NOTHING
    assert settled.look(after=29.5) is Action.NOTHING
    assert settled.look(after=1.0) is Action.STOP
    settled.end(RunResult(137), dead)
    assert settled.look() is Action.RESCUE


def test_a_proxy_that_is_being_restarted_has_the_time_for_it(settled: Bench) -> None:
    settled.look(SILENT)
    assert settled.look(after=10.5) is Action.RESTART_PROXY
    assert settled.look(after=9.4) is Action.NOTHING
    assert settled.look(after=0.2) is Action.STOP


@pytest.mark.parametrize(
    "change",
    [
        {"on_relay": False},
        {"runtime": False},
        {"paused": True},
        {"blind": "no bus"},
        {"proxy": replace(PROXY, environment=()), "kubelet": replace(KUBELET, environment=())},
    ],
)
def test_a_repair_is_not_stopped_where_no_rescue_would_follow(settled: Bench, change: dict[str, Any]) -> None:
    settled.look(replace(GOOD, picture=DRIFT))
    settled.look(replace(SILENT, **change), after=1)
    assert settled.look(after=500) is Action.NOTHING


@rule("R11")
@rule("R13")
@pytest.mark.parametrize("code", [0, 5, 137])
def test_what_an_earlier_daemon_has_begun_counts_and_is_looked_at(make: Make, code: int) -> None:
    """Its inputs are not known: only a picture of our own tells whether the node is as it should be."""
    bench = make()
    nothing = replace(GOOD, picture=None)
    bench.policy.begun(Decision(Action.INSTALL), nothing, by_another=True)
    assert bench.look(nothing, after=1.0) is Action.NOTHING
    assert not bench.ready
    bench.end(RunResult(code, changed=True, restarts=1), nothing)
    assert not bench.ready
    assert not bench.policy.had_lock  # which was the earlier daemon's
    assert bench.policy.state.restarts == 1
    assert bench.look() is Action.NOTHING
    assert bench.looked_closer
    assert bench.look(GOOD) is Action.NOTHING
    assert bench.ready


def test_what_an_earlier_daemon_has_begun_is_stopped_for_a_rescue(make: Make) -> None:
    bench = make()
    bench.policy.begun(Decision(Action.INSTALL), GOOD, by_another=True)
    bench.look(SILENT)
    assert bench.look(after=21) is Action.STOP
