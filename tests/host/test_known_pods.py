"""R14: pods that kubelet has made on its base endpoint while the proxy ran get containers behind it, too."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from installer.host.cri import SocketCri
from installer.host.files import RootedFiles
from installer.model.event import Event
from installer.model.names import Mode
from tests.host.daemon import SOON, within
from tests.host.mortal import run_apart
from tests.host.node import Node
from tests.host.watched import HOLD, daemon, on_relay, settings
from tests.lib.rules import rule
from tests.lib.throwaway.containers import (
    RUNTIME_SERVICE,
    Pod,
    create_container,
    import_image,
    reach,
    run_pod,
    sandbox_config,
)
from tests.lib.throwaway.kubelet import UNIT, wait_healthy
from tests.lib.throwaway.proxy import RELAY
from tests.lib.throwaway.standins.http2 import CallError, field, unary

BALLOONS = "policy:\n  Active: balloons\n  ReservedResources:\n    CPU: 1\n"
STATE = "/var/lib/cri-resmgr"
FILL = f"""cp -a {STATE} /run/kept && mount -t tmpfs -o size=1m,mode=755 tmpfs {STATE} &&
mv /run/kept/* {STATE} && rmdir /run/kept && {{ head -c 8M /dev/zero 2>/dev/null >{STATE}/full || :; }}"""
UNKNOWN = "there may be pods that the proxy does not know"


@pytest.fixture(params=["none", "balloons"])
def installed(node: Node, request: pytest.FixtureRequest) -> Node:
    if request.param == "balloons":
        node.fallback(BALLOONS)
    node.run("install")
    node.expect_good()
    return node


def made_beside(node: Node) -> Pod:
    """A pod that is waiting for its image."""
    return run_pod(node.host, node.host.runtime_socket, "beside")


def refused(node: Node, pod: Pod) -> bool:
    try:
        create_container(node.host, RELAY, "app", pod=pod)
    except CallError:
        return True
    return False


def hold(node: Node) -> None:
    node.path(HOLD).write_text("by me\n")
    node.host.systemctl("restart", "kubelet")
    wait_healthy(node.host)
    assert not node.on_relay()


@rule("R14")
def test_r14_after_a_hold(installed: Node) -> None:
    """Whoever ends it: kubelet comes to the relay when the proxy knows its pods, and not before."""
    node = installed
    hold(node)
    pod = made_beside(node)
    node.path(HOLD).unlink()
    node.host.systemctl("restart", "kubelet")
    wait_healthy(node.host)
    assert not node.on_relay()
    assert UNKNOWN in node.host.journal("kubelet")
    assert refused(node, pod)
    node.run("install")
    node.expect_good()
    assert not refused(node, pod)
    node.host.systemctl("restart", "kubelet")
    wait_healthy(node.host)
    node.expect_good()


@rule("R14", "R2")
def test_r14_on_a_node_that_seems_to_have_nothing_to_do(installed: Node) -> None:
    node = installed
    pod = made_beside(node)
    assert refused(node, pod)
    assert node.run("plan", code=3).out
    with node.restarts(kubelet=False, proxy=True):
        node.run("install")
    assert not refused(node, pod)
    with node.restarts(kubelet=False, proxy=False):
        assert "nothing to do" in node.run("install").said
    node.expect_good()


@rule("R14", "R2", "R4")
def test_r14_a_proxy_that_cannot_save_its_cache_is_left_alone(installed: Node) -> None:
    """cri-resmgr would exit at its start. It knows what it makes, and for the rest a person is needed."""
    node = installed
    node.host.run("sh", "-c", FILL)
    try:
        time.sleep(5)  # of what is made sooner it is not sure
        with node.restarts(kubelet=False, proxy=False):
            run_pod(node.host, RELAY, "through")
            assert "nothing to do" in node.run("install").said
        hold(node)
        pod = made_beside(node)
        node.path(HOLD).unlink()
        with node.restarts(kubelet=False, proxy=False):
            assert "cri-resmgr exits if it cannot save its cache" in node.run("install", code=4).said
    finally:
        node.host.run("umount", STATE)
    node.run("install")
    assert not refused(node, pod)
    node.expect_good()


@dataclass
class PodAt:
    """Makes a pod beside the proxy, called as the step, when one of these steps first begins."""

    runtime: Path
    steps: list[str]

    def __call__(self, event: Event) -> None:
        step = str(event.data.get("step"))
        if event.kind == "step.started" and step in self.steps:
            self.steps.remove(step)
            made = field(1, sandbox_config(step, step))
            unary(str(self.runtime), RUNTIME_SERVICE + "RunPodSandbox", made, SOON)


@rule("R14")
def test_r14_pods_of_a_first_installation(node: Node) -> None:
    """The last one comes when kubelet has moved, as one that it was told to make just before."""
    steps = ("await-relay", "await-kubelet", "check-pods")
    import_image(node.host)
    runtime = Path(reach(node.host, node.host.runtime_socket))
    said = run_apart(node, Mode.INSTALL, listen=PodAt(runtime, list(steps)))
    assert said.how == "changed", said
    node.expect_good()
    sandboxes = SocketCri(RootedFiles(node.host.root)).pods(node.host.runtime_socket)
    made = {pod.title: sandbox for sandbox, pod in sandboxes.items()}
    for step in steps:
        assert not refused(node, Pod(step, made[f"default/{step}"], sandbox_config(step, step), step)), step


@rule("R14")
def test_r14_the_daemon_finds_it(installed: Node, tmp_path: Path) -> None:
    node = installed
    settings(node)
    with daemon(node, tmp_path) as running:
        running.settle()
        hold(node)
        pod = made_beside(node)
        node.path(HOLD).unlink()
        node.host.systemctl("restart", "kubelet")
        within(SOON, lambda: on_relay(node))
        running.settle()
        assert not refused(node, pod)


@rule("R2", "R14")
def test_a_restart_of_a_kubelet_that_stays_on_the_relay_leaves_nothing_to_compare(node: Node) -> None:
    """Nothing came past the proxy: the node is converged, and the next start of kubelet is on the relay."""
    node.fallback(BALLOONS)
    node.run("install")
    node.command.set(kubelet={"strategy": "exec-start"})
    with node.restarts(kubelet=True, proxy=False):
        node.run("install")
    node.expect_good()
    node.host.systemctl("restart", UNIT)
    wait_healthy(node.host)
    node.expect_good()


def test_what_the_runtime_says_of_a_pod(node: Node) -> None:
    """kubelet hands all annotations of a pod on to its sandbox."""
    import_image(node.host)
    runtime, begun = Path(reach(node.host, node.host.runtime_socket)), time.time()
    annotated = field(7, field(1, "vpaUpdates") + field(2, "Pod resources updated by web: container 0: cpu"))
    for config in (sandbox_config("scaled", "1") + annotated, sandbox_config("plain", "2")):
        unary(str(runtime), RUNTIME_SERVICE + "RunPodSandbox", field(1, config), SOON)
    found = SocketCri(RootedFiles(node.host.root)).pods(node.host.runtime_socket).values()
    pods = [pod for pod in found if pod.title in ("default/scaled", "default/plain")]  # without others' tests
    assert {pod.title: pod.autoscaled for pod in pods} == {"default/scaled": True, "default/plain": False}
    assert all(begun - 1 < pod.created < time.time() + 1 for pod in pods)
