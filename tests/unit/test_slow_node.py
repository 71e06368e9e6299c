"""Whole runs on a simulated node where each start of the proxy takes longer than kubelet may hang on it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from installer.errors import DESTRUCTIVE, UNIT_MASKED, RollbackFailedError, RolledBackError, SystemdError
from installer.host.ports import RuntimeStatus
from installer.model import paths
from installer.model.host import UnitState
from installer.model.proxy import WHILE_LINKED
from tests.faults.disks.crash import build
from tests.faults.disks.node import KUBELET, bare_node, program
from tests.lib.fakes import CONTAINERD, timed_out
from tests.lib.rules import rule
from tests.lib.slownode import SlowNode, build_slow_node, release

BOUND = 30.0  # that kubelet may hang for


@pytest.fixture
def payload(tmp_path: Path) -> Path:
    release(tmp_path / "payload", "one")
    return tmp_path / "payload"


@pytest.fixture
def node(tmp_path: Path, payload: Path) -> SlowNode:
    """Installed; each start from now on is slow."""
    made = build_slow_node(tmp_path / "node", payload)
    made.slow = ("one", "two")
    return made


@rule("R8")
def test_who_is_slow_to_answer_works(tmp_path: Path, payload: Path) -> None:
    """The relay, the runtime and kubelet of a starved node."""
    root = tmp_path / "starved"
    root.mkdir()
    build(bare_node(), root)
    node = SlowNode(root)
    node.fake.cri.seconds = node.fake.healthz.seconds = 4.0
    node.install(payload)
    assert node.on_relay
    release(payload, "two")
    node.install(payload)
    assert node.read(paths.BINARY) == program("two")
    assert "start-failed" not in {event.data.get("code") for event in node.said}
    assert node.on_relay


def upgrade_without_kubelet(node: SlowNode, payload: Path) -> None:
    """Kubelet leaves the relay in time, and returns to that of the new program."""
    began = node.fake.clock.time
    node.install(payload)
    assert node.off_relay_at is not None
    assert node.off_relay_at - began < WHILE_LINKED + 2
    assert node.read(paths.BINARY) == program("two")
    assert node.on_relay


@rule("R8")
def test_a_start_that_takes_long_is_no_failure(node: SlowNode, payload: Path) -> None:
    release(payload, "two")
    upgrade_without_kubelet(node, payload)


NOT_READY = CONTAINERD._replace(ready=False, reason="busy")


@rule("R8")
@pytest.mark.parametrize(
    "stretches",
    [
        ((6.0, NOT_READY),),
        ((1.0, CONTAINERD), (6.0, "no answer")),  # it is judged when it has answered for a while
    ],
    ids=["answers-and-is-not-ready", "answers-and-falls-silent"],
)
def test_a_relay_that_gets_ready_late_is_no_failure(
    node: SlowNode, payload: Path, stretches: tuple[tuple[float, RuntimeStatus | str], ...]
) -> None:
    """On a busy node the first answer says little about the next one."""
    release(payload, "two")
    node.slow, began = (), list[float]()
    start = node.systemd.on_job[paths.PROXY_UNIT]

    def begin(method: str, unit: UnitState) -> tuple[str, UnitState]:
        began.append(node.fake.clock.time)
        return start(method, unit)

    def relay() -> RuntimeStatus | str:
        since = node.fake.clock.time - began[0] if began else math.inf
        return next((answer for until, answer in stretches if since < until), CONTAINERD)

    node.systemd.on_job[paths.PROXY_UNIT] = begin
    node.fake.cri.sockets[paths.RELAY_ENDPOINT] = relay
    node.install(payload)
    assert node.off_relay_at is not None
    assert node.off_relay_at - began[0] < WHILE_LINKED + 2
    assert node.read(paths.BINARY) == program("two")
    assert len(began) == 1
    assert node.on_relay


@rule("R8")
def test_what_fails_for_another_reason_is_blamed_though_the_node_is_slow(
    node: SlowNode, payload: Path
) -> None:
    release(payload, "two", works=False)
    with pytest.raises(RolledBackError, match="the job ended as 'failed'") as ended:
        node.install(payload)
    assert ended.value.remembered
    assert node.off_relay_at is not None
    assert node.on_relay


@rule("R8")
def test_for_a_good_proxy_that_is_slow_kubelet_leaves(node: SlowNode, payload: Path, tmp_path: Path) -> None:
    configs = tmp_path / "configs"
    configs.mkdir()
    (configs / "fallback.cfg").write_text(
        "policy:\n  Active: topology-aware\n  ReservedResources:\n    CPU: 750m\n"
    )
    node.slow = ()
    node.install(payload, configs)
    node.slow = ("one",)
    release(payload, "two", works=False)
    node.said.clear()
    with pytest.raises(RolledBackError, match="the job ended as 'failed'"):
        node.install(payload)
    done = [event.data["step"] for event in node.said if event.kind == "step.done"]
    assert done[done.index("move") :] == ["move", "await-relay", "return", "move", "check-pods"]
    assert "slow-start" in [event.data.get("code") for event in node.said]
    assert node.on_relay


@rule("R8")
def test_what_never_answers_is_blamed_and_the_good_proxy_comes_back(node: SlowNode, payload: Path) -> None:
    release(payload, "two")
    node.slow, node.seconds = ("two",), 1000.0
    with pytest.raises(RolledBackError, match="the relay is not ready") as ended:
        node.install(payload)
    assert ended.value.remembered
    assert node.on_relay


@rule("R8")
def test_a_relay_that_a_signal_leaves_silent_is_left_in_time(
    tmp_path: Path, node: SlowNode, payload: Path
) -> None:
    """It works on the new force.cfg for ever; restarted, it is silent, and so is the good one."""
    configs = tmp_path / "configs"
    configs.mkdir()
    (configs / "force.cfg").write_text("policy:\n  Active: none\n")
    node.slow = ()
    node.install(payload, configs)
    node.slow, node.seconds = ("one",), 1000.0
    node.systemd.on_kill = lambda _name, _number: node.be_silent()
    node.said.clear()
    (configs / "force.cfg").write_text("policy:\n  Active: none\nlogger:\n  Debug: all\n")
    began = node.fake.clock.time
    with pytest.raises(RollbackFailedError):
        node.install(payload, configs)
    assert "force-refused" in [event.data.get("code") for event in node.said]
    assert node.off_relay_at is not None
    assert node.off_relay_at - began < BOUND


@rule("R8")
@pytest.mark.parametrize(
    ("becomes", "blamed"),
    [
        ({}, None),
        ({"active_state": "deactivating", "sub_state": "stop-sigkill"}, False),
        ({"active_state": "failed", "result": "timeout", "main_pid": 0}, True),
    ],
    ids=["starts", "still stops", "has failed"],
)
def test_a_job_that_runs_out_of_its_time_has_not_ended_the_start(
    node: SlowNode, payload: Path, becomes: dict[str, Any], blamed: bool | None
) -> None:
    """Somebody else had begun it, or a proxy that hung took its time to stop."""
    release(payload, "two")
    node.slow = ("two",)
    start = node.systemd.on_job[paths.PROXY_UNIT]

    def begin(method: str, unit: UnitState) -> tuple[str, UnitState]:
        result, begun = start(method, unit)
        if method != "restart" or b"two" not in (node.read(paths.BINARY) or b""):
            return result, begun
        return "timeout", replace(begun, **becomes)

    node.systemd.on_job[paths.PROXY_UNIT] = begin
    if blamed is None:
        node.install(payload)
    else:
        with pytest.raises(RolledBackError, match="the job ended as 'timeout'") as ended:
            node.install(payload)
        assert ended.value.remembered is blamed
    assert node.read(paths.BINARY) == program("one" if blamed is not None else "two")
    assert node.on_relay


def keep_waiting(node: SlowNode, whose: str, jobs: float = 1) -> Callable[[], None]:
    """The next jobs of the proxy wait for another unit's, or are refused, and the old process runs on. The
    returned function ends that."""
    start, left = node.systemd.on_job[paths.PROXY_UNIT], jobs

    def over() -> None:
        node.systemd.on_job[paths.PROXY_UNIT] = start

    def wait(method: str, unit: UnitState) -> tuple[str, UnitState]:
        nonlocal left
        left -= 1
        if left <= 0:
            over()
        if whose in (DESTRUCTIVE, UNIT_MASKED):
            raise SystemdError(f"systemctl {method} {unit.name}: refused", name=whose)
        node.fake.clock.sleep(WHILE_LINKED)
        if whose == "the run's":
            raise timed_out(unit.name)
        return "timeout", unit

    node.slow = ()
    node.systemd.on_job[paths.PROXY_UNIT] = wait
    return over


NEVER_BEGAN = {
    "the unit's": "another unit's job came first",
    "the run's": "another unit's job came first",
    DESTRUCTIVE: "refused",  # the host shuts down
    UNIT_MASKED: "refused",
}


@rule("R8")
@pytest.mark.parametrize("verb", ["restart", "stop"])
@pytest.mark.parametrize(("whose", "why"), NEVER_BEGAN.items())
def test_a_job_that_never_began_is_not_done_and_nobody_is_blamed(
    node: SlowNode, payload: Path, whose: str, why: str, verb: str
) -> None:
    """Whosever time it ran out of: somebody stops kubelet, which takes long. A proxy that systemd has
    restarted is stopped before it is started."""
    release(payload, "two")
    unit = node.systemd.unit(paths.PROXY_UNIT)
    node.systemd.units[unit.name] = replace(unit, n_restarts=int(verb == "stop"))
    keep_waiting(node, whose)
    with pytest.raises(RolledBackError, match=why) as ended:
        node.install(payload)
    assert not ended.value.remembered
    assert node.read(paths.BINARY) == program("one")
    assert node.on_relay
    if verb == "restart":  # else the rollback stops the proxy, and its guard lets kubelet leave
        assert node.off_relay_at is None


@rule("R4", "R8")
@pytest.mark.parametrize("whose", NEVER_BEGAN)
def test_kubelet_stays_on_a_relay_that_answers_though_the_rollback_gets_no_job_either(
    node: SlowNode, payload: Path, whose: str
) -> None:
    """The host still shuts down, the unit is still masked, or the other one still stops."""
    over = keep_waiting(node, whose, math.inf)
    release(payload, "two")
    with pytest.raises(RollbackFailedError):
        node.install(payload)
    assert node.off_relay_at is None
    assert node.on_relay
    assert node.read(paths.HOLD) is None
    assert node.read(paths.PROXY_START_OURS) is None, "a start by systemd itself is not ours"
    over()
    node.install(payload)
    assert node.read(paths.BINARY) == program("two")
    assert node.on_relay


@rule("R8")
@pytest.mark.parametrize("whose", ["the unit's", "the run's"])
def test_kubelet_does_not_wait_for_another_units_job_on_a_silent_relay(
    node: SlowNode, payload: Path, whose: str
) -> None:
    release(payload, "two")
    keep_waiting(node, whose)
    node.be_silent()
    upgrade_without_kubelet(node, payload)


@rule("R3", "R13")
@pytest.mark.parametrize(("whose", "why"), NEVER_BEGAN.items())
def test_a_force_cfg_that_is_refused_is_not_in_force_until_the_proxy_has_started_again(
    tmp_path: Path, node: SlowNode, payload: Path, whose: str, why: str
) -> None:
    configs = tmp_path / "configs"
    configs.mkdir()
    (configs / "force.cfg").write_text("policy:\n  Active: none\n")
    node.slow = ()
    node.install(payload, configs)
    (configs / "force.cfg").write_text("policy:\n  Active: none\nlogger:\n  Debug: all\n")
    keep_waiting(node, whose)
    before = node.systemd.unit(paths.PROXY_UNIT).main_pid
    with pytest.raises(RolledBackError, match=why) as ended:
        node.install(payload, configs)
    assert not ended.value.remembered
    node.install(payload, configs)
    assert node.systemd.unit(paths.PROXY_UNIT).main_pid != before


@rule("R8")
@pytest.mark.parametrize("whose", NEVER_BEGAN)
@pytest.mark.parametrize("state", ["deactivating", "inactive"])
def test_a_rollback_that_gets_no_job_either_leaves_a_kubelet_that_somebody_stops(
    node: SlowNode, payload: Path, whose: str, state: str
) -> None:
    """The proxy's job waits for that stop. A host that shuts down begins with it."""
    keep_waiting(node, whose, math.inf)
    wait = node.systemd.on_job[paths.PROXY_UNIT]

    def stop_kubelet(method: str, unit: UnitState) -> tuple[str, UnitState]:
        kubelet, stops = node.systemd.unit(KUBELET), state == "deactivating"
        pid = kubelet.main_pid if stops else 0
        node.systemd.units[KUBELET] = replace(kubelet, active_state=state, main_pid=pid, has_job=stops)
        node.fake.healthz.healthy = False
        return wait(method, unit)

    node.systemd.on_job[paths.PROXY_UNIT] = stop_kubelet
    release(payload, "two")
    with pytest.raises(RollbackFailedError) as ended:
        node.install(payload)
    assert node.systemd.unit(KUBELET).active_state == state
    assert paths.DROP_IN_NAME not in ended.value.hint, "our lines do not keep it from starting"
    assert node.read(paths.HOLD) is None
