"""What the policy makes of a pass that failed or was refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from installer.daemon.decision import Action
from installer.daemon.outcome import Outcome
from installer.daemon.pass_history import RESYNC
from installer.daemon.policy import BUSY, HEARTBEAT
from installer.daemon.poller import PollSnapshot
from installer.model.daemon import Phase
from installer.model.names import Mode
from tests.lib.policy_bench import (
    BARE,
    CHANGED,
    GOOD,
    HELD,
    KUBELET,
    OK,
    PROXY,
    Bench,
    Make,
)
from tests.lib.rules import rule


@rule("R8")
def test_an_environment_failure_is_tried_again_ever_more_seldom(settled: Bench) -> None:
    drift = replace(GOOD, files=("drift",))
    settled.look(drift)
    waits = []
    for _try in range(10):
        settled.end(Outcome(5, reason="the runtime is down"), drift)
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
    settled.end(Outcome(5, remembered=True, reason="it is broken"), new)
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
    settled.end(Outcome(5, remembered=True, reason="it is broken"), new)
    drift = replace(new, files=("drift",))
    assert settled.look(drift, after=HEARTBEAT) is Action.INSTALL
    settled.end(Outcome(5, remembered=True, reason="it is broken"), drift)
    for _heartbeat in range(1000):
        assert settled.look(after=HEARTBEAT) is Action.NOTHING
    assert settled.look(new) is Action.INSTALL


def test_in_a_quarantine_a_kubelet_that_has_left_the_relay_returns(settled: Bench) -> None:
    """The proxy was not ready when kubelet started, for once."""
    new = replace(GOOD, inputs=("new",))
    settled.look(new)
    settled.end(Outcome(5, remembered=True, reason="it is broken"), new)
    restarting = replace(new, on_relay=False, kubelet=replace(KUBELET, active_state="activating", main_pid=0))
    assert settled.look(restarting, after=HEARTBEAT) is Action.NOTHING
    assert settled.look(replace(new, on_relay=False), after=HEARTBEAT) is Action.INSTALL


@rule("R13")
@pytest.mark.parametrize("code", [2, 4])
@pytest.mark.parametrize(
    "drift",
    [
        {"files": ("drift",)},
        {"proxy": replace(PROXY, active_state="inactive", main_pid=0), "relay": False},
        {"proxy": replace(PROXY, unit_file_state="disabled")},
        {"on_relay": False},
    ],
    ids=["file", "stopped", "disabled", "left"],
)
def test_while_new_inputs_are_refused_the_good_generation_is_repaired(
    settled: Bench, code: int, drift: dict[str, Any]
) -> None:
    refused = Outcome(code, reason="fallback.cfg: no")
    new = replace(GOOD, inputs=("new",))
    settled.look(new)
    settled.end(refused, new)
    assert settled.look(after=HEARTBEAT - 1) is Action.NOTHING
    assert settled.look(replace(new, **drift)) is Action.INSTALL
    assert "of the good generation" in settled.last.why
    settled.end(replace(refused, changed=True), new)
    assert settled.policy.state.reason.startswith("fallback.cfg: no")
    assert not settled.ready
    assert settled.policy.state.repairs == 1
    assert settled.look() is Action.NOTHING


@pytest.mark.parametrize("code", [2, 4])
def test_a_restart_is_no_drift_of_a_generation_that_is_kept(settled: Bench, code: int) -> None:
    new = replace(GOOD, inputs=("new",))
    settled.look(new)
    settled.end(Outcome(code), new)
    restarted = replace(new, units=("restarted",), proxy=replace(PROXY, invocation_id="another", main_pid=9))
    assert settled.look(replace(restarted, relay=False), after=1) is Action.NOTHING
    assert settled.look(restarted, after=1) is Action.NOTHING


def test_inputs_that_cannot_be_are_looked_at_again_with_the_resync(settled: Bench) -> None:
    new = replace(GOOD, inputs=("new",))
    settled.look(new)
    settled.end(Outcome(2), new)
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
    settled.end(Outcome(4), refused)
    assert settled.look(after=1.0) is Action.NOTHING
    assert settled.look(replace(GOOD, inputs=("new",))) is Action.INSTALL


def test_a_refusal_for_what_is_not_seen_is_tried_again_ever_more_seldom(settled: Bench) -> None:
    new = replace(GOOD, inputs=("new",))
    settled.look(new)
    for wait in (5.0, 10.0, 20.0):
        settled.end(Outcome(4, reason="the runtime is down"), new)
        assert settled.look(after=wait - 0.1) is Action.NOTHING
        assert settled.look(after=0.2) is Action.INSTALL


@rule("R13")
@pytest.mark.parametrize("passable", [True, False])
def test_a_refused_node_is_said_to_be_refused_with_what_to_do(make: Make, passable: bool) -> None:
    bench = make(refused_is_ready=passable)
    assert bench.look(BARE) is Action.INSTALL
    assert (bench.phase, bench.ready) == (Phase.STARTING, False)
    bench.end(Outcome(4, reason="kubelet.service is masked (systemctl unmask)"), BARE)
    for _heartbeat in range(20):
        bench.look(after=HEARTBEAT)
        assert (bench.phase, bench.ready) == (Phase.REFUSED, passable)  # also while it is tried again
        if bench.policy.working:
            bench.end(Outcome(4, reason="kubelet.service is masked (systemctl unmask)"), BARE)
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
    bench.end(Outcome(4, reason="the record is missing"), BARE)
    bench.look()
    assert (bench.phase, bench.ready) == (Phase.REFUSED, False)


@rule("R13")
def test_removed_is_said_as_soon_as_the_removal_has_ended(make: Make) -> None:
    """A daemon that removes because it ends takes no further look."""
    bench = make(mode=Mode.REMOVE)
    bench.look(GOOD)
    bench.look()
    assert (bench.phase, bench.ready) == (Phase.CONVERGING, False)
    bench.end(CHANGED, BARE)
    assert (bench.phase, bench.ready) == (Phase.REMOVED, True)


@pytest.mark.parametrize(
    "seen", [replace(GOOD, inputs=("new",)), replace(HELD, inputs=("new",)), replace(HELD, relay=False)]
)
def test_a_host_that_stays_busy_is_not_tried_all_the_time(make: Make, seen: PollSnapshot) -> None:
    """For as long as somebody's run lasts, whatever calls for the pass."""
    bench = make()
    if seen.inputs == ("new",):
        bench.settle()
    assert bench.look(seen) is Action.INSTALL
    for _pass in range(10):
        bench.end(Outcome(BUSY), seen)
        assert bench.look(after=1.0) is Action.NOTHING
        assert bench.look(after=1.5) is Action.INSTALL


def test_a_busy_host_is_tried_again_soon_and_is_no_failure(settled: Bench) -> None:
    settled.look(replace(GOOD, files=("drift",)))
    settled.end(Outcome(75))
    assert settled.look() is Action.NOTHING
    assert settled.look(after=2.1) is Action.INSTALL
    assert settled.policy.state.failures == 0
