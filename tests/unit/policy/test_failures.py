"""What the policy makes of a run that failed, and of a picture that shows a refusal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from installer.daemon.decision import Action
from installer.daemon.pass_history import RESYNC
from installer.daemon.policy import BUSY, HEARTBEAT
from installer.daemon.poller import PollSnapshot
from installer.model.daemon import NOTHING_INSTALLED, Phase
from installer.model.names import Mode
from installer.model.result import RunResult
from installer.node.picture import Picture
from tests.lib.policy_bench import (
    BAD,
    BARE,
    CHANGED,
    CLEAN,
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

REFUSED = replace(BAD, code=4, remembered=False, reason="kubelet.service is masked (systemctl unmask)")
INVALID = replace(
    BAD, code=2, remembered=False, reason="fallback.cfg: no", wanted="", inputs="fallback.cfg: no"
)


@rule("R8")
def test_an_environment_failure_is_tried_again_ever_more_seldom(settled: Bench) -> None:
    settled.look(DRIFTED)
    waits = []
    for _try in range(10):
        settled.end(RunResult(5, reason="the runtime is down"))
        assert settled.look() is Action.NOTHING
        assert (settled.phase, settled.ready) == (Phase.FAILED, False)
        began = settled.now
        while settled.look(after=1.0) is Action.NOTHING:
            pass
        waits.append(settled.now - began)
    assert waits[:4] == [5, 10, 20, 40]
    assert waits[-1] == RESYNC


def test_an_environment_failure_is_tried_again_with_new_inputs_but_not_for_more_drift(settled: Bench) -> None:
    """A run that has touched the host may leave it a little different each time."""
    settled.look(DRIFTED)
    settled.end(RunResult(5, rolled_back=True, reason="the runtime is down"))
    assert settled.look(replace(GOOD, picture=UNITS), after=1) is Action.NOTHING
    assert settled.look(replace(GOOD, picture=NEW)) is Action.INSTALL


def test_a_failure_is_over_when_somebody_else_has_put_it_right(settled: Bench) -> None:
    settled.look(DRIFTED)
    settled.end(RunResult(5, reason="the runtime is down"))
    settled.look(GOOD, after=1)
    assert (settled.phase, settled.ready) == (Phase.CONVERGED, True)
    assert settled.look(DRIFTED, after=1) is Action.INSTALL


@rule("R8")
def test_a_generation_that_failed_here_waits_for_an_input(settled: Bench) -> None:
    settled.look(replace(GOOD, picture=NEW))
    settled.end(RunResult(5, remembered=True, reason="it is broken"), replace(GOOD, picture=BAD))
    for _heartbeat in range(1000):
        assert settled.look(after=HEARTBEAT) is Action.NOTHING
    assert (settled.phase, settled.policy.state.reason) == (Phase.FAILED, "it is broken")
    assert settled.look(replace(GOOD, picture=NEWER)) is Action.INSTALL
    settled.end(OK)
    settled.look()
    assert settled.ready


@rule("R8", "R13")
@pytest.mark.parametrize("picture", [BAD, REFUSED, INVALID])
@pytest.mark.parametrize("drift", [DRIFT, UNITS])
def test_while_new_inputs_are_refused_the_good_generation_is_repaired(
    settled: Bench, picture: Picture, drift: Picture
) -> None:
    refused = replace(GOOD, picture=picture)
    for _heartbeat in range(100):
        assert settled.look(refused, after=HEARTBEAT) is Action.NOTHING
    repair = replace(picture, due=True, repairs=True, differs=drift.differs, in_files=drift.in_files)
    assert settled.look(replace(refused, picture=repair)) is Action.INSTALL
    assert settled.last.why == drift.differs
    settled.end(RunResult(picture.code, changed=True, reason="no"), refused)
    assert settled.policy.state.reason.startswith(picture.reason)
    assert not settled.ready
    assert settled.policy.state.repairs == 1
    assert settled.look() is Action.NOTHING


@rule("R13")
def test_a_failure_is_one_failure_and_has_one_reason(settled: Bench) -> None:
    """Each other reason would be another Event, and another group in the report of the fleet."""
    recalled = "this generation failed on this host and is not retried: 2026-01-01T00:00:00Z: it is broken"
    bad = replace(GOOD, picture=replace(BAD, reason=recalled))
    drifted = replace(GOOD, picture=replace(bad.picture or BAD, due=True, repairs=True, differs="x"))
    settled.look(replace(GOOD, picture=NEW))
    settled.end(RunResult(5, rolled_back=True, remembered=True, reason="it is broken"), bad)
    for seen in (bad, replace(bad, paused=True), bad):
        settled.look(seen, after=HEARTBEAT)
        assert settled.policy.state.reason == "it is broken"
    assert settled.policy.state.failures == 1
    assert settled.look(drifted) is Action.INSTALL
    settled.end(RunResult(5, changed=True, remembered=True, reason=recalled), bad)
    for seen in (bad, replace(GOOD, picture=NEWER)):
        settled.look(seen, after=HEARTBEAT)
        assert settled.policy.state.reason == "it is broken"
    settled.end(CHANGED, GOOD)
    settled.look(replace(GOOD, picture=replace(BAD, inputs="another", reason=recalled)), after=HEARTBEAT)
    assert settled.policy.state.reason == recalled  # of the run of an earlier daemon


@rule("R13")
def test_what_drifts_beneath_a_refusal_is_no_other_refusal(settled: Bench) -> None:
    refused = replace(GOOD, picture=REFUSED)
    drifted = replace(GOOD, picture=replace(REFUSED, due=True, repairs=True, differs="x"))
    settled.look(refused)
    assert settled.policy.state.failures == 1
    for number in range(2, 5):
        assert settled.look(drifted, after=60) is Action.INSTALL
        settled.end(RunResult(4, changed=True, reason="masked"), refused)
        settled.look(replace(GOOD, picture=replace(REFUSED)), after=1)
        assert settled.policy.state.failures == number  # the run's own
    settled.look(GOOD, after=60)
    settled.look(refused, after=60)
    assert settled.policy.state.failures == 5


def test_a_repair_of_the_good_generation_that_does_not_help_is_not_tried_all_the_time(settled: Bench) -> None:
    drifted = replace(GOOD, picture=replace(REFUSED, due=True, repairs=True, differs="x"))
    settled.look(drifted)
    for wait in (5, 10, 20):
        settled.end(RunResult(4, reason="masked"), drifted)
        assert settled.look(after=wait - 1) is Action.NOTHING
        assert settled.look(after=2) is Action.INSTALL


@pytest.mark.parametrize(("code", "wait"), [(4, 5.0), (2, RESYNC)])
def test_what_only_a_run_finds_is_tried_again_or_as_soon_as_the_host_looks_otherwise(
    settled: Bench, code: int, wait: float
) -> None:
    """The runtime is down, or the payload's own program refuses the configuration. Nothing was touched."""
    new = replace(GOOD, picture=NEW)
    settled.look(new)
    settled.end(RunResult(code, reason="no"), new)
    assert (settled.phase is Phase.REFUSED) is (code == 4)
    assert settled.look(after=wait - 1) is Action.NOTHING
    assert settled.look(after=2) is Action.INSTALL
    settled.end(RunResult(code, reason="no"), new)
    assert (
        settled.look(replace(GOOD, picture=replace(NEW, differs="something else")), after=1) is Action.INSTALL
    )


