"""A node with 110 containers, through an installation, a policy that takes weight, an upgrade and a removal.

The tests are one story, in this order: each begins with the cluster that the one before has left.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from tests.cluster.steps import (
    SETTINGS,
    apply,
    are_served,
    are_well,
    has_fallback,
    install,
    run_workload,
    workload,
)
from tests.cluster.watch import Watch
from tests.cluster.world import NEW, OLD, Cluster, KubeNode, Object

VALUES = {"settings": SETTINGS}
#: It gives every container that it does not know the least weight that there is.
PLACES = "policy:\n  Active: topology-aware\n  ReservedResources:\n    CPU: 500m\n"

TENTH, GUARANTEED = {"cpu": "10m"}, {"cpu": "20m", "memory": "16Mi"}
#: Of each quality of service: how many pods, and the resources of their five containers.
CROWD: dict[str, tuple[int, Object]] = {
    "burstable": (10, {"requests": TENTH}),
    "best-effort": (10, {}),
    "guaranteed": (2, {"requests": GUARANTEED, "limits": GUARANTEED}),
}
EACH = 5


@pytest.fixture(scope="module")
def crowd(cluster: Cluster) -> dict[str, int]:
    """Container ID -> its weight, as kubelet has given it."""
    node = cluster.nodes[0]
    for name, (pods, resources) in CROWD.items():
        template = workload(name, EACH, resources, nodeName=node.name)
        run_workload(cluster, "Deployment", template, replicas=pods)
    found = node.weights()
    assert len(found) == EACH * sum(pods for pods, _ in CROWD.values()) == 110
    assert len(set(found.values())) == len(CROWD)
    return found


@pytest.fixture(autouse=True)
def undisturbed(cluster: Cluster, crowd: dict[str, int], watch: Watch) -> Iterator[None]:
    """No node flips, no container is restarted, and each has its weight, whenever one looks."""
    ended = Event()
    with ThreadPoolExecutor() as pool:
        weighed = pool.submit(weigh, cluster.nodes[0], crowd, ended)
        yield
        ended.set()
        assert not weighed.result()
    assert not watch.flips()
    pods = json.loads(cluster.kubectl("get", "pods", "--output=json"))["items"]
    assert {each["restartCount"] for pod in pods for each in pod["status"]["containerStatuses"]} == {0}


def weigh(node: KubeNode, weights: dict[str, int], ended: Event) -> list[Object]:
    """Each second: the containers that have another weight, and which."""
    found, last = [], False
    while not last:
        last = ended.wait(1.0)
        now = node.weights()
        found += [wrong] if (wrong := dict(now.items() ^ weights.items())) else []
    return found


def test_an_installation(cluster: Cluster) -> None:
    install(cluster)


def test_a_policy_that_takes_weight(cluster: Cluster) -> None:
    apply(cluster, PLACES)
    cluster.wait(lambda: has_fallback(cluster, PLACES) and are_well(cluster), "the policy is in force")
    assert are_served(cluster)
    assert {cluster.word(node)["policy"] for node in cluster.nodes} == {"topology-aware"}


def test_an_upgrade(cluster: Cluster) -> None:
    apply(cluster, PLACES, NEW)
    cluster.wait(lambda: are_well(cluster) and are_upgraded(cluster), "the new version")
    assert are_served(cluster)


def are_upgraded(cluster: Cluster) -> bool:
    return not any(OLD in json.dumps(pod["spec"]) for pod in cluster.pods())


def test_a_removal(cluster: Cluster) -> None:
    cluster.ours("uninstall", "--yes")


def test_the_api_server_has_denied_the_pods_nothing(cluster: Cluster) -> None:
    assert not cluster.denied()
