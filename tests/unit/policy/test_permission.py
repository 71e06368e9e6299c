"""What the policy does while planned work waits for a permit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from installer.daemon.decision import Action, Decision
from installer.daemon.fleet import report_state
from installer.daemon.policy import BUSY, HEARTBEAT
from installer.daemon.poller import PollSnapshot
from installer.model.daemon import NOTHING_INSTALLED, Cluster, DaemonState, Installed, Phase
from installer.model.fleet import AskFirst, FleetRules, Permission, PlannedWork, WorkResult
from installer.model.hold import BY_ROLLBACK
from installer.model.names import Mode
from installer.model.result import RunResult
from installer.node.picture import Picture
from tests.lib.policy_bench import (
    BAD,
    BARE,
    CHANGED,
    CLEAN,
    DEAD,
    DRIFT,
    GOOD,
    HELD,
    KUBELET,
    NEW,
    OK,
    PROXY,
    UNITS,
    Bench,
    Make,
    held,
)
from tests.lib.rules import rule

WORK = PlannedWork("one", begins=True)
OTHER = replace(WORK, begins=False)  # with the same inputs
WAITS = Permission(True, None, "the only permit is in use (worker-1)")
COMES = Permission(True, WORK)
PLANNED = replace(NEW, work=WORK, restarts=1)


def of(snapshot: PollSnapshot, permission: Permission = WAITS) -> PollSnapshot:
    return replace(snapshot, permission=permission)


def works(snapshot: PollSnapshot, work: PlannedWork = WORK) -> PollSnapshot:
    """Planned work is what is left to do there."""
    assert snapshot.picture is not None
    return of(replace(snapshot, picture=replace(snapshot.picture, due=True, work=work)))


def wait(bench: Bench, snapshot: PollSnapshot = BARE) -> None:
    assert bench.look(works(snapshot)) is Action.NOTHING
    assert bench.last.wants == WORK


def test_work_that_needs_a_permit_waits_and_says_for_what(make: Make) -> None:
    bench = make()
    wait(bench)
    for _look in range(20):
        assert bench.look(after=30.0) is Action.NOTHING
        assert (bench.phase, bench.ready) == (Phase.WAITING, False)
    assert bench.policy.state.reason == WAITS.why
    assert bench.look(of(works(BARE), Permission(True))) is Action.NOTHING
    assert (bench.phase, bench.policy.state.reason) == (Phase.WAITING, "asking for a permit")
    assert bench.look(of(works(BARE), COMES)) is Action.INSTALL
    assert bench.last.ask_first is AskFirst.NOTHING
    assert bench.last.begins == "one"
    assert bench.policy.permitted == WORK
    bench.end(CHANGED, of(GOOD))
    bench.look()
    assert bench.policy.planned_work is None
    assert bench.phase is Phase.CONVERGED


@rule("R14")
def test_while_planned_work_waits_containers_are_looked_after_once_for_each_start_of_the_proxy(
    settled: Bench,
) -> None:
    """A start may have taken weight from them, and what gives it back needs no permit."""
    for start in ("one", "two"):
        seen = of(replace(GOOD, picture=replace(PLANNED, unchecked=start)))
        assert settled.look(seen, after=5) is Action.INSTALL
        assert settled.last.ask_first is AskFirst.ALL
        settled.end(RunResult(3, planned=WORK), seen)
        for _look in range(30):
            assert settled.look(after=60) is Action.NOTHING
            assert settled.phase is Phase.WAITING
            assert settled.last.wants == WORK
    assert settled.look(of(seen, COMES)) is Action.INSTALL
    assert settled.last.ask_first is AskFirst.NOTHING


@rule("R14")
@pytest.mark.parametrize("outcome", [RunResult(137), RunResult(1, reason="it took too long")])
def test_a_run_that_was_cut_off_before_it_has_looked_after_containers_is_begun_again(
    settled: Bench, outcome: RunResult
) -> None:
    seen, runs = of(replace(GOOD, picture=replace(PLANNED, unchecked="one"))), 0
    for _look in range(30):
        if settled.look(of(replace(GOOD, picture=replace(PLANNED, unchecked="one"))), after=60):
            settled.end(RunResult(3, planned=WORK) if runs else outcome, seen)
            runs += 1
    assert runs == 2


@rule("R14")
def test_containers_are_looked_after_though_the_same_inputs_have_failed_before(settled: Bench) -> None:
    planned, runs = of(replace(GOOD, picture=PLANNED)), 0
    assert settled.look(of(planned, COMES), after=5) is Action.INSTALL
    settled.end(RunResult(5, rolled_back=True, reason="the runtime went down"), planned)
    assert settled.look(of(replace(GOOD, picture=replace(PLANNED))), after=60) is Action.NOTHING
    for _look in range(30):
        seen = of(replace(GOOD, picture=replace(PLANNED, unchecked="two")))
        if settled.look(seen, after=60):
            settled.end(RunResult(3, planned=WORK), seen)
            runs += 1
    assert runs == 1


def test_other_problems_after_the_same_start_of_the_proxy_begin_no_run_while_planned_work_waits(
    settled: Bench,
) -> None:
    """Somebody edits a file again and again, say, that is only put right with the new generation."""
    runs = 0
    for number in range(60):
        seen = of(replace(GOOD, picture=replace(PLANNED, unchecked="one", differs=f"edit {number}")))
        if settled.look(seen, after=10):
            settled.end(RunResult(3, planned=WORK), seen)
            runs += 1
    assert runs == 1


@pytest.mark.parametrize(
    ("work", "asks"),
    [
        (None, AskFirst.ALL),
        (WORK, AskFirst.NOTHING),
        (replace(WORK, restarts_kubelet=False), AskFirst.RESTARTS),
    ],
)
def test_what_a_run_has_to_ask_for_first_is_all_that_is_not_permitted(
    settled: Bench, work: PlannedWork | None, asks: AskFirst
) -> None:
    drift = of(replace(GOOD, picture=replace(DRIFT, work=work)), Permission(True, work))
    assert settled.look(drift) is Action.INSTALL
    assert settled.last.ask_first is asks
    assert settled.policy.permitted == work


class Told(Cluster):
    """A fleet that is told of results, and whether the node is at work."""

    def __init__(self) -> None:
        self.results: list[WorkResult] = []
        self.busy: list[bool] = []

    def report_result(self, result: WorkResult) -> None:
        self.results.append(result)

    def update(
        self, state: DaemonState, work: PlannedWork | None, rules: FleetRules, *, busy: bool, read_node: bool
    ) -> None:
        self.busy.append(busy)


@rule("R8")
def test_that_a_generation_failed_here_is_told_although_the_repair_of_the_good_one_waits(
    settled: Bench,
) -> None:
    """After a boot, others wait for what became of it."""
    repair, told = PlannedWork("good"), Told()
    bad = replace(BAD, due=True, repairs=True, differs=UNITS.differs, work=repair, restarts=1)
    for permission, action in ((WAITS, Action.NOTHING), (Permission(True, repair), Action.INSTALL)):
        seen = of(replace(GOOD, picture=replace(bad)), permission)
        assert settled.look(seen, after=301) is action
        report_state(told, settled.policy, settled.last, seen)
    assert [(each.work.generation, each.ok, each.recalled) for each in told.results] == [("new", False, True)]


@rule("R13")
def test_what_was_refused_and_now_waits_for_a_permit_is_not_refused_any_more(settled: Bench) -> None:
    """The runtime was down, as only a run finds out. Nobody is told of that again once it is back."""
    planned = replace(GOOD, picture=replace(PLANNED, wanted=WORK.generation))
    assert settled.look(of(planned, COMES)) is Action.INSTALL
    settled.end(RunResult(4, reason="the runtime is down"), of(planned))
    phases = [settled.phase]
    assert settled.look(after=6) is Action.INSTALL
    phases.append(settled.phase)
    settled.end(RunResult(3, planned=WORK), of(planned))
    settled.look(of(planned), after=1)
    phases.append(settled.phase)
    assert settled.look(of(planned, COMES), after=6) is Action.INSTALL
    phases.append(settled.phase)
    assert phases == [Phase.REFUSED, Phase.REFUSED, Phase.WAITING, Phase.CONVERGING]


@rule("R13")
def test_what_is_installed_is_said_while_something_else_is_asked_for(make: Make) -> None:
    """By a daemon that has just come, with the new generation's pod: it has installed nothing itself."""
    there = Installed("good", policy="balloons", policy_source="fallback.cfg")
    wants = replace(NEW, wanted="one", installed=there)
    for picture, phase in (
        (replace(wants, work=WORK), Phase.WAITING),
        (replace(wants, due=False, code=4, reason="masked"), Phase.REFUSED),
        (replace(wants, due=False, code=2, reason="fallback.cfg: no policy", wanted=""), Phase.FAILED),
    ):
        bench = make()
        assert bench.look(of(replace(GOOD, picture=picture))) is Action.NOTHING
        state = bench.policy.state
        assert (state.phase, state.ready) == (phase, False)
        assert (state.serves, state.installed) == (True, there)
        assert state.wanted == picture.wanted
        bench.look(of(replace(bench.snapshot, on_relay=False)), after=1.0)
        assert not bench.policy.state.serves


