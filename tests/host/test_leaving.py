"""Ways to take the installation out of a cluster, and what becomes of a node: by the manifests as they are
rendered, with the rights and the policies in them, at an API server's stand-in that enforces both.

The DaemonSet alone, and what it selects, are in test_cluster.py; Gardener's way is in test_gardener.py.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest

from installer.manifests.build import build_objects
from installer.manifests.inputs import ManifestOptions, load_inputs
from installer.model.hold import CLUSTER_MEMORY
from installer.model.names import READY_LABEL, STATUS, UNINSTALLING
from tests.host.daemon import SOON, Daemon, within
from tests.host.node import PROXY, Node
from tests.host.nodes import Nodes
from tests.lib.rules import rule
from tests.lib.throwaway.authority import ACCOUNTS, NAMESPACES, StrictServer
from tests.lib.throwaway.fleet import LABELS, NODES, kind_of
from tests.lib.throwaway.kubelet import wait_healthy
from tests.lib.throwaway.kubeserver import Kind, Name, Refused
from tests.lib.throwaway.snapshot import difference, files

pytestmark = pytest.mark.long

EVENTS = Kind("/api/v1", "events")
NODE, NAMESPACE, ROLLOUT = "worker-7", "node-tools", "cri-resmgr-installer-rollout"
VALUES: dict[str, Any] = {
    "images": {"installer": "registry.example.org/cri-resmgr-installer:1"},
    "namespace": NAMESPACE,
    "nodeSelector": {"pool": "pinned"},
    "settings": {
        "kubelet": {"settleSeconds": 1, "restartsPerHour": 100},
        "removal": {"onTermination": "auto"},
    },
}


class Cluster:
    """One node and our manifests. Without `policies` it is one before Kubernetes 1.30, and the manifests are
    those for it."""

    def __init__(self, machine: Node, directory: Path, *, policies: bool = True) -> None:
        values = directory / "values.yaml"
        values.write_text(json.dumps({**VALUES, "admissionPolicies": policies}))
        self.objects = build_objects(load_inputs(ManifestOptions(values=values), lambda _: None))
        self.server = StrictServer(directory / "server", policies=policies)
        self.nodes = Nodes(self.server, machine.command.payload, directory / "pods")
        self._machine = machine
        self._stop = threading.Event()
        self._error: Exception | None = None
        self._daemon: Daemon | None = None

    def __enter__(self) -> Self:
        self.server.__enter__()
        self.server.create(NAMESPACES, "", {"metadata": {"name": NAMESPACE}})
        self.nodes.join(NODE, self._machine, {**LABELS, "pool": "pinned"})
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        self._stop.set()
        self._thread.join()
        self.nodes.kill()
        self.server.__exit__()
        if error is not None and self._daemon is not None:
            error.add_note(self._daemon.said())
        if self._error is not None:
            raise self._error from error

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                with self.server.changed:
                    self.nodes.run()
                    self.server.changed.wait(0.1)
        except Exception as error:
            self._error = error

    def install(self) -> Daemon:
        """`kubectl apply -f` of everything, until the node is served, its permit is given back, and nothing
        more is to be done; what runs in its pod."""
        for body in self.objects:
            self.server.create(kind_of(body), body["metadata"].get("namespace", ""), body)
        within(SOON, lambda: self.nodes.runs(NODE))
        self._daemon = daemon = self.nodes.container(NODE)
        daemon.settle()
        within(SOON, lambda: not self._keeps_a_permit())
        if "CRI_RESMGR_INSTALLER_ANNOTATE_NODE" in json.dumps(self.objects):
            self.server.wait(lambda: self.said_by_node() == "converged")
        assert not self.server.denied
        return daemon

    def _keeps_a_permit(self) -> bool:
        memory = self._machine.path(CLUSTER_MEMORY)
        return memory.exists() and bool(json.loads(memory.read_text())["held"])

    def said_by_node(self) -> str:
        annotations = self.server.get(Name(NODES, "", NODE))["metadata"].get("annotations", {})
        return str(json.loads(annotations.get(STATUS, "{}")).get("state", ""))

    def delete(self, *objects: dict[str, Any]) -> list[str]:
        """`kubectl delete -f` of these: one after the other, and what is refused does not hold up the rest.
        So fast that no pod comes between. What was refused, in the API server's words."""
        refused = []
        with self.server.changed:
            for body in objects:
                metadata = body["metadata"]
                try:
                    self.server.delete(Name(kind_of(body), metadata.get("namespace", ""), metadata["name"]))
                except Refused as error:
                    refused += [str(error)] if error.code != 404 else []
        return refused

    def delete_namespace(self, name: str) -> list[str]:
        return self.delete({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})

    def without_pods(self) -> bool:
        return not self.nodes.pods_of(NODE)


