"""The daemon's state machine, with the time passed in: no loop, no host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from installer.daemon.child_run import ChildOutcome
from installer.daemon.configuration import Configuration
from installer.daemon.decision import Action, Decision
from installer.daemon.pass_history import RESYNC
from installer.daemon.policy import HEARTBEAT, HOUR, SILENT_HEARTBEAT, STOP_GRACE, Policy
from installer.daemon.poller import PollSnapshot
from installer.model.daemon import Phase
from installer.model.hold import BY_DAEMON, BY_ROLLBACK
from installer.model.resource import UnitState
from installer.model.state import Mode
from tests.rules import rule

OURS = ("CRI_RESMGR_INSTALLER_UNIT=digest",)
PROXY = UnitState("p", "loaded", "active", "running", main_pid=2, environment=OURS)
KUBELET = UnitState("k", "loaded", "active", "running", main_pid=3, environment=OURS)
GOOD = PollSnapshot(inputs=("i",), files=("f",), units=("u",), proxy=PROXY, kubelet=KUBELET, on_relay=True)
BARE = replace(GOOD, proxy=UnitState("p"), on_relay=False, relay=False, units=("bare",))
SILENT = replace(GOOD, relay=False)
DEAD = replace(SILENT, proxy=replace(PROXY, active_state="activating", main_pid=0), units=("dead",))
HELD = replace(GOOD, on_relay=False, hold=f"{BY_DAEMON}dead", units=("held",))
OK, CHANGED = ChildOutcome(0), ChildOutcome(0, changed=True)


class Bench:
    """A policy and its clock. `look` steps, and begins what is decided."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.now = 1000.0
        self.snapshot = GOOD
        self.last = Decision(Action.NOTHING)

    def look(self, snapshot: PollSnapshot | None = None, after: float = 0.0) -> Action:
        self.now += after
        self.snapshot = snapshot or self.snapshot
        self.last = self.policy.step(self.now, self.snapshot)
        if self.last.action not in (Action.NOTHING, Action.STOP):
            self.policy.begun(self.last.action, self.snapshot)
        return self.last.action

    def end(
        self, outcome: ChildOutcome = OK, snapshot: PollSnapshot | None = None, took: float = 1.0
    ) -> None:
        self.now += took
        self.snapshot = snapshot or self.snapshot
        self.policy.ended(self.now, outcome, self.snapshot)

    def settle(self) -> None:
        assert self.look(GOOD) is Action.INSTALL
        self.end()
        assert self.look() is Action.NOTHING

    @property
    def phase(self) -> Phase:
        return self.policy.state.phase

    @property
    def ready(self) -> bool:
        return self.policy.state.ready


Make = Callable[..., Bench]


@pytest.fixture
def make() -> Make:
    def build(stamps: tuple[float, ...] = (), not_before: float = 0.0, **configuration: Any) -> Bench:
        return Bench(Policy(Configuration(**configuration), lambda: 0.5, 1000.0, stamps, not_before))

    return build


@pytest.fixture
def settled(make: Make) -> Bench:
    bench = make()
    bench.settle()
    return bench


# -- converging -----------------------------------------------------------------


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
    settled.end(ChildOutcome(5, remembered=True, reason="it is broken"), new)
    assert settled.look(replace(new, paused=True, inputs=("newer",))) is Action.PLAN
    settled.end(ChildOutcome(3, reason="pending: 1 to change"))
    assert settled.look(replace(new, inputs=("newer",))) is Action.INSTALL


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


# -- somebody else is at work -----------------------------------------------------


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


def test_a_lost_bus_is_said_and_nothing_done(settled: Bench) -> None:
    assert settled.look(replace(GOOD, blind="no bus", units=("?",))) is Action.NOTHING
    assert (settled.phase, settled.ready) == (Phase.FAILED, False)


# -- failures -----------------------------------------------------------------------


@rule("R8")
def test_an_environment_failure_is_tried_again_ever_more_seldom(settled: Bench) -> None:
    drift = replace(GOOD, files=("drift",))
    settled.look(drift)
    waits = []
    for _try in range(10):
        settled.end(ChildOutcome(5, reason="the runtime is down"), drift)
        assert settled.look() is Action.NOTHING
        assert (settled.phase, settled.ready) == (Phase.FAILED, False)
        began = settled.now
        while settled.look(after=1.0) is Action.NOTHING:
            pass
        waits.append(settled.now - began)
    assert waits[:4] == [5, 10, 20, 40]
    assert waits[-1] == RESYNC


