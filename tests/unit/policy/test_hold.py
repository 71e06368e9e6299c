"""When the policy keeps a hold, and when kubelet returns to the relay."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from installer.daemon.decision import Action
from installer.daemon.policy import HEARTBEAT, HOUR
from installer.model.daemon import Phase
from installer.model.hold import BY_DAEMON, BY_ROLLBACK, BY_RUN
from installer.model.names import Mode
from installer.model.result import RunResult
from tests.lib.policy_bench import (
    BAD,
    CLEAN,
    DEAD,
    DRIFT,
    GOOD,
    HELD,
    NEW,
    NEWER,
    PROXY,
    SILENT,
    UNITS,
    Bench,
    Make,
    held,
    rescue_in_a_repair,
)
from tests.lib.rules import rule


def test_the_way_forward_is_taken_after_a_good_minute(settled: Bench) -> None:
    held(settled)
    assert settled.look() is Action.NOTHING
    assert settled.look(after=59) is Action.NOTHING
    assert settled.look(after=2) is Action.INSTALL
    settled.end(RunResult(0, changed=True, restarts=1), GOOD)
    settled.look()
    assert settled.ready
    settled.look(after=2)
    held(settled)
    assert settled.look(after=0) is Action.NOTHING
    assert settled.look(after=4 * 60 - 1) is Action.NOTHING  # longer after each return within an hour
    assert settled.look(after=2) is Action.INSTALL


@rule("R3", "R8")
def test_a_hold_for_too_many_restarts_does_not_end_on_a_picture_from_before(make: Make) -> None:
    """The relay has answered all the time, and the run that the picture was for has ended."""
    bench = make(restarts=(900.0, 950.0, 980.0))
    off = replace(GOOD, on_relay=False, picture=replace(UNITS, restarts=1))
    bench.look(GOOD)
    assert bench.look(off, after=70) is Action.HOLD
    held_now = replace(off, hold=f"{BY_DAEMON}kubelet was restarted 3 times within an hour")
    bench.end(RunResult(0), replace(held_now, picture=replace(UNITS, restarts=1, spent=True)))
    assert bench.look() is Action.NOTHING
    assert bench.look(held_now, after=1) is Action.NOTHING


@rule("R3")
def test_a_kubelet_that_needs_no_restart_returns_soon(settled: Bench) -> None:
    dead, held, good = (replace(seen, moves=True) for seen in (DEAD, HELD, GOOD))
    for waits in (5, 20, 80):
        settled.look(dead, after=HEARTBEAT)
        assert settled.look(after=2) is Action.NOTHING
        assert settled.look(after=1) is Action.RESCUE
        settled.end(RunResult(0), held)
        settled.look()
        assert settled.look(after=waits - 1) is Action.NOTHING
        assert settled.look(after=1) is Action.INSTALL
        assert settled.last.is_return
        settled.end(RunResult(0, changed=True), good)


@rule("R3", "R8")
def test_kubelet_returns_later_and_later_to_a_proxy_that_the_guard_lets_it_leave(settled: Bench) -> None:
    """It crashes twice within ten seconds, now and then, and is back before the next heartbeat."""
    for n, waits in enumerate((0, 20, 80), 1):
        proxy = replace(PROXY, invocation_id=f"start {n}")
        left = replace(GOOD, moves=True, on_relay=False, picture=UNITS, proxy=proxy)
        if waits:
            assert settled.look(left, after=30) is Action.NOTHING
            assert settled.look(after=waits - 1) is Action.NOTHING
        assert settled.look(left, after=1) is Action.INSTALL
        back = replace(left, on_relay=True, picture=CLEAN)
        settled.end(RunResult(0, changed=True), back)
        assert settled.look(after=2) is Action.NOTHING
    crashed = replace(left, proxy=replace(PROXY, invocation_id="start 4"))
    assert settled.look(crashed, after=30) is Action.NOTHING
    assert settled.look(replace(crashed, picture=NEWER)) is Action.INSTALL


@rule("R3", "R8")
def test_kubelet_returns_later_and_later_if_the_guard_lets_it_leave_during_a_run(settled: Bench) -> None:
    """The proxy crashes whenever a run has just ended."""
    returns = []
    left = replace(GOOD, moves=True, on_relay=False, picture=UNITS)
    for _second in range(200):
        if settled.look(left, after=1) is not Action.INSTALL:
            continue
        returns.append(settled.now)
        settled.end(RunResult(0, changed=True), left, took=0.5)
    assert 1 < len(returns) < 6


@pytest.mark.parametrize("is_short", [False, True])
def test_kubelet_returns_at_once_from_a_persons_hold_however_often_there_was_one(
    settled: Bench, is_short: bool
) -> None:
    """Also if the hold has ended before kubelet has moved: its calls in flight take their time."""
    for _time in range(4):
        held = replace(GOOD, moves=True, hold="mine", picture=UNITS)
        assert settled.look(held, after=5) is Action.HOLD
        settled.end(RunResult(0), replace(held, on_relay=False, hold="" if is_short else "mine"))
        if not is_short:
            settled.look()
        assert settled.look(replace(held, hold="", on_relay=False), after=1) is Action.INSTALL
        settled.end(RunResult(0, changed=True), replace(GOOD, moves=True))
        assert settled.look() is Action.NOTHING


@rule("R4")
def test_a_proxy_that_was_stopped_is_started_however_often_it_has_been(settled: Bench) -> None:
    stopped = replace(PROXY, active_state="inactive", sub_state="dead", main_pid=0)
    for _time in range(4):
        left = replace(GOOD, relay=False, moves=True, on_relay=False, picture=UNITS, proxy=stopped)
        assert settled.look(left, after=1) is Action.INSTALL
        settled.end(RunResult(0, changed=True), replace(GOOD, moves=True))


def test_a_persons_hold_takes_effect_at_once_where_that_takes_no_restart(settled: Bench) -> None:
    held = replace(GOOD, hold="broken CPU map", picture=UNITS)
    assert settled.look(held) is Action.NOTHING
    assert settled.look(replace(held, moves=True)) is Action.HOLD
    settled.end(RunResult(0), replace(held, moves=True, on_relay=False))
    assert settled.look() is Action.NOTHING
    assert settled.look(replace(GOOD, moves=True, on_relay=False, picture=UNITS)) is Action.INSTALL


@rule("R4")
def test_a_proxy_that_hangs_is_left_before_it_is_restarted(settled: Bench) -> None:
    silent = replace(SILENT, moves=True)
    settled.look(silent, after=HEARTBEAT)
    assert settled.look(after=3) is Action.RESCUE
    settled.end(RunResult(0), replace(HELD, relay=False, moves=True))
    assert settled.look(after=1) is Action.RESTART_PROXY


@pytest.mark.parametrize("outcome", [RunResult(3, would_restart=True), RunResult(75)])
def test_the_way_forward_that_a_pass_could_not_take_is_still_open(settled: Bench, outcome: RunResult) -> None:
    """No restart of kubelet was left, or another run held the host's lock."""
    held(settled)
    settled.look()
    assert settled.look(after=61) is Action.INSTALL
    settled.policy.restarts = [settled.now] * 3
    settled.end(outcome)
    assert settled.look() is Action.NOTHING
    waited = 0.0
    while settled.look(after=HEARTBEAT) is Action.NOTHING:
        waited += HEARTBEAT
    assert settled.last.why == "the relay answers again"
    assert waited < HOUR + 60