def test_a_refusal_for_what_nobody_reports_is_looked_at_again_ever_more_seldom(settled: Bench) -> None:
    waits = []
    settled.look(replace(GOOD, picture=REFUSED))
    for _picture in range(12):
        began, settled.looked_closer = settled.now, False
        while not settled.looked_closer:
            settled.look(after=1.0)
        waits.append(round(settled.now - began))
    assert waits[:4] == [5, 10, 20, 40]
    assert waits[-1] == RESYNC
    assert settled.policy.state.failures == 1


@rule("R13")
@pytest.mark.parametrize("passable", [True, False])
def test_a_refused_node_is_said_to_be_refused_with_what_to_do(make: Make, passable: bool) -> None:
    bench = make(refused_is_ready=passable)
    refused = replace(BARE, picture=replace(REFUSED, installed=NOTHING_INSTALLED))
    for _heartbeat in range(20):
        assert bench.look(refused, after=HEARTBEAT) is Action.NOTHING
        assert (bench.phase, bench.ready) == (Phase.REFUSED, passable)
    reason = bench.policy.state.reason
    assert reason.startswith("kubelet.service is masked (systemctl unmask); nothing was touched. ")
    assert "nodeSelector" in reason
    assert ("rollout.refused: ready" in reason) is not passable
    assert bench.policy.state.last_exit == 4
    assert bench.look(BARE) is Action.INSTALL
    bench.end(CHANGED, GOOD)
    bench.look()
    assert (bench.phase, bench.ready) == (Phase.CONVERGED, True)


