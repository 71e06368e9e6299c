"""Children that do not start, do not end, or are in the way of a rescue."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from installer.daemon.configuration import Configuration
from installer.daemon.decision import Action, Decision
from installer.daemon.outcome import Outcome
from installer.daemon.pass_history import RESYNC
from installer.daemon.policy import HEARTBEAT, STOP_GRACE
from installer.daemon.poller import PollSnapshot
from installer.model.daemon import Phase
from installer.model.names import Mode
from tests.lib.policy_bench import (
    DEAD,
    GOOD,
    HELD,
    KUBELET,
    OK,
    PROXY,
    SILENT,
    Bench,
    Make,
    held,
)
from tests.lib.rules import rule


@rule("R15")
@pytest.mark.parametrize("snapshot", [GOOD, replace(GOOD, inputs=("new",)), replace(GOOD, files=("drift",))])
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
        bench.end(Outcome(1, reason="no process could be started"), snapshot, took=0.0)
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


def test_a_plan_that_tells_nothing_is_tried_again_later(make: Make) -> None:
    bench = make()
    other = replace(GOOD, paused=True)
    assert bench.look(other) is Action.PLAN
    for wait in (5.0, 10.0):
        bench.end(Outcome(137), other, took=0.0)
        assert bench.look(after=wait - 0.1) is Action.NOTHING
        assert not bench.ready
        assert bench.look(after=0.2) is Action.PLAN


@rule("R7")
def test_what_a_killed_pass_has_begun_is_finished_at_once(settled: Bench) -> None:
    """It may have stopped the proxy for a moment, with kubelet on the relay."""
    stopped = replace(SILENT, proxy=replace(PROXY, active_state="inactive", main_pid=0), units=("stopped",))
    settled.look(replace(GOOD, inputs=("new",)))
    settled.end(Outcome(137), replace(stopped, inputs=("new",)))
    assert settled.look() is Action.INSTALL
    settled.end(Outcome(137))
    assert settled.look(after=1) is Action.NOTHING  # but that is no reason to spin


@rule("R15")
def test_a_hold_that_cannot_be_set_does_not_spin(make: Make) -> None:
    bench = make(restarts=(800.0, 850.0, 900.0))
    off = replace(GOOD, on_relay=False, units=("off",))
    bench.look(off)
    bench.end(Outcome(3, would_restart=True))
    assert bench.look() is Action.HOLD
    bench.end(Outcome(1), took=0.0)
    assert bench.look() is Action.NOTHING
    assert bench.last.wake <= bench.now + 3.0
    assert bench.look(after=2.5) is Action.HOLD


def test_a_week_of_failures_is_no_longer_than_the_longest_wait(settled: Bench) -> None:
    drift = replace(GOOD, files=("drift",))
    settled.look(drift)
    for _failure in range(2000):
        settled.end(Outcome(1), drift)
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
    assert bench.look(replace(GOOD, files=("drift",))) is Action.INSTALL
    dead = replace(DEAD, files=("drift",))
    assert bench.look(dead) is Action.NOTHING
    assert bench.look(after=19) is Action.NOTHING
    assert bench.look(after=1.1) is Action.STOP
    assert bench.last.grace == STOP_GRACE
    bench.end(Outcome(137), dead, took=10.0)
    assert bench.look() is Action.RESCUE


def test_a_repair_does_not_delay_the_restart_of_a_silent_proxy(settled: Bench) -> None:
    settled.look(replace(GOOD, files=("drift",)))
    silent = replace(SILENT, files=("drift",))
    assert settled.look(silent) is Action.NOTHING
    assert settled.look(after=9.9) is Action.NOTHING
    assert settled.look(after=0.2) is Action.STOP
    settled.end(Outcome(143), silent)
    assert settled.look() is Action.RESTART_PROXY


def test_a_repair_that_was_stopped_for_a_rescue_is_repeated_under_its_hold(settled: Bench) -> None:
    """The relay may need just this repair to come back. Kubelet runs on its base meanwhile."""
    settled.look(replace(GOOD, files=("drift",)))
    dead = replace(DEAD, files=("drift",))
    settled.look(dead)
    assert settled.look(after=21) is Action.STOP
    settled.end(Outcome(143), dead)
    assert settled.look() is Action.RESCUE
    rescued = replace(dead, on_relay=False, hold=HELD.hold)
    settled.end(Outcome(0, restarts=1), rescued)
    assert settled.look() is Action.NOTHING
    assert settled.look(after=5) is Action.INSTALL
    settled.end(Outcome(5), rescued)
    for _heartbeat in range(100):
        assert settled.look(after=HEARTBEAT) is Action.NOTHING


def test_a_repair_that_moves_things_has_the_time_for_its_rollback(settled: Bench) -> None:
    settled.look(replace(GOOD, inputs=("new",)))
    settled.policy.host_changed()
    dead = replace(DEAD, inputs=("new",))
    assert settled.look(dead, after=40) is Action.NOTHING
    assert settled.look(after=29.5) is Action.NOTHING
    assert settled.look(after=1.0) is Action.STOP
    settled.end(Outcome(137), dead)
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
    settled.look(replace(GOOD, files=("drift",)))
    settled.look(replace(SILENT, **change), after=1)
    assert settled.look(after=500) is Action.NOTHING


NEW = replace(GOOD, inputs=("new",), settings=("new",))


def test_new_settings_are_read_before_a_pass_begins_with_them(settled: Bench) -> None:
    assert settled.look(NEW) is Action.SETTINGS
    assert settled.look(after=1) is Action.NOTHING
    settled.end(Outcome(0, configuration=Configuration(mode=Mode.REMOVE)))
    assert settled.look() is Action.REMOVE


def test_while_settings_are_read_a_rescue_does_not_wait(settled: Bench) -> None:
    dead = replace(DEAD, inputs=NEW.inputs, settings=NEW.settings)
    settled.look(replace(DEAD))
    assert settled.look(dead, after=15) is Action.SETTINGS
    assert settled.look(after=6) is Action.STOP
    settled.end(Outcome(143))
    assert settled.look() is Action.RESCUE


@pytest.mark.parametrize(("code", "reads_again"), [(2, False), (1, True), (137, True)])
def test_settings_that_are_bad_stay_so_until_they_change(
    settled: Bench, code: int, reads_again: bool
) -> None:
    """The old ones count. A child that could not tell is asked again."""
    assert settled.look(NEW) is Action.SETTINGS
    settled.end(Outcome(code))
    assert settled.look() is Action.INSTALL
    settled.end(Outcome(0))
    assert (settled.look(after=11) is Action.SETTINGS) is reads_again


@pytest.mark.parametrize("change", [{"paused": True}, {"hold": "by hand"}, {"blind": "no bus"}])
def test_new_settings_are_read_where_nothing_may_be_changed(settled: Bench, change: dict[str, Any]) -> None:
    assert settled.look(replace(NEW, **change)) is Action.SETTINGS


@rule("R11")
@rule("R13")
@pytest.mark.parametrize("code", [0, 5, 137])
def test_what_an_earlier_daemon_has_begun_counts_and_is_looked_at(make: Make, code: int) -> None:
    """Its inputs are not known: only a pass of our own tells whether the node is as it should be."""
    bench = make()
    bench.policy.begun(Decision(Action.INSTALL), GOOD, by_another=True)
    assert bench.look(after=1.0) is Action.NOTHING
    assert not bench.ready
    bench.end(Outcome(code, changed=True, restarts=1))
    assert not bench.ready
    assert not bench.policy.had_lock  # which was the earlier daemon's
    assert bench.policy.state.restarts == 1
    assert bench.look() is Action.INSTALL
    bench.end()
    assert bench.look() is Action.NOTHING
    assert bench.ready


def test_what_an_earlier_daemon_has_begun_is_stopped_for_a_rescue(make: Make) -> None:
    bench = make()
    bench.policy.begun(Decision(Action.INSTALL), GOOD, by_another=True)
    bench.look(SILENT)
    assert bench.look(after=21) is Action.STOP
