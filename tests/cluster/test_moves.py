"""What pods, and people who watch them, see of kubelet's moves: nothing, but at the first installation.

The tests are one story, in this order: each begins with the cluster that the one before has left. Between the
first installation and the removal each node has one kubelet process.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from threading import Event, Thread

import pytest

from installer.host.connections import HostConnections
from installer.model import paths
from tests.cluster.registry import PULLED, serve_slowly
from tests.cluster.steps import (
    SETTINGS,
    apply,
    are_served,
    are_well,
    has_fallback,
    install,
    run_workload,
    status,
    workload,
)
from tests.cluster.watch import Watch
from tests.cluster.world import BROKEN, NEW, NONE, Cluster, KubeNode, Object
from tests.host.node import PROXY
from tests.lib.throwaway.kubelet import UNIT

#: Of a fleet's rules this is not about.
VALUES = {"settings": {**SETTINGS, "rollout": {"concurrentRestarts": 3, "order": "any", "soakSeconds": 5}}}

_RESERVED = "  ReservedResources:\n    CPU: 500m\n"
_NAMES = ("topology-aware", "balloons", "static-plus", "podpools", "static", "none")
POLICIES = [f"policy:\n  Active: {name}\n{_RESERVED}" for name in _NAMES]
_PORT = 8080
TICKS = (
    *("sh", "-c"),
    f"busybox nc -ll -p {_PORT} -e busybox cat & n=0; while :; do n=$((n+1)); echo tick $n; sleep 0.2; done",
)
PROBE: Object = {"exec": {"command": ["true"]}, "periodSeconds": 1, "failureThreshold": 1}
_MOST, _BORN = 60, count()
_INSTANTS, _STEP = 12, 0.35  # seconds
_TIMES = 300
_ORDERLY = 12  # seconds of an end in order


@pytest.fixture(scope="module")
def ticking(cluster: Cluster) -> Iterator[dict[str, Sessions]]:
    """On each node a pod that logs, and people who look at it."""
    install(cluster)
    for node in cluster.nodes:
        serve_slowly(node)
    template = workload("ticking")
    container = template["spec"]["containers"][0]
    container |= {"command": list(TICKS), "readinessProbe": PROBE}
    run_workload(cluster, template=template)
    with ExitStack() as stack:
        yield {node.name: stack.enter_context(Sessions(cluster, node)) for node in cluster.nodes}


class Sessions:
    """An exec session, one that is attached, a forwarded port with a connection, and somebody who follows the
    log, on the ticking pod of a node."""

    def __init__(self, cluster: Cluster, node: KubeNode) -> None:
        self._cluster, self._node = cluster, node
        self._numbers = count()

    def __enter__(self) -> Sessions:
        pods = self._cluster.get("pods", namespace="default")["items"]
        (pod,) = (
            pod
            for pod in pods
            if pod["spec"]["nodeName"] == self._node.name and pod["metadata"]["labels"]["app"] == "ticking"
        )
        name = pod["metadata"]["name"]
        echo = ("sh", "-c", "while read -r word; do echo $word; done")
        start = self._cluster.start
        self._readers = [start("logs", "--follow", "--tail=1", name), start("attach", name)]
        self._forward = start("port-forward", name, f":{_PORT}")
        port = _line_of(self._forward).split()[2].rpartition(":")[2]  # Forwarding from 127.0.0.1:PORT -> ...
        connection = self._cluster.begin("busybox", "nc", "127.0.0.1", port)
        self._echoes = [start("exec", "--stdin", name, "--", *echo), connection]
        self.expect_alive()
        return self

    def __exit__(self, *_: object) -> None:
        for session in (*self._echoes, *self._readers, self._forward):
            session.kill()
            session.communicate()

    def expect_alive(self) -> None:
        word = f"w{next(self._numbers)}"
        for session in self._echoes:
            assert session.stdin
            session.stdin.write(f"{word}\n")
            session.stdin.flush()
            assert _line_of(session) == f"{word}\n"
        for session in self._readers:
            assert session.poll() is None
            assert _line_of(session).startswith("tick ")


def _line_of(session: subprocess.Popen[str]) -> str:
    assert session.stdout
    return session.stdout.readline()


class Births:
    """`with Births(cluster):` a pod is created every two seconds, every other one of an image that has to be
    pulled; in the end all of their containers run."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._stop, self._names = cluster, Event(), list[str]()
        self._thread = Thread(target=self._create, daemon=True)

    def __enter__(self) -> Births:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._names:
            wait_for(self._cluster, self._names)
        self._cluster.kubectl("delete", "pods", "--selector=app=born", "--wait=false", "--grace-period=1")

    def _create(self) -> None:
        nodes = self._cluster.nodes
        for number in range(_MOST):
            if self._stop.wait(2.0):
                return
            pulls = number // len(nodes) % 2 == 1
            self._names.append(bear(self._cluster, nodes[number % len(nodes)], pulls=pulls))


