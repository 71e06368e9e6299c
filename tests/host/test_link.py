"""Kubelet's endpoint is a link: what moves kubelet restarts it no more."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from installer.host.connections import HostConnections
from installer.model import paths
from installer.model.names import Mode
from installer.model.paths import normalise_endpoint
from tests.host.mortal import DieAfter, converge
from tests.host.node import PROXY, Node
from tests.lib.rules import rule
from tests.lib.throwaway.host import ThrowawayHost
from tests.lib.throwaway.kubelet import running_arguments, wait_healthy

RELAY, BASE = "/run/cri-resmgr/cri-resmgr.sock", "/run/containerd/containerd.sock"
LINK = "/run/cri-resmgr-installer/endpoint/containerd.sock"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with ThrowawayHost() as host:
        yield Node(host, tmp_path_factory.mktemp("link"), "kubeadm-136")


def uses(node: Node) -> set[str]:
    """The runtimes to which kubelet's connections lead, without that of its cadvisor."""
    pid = int(node.host.show("kubelet.service", "MainPID"))
    peers = sorted(map(normalise_endpoint, HostConnections(node.host.root).peers(pid)))
    with suppress(ValueError):
        peers.remove(BASE)
    return set(peers) & {RELAY, BASE}


def wait(until: Callable[[], bool], seconds: float = 20.0) -> float:
    """The seconds that it took."""
    began = time.monotonic()
    while not until():
        assert time.monotonic() - began < seconds
        time.sleep(0.05)
    return time.monotonic() - began


@rule("R3")
@rule("R14")
def test_a_whole_life_on_one_kubelet(node: Node) -> None:
    node.run("install")
    node.expect_good()
    assert running_arguments(node.host)[-1] == f"--container-runtime-endpoint=unix://{LINK}"
    for policy in ("topology-aware", "balloons", "static-plus", "podpools", "static"):
        with node.restarts(kubelet=False, proxy=True):
            node.fallback(f"policy:\n  Active: {policy}\n  ReservedResources:\n    CPU: 750m\n")
            node.run("install")
        node.expect_good()
    with node.restarts(kubelet=False, proxy=True):
        node.upgrade()
        node.run("install")
    node.expect_good()
    faults: tuple[str | dict[str, object], ...] = ({"exitAfterSeconds": 0.5}, "hang", "listen-only")
    for n, fault in enumerate(faults):
        with node.restarts(kubelet=False, proxy=True):
            node.upgrade(fault, version=f"v0.9.4-{n}")
            node.run("install", code=5)
        assert node.on_relay()
        node.upgrade()
        node.run("install")
        node.expect_good()
    with node.restarts(kubelet=False, proxy=True):
        node.host.systemctl("stop", PROXY)
        assert not node.on_relay()
        wait(lambda: uses(node) == {BASE})
        node.run("install")
    node.expect_good()
    assert uses(node) == {RELAY}
    _hold_and_let_go(node)
    _move_the_runtime(node, BASE, "/run/containerd/moved.sock")
    _move_the_runtime(node, "/run/containerd/moved.sock", BASE)
    with node.restarts(kubelet=False, proxy=True):
        node.host.systemctl("kill", "--signal=KILL", PROXY)
        wait(lambda: uses(node) == {RELAY})
        node.host.systemctl("kill", "--signal=KILL", PROXY)
        wait(lambda: uses(node) == {BASE})
        assert not node.on_relay()
        node.run("install")
    node.expect_good()
    node.run("remove")
    node.expect_untraced()


def _hold_and_let_go(node: Node) -> None:
    """As the runbook has it, without a daemon."""
    with node.restarts(kubelet=False, proxy=True):
        node.path(paths.HOLD).write_text("the test's\n")
        node.host.systemctl("stop", PROXY)
        wait(lambda: uses(node) == {BASE})
        node.run("install")
    node.expect_good()
    assert not node.path(paths.HOLD).exists()
    assert uses(node) == {RELAY}


def _move_the_runtime(node: Node, old: str, new: str) -> None:
    """An administrator does, and writes it into kubelet's configuration, which kubelet reads at its next
    start."""
    with node.restarts(kubelet=False, proxy=True):
        for path in ("/etc/containerd/config.toml", "/var/lib/kubelet/config.yaml"):
            file = node.path(path)
            before = file.stat()
            assert old in file.read_text()
            file.write_text(file.read_text().replace(old, new))
            os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))  # as it was, when it is moved back
        node.host.systemctl("restart", "containerd.service")
        node.run("install")
    node.expect_good()
    assert uses(node) == {RELAY}


DAMAGES: dict[str, str] = {
    "deleted": f"rm {LINK}",
    "a-file": f"rm {LINK}; echo x >{LINK}",
    "a-directory": f"rm {LINK}; mkdir -p {LINK}/x",
    "to-nowhere": f"ln -sfn /nowhere {LINK}",
    "to-itself": f"ln -sfn {LINK} {LINK}",
    "to-anothers-socket": f"ln -sfn /run/dbus/system_bus_socket {LINK}",
    "wiped": "rm -rf /run/cri-resmgr-installer",
    "a-file-above": "rm -rf /run/cri-resmgr-installer; echo x >/run/cri-resmgr-installer",
    "a-link-above": "rm -rf /run/cri-resmgr-installer; ln -s /nowhere /run/cri-resmgr-installer",
}


@pytest.fixture
def installed(node: Node) -> Node:
    node.run("install")
    node.expect_good()
    return node


@rule("R4")
@rule("R14")
@pytest.mark.parametrize("damage", DAMAGES)
def test_whatever_happens_to_the_link_a_run_mends_it_under_kubelet(installed: Node, damage: str) -> None:
    """Kubelet notices it when it dials again: here because the proxy has been restarted."""
    node = installed
    with node.restarts(kubelet=False, proxy=True):
        node.host.run("sh", "-c", DAMAGES[damage])
        node.host.systemctl("kill", "--signal=KILL", PROXY)
        wait(lambda: uses(node) == set())
        node.run("install")
    wait(lambda: uses(node) == {RELAY})
    node.expect_good()


@rule("R12")
@pytest.mark.parametrize("damage", DAMAGES)
def test_whatever_happens_to_the_link_a_start_of_kubelet_finds_a_runtime(
    installed: Node, damage: str
) -> None:
    """Without any installer."""
    node = installed
    node.host.run("sh", "-c", DAMAGES[damage])
    node.host.systemctl("restart", "kubelet.service")
    wait_healthy(node.host)
    node.run("install")
    node.expect_good()


@rule("R4", "R7")
def test_kubelet_leaves_a_proxy_that_ends_after_its_removal_was_killed(installed: Node) -> None:
    """Killed before kubelet's restart: by then nothing of ours is in its unit."""
    node = installed
    assert converge(node, Mode.REMOVE, listen=DieAfter("daemon-reload")) == "killed"
    assert uses(node) == {RELAY}
    node.host.systemctl("stop", PROXY)
    wait(lambda: uses(node) == {BASE})
    node.run("remove")
    node.expect_untraced()
