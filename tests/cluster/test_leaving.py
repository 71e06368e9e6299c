"""Pods of ours that end in the middle of their work, and the ways to leave a cluster that people take.

The tests are one story, in this order: each begins with the cluster that the one before has left.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from installer.model.names import LEFT
from installer.model.paths import PASS_UNIT
from tests.cluster.steps import (
    SETTINGS,
    WORKLOAD,
    apply,
    are_served,
    are_well,
    has_fallback,
    install,
    is_clean,
    is_served,
    restarts,
    run_workload,
    workload,
)
from tests.cluster.world import NAME, NONE, OLD, Cluster, KubeNode
from tests.host.node import BINARY, PROXY

NAMESPACE, POOL = "node-tools", "pool=pinned"
VALUES = {
    "namespace": NAMESPACE,
    "nodeSelector": dict([POOL.split("=")]),
    "settings": {**SETTINGS, "removal": {"onTermination": "auto"}},
}


def label(cluster: Cluster, node: KubeNode, what: str = POOL) -> None:
    """Puts it into the pool; with `pool-`, takes it out."""
    cluster.kubectl("label", "node", node.name, what)


def starts(node: KubeNode) -> int:
    """Of its proxy."""
    return node.host.journal(PROXY).count("Started ")


def test_the_nodes_of_a_pool_are_served(cluster: Cluster) -> None:
    cluster.kubectl("create", "namespace", NAMESPACE)
    for node in cluster.nodes:
        label(cluster, node)
    install(cluster)


# -- in the middle of a pass ------------------------------------------------------------------------


def delete(cluster: Cluster, pod: str) -> None:
    cluster.kubectl("delete", "pod", pod, "--namespace", NAMESPACE, "--wait=false")


def evict(cluster: Cluster, pod: str) -> None:
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}/eviction"
    what = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": NAMESPACE}}
    answer = cluster.plane.admin.call("POST", path, what)
    assert answer.code == 201, answer


def kill(cluster: Cluster, pod: str) -> None:
    cluster.kubectl("delete", "pod", pod, "--namespace", NAMESPACE, "--force", "--grace-period=0")


@pytest.mark.parametrize("end", [delete, evict, kill])
def test_a_pod_that_ends_in_the_middle_of_a_pass_breaks_nothing_off(
    cluster: Cluster, end: Callable[[Cluster, str], None]
) -> None:
    """Every node's pod ends, as soon as its pass has restarted the proxy: none of them is restarted twice."""
    text = f"{NONE}# until {end.__name__}\n"
    kubelets = [node.invocations()[0] for node in cluster.nodes]
    before = {node.name: (starts(node), node.invocations()[1]) for node in cluster.nodes}
    apply(cluster, text)
    at_work = dict(zip(before, cluster.nodes, strict=True))
    while at_work:
        for node in cluster.wait(lambda: begun(at_work, before), "a pass restarts the proxy"):
            end(cluster, cluster.pod(node)["metadata"]["name"])
            del at_work[node.name]
    cluster.wait(lambda: has_fallback(cluster, text) and are_well(cluster), "the new configuration")
    assert are_served(cluster)
    assert [node.invocations()[0] for node in cluster.nodes] == kubelets
    assert {node.name: starts(node) - before[node.name][0] for node in cluster.nodes} == dict.fromkeys(
        before, 1
    )


def begun(nodes: dict[str, KubeNode], before: dict[str, tuple[int, str]]) -> list[KubeNode]:
    """Those on which another proxy runs than before."""
    return [node for node in nodes.values() if node.invocations()[1] != before[node.name][1]]


def test_a_node_that_reboots_in_the_middle_of_a_pass_is_served_again(cluster: Cluster) -> None:
    node, text = cluster.nodes[0], f"{NONE}# until a reboot\n"
    _kubelet, before = node.invocations()
    apply(cluster, text)
    cluster.wait(lambda: node.invocations()[1] != before, "its pass restarts the proxy")
    node.host.poweroff()
    cluster.boot(node)
    cluster.wait(lambda: has_fallback(cluster, text) and are_well(cluster), "the new configuration")
    assert are_served(cluster)