@rule("R8")
def test_a_remembered_failure_waits_for_an_input(settled: Bench) -> None:
    new = replace(GOOD, inputs=("new",))
    settled.look(new)
    settled.end(ChildOutcome(5, remembered=True, reason="it is broken"), new)
    for _heartbeat in range(1000):
        assert settled.look(after=HEARTBEAT) is Action.NOTHING
    assert settled.look(replace(new, inputs=("newer",))) is Action.INSTALL
    settled.end(OK)
    settled.look()
    assert settled.ready


@rule("R8")
def test_in_a_quarantine_drift_from_the_good_generation_is_mended_once(settled: Bench) -> None:
    new = replace(GOOD, inputs=("new",))
    settled.look(new)
    settled.end(ChildOutcome(5, remembered=True, reason="it is broken"), new)
    drift = replace(new, files=("drift",))
    assert settled.look(drift, after=HEARTBEAT) is Action.INSTALL
    settled.end(ChildOutcome(5, remembered=True, reason="it is broken"), drift)
    for _heartbeat in range(1000):
        assert settled.look(after=HEARTBEAT) is Action.NOTHING
    assert settled.look(new) is Action.INSTALL


def test_inputs_that_cannot_be_are_looked_at_again_with_the_resync(settled: Bench) -> None:
    new = replace(GOOD, inputs=("new",))
    settled.look(new)
    settled.end(ChildOutcome(2), new)
    assert settled.look(after=RESYNC / 2) is Action.NOTHING
    assert settled.look(after=RESYNC) is Action.INSTALL


@pytest.mark.parametrize(
    "other",
    [
        {"files": ("other",)},
        {"proxy": replace(PROXY, load_state="masked")},
        {"kubelet": replace(KUBELET, need_daemon_reload=True)},
        {"kubelet": replace(KUBELET, active_state="inactive")},
    ],
)
def test_a_refusal_is_over_as_soon_as_what_was_refused_is_gone(settled: Bench, other: dict[str, Any]) -> None:
    refused = replace(GOOD, inputs=("new",), **other)
    settled.look(refused)
    settled.end(ChildOutcome(4), refused)
    assert settled.look(after=1.0) is Action.NOTHING
    assert settled.look(replace(GOOD, inputs=("new",))) is Action.INSTALL


def test_a_refusal_for_what_is_not_seen_is_tried_again_ever_more_seldom(settled: Bench) -> None:
    new = replace(GOOD, inputs=("new",))
    settled.look(new)
    for wait in (5.0, 10.0, 20.0):
        settled.end(ChildOutcome(4, reason="the runtime is down"), new)
        assert settled.look(after=wait - 0.1) is Action.NOTHING
        assert settled.look(after=0.2) is Action.INSTALL


@rule("R13")
@pytest.mark.parametrize("passable", [True, False])
def test_a_refused_node_is_said_to_be_refused_with_what_to_do(make: Make, passable: bool) -> None:
    bench = make(refused_is_ready=passable)
    assert bench.look(BARE) is Action.INSTALL
    assert (bench.phase, bench.ready) == (Phase.STARTING, False)
    bench.end(ChildOutcome(4, reason="kubelet.service is masked (systemctl unmask)"), BARE)
    for _heartbeat in range(20):
        bench.look(after=HEARTBEAT)
        assert (bench.phase, bench.ready) == (Phase.REFUSED, passable)  # also while it is tried again
        if bench.policy.working:
            bench.end(ChildOutcome(4, reason="kubelet.service is masked (systemctl unmask)"), BARE)
    reason = bench.policy.state.reason
    assert reason.startswith("kubelet.service is masked (systemctl unmask); nothing was touched. ")
    assert "nodeSelector" in reason
    assert ("rollout.refused: ready" in reason) is not passable
    assert bench.look(replace(BARE, files=("unmasked",))) is Action.INSTALL
    bench.end(CHANGED, GOOD)
    bench.look()
    assert (bench.phase, bench.ready) == (Phase.CONVERGED, True)


