"""Whole runs on a simulated node where each start of the proxy takes longer than kubelet may hang on it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from installer.errors import RolledBackError
from installer.inputs.load import Request
from installer.inputs.settings import KubeletSettings, Settings
from installer.model import paths
from installer.model.event import Event
from installer.model.proxy_start import WHILE_HANGING
from installer.model.resource import UnitState
from installer.model.state import Mode
from installer.reconcile import look, reconcile
from tests.fakes import CONTAINERD
from tests.faults.disks.crash import build
from tests.faults.disks.node import Node, bare_node, program
from tests.faults.disks.recorder import Careless
from tests.rules import rule

SECONDS = 14.0
BOUND = 30.0  # that kubelet may hang for
SETTINGS = Settings(kubelet=KubeletSettings(settle_seconds=1))


class SlowNode(Node):
    """A start is `slow` if the program then is one of those. `off_relay_at`: when kubelet was first seen on
    its base endpoint."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, Careless())
        self._serves_at = 0.0
        self.slow: tuple[str, ...] = ()
        self.said: list[Event] = []
        self.off_relay_at: float | None = None
        start = self.systemd.on_job[paths.PROXY_UNIT]

        def begin(method: str, unit: UnitState) -> tuple[str, UnitState]:
            slow = (self.read(paths.BINARY) or b"") in map(program, self.slow)
            self._serves_at = self.fake.clock.time + (SECONDS if slow else 0.0)
            result, begun = start(method, unit)
            if not slow:
                self._serves(begun.main_pid)
            return result, begun

        def serves() -> bool:
            return self.proxy_runs and self.fake.clock.time >= self._serves_at

        self.systemd.on_job[paths.PROXY_UNIT] = begin
        self.fake.cri.sockets[paths.RELAY_ENDPOINT] = lambda: CONTAINERD if serves() else "no answer"
        self.fake.clock.on_sleep = self._watch

    def _serves(self, pid: int) -> None:
        pid_file = self.fake.root / paths.PROXY_PID_FILE[1:]
        pid_file.parent.mkdir(exist_ok=True)
        pid_file.write_text(f"{pid}\n")

    def _watch(self, time: float) -> None:
        if self.off_relay_at is None and not self.on_relay:
            self.off_relay_at = time

    def install(self, payload: Path, configs: Path | None = None) -> None:
        self.off_relay_at = None
        asked = Request(Mode.INSTALL, SETTINGS, payload, configs, default_configs=configs is None)
        reconcile(asked, self.fake.host, self.said.append)

    def last_start_took(self, seconds: float) -> None:
        """As the files of the proxy that runs tell."""
        unit = self.systemd.unit(paths.PROXY_UNIT)
        processes = self.fake.processes.processes
        processes[unit.main_pid] = replace(processes[unit.main_pid], age=3600.0)
        run = self.fake.root / "run"
        (run / "cri-resmgr").unlink()
        (run / "cri-resmgr").mkdir()
        socket, pid_file = run / "cri-resmgr/cri-resmgr.sock", self.fake.root / paths.PROXY_PID_FILE[1:]
        socket.touch()
        pid_file.write_text(f"{unit.main_pid}\n")
        os.utime(socket, (1_700_000_000, 1_700_000_000))
        os.utime(pid_file, (1_700_000_000, 1_700_000_000 + seconds))


def release(payload: Path, version: str, *, works: bool = True) -> None:
    """A payload with another program."""
    binary = payload / paths.BINARY[1:]
    binary.parent.mkdir(parents=True, exist_ok=True)
    binary.write_bytes(program(version, works=works))
    binary.chmod(0o755)


@pytest.fixture
def payload(tmp_path: Path) -> Path:
    release(tmp_path / "payload", "one")
    return tmp_path / "payload"


@pytest.fixture
def node(tmp_path: Path, payload: Path) -> SlowNode:
    """Installed; each start from now on is slow."""
    root = tmp_path / "node"
    root.mkdir()
    build(bare_node(), root)
    made = SlowNode(root)
    made.install(payload)
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
    assert not {"slow-start", "start-failed"} & {event.data.get("code") for event in node.said}


@rule("R8")
def test_both_ways_slow_the_good_proxy_gets_its_time_and_nothing_is_blamed(
    node: SlowNode, payload: Path
) -> None:
    release(payload, "two")
    began = node.fake.clock.time
    with pytest.raises(RolledBackError, match="the relay is not ready") as ended:
        node.install(payload)
    assert not ended.value.remembered
    assert "starts the proxy slowly" in ended.value.hint
    assert node.off_relay_at is not None
    assert 2 * WHILE_HANGING < node.off_relay_at - began < BOUND
    assert node.on_relay
    assert node.read(paths.HOLD) is None
    assert not look(Request(Mode.INSTALL, SETTINGS, payload), node.fake.host).remembered_failure


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
def test_for_a_good_proxy_that_was_seen_to_be_slow_kubelet_leaves_first(
    node: SlowNode, payload: Path, tmp_path: Path
) -> None:
    """The attempt has a policy that places nothing, and fails."""
    configs = tmp_path / "configs"
    configs.mkdir()
    (configs / "fallback.cfg").write_text(
        "policy:\n  Active: topology-aware\n  ReservedResources:\n    CPU: 750m\n"
    )
    node.slow = ()
    node.install(payload, configs)
    node.slow = ("one",)
    node.last_start_took(SECONDS)
    release(payload, "two", works=False)
    node.said.clear()
    with pytest.raises(RolledBackError, match="the job ended as 'failed'"):
        node.install(payload)
    done = [event.data["step"] for event in node.said if event.kind == "step.done"]
    back = done[done.index("await-kubelet-on-base") :]
    assert back.index("restart") < back.index("await-relay") < back.index("clear-hold")
    assert "slow-start" not in [event.data.get("code") for event in node.said]
    assert node.on_relay


@rule("R8")
def test_where_the_good_proxy_is_quick_what_was_silent_is_blamed_and_kubelet_stays(
    node: SlowNode, payload: Path
) -> None:
    release(payload, "two")
    node.slow = ("two",)
    with pytest.raises(RolledBackError, match="the relay is not ready") as ended:
        node.install(payload)
    assert ended.value.remembered
    assert node.off_relay_at is None
