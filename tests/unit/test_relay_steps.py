"""A start of the proxy that turns out slow while kubelet hangs on the relay."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from installer.errors import StepFailedError, SystemdError
from installer.inputs.settings import Settings
from installer.model import paths
from installer.model.event import Event
from installer.model.hold import BY_RUN
from installer.model.host import HostSnapshot, KubeletSnapshot, Part, ProcessState, ProxySnapshot, UnitState
from installer.model.limits import ANSWER_SECONDS, Limits
from installer.model.names import Mode
from installer.model.plan import (
    Changes,
    Desired,
    DesiredKubelet,
    DesiredUnit,
    Plan,
    Step,
    StepKind,
    Strategy,
    UnitAction,
    UnitChange,
)
from installer.model.proxy import WHILE_HANGING
from installer.node.apply import apply_plan
from installer.node.converge import limits_of
from installer.node.plan import leaves_to
from installer.node.relay_steps import restart_kubelet_steps, return_steps
from installer.node.run import Progress
from tests.lib.fakes import CONTAINERD, FakeHost, timed_out
from tests.lib.rules import rule

KUBELET = "kubelet.service"
RUNTIME = "unix:///run/containerd/containerd.sock"
RELAY_ARGV = ("kubelet", f"--container-runtime-endpoint={paths.RELAY_ENDPOINT}")
CALM = Limits(proxy_start=11, kubelet_start=9, settle=1, guard=1, healthz_url="")
SLOW = replace(CALM, hanging=True, unhurried=60)
RESTART = Step(StepKind.RESTART, paths.PROXY_UNIT, Part.PROXY)
LEAVE = Step(StepKind.LEAVE_IF_SLOW, RUNTIME, Part.PROXY)
AWAIT = Step(StepKind.AWAIT_RELAY, paths.RELAY_ENDPOINT, Part.PROXY)
START = (RESTART, LEAVE, AWAIT)
CLEAR = Step(StepKind.CLEAR_HOLD, paths.HOLD, Part.KUBELET)


class SlowHost:
    """A host whose relay answers so many seconds from now. `jobs` are the restarts, those of kubelet with
    whether our hold was there."""

    def __init__(self, root: Path, serves_at: float) -> None:
        self.fake = FakeHost(root)
        (root / "var/lib").mkdir(parents=True)
        proxy = UnitState(paths.PROXY_UNIT, "loaded", "active", "running", main_pid=7)
        self.fake.systemd.units = {
            proxy.name: proxy,
            KUBELET: UnitState(KUBELET, "loaded", "active", "running", main_pid=8),
        }
        self.fake.cri.sockets = {
            RUNTIME: CONTAINERD,
            paths.RELAY_ENDPOINT: lambda: CONTAINERD if self.fake.clock.time >= serves_at else "no answer",
        }
        self.jobs: list[str] = []
        self.kubelet_takes = 0.0  # seconds for each restart
        self.said: list[Event] = []
        self.progress = Progress()
        self.fake.systemd.on_job = {proxy.name: self._restart_proxy, KUBELET: self._restart_kubelet}

    def _restart_proxy(self, method: str, unit: UnitState) -> tuple[str, UnitState]:
        self.jobs.append(f"{method} proxy")
        return "done", self.fake.systemd.started(unit)

    def _restart_kubelet(self, method: str, unit: UnitState) -> tuple[str, UnitState]:
        self.fake.clock.sleep(self.kubelet_takes)
        held = self.fake.files.read(paths.HOLD)
        self.jobs.append(f"{method} kubelet, held: {held is not None and held.startswith(BY_RUN.encode())}")
        now = self.fake.systemd.started(unit)
        argv = ("kubelet",) if held else RELAY_ARGV
        self.fake.processes.processes[now.main_pid] = ProcessState(now.main_pid, argv, {})
        return "done", now

    def apply(self, limits: Limits = SLOW, steps: tuple[Step, ...] = START) -> Progress:
        unit = DesiredUnit(KUBELET, "", "", "generation")
        desired = Desired(kubelet=DesiredKubelet(unit, Strategy.ENVIRONMENT, "", "V", ()))
        plan = Plan(Mode.INSTALL, desired, Changes(), KUBELET, steps)
        apply_plan(plan, self.fake.host, limits, self.said.append, self.progress)
        return self.progress


AWAY_AND_BACK = ["restart kubelet, held: True", "restart kubelet, held: False"]


@pytest.fixture
def slow(tmp_path: Path) -> SlowHost:
    return SlowHost(tmp_path, serves_at=45)


@rule("R8")
@pytest.mark.parametrize("accepts", [False, True])
def test_kubelet_leaves_in_time_and_the_start_goes_on(slow: SlowHost, accepts: bool) -> None:
    """Also if the relay accepts each call and does not answer it."""
    left, answers = list[float](), slow.fake.cri.answers

    def call(endpoint: str, timeout: float = ANSWER_SECONDS) -> bool:
        if not (answered := answers(endpoint, timeout)) and accepts:
            slow.fake.clock.sleep(timeout)
        return answered

    slow.fake.cri.answers = call  # type: ignore[method-assign]
    slow.fake.clock.on_sleep = lambda time: left.append(time) if len(slow.jobs) == 2 else None
    progress = slow.apply()
    assert slow.jobs == ["restart proxy", *AWAY_AND_BACK]
    assert WHILE_HANGING <= min(left) < WHILE_HANGING + 1
    assert slow.fake.clock.time >= 45
    assert slow.fake.files.read(paths.HOLD) is None
    assert progress.touched == set(Part)
    assert (progress.left_relay, progress.cut_short) == (True, False)
    assert [event.data["code"] for event in slow.said if event.kind == "warning"] == ["slow-start"]


@rule("R8")
@pytest.mark.parametrize("leaves", [True, False])
def test_a_start_job_that_outlasts_kubelet_is_no_failure_if_kubelet_may_leave(
    slow: SlowHost, leaves: bool
) -> None:
    """systemd counts the unit as started later than kubelet may hang."""
    proxy = slow.fake.systemd.units[paths.PROXY_UNIT]
    slow.fake.systemd.units[paths.PROXY_UNIT] = replace(
        proxy, active_state="activating", sub_state="start-post"
    )
    slow.fake.systemd.errors["restart", paths.PROXY_UNIT] = timed_out(paths.PROXY_UNIT)
    if leaves:
        slow.apply()
    else:
        with pytest.raises(StepFailedError, match="not done; the job was cancelled"):
            slow.apply(steps=(RESTART, AWAIT))
    assert slow.jobs == AWAY_AND_BACK * leaves


@rule("R8")
@pytest.mark.parametrize(
    ("state", "pid", "lost"), [("failed", 0, False), ("deactivating", 7, False), ("active", 7, True)]
)
def test_a_start_that_has_failed_does_not_move_kubelet(
    slow: SlowHost, state: str, pid: int, lost: bool
) -> None:
    proxy = slow.fake.systemd.units[paths.PROXY_UNIT]
    slow.fake.systemd.units[paths.PROXY_UNIT] = replace(proxy, active_state=state, main_pid=pid)
    slow.fake.systemd.errors["restart", paths.PROXY_UNIT] = SystemdError("not done", lost=lost)
    with pytest.raises(StepFailedError, match="not done"):
        slow.apply()
    assert slow.jobs == []


@rule("R8", "R9")
def test_a_start_that_never_ends_fails_when_all_its_time_is_over(slow: SlowHost) -> None:
    slow.fake.cri.sockets[paths.RELAY_ENDPOINT] = "no answer"
    with pytest.raises(StepFailedError, match="the relay is not ready"):
        slow.apply()
    assert slow.jobs == ["restart proxy", AWAY_AND_BACK[0]]
    assert 60 <= slow.fake.clock.time < 62


@rule("R8")
def test_a_proxy_that_has_started_while_kubelet_took_long_to_leave_is_asked(slow: SlowHost) -> None:
    slow.kubelet_takes = 60
    slow.apply(replace(SLOW, unhurried=20))
    assert slow.jobs == ["restart proxy", *AWAY_AND_BACK]


@rule("R8")
@pytest.mark.parametrize(
    ("limits", "leave", "cut_short"),
    [
        (SLOW, (), True),  # with this policy it places nothing
        (SLOW, (replace(LEAVE, target="unix:///run/away.sock"),), True),  # the runtime does not answer
        (replace(SLOW, unhurried=11.0), (LEAVE,), False),  # it gets no more time without kubelet
        (replace(SLOW, hanging=False), (LEAVE,), False),
    ],
)
def test_kubelet_stays_where_leaving_would_not_help(
    slow: SlowHost, limits: Limits, leave: tuple[Step, ...], cut_short: bool
) -> None:
    with pytest.raises(StepFailedError, match="the relay is not ready"):
        slow.apply(limits, (RESTART, *leave, AWAIT))
    assert slow.jobs == ["restart proxy"]
    assert 11 <= slow.fake.clock.time < 12
    assert slow.progress.cut_short is cut_short


@rule("R8", "R12")
@pytest.mark.parametrize(
    ("serves_at", "crashes", "jobs"), [(45, False, AWAY_AND_BACK), (4, True, ["restart proxy"])]
)
def test_a_start_that_is_under_way_goes_on_without_kubelet(
    tmp_path: Path, serves_at: float, crashes: bool, jobs: list[str]
) -> None:
    """One that has crashed is begun anew at once, and kubelet waits for it."""
    slow = SlowHost(tmp_path, serves_at)
    units = slow.fake.systemd.units
    if crashes:
        crashed = replace(units[paths.PROXY_UNIT], main_pid=0)
        slow.fake.clock.on_sleep = lambda time: None if slow.jobs else units.update({crashed.name: crashed})
    slow.fake.processes.processes[7] = ProcessState(7, (paths.BINARY,), {}, age=5)
    under_way = Step(StepKind.AWAIT_START, paths.PROXY_UNIT, Part.PROXY)
    slow.apply(replace(SLOW, begun_start=60), (under_way, LEAVE, AWAIT))
    assert slow.jobs == jobs


@rule("R8")
def test_kubelet_stays_though_a_proxy_that_this_run_has_not_started_is_silent_for_a_moment(
    tmp_path: Path,
) -> None:
    """It has just read its force.cfg again."""
    slow = SlowHost(tmp_path, serves_at=3)
    slow.apply(steps=(LEAVE, AWAIT))
    assert slow.jobs == []


@rule("R8")
@pytest.mark.parametrize(
    ("rest", "then"),
    [
        ((AWAIT,), (AWAIT, CLEAR, *restart_kubelet_steps(KUBELET))),
        ((), (CLEAR, *restart_kubelet_steps(KUBELET))),
        ((AWAIT, *restart_kubelet_steps(KUBELET)), (AWAIT, CLEAR, *restart_kubelet_steps(KUBELET))),
        ((RESTART, AWAIT), (RESTART, AWAIT, CLEAR, *restart_kubelet_steps(KUBELET))),
    ],
)
def test_kubelet_comes_back_once(rest: tuple[Step, ...], then: tuple[Step, ...]) -> None:
    assert return_steps(rest, KUBELET) == then


def snapshot(*, on_relay: bool = True, hold: str = "") -> HostSnapshot:
    process = ProcessState(8, RELAY_ARGV if on_relay else RELAY_ARGV[:1], {})
    proxy = ProxySnapshot(UnitState(paths.PROXY_UNIT))
    return HostSnapshot(proxy, KubeletSnapshot(UnitState(KUBELET), process), hold=hold)


@rule("R8")
@pytest.mark.parametrize(
    ("on_relay", "steps", "hanging"),
    [
        (True, START, True),
        (True, (RESTART, AWAIT), True),
        (False, START, False),
    ],
)
def test_how_long_a_start_may_take_follows_from_where_kubelet_is(
    on_relay: bool, steps: tuple[Step, ...], hanging: bool
) -> None:
    plan = Plan(Mode.INSTALL, Desired(), Changes(), KUBELET, steps)
    limits = limits_of(plan, snapshot(on_relay=on_relay), Settings())
    assert (limits.hanging, limits.cuts_short) == (hanging, hanging)
    assert limits.begun_start == (WHILE_HANGING / 2 if hanging and LEAVE not in steps else 20)


@rule("R8")
@pytest.mark.parametrize(
    ("back", "on_relay", "hold", "took", "goes"),
    [
        (True, True, "", 0, RUNTIME),
        (True, True, f"{BY_RUN}one that was killed", 0, RUNTIME),
        (True, True, "a person's", 0, ""),
        (True, False, "", 0, ""),
        (False, True, "", 0, ""),  # without containers a start is quick
        (False, True, "", 14, RUNTIME),  # but not on this machine
    ],
)
def test_for_the_good_proxy_kubelet_leaves_rather_than_that_both_ways_fail(
    back: bool, on_relay: bool, hold: str, took: float, goes: str
) -> None:
    restart = UnitChange(paths.PROXY_UNIT, Part.PROXY, UnitAction.RESTART, ())
    host = snapshot(on_relay=on_relay, hold=hold)
    host = replace(host, proxy=replace(host.proxy, last_start=took))
    assert leaves_to(host, Changes(units=(restart,)), "none", RUNTIME, back=back) == goes
