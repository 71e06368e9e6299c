"""The chart on a cluster of real programs: kubelets run the pods of its DaemonSet, and those of its hooks.

One story, in this order.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.steps import SETTINGS, are_served, are_well, has_fallback, is_clean
from tests.cluster.world import NAME, NAMESPACE, NONE, OLD, Cluster
from tests.image.container import import_archive
from tests.image.images import extension_image
from tests.lib.charts import engine

VALUES = {"settings": SETTINGS}
CHART = Path(__file__).parents[2] / "charts" / "cri-resmgr-installer"
OTHER = f"{NONE}# the same, in other words\n"
#: Helm's engine in a process of its own: the API server is on the network of the cluster.
HELM = """
import json, sys
import helm_python
kubeconfig, namespace, name, what, chart, values = sys.argv[1:]
helm = helm_python.Config(kubeconfig_path=kubeconfig, namespace=namespace)
if what in ("install", "upgrade"):
    getattr(helm, what)(chart, name, json.loads(values), timeout=120)
elif what == "uninstall":
    helm.uninstall(name, timeout=600, wait="watcher")
elif what == "test":
    helm.test(name, timeout=240)
else:
    helm.rollback(name, timeout=120)
helm.close()
"""


@pytest.fixture(scope="module")
def operator(cluster: Cluster) -> str:
    """The image with the commands for a whole cluster, which all nodes have."""
    engine()
    (name,) = {import_archive(node.host, extension_image()) for node in cluster.nodes}
    return name


def helm(cluster: Cluster, operator: str, what: str, fallback: str = NONE) -> None:
    values: dict[str, Any] = {
        **cluster.values,
        "images": {"installer": cluster.image(OLD)},
        "hooks": {"image": operator},
        "configs": {"fallback": fallback},
    }
    try:
        cluster.python(HELM, NAMESPACE, NAME, what, str(CHART), json.dumps(values))
    except AssertionError as error:  # Helm does not say what the pods of its hooks have said
        raise AssertionError(f"{error}\n{cluster.story()}") from None


def test_a_release_is_served_by_each_node_and_its_test_says_so(cluster: Cluster, operator: str) -> None:
    helm(cluster, operator, "install")
    cluster.wait(lambda: are_served(cluster) and are_well(cluster), "each node is served, and its pod Ready")
    helm(cluster, operator, "test")


def test_an_upgrade_and_a_rollback_reach_the_nodes_and_restart_no_kubelet(
    cluster: Cluster, operator: str
) -> None:
    before = [node.invocations()[0] for node in cluster.nodes]
    helm(cluster, operator, "upgrade", OTHER)
    cluster.wait(lambda: has_fallback(cluster, OTHER) and are_well(cluster), "the new configuration")
    helm(cluster, operator, "rollback")
    cluster.wait(lambda: has_fallback(cluster, NONE) and are_well(cluster), "the earlier one")
    assert [node.invocations()[0] for node in cluster.nodes] == before


def test_helm_uninstall_cleans_each_node_before_it_deletes_anything(cluster: Cluster, operator: str) -> None:
    helm(cluster, operator, "uninstall")
    for node in cluster.nodes:
        assert is_clean(cluster, node)
        assert not node.traces()
    kinds = "ds,cm,sa,role,rolebinding,clusterrole,clusterrolebinding,namespace,job,validatingadmissionpolicy"
    left = cluster.kubectl("get", kinds, "--all-namespaces", "--output=name").split()
    assert not [name for name in left if NAME in name]
