"""The policy converges what differs, and leaves what others are at work on. Time is passed in: no loop, no
host."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from installer.daemon.decision import Action
from installer.daemon.outcome import Outcome
from installer.daemon.pass_history import RESYNC
from installer.daemon.policy import HEARTBEAT, SILENT_HEARTBEAT
from installer.model.daemon import Installed, Phase
from tests.lib.policy_bench import (
    CHANGED,
    DEAD,
    GOOD,
    KUBELET,
    OK,
    PROXY,
    SILENT,
    Bench,
    Make,
)
from tests.lib.rules import rule


def test_the_first_look_converges_and_then_it_rests(settled: Bench) -> None:
    assert (settled.phase, settled.ready) == (Phase.CONVERGED, True)
    assert settled.last.wake == settled.now + HEARTBEAT
    for _heartbeat in range(50):
        assert settled.look(after=HEARTBEAT) is Action.NOTHING


def test_a_resync_comes_when_nothing_else_does(settled: Bench) -> None:
    assert settled.look(after=RESYNC - 10) is Action.NOTHING
    assert settled.look(after=11) is Action.INSTALL
    assert settled.last.why == "resync"


@pytest.mark.parametrize("what", ["inputs", "files", "units"])
def test_whatever_changes_is_converged_at_once(settled: Bench, what: str) -> None:
    other: dict[str, Any] = {what: ("other",)}
    assert settled.look(replace(GOOD, **other)) is Action.INSTALL
    assert not settled.last.ask_first


def test_who_is_not_served_is_the_reason_until_a_pass_finds_all_served(settled: Bench) -> None:
    assert settled.look(after=RESYNC + 1) is Action.INSTALL
    settled.end(Outcome(0, remarks="no CPUs for web"))
    state = settled.policy.state
    assert (state.phase, state.ready, state.reason) == (Phase.CONVERGED, True, "no CPUs for web")
    assert settled.look(after=RESYNC + 1) is Action.INSTALL
    settled.end()
    assert settled.policy.state.reason == ""


@rule("R13")
def test_new_inputs_are_not_ready_until_they_are_converged(settled: Bench) -> None:
    settled.look(replace(GOOD, inputs=("other",)))
    assert (settled.phase, settled.ready) == (Phase.CONVERGING, False)
    settled.end(CHANGED)
    settled.look()
    assert settled.ready


@rule("R13")
@pytest.mark.parametrize("what", ["files", "units"])
def test_a_host_that_differs_is_not_converged_until_it_is_repaired(settled: Bench, what: str) -> None:
    other: dict[str, Any] = {what: ("other",)}
    drifted = replace(GOOD, **other)
    settled.look(drifted)
    assert (settled.phase, settled.ready) == (Phase.REPAIRING, False)
    assert settled.look(after=1) is Action.NOTHING
    assert (settled.phase, settled.ready) == (Phase.REPAIRING, False)
    settled.end(CHANGED, GOOD)
    assert settled.look() is Action.NOTHING
    assert (settled.phase, settled.ready) == (Phase.CONVERGED, True)


@rule("R13")
def test_a_repair_that_has_to_wait_leaves_the_host_unconverged(settled: Bench) -> None:
    """For systemd, which starts the proxy again: too short to be unwell."""
    blink = replace(SILENT, proxy=replace(PROXY, active_state="activating", main_pid=0), units=("blink",))
    assert settled.look(blink) is Action.NOTHING
    assert (settled.phase, settled.ready) == (Phase.REPAIRING, False)


@rule("R13")
def test_while_a_pass_looks_again_the_node_is_ready_and_not_said_to_be_converged(settled: Bench) -> None:
    assert settled.look(after=RESYNC * 1.3) is Action.INSTALL
    assert (settled.phase, settled.ready) == (Phase.CHECKING, True)
    settled.end(OK)
    assert settled.look() is Action.NOTHING
    assert (settled.phase, settled.ready) == (Phase.CONVERGED, True)


@rule("R13")
def test_after_a_pause_nothing_is_known_until_a_pass_has_looked(settled: Bench) -> None:
    assert settled.look(replace(GOOD, paused=True)) is Action.NOTHING
    assert (settled.phase, settled.ready) == (Phase.PAUSED, True)
    assert settled.look(GOOD) is Action.INSTALL
    assert (settled.phase, settled.ready) == (Phase.REPAIRING, False)
    settled.end(OK)
    settled.look()
    assert (settled.phase, settled.ready) == (Phase.CONVERGED, True)


@rule("R13")
def test_drift_under_a_pause_is_not_ready_before_a_plan_has_looked(settled: Bench) -> None:
    drifted = replace(GOOD, paused=True, files=("drift",))
    assert settled.look(drifted) is Action.PLAN
    assert (settled.phase, settled.ready) == (Phase.PAUSED, False)
    settled.end(OK, drifted)  # somebody has touched a file, and it is the same
    assert settled.look() is Action.NOTHING
    assert (settled.phase, settled.ready) == (Phase.PAUSED, True)


def test_a_failure_that_is_not_tried_again_is_tried_after_a_pause(settled: Bench) -> None:
    """A person was at work meanwhile; also where a plan under the pause has forgotten the failure."""
    new = replace(GOOD, inputs=("new",))
    settled.look(new)
    settled.end(Outcome(5, remembered=True, reason="it is broken"), new)
    assert settled.look(replace(new, paused=True, inputs=("newer",))) is Action.PLAN
    settled.end(Outcome(3, reason="pending: 1 to change"))
    assert settled.look(replace(new, inputs=("newer",))) is Action.INSTALL


@rule("R13")
def test_what_the_agent_sends_is_looked_into_while_the_node_stays_ready(settled: Bench) -> None:
    """Nothing has changed on the host; which policy is in force, a pass finds out."""
    sent = replace(GOOD, agent="sent")
    assert settled.look(sent, after=HEARTBEAT) is Action.INSTALL
    assert (settled.phase, settled.ready) == (Phase.CHECKING, True)
    settled.end(replace(OK, installed=Installed(policy="balloons", policy_source="cri-resmgr-agent")))
    assert settled.look() is Action.NOTHING
    assert (settled.phase, settled.policy.state.installed.policy) == (Phase.CONVERGED, "balloons")


def test_what_the_agent_sends_during_a_pass_is_looked_into_after_it(settled: Bench) -> None:
    settled.look(after=RESYNC + 1)
    settled.end(OK, replace(GOOD, agent="sent"))
    assert settled.look() is Action.INSTALL


def test_after_a_change_of_ours_there_is_one_more_look(settled: Bench) -> None:
    other = replace(GOOD, files=("drift",))
    settled.look(other)
    settled.end(CHANGED, GOOD)
    assert settled.look() is Action.NOTHING
    assert settled.ready
    assert settled.look(after=1.1) is Action.INSTALL
    assert (settled.phase, settled.ready) == (Phase.CHECKING, True)
    settled.end(OK)
    assert settled.look(after=1.1) is Action.NOTHING
    assert settled.policy.state.repairs == 1


def test_what_changes_before_the_second_look_does_not_wait_for_it(settled: Bench) -> None:
    settled.look(replace(GOOD, files=("drift",)))
    settled.end(CHANGED, GOOD)
    settled.look()
    assert settled.look(replace(GOOD, files=("drift again",)), after=0.1) is Action.INSTALL


def test_what_changes_during_a_pass_that_found_nothing_is_seen(settled: Bench) -> None:
    settled.look(replace(GOOD, files=("drift",)))
    settled.end(OK, replace(GOOD, files=("meanwhile",)))
    assert settled.look() is Action.INSTALL


def test_passes_that_chase_each_other_are_slowed_down(settled: Bench) -> None:
    passes = 0
    for number in range(600):  # a minute of somebody who writes ten times a second
        if settled.look(replace(GOOD, files=(number,)), after=0.1) is Action.INSTALL:
            passes += 1
            settled.end(CHANGED, took=0.0)
    assert passes <= 30


def test_nothing_is_begun_while_a_child_is_at_work(settled: Bench) -> None:
    settled.look(replace(GOOD, files=("drift",)))
    assert settled.look(replace(GOOD, inputs=("new",), relay=False), after=60) is Action.NOTHING


def test_a_restart_of_kubelet_under_way_is_waited_for(settled: Bench) -> None:
    starting = replace(GOOD, kubelet=replace(KUBELET, active_state="activating"), units=("starting",))
    assert settled.look(starting) is Action.NOTHING
    assert settled.look(replace(GOOD, units=("restarted",)), after=0.3) is Action.INSTALL


def test_a_kubelet_that_keeps_starting_is_looked_into(settled: Bench) -> None:
    starting = replace(GOOD, kubelet=replace(KUBELET, active_state="activating"), units=("starting",))
    settled.look(starting)
    assert settled.last.due <= settled.now + 10
    assert settled.look(after=11) is Action.INSTALL


def test_a_kubelet_that_somebody_has_stopped_stays_stopped(settled: Bench) -> None:
    stopped = replace(GOOD, kubelet=replace(KUBELET, active_state="inactive", main_pid=0), units=("stopped",))
    assert settled.look(stopped) is Action.NOTHING
    assert (settled.phase, settled.ready) == (Phase.UNWELL, False)


def test_a_proxy_that_systemd_restarts_is_left_to_it(settled: Bench) -> None:
    assert settled.look(DEAD) is Action.NOTHING
    assert settled.last.wake == settled.now + SILENT_HEARTBEAT
    assert settled.look(replace(GOOD, units=("again",)), after=1.2) is Action.INSTALL


def test_a_proxy_that_somebody_has_stopped_is_started(settled: Bench) -> None:
    stopped = replace(SILENT, proxy=replace(PROXY, active_state="inactive", main_pid=0), units=("stopped",))
    assert settled.look(stopped) is Action.INSTALL


def test_a_lost_bus_is_said_when_it_stays_away_and_nothing_done(settled: Bench) -> None:
    """A host that shuts down ends its bus before its pods: it is not called failed for that."""
    blind = replace(GOOD, blind="no bus")
    assert settled.look(blind) is Action.NOTHING
    assert settled.look(blind, after=19) is Action.NOTHING
    assert (settled.phase, settled.ready) == (Phase.CONVERGED, True)
    assert settled.last.wake == settled.now + 1
    assert settled.look(blind, after=1) is Action.NOTHING
    assert (settled.phase, settled.ready, settled.policy.state.reason) == (Phase.FAILED, False, "no bus")
    settled.look(GOOD)
    assert settled.look(blind, after=1) is Action.NOTHING
    assert settled.phase is Phase.CONVERGED


@pytest.mark.parametrize("code", [1, 4])
def test_a_pass_that_lost_the_bus_has_found_nothing_and_is_repeated(settled: Bench, code: int) -> None:
    """The refusal of a host without a bus is not that of a host that shuts down."""
    blind = replace(GOOD, blind="no bus", unservable=True)
    assert settled.look(after=RESYNC + 1) is Action.INSTALL
    settled.end(Outcome(code, reason="cannot connect"), blind)
    assert (settled.phase, settled.ready) == (Phase.CONVERGED, True)
    assert settled.look(after=21) is Action.NOTHING
    assert (settled.phase, settled.ready, settled.policy.state.reason) == (Phase.FAILED, False, "no bus")
    assert settled.look(GOOD) is Action.INSTALL
    assert settled.last.why == "resync"
    settled.end()
    assert (settled.phase, settled.policy.state.failures) == (Phase.CONVERGED, 0)


@rule("R13")
def test_a_host_without_a_bus_is_refused_at_once_and_not_ready_before(make: Make) -> None:
    bench = make()
    assert not bench.ready  # before anything was seen
    assert bench.look(replace(GOOD, blind="no bus", unservable=True)) is Action.NOTHING
    assert (bench.phase, bench.ready) == (Phase.REFUSED, False)
    assert bench.policy.state.reason.startswith("no bus;")


def test_a_first_pass_that_lost_the_bus_is_not_refused(make: Make) -> None:
    bench = make()
    assert bench.look(GOOD) is Action.INSTALL
    bench.end(Outcome(4, reason="cannot connect"), replace(GOOD, blind="no bus", unservable=True))
    assert (bench.phase, bench.policy.state.reason) == (Phase.STARTING, "cannot connect")
    assert bench.look(after=21) is Action.NOTHING
    assert (bench.phase, bench.policy.state.reason) == (Phase.FAILED, "no bus")
    assert bench.look(GOOD) is Action.INSTALL
    bench.end(Outcome(4, reason="cannot be served"))
    assert (bench.phase, bench.ready) == (Phase.REFUSED, False)
