"""What a restart of kubelet does to the pod that has asked for it, and what others see of that.

The daemon runs beside its pod: the pod's container sees the daemon's ready file, and when kubelet kills the
container, the test kills the daemon.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import psutil
import pytest

from installer.inputs.settings import load_settings
from installer.manifests.probes import build_min_ready
from tests.host.command import PROGRAM
from tests.host.daemon import SOON, Daemon, within
from tests.host.node import Node
from tests.lib.rules import rule
from tests.lib.throwaway.containers import Mount, Pod, container_pid, create_container, run_pod
from tests.lib.throwaway.kubelet import UNIT, wait_healthy
from tests.lib.throwaway.pods import Assigned, available_since, pod_object

pytestmark = pytest.mark.long

LABEL = {"served": "yes"}

#: A pod's volumes are gone with it: nobody compares what is here.
PLACE = "/run/pods/ours"


@pytest.fixture
def assigned(node: Node) -> Iterator[Assigned]:
    # Its container is a young one, however slow this machine is.
    node.fault("kubelet", json.dumps({"graceSeconds": 600}))
    told = Assigned(node.host, dict(LABEL))
    yield told
    told.forget()


Begin = Callable[[str], AbstractContextManager[tuple[Daemon, Pod, str]]]


@pytest.fixture
def begin(node: Node, assigned: Assigned) -> Begin:
    """A daemon in a mode, as a pod that kubelet knows and has found not ready; with it the pod and the id of
    its container. The mode is `remove` or `install`."""

    @contextmanager
    def beginning(mode: str) -> Iterator[tuple[Daemon, Pod, str]]:
        place = node.host.root / PLACE[1:]
        place.mkdir(parents=True, exist_ok=True)
        (place / "ready").unlink(missing_ok=True)
        pod = run_pod(node.host, node.host.runtime_socket, "ours")
        mounts = [Mount("/ours", PLACE)]
        identity = create_container(node.host, node.host.runtime_socket, "ours", mounts, pod=pod)
        probe = ("/bin/sh", "-c", "test -e /ours/ready")
        assigned.pods = [pod_object(pod, selector=LABEL, probe=probe)]
        assigned.tell()
        within(SOON, lambda: bool(assigned.history(pod)) and not assigned.is_ready(pod))
        set_mode(node, mode)
        argv = [str(PROGRAM), *node.command.globals(), "--output", "json", "run"]
        running = Daemon(node, place / "ready", {}, argv)
        try:
            yield running, pod, identity
        finally:
            running.kill()

    return beginning


def set_mode(node: Node, mode: str) -> None:
    node.command.set(kubelet={"settleSeconds": 8})
    settings = json.loads(node.command.config.read_text())
    node.command.config.write_text(json.dumps({**settings, "mode": mode}))


def kill_all(running: Daemon) -> None:
    """As a container is killed: with every process in it."""
    process = psutil.Process(running.process.pid)
    process.suspend()
    for child in process.children(recursive=True):
        child.kill()
    running.kill()


@rule("R13")
@pytest.mark.parametrize("mode", ["install", "remove"])
def test_a_rollout_does_not_count_what_a_restarted_kubelet_calls_ready_for_nothing(
    node: Node, assigned: Assigned, begin: Begin, mode: str
) -> None:
    """kubelet says so long before the daemon is done, but for less than `minReadySeconds`."""
    if mode == "remove":
        node.run("install")
    with begin(mode) as (running, pod, _):
        running.ready()
        done = time.monotonic()
        within(SOON, lambda: assigned.is_ready(pod))
        history = assigned.history(pod)
    settings = load_settings(node.command.config)
    assert [ready for _, ready in history] == [False, True, False, True]
    at_once, at_last = (available_since(history, seconds) for seconds in (0, build_min_ready(settings)))
    assert at_once is not None
    assert at_last is not None
    assert at_once < done < at_last


@rule("R11")
@rule("R12")
def test_a_removal_whose_pod_is_refused_and_killed_half_way_leaves_a_node_that_works(
    node: Node, assigned: Assigned, begin: Begin
) -> None:
    """The node has lost the label that the DaemonSet selects: the kubelet that the removal has restarted
    no longer admits the pod. So the next run ends it."""
    node.run("install")
    other = create_container(node.host, node.host.runtime_socket, "other")
    with begin("remove") as (running, _, identity):
        assigned.labels.clear()
        assigned.tell()
        within(SOON, lambda: container_pid(node.host, identity) is None)
        kill_all(running)
        assert not running.ready_file.exists(), running.said()
    assert container_pid(node.host, other) is not None
    wait_healthy(node.host)
    assert not node.on_relay()
    node.host.systemctl("restart", UNIT)
    wait_healthy(node.host)
    assert container_pid(node.host, other) is not None
    node.run("remove")  # and the fixture looks for traces
