"""From cri-resmgr to an NRI plugin, on a cluster of real programs. Plugins' own reports are played.

One story, in this order.
"""

from __future__ import annotations

import json
import time

import pytest

from installer.model.names import SUCCESSOR_LABEL
from tests.cluster.steps import SETTINGS, install, is_clean, is_served, run_workload, status
from tests.cluster.world import NAME, NAMESPACE, Cluster, KubeNode, Object
from tests.lib.nri import definitions

#: The permit lasts for twice the longest pass, and half of that is waited for a plugin.
VALUES = {
    "settings": {
        **SETTINGS,
        "rollout": {"concurrentRestarts": 1, "order": "any"},
        "removal": {"successor": "nri"},
    }
}
REMOVAL = f"{NAME}-removal"
RESOURCE = "topologyawarepolicies.config.nri"
#: Long enough for a node to have begun, if nothing kept it.
LOOK_SECONDS = 20.0
POLICY = {
    "apiVersion": "config.nri/v1alpha1",
    "kind": "TopologyAwarePolicy",
    "metadata": {"name": "default", "namespace": NAMESPACE},
    "spec": {"reservedResources": {"cpu": "1"}},
}


def say(cluster: Cluster, node: KubeNode, status: str, **more: str) -> None:
    """As its plugin would, of the resource's present generation."""
    found = cluster.get(RESOURCE, "default", NAMESPACE)
    word = {"status": status, "generation": found["metadata"]["generation"], **more}
    patch = json.dumps({"status": {"nodes": {node.name: word}}})
    place = ("--namespace", NAMESPACE, "--subresource=status", "--type=merge")
    cluster.kubectl("patch", RESOURCE, "default", *place, f"--patch={patch}")


def logs(cluster: Cluster, node: KubeNode) -> str:
    pod = cluster.pod(node, REMOVAL)
    name = pod["metadata"]["name"] if pod else "none"
    return cluster.kubectl("logs", "--namespace", NAMESPACE, name, code=None)


def left(cluster: Cluster) -> list[KubeNode]:
    return [node for node in cluster.nodes if is_clean(cluster, node)]


def labels(cluster: Cluster, node: KubeNode) -> Object:
    found: Object = cluster.node(node)["metadata"]["labels"]
    return found


@pytest.fixture(scope="module", autouse=True)
def listening(cluster: Cluster) -> None:
    """Each host's runtime, which is too old for plugins: somebody listens where it would."""
    for node in cluster.nodes:
        socket = "--socket-property=ListenStream=/var/run/nri/nri.sock"
        node.host.run("systemd-run", "--unit=nri", socket, "/bin/true")


def test_no_node_is_left_before_there_is_a_resource_for_its_plugin(
    cluster: Cluster, request: pytest.FixtureRequest
) -> None:
    for definition in definitions(request.config):
        cluster.apply(json.dumps(definition))
    install(cluster)
    run_workload(cluster)
    weights = [node.weights() for node in cluster.nodes]
    cluster.kubectl("delete", "daemonset", NAME, "--namespace", NAMESPACE)
    cluster.apply(cluster.manifests("v0.9.2", "", "--mode", "remove"))
    why = "no TopologyAwarePolicy or BalloonsPolicy"
    cluster.wait(lambda: any(why in logs(cluster, node) for node in cluster.nodes), why)
    assert all(node.on_relay() for node in cluster.nodes)
    assert [node.weights() for node in cluster.nodes] == weights


def test_the_second_node_waits_for_the_plugin_of_the_first(cluster: Cluster) -> None:
    cluster.apply(json.dumps(POLICY))
    cluster.wait(lambda: left(cluster), "one node is left")
    (first,) = left(cluster)
    cluster.wait(lambda: labels(cluster, first).get(SUCCESSOR_LABEL) == "nri", "it has the label")
    cluster.wait(lambda: "no NRI plugin reports yet" in logs(cluster, first), "it waits for its plugin")
    until = time.monotonic() + LOOK_SECONDS
    while time.monotonic() < until:
        assert left(cluster) == [first]
        time.sleep(1.0)
    say(cluster, first, "Success")
    cluster.wait(lambda: len(left(cluster)) == 2, "the second one is left")


def test_a_plugin_that_fails_stops_the_third_node_until_a_person_says_retry(cluster: Cluster) -> None:
    said = cluster.get(RESOURCE, "default", NAMESPACE)["status"]["nodes"]
    (second,) = (node for node in left(cluster) if node.name not in said)
    say(cluster, second, "Failure", errors="no such CPU")
    cluster.wait(lambda: "the removal is stopped" in status(cluster, code=None), "the removal is stopped")
    assert "no such CPU (`rollout retry` starts it again)" in status(cluster, code=3)
    until = time.monotonic() + LOOK_SECONDS
    while time.monotonic() < until:
        assert len(left(cluster)) == 2
        time.sleep(1.0)
    say(cluster, second, "Success")
    cluster.ours("rollout", "retry")
    cluster.wait(lambda: len(left(cluster)) == 3, "the third one is left")
    assert not cluster.denied()


def test_the_way_back_is_an_installation(cluster: Cluster) -> None:
    cluster.kubectl("delete", "daemonset", REMOVAL, "--namespace", NAMESPACE)
    cluster.kubectl("delete", RESOURCE, "default", "--namespace", NAMESPACE)
    install(cluster)
    assert all(is_served(cluster, node) for node in cluster.nodes)
    assert not any(SUCCESSOR_LABEL in labels(cluster, node) for node in cluster.nodes)
    assert not cluster.denied()
