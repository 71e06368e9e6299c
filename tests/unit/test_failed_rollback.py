"""R4: where a change and its rollback have both failed, kubelet is on no relay that is dead."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from installer.errors import RollbackFailedError
from installer.inputs.load import Request
from installer.model import paths
from installer.model.event import silent
from installer.model.names import Mode
from installer.node.reconcile import reconcile
from tests.faults.disks.node import KUBELET, Node, lay_node
from tests.lib.rules import rule
from tests.lib.slownode import SETTINGS, release

DROP_IN = f"/etc/systemd/system/{KUBELET}.d/90-cri-resmgr.conf"


@pytest.fixture
def payload(tmp_path: Path) -> Path:
    release(tmp_path / "payload", "one")
    return tmp_path / "payload"


@pytest.fixture
def node(tmp_path: Path, payload: Path) -> Node:
    """Installed."""
    node = lay_node(tmp_path / "node")
    reconcile(Request(Mode.INSTALL, SETTINGS, payload), node.fake.host, silent)
    return node


def fail(node: Node, payload: Path) -> str:
    with pytest.raises(RollbackFailedError) as failed:
        reconcile(Request(Mode.INSTALL, SETTINGS, payload), node.fake.host, silent)
    return failed.value.hint


@rule("R4")
def test_a_kubelet_that_is_well_does_not_stay_on_a_relay_that_has_died(node: Node, payload: Path) -> None:
    """A real kubelet is healthy for some time after its relay has fallen silent."""
    node.fake.healthz.healthy = True
    node.systemd.on_job[paths.PROXY_UNIT] = lambda _method, unit: ("failed", replace(unit, main_pid=0))
    release(payload, "two")
    assert "healthy on its base endpoint and held there" in fail(node, payload)
    assert not node.on_relay
    assert node.read(paths.HOLD) is not None


@rule("R4", "R8")
@pytest.mark.parametrize(
    ("relay", "kubelet_runs", "stays"), [(True, True, True), (False, True, False), (True, False, False)]
)
def test_kubelet_leaves_a_proxy_that_was_never_away_only_if_one_of_both_is_not_well(
    node: Node, payload: Path, relay: bool, kubelet_runs: bool, stays: bool
) -> None:
    """The disk takes no drop-in of kubelet again, so that the proxy is not touched."""
    node.fake.files.write(DROP_IN, b"edited\n", 0o644)
    writes: list[str] = []
    node.fake.healthz.healthy = True  # it answers a moment longer
    pid = node.systemd.unit(KUBELET).main_pid

    def broken(method: str, path: str) -> None:
        if method != "write" or path != DROP_IN:
            return
        writes.append(path)
        if len(writes) == 2 and not relay:  # of the rollback
            node.fake.cri.sockets[paths.RELAY_ENDPOINT] = "no answer"
        if len(writes) == 2 and not kubelet_runs:
            unit = node.systemd.unit(KUBELET)
            node.systemd.units[KUBELET] = replace(unit, main_pid=0, active_state="failed")
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    node.fake.files.fail = broken
    fail(node, payload)
    assert (node.systemd.unit(KUBELET).main_pid == pid) is kubelet_runs
    assert node.on_relay is stays
    assert node.process(KUBELET) is not None
