"""R4, R8: what fails is undone within its time, blamed only in a sound environment, and not retried."""

import time
from pathlib import Path

import pytest

from tests.host.daemon import BUSY
from tests.host.node import BINARY, PROXY, PROXY_ENVIRONMENT, STATE, Node
from tests.lib.rules import rule
from tests.lib.throwaway.host import ThrowawayHost
from tests.lib.throwaway.kubelet import wait_healthy

HOLD = Path(STATE) / "hold"
CRASHES = {"exitAfterSeconds": 0.5}


@pytest.fixture
def node(host: ThrowawayHost, tmp_path: Path) -> Node:
    return Node(host, tmp_path)


@pytest.fixture(scope="module")
def installed(booted: Node) -> Node:
    booted.run("install")
    return booted


@rule("R4")
@pytest.mark.parametrize("fault", ["hang", "listen-only", CRASHES])
def test_a_first_install_of_a_proxy_that_does_not_serve_never_touches_kubelet(
    node: Node, fault: str | dict[str, object]
) -> None:
    node.command.set(kubelet={"guardSeconds": 5}, proxy={"startTimeoutSeconds": 8})
    node.upgrade(fault=fault)
    kubelet = node.invocations()[0]
    started = time.monotonic()
    ended = node.run("install", code=5)
    assert time.monotonic() - started < 30 + BUSY
    assert "last lines of the journal of cri-resource-manager.service" in ended.err
    assert "the host is as it was before" in ended.err
    assert node.invocations()[0] == kubelet
    node.expect_untraced(allowed=STATE)
    again = node.run("install", code=5)
    assert "is not retried" in again.err
    assert "--retry" in again.err
    node.upgrade(version="v0.9.4")
    node.run("install")
    node.expect_good()
    node.run("remove")
    node.expect_untraced()


@rule("R8")
@pytest.mark.parametrize("fault", ["hang", "listen-only", CRASHES])
def test_an_upgrade_that_fails_brings_the_good_version_back_while_kubelet_stays(
    installed: Node, fault: str | dict[str, object]
) -> None:
    node = installed
    good = node.path(BINARY).read_bytes()
    kubelet = node.invocations()[0]
    node.upgrade(fault=fault)
    started = time.monotonic()
    ended = node.run("install", code=5)
    assert time.monotonic() - started < 30 + BUSY
    assert "the last good generation is in place again" in ended.err
    assert node.path(BINARY).read_bytes() == good
    assert node.invocations()[0] == kubelet
    node.run("install", "--retry", code=5)
    assert "is not retried" in node.run("status", code=3).out
    told = node.run("--output", "json", "install", "--retry", code=5).events
    (block,) = (event["data"] for event in told if event["kind"] == "diagnostics")
    assert {file["path"] for file in block["plan"]["files"]} == {BINARY, PROXY_ENVIRONMENT}
    assert block["differs"]
    assert block["units"]["kubelet.service"]["active_state"] == "active"
    assert "environment" not in block["units"]["kubelet.service"]
    assert all(block["journal"][unit] for unit in (PROXY, "kubelet.service"))
    (node.command.payload / BINARY[1:]).write_bytes(good)
    assert node.run("install").out == "nothing to do\n"
    node.expect_good()


@rule("R8")
@pytest.mark.parametrize("fault", ['{"exitOnRelay": true}', '{"onRelay": {"exitAfterSeconds": 0.5}}'])
def test_a_kubelet_that_does_not_come_up_on_the_relay_goes_back(node: Node, fault: str) -> None:
    node.fault("kubelet", fault)
    node.command.set(kubelet={"startTimeoutSeconds": 3})
    ended = node.run("install", code=5)
    assert "last lines of the journal of kubelet.service" in ended.err
    wait_healthy(node.host)
    assert not node.on_relay()
    node.fault("kubelet", "")
    node.expect_untraced(allowed=STATE)
    node.run("install", "--retry")
    node.expect_good()


@rule("R8")
def test_r8_when_the_way_back_fails_too_kubelet_is_held_on_its_base_endpoint(node: Node) -> None:
    node.run("install")
    node.fault("cri-resmgr", '{"startup": "exit"}')
    node.upgrade()
    ended = node.run("install", code=6)
    assert "the rollback failed too" in ended.err
    assert "held there" in ended.err
    wait_healthy(node.host)
    assert not node.on_relay()
    assert "held" in node.run("status", code=3).out
    node.fault("cri-resmgr", "")
    node.host.systemctl("restart", PROXY)
    node.host.systemctl("restart", "kubelet")
    wait_healthy(node.host)
    assert not node.on_relay()
    assert "held: rollback: it failed" in node.host.journal("kubelet")
    node.run("install", "--retry")
    assert not (node.host.root / str(HOLD)[1:]).exists()
    node.expect_good()
    node.run("remove")
    node.expect_untraced()