@rule("R13")
def test_a_removal_that_waits_asks_for_no_generation_and_the_node_is_served(make: Make) -> None:
    bench = make(mode=Mode.REMOVE)
    bench.look(works(replace(GOOD, picture=replace(UNITS, installed=Installed("good")))))
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
    nothing = replace(NEW, wanted="one", installed=NOTHING_INSTALLED, work=WORK)
    assert bench.look(of(replace(BARE, picture=nothing))) is Action.NOTHING
    state = bench.policy.state
    assert (state.serves, state.installed.generation, state.wanted) == (False, "", "one")


def test_a_good_generation_that_cannot_be_repaired_does_not_keep_the_next_one_from_its_permit(
    settled: Bench,
) -> None:
    """It asks for the permit from run to run, and begins when it comes."""
    picture, runs = replace(PLANNED, repairs=True), 0
    broken = of(replace(GOOD, picture=picture))
    for _look in range(600):
        if settled.look(replace(broken, picture=replace(picture)), after=1.0):
            runs += 1
            settled.end(RunResult(3, planned=WORK), broken, took=0.1)
            settled.look()
        assert settled.last.wants == WORK
    assert 4 < runs < 12
    assert settled.look(replace(broken, permission=COMES)) is Action.INSTALL
    assert settled.policy.permitted == WORK


