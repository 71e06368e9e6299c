"""What the stories have in common: what an operator does again and again, and what they look at."""

from __future__ import annotations

import json

from installer.model.names import READY_LABEL
from tests.cluster.world import NAME, NONE, OLD, Cluster, KubeNode, Object
from tests.host.node import BINARY, FALLBACK
from tests.lib.throwaway.furnish import IMAGE

#: A fleet of a few nodes, and nobody wants to wait for five minutes.
SETTINGS: Object = {
    "kubelet": {"settleSeconds": 1, "restartsPerHour": 100},
    "rollout": {"concurrentRestarts": 1, "soakSeconds": 5},
}
WORKLOAD = "workload"


def apply(cluster: Cluster, fallback: str = NONE, version: str = OLD) -> None:
    cluster.apply(cluster.manifests(version, fallback))


def install(cluster: Cluster, fallback: str = NONE, version: str = OLD) -> None:
    """Until each node is served, by all that it reports."""
    apply(cluster, fallback, version)
    place = ("--namespace", cluster.namespace, "--timeout=240s")
    cluster.kubectl("rollout", "status", f"daemonset/{NAME}", *place)
    cluster.wait(lambda: are_served(cluster), "each node is served")


def is_served(cluster: Cluster, node: KubeNode) -> bool:
    return (
        bool(node.on_relay()) and cluster.is_ready(node) and cluster.condition(node).get("status") == "True"
    )


def are_served(cluster: Cluster) -> bool:
    return all(is_served(cluster, node) for node in cluster.nodes)


def are_well(cluster: Cluster) -> bool:
    """As the program itself says, of the pods that are asked for now."""
    report = cluster.ours("report", "--output", "json", code=None)
    return bool(json.JSONDecoder().raw_decode(report)[0]["well"])


def status(cluster: Cluster, code: int | None = 0) -> str:
    return cluster.ours("rollout", "status", code=code)


def has_fallback(cluster: Cluster, text: str) -> bool:
    return all((node.host.root / FALLBACK[1:]).read_text().endswith(text) for node in cluster.nodes)


def restarts(cluster: Cluster) -> set[int]:
    """Of the installer's containers."""
    return {each["restartCount"] for pod in cluster.pods() for each in pod["status"]["containerStatuses"]}


def is_clean(cluster: Cluster, node: KubeNode) -> bool:
    """By what kubelet uses and by what its Node says."""
    metadata = cluster.node(node)["metadata"]
    return not (
        node.on_relay()
        or (node.host.root / BINARY[1:]).exists()
        or READY_LABEL in metadata["labels"]
        or cluster.word(node).get("state", "removed") != "removed"
        or cluster.condition(node)
    )


#: What gives a container a weight of its own.
SOME: Object = {"requests": {"cpu": "50m"}}


def workload(name: str = WORKLOAD, containers: int = 1, resources: Object = SOME, **spec: object) -> Object:
    """A pod's template: containers that do nothing."""
    idle = {"image": IMAGE, "imagePullPolicy": "Never", "resources": resources}
    named = [{"name": f"idle-{number}", **idle} for number in range(containers)]
    return {
        "metadata": {"labels": {"app": name}},
        "spec": {"containers": named, "terminationGracePeriodSeconds": 1, **spec},
    }


def run_workload(
    cluster: Cluster,
    kind: str = "DaemonSet",
    template: Object | None = None,
    wait: bool = True,
    **spec: object,
) -> None:
    """A container on each node, or as the template says; until they run."""
    template = template or workload()
    labels = template["metadata"]["labels"]
    body = {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": labels["app"], "namespace": "default"},
        "spec": {"selector": {"matchLabels": labels}, "template": template, **spec},
    }
    cluster.apply(json.dumps(body))
    if wait:
        cluster.kubectl("rollout", "status", f"{kind.lower()}/{labels['app']}", "--timeout=240s")
