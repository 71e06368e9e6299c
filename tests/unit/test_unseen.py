"""Kubelet's connections that cannot be asked to go, or whose other ends nobody can see."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from installer.inputs.load import Request
from installer.inputs.settings import KubeletSettings, Settings
from installer.model.event import silent
from installer.model.names import Mode
from installer.model.paths import RELAY_ENDPOINT, same_endpoint
from installer.node.reconcile import reconcile
from installer.node.rescue import hold_kubelet
from tests.faults.disks.node import KUBELET, Node, lay_node
from tests.lib.fakes import FakeConnections
from tests.lib.rules import rule
from tests.lib.slownode import release

SETTINGS = Settings(kubelet=KubeletSettings(settle_seconds=1))
BASE = "/run/containerd/containerd.sock"


@dataclass
class Channels(FakeConnections):
    """Kubelet has two, for containers and for images. It dials anew what is ended, and what is idle and asked
    to go; of those in `busy` nobody can ask it."""

    used: dict[int, list[str]] = field(default_factory=dict)
    busy: frozenset[int] = frozenset()

    def peers(self, pid: int) -> tuple[str, ...]:
        return (*super().peers(pid)[:1], *self.channels(pid))

    def drain(self, pid: int, endpoint: str) -> frozenset[int]:
        return self._leave(pid, endpoint, self.busy)

    def cut(self, pid: int, endpoint: str, spared: frozenset[int] = frozenset()) -> int:
        return len(self._leave(pid, endpoint, spared))

    def _leave(self, pid: int, endpoint: str, stay: frozenset[int]) -> frozenset[int]:
        used = self.channels(pid)
        left = frozenset(one for one in (0, 1) if one not in stay and same_endpoint(used[one], endpoint))
        for one in left:
            used[one] = self._target(pid)
        return left

    def channels(self, pid: int) -> list[str]:
        return self.used.setdefault(pid, [self._target(pid)] * 2)

    def _target(self, pid: int) -> str:
        process = self.processes.get(pid)
        return self.files.state(process.link).target if process else ""


def install(node: Node, tmp_path: Path) -> None:
    reconcile(Request(Mode.INSTALL, SETTINGS, tmp_path / "payload"), node.fake.host, silent)


@rule("R14")
@pytest.mark.parametrize(("seen", "busy"), [(True, {0}), (True, {1}), (False, {0, 1})])
def test_kubelet_does_not_stay_beside_the_proxy_because_it_cannot_be_asked_to_leave(
    tmp_path: Path, seen: bool, busy: set[int]
) -> None:
    release(tmp_path / "payload", "one")
    node = lay_node(tmp_path / "node")
    channels = Channels(node.fake.files, node.systemd, node.fake.processes, seen=seen, busy=frozenset(busy))
    node.fake.connections = channels
    install(node, tmp_path)
    before = node.systemd.unit(KUBELET)
    hold_kubelet(SETTINGS, node.fake.host, silent, "broken CPU map", restart=True)
    assert channels.channels(before.main_pid) == [BASE, BASE]
    install(node, tmp_path)
    assert node.systemd.unit(KUBELET) == before
    assert all(same_endpoint(one, RELAY_ENDPOINT) for one in channels.channels(before.main_pid))