@rule("R13")
@pytest.mark.parametrize("outcome", [RunResult(4, reason="static-managers"), RunResult(2, reason="invalid")])
def test_a_node_that_is_refused_holds_no_permit_to_be_refused_again(
    settled: Bench, outcome: RunResult
) -> None:
    """What only a run finds out, like the runtime's state, no picture shows."""
    planned = replace(GOOD, picture=PLANNED)
    wait(settled, planned)
    assert settled.look(of(planned, COMES)) is Action.INSTALL
    settled.end(outcome, of(planned), took=0.1)
    phase, runs = settled.phase, 0
    assert phase in (Phase.REFUSED, Phase.FAILED)
    for _second in range(3600):
        if settled.look(of(replace(planned, picture=replace(PLANNED))), after=1.0):
            assert settled.last.ask_first is AskFirst.ALL
            settled.end(outcome, of(planned), took=0.1)
            runs += 1
        assert (settled.phase, settled.last.wants) == (phase, None)
    assert runs > 3
    settled.look(after=1000.0)
    settled.end(RunResult(3, planned=WORK), of(planned))  # the cause is gone
    settled.look(of(planned), after=1)
    assert settled.last.wants == WORK


def test_the_removal_at_the_end_of_a_pod_is_what_was_permitted(settled: Bench) -> None:
    settled.policy.begun(Decision(Action.REMOVE, wants=WORK), of(GOOD, COMES))
    assert settled.policy.permitted == WORK


@rule("R13")
def test_a_node_that_cannot_be_looked_at_is_not_called_served(settled: Bench) -> None:
    assert settled.policy.state.serves
    settled.look(replace(GOOD, blind="no bus"))
    settled.look(after=21)
    assert not settled.policy.state.serves


def test_the_permit_of_other_work_is_not_used(make: Make) -> None:
    bench = make()
    wait(bench)
    other = Permission(True, replace(WORK, generation="another"))
    assert bench.look(of(works(BARE), other), after=1.0) is Action.NOTHING


@rule("R13")
def test_while_work_waits_the_good_generation_is_repaired(settled: Bench) -> None:
    drifted = of(replace(GOOD, picture=replace(PLANNED, repairs=True)))
    assert settled.look(drifted) is Action.INSTALL
    assert settled.last.ask_first is AskFirst.ALL
    settled.end(RunResult(3, changed=True, planned=WORK), of(replace(GOOD, picture=PLANNED)))
    assert settled.look() is Action.NOTHING
    assert settled.phase is Phase.WAITING