def test_the_way_forward_is_open_while_a_failed_generation_is_not_retried(settled: Bench) -> None:
    settled.look(replace(GOOD, picture=NEW))
    settled.end(RunResult(5, remembered=True, reason="it is broken"), replace(GOOD, picture=BAD))
    settled.look(replace(DEAD, picture=BAD))
    assert settled.look(after=21) is Action.RESCUE
    settled.end(RunResult(0, restarts=1), replace(HELD, picture=BAD))
    assert settled.look() is Action.NOTHING
    assert settled.look(after=61) is Action.INSTALL
    assert settled.last.is_return
    settled.end(RunResult(5, remembered=True, reason="it is broken"))
    assert settled.look(after=4 * 60 - 2) is Action.NOTHING


def test_a_repair_that_was_stopped_waits_for_a_restart_of_kubelet_and_is_not_forgotten(
    settled: Bench,
) -> None:
    rescued = replace(rescue_in_a_repair(settled), on_relay=False, hold=HELD.hold)
    settled.end(RunResult(0, restarts=3), rescued)
    assert settled.look(after=6) is Action.INSTALL
    settled.end(RunResult(3, would_restart=True))
    assert settled.look() is Action.NOTHING
    while (action := settled.look(after=HEARTBEAT)) in (Action.NOTHING, Action.RESTART_PROXY):
        if action is Action.RESTART_PROXY:
            settled.end(took=0.0)
    assert settled.last.why == "resume the repair that a rescue interrupted"