def test_a_refused_removal_is_never_ready(make: Make) -> None:
    """Ready means removed there."""
    bench = make(mode=Mode.REMOVE, refused_is_ready=True)
    assert bench.look(GOOD) is Action.REMOVE
    bench.end(ChildOutcome(4, reason="the record is missing"), BARE)
    bench.look()
    assert (bench.phase, bench.ready) == (Phase.REFUSED, False)


@rule("R13")
def test_removed_is_said_as_soon_as_the_removal_has_ended(make: Make) -> None:
    """A daemon that removes because it ends takes no further look."""
    bench = make(mode=Mode.REMOVE)
    bench.look(GOOD)
    bench.end(CHANGED, BARE)
    assert (bench.phase, bench.ready) == (Phase.REMOVED, True)


def test_a_busy_host_is_tried_again_soon_and_is_no_failure(settled: Bench) -> None:
    settled.look(replace(GOOD, files=("drift",)))
    settled.end(ChildOutcome(75))
    assert settled.look() is Action.NOTHING
    assert settled.look(after=2.1) is Action.INSTALL
    assert settled.policy.state.failures == 0


# -- a dead or silent proxy -----------------------------------------------------------


@rule("R4")
def test_a_silent_proxy_is_restarted_once_and_then_kubelet_leaves_it(settled: Bench) -> None:
    settled.look(SILENT)
    assert settled.look(after=9.5) is Action.NOTHING
    assert settled.look(after=1.0) is Action.RESTART_PROXY
    settled.end(took=3.0)
    assert settled.look(after=5.0) is Action.NOTHING
    assert settled.look(after=2.0) is Action.RESCUE
    assert settled.now - 1000.0 < 25.0
    settled.end(ChildOutcome(0, restarts=1), HELD)
    settled.look()
    assert (settled.phase, settled.ready, settled.policy.state.rescues) == (Phase.HELD, False, 1)


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


def test_without_the_runtime_no_endpoint_is_better(settled: Bench) -> None:
    away = replace(SILENT, runtime=False)
    settled.look(away)
    assert settled.look(after=100) is Action.NOTHING
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
    settled.end(ChildOutcome(6), replace(DEAD, hold=f"{BY_DAEMON}dead"))
    assert settled.look() is Action.NOTHING
    assert settled.look(after=2.5) is Action.RESCUE


def test_somebody_elses_proxy_is_not_ours_to_restart(settled: Bench) -> None:
    settled.look(replace(SILENT, proxy=replace(PROXY, environment=())))
    assert settled.look(after=60) is Action.NOTHING


def test_a_retry_does_not_meddle_with_a_rescue(settled: Bench) -> None:
    settled.look(replace(GOOD, inputs=("new",)))
    settled.end(ChildOutcome(1))
    dead = replace(DEAD, inputs=("new",))
    settled.look(dead, after=1)
    assert settled.look(after=10) is Action.NOTHING
    assert settled.look(after=11) is Action.RESCUE


# -- the hold and the way forward ------------------------------------------------------


def held(bench: Bench, snapshot: PollSnapshot = HELD) -> None:
    bench.look(DEAD)
    assert bench.look(after=21) is Action.RESCUE
    bench.end(ChildOutcome(0, restarts=1), snapshot)


def test_the_way_forward_is_taken_once_after_a_good_minute(settled: Bench) -> None:
    held(settled)
    assert settled.look() is Action.NOTHING
    assert settled.look(after=59) is Action.NOTHING
    assert settled.look(after=2) is Action.INSTALL
    settled.end(ChildOutcome(0, changed=True, restarts=1), GOOD)
    settled.look()
    assert settled.ready
    settled.look(after=2)
    settled.end(OK)
    held(settled)
    assert settled.look(after=0) is Action.NOTHING
    assert settled.look(after=600) is Action.NOTHING


def test_a_relay_that_falls_silent_again_starts_the_minute_anew(settled: Bench) -> None:
    held(settled)
    settled.look()
    settled.look(replace(HELD, relay=False), after=30)
    assert settled.look(HELD, after=5) is Action.NOTHING
    assert settled.look(after=59) is Action.NOTHING
    assert settled.look(after=2) is Action.INSTALL