# -- what is selected -------------------------------------------------------------------------------


def test_a_node_that_leaves_the_pool_cleans_itself_and_comes_back(cluster: Cluster) -> None:
    node, *others = cluster.nodes
    kubelets = [each.invocations()[0] for each in others]
    label(cluster, node, "pool-")
    cluster.wait(lambda: is_clean(cluster, node), "it is clean")
    cluster.wait(lambda: not cluster.pod(node), "its pod has ended")
    assert not node.traces()
    assert "1 other nodes are not served" in cluster.ours("report")
    label(cluster, node)
    cluster.wait(lambda: node.host.show(PASS_UNIT, "ActiveState") == "active", "its pass is at work")
    cluster.wait(node.on_relay, "kubelet is on the relay")
    delete(cluster, cluster.pod(node)["metadata"]["name"])
    cluster.wait(lambda: are_well(cluster) and are_served(cluster), "it is served again")
    assert [each.invocations()[0] for each in others] == kubelets


def test_a_node_that_leaves_the_pool_while_it_is_off_stays_as_it_is_and_is_named(cluster: Cluster) -> None:
    node = cluster.nodes[-1]
    node.host.poweroff()
    label(cluster, node, "pool-")
    cluster.boot(node)
    cluster.wait(lambda: cluster.is_ready(node) and not cluster.pod(node), "kubelet has ended its pod")
    cluster.wait(lambda: "deselected, not removed" in cluster.ours("report", code=None), "report names it")
    assert node.name in cluster.ours("report", code=3)
    assert node.on_relay()
    kubelet = node.invocations()[0]
    label(cluster, node)
    cluster.wait(lambda: are_well(cluster) and is_served(cluster, node), "it is served again")
    assert node.invocations()[0] == kubelet


def test_a_removal_that_is_called_off_gives_the_nodes_back(cluster: Cluster) -> None:
    cluster.apply(cluster.manifests(OLD, NONE, "--mode=remove"))
    cluster.wait(lambda: any(is_clean(cluster, node) for node in cluster.nodes), "one node is clean")
    cluster.wait(lambda: half_removed(cluster), "the next one is at work")
    cluster.kubectl("delete", "daemonset", f"{NAME}-removal", "--namespace", NAMESPACE)
    cluster.wait(lambda: are_well(cluster) and are_served(cluster), "all nodes are served again")


# -- kubectl delete ---------------------------------------------------------------------------------


def test_deletions_of_its_namespaces_are_refused(cluster: Cluster) -> None:
    before = [node.invocations() for node in cluster.nodes]
    for name in (NAMESPACE, f"{NAME}-rollout"):
        said = cluster.kubectl("delete", "namespace", name, code=1)
        assert f"kubectl annotate namespaces {name}" in said
    assert are_served(cluster)
    assert [node.invocations() for node in cluster.nodes] == before


def test_after_kubectl_delete_of_everything_each_node_cleans_itself(cluster: Cluster) -> None:
    manifests = cluster.manifests()
    said = cluster.kubectl("delete", "--filename=-", stdin=manifests, code=1)
    assert "run `cri-resmgr-installer uninstall`" in said
    cluster.wait(lambda: all(is_clean(cluster, node) for node in cluster.nodes), "all are clean")
    cluster.wait(lambda: not cluster.pods(), "no pod is left")
    for node in cluster.nodes:
        assert not node.traces()
    # The policies went with the first one, and hold nothing any more.
    cluster.kubectl("delete", "--ignore-not-found", "--filename=-", stdin=manifests)


# -- pods that start --------------------------------------------------------------------------------


def start_pods(cluster: Cluster, node: KubeNode, count: int) -> None:
    """Some of them run."""
    template = workload(nodeName=node.name)
    run_workload(cluster, "Deployment", template, wait=False, replicas=count)
    cluster.wait(lambda: len(node.weights()) > 0, "the first ones run")


