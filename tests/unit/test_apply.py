"""Whatever goes wrong in a step is a failed step: only that is rolled back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from installer.errors import UNIT_MASKED, StepFailedError, SystemdError
from installer.model import paths
from installer.model.event import Event, silent
from installer.model.host import DesiredFile, Part, ProcessState, UnitState
from installer.model.limits import Limits
from installer.model.names import Mode
from installer.model.plan import Changes, Desired, DesiredKubelet, DesiredUnit, Plan, Step, StepKind, Strategy
from installer.model.proxy import WHILE_HANGING
from installer.node.apply import apply_plan
from installer.node.proxy_signal import why_not_taken
from installer.node.run import Progress
from tests.lib.fakes import CONTAINERD, FakeHost
from tests.lib.rules import rule

PATH = "/etc/cri-resmgr/fallback.cfg"
LIMITS = Limits(proxy_start=1, kubelet_start=1, settle=1, guard=1, healthz_url="")


def write(root: Path, digest: str = "") -> Progress:
    file = replace(DesiredFile.of(PATH, b"policy: {}\n"), digest=digest)
    step = Step(StepKind.WRITE, PATH, Part.PROXY, file)
    plan = Plan(Mode.INSTALL, Desired(), Changes(), "kubelet.service", (step,))
    progress = Progress()
    with pytest.raises(StepFailedError, match=f"write {PATH}: "):
        apply_plan(plan, FakeHost(root).host, LIMITS, lambda _event: None, progress)
    return progress


def test_content_that_changed_while_it_was_copied(tmp_path: Path) -> None:
    (tmp_path / "etc/cri-resmgr").mkdir(parents=True)
    assert write(tmp_path, digest="0" * 64).touched == {Part.PROXY}
    assert list((tmp_path / "etc/cri-resmgr").iterdir()) == []


def test_link_out_of_the_root_that_came_meanwhile(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/cri-resmgr").symlink_to("../../outside")
    assert write(tmp_path).touched == {Part.PROXY}


def test_directory_that_went_away_meanwhile(tmp_path: Path) -> None:
    assert write(tmp_path).touched == {Part.PROXY}


@rule("R8")
@pytest.mark.parametrize(("seconds", "fails"), [(170.0, False), (190.0, True)])
def test_a_daemon_reload_has_the_time_that_systemctl_would_give_it(
    tmp_path: Path, seconds: float, fails: bool
) -> None:
    fake = FakeHost(tmp_path)
    fake.systemd.reload_seconds = seconds
    step = Step(StepKind.DAEMON_RELOAD, "", Part.PROXY)
    plan = Plan(Mode.INSTALL, Desired(), Changes(), "kubelet.service", (step,))
    if not fails:
        return apply_plan(plan, fake.host, LIMITS, silent, Progress())
    with pytest.raises(StepFailedError, match=r"^daemon-reload: not done") as caught:
        apply_plan(plan, fake.host, LIMITS, silent, Progress())
    assert caught.value.interfered
    return None


@rule("R8")
@pytest.mark.parametrize(
    ("sub_state", "restarts", "jobs"),
    [
        ("auto-restart", 0, ["stop", "restart"]),
        ("auto-restart-queued", 0, ["stop", "restart"]),  # systemd 254
        ("running", 3, ["stop", "restart"]),
        ("running", 0, ["restart"]),
    ],
)
def test_no_start_of_systemds_own_takes_what_is_announced_for_ours(
    tmp_path: Path, sub_state: str, restarts: int, jobs: list[str]
) -> None:
    """The guard spares the containers at every start but an announced one, and the first takes the word."""
    fake = FakeHost(tmp_path)
    unit = UnitState(paths.PROXY_UNIT, "loaded", "active", sub_state, n_restarts=restarts, main_pid=7)
    fake.systemd.units[paths.PROXY_UNIT] = unit
    announced = tmp_path / paths.PROXY_START_OURS[1:]

    def job(method: str, unit: UnitState) -> tuple[str, UnitState]:
        assert announced.exists() == (method == "restart")
        return "done", unit

    fake.systemd.on_job[paths.PROXY_UNIT] = job
    step = Step(StepKind.RESTART, paths.PROXY_UNIT, Part.PROXY)
    plan = Plan(Mode.INSTALL, Desired(), Changes(), "kubelet.service", (step,))
    apply_plan(plan, fake.host, LIMITS, silent, Progress())
    assert [call.method for call in fake.systemd.calls if call.method in ("stop", "restart")] == jobs


@rule("R14")
@pytest.mark.parametrize("part", [Part.PROXY, Part.KUBELET])
def test_a_start_that_is_refused_is_not_announced_any_more(tmp_path: Path, part: Part) -> None:
    """The guard would take the next start, whoever begins it, for one of ours, which may do more."""
    name = "kubelet.service" if part is Part.KUBELET else paths.PROXY_UNIT
    announced = paths.KUBELET_START_OURS if part is Part.KUBELET else paths.PROXY_START_OURS
    fake, seen = FakeHost(tmp_path), list[bool]()
    fake.systemd.units[name] = UnitState(name, "loaded", "active", "running", main_pid=7)

    def refuse(method: str, _unit: UnitState) -> tuple[str, UnitState]:
        seen.append((tmp_path / announced[1:]).exists())
        raise SystemdError(f"systemctl {method} {name}: refused", name=UNIT_MASKED)

    fake.systemd.on_job[name] = refuse
    kubelet = DesiredKubelet(DesiredUnit("kubelet.service", "", "", ""), Strategy.ENVIRONMENT, "", "V", ())
    step = Step(StepKind.RESTART, name, part)
    plan = Plan(Mode.INSTALL, Desired(kubelet=kubelet), Changes(), "kubelet.service", (step,))
    fake.cri.sockets[paths.RELAY_ENDPOINT] = CONTAINERD
    with pytest.raises(StepFailedError, match="refused"):
        apply_plan(plan, fake.host, LIMITS, silent, Progress())
    assert seen == [True]
    assert not (tmp_path / announced[1:]).exists()


@rule("R8")
@pytest.mark.parametrize(("state", "interfered"), [("deactivating", True), ("activating", False)])
@pytest.mark.parametrize(
    ("kind", "part"),
    [(StepKind.RESTART, Part.KUBELET), (StepKind.STOP, Part.PROXY), (StepKind.RESTART, Part.PROXY)],
)
def test_what_does_not_stop_in_time_is_no_fault_of_what_was_to_be_started(
    tmp_path: Path, kind: StepKind, part: Part, state: str, interfered: bool
) -> None:
    """A proxy that systemd has restarted is stopped first."""
    name = "kubelet.service" if part is Part.KUBELET else paths.PROXY_UNIT
    fake = FakeHost(tmp_path)
    fake.systemd.units[name] = UnitState(name, active_state=state, n_restarts=part is Part.PROXY)
    fake.systemd.errors["restart", name] = SystemdError(f"systemctl restart {name}: not done after 32 s")
    fake.systemd.errors["stop", name] = SystemdError(f"systemctl stop {name}: not done after 20 s")
    plan = Plan(Mode.INSTALL, Desired(), Changes(), name, (Step(kind, name, part),))
    with pytest.raises(StepFailedError, match="not done after") as failure:
        apply_plan(plan, fake.host, LIMITS, lambda _event: None, Progress())
    assert failure.value.interfered is interfered
    assert ("TimeoutStopUSec" in failure.value.hint) is interfered


@rule("R13")
@pytest.mark.parametrize(
    ("says", "restarted"),
    [
        (("reloading forced configuration", "successfully switched to new configuration"), ""),
        (
            ("reloading", "failed to reload forced configuration F: no"),
            "failed to reload forced configuration F",
        ),
        (("reloading forced configuration",), "does not mention it within 10 s"),
        ((), "does not mention it within 10 s"),
        (None, "it exited instead"),
    ],
)
def test_a_force_config_counts_only_when_the_proxy_says_that_it_has_taken_it(
    tmp_path: Path, says: tuple[str, ...] | None, restarted: str
) -> None:
    name = paths.PROXY_UNIT
    fake, said = FakeHost(tmp_path), list[Event]()
    fake.systemd.units[name] = UnitState(name, "loaded", "active", "running", main_pid=7)
    fake.journal.say(name, "successfully switched to new configuration")  # an earlier one

    def hang_up(_name: str, _number: int) -> None:
        for line in says or ():
            fake.journal.say(name, line)
        if says is None:
            fake.systemd.units[name] = replace(fake.systemd.units[name], main_pid=0)

    fake.systemd.on_kill = hang_up
    steps = tuple(Step(kind, name, Part.PROXY) for kind in (StepKind.SIGNAL, StepKind.RESTART_IF_REFUSED))
    plan = Plan(Mode.INSTALL, Desired(), Changes(), "kubelet.service", steps)
    apply_plan(plan, fake.host, LIMITS, said.append, Progress())
    assert ("restart" in [call.method for call in fake.calls]) is bool(restarted)
    warnings = [event.message for event in said if event.kind == "warning"]
    assert len(warnings) == bool(restarted)
    assert all(restarted in warning for warning in warnings)


@rule("R3")
@pytest.mark.parametrize(("relay", "seconds"), [(True, 25.0), (False, 6.0)])
def test_a_proxy_that_still_works_on_a_force_config_is_waited_for_while_its_relay_answers(
    tmp_path: Path, relay: bool, seconds: float
) -> None:
    """With 500 containers it may take 20 s."""
    name = paths.PROXY_UNIT
    fake = FakeHost(tmp_path)
    fake.systemd.units[name] = UnitState(name, "loaded", "active", "running", main_pid=7)
    clock, began = fake.clock, fake.clock.monotonic()
    fake.cri.answers = lambda *_: relay  # type: ignore[method-assign]
    since = fake.journal.since

    def works(unit: str, cursor: str) -> tuple[str, ...]:
        past = clock.monotonic() - began
        fake.processes.processes[7] = ProcessState(7, (paths.BINARY,), {}, cpu=past / 2)
        if past >= 25 and not since(unit, cursor):
            fake.journal.say(unit, "successfully switched to new configuration")
        return since(unit, cursor)

    fake.journal.since = works  # type: ignore[method-assign]
    unit = fake.systemd.units[name]
    why, answered = why_not_taken(unit, fake.journal.cursor(), fake.host, 60.0, silence=5.5)
    assert (why == "") is relay
    assert clock.monotonic() - began == pytest.approx(seconds, abs=1)
    assert clock.monotonic() - answered == pytest.approx(1.0 if relay else seconds, abs=1)


RESTARTS = replace(LIMITS, begun_start=30)


def begin(tmp_path: Path, age: float, sub_state: str = "running") -> FakeHost:
    """A proxy whose start began so long ago."""
    fake = FakeHost(tmp_path)
    fake.systemd.units[paths.PROXY_UNIT] = UnitState(
        paths.PROXY_UNIT, "loaded", "active", sub_state, main_pid=7, invocation_id="i7"
    )
    fake.processes.processes[7] = ProcessState(7, (paths.BINARY,), {}, age=age)
    return fake


def await_start(fake: FakeHost, limits: Limits) -> tuple[list[str], list[Event]]:
    """Which jobs there were, and what was said."""
    said: list[Event] = []
    plan = Plan(
        Mode.INSTALL,
        Desired(),
        Changes(),
        "kubelet.service",
        (Step(StepKind.AWAIT_START, paths.PROXY_UNIT, Part.PROXY),),
    )
    apply_plan(plan, fake.host, limits, said.append, Progress())
    return [call.method for call in fake.calls if call.method == "restart"], said


@rule("R12")
def test_a_start_that_is_under_way_is_waited_for(tmp_path: Path) -> None:
    fake = begin(tmp_path, age=5)
    fake.cri.sockets[paths.RELAY_ENDPOINT] = lambda: CONTAINERD if fake.clock.time > 24 else "no answer"
    assert await_start(fake, RESTARTS)[0] == []
    assert 24 < fake.clock.time < 25


@rule("R9")
@pytest.mark.parametrize(("age", "waited"), [(5, 25), (31, 0)])
def test_a_start_that_comes_to_nothing_is_begun_anew(tmp_path: Path, age: float, waited: float) -> None:
    fake = begin(tmp_path, age)
    jobs, said = await_start(fake, RESTARTS)
    assert jobs == ["restart"]
    assert waited <= fake.clock.time < waited + 1
    assert [event.data["code"] for event in said if event.kind == "warning"] == ["start-failed"]


def test_a_start_that_ends_is_begun_anew_at_once(tmp_path: Path) -> None:
    fake = begin(tmp_path, age=5)

    def die(time: float) -> None:
        if time > 2:
            unit = fake.systemd.units[paths.PROXY_UNIT]
            fake.systemd.units[paths.PROXY_UNIT] = replace(unit, main_pid=0, sub_state="auto-restart")

    fake.clock.on_sleep = die
    assert await_start(fake, RESTARTS)[0] == ["restart"]
    assert 2 < fake.clock.time < 3


@rule("R4")
@pytest.mark.parametrize(("part", "fails"), [(Part.PROXY, True), (Part.KUBELET, False)])
def test_a_proxy_that_this_plan_has_started_has_to_stay_up_before_kubelet_moves_onto_it(
    tmp_path: Path, part: Part, fails: bool
) -> None:
    fake = begin(tmp_path, age=5)
    starts_at(fake, 0)
    unit = fake.systemd.units[paths.PROXY_UNIT]
    fake.clock.on_sleep = lambda time: fake.systemd.units.update({unit.name: replace(unit, main_pid=0)})
    step = Step(StepKind.AWAIT_RELAY, paths.RELAY_ENDPOINT, part)
    if not fails:
        return start(fake, LIMITS, (step,))
    with pytest.raises(StepFailedError, match="it keeps crashing"):
        start(fake, LIMITS, (step,))
    return None


@rule("R8")
def test_while_kubelet_hangs_all_waiting_has_one_bound(tmp_path: Path) -> None:
    fake = begin(tmp_path, age=5)
    with pytest.raises(StepFailedError, match="the relay is not ready"):
        await_start(fake, replace(LIMITS, proxy_start=11, begun_start=30, hanging=True))
    assert 11 <= fake.clock.time < 12
    jobs, _ = await_start(
        begin(tmp_path, age=5), replace(LIMITS, proxy_start=11, begun_start=6, hanging=True)
    )
    assert jobs == ["restart"]


@rule("R4")
@pytest.mark.parametrize("survives", [True, False])
def test_proxy_that_dies_while_kubelet_restarts_is_no_proxy_to_leave_kubelet_on(
    tmp_path: Path, survives: bool
) -> None:
    """It is back, and the relay answers again, before kubelet has come up. If kubelet died with it, the proxy
    is what failed."""
    name, proxy = "kubelet.service", UnitState(paths.PROXY_UNIT, "loaded", "active", "running", main_pid=7)
    fake = FakeHost(tmp_path)
    fake.cri.sockets[paths.RELAY_ENDPOINT] = CONTAINERD
    fake.systemd.units = {proxy.name: proxy, name: UnitState(name, "loaded", "active", "running", main_pid=8)}
    fake.healthz.healthy = False

    def restart(_method: str, unit: UnitState) -> tuple[str, UnitState]:
        fake.systemd.units[proxy.name] = replace(proxy, n_restarts=1, main_pid=9)
        started = fake.systemd.started(unit)
        return "done", started if survives else replace(started, main_pid=0, sub_state="auto-restart")

    fake.systemd.on_job[name] = restart
    kubelet = DesiredKubelet(DesiredUnit(name, "", "", ""), Strategy.ENVIRONMENT, "", "V", ())
    steps = (
        Step(StepKind.AWAIT_RELAY, paths.RELAY_ENDPOINT, Part.PROXY),
        Step(StepKind.RESTART, name, Part.KUBELET),
        Step(StepKind.AWAIT_KUBELET, name, Part.KUBELET),
    )
    plan = Plan(Mode.INSTALL, Desired(kubelet=kubelet), Changes(), name, steps)
    limits = replace(LIMITS, proxy_start=5, healthz_url="http://127.0.0.1:10248/healthz")
    with pytest.raises(StepFailedError, match=f"{paths.PROXY_UNIT}: it keeps crashing"):
        apply_plan(plan, fake.host, limits, lambda _event: None, Progress())


# -- a start that gets on ------------------------------------------------------------------------

PATIENT = replace(LIMITS, proxy_start=20, begun_start=20, unhurried=20, furthest=60)
RESTARTED = (
    Step(StepKind.RESTART, paths.PROXY_UNIT, Part.PROXY),
    Step(StepKind.AWAIT_RELAY, paths.RELAY_ENDPOINT, Part.PROXY),
)
UNDER_WAY = (Step(StepKind.AWAIT_START, paths.PROXY_UNIT, Part.PROXY), RESTARTED[1])


def move(fake: FakeHost, how: str, until: float) -> None:
    """The proxy says a line each three seconds, or uses the CPU, until then."""

    def on_sleep(time: float) -> None:
        unit = fake.systemd.units[paths.PROXY_UNIT]
        process = fake.processes.processes[unit.main_pid]
        if how == "cpu":
            fake.processes.processes[unit.main_pid] = replace(process, cpu=min(time, until) / 2)
        elif how == "journal" and time < until and int(time / 3) > len(fake.journal.lines.get(unit.name, ())):
            fake.journal.say(unit.name, "placing containers")

    fake.clock.on_sleep = on_sleep


def start(fake: FakeHost, limits: Limits, steps: tuple[Step, ...]) -> None:
    def restart(_method: str, unit: UnitState) -> tuple[str, UnitState]:
        started = fake.systemd.started(unit)
        fake.processes.processes[started.main_pid] = ProcessState(started.main_pid, (paths.BINARY,), {})
        return "done", started

    fake.systemd.on_job = {paths.PROXY_UNIT: restart}
    plan = Plan(Mode.INSTALL, Desired(), Changes(), "kubelet.service", steps)
    apply_plan(plan, fake.host, limits, lambda _event: None, Progress())


def starts_at(fake: FakeHost, seconds: float) -> None:
    fake.cri.sockets[paths.RELAY_ENDPOINT] = lambda: CONTAINERD if fake.clock.time > seconds else "no answer"


@rule("R9")
@pytest.mark.parametrize("steps", [RESTARTED, UNDER_WAY])
@pytest.mark.parametrize("how", ["cpu", "journal"])
def test_a_start_that_gets_on_is_waited_for(tmp_path: Path, how: str, steps: tuple[Step, ...]) -> None:
    fake = begin(tmp_path, age=0)
    starts_at(fake, 45)
    move(fake, how, until=40)
    start(fake, PATIENT, steps)
    assert 45 <= fake.clock.time < 49
    assert [call.method for call in fake.calls].count("restart") == (steps is RESTARTED)


@rule("R9")
@pytest.mark.parametrize(
    ("how", "until", "given_up"),
    [
        ("", 0.0, 20),  # at once
        ("cpu", 5.0, 20),
        ("cpu", 25.0, 35),  # ten seconds after it has last moved
        ("journal", 25.0, 34),
        ("cpu", 999.0, 60),  # for ever busy
    ],
)
def test_a_start_is_given_up_when_nothing_moves_any_more(
    tmp_path: Path, how: str, until: float, given_up: float
) -> None:
    fake = begin(tmp_path, age=0)
    starts_at(fake, 999)
    move(fake, how, until)
    with pytest.raises(StepFailedError, match="the relay is not ready"):
        start(fake, PATIENT, RESTARTED)
    assert given_up <= fake.clock.time < given_up + 2


@rule("R8")
def test_kubelet_hangs_on_no_start_for_longer_because_it_gets_on(tmp_path: Path) -> None:
    fake = begin(tmp_path, age=0)
    starts_at(fake, 999)
    move(fake, "cpu", 999.0)
    with pytest.raises(StepFailedError, match="the relay is not ready"):
        start(fake, replace(PATIENT, proxy_start=11, hanging=True), RESTARTED)
    assert 11 <= fake.clock.time < 12


@rule("R8")
@pytest.mark.parametrize("since", [0.0, 30.0])
def test_the_wait_for_an_answer_to_the_signal_counts_while_the_relay_is_silent(
    tmp_path: Path, since: float
) -> None:
    """It works on the new force.cfg, then its relay falls silent, and so it is after its restart."""
    fake = begin(tmp_path, age=100)
    fake.cri.sockets[paths.RELAY_ENDPOINT] = lambda: CONTAINERD if fake.clock.time < since else "no answer"
    move(fake, "cpu", 999.0)
    kinds = (StepKind.SIGNAL, StepKind.RESTART_IF_REFUSED)
    signalled = tuple(Step(kind, paths.PROXY_UNIT, Part.PROXY) for kind in kinds)
    limits = replace(PATIENT, proxy_start=WHILE_HANGING, begun_start=60, hanging=True)
    with pytest.raises(StepFailedError, match="the relay is not ready"):
        start(fake, limits, (*signalled, RESTARTED[1]))
    assert WHILE_HANGING - 1 <= fake.clock.time - since < WHILE_HANGING + 2
