"""A node on which nobody may end kubelet's connections: Linux 5.4, or a security module."""

from __future__ import annotations

from pathlib import Path

import pytest

from installer.errors import KubeletKeptError
from installer.inputs.load import Mandate, Request
from installer.inputs.settings import KubeletSettings, Settings
from installer.model.event import silent
from installer.model.host import UnitState
from installer.model.names import Mode
from installer.model.paths import PROXY_UNIT
from installer.node.reconcile import reconcile
from tests.faults.disks.node import KUBELET, Node, lay_node
from tests.lib.rules import rule
from tests.lib.slownode import release

SETTINGS = Settings(kubelet=KubeletSettings(settle_seconds=1))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    release(tmp_path / "payload", "one")
    node = lay_node(tmp_path / "node")
    node.fake.connections.permitted = False
    install(node, tmp_path)
    job = node.systemd.on_job[PROXY_UNIT]

    def leave(method: str, unit: UnitState) -> tuple[str, UnitState]:
        done = job(method, unit)
        node.systemd.leave()
        return done

    node.systemd.on_job[PROXY_UNIT] = leave
    return node


def install(node: Node, tmp_path: Path, restarts_left: float = 1.0) -> None:
    request = Request(
        Mode.INSTALL, SETTINGS, tmp_path / "payload", mandate=Mandate(restarts_left=restarts_left)
    )
    reconcile(request, node.fake.host, silent)


@rule("R4", "R8")
def test_an_upgrade_during_which_the_guard_lets_kubelet_leave_ends_on_the_relay(
    node: Node, tmp_path: Path
) -> None:
    """It does so if the proxy starts slowly, or is stopped."""
    release(tmp_path / "payload", "two")
    before = node.systemd.unit(KUBELET)
    install(node, tmp_path)
    assert node.on_relay
    assert node.systemd.unit(KUBELET) != before


@rule("R3")
def test_without_a_restart_left_kubelet_stays_on_its_base_endpoint_until_there_is_one(
    node: Node, tmp_path: Path
) -> None:
    release(tmp_path / "payload", "two")
    before = node.systemd.unit(KUBELET)
    for _ in range(2):
        with pytest.raises(KubeletKeptError):
            install(node, tmp_path, restarts_left=0.0)
    assert not node.on_relay
    assert node.systemd.unit(KUBELET) == before
    install(node, tmp_path)
    assert node.on_relay
