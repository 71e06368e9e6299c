"""What an operator does with the program on a cluster of real programs, and what it reports.

The tests are one story, in this order: each begins with the cluster that the one before has left.
"""

from __future__ import annotations

import json
import time

import yaml

from installer.cluster.leases import leases_path
from installer.model.fleet import ROLLOUT
from installer.model.instant import parse_time
from installer.model.names import LAST_FAILURE, NOT_READY_TAINT, READY_LABEL, STATUS
from tests.cluster.steps import (
    SETTINGS,
    WORKLOAD,
    apply,
    are_served,
    are_well,
    has_fallback,
    install,
    is_served,
    restarts,
    run_workload,
    status,
)
from tests.cluster.world import BROKEN, NAME, NAMESPACE, NEW, NONE, Cluster, KubeNode, Object
from tests.host.node import BINARY, PROXY

VALUES = {"settings": SETTINGS}
DEBUG = "policy:\n  Active: none\nlogger:\n  Debug: cache\n"
OTHER = f"{NONE}# the same, in other words\n"
#: Nobody has so many CPUs.
REFUSED = "policy:\n  Active: balloons\n  ReservedResources:\n    CPU: 4000\n"


def test_the_manifests_are_applied_and_each_node_is_served(cluster: Cluster) -> None:
    """One of the nodes has come with the taint that keeps pods away until then."""
    tainted = cluster.nodes[0]
    cluster.kubectl("taint", "node", tainted.name, f"{NOT_READY_TAINT}:NoSchedule")
    install(cluster)
    cluster.wait(lambda: NOT_READY_TAINT not in json.dumps(cluster.node(tainted)["spec"]), "no taint")
    for node in cluster.nodes:
        assert node.host.systemctl("is-active", PROXY) == "active"
        assert cluster.node(node)["metadata"]["labels"][READY_LABEL] == "true"
    assert restarts(cluster) == {0}
    assert f"nodes that have it: {len(cluster.nodes)}" in status(cluster)


def test_a_second_apply_changes_nothing(cluster: Cluster) -> None:
    before = [node.invocations() for node in cluster.nodes]
    pods = {pod["metadata"]["uid"] for pod in cluster.pods()}
    apply(cluster)
    assert {pod["metadata"]["uid"] for pod in cluster.pods()} == pods
    assert [node.invocations() for node in cluster.nodes] == before


def test_report_says_what_the_hosts_are(cluster: Cluster) -> None:
    report = json.loads(cluster.ours("report", "--output", "json"))
    assert report["well"]
    assert {each["name"] for each in report["nodes"]} == {node.name for node in cluster.nodes}
    assert {each["state"] for each in report["nodes"]} == {"well"}


def test_other_configs_restart_each_proxy_and_no_kubelet(cluster: Cluster) -> None:
    run_workload(cluster)
    weights = {node.name: node.weights() for node in cluster.nodes}
    before = [node.invocations() for node in cluster.nodes]
    apply(cluster, DEBUG)
    cluster.wait(lambda: has_fallback(cluster, DEBUG) and are_well(cluster), "the new configuration")
    after = [node.invocations() for node in cluster.nodes]
    assert [new[0] for new in after] == [old[0] for old in before]
    assert all(new[1] != old[1] for new, old in zip(after, before, strict=True))
    assert {node.name: node.weights() for node in cluster.nodes} == weights


def test_configs_that_the_proxy_refuses_touch_nothing_and_are_named(cluster: Cluster) -> None:
    before = [node.invocations() for node in cluster.nodes]
    apply(cluster, REFUSED)
    cluster.wait(lambda: "stalled: no node" in status(cluster, code=None), "it is stalled")
    assert "failed to allocate reserved CPUs" in status(cluster, code=3)
    (named,) = (node for node in cluster.nodes if node.name in status(cluster, code=3))
    assert "4000 CPUs" in cluster.word(named)["reason"]
    assert cluster.condition(named)["reason"] == "Failed"
    assert [node.invocations() for node in cluster.nodes] == before
    apply(cluster, DEBUG)
    cluster.wait(lambda: are_well(cluster), "the good ones again")
    assert [node.invocations() for node in cluster.nodes] == before


def test_a_bad_generation_stops_at_its_canary(cluster: Cluster) -> None:
    before = [node.invocations()[0] for node in cluster.nodes]
    apply(cluster, DEBUG, BROKEN)
    cluster.wait(lambda: "stopped" in status(cluster, code=None), "the generation is stopped")
    said = status(cluster, code=3)
    assert sum(node.name in said for node in cluster.nodes) == 1, said
    events = json.loads(cluster.kubectl("get", "events", "--all-namespaces", "--output=json"))["items"]
    assert "RolloutStopped" in {each["reason"] for each in events}
    assert all(cluster.is_ready(node) and node.on_relay() for node in cluster.nodes)
    restarted = [
        node for node, old in zip(cluster.nodes, before, strict=True) if node.invocations()[0] != old
    ]
    assert len(restarted) <= 1