def test_work_that_only_a_run_has_met_is_asked_for(settled: Bench) -> None:
    """The runtime knows more than the picture."""
    assert settled.look(of(replace(GOOD, picture=UNITS))) is Action.INSTALL
    settled.end(RunResult(3, planned=WORK), of(replace(GOOD, picture=UNITS)))
    for _look in range(100):
        assert settled.look(after=HEARTBEAT) is Action.NOTHING
        assert settled.last.wants == WORK
    assert settled.look(of(settled.snapshot, COMES)) is Action.INSTALL
    assert settled.policy.permitted == WORK


@rule("R4")
@pytest.mark.parametrize("mode", list(Mode))
def test_a_rescue_does_not_wait(make: Make, mode: Mode) -> None:
    bench = make(mode=mode)
    wait(bench, GOOD)
    bench.look()
    assert bench.last.wake <= bench.now + HEARTBEAT
    assert bench.look(works(DEAD), after=1.0) is Action.NOTHING
    assert bench.look(after=21.0) is Action.RESCUE
    assert bench.phase is not Phase.WAITING


def test_the_way_back_after_a_rescue_does_not_wait(settled: Bench) -> None:
    held(settled)
    good = works(HELD)
    assert settled.look(good, after=1.0) is Action.NOTHING
    assert settled.look(good, after=61.0) is Action.INSTALL
    assert settled.last.is_return
    assert settled.last.ask_first is AskFirst.NOTHING


def test_a_removal_waits_for_a_permit(make: Make) -> None:
    bench = make(mode=Mode.REMOVE)
    wait(bench, GOOD)
    assert bench.look(after=60.0) is Action.NOTHING
    assert bench.phase is Phase.WAITING
    assert bench.look(of(works(GOOD), COMES)) is Action.REMOVE
    bench.end(CHANGED, of(replace(BARE, picture=replace(CLEAN, wanted=""))))
    assert str(bench.phase) == "removed"


@pytest.mark.parametrize("mode", [Mode.INSTALL, Mode.REMOVE])
def test_a_proxy_that_keeps_crashing_begins_no_run_while_one_waits(make: Make, mode: Mode) -> None:
    bench = make(mode=mode)
    crashed = replace(GOOD, relay=False, on_relay=False, picture=DRIFT)
    wait(bench, crashed)
    for number in range(20):
        for state in ("activating", "deactivating"):
            proxy = replace(PROXY, active_state=state, main_pid=number, invocation_id=f"{number}")
            assert bench.look(works(replace(crashed, proxy=proxy)), after=1.0) is Action.NOTHING
    assert bench.look(of(works(crashed), COMES)) is not Action.NOTHING


def test_a_kubelet_that_keeps_crashing_begins_no_removal_that_waits(make: Make) -> None:
    bench = make(mode=Mode.REMOVE)
    wait(bench, GOOD)
    for number in range(600):
        seen = works(replace(GOOD, kubelet=replace(KUBELET, invocation_id=f"{number}")))
        assert bench.look(seen, after=1.0) is Action.NOTHING


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(replace(BARE, hold="ask Kim"), id="a person's hold"),
        pytest.param(replace(BARE, blind="D-Bus is gone"), id="a host that cannot be looked at"),
        pytest.param(
            replace(GOOD, kubelet=replace(KUBELET, active_state="inactive")), id="a stopped kubelet"
        ),
        pytest.param(replace(BARE, paused=True), id="a pause"),
    ],
)
def test_a_permit_that_could_not_be_used_is_not_asked_for(settled: Bench, seen: PollSnapshot) -> None:
    off = works(replace(GOOD, on_relay=False))
    settled.look(off, after=5.0)
    assert settled.last.wants == WORK
    settled.look(of(works(seen), COMES), after=5.0)
    assert settled.last.wants is None
    if not seen.paused:
        settled.look(off, after=5.0)
        assert settled.last.wants == WORK


@rule("R14")
def test_a_repair_that_was_rolled_back_while_work_waits_is_retried_ever_later(make: Make) -> None:
    """Each try starts the proxy, which looks like another reason for a repair. The node asks for its permit
    all the while."""
    bench = make()
    wait(bench)
    seen, runs = works(GOOD), 0
    for _second in range(900):
        seen = replace(seen, picture=replace(PLANNED, repairs=True, unchecked=f"start {runs}"))
        if bench.look(seen, after=1.0) is Action.INSTALL:
            runs += 1
            bench.end(RunResult(3, rolled_back=True, planned=WORK), seen, took=0.0)
        assert bench.last.wants == WORK
    assert 3 < runs < 9
    assert bench.look(replace(seen, permission=COMES)) is Action.INSTALL