def wait_for(cluster: Cluster, names: Sequence[str]) -> None:
    """Until each of these pods is ready."""

    def are_ready() -> bool:
        pods = cluster.get("pods", namespace="default")["items"]
        return {pod["metadata"]["name"] for pod in pods if _is_ready(pod)}.issuperset(names)

    cluster.wait(are_ready, "each pod runs that was created meanwhile")


def bear(cluster: Cluster, node: KubeNode, *, pulls: bool) -> str:
    """The name of a new pod. Its second container comes seconds after its sandbox."""
    template = workload("born", resources={}, nodeName=node.name)
    container = template["spec"]["containers"][0]
    if pulls:
        container |= {"image": PULLED, "imagePullPolicy": "Always"}
    late = {**container, "name": "late", "command": ["sleep", "3"]}
    name = f"born-{next(_BORN)}"
    template["metadata"] |= {"name": name, "namespace": "default"}
    template["spec"] |= {"initContainers": [late]}
    cluster.apply(json.dumps({"apiVersion": "v1", "kind": "Pod", **template}))
    return name


def _is_ready(pod: Object) -> bool:
    return any(
        each["type"] == "Ready" and each["status"] == "True" for each in pod["status"].get("conditions", [])
    )


def _readiness(cluster: Cluster) -> dict[str, tuple[str, int]]:
    """Of each ticking pod: since when it has been ready or not, and how often it was restarted."""
    pods = cluster.kubectl("get", "pods", "--selector=app=ticking", "--output=json")
    return {
        pod["metadata"]["name"]: (
            next(
                each["lastTransitionTime"] for each in pod["status"]["conditions"] if each["type"] == "Ready"
            ),
            pod["status"]["containerStatuses"][0]["restartCount"],
        )
        for pod in json.loads(pods)["items"]
    }


@pytest.fixture(autouse=True)
def unseen(cluster: Cluster, ticking: dict[str, Sessions], watch: Watch) -> Iterator[None]:
    """No session ends, no pod or node flips, each kubelet is the one that it was, each pod that is created
    meanwhile runs."""
    kubelets = [node.invocations()[0] for node in cluster.nodes]
    before = _readiness(cluster)
    with Births(cluster):
        yield
    for sessions in ticking.values():
        sessions.expect_alive()
    assert [node.invocations()[0] for node in cluster.nodes] == kubelets
    assert _readiness(cluster) == before
    assert not watch.flips()
    assert not cluster.denied()


@pytest.mark.parametrize("policy", POLICIES)
def test_another_policy(cluster: Cluster, policy: str) -> None:
    apply(cluster, policy)
    cluster.wait(lambda: has_fallback(cluster, policy) and are_well(cluster), "the policy is in force")
    assert are_served(cluster)


def test_an_upgrade(cluster: Cluster) -> None:
    proxies = [node.invocations()[1] for node in cluster.nodes]
    apply(cluster, NONE, NEW)
    cluster.wait(lambda: are_well(cluster) and _are_others(cluster, proxies), "the new version")
    assert are_served(cluster)


def _are_others(cluster: Cluster, proxies: list[str]) -> bool:
    return all(node.invocations()[1] != old for node, old in zip(cluster.nodes, proxies, strict=True))


def test_a_bad_upgrade_and_the_way_back(cluster: Cluster) -> None:
    apply(cluster, NONE, BROKEN)
    cluster.wait(lambda: "stopped" in status(cluster, code=None), "the generation is stopped")
    cluster.wait(lambda: all(node.on_relay() for node in cluster.nodes), "all are on the relay")
    apply(cluster, NONE, NEW)
    cluster.wait(lambda: are_well(cluster) and are_served(cluster), "the good version")


@pytest.mark.parametrize("signal", ["KILL", "STOP"])
def test_a_proxy_that_dies_or_freezes(cluster: Cluster, signal: str) -> None:
    proxies = [node.invocations()[1] for node in cluster.nodes]
    for node in cluster.nodes:
        node.host.systemctl("kill", f"--signal={signal}", PROXY)
    cluster.wait(lambda: _are_others(cluster, proxies) and are_served(cluster), "other proxies serve")