@rule("R3")
def test_a_repair_that_somebody_else_has_made_is_not_resumed_under_the_next_hold(settled: Bench) -> None:
    rescue_in_a_repair(settled)
    settled.end(RunResult(0, restarts=1), HELD)
    assert settled.look(GOOD) is Action.NOTHING  # by hand
    held(settled)
    assert settled.look() is Action.NOTHING
    assert settled.look(after=59) is Action.NOTHING
    assert settled.look(after=2) is Action.INSTALL
    assert settled.last.why == "the relay answers again"


def test_a_relay_that_falls_silent_again_starts_the_minute_anew(settled: Bench) -> None:
    held(settled)
    settled.look()
    settled.look(replace(HELD, relay=False), after=30)
    assert settled.look(HELD, after=5) is Action.NOTHING
    assert settled.look(after=59) is Action.NOTHING
    assert settled.look(after=2) is Action.INSTALL


@rule("R7")
def test_the_hold_of_a_run_that_was_cut_off_is_ended_by_the_next(settled: Bench) -> None:
    left = replace(HELD, hold=f"{BY_RUN}kubelet waits there while the proxy starts")
    assert settled.look(left) is Action.INSTALL
    settled.end(RunResult(-9), left)
    assert settled.look(left, after=1) is Action.NOTHING
    assert settled.look(left, after=10) is Action.INSTALL


@rule("R13")
def test_a_node_is_not_called_held_while_its_own_run_holds_kubelet(settled: Bench) -> None:
    assert settled.look(replace(GOOD, picture=NEW)) is Action.INSTALL
    settled.look(replace(HELD, picture=NEW, hold=f"{BY_RUN}kubelet waits there while the proxy starts"))
    assert settled.phase is not Phase.HELD
    assert not settled.ready


def test_drift_does_not_end_a_hold_but_a_new_input_may(settled: Bench) -> None:
    held(settled)
    assert settled.look(replace(HELD, picture=DRIFT)) is Action.NOTHING
    assert settled.look(replace(HELD, picture=NEW)) is Action.INSTALL


@rule("R3")
def test_inputs_that_were_refused_before_do_not_end_a_hold(settled: Bench) -> None:
    """No run has tried them. One would take kubelet back at once."""
    refused = replace(CLEAN, code=2, reason="fallback.cfg: no policy", wanted="", inputs="")
    off = replace(refused, differs=UNITS.differs, due=True, repairs=True)
    settled.look(replace(GOOD, picture=refused))
    settled.look(replace(DEAD, picture=off))
    assert settled.look(after=21) is Action.RESCUE
    settled.end(RunResult(0, restarts=1), replace(HELD, picture=off))
    assert settled.look() is Action.NOTHING
    assert settled.look(after=59) is Action.NOTHING
    assert settled.look(after=2) is Action.INSTALL
    assert settled.last.is_return


def test_a_relay_that_is_silent_while_files_differ_is_repaired_under_the_hold(settled: Bench) -> None:
    """A proxy whose configuration is gone does not come back by itself."""
    held(settled)
    silent = replace(HELD, relay=False, picture=DRIFT)
    while (action := settled.look(silent, after=1)) is not Action.INSTALL:
        assert settled.now < HOUR
        if action is Action.RESTART_PROXY:
            settled.end(took=0.0)
    assert settled.last.why == "files differ, and the relay is silent"
    assert not settled.last.is_return