def test_drift_does_not_end_a_hold_but_a_new_input_may(settled: Bench) -> None:
    held(settled)
    assert settled.look(replace(HELD, files=("drift",))) is Action.NOTHING
    assert settled.look(replace(HELD, inputs=("new",))) is Action.INSTALL


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
    bench.end(ChildOutcome(6), snapshot)
    assert bench.look(after=30) is Action.NOTHING


BY_HAND = replace(HELD, hold="broken CPU map")


@pytest.mark.parametrize(
    "change", [{}, {"inputs": ("new",)}, {"files": ("drift",)}, {"units": ("other",)}, {"relay": False}]
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
    assert bench.look(GOOD) is Action.INSTALL


def test_under_a_persons_hold_not_even_a_plan_looks_for_restarts(make: Make) -> None:
    bench = make(stamps=(800.0, 850.0, 900.0))
    for _heartbeat in range(200):
        assert bench.look(BY_HAND, after=HEARTBEAT) is Action.NOTHING


@pytest.mark.parametrize("fresh", [True, False])
def test_kubelet_on_a_dead_relay_is_restarted_for_a_persons_hold_to_take_effect(
    make: Make, fresh: bool
) -> None:
    bench = make()
    if not fresh:
        bench.settle()
    hanging = replace(DEAD, hold="broken CPU map")
    assert bench.look(hanging) is Action.NOTHING
    assert bench.look(after=21) is Action.RESCUE
    bench.end(ChildOutcome(0, restarts=1), replace(hanging, on_relay=False))
    for _heartbeat in range(200):
        assert bench.look(after=HEARTBEAT) is Action.NOTHING


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


@rule("R4")
def test_dead_seconds_count_from_the_last_answer_as_far_as_it_is_known(settled: Bench) -> None:
    assert settled.look(DEAD, after=HEARTBEAT) is Action.NOTHING
    assert settled.last.due == settled.now - HEARTBEAT + 10.0
    assert settled.look(after=14.9) is Action.NOTHING
    assert settled.last.wake <= settled.now + 0.11
    assert settled.look(after=0.2) is Action.RESCUE


@rule("R4")
def test_short_dead_seconds_leave_systemd_its_chance(make: Make) -> None:
    bench = make(dead_seconds=4.0)
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
    settled.end(ChildOutcome(0, restarts=1), replace(slow, on_relay=False, hold=HELD.hold))
    assert settled.look(after=38.0) is Action.NOTHING
    assert settled.look(after=2.0) is Action.RESTART_PROXY


# -- restarts per hour ---------------------------------------------------------------------


def test_too_many_restarts_are_seen_before_they_happen(make: Make) -> None:
    bench = make(stamps=(800.0, 850.0))
    bench.settle()
    off = replace(GOOD, on_relay=False, units=("off",))
    assert bench.look(off) is Action.INSTALL
    bench.end(ChildOutcome(0, changed=True, restarts=1), GOOD)
    bench.look()
    assert bench.look(off) is Action.PLAN
    bench.end(ChildOutcome(3, would_restart=True))
    assert bench.look() is Action.HOLD
    bench.end(OK, replace(off, hold=f"{BY_DAEMON}3 times"))
    for _heartbeat in range(100):
        assert bench.look(after=HEARTBEAT) in (Action.NOTHING, Action.PLAN)
    assert not bench.ready
    assert bench.phase is Phase.HELD
    assert bench.look(after=HOUR) is Action.INSTALL


def test_what_needs_no_restart_is_still_repaired(make: Make) -> None:
    bench = make(stamps=(800.0, 850.0, 900.0))
    assert bench.look(GOOD) is Action.PLAN
    bench.end(ChildOutcome(0))
    assert bench.look() is Action.INSTALL
    bench.end(OK)
    assert bench.look() is Action.NOTHING
    assert bench.ready


def test_a_pass_that_finds_that_it_would_have_to_restart_is_no_failure(make: Make) -> None:
    """Somebody was quicker than the pass that a plan had let begin."""
    bench = make(stamps=(800.0, 850.0, 900.0))
    bench.look(GOOD)
    bench.end(ChildOutcome(0))
    assert bench.look() is Action.INSTALL
    off = replace(GOOD, on_relay=False, units=("off",), files=("wiped",))
    bench.end(ChildOutcome(3, would_restart=True), off)
    assert bench.look() is Action.PLAN
    bench.end(ChildOutcome(3, would_restart=True))
    assert bench.look() is Action.HOLD
    assert bench.policy.state.failures == 0


def test_restarts_are_forgotten_after_an_hour(make: Make) -> None:
    bench = make(stamps=(800.0, 850.0, 900.0))
    bench.now += HOUR
    assert bench.look(GOOD) is Action.INSTALL
    assert bench.policy.state.restarts == 0


def test_kubelet_on_the_relay_is_limited_without_a_hold(make: Make) -> None:
    bench = make(stamps=(800.0, 850.0, 900.0))
    bench.look(GOOD)
    bench.end(ChildOutcome(3, would_restart=True))
    assert bench.look() is Action.NOTHING
    assert (bench.phase, bench.ready) == (Phase.LIMITED, False)


# -- pause, handover, removal, rollout --------------------------------------------------------


def test_while_paused_it_only_plans(settled: Bench) -> None:
    paused = replace(GOOD, paused=True, files=("drift",))
    assert settled.look(paused) is Action.PLAN
    settled.end(ChildOutcome(3, reason="1 to change"))
    assert settled.look() is Action.NOTHING
    assert (settled.phase, settled.ready) == (Phase.PAUSED, False)
    assert settled.look(replace(paused, relay=False, inputs=("new",))) is Action.PLAN
    settled.end(ChildOutcome(0))
    assert settled.look(after=100) is Action.NOTHING
    assert settled.look(replace(GOOD, inputs=("new",))) is Action.INSTALL


def test_while_paused_a_generation_that_failed_here_is_no_failure_of_the_plan(settled: Bench) -> None:
    paused = replace(GOOD, paused=True, inputs=("new",))
    assert settled.look(paused) is Action.PLAN
    settled.end(ChildOutcome(5, remembered=True, reason="failed here before"), paused)
    assert settled.phase is Phase.PAUSED
    assert settled.look(after=60) is Action.NOTHING


@pytest.mark.parametrize("seen", [True, False])
def test_a_pause_that_ends_while_it_plans_is_over(settled: Bench, seen: bool) -> None:
    """Whether the end was seen before the plan's or with it: what it found is repaired."""
    drifted = replace(GOOD, files=("drift",))
    assert settled.look(replace(drifted, paused=True)) is Action.PLAN
    if seen:
        assert settled.look(drifted) is Action.NOTHING
    settled.end(ChildOutcome(3), drifted)
    assert settled.look() is Action.INSTALL


def test_a_pause_of_a_healthy_host_stays_ready(settled: Bench) -> None:
    settled.look(replace(GOOD, paused=True))
    assert (settled.phase, settled.ready) == (Phase.PAUSED, True)


def test_one_that_was_replaced_stays_so_and_stops_its_child(settled: Bench) -> None:
    settled.look(replace(GOOD, files=("drift",)))
    assert settled.look(replace(GOOD, superseded=True)) is Action.STOP
    settled.end(ChildOutcome(143))
    assert settled.look(replace(DEAD, inputs=("new",)), after=100) is Action.NOTHING
    assert (settled.phase, settled.ready) == (Phase.YIELDED, False)


def test_a_removal_is_done_once_and_repairs_nothing(make: Make) -> None:
    bench = make(mode=Mode.REMOVE)
    assert bench.look(GOOD) is Action.REMOVE
    bench.end(ChildOutcome(1))
    assert bench.look() is Action.NOTHING
    assert not bench.ready
    assert bench.look(after=6) is Action.REMOVE
    bench.end(CHANGED, BARE)
    assert bench.look() is Action.NOTHING
    assert (bench.phase, bench.ready) == (Phase.REMOVED, True)
    assert bench.look(replace(GOOD, inputs=("new",)), after=10_000) is Action.NOTHING
    assert bench.last.wake >= bench.now + RESYNC


def test_the_first_pass_waits_its_turn(make: Make) -> None:
    bench = make(not_before=1300.0)
    assert bench.look(BARE) is Action.NOTHING
    assert (bench.phase, bench.ready) == (Phase.WAITING, False)
    assert bench.last.due == 1300.0
    assert bench.look(after=301) is Action.INSTALL


# -- children that do not start, do not end, or are in the way -------------------------------------


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
        bench.end(ChildOutcome(1, reason="no process could be started"), snapshot, took=0.0)
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


@pytest.mark.parametrize("paused", [True, False])
def test_a_plan_that_tells_nothing_is_tried_again_later(make: Make, paused: bool) -> None:
    bench = make(stamps=(800.0, 850.0, 900.0))
    other = replace(GOOD, paused=paused)
    assert bench.look(other) is Action.PLAN
    for wait in (5.0, 10.0):
        bench.end(ChildOutcome(137), other, took=0.0)
        assert bench.look(after=wait - 0.1) is Action.NOTHING
        assert not bench.ready
        assert bench.look(after=0.2) is Action.PLAN


@rule("R15")
def test_a_hold_that_cannot_be_set_does_not_spin(make: Make) -> None:
    bench = make(stamps=(800.0, 850.0, 900.0))
    off = replace(GOOD, on_relay=False, units=("off",))
    bench.look(off)
    bench.end(ChildOutcome(3, would_restart=True))
    assert bench.look() is Action.HOLD
    bench.end(ChildOutcome(1), took=0.0)
    assert bench.look() is Action.NOTHING
    assert bench.last.wake <= bench.now + 3.0
    assert bench.look(after=2.5) is Action.HOLD


def test_a_week_of_failures_is_no_longer_than_the_longest_wait(settled: Bench) -> None:
    drift = replace(GOOD, files=("drift",))
    settled.look(drift)
    for _failure in range(2000):
        settled.end(ChildOutcome(1), drift)
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
    bench.end(ChildOutcome(137), dead, took=10.0)
    assert bench.look() is Action.RESCUE


def test_a_repair_does_not_delay_the_restart_of_a_silent_proxy(settled: Bench) -> None:
    settled.look(replace(GOOD, files=("drift",)))
    silent = replace(SILENT, files=("drift",))
    assert settled.look(silent) is Action.NOTHING
    assert settled.look(after=9.9) is Action.NOTHING
    assert settled.look(after=0.2) is Action.STOP
    settled.end(ChildOutcome(143), silent)
    assert settled.look() is Action.RESTART_PROXY


def test_a_repair_that_was_stopped_for_a_rescue_is_repeated_under_its_hold(settled: Bench) -> None:
    """The relay may need just this repair to come back. Kubelet runs on its base meanwhile."""
    settled.look(replace(GOOD, files=("drift",)))
    dead = replace(DEAD, files=("drift",))
    settled.look(dead)
    assert settled.look(after=21) is Action.STOP
    settled.end(ChildOutcome(143), dead)
    assert settled.look() is Action.RESCUE
    rescued = replace(dead, on_relay=False, hold=HELD.hold)
    settled.end(ChildOutcome(0, restarts=1), rescued)
    assert settled.look() is Action.NOTHING
    assert settled.look(after=5) is Action.INSTALL
    settled.end(ChildOutcome(5), rescued)
    for _heartbeat in range(100):
        assert settled.look(after=HEARTBEAT) is Action.NOTHING


def test_a_repair_that_moves_things_has_the_time_for_its_rollback(settled: Bench) -> None:
    settled.look(replace(GOOD, inputs=("new",)))
    settled.policy.moved()
    dead = replace(DEAD, inputs=("new",))
    assert settled.look(dead, after=40) is Action.NOTHING
    assert settled.look(after=29.5) is Action.NOTHING
    assert settled.look(after=1.0) is Action.STOP
    settled.end(ChildOutcome(137), dead)
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
        {"proxy": replace(PROXY, environment=())},
    ],
)
def test_a_repair_is_not_stopped_where_no_rescue_would_follow(settled: Bench, change: dict[str, Any]) -> None:
    settled.look(replace(GOOD, files=("drift",)))
    settled.look(replace(SILENT, **change), after=1)
    assert settled.look(after=500) is Action.NOTHING


def test_while_settings_are_read_only_a_rescue_begins(settled: Bench) -> None:
    settled.policy.reloading = True
    assert settled.look(replace(GOOD, inputs=("new",))) is Action.NOTHING
    settled.look(DEAD)
    assert settled.look(after=21) is Action.RESCUE
    settled.end(ChildOutcome(0, restarts=1), GOOD)
    settled.policy.reloading = False
    assert settled.look(replace(GOOD, inputs=("new",))) is Action.INSTALL
