"""R12: a relay that kubelet does not survive is left, with no installer alive; what `install` does then."""

import time
from collections.abc import Iterator

import pytest

from tests.host.daemon import SOON, within
from tests.host.node import PROXY, Node
from tests.lib.rules import rule
from tests.lib.throwaway.freezer import freezer_root, frozen
from tests.lib.throwaway.kubelet import healthz, wait_healthy

pytestmark = pytest.mark.long

GUARD_SECONDS = 9
BUSY = 30  # seconds that a start may take besides, on a busy machine
_QUICK = "/run/systemd/system/kubelet.service.d/95-quick.conf"
_FAILED = "kubelet failed on the relay 2 times in a row"


@pytest.fixture(scope="module")
def node(booted: Node) -> Node:
    booted.command.set(kubelet={"guardSeconds": GUARD_SECONDS})
    booted.run("install")
    # Not the 10 s of a package between two tries: nothing here depends on how long that is.
    booted.path(_QUICK).parent.mkdir(parents=True, exist_ok=True)
    booted.path(_QUICK).write_text("[Service]\nRestartSec=500ms\n")
    booted.host.systemctl("daemon-reload")
    return booted


@pytest.fixture(autouse=True)
def good(node: Node) -> Iterator[None]:
    node.expect_good()
    yield
    node.fault("cri-resmgr", "")
    node.run("install")


def freeze(node: Node, whom: str = "main") -> None:
    node.host.systemctl("kill", "--signal=STOP", f"--kill-whom={whom}", PROXY)


def healthy_on_base(node: Node, seconds: float) -> None:
    within(seconds, lambda: healthz(node.host) == "ok")
    wait_healthy(node.host)
    assert not node.on_relay()


@rule("R12")
def test_a_proxy_that_was_frozen_after_it_had_served(node: Node) -> None:
    """Its pid file and its listening socket stay as they are: only kubelet can tell."""
    freeze(node)
    node.host.systemctl("kill", "--signal=KILL", "kubelet")
    healthy_on_base(node, 3 * SOON)
    journal = node.host.journal("kubelet")
    assert "kubelet failed " in journal
    assert "2 in a row" in journal
    assert f"base endpoint: {_FAILED}" in journal
    node.host.systemctl("restart", "kubelet")
    healthy_on_base(node, SOON)
    with node.restarts(kubelet=False, proxy=True):
        node.run("install")
    node.expect_good()
    node.host.systemctl("restart", "kubelet")
    wait_healthy(node.host)
    node.expect_good()


@rule("R12")
def test_install_repairs_a_kubelet_that_flaps_on_a_dead_relay(node: Node) -> None:
    restarts = node.host.show("kubelet", "NRestarts")
    freeze(node)
    node.host.systemctl("kill", "--signal=KILL", "kubelet")
    within(SOON, lambda: node.host.show("kubelet", "NRestarts") != restarts)
    node.run("install")
    node.expect_good()


@rule("R12")
def test_a_socket_file_that_was_deleted(node: Node) -> None:
    node.path("/run/cri-resmgr/cri-resmgr.sock").unlink()
    node.host.systemctl("restart", "kubelet")
    healthy_on_base(node, GUARD_SECONDS + BUSY)
    assert node.host.show("kubelet", "NRestarts") == "0"


@rule("R12")
def test_a_person_who_restarts_kubelet_again_and_again_does_not_leave_the_relay(node: Node) -> None:
    for _again in range(5):
        node.host.systemctl("restart", "kubelet")
        node.host.systemctl("reset-failed", "kubelet")
    wait_healthy(node.host)
    node.expect_good()


@rule("R12")
def test_the_whole_unit_frozen_while_it_starts(node: Node) -> None:
    """The part of the guard that would give up in time is also frozen."""
    node.fault("cri-resmgr", '{"startup": "listen-only"}')
    node.host.systemctl("restart", "--no-block", PROXY)
    within(SOON, lambda: node.host.show(PROXY, "SubState") == "start-post")
    freeze(node, "all")
    began = time.monotonic()
    node.host.systemctl("restart", "kubelet")
    healthy_on_base(node, GUARD_SECONDS + BUSY)
    assert time.monotonic() - began > 2, "it was not frozen"


@rule("R12")
@pytest.mark.skipif(freezer_root() is None, reason="this machine has no cgroup v1 freezer")
def test_a_freezer_that_lets_no_sigkill_through(node: Node) -> None:
    """Kubelet's start waits for the proxy's start job, not for the end of its processes."""
    node.command.set(kubelet={"guardSeconds": 12})
    with node.restarts(kubelet=False, proxy=False):
        node.run("install")
    node.fault("cri-resmgr", '{"startup": "listen-only"}')
    node.host.systemctl("restart", "--no-block", PROXY)
    within(SOON, lambda: node.host.show(PROXY, "SubState") == "start-post")
    with frozen(node.host, PROXY):
        node.host.systemctl("restart", "kubelet")
        healthy_on_base(node, SOON)
        assert moment(node, PROXY, "ActiveEnter") < moment(node, PROXY, "InactiveExit"), "it was not frozen"
        assert moment(node, "kubelet", "ExecMainStart") - moment(node, PROXY, "InactiveExit") < 12 + BUSY
    node.command.set(kubelet={"guardSeconds": GUARD_SECONDS})


def moment(node: Node, unit: str, of: str) -> float:
    """When that happened to the unit: seconds since boot."""
    return int(node.host.show(unit, f"{of}TimestampMonotonic")) / 1e6


@rule("R12")
def test_a_slow_proxy_lives_on_and_kubelet_does_not_wait_for_it(node: Node) -> None:
    node.fault("cri-resmgr", f'{{"containers": 500, "secondsPerContainer": {(GUARD_SECONDS + 8) / 500}}}')
    node.host.systemctl("restart", "--no-block", PROXY)
    within(SOON, lambda: node.host.show(PROXY, "SubState") == "start-post")
    process = node.host.show(PROXY, "MainPID")
    node.host.systemctl("restart", "kubelet")
    healthy_on_base(node, GUARD_SECONDS + BUSY)
    assert node.host.show(PROXY, "ActiveState") == "active"
    within(SOON, lambda: node.path("/run/cri-resmgr.pid").exists())
    assert node.host.show(PROXY, "MainPID") == process
    node.host.systemctl("restart", "kubelet")
    healthy_on_base(node, SOON)  # it may have made pods there
    assert "there may be pods that the proxy does not know" in node.host.journal("kubelet")
    with node.restarts(kubelet=False, proxy=False):
        node.run("install")
    node.expect_good()