@pytest.fixture(scope="module")
def node(booted: Node) -> Node:
    return booted


def delete_everything(cluster: Cluster) -> None:
    """In the order of the file. What the nodes need for their cleanup stays; the output says what is next."""
    refused = cluster.delete(*cluster.objects)
    kinds = {said.split()[0] for said in refused}
    rights = {"serviceaccounts", "roles", "rolebindings", "clusterroles", "clusterrolebindings"}
    assert kinds == {*rights, "namespaces"}
    assert all("run `cri-resmgr-installer uninstall`" in said for said in refused)


def relabel_the_node(cluster: Cluster) -> None:
    cluster.server.patch(Name(NODES, "", NODE), {"metadata": {"labels": {"pool": "another"}}})


@rule("R6")
@pytest.mark.parametrize("leave", [delete_everything, relabel_the_node])
def test_a_node_is_cleaned_exactly(node: Node, tmp_path: Path, leave: Callable[[Cluster], None]) -> None:
    with Cluster(node, tmp_path) as cluster:
        daemon = cluster.install()
        leave(cluster)
        within(SOON, cluster.without_pods)
        (why,) = daemon.messages("removal.evidence")
        assert why.startswith("removing: ")
        node.expect_untraced()
        assert cluster.said_by_node() == "removed"
        assert READY_LABEL not in cluster.server.get(Name(NODES, "", NODE))["metadata"]["labels"]
        assert not cluster.server.denied
        # And then everything goes that is still there.
        cluster.delete(*cluster.objects)
        assert cluster.delete(*cluster.objects) == []
        for name in (NAMESPACE, ROLLOUT):
            assert cluster.delete_namespace(name) == []
        assert not [name for name in cluster.server.objects if name.namespace not in ("", "default")]


def test_deletions_of_its_namespaces_are_refused_and_change_nothing(node: Node, tmp_path: Path) -> None:
    with Cluster(node, tmp_path) as cluster:
        daemon = cluster.install()
        before = set(cluster.server.objects)
        for name in (NAMESPACE, ROLLOUT):
            (said,) = cluster.delete_namespace(name)
            assert said.endswith(f"kubectl annotate namespaces {name} {UNINSTALLING}=true")
        daemon.rests()
        assert before <= set(cluster.server.objects)
        assert node.on_relay()


def backwards(cluster: Cluster) -> None:
    """The policies first, which are not held up, and the rights right behind them."""
    assert cluster.delete(*reversed(cluster.objects)) == []


def in_order(cluster: Cluster) -> None:
    assert cluster.delete(*cluster.objects) == []


def its_namespace(cluster: Cluster) -> None:
    assert cluster.delete_namespace(NAMESPACE) == []


@rule("R11", "R13")
@pytest.mark.parametrize(
    ("policies", "leave"), [(True, backwards), (False, in_order), (False, its_namespace)]
)
def test_a_pod_whose_rights_go_with_it_keeps_its_node_and_says_why(
    node: Node, tmp_path: Path, policies: bool, leave: Callable[[Cluster], None]
) -> None:
    with Cluster(node, tmp_path, policies=policies) as cluster:
        daemon = cluster.install()
        before = files(node.host)
        with node.restarts(kubelet=False, proxy=False):
            leave(cluster)
            within(SOON, cluster.without_pods)
        (why,) = daemon.messages("removal.evidence")
        assert (
            why == "keeping: DaemonSet node-tools/cri-resmgr-installer could not be read: 401: Unauthorized"
        )
        assert not difference(before, files(node.host))
        wait_healthy(node.host)
        assert node.on_relay()
        assert node.host.systemctl("is-active", PROXY) == "active"
    node.run("remove")
    node.expect_untraced()


def test_of_a_pool_that_is_scaled_to_zero_nothing_is_left_in_the_cluster(node: Node, tmp_path: Path) -> None:
    node.run("remove")
    with Cluster(node, tmp_path) as cluster:
        cluster.install()
        with cluster.server.changed:
            cluster.nodes.lose(NODE)
            cluster.server.delete(Name(NODES, "", NODE))
        within(SOON, cluster.without_pods)
        assert Name(ACCOUNTS, NAMESPACE, "cri-resmgr-installer") in cluster.server.objects
        events = [name for name in cluster.server.objects if name.kind.plural == "events"]
        left = {name: body for name, body in cluster.server.objects.items() if name not in events}
        naming = [name for name, body in left.items() if NODE in json.dumps(body)]
        assert [name.name.partition("-")[0] for name in naming] == ["breaker"]
