"""What the policy does while planned work waits for a permit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from installer.daemon.decision import Action, Decision
from installer.daemon.outcome import Outcome
from installer.daemon.policy import BUSY, HEARTBEAT
from installer.daemon.poller import PollSnapshot
from installer.model.daemon import Installed, Phase
from installer.model.fleet import Permission, PlannedWork
from installer.model.names import Mode
from tests.lib.policy_bench import BARE, CHANGED, DEAD, GOOD, HELD, KUBELET, OK, PROXY, Bench, Make, held
from tests.lib.rules import rule

WORK = PlannedWork("one", begins=True)
WAITS = Permission(True, None, "the only permit is in use (worker-1)")
COMES = Permission(True, WORK)
KEPT = Outcome(3, planned=WORK)


def of(snapshot: PollSnapshot, permission: Permission = WAITS) -> PollSnapshot:
    return replace(snapshot, permission=permission)


def wait(bench: Bench, snapshot: PollSnapshot = BARE) -> None:
    """A first pass has found that planned work is to be asked for."""
    assert bench.look(of(snapshot)) in (Action.INSTALL, Action.REMOVE)
    assert bench.last.ask_first
    assert bench.policy.permitted is None
    bench.end(KEPT, of(snapshot))


def test_a_pass_that_may_not_restart_kubelet_waits_and_says_for_what(make: Make) -> None:
    bench = make()
    wait(bench)
    assert bench.policy.blocked_work == WORK
    for _look in range(20):
        assert bench.look(after=30.0) is Action.NOTHING
        assert (bench.phase, bench.ready) == (Phase.WAITING, False)
    assert bench.policy.state.reason == WAITS.why
    assert bench.look(of(BARE, Permission(True))) is Action.NOTHING
    assert (bench.phase, bench.policy.state.reason) == (Phase.WAITING, "asking for a permit")
    assert bench.look(of(BARE, COMES)) is Action.INSTALL
    assert not bench.last.ask_first
    assert bench.policy.permitted == WORK
    bench.end(CHANGED, of(GOOD))
    assert bench.policy.blocked_work is None
    bench.look()
    assert bench.phase is Phase.CONVERGED


@rule("R13")
def test_what_is_installed_is_said_while_something_else_is_asked_for(make: Make) -> None:
    """By a daemon that has just come, with the new generation's pod: it has installed nothing itself."""
    there = Installed("good", policy="balloons", policy_source="fallback.cfg")
    for outcome, phase in (
        (Outcome(3, planned=WORK, fleet_generation="one", installed=there), Phase.WAITING),
        (Outcome(4, reason="masked", fleet_generation="one", installed=there), Phase.REFUSED),
        (Outcome(2, reason="fallback.cfg: no policy", installed=there), Phase.FAILED),
    ):
        bench = make()
        assert bench.look(of(GOOD)) is Action.INSTALL
        bench.end(outcome, of(GOOD))
        bench.look(after=1.0)
        state = bench.policy.state
        assert (state.phase, state.ready) == (phase, False)
        assert (state.serves, state.installed) == (True, there)
        assert state.wanted == outcome.fleet_generation
        bench.look(of(replace(GOOD, on_relay=False)), after=1.0)
        assert not bench.policy.state.serves


@rule("R13")
def test_a_removal_that_waits_asks_for_no_generation_and_the_node_is_served(make: Make) -> None:
    bench = make(mode=Mode.REMOVE)
    work = PlannedWork("removal", removes=True)
    bench.look(of(GOOD))
    bench.end(Outcome(3, planned=work, fleet_generation="one", installed=Installed("good")), of(GOOD))
    state = bench.policy.state
    assert (state.phase, state.serves, state.installed.generation, state.wanted) == (
        Phase.WAITING,
        True,
        "good",
        "",
    )


@rule("R13")
def test_a_first_installation_that_waits_serves_nothing(make: Make) -> None:
    bench = make()
    assert bench.look(of(BARE)) is Action.INSTALL
    bench.end(replace(KEPT, installed=Installed(), fleet_generation="one"), of(BARE))
    state = bench.policy.state
    assert (state.serves, state.installed.generation, state.wanted) == (False, "", "one")


def test_the_removal_at_the_end_of_a_pod_is_what_was_permitted(settled: Bench) -> None:
    settled.policy.begun(Decision(Action.REMOVE, wants=WORK), of(GOOD, COMES))
    assert settled.policy.permitted == WORK


@rule("R13")
def test_a_node_that_cannot_be_looked_at_is_not_called_served(make: Make) -> None:
    bench = make()
    assert bench.look(GOOD) is Action.INSTALL
    bench.end(Outcome(0, installed=Installed("good")))
    assert bench.policy.state.serves
    bench.look(replace(GOOD, blind="no bus"))
    bench.look(after=21)
    assert not bench.policy.state.serves


def test_the_permit_of_other_work_is_not_used(make: Make) -> None:
    bench = make()
    wait(bench)
    other = Permission(True, replace(WORK, generation="another"))
    assert bench.look(of(BARE, other), after=1.0) is Action.NOTHING


def test_a_host_that_changes_meanwhile_is_looked_at_again(make: Make) -> None:
    bench = make()
    wait(bench)
    assert bench.look(of(replace(BARE, files=("drift",))), after=5.0) is Action.INSTALL
    assert bench.last.ask_first


@rule("R4")
@pytest.mark.parametrize("mode", list(Mode))
def test_a_rescue_does_not_wait(make: Make, mode: Mode) -> None:
    bench = make(mode=mode)
    wait(bench, GOOD)
    bench.look()
    assert bench.last.wake <= bench.now + HEARTBEAT
    bench.look(of(DEAD), after=1.0)
    bench.end(KEPT, of(DEAD))
    assert bench.look(of(DEAD), after=21.0) is Action.RESCUE
    assert bench.phase is not Phase.WAITING