@rule("R14")
@pytest.mark.parametrize(
    ("picture", "wanted"),
    [
        pytest.param(replace(PLANNED, work=None, due=False, code=4, reason="no"), None, id="refused"),
        pytest.param(replace(PLANNED, work=None, is_new=False, restarts=0), None, id="done, by hand"),
        pytest.param(replace(PLANNED, work=OTHER), OTHER, id="other work"),
    ],
)
def test_after_a_repair_that_was_rolled_back_only_what_is_still_to_be_done_is_asked_for(
    make: Make, picture: Picture, wanted: PlannedWork | None
) -> None:
    """Else a node that is refused could hold the only permit, and do nothing with it."""
    bench = make()
    wait(bench)
    repairs = works(replace(GOOD, picture=replace(PLANNED, repairs=True)))
    assert bench.look(repairs, after=1.0) is Action.INSTALL
    bench.end(RunResult(3, rolled_back=True, planned=WORK), repairs, took=0.0)
    for permission in (WAITS, COMES):
        assert bench.look(of(replace(GOOD, picture=picture), permission), after=1.0) is Action.NOTHING
        assert bench.last.wants == wanted


def test_a_node_whose_restarts_are_used_up_says_so_and_asks_for_no_permit(make: Make) -> None:
    """A rescue took the last one of the hour while the node waited."""
    bench = make(restarts=(800.0, 850.0))
    wait(bench, GOOD)
    bench.look(works(DEAD), after=1.0)
    assert bench.look(after=21.0) is Action.RESCUE
    bench.end(RunResult(0, restarts=1), of(replace(HELD, hold="", picture=PLANNED)))
    while bench.look() is Action.HOLD:
        bench.end(OK)
    assert bench.last.wants is None
    assert bench.phase is Phase.LIMITED


def test_nor_after_a_repair_that_was_rolled_back(make: Make) -> None:
    """It would get the only permit and give it back, again and again, until the next try is due."""
    bench = make(restarts=(800.0, 850.0))
    wait(bench, GOOD)
    repairs = works(replace(GOOD, picture=replace(PLANNED, repairs=True)))
    assert bench.look(repairs, after=1.0) is Action.INSTALL
    bench.end(RunResult(3, rolled_back=True, restarts=1, planned=WORK), repairs, took=0.0)
    for permission in (WAITS, COMES):
        assert bench.look(of(replace(GOOD, picture=PLANNED), permission), after=1.0) is Action.NOTHING
        assert bench.last.wants is None
        assert bench.phase is Phase.LIMITED


def test_until_nobody_else_has_had_the_hosts_lock_an_earlier_daemon_may_be_at_work(make: Make) -> None:
    bench = make()
    bench.look(of(replace(GOOD, picture=replace(CLEAN, at_work="pid 7"))))
    assert not bench.policy.had_lock
    bench.look(of(GOOD), after=3.0)
    assert bench.policy.had_lock


@pytest.mark.parametrize("begun", [WORK, None])
def test_begun_work_keeps_its_permit_while_systemd_is_busy(make: Make, begun: PlannedWork | None) -> None:
    """An earlier daemon died with its run, which had just started the proxy. Work that has not begun lets
    others go first."""
    bench = make()
    coming = replace(GOOD, proxy=replace(PROXY, active_state="activating"), relay=False, on_relay=False)
    half = replace(coming, picture=replace(UNITS, is_new=True, work=WORK))
    assert bench.look(of(half, Permission(True, begun=begun))) is Action.NOTHING
    assert bench.last.wants == begun
    assert (
        bench.look(of(replace(half, relay=True, proxy=PROXY), replace(COMES, begun=begun))) is Action.INSTALL
    )


@rule("R13")
def test_a_node_whose_begun_work_is_left_to_systemd_is_at_work_and_waits_for_no_permit(make: Make) -> None:
    """A start may take minutes: a permit that nobody uses is given back after 45 s."""
    bench, told = make(), Told()
    half = of(replace(GOOD, picture=replace(UNITS, is_new=True, work=WORK)), Permission(True, begun=WORK))
    coming = replace(half, proxy=replace(PROXY, active_state="activating"), relay=False, on_relay=False)
    for seen, phase in ((coming, Phase.CONVERGING), (half, Phase.WAITING)):
        bench.look(seen)
        assert bench.phase is phase
        report_state(told, bench.policy, bench.last, seen)
    assert told.busy == [True, False]