def test_a_retry_names_the_node_that_remembers_and_an_undo_goes_back(cluster: Cluster) -> None:
    before = [node.invocations() for node in cluster.nodes]
    (failed,) = (node for node in cluster.nodes if node.name in status(cluster, code=3))
    said = cluster.ours("rollout", "retry")
    assert "released generation" in said
    assert f"{failed.name} failed it and will retry only on `cri-resmgr-installer install --retry`" in said
    cluster.wait(lambda: "stopped" not in status(cluster, code=None), "it is not stopped any more")
    assert failed.name in status(cluster, code=3)
    assert cluster.word(failed)["state"] == "failed"
    cluster.kubectl("rollout", "undo", f"daemonset/{NAME}", "--namespace", NAMESPACE)
    cluster.wait(lambda: are_served(cluster) and are_well(cluster), "the good one again")
    assert [node.invocations() for node in cluster.nodes] == before


def test_a_paused_fleet_waits_longer_than_any_probe_and_goes_on(cluster: Cluster) -> None:
    cluster.ours("rollout", "pause", "--why", "a Friday")
    before = [node.invocations() for node in cluster.nodes]
    apply(cluster, NONE, NEW)
    # One pod after the other is replaced, and the first one waits.
    paused = "the rollout is paused: a Friday"
    (node,) = cluster.wait(lambda: waiting(cluster, paused), "a node says that it is paused")
    assert cluster.condition(node)["reason"] == "Waiting"
    assert "a Friday" in status(cluster, code=3)
    cluster.wait(lambda: pod_age(cluster, node) > probe_limit(cluster) + 20, "it has waited for long", 1200.0)
    assert [each.invocations() for each in cluster.nodes] == before
    assert restarts(cluster) == {0}
    cluster.ours("rollout", "resume")
    cluster.wait(lambda: has_fallback(cluster, NONE) and are_well(cluster), "the new version")
    assert are_served(cluster)
    assert restarts(cluster) == {0}


def waiting(cluster: Cluster, why: str) -> list[KubeNode]:
    return [node for node in cluster.nodes if why in cluster.word(node).get("reason", "")]


def pod_age(cluster: Cluster, node: KubeNode) -> float:
    pod = cluster.pod(node)
    return time.time() - (parse_time(pod["status"]["startTime"]) or time.time())


def probe_limit(cluster: Cluster) -> float:
    """The seconds after which kubelet kills a container whose probe never succeeds."""
    (container,) = cluster.pods()[0]["spec"]["containers"]
    probes = [container[kind] for kind in ("startupProbe", "livenessProbe")]
    return float(max(probe["failureThreshold"] * probe["periodSeconds"] for probe in probes))


def test_a_power_cut_in_the_middle_of_a_pass(cluster: Cluster) -> None:
    node = cluster.nodes[0]
    _kubelet, before = node.invocations()
    apply(cluster, OTHER)
    cluster.wait(lambda: node.invocations()[1] != before, "its proxy restarts")
    node.host.kill()
    cluster.boot(node)
    cluster.wait(lambda: has_fallback(cluster, OTHER) and are_well(cluster), "each is served again")


def test_a_drained_node_is_served_all_the_time(cluster: Cluster) -> None:
    node = cluster.nodes[-1]
    before = node.invocations()
    cluster.kubectl("drain", node.name, "--ignore-daemonsets", "--timeout=120s")
    for pod in cluster.pods():
        if pod["spec"]["nodeName"] == node.name:
            cluster.kubectl("delete", "pod", pod["metadata"]["name"], "--namespace", NAMESPACE)
    cluster.wait(lambda: is_served(cluster, node), "its new pod says so")
    cluster.kubectl("uncordon", node.name)
    assert node.invocations() == before


def test_uninstall_leaves_no_trace(cluster: Cluster) -> None:
    cluster.kubectl("delete", "daemonset", WORKLOAD, "--ignore-not-found")
    cluster.wait(lambda: not any(node.weights() for node in cluster.nodes), "the workload is gone")
    # Somebody has been at it: the next node finds the permit by its name.
    cluster.kubectl("label", "lease", "permit-0", f"{ROLLOUT}-", f"--namespace={NAME}-rollout")
    assert f"{len(cluster.nodes)} nodes" in cluster.ours("uninstall", "--dry-run", code=3)
    said = cluster.ours("uninstall", "--yes")
    for node in cluster.nodes:
        assert node.name in said
        assert not node.on_relay()
        assert not (node.host.root / BINARY[1:]).exists()
        metadata = cluster.node(node)["metadata"]
        assert not {STATUS, LAST_FAILURE} & metadata.get("annotations", {}).keys()
        assert READY_LABEL not in metadata["labels"]
        assert not cluster.condition(node)
        assert not node.traces()
    assert not cluster.pods()
    assert cluster.plane.admin.call("GET", leases_path(f"{NAME}-rollout")).body["items"] == []


def test_the_api_server_has_denied_the_pods_nothing(cluster: Cluster) -> None:
    """By its own log, of all that they have asked in this story."""
    assert not cluster.denied()


def test_each_right_that_the_pods_have_was_used(cluster: Cluster) -> None:
    """So that none is granted that nothing needs."""
    used = {right_of(each) for each in cluster.requests()}
    documents = yaml.safe_load_all(cluster.manifests())
    granted = {
        (group, resource, verb)
        for role in documents
        if role and role["kind"] in ("Role", "ClusterRole")
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    granted -= {("", "pods", "list")}  # for kubelets up to 1.34, whose restart flips pods
    assert granted == used & granted, granted - used


def right_of(request: Object) -> tuple[str, str, str]:
    """Group, resource and verb, as a role names them."""
    asked = request.get("objectRef", {})
    resource = "/".join(part for part in (asked.get("resource", ""), asked.get("subresource", "")) if part)
    return asked.get("apiGroup", ""), resource, request["verb"]