def test_the_way_back_after_a_rescue_does_not_wait(make: Make) -> None:
    bench = make()
    bench.settle()
    held(bench)
    good = replace(of(HELD), relay=True)
    assert bench.look(good, after=1.0) is Action.NOTHING
    assert bench.look(good, after=61.0) is Action.INSTALL
    assert not bench.last.ask_first


def test_a_repair_that_needs_no_permit_goes_on(make: Make) -> None:
    bench = make()
    assert bench.look(of(GOOD)) is Action.INSTALL
    bench.end(OK)
    assert bench.look(of(replace(GOOD, files=("drift",))), after=5.0) is Action.INSTALL
    bench.end(CHANGED, of(GOOD))
    assert bench.policy.blocked_work is None


def test_a_removal_waits_for_a_permit(make: Make) -> None:
    bench = make(mode=Mode.REMOVE)
    wait(bench, GOOD)
    assert bench.look(after=60.0) is Action.NOTHING
    assert bench.phase is Phase.WAITING
    assert bench.look(of(GOOD, COMES)) is Action.REMOVE
    bench.end(CHANGED, of(BARE))
    assert str(bench.phase) == "removed"


@pytest.mark.parametrize("mode", [Mode.INSTALL, Mode.REMOVE])
def test_a_proxy_that_keeps_crashing_begins_no_pass_while_one_waits(make: Make, mode: Mode) -> None:
    bench = make(mode=mode)
    crashed = replace(GOOD, relay=False, on_relay=False, units=("base",))
    wait(bench, crashed)
    for number in range(20):
        for state in ("activating", "deactivating"):
            proxy = replace(PROXY, active_state=state, main_pid=number, invocation_id=f"{number}")
            seen = replace(crashed, proxy=proxy, units=(state, number))
            assert bench.look(of(seen), after=1.0) is Action.NOTHING
    assert bench.look(of(crashed, COMES)) is not Action.NOTHING


def test_a_kubelet_that_keeps_crashing_slows_a_removal_down_that_waits(make: Make) -> None:
    """A restart of kubelet may have made the removal possible, so it is tried; but not without end."""
    bench = make(mode=Mode.REMOVE)
    wait(bench, GOOD)
    passes = 0
    for number in range(600):
        seen = of(replace(GOOD, kubelet=replace(KUBELET, invocation_id=f"{number}")))
        if bench.look(seen, after=1.0) is Action.REMOVE:
            passes += 1
            bench.end(KEPT, seen, took=0.0)
    assert 0 < passes < 300


STOPPED = replace(GOOD, kubelet=replace(KUBELET, active_state="inactive"), files=("drift",))


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(replace(BARE, hold="ask Kim"), id="a person's hold"),
        pytest.param(replace(BARE, blind="D-Bus is gone"), id="a host that cannot be looked at"),
        pytest.param(STOPPED, id="a kubelet that is stopped"),
        pytest.param(replace(BARE, paused=True), id="a pause"),
    ],
)
def test_a_permit_that_could_not_be_used_is_not_asked_for(make: Make, seen: PollSnapshot) -> None:
    bench = make()
    bench.settle()
    drifted = replace(GOOD, files=("drift",), on_relay=False)
    assert bench.look(of(drifted), after=5.0) is Action.INSTALL
    bench.end(KEPT, of(drifted))
    bench.look()
    assert bench.last.wants == WORK
    bench.look(of(seen, COMES), after=5.0)
    assert bench.last.wants is None
    if not seen.paused:
        bench.look(of(drifted), after=5.0)
        assert bench.last.wants == WORK


def test_a_node_whose_restarts_are_used_up_says_so_and_asks_for_no_permit(make: Make) -> None:
    """A rescue took the last one of the hour while the node waited."""
    bench = make(restarts=(800.0, 850.0))
    wait(bench, GOOD)
    bench.look(of(DEAD), after=1.0)
    bench.end(KEPT, of(DEAD))
    assert bench.look(of(DEAD), after=21.0) is Action.RESCUE
    held = of(replace(HELD, hold="", files=("drift",)))
    bench.end(Outcome(0, restarts=1), held)
    assert bench.look() is Action.INSTALL
    bench.end(Outcome(3, would_restart=True))
    while bench.look() is Action.HOLD:
        bench.end(OK)
    assert bench.last.wants is None
    assert bench.phase is Phase.LIMITED


def test_until_a_pass_has_had_the_hosts_lock_an_earlier_daemon_may_be_at_work(make: Make) -> None:
    bench = make()
    bench.look(of(GOOD))
    bench.end(Outcome(BUSY))
    assert not bench.policy.had_lock
    bench.look(after=3.0)
    bench.end(OK)
    assert bench.policy.had_lock


def test_a_look_needs_no_lock_and_so_shows_nothing_of_who_has_it(make: Make) -> None:
    bench = make()
    assert bench.look(replace(GOOD, paused=True)) is Action.PLAN
    bench.end(OK)
    assert not bench.policy.had_lock


def test_while_another_run_has_the_hosts_lock_the_permit_is_kept(make: Make) -> None:
    bench = make()
    wait(bench)
    assert bench.look(of(BARE, COMES), after=5.0) is Action.INSTALL
    bench.end(Outcome(BUSY))
    assert bench.look() is Action.NOTHING
    assert bench.last.wants == WORK
    assert bench.look(after=3.0) is Action.INSTALL