def test_a_refused_removal_is_never_ready(make: Make) -> None:
    """Ready means removed there."""
    bench = make(mode=Mode.REMOVE, refused_is_ready=True)
    assert bench.look(DRIFTED) is Action.REMOVE
    bench.end(RunResult(4, reason="the record is missing"), BARE)
    bench.look()
    assert (bench.phase, bench.ready) == (Phase.REFUSED, False)


@rule("R13")
def test_a_node_on_which_somebody_installs_again_is_not_called_removed_though_its_removal_is_refused(
    make: Make,
) -> None:
    bench = make(mode=Mode.REMOVE)
    bench.look(DRIFTED)
    bench.end(CHANGED, BARE)
    gone = replace(BARE, picture=replace(CLEAN, installed=NOTHING_INSTALLED))
    bench.look(gone)
    assert (bench.phase, bench.ready) == (Phase.REMOVED, True)
    back = replace(GOOD, picture=replace(REFUSED, differs="fallback.cfg: no longer wanted"))
    assert bench.look(back, after=60) is Action.REMOVE  # which may find that it is not refused
    bench.end(RunResult(4, reason="kubelet.service is masked"), back)
    bench.look()
    assert (bench.phase, bench.ready) == (Phase.REFUSED, False)
    assert bench.look(gone, after=60) is Action.REMOVE
    bench.end(OK, gone)
    assert (bench.phase, bench.ready) == (Phase.REMOVED, True)


@rule("R13")
def test_removed_is_said_as_soon_as_the_removal_has_ended(make: Make) -> None:
    """A daemon that removes because it ends takes no further look."""
    bench = make(mode=Mode.REMOVE)
    bench.look(DRIFTED)
    bench.look()
    assert (bench.phase, bench.ready) == (Phase.CONVERGING, False)
    bench.end(CHANGED, replace(BARE, picture=replace(DRIFT, spent=True)))
    assert (bench.phase, bench.ready) == (Phase.REMOVED, True)


@pytest.mark.parametrize(
    "seen", [replace(GOOD, picture=NEW), replace(HELD, picture=NEW), replace(HELD, relay=False)]
)
def test_a_host_that_stays_busy_is_not_tried_all_the_time(make: Make, seen: PollSnapshot) -> None:
    """For as long as somebody's run lasts, whatever calls for the run."""
    bench = make()
    if seen.picture == NEW:
        bench.settle()
    assert bench.look(seen) is Action.INSTALL
    for _run in range(10):
        bench.end(RunResult(BUSY), seen)
        assert bench.look(after=1.0) is Action.NOTHING
        assert bench.look(after=1.5) is Action.INSTALL


def test_a_busy_host_is_tried_again_soon_and_is_no_failure(settled: Bench) -> None:
    settled.look(DRIFTED)
    settled.end(RunResult(75))
    assert settled.look() is Action.NOTHING
    assert settled.look(after=2.1) is Action.INSTALL
    assert settled.policy.state.failures == 0


@rule("R8")
@pytest.mark.parametrize("code", [2, 4, 5])
def test_each_repair_of_the_good_generation_that_succeeds_is_followed_by_the_next_one_at_once(
    settled: Bench, code: int
) -> None:
    """However often the good one has been repaired since the new one was refused."""
    bad = replace(GOOD, picture=replace(BAD, code=code, remembered=code == 5))
    drifted = replace(GOOD, picture=replace(bad.picture or BAD, due=True, repairs=True, differs="x"))
    for _drift in range(10):
        settled.look(bad, after=10.0)
        assert settled.look(drifted, after=10.0) is Action.INSTALL
        settled.end(RunResult(code, changed=True, remembered=code == 5, reason="no"), bad)


@rule("R8")
def test_what_the_picture_says_of_a_generation_is_reported_once(settled: Bench) -> None:
    """Others may wait for it: whether it works here, or failed here before."""
    verdict = settled.policy.take_verdict()
    assert verdict is not None
    assert (verdict.code, verdict.fleet_generation) == (0, "i")
    settled.look(replace(GOOD, picture=replace(CLEAN)), after=HEARTBEAT)
    assert settled.policy.take_verdict() is None
    settled.look(replace(GOOD, picture=BAD), after=HEARTBEAT)
    verdict = settled.policy.take_verdict()
    assert verdict is not None
    assert (verdict.code, verdict.remembered, verdict.fleet_generation) == (5, True, "new")
