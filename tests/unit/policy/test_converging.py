"""The policy converges what differs, and leaves what others are at work on. Time is passed in: no loop, no
host."""

from __future__ import annotations

from dataclasses import replace

import pytest

from installer.daemon.decision import Action
from installer.daemon.pass_history import RESYNC
from installer.daemon.policy import HEARTBEAT, SILENT_HEARTBEAT
from installer.model.daemon import Installed, Phase
from installer.model.result import RunResult
from installer.node.picture import Picture
from tests.lib.policy_bench import (
    BARE,
    CHANGED,
    CLEAN,
    DEAD,
    DRIFT,
    DRIFTED,
    GOOD,
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


@rule("R2")
def test_where_nothing_differs_no_run_ever_begins(settled: Bench) -> None:
    assert (settled.phase, settled.ready) == (Phase.CONVERGED, True)
    assert settled.last.wake == settled.now + HEARTBEAT
    for _heartbeat in range(500):
        assert settled.look(after=HEARTBEAT) is Action.NOTHING


def test_before_there_is_a_picture_it_asks_for_one_and_does_nothing(make: Make) -> None:
    bench = make()
    assert bench.look(replace(GOOD, picture=None)) is Action.NOTHING
    assert bench.looked_closer
    assert (bench.phase, bench.ready) == (Phase.STARTING, False)
    bench.look(GOOD)
    assert not bench.looked_closer


def test_a_new_picture_is_taken_when_nothing_happens(settled: Bench) -> None:
    settled.look(after=RESYNC - 10)
    assert not settled.looked_closer
    settled.look(after=11)
    assert settled.looked_closer


@pytest.mark.parametrize(
    "seen",
    [
        replace(GOOD, agent="it has sent a configuration"),
        replace(GOOD, relay=False),
        replace(GOOD, paused=True),
    ],
)
def test_what_the_kernel_and_systemd_do_not_tell_calls_for_a_new_picture(
    settled: Bench, seen: object
) -> None:
    settled.look(seen, after=HEARTBEAT)  # type: ignore[arg-type]
    assert settled.looked_closer
    assert settled.phase in (Phase.CONVERGED, Phase.PAUSED)


@pytest.mark.parametrize("picture", [NEW, DRIFT, UNITS])
def test_whatever_differs_is_converged_at_once_and_the_reason_says_what(
    settled: Bench, picture: Picture
) -> None:
    assert settled.look(replace(GOOD, picture=picture)) is Action.INSTALL
    assert settled.last.why == picture.differs != ""
    assert not settled.last.ask_first


def test_a_unit_that_changes_while_its_picture_is_taken_calls_for_no_run(settled: Bench) -> None:
    """It was seen between two states: systemd has started the proxy again."""
    assert settled.look(replace(GOOD, picture=replace(UNITS, overtaken=True))) is Action.NOTHING
    again = replace(GOOD, proxy=replace(PROXY, invocation_id="again"), picture=replace(UNITS, reason=" "))
    seen = settled.policy.step(settled.now, again)
    assert (seen.action, seen.looks_closer) == (Action.NOTHING, True)
    assert settled.look(replace(again, picture=replace(UNITS, reason="  "))) is Action.INSTALL
    settled.end(CHANGED)
    assert settled.look(replace(again, picture=replace(DRIFT, overtaken=True))) is Action.INSTALL


def test_somebody_who_never_rests_does_not_keep_a_unit_from_its_repair(settled: Bench) -> None:
    """The assessor gives out every third picture though it was overtaken."""
    began = settled.now
    while settled.look(replace(GOOD, picture=replace(UNITS, overtaken=True))) is Action.NOTHING:
        settled.now += 0.5
        assert settled.now < began + 15
    assert settled.now >= began + 10


def test_who_is_not_served_is_the_reason_until_all_are(settled: Bench) -> None:
    settled.look(replace(GOOD, picture=replace(CLEAN, remarks="no CPUs for web")))
    state = settled.policy.state
    assert (state.phase, state.ready, state.reason) == (Phase.CONVERGED, True, "no CPUs for web")
    settled.look(GOOD)
    assert settled.policy.state.reason == ""


@rule("R13")
def test_new_inputs_are_not_ready_until_they_are_converged(settled: Bench) -> None:
    settled.look(replace(GOOD, picture=NEW))
    assert (settled.phase, settled.ready) == (Phase.CONVERGING, False)
    settled.end(CHANGED)
    settled.look()
    assert settled.ready


@rule("R13")
@pytest.mark.parametrize("picture", [DRIFT, UNITS])
def test_a_host_that_differs_is_not_converged_until_it_is_repaired(settled: Bench, picture: Picture) -> None:
    settled.look(replace(GOOD, picture=picture))
    assert (settled.phase, settled.ready) == (Phase.REPAIRING, False)
    assert settled.policy.state.reason == picture.differs
    assert settled.look(after=1) is Action.NOTHING
    assert (settled.phase, settled.ready) == (Phase.REPAIRING, False)
    settled.end(CHANGED, replace(GOOD, picture=replace(picture, spent=True)))  # no other picture yet
    assert settled.look() is Action.NOTHING
    assert settled.looked_closer
    assert (settled.phase, settled.ready) == (Phase.REPAIRING, False)
    settled.look(GOOD)
    assert (settled.phase, settled.ready) == (Phase.CONVERGED, True)


@rule("R13")
def test_a_repair_that_has_to_wait_leaves_the_host_unconverged(settled: Bench) -> None:
    """For systemd, which starts the proxy again: too short to be unwell."""
    blink = replace(SILENT, proxy=replace(PROXY, active_state="activating", main_pid=0))
    assert settled.look(blink) is Action.NOTHING
    assert (settled.phase, settled.ready) == (Phase.REPAIRING, False)


@rule("R13")
def test_a_pause_of_a_node_that_differs_says_what_is_pending(settled: Bench) -> None:
    settled.look(replace(GOOD, paused=True))
    assert (settled.phase, settled.ready) == (Phase.PAUSED, True)
    pending = replace(DRIFT, pending="1 to change")
    assert settled.look(replace(GOOD, paused=True, picture=pending)) is Action.NOTHING
    assert (settled.phase, settled.ready) == (Phase.PAUSED, False)
    assert settled.policy.state.reason == "pending: 1 to change"
    assert settled.look(replace(GOOD, picture=pending)) is Action.INSTALL


def test_a_failure_that_waits_is_tried_again_after_a_pause(settled: Bench) -> None:
    """A person was at work meanwhile."""
    settled.look(DRIFTED)
    settled.end(RunResult(5, reason="the runtime is down"))
    assert settled.look() is Action.NOTHING
    settled.look(replace(DRIFTED, paused=True))
    assert settled.look(DRIFTED) is Action.INSTALL


@rule("R13")
def test_what_the_agent_sends_shows_in_the_next_picture(settled: Bench) -> None:
    sent = Installed("i", policy="balloons", policy_source="cri-resmgr-agent")
    settled.look(replace(GOOD, agent="sent", picture=replace(CLEAN, installed=sent)))
    assert (settled.phase, settled.policy.state.installed.policy) == (Phase.CONVERGED, "balloons")


def test_after_a_change_of_ours_the_host_is_assessed_anew(settled: Bench) -> None:
    """Others may have changed something while a run changed the host."""
    settled.look(DRIFTED)
    settled.end(CHANGED, replace(GOOD, picture=replace(DRIFT, spent=True)))
    settled.look()
    assert settled.looked_closer
    settled.look(GOOD, after=0.2)
    assert settled.ready
    settled.look(after=HEARTBEAT)
    assert not settled.looked_closer


def test_what_changes_again_is_mended_again_at_once(settled: Bench) -> None:
    settled.look(DRIFTED)
    settled.end(CHANGED, DRIFTED)
    assert settled.look() is Action.INSTALL


def test_a_run_that_finds_nothing_where_the_picture_shows_something_is_not_repeated_at_once(
    settled: Bench,
) -> None:
    settled.look(DRIFTED)
    for wait in (5, 10, 20):
        settled.end(OK, DRIFTED)
        assert settled.look(after=wait - 1) is Action.NOTHING
        assert settled.look(after=2) is Action.INSTALL


@rule("R13")
def test_a_run_that_finds_nothing_says_what_a_person_should_know(settled: Bench) -> None:
    """The picture shows a start of the proxy that, as only the runtime knows, would harm containers."""
    wants = replace(GOOD, picture=replace(UNITS, differs="its agent asks for the policy balloons"))
    assert settled.look(wants) is Action.INSTALL
    settled.end(RunResult(0, remarks="none stays in force: correct the agent's ConfigMap"), wants)
    assert settled.look() is Action.NOTHING
    state = settled.policy.state
    assert (state.phase, state.reason) == (
        Phase.CONVERGED,
        "none stays in force: correct the agent's ConfigMap",
    )
    settled.look(GOOD)
    assert settled.policy.state.reason == ""


@rule("R13")
@pytest.mark.parametrize("differs", ["", "it does not know 2 pods"])
def test_what_only_a_run_can_look_into_is_settled_by_a_run_that_finds_nothing(
    settled: Bench, differs: str
) -> None:
    """The picture cannot ask the runtime, and goes on showing it."""
    unsure = replace(GOOD, picture=replace(CLEAN, due=True, differs=differs))
    assert settled.look(unsure) is Action.INSTALL
    settled.end(OK, unsure)
    runs = 0
    for _second in range(3600):
        if settled.look(replace(unsure, picture=replace(CLEAN, due=True, differs=differs)), after=1.0):
            settled.end(OK, unsure, took=0.1)
            runs += 1
        else:
            assert (settled.phase, settled.ready) == (Phase.CONVERGED, True)
    assert runs < 15
    assert settled.look(DRIFTED) is Action.INSTALL
    settled.end(OK, DRIFTED)
    settled.look()
    assert settled.phase is Phase.REPAIRING  # a file that differs is no matter of opinion


def test_runs_that_chase_each_other_are_slowed_down(settled: Bench) -> None:
    runs = 0
    for number in range(600):  # a minute of somebody who writes ten times a second
        seen = replace(GOOD, picture=replace(DRIFT, differs=f"{number}"))
        if settled.look(seen, after=0.1) is Action.INSTALL:
            runs += 1
            settled.end(CHANGED, took=0.0)
    assert runs <= 30


def test_nothing_is_begun_while_a_child_is_at_work(settled: Bench) -> None:
    settled.look(DRIFTED)
    assert settled.look(replace(GOOD, picture=NEW, relay=False), after=60) is Action.NOTHING
    assert not settled.looked_closer


def test_what_another_run_is_changing_is_left_to_it(settled: Bench) -> None:
    theirs = replace(GOOD, picture=replace(DRIFT, at_work="pid 7: install"))
    assert settled.look(theirs) is Action.NOTHING
    waits_for = "; another run is at work on this host (pid 7: install)"
    assert settled.policy.state.reason == f"{DRIFT.differs}{waits_for}"
    settled.look(after=2)
    assert settled.looked_closer
    assert settled.look(DRIFTED) is Action.INSTALL


def test_a_restart_of_kubelet_under_way_is_waited_for(settled: Bench) -> None:
    starting = replace(GOOD, kubelet=replace(KUBELET, active_state="activating"), picture=UNITS)
    assert settled.look(starting) is Action.NOTHING
    assert settled.look(replace(GOOD, picture=UNITS), after=0.3) is Action.INSTALL


def test_a_kubelet_that_keeps_starting_is_looked_into(settled: Bench) -> None:
    starting = replace(GOOD, kubelet=replace(KUBELET, active_state="activating"), picture=UNITS)
    settled.look(starting)
    assert settled.last.due <= settled.now + 10
    assert settled.look(after=11) is Action.INSTALL


def test_a_kubelet_that_somebody_has_stopped_stays_stopped(settled: Bench) -> None:
    stopped = replace(GOOD, kubelet=replace(KUBELET, active_state="inactive", main_pid=0), picture=UNITS)
    assert settled.look(stopped) is Action.NOTHING
    assert (settled.phase, settled.ready) == (Phase.UNWELL, False)


def test_a_proxy_that_systemd_restarts_is_left_to_it(settled: Bench) -> None:
    assert settled.look(DEAD) is Action.NOTHING
    assert settled.last.wake == settled.now + SILENT_HEARTBEAT
    assert settled.look(replace(GOOD, picture=UNITS), after=1.2) is Action.INSTALL


def test_a_proxy_that_somebody_has_stopped_is_started(settled: Bench) -> None:
    stopped = replace(SILENT, proxy=replace(PROXY, active_state="inactive", main_pid=0))
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
    assert not settled.looked_closer
    settled.look(GOOD)
    assert settled.looked_closer
    assert settled.look(blind, after=1) is Action.NOTHING
    assert settled.phase is Phase.CONVERGED


@pytest.mark.parametrize("code", [1, 4])
def test_a_run_that_lost_the_bus_has_found_nothing_and_is_repeated(settled: Bench, code: int) -> None:
    """The refusal of a host without a bus is not that of a host that shuts down."""
    blind = replace(DRIFTED, blind="no bus", unservable=True)
    assert settled.look(DRIFTED) is Action.INSTALL
    settled.end(RunResult(code, reason="cannot connect"), blind)
    assert settled.phase is Phase.REPAIRING
    assert settled.look(after=21) is Action.NOTHING
    assert (settled.phase, settled.ready, settled.policy.state.reason) == (Phase.FAILED, False, "no bus")
    assert settled.look(DRIFTED) is Action.INSTALL
    settled.end()
    assert (settled.phase, settled.policy.state.failures) == (Phase.CONVERGED, 0)


@rule("R13")
def test_a_host_without_a_bus_is_refused_at_once_and_not_ready_before(make: Make) -> None:
    bench = make()
    assert not bench.ready  # before anything was seen
    nothing = replace(GOOD, picture=None)
    assert bench.look(replace(nothing, blind="no bus", unservable=True)) is Action.NOTHING
    assert (bench.phase, bench.ready) == (Phase.REFUSED, False)
    assert bench.policy.state.reason.startswith("no bus;")


def test_a_first_run_that_lost_the_bus_is_not_refused(make: Make) -> None:
    bench = make()
    assert bench.look(BARE) is Action.INSTALL
    bench.end(RunResult(4, reason="cannot connect"), replace(BARE, blind="no bus", unservable=True))
    assert bench.phase is Phase.CONVERGING
    assert bench.look(after=21) is Action.NOTHING
    assert (bench.phase, bench.policy.state.reason) == (Phase.FAILED, "no bus")
    assert bench.look(BARE) is Action.INSTALL
    bench.end(RunResult(4, reason="cannot be served"))
    assert (bench.phase, bench.ready) == (Phase.REFUSED, False)