def test_a_hold_of_somebody_else_is_not_ours_to_end(settled: Bench) -> None:
    assert settled.look(replace(HELD, hold="by hand")) is Action.NOTHING
    assert settled.look(after=500) is Action.NOTHING
    assert (settled.phase, settled.policy.state.hold) == (Phase.HELD, "by hand")


def test_a_new_process_with_our_hold_waits_for_the_relay_to_prove_itself(make: Make) -> None:
    bench = make()
    assert bench.look(HELD) is Action.NOTHING
    assert bench.look(after=61) is Action.INSTALL


@pytest.mark.parametrize("hold", [HELD.hold, f"{BY_ROLLBACK}kubelet did not start"])
def test_a_new_process_may_bring_what_ends_a_hold_of_ours(make: Make, hold: str) -> None:
    snapshot = replace(DEAD, on_relay=False, hold=hold)
    bench = make()
    assert bench.look(snapshot) is Action.INSTALL
    bench.end(RunResult(6), snapshot)
    assert bench.look(after=30) is Action.NOTHING


BY_HAND = replace(HELD, hold="broken CPU map")


@pytest.mark.parametrize(
    "change", [{}, {"picture": NEW}, {"picture": DRIFT}, {"picture": UNITS}, {"relay": False}]
)
@pytest.mark.parametrize("fresh", [True, False])
def test_a_persons_hold_is_ended_by_a_person(make: Make, fresh: bool, change: dict[str, Any]) -> None:
    """Neither by a new pod, nor by new inputs, nor after a good while."""
    bench = make()
    if not fresh:
        bench.settle()
    for _heartbeat in range(200):
        assert bench.look(replace(BY_HAND, **change), after=HEARTBEAT) is Action.NOTHING
    assert (bench.phase, bench.ready) == (Phase.HELD, False)
    assert bench.look(replace(GOOD, picture=UNITS)) is Action.INSTALL


def test_under_a_persons_hold_not_even_a_plan_looks_for_restarts(make: Make) -> None:
    bench = make(restarts=(800.0, 850.0, 900.0))
    for _heartbeat in range(200):
        assert bench.look(BY_HAND, after=HEARTBEAT) is Action.NOTHING


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("state", ["activating", "inactive"])
def test_kubelet_on_a_dead_relay_is_restarted_for_a_persons_hold_to_take_effect(
    make: Make, state: str, fresh: bool
) -> None:
    bench = make()
    if not fresh:
        bench.settle()
    down = replace(PROXY, active_state=state, main_pid=0)
    hanging = replace(DEAD, proxy=down, hold="broken CPU map")
    assert bench.look(hanging, after=60) is Action.NOTHING
    assert bench.look(after=14) is Action.NOTHING  # a proxy that a person has stopped stays so
    assert bench.look(after=7) is Action.RESCUE
    bench.end(RunResult(0, restarts=1), replace(hanging, on_relay=False))
    for _heartbeat in range(200):
        assert bench.look(after=HEARTBEAT) is Action.NOTHING


@pytest.mark.parametrize("is_short", [False, True])
def test_what_a_picture_shows_under_a_hold_counts_no_longer_than_that(settled: Bench, is_short: bool) -> None:
    """It shows no repair of the good generation. `is_short`: the hold ends while the picture is taken."""
    seen = replace(BAD, hold="mine")
    if not is_short:
        settled.look(replace(GOOD, hold="mine", picture=seen))
        assert settled.look(after=1) is Action.NOTHING
        assert not settled.looked_closer
    settled.look(replace(GOOD, picture=seen), after=1)
    assert settled.looked_closer
    settled.look(replace(GOOD, picture=BAD), after=1)
    settled.look(after=1)
    assert not settled.looked_closer


@rule("R2")
def test_no_run_ends_the_hold_of_a_run_that_has_come_to_its_end(settled: Bench) -> None:
    """The picture was begun just before that run by hand, which has ended its hold itself."""
    seen = replace(CLEAN, due=True, hold=f"{BY_RUN}kubelet waits there while the proxy starts")
    assert settled.look(replace(GOOD, picture=seen)) is Action.NOTHING
    assert settled.looked_closer
    assert settled.look(GOOD) is Action.NOTHING
    assert settled.phase is Phase.CONVERGED