def test_a_proxy_that_somebody_stops(cluster: Cluster) -> None:
    for node in cluster.nodes:
        node.host.systemctl("stop", PROXY)
        assert not node.on_relay()
    cluster.wait(lambda: are_served(cluster), "kubelet has returned")


def _hold(node: KubeNode) -> Path:
    return node.host.root / paths.HOLD[1:]


def test_a_hold(cluster: Cluster) -> None:
    for node in cluster.nodes:
        _hold(node).write_text("a broken CPU map\n")
    cluster.wait(lambda: not any(node.on_relay() for node in cluster.nodes), "none is on the relay")
    for node in cluster.nodes:
        _hold(node).unlink()
    cluster.wait(lambda: are_served(cluster), "kubelet has returned")


@pytest.mark.parametrize("pulls", [False, True], ids=["", "pulls"])
def test_pods_that_are_born_at_each_instant_of_a_move(cluster: Cluster, pulls: bool) -> None:
    """From the sandbox to the second container, a pod takes some four seconds."""
    for number in range(_INSTANTS):
        names = [bear(cluster, node, pulls=pulls) for node in cluster.nodes]
        time.sleep(number * _STEP)
        for node in cluster.nodes:
            _hold(node).write_text("the test's\n")
        cluster.wait(lambda: not any(node.on_relay() for node in cluster.nodes), "none is on the relay")
        names += [bear(cluster, node, pulls=pulls) for node in cluster.nodes]
        time.sleep(number * _STEP)
        for node in cluster.nodes:
            _hold(node).unlink()
        cluster.wait(lambda: are_served(cluster), "kubelet has returned")
        wait_for(cluster, names)


def test_a_pod_that_ends_during_moves_has_its_grace_period(cluster: Cluster) -> None:
    """Its process ends in order: kubelet's call, which waits for that, is in flight while kubelet moves."""
    names = {}
    for node in cluster.nodes:
        for where in ("relay", "base", "stopped"):
            template = workload("ending", resources={}, nodeName=node.name, terminationGracePeriodSeconds=60)
            name = f"ending-{where}-{node.name}"
            template["metadata"] |= {"name": name, "namespace": "default"}
            container = template["spec"]["containers"][0]
            orderly = f"trap 'sleep {_ORDERLY}; : >/ends/{name}; exit' TERM; while :; do sleep 0.1; done"
            container |= {"command": ["sh", "-c", orderly]}
            container |= {"volumeMounts": [{"name": "ends", "mountPath": "/ends"}]}
            place = {"path": "/var/lib/ends", "type": "DirectoryOrCreate"}
            template["spec"] |= {"volumes": [{"name": "ends", "hostPath": place}]}
            cluster.apply(json.dumps({"apiVersion": "v1", "kind": "Pod", **template}))
            names[name] = node
    wait_for(cluster, tuple(names))
    for where in ("relay", "base", "stopped"):
        for node in cluster.nodes:
            cluster.kubectl("delete", "pod", "--wait=false", f"ending-{where}-{node.name}")
        time.sleep(2)
        for node in cluster.nodes:
            if where == "stopped":
                node.host.systemctl("stop", PROXY)
            elif where == "relay":
                _hold(node).write_text("the test's\n")
            else:
                _hold(node).unlink()
        on_relay = where == "base"
        if where == "stopped":
            break
        cluster.wait(lambda: all(node.on_relay() is on_relay for node in cluster.nodes), "moved")  # noqa: B023
    cluster.wait(lambda: are_served(cluster), "kubelet has returned")
    there = ("get", "pods", "--namespace=default", "--output=name")
    cluster.wait(lambda: "pod/ending-" not in cluster.kubectl(*there), "all have ended")
    for name, node in names.items():
        assert (node.host.root / f"var/lib/ends/{name}").exists(), name


def test_kubelet_can_be_asked_to_leave_its_connections_at_any_time(cluster: Cluster) -> None:
    """It loses no call and reads no answer wrongly, while pods come and go."""
    cluster.wait(lambda: are_served(cluster), "kubelet is on the relay")
    node, asked = cluster.nodes[0], 0
    connections, pid = HostConnections(node.host.root), int(node.host.show(UNIT, "MainPID"))
    since = node.host.run("date", "+%s").stdout.strip()
    for _ in range(_TIMES):
        asked += len(connections.drain(pid, paths.RELAY_ENDPOINT))
        time.sleep(0.1)
    assert asked > _TIMES / 10
    said = node.host.run("journalctl", f"--since=@{since}", f"--unit={UNIT}", "--output=cat").stdout
    wrong = ("code = Unavailable", "code = Internal", "frame too large", "proto: ")
    assert not [line for line in said.splitlines() if any(word in line for word in wrong)]
