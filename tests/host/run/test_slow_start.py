"""A proxy that places many containers before it answers: it is waited for, and kubelet never hangs on it."""

import json
import os
import signal
from pathlib import Path

import pytest

from installer.model.paths import SPARING_CONFIG
from tests.host.command import REAL_POLICY
from tests.host.daemon import SOON, Daemon, within
from tests.host.node import PROXY, Node
from tests.host.watched import HOLD, daemon, off_relay, on_relay, settings
from tests.lib.rules import rule
from tests.lib.throwaway.kubelet import UNIT, wait_healthy

_CACHE = "/var/lib/cri-resmgr/cache"
_MANY = 300
_SECONDS = 12.0  # of a start with so many containers: longer than kubelet may hang on the relay


def slow(seconds: float = _SECONDS) -> str:
    return json.dumps({"containers": _MANY, "secondsPerContainer": seconds / _MANY})


def remember_many(node: Node) -> None:
    """The proxy's cache has so many containers from now on."""
    path = node.path(_CACHE)
    cache = json.loads(path.read_text())
    cache["Containers"] |= {f"cache:{n}": {"ID": f"gone-{n}", "PodID": "gone"} for n in range(_MANY)}
    path.write_text(json.dumps(cache))


@pytest.fixture
def crowded(node: Node) -> Node:
    """It runs a policy that places containers, and has many of them."""
    settings(node, proxy={}, kubelet={"guardSeconds": 3})
    node.fault("cri-resmgr", "")
    node.fallback(REAL_POLICY)
    node.run("install")
    remember_many(node)
    node.host.systemctl("restart", PROXY)
    node.put_back()
    node.expect_good()
    return node


def begun(running: Daemon) -> set[str]:
    return {str(data["verb"]) for data in running.of("pass.started")}


@rule("R4", "R12")
def test_kubelet_is_moved_when_a_slow_proxy_answers(crowded: Node, tmp_path: Path) -> None:
    """Kubelet did not wait for it; the daemon does, and restarts nothing else."""
    node = crowded
    with daemon(node, tmp_path) as running:
        running.settle()
        node.fault("cri-resmgr", slow())
        before = node.host.show(PROXY, "MainPID")
        node.host.systemctl("restart", "--no-block", PROXY)
        within(SOON, lambda: node.host.show(PROXY, "MainPID") not in (before, "0"))
        within(SOON, lambda: node.host.show(PROXY, "SubState") in ("start-post", "running"))
        # However busy this machine is: it is at it until everybody has looked.
        node.host.systemctl("kill", "--signal=STOP", "--kill-whom=main", PROXY)
        node.host.systemctl("restart", UNIT)
        within(SOON, lambda: off_relay(node))
        wait_healthy(node.host)
        process = node.host.show(PROXY, "MainPID")
        spared = SPARING_CONFIG in node.host.run("cat", f"/proc/{process}/cmdline").stdout
        assert running.restarts() == 0
        node.host.systemctl("kill", "--signal=CONT", "--kill-whom=main", PROXY)
        within(SOON, lambda: on_relay(node))
        running.settle()
        assert running.restarts() == 0
        # On a busy machine, kubelet has left before the proxy started again, so without its policy.
        assert spared or node.host.show(PROXY, "MainPID") == process
        assert begun(running) == {"install"}
        assert not running.of("rollback.started")
        assert not node.path(HOLD).exists()


@rule("R12")
def test_a_first_pass_waits_for_a_start_that_is_under_way(crowded: Node, tmp_path: Path) -> None:
    """The host has booted: kubelet went without the proxy, and the installer's pod comes next."""
    node = crowded
    node.fault("cri-resmgr", slow(6))
    node.host.kill()
    node.host.boot(wait=False)
    within(SOON, lambda: node.host.show(PROXY, "SubState") in ("start-post", "running"))
    # However busy this machine is: it is at it until everybody has looked.
    node.host.systemctl("kill", "--signal=STOP", "--kill-whom=main", PROXY)
    within(SOON, lambda: node.host.show(UNIT, "ActiveState") == "active")
    assert node.host.show(PROXY, "NRestarts") == "0"
    process = node.host.show(PROXY, "MainPID")
    assert "cri-resource-manager is still starting" in node.run("plan", code=3).out
    assert "the proxy is still starting" in node.run("status", code=3).out
    with daemon(node, tmp_path) as running:
        within(SOON, lambda: bool(running.of("state")))
        node.host.systemctl("kill", "--signal=CONT", "--kill-whom=main", PROXY)
        within(SOON, lambda: on_relay(node))
        running.settle()
        assert running.ended()[0]["exitCode"] == 0
        assert node.host.show(PROXY, "MainPID") == process
        assert not running.of("rollback.started")
    node.expect_good()


@rule("R8")
def test_kubelet_leaves_the_relay_for_a_start_that_takes_long(crowded: Node) -> None:
    node = crowded
    node.fault("cri-resmgr", slow())
    node.fallback(REAL_POLICY.replace("750m", "500m"))
    planned = node.run("plan", code=3).out
    assert "if the proxy starts slowly" in planned
    ended = node.run("--output", "json", "install")
    steps = [
        (event["data"]["step"], event["message"]) for event in ended.events if event["kind"] == "step.done"
    ]
    moves = [step for step, message in steps if "kubelet" in message or step == "await-relay"]
    assert moves[:2] in (["leave-if-slow", "move"], ["move", "leave-if-slow"])
    assert moves[-3:] == ["await-relay", "return", "move"]
    assert not node.path(HOLD).exists()
    node.expect_good()
    assert node.run("install").out == "nothing to do\n"


@rule("R8")
def test_a_version_that_does_not_start_beside_many_containers(crowded: Node) -> None:
    """The good one comes back."""
    node = crowded
    settings(node, proxy={"startTimeoutSeconds": 1}, kubelet={"guardSeconds": 3})
    node.upgrade({"exitAfterSeconds": 0.5})
    assert "keeps crashing" in node.run("install", code=5).err
    assert not node.path(HOLD).exists()
    node.upgrade(version="v0.9.0")
    node.run("install")
    node.expect_good()


@rule("R7")
def test_a_run_that_was_killed_while_kubelet_was_away(crowded: Node, tmp_path: Path) -> None:
    """The daemon goes on where it was killed."""
    node = crowded
    with daemon(node, tmp_path) as running:
        running.settle()
        node.fault("cri-resmgr", slow())
        node.fallback(REAL_POLICY.replace("750m", "250m"))
        within(SOON, lambda: off_relay(node))
        child = running.child("install")
        os.kill(child, signal.SIGKILL)
        within(2 * SOON, lambda: on_relay(node))
        running.settle()
        assert not node.path(HOLD).exists()
    node.expect_good()