def all_run(cluster: Cluster) -> None:
    cluster.kubectl("rollout", "status", f"deployment/{WORKLOAD}", "--timeout=240s")


def test_a_power_cut_while_pods_start(cluster: Cluster) -> None:
    install(cluster)
    node = cluster.nodes[0]
    start_pods(cluster, node, 20)
    node.host.kill()
    cluster.boot(node)
    cluster.wait(lambda: len(node.weights()) == 20, "all pods run")
    all_run(cluster)
    cluster.wait(lambda: are_well(cluster) and are_served(cluster), "it is served")
    assert max(restarts(cluster)) <= 1


# -- uninstall, and a node that is off --------------------------------------------------------------


def test_uninstall_while_pods_start_leaves_the_node_that_is_off_and_names_it(cluster: Cluster) -> None:
    busy, *_, off = cluster.nodes
    cluster.kubectl("delete", "deployment", WORKLOAD)
    off.host.poweroff()
    start_pods(cluster, busy, 20)
    said = cluster.ours("uninstall", "--yes", "--wait=90", code=6)
    assert f"{off.name}: its kubelet is silent" in said
    assert f"--mode remove --nodes {off.name}" in said
    all_run(cluster)
    for node in cluster.nodes[:-1]:
        assert is_clean(cluster, node)
    assert cluster.word(off)["state"] == LEFT
    assert off.name in cluster.ours("report", code=3)


def test_a_node_that_was_left_is_cleaned_when_it_is_back(cluster: Cluster) -> None:
    off = cluster.nodes[-1]
    cluster.boot(off)
    cluster.wait(lambda: cluster.is_ready(off), "it is back")
    assert off.on_relay()
    cluster.apply(cluster.manifests(OLD, NONE, "--mode=remove", f"--nodes={off.name}"))
    cluster.wait(lambda: is_clean(cluster, off), "it is clean")
    said = cluster.ours("uninstall", "--yes")
    assert "uninstalled: " in said
    cluster.kubectl("delete", "deployment", WORKLOAD, "--ignore-not-found")
    cluster.wait(lambda: not any(node.weights() for node in cluster.nodes), "the workload is gone")
    for node in cluster.nodes:
        assert not node.traces()


def test_a_node_that_boots_with_the_pods_of_both_is_cleaned(cluster: Cluster) -> None:
    """Of the installation and of the removal: they start at once, in any order."""
    install(cluster)
    node = cluster.nodes[-1]
    node.host.poweroff()
    cluster.apply(cluster.manifests(OLD, NONE, "--mode=remove"))
    for _ in range(3):
        cluster.boot(node)
        cluster.wait(lambda: is_clean(cluster, node), "it is clean")
        node.host.poweroff()
    cluster.boot(node)
    cluster.wait(lambda: all(is_clean(cluster, each) for each in cluster.nodes), "all are clean")
    cluster.kubectl("delete", "daemonset", NAME, f"{NAME}-removal", "--namespace", NAMESPACE)
    cluster.wait(lambda: not cluster.pods(), "all pods have ended")
    assert not node.on_relay()


def test_uninstall_waits_for_a_node_whose_power_is_cut_in_the_middle_of_its_removal(cluster: Cluster) -> None:
    install(cluster)
    with ThreadPoolExecutor() as pool:
        said = pool.submit(cluster.ours, "uninstall", "--yes")
        node = cluster.wait(lambda: half_removed(cluster), "a removal is at work")[0]
        node.host.kill()
        cluster.boot(node)
        assert "uninstalled: " in said.result()
    for node in cluster.nodes:
        assert is_clean(cluster, node)
        assert not node.traces()


def half_removed(cluster: Cluster) -> list[KubeNode]:
    """Their kubelet has left the relay, and the proxy is still there."""
    return [
        node for node in cluster.nodes if node.on_relay() is False and (node.host.root / BINARY[1:]).exists()
    ]


def test_the_api_server_has_denied_the_pods_nothing(cluster: Cluster) -> None:
    """By its own log, of all that they have asked in this story."""
    assert not cluster.denied()