@pytest.mark.parametrize("is_stopped", [True, False])
def test_begun_work_does_not_keep_its_permit_for_ever(make: Make, is_stopped: bool) -> None:
    """Somebody has stopped kubelet; or the proxy never comes up."""
    bench = make()
    half = of(replace(GOOD, picture=replace(UNITS, is_new=True, work=WORK)), replace(COMES, begun=WORK))
    if is_stopped:
        assert bench.look(replace(half, kubelet=replace(KUBELET, active_state="inactive"))) is Action.NOTHING
        assert bench.last.wants is None
        return
    coming = replace(half, proxy=replace(PROXY, active_state="activating"), relay=False, on_relay=False)
    bench.look(coming)
    assert bench.last.wants == WORK
    for _look in range(90):
        bench.look(replace(coming, picture=replace(UNITS, is_new=True, work=WORK)), after=10)
    assert bench.last.wants is None


@pytest.mark.parametrize("mode", list(Mode))
def test_what_a_killed_run_has_begun_keeps_its_permit_until_the_next_picture_comes(
    make: Make, mode: Mode
) -> None:
    """That may take seconds. The half-done node does not wait for another turn."""
    bench = make(mode=mode)
    wait(bench)
    assert bench.look(of(works(BARE), COMES), after=5.0) is not Action.NOTHING
    half = works(replace(BARE, picture=replace(NEW, differs="half done", work=WORK)))
    assert half.picture is not None
    bench.end(RunResult(137), of(replace(half, picture=replace(half.picture, spent=True)), Permission(True)))
    for _look in range(3):
        decision = bench.policy.step(bench.now + 1.0, bench.snapshot)
        assert (decision.action, decision.wants) == (Action.NOTHING, WORK)
    assert bench.look(replace(half, permission=COMES), after=2.0) is not Action.NOTHING
    bench.end(RunResult(1, reason="it failed"), half)
    bench.look(replace(half, picture=replace(half.picture, spent=True)))
    assert bench.last.wants is None


def test_while_another_run_has_the_hosts_lock_the_permit_is_kept(make: Make) -> None:
    bench = make()
    wait(bench)
    assert bench.look(of(works(BARE), COMES), after=5.0) is Action.INSTALL
    bench.end(RunResult(BUSY))
    assert bench.look() is Action.NOTHING
    assert bench.last.wants == WORK
    assert bench.look(after=3.0) is Action.INSTALL


@rule("R13")
def test_who_waits_for_a_permit_waits_also_while_the_next_picture_is_taken(settled: Bench) -> None:
    """Nothing is withdrawn, and no other phase is reported: all nodes would do so at each event."""
    planned = of(replace(GOOD, picture=PLANNED))
    wait(settled, replace(GOOD, picture=PLANNED))
    for seen in (
        replace(planned, agent="it has sent a configuration"),
        replace(planned, picture=replace(PLANNED, at_work="install by hand")),
    ):
        decision = settled.policy.step(settled.now + 1.0, seen)
        assert (decision.action, decision.wants) == (Action.NOTHING, WORK)
        assert settled.phase is Phase.WAITING
    assert settled.policy.step(settled.now + 2.0, of(GOOD)).wants is None


@pytest.mark.parametrize("is_first", [True, False])
def test_a_run_that_waits_for_a_permit_has_not_tried_what_may_end_a_hold(make: Make, is_first: bool) -> None:
    """A new generation comes where the last one was rolled back, and meets a good one that has to be
    repaired before it gets its permit."""
    bench = make()
    if not is_first:
        bench.settle()
    rolled_back = of(replace(GOOD, hold=f"{BY_ROLLBACK}no", picture=replace(PLANNED, repairs=True)))
    assert bench.look(rolled_back) is Action.INSTALL
    assert bench.last.ask_first is AskFirst.ALL
    waits = replace(rolled_back, picture=PLANNED)
    bench.end(RunResult(3, planned=WORK, changed=True), waits)
    assert bench.look(after=10.0) is Action.NOTHING
    assert bench.last.wants == WORK
    assert bench.look(replace(waits, permission=COMES)) is Action.INSTALL