def test_a_persons_hold_does_not_keep_a_removal(make: Make) -> None:
    assert make(mode=Mode.REMOVE).look(BY_HAND) is Action.REMOVE


def test_a_silent_proxy_under_a_hold_is_restarted_ever_more_seldom(settled: Bench) -> None:
    held(settled, replace(HELD, relay=False))
    restarts = []
    for _second in range(500):
        if settled.look(after=1.0) is Action.RESTART_PROXY:
            restarts.append(settled.now)
            anew = replace(PROXY, invocation_id=f"{len(restarts)}")
            settled.end(took=0.0, snapshot=replace(HELD, relay=False, proxy=anew))
    gaps = [round(later - earlier) for earlier, later in pairwise(restarts)]
    assert gaps == [61, 61, 61, 80, 160]


@pytest.mark.parametrize("state", ["inactive", "failed"])
@pytest.mark.parametrize("hold", [HELD.hold, f"{BY_ROLLBACK}it did not come back"])
def test_a_proxy_that_somebody_stops_under_a_hold_of_ours_is_started(
    settled: Bench, state: str, hold: str
) -> None:
    """The hold would else last for ever: it waits for the relay, and no pass puts anything right under it."""
    held(settled, replace(HELD, hold=hold))
    settled.look(after=HEARTBEAT)
    stopped = replace(PROXY, active_state=state, main_pid=0)
    assert settled.look(replace(HELD, hold=hold, relay=False, proxy=stopped)) is Action.NOTHING
    assert settled.look(after=61.0) is Action.RESTART_PROXY
    assert f"it is {state}" in settled.last.why


@rule("R12")
def test_r12_a_proxy_that_keeps_crashing_under_a_hold_is_restarted_by_us_ever_more_seldom(
    settled: Bench,
) -> None:
    """Each start fails with a torn cache, which our restart sets aside. No pass works under the hold."""
    held(settled)
    settled.look(after=HEARTBEAT)
    crashing = replace(PROXY, active_state="activating", sub_state="auto-restart", main_pid=0)
    settled.look(replace(HELD, relay=False, proxy=crashing))
    found = []
    for number in range(60):  # systemd starts it every second
        crashing = replace(crashing, invocation_id=str(number))
        found.append(settled.look(replace(HELD, relay=False, proxy=crashing), after=1.0))
        if found[-1] is Action.RESTART_PROXY:
            assert "it keeps crashing" in settled.last.why
            settled.end()
    at = [number for number, action in enumerate(found) if action is Action.RESTART_PROXY]
    assert at[0] <= 10
    assert 2 <= len(at) <= 4
    assert set(found) == {Action.NOTHING, Action.RESTART_PROXY}


@rule("R4")
def test_dead_seconds_count_from_the_last_answer_as_far_as_it_is_known(settled: Bench) -> None:
    assert settled.look(DEAD, after=HEARTBEAT) is Action.NOTHING
    assert settled.last.due == settled.now - HEARTBEAT + 10.0
    assert settled.look(after=14.9) is Action.NOTHING
    assert settled.last.wake <= settled.now + 0.11
    assert settled.look(after=0.2) is Action.RESCUE


@rule("R4")
def test_short_dead_seconds_leave_systemd_its_chance(make: Make) -> None:
    bench = make(dead_seconds=1.0)
    bench.settle()
    assert bench.look(DEAD, after=HEARTBEAT) is Action.NOTHING
    assert bench.look(after=2.9) is Action.NOTHING
    assert bench.look(after=0.2) is Action.RESCUE


@rule("R4")
def test_a_proxy_that_was_started_anew_and_is_slow_is_not_restarted(settled: Bench) -> None:
    """While kubelet hangs on it, a restart would only cost time; while nobody waits, it has three times as
    long."""
    slow = replace(SILENT, proxy=replace(PROXY, invocation_id="by hand"))
    settled.look(slow)
    assert settled.look(after=19.9) is Action.NOTHING
    assert settled.look(after=0.2) is Action.RESCUE
    settled.end(RunResult(0, restarts=1), replace(slow, on_relay=False, hold=HELD.hold))
    assert settled.look(after=38.0) is Action.NOTHING
    assert settled.look(after=2.0) is Action.RESTART_PROXY
