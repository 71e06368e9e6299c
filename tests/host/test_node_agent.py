"""A node of Gardener: what gardener-node-agent does to kubelet's drop-ins at each change of kubelet."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from installer.model import paths
from tests.host.node import DROP_IN, Node
from tests.lib.rules import rule
from tests.lib.throwaway.host import ThrowawayHost
from tests.lib.throwaway.kubelet import UNIT, wait_healthy

CONTROL = f"{paths.CONTROL_UNITS}/{UNIT}.d"
WIPED = Path(DROP_IN).parent


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with ThrowawayHost() as host:
        agent = host.root / "etc/systemd/system/gardener-node-agent.service"
        agent.write_text("[Service]\nExecStart=/bin/true\n")
        yield Node(host, tmp_path, "gardener-unset")


def wipe(node: Node) -> None:
    """As its reconciler does it when the unit, the configuration or the CA has changed."""
    node.host.run("rm", "-rf", str(WIPED))
    node.host.systemctl("daemon-reload")
    node.host.systemctl("restart", UNIT)


@rule("R2", "R6")
def test_a_wipe_with_its_restart_keeps_the_relay_and_costs_no_second_restart(node: Node) -> None:
    node.run("install")
    assert not node.path(str(WIPED)).exists()
    assert node.path(f"{CONTROL}/90-cri-resmgr.conf").exists()
    with node.restarts(kubelet=True, proxy=False):
        wipe(node)
    wait_healthy(node.host)
    with node.restarts(kubelet=False, proxy=False):
        assert node.run("install").out == "nothing to do\n"
    node.expect_good()
    node.run("remove")
    node.expect_untraced()


@rule("R2", "R6")
def test_a_drop_in_that_lies_where_it_is_wiped_moves_without_a_restart(node: Node) -> None:
    node.command.set(kubelet={"dropInDirectory": paths.USUAL_UNITS})
    node.run("install")
    assert node.path(DROP_IN).exists()
    node.command.set(kubelet={})
    with node.restarts(kubelet=False, proxy=False):
        node.run("install")
        assert node.run("install").out == "nothing to do\n"
    assert not node.path(DROP_IN).exists()
    loaded = [
        path for path in node.host.show(UNIT, "DropInPaths").split() if path.endswith("90-cri-resmgr.conf")
    ]
    assert loaded == [f"{CONTROL}/90-cri-resmgr.conf"]
    with node.restarts(kubelet=True, proxy=False):
        wipe(node)
    wait_healthy(node.host)
    node.expect_good()
    node.run("remove")
    node.expect_untraced()


def test_what_set_property_has_written_beside_it_stays(node: Node) -> None:
    node.host.systemctl("set-property", UNIT, "CPUWeight=200")
    node.run("install")
    node.expect_good()
    node.run("remove")
    assert [each.name for each in node.path(CONTROL).iterdir()] == ["50-CPUWeight.conf"]


def test_an_installation_without_its_record_is_found_where_it_lies(node: Node) -> None:
    node.run("install")
    node.host.run("rm", "-r", "/var/lib/cri-resmgr-installer")
    node.run("remove", "--without-record")
    node.expect_untraced()
