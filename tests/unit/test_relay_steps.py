"""A start of the proxy that turns out slow while kubelet is on the relay: kubelet leaves, and returns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from installer.errors import KubeletKeptError, StepFailedError, SystemdError
from installer.inputs.settings import Settings
from installer.model import paths
from installer.model.event import Event
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
from installer.model.proxy import WHILE_LINKED
from installer.node.apply import apply_plan
from installer.node.converge import limits_of
from installer.node.plan import leaves_to
from installer.node.relay_steps import RETURN, check_way_back, move_step, restart_kubelet_steps
from installer.node.run import Progress
from tests.lib.fakes import CONTAINERD, FakeHost, timed_out
from tests.lib.rules import rule
from tests.lib.snapshots import BASE, ON_LINK

KUBELET = "kubelet.service"
RUNTIME = f"unix://{BASE}"
LINK = paths.endpoint_link(BASE)
CALM = Limits(proxy_start=WHILE_LINKED, kubelet_start=9, settle=1, guard=1, healthz_url="")
SLOW = replace(CALM, hanging=True, unhurried=60)
RESTART = Step(StepKind.RESTART, paths.PROXY_UNIT, Part.PROXY)
LEAVE = Step(StepKind.LEAVE_IF_SLOW, RUNTIME, Part.PROXY)
AWAIT = Step(StepKind.AWAIT_RELAY, paths.RELAY_ENDPOINT, Part.PROXY)
START = (RESTART, LEAVE, AWAIT, RETURN)
AWAY, BACK = RUNTIME, paths.RELAY_ENDPOINT


class SlowHost:
    """A host whose relay answers so many seconds from now. `moves` are those of kubelet, and when."""

    def __init__(self, root: Path, serves_at: float) -> None:
        self.fake = FakeHost(root)
        proxy = UnitState(paths.PROXY_UNIT, "loaded", "active", "running", main_pid=7)
        self.fake.systemd.units = {
            proxy.name: proxy,
            KUBELET: UnitState(KUBELET, "loaded", "active", "running", main_pid=8),
        }
        self.fake.processes.processes[8] = ProcessState(8, ON_LINK, {"CRI_RESMGR_GUARD_BASE": BASE})
        self.fake.files.make_directory(str(Path(LINK).parent))
        self.fake.files.link(LINK, paths.RELAY_SOCKET)
        self.fake.cri.sockets = {
            RUNTIME: CONTAINERD,
            paths.RELAY_ENDPOINT: lambda: CONTAINERD if self.fake.clock.time >= serves_at else "no answer",
        }
        self.jobs: list[str] = []
        self.moves: list[tuple[str, float]] = []
        self.said: list[Event] = []
        self.progress = Progress()
        self.fake.systemd.on_job = {proxy.name: self._restart_proxy}

    def _restart_proxy(self, method: str, unit: UnitState) -> tuple[str, UnitState]:
        self.jobs.append(method)
        return "done", self.fake.systemd.started(unit)

    def _say(self, event: Event) -> None:
        self.said.append(event)
        if event.kind == "kubelet.moved":
            self.moves.append((str(event.data["endpoint"]), self.fake.clock.time))

    def apply(self, limits: Limits = SLOW, steps: tuple[Step, ...] = START) -> list[str]:
        """Where kubelet goes."""
        unit = DesiredUnit(KUBELET, "", "", "generation")
        desired = Desired(kubelet=DesiredKubelet(unit, Strategy.ENVIRONMENT, "", "V", ()))
        plan = Plan(Mode.INSTALL, desired, Changes(), KUBELET, steps)
        apply_plan(plan, self.fake.host, limits, self._say, self.progress)
        return [endpoint for endpoint, _at in self.moves]


@pytest.fixture
def slow(tmp_path: Path) -> SlowHost:
    return SlowHost(tmp_path, serves_at=45)


@rule("R3", "R8")
@pytest.mark.parametrize("accepts", [False, True])
def test_kubelet_leaves_in_time_and_the_start_goes_on(slow: SlowHost, accepts: bool) -> None:
    """Also if the relay accepts each call and does not answer it."""
    answers = slow.fake.cri.answers

    def call(endpoint: str, timeout: float = ANSWER_SECONDS) -> bool:
        if not (answered := answers(endpoint, timeout)) and accepts:
            slow.fake.clock.sleep(timeout)
        return answered

    slow.fake.cri.answers = call  # type: ignore[method-assign]
    assert slow.apply() == [AWAY, BACK]
    assert WHILE_LINKED <= slow.moves[0][1] < WHILE_LINKED + 1.1
    assert slow.moves[1][1] >= 45
    assert slow.jobs == ["restart"]
    assert slow.fake.systemd.units[KUBELET].main_pid == 8
    assert slow.progress.touched == set(Part)
    assert (slow.progress.left_relay, slow.progress.cut_short) == (True, False)
    assert [event.data["code"] for event in slow.said if event.kind == "warning"] == ["slow-start"]


@rule("R8")
def test_a_quick_start_moves_nothing(tmp_path: Path) -> None:
    assert SlowHost(tmp_path, serves_at=2).apply() == []


@rule("R8")
def test_whoever_has_taken_kubelet_from_the_relay_meanwhile_it_returns(tmp_path: Path) -> None:
    """The guard does, when the proxy is stopped."""
    slow = SlowHost(tmp_path, serves_at=2)

    def leave(_time: float) -> None:
        slow.fake.clock.on_sleep = lambda _time: None
        slow.fake.files.link(LINK, BASE)
        slow.fake.connections.dialled.clear()

    slow.fake.clock.on_sleep = leave
    assert slow.apply() == [BACK]


@rule("R3", "R8")
@pytest.mark.parametrize("left", [1, 0])
def test_a_kubelet_that_cannot_be_moved_returns_by_a_restart_if_one_is_left(
    tmp_path: Path, left: float
) -> None:
    """Linux 5.4: whoever stops the proxy ends the connections, but nobody can end those to the runtime."""
    slow = SlowHost(tmp_path, serves_at=2)
    fake, slow.progress = slow.fake, Progress(restarts_left=left)
    fake.connections.permitted = False
    fake.files.link(LINK, BASE)

    def restart(_method: str, unit: UnitState) -> tuple[str, UnitState]:
        slow.jobs.append("kubelet")
        fake.files.link(LINK, paths.RELAY_SOCKET)
        unit = fake.systemd.started(unit)
        fake.processes.processes[unit.main_pid] = fake.processes.processes[8]
        return "done", unit

    fake.systemd.on_job[KUBELET] = restart
    if left:
        slow.apply()
    else:
        with pytest.raises(KubeletKeptError, match="another restart of it is not allowed now"):
            slow.apply()
    assert slow.jobs == ["restart", "kubelet"][: 1 + int(left)]


@rule("R8")
@pytest.mark.parametrize("leaves", [True, False])
def test_a_start_job_that_outlasts_kubelet_is_no_failure_if_kubelet_may_leave(
    slow: SlowHost, leaves: bool
) -> None:
    """systemd counts the unit as started later than kubelet may hang."""

    def begin(_method: str, unit: UnitState) -> tuple[str, UnitState]:
        begun = replace(unit, active_state="activating", sub_state="start-post", invocation_id="next")
        slow.fake.systemd.units[unit.name] = begun
        raise timed_out(unit.name)

    slow.fake.systemd.on_job[paths.PROXY_UNIT] = begin
    if leaves:
        assert slow.apply() == [AWAY, BACK]
    else:
        with pytest.raises(StepFailedError, match="not done; the job was cancelled"):
            slow.apply(steps=(RESTART, AWAIT))
        assert slow.moves == []


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
    assert slow.moves == []


@rule("R8", "R9")
def test_a_start_that_never_ends_fails_when_all_its_time_is_over(slow: SlowHost) -> None:
    slow.fake.cri.sockets[paths.RELAY_ENDPOINT] = "no answer"
    with pytest.raises(StepFailedError, match="the relay is not ready"):
        slow.apply()
    assert [endpoint for endpoint, _at in slow.moves] == [AWAY]
    assert 60 <= slow.fake.clock.time < 62


@rule("R8")
@pytest.mark.parametrize(
    ("limits", "leave", "cut_short"),
    [
        (SLOW, (replace(LEAVE, target="unix:///run/away.sock"),), True),  # the runtime does not answer
        (replace(SLOW, unhurried=WHILE_LINKED), (LEAVE,), False),  # it gets no more time without kubelet
        (replace(SLOW, hanging=False), (LEAVE,), False),
    ],
)
def test_kubelet_stays_where_leaving_would_not_help(
    slow: SlowHost, limits: Limits, leave: tuple[Step, ...], cut_short: bool
) -> None:
    with pytest.raises(StepFailedError, match="the relay is not ready"):
        slow.apply(limits, (RESTART, *leave, AWAIT))
    assert slow.moves == []
    assert WHILE_LINKED <= slow.fake.clock.time < WHILE_LINKED + 1
    assert slow.progress.cut_short is cut_short


@rule("R8", "R12")
@pytest.mark.parametrize(
    ("serves_at", "crashes", "jobs", "moves"),
    [(45, False, [], [AWAY, BACK]), (2, True, ["restart"], [])],
)
def test_a_start_that_is_under_way_goes_on_without_kubelet(
    tmp_path: Path, serves_at: float, crashes: bool, jobs: list[str], moves: list[str]
) -> None:
    """One that has crashed is begun anew at once, and kubelet waits for it."""
    slow = SlowHost(tmp_path, serves_at)
    units = slow.fake.systemd.units
    if crashes:
        crashed = replace(units[paths.PROXY_UNIT], main_pid=0)
        slow.fake.clock.on_sleep = lambda time: None if slow.jobs else units.update({crashed.name: crashed})
    slow.fake.processes.processes[7] = ProcessState(7, (paths.BINARY,), {}, age=1)
    under_way = Step(StepKind.AWAIT_START, paths.PROXY_UNIT, Part.PROXY)
    assert slow.apply(replace(SLOW, begun_start=60), (under_way, LEAVE, AWAIT, RETURN)) == moves
    assert slow.jobs == jobs


@rule("R8")
def test_kubelet_stays_though_a_proxy_that_this_run_has_not_started_is_silent_for_a_moment(
    tmp_path: Path,
) -> None:
    """It has just read its force.cfg again."""
    assert SlowHost(tmp_path, serves_at=2).apply(steps=(LEAVE, AWAIT, RETURN)) == []


@rule("R4")
@pytest.mark.parametrize("to", [AWAY, BACK])
def test_a_kubelet_that_takes_up_nothing_is_a_failure_that_says_so(slow: SlowHost, to: str) -> None:
    """Somebody else lets the link lead elsewhere, again and again, though the relay answers."""
    slow.fake.cri.sockets[paths.RELAY_ENDPOINT] = CONTAINERD
    link = slow.fake.files.link
    slow.fake.files.link = lambda path, _target, *_: link(path, "/run/other.sock")  # type: ignore[method-assign]
    slow.fake.files.link(LINK, "")
    with pytest.raises(StepFailedError, match=r"kubelet\.service: it does not take up unix://"):
        slow.apply(CALM, (move_step(to),))
    assert 5 <= slow.fake.clock.time < 6


@rule("R4", "R8")
@pytest.mark.parametrize(("stopped", "blameless"), [(True, True), (False, False)])
def test_kubelet_is_not_moved_again_to_a_relay_that_the_guard_has_let_it_leave(
    tmp_path: Path, stopped: bool, blameless: bool
) -> None:
    """Somebody stops the proxy, or it crashes, while kubelet is on its way."""
    slow = SlowHost(tmp_path, serves_at=0)
    fake, await_relay = slow.fake, replace(AWAIT, part=Part.KUBELET)
    fake.files.link(LINK, BASE)
    fake.connections.dialled[8] = (BASE, "")

    def leave(_time: float) -> None:
        fake.clock.on_sleep = lambda _time: None
        fake.cri.sockets[paths.RELAY_ENDPOINT] = "no socket"
        state = ("inactive", "success") if stopped else ("failed", "signal")
        proxy = replace(fake.systemd.units[paths.PROXY_UNIT], main_pid=0)
        fake.systemd.units[proxy.name] = replace(proxy, active_state=state[0], result=state[1])
        fake.files.link(LINK, BASE)

    fake.clock.on_sleep = leave
    with pytest.raises(StepFailedError, match=r"cri-resource-manager\.service: ") as failure:
        slow.apply(CALM, (await_relay, move_step(BACK)))
    assert failure.value.interfered is blameless
    assert fake.clock.time < 1
    assert (fake.root / LINK[1:]).readlink() == Path(BASE)


@rule("R4")
@pytest.mark.parametrize("what", ["nothing", "a file", "a directory", "a dangling link"])
def test_a_link_that_is_lost_is_made_again(slow: SlowHost, what: str) -> None:
    place = slow.fake.root / LINK[1:]
    slow.fake.cri.sockets[paths.RELAY_ENDPOINT] = CONTAINERD
    place.unlink()
    if what == "a file":
        place.touch()
    elif what == "a directory":
        place.mkdir()
    elif what == "a dangling link":
        place.symlink_to("/nowhere")
    assert slow.apply(CALM, (move_step(BACK),)) == [BACK]
    assert place.readlink() == Path(paths.RELAY_SOCKET)


@rule("R4")
def test_a_relay_that_is_silent_gets_no_kubelet_whoever_has_started_its_proxy(slow: SlowHost) -> None:
    with pytest.raises(StepFailedError, match="the relay stopped answering"):
        slow.apply(CALM, (move_step(BACK),))
    assert slow.moves == []


def test_kubelet_has_moved_when_its_calls_in_flight_are_answered(slow: SlowHost) -> None:
    connections = slow.fake.connections
    connections.dialled[8] = (paths.RELAY_ENDPOINT, "")
    connections.drain = lambda *_: frozenset({1})  # type: ignore[method-assign]
    connections.has = lambda *_: slow.fake.clock.time < 12  # type: ignore[method-assign]
    slow.fake.cri.sockets[paths.RELAY_ENDPOINT] = CONTAINERD
    slow.apply(CALM, (move_step(AWAY),))
    assert 12 <= slow.moves[0][1] < 13


def test_kubelet_is_moved_when_it_is_back_from_a_restart_of_somebody_else(slow: SlowHost) -> None:
    process = slow.fake.processes.processes.pop(8)

    def start(_seconds: float) -> None:
        slow.fake.processes.processes[8] = process

    slow.fake.clock.on_sleep = start
    assert slow.apply(CALM, (move_step(AWAY),)) == [AWAY]


@rule("R4")
def test_where_no_link_can_be_made_a_rescue_restarts_kubelet(slow: SlowHost) -> None:
    def full(method: str, path: str) -> None:
        if path.startswith(paths.OUR_RUNTIME) and method in ("link", "write"):
            raise OSError(28, "No space left on device", path)

    slow.fake.files.fail = full
    slow.fake.systemd.on_job[KUBELET] = lambda _method, unit: ("done", slow.fake.systemd.started(unit))
    plan = Plan(Mode.INSTALL, Desired(), Changes(), KUBELET, (move_step(AWAY),), parts=frozenset())
    steps = list[str]()
    with pytest.raises(StepFailedError):  # the guard is not there, which would take it off the link
        apply_plan(
            plan, slow.fake.host, CALM, lambda event: steps.append(str(event.data.get("step"))), Progress()
        )
    assert steps[-2:] == ["restart", "await-kubelet"]


# -- what is planned -------------------------------------------------------------------------------


def snapshot(*, on_relay: bool = True, movable: bool = True) -> HostSnapshot:
    target = paths.RELAY_SOCKET if on_relay else BASE
    process = ProcessState(8, ON_LINK, {})
    kubelet = KubeletSnapshot(UnitState(KUBELET), process, target=target, base=BASE, movable=movable)
    return HostSnapshot(ProxySnapshot(UnitState(paths.PROXY_UNIT)), kubelet)


@rule("R8")
@pytest.mark.parametrize(
    ("on_relay", "steps", "seconds"),
    [(True, START, WHILE_LINKED), (True, (RESTART, AWAIT), 11), (False, START, 0)],
)
def test_how_long_a_start_may_take_follows_from_where_kubelet_is(
    on_relay: bool, steps: tuple[Step, ...], seconds: float
) -> None:
    plan = Plan(Mode.INSTALL, Desired(), Changes(), KUBELET, steps)
    limits = limits_of(plan, snapshot(on_relay=on_relay), Settings())
    assert (limits.hanging, limits.cuts_short) == (seconds > 0, seconds > 0)
    assert limits.proxy_start == (seconds or 20)


@rule("R8")
@pytest.mark.parametrize(
    ("on_relay", "movable", "goes"), [(True, True, RUNTIME), (True, False, ""), (False, True, "")]
)
def test_kubelet_leaves_a_start_where_it_can_do_so_without_a_restart(
    on_relay: bool, movable: bool, goes: str
) -> None:
    restart = UnitChange(paths.PROXY_UNIT, Part.PROXY, UnitAction.RESTART, ())
    assert leaves_to(snapshot(on_relay=on_relay, movable=movable), Changes(units=(restart,))) == goes


@rule("R3")
@pytest.mark.parametrize("back", [(move_step(BACK),), restart_kubelet_steps(KUBELET)])
@pytest.mark.parametrize(
    ("held", "left", "kept"), [("", 1, False), ("mine", 1, True), ("mine", 0, True), ("", 0, None)]
)
def test_what_keeps_kubelet_on_its_base_endpoint(
    back: tuple[Step, ...], held: str, left: int, kept: bool | None
) -> None:
    """A person does; a limit of restarts only where it has to be restarted."""
    rest = (Step(StepKind.CLEAR_HOLD, paths.HOLD, Part.KUBELET), *back)
    restarts = back[0].kind is StepKind.RESTART
    if kept if kept is not None else restarts:
        with pytest.raises(KubeletKeptError):
            check_way_back(rest, KUBELET, left, held)
    else:
        check_way_back(rest, KUBELET, left, held)
