"""What one pod's token can do to a cluster whose pods are real: the attacks of the contract's suite, with the
tokens that kubelet has put into our pods.
"""

from __future__ import annotations

import itertools
import ssl

import pytest

from tests.cluster.steps import SETTINGS, install
from tests.cluster.world import Cluster, KubeNode
from tests.lib.attacks import *  # noqa: F403
from tests.lib.robbed import AGENT, NAME, NODES, Robbed
from tests.lib.throwaway.controlplane import Caller
from tests.lib.throwaway.furnish import IMAGE
from tests.lib.throwaway.network import address

#: No agent is in that image, but its pods are there, and with them their tokens.
VALUES = {"settings": SETTINGS, "agent": {"enabled": True}, "images": {"agent": IMAGE}}


@pytest.fixture(scope="module")
def scene(cluster: Cluster) -> Robbed:
    install(cluster)
    found = Robbed(cluster.plane.admin)
    for node in cluster.nodes:
        cluster.kubectl("taint", "node", node.name, "dedicated:NoSchedule")
        found.uids[node.name] = cluster.node(node)["metadata"]["uid"]
        for account in (NAME, AGENT):
            found.callers[account, node.name] = cluster.plane.bearer(steal(cluster, node, account))
    found.pause()
    return found


def steal(cluster: Cluster, node: KubeNode, account: str = NAME) -> str:
    """The token of the pod that runs there now."""
    return cluster.wait(lambda: node.token(cluster.pod(node, account)), "a pod has a token")


def test_no_kubelet_takes_the_token(cluster: Cluster, scene: Robbed) -> None:
    """Whoever may ask a kubelet anything can run anything in any container."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    tokens = [steal(cluster, cluster.nodes[0], account) for account in (NAME, AGENT)]
    for node, stolen in itertools.product(cluster.nodes, tokens):
        url = f"https://{address(node.number)}:10250"
        thief = Caller(url, context, stolen, cluster.network.namespace)
        assert thief.call("GET", "/pods").code == 403
        assert thief.call("GET", "/metrics").code == 403
        assert thief.call("POST", "/run/default/pod/container?cmd=id", {}).code == 403


def test_a_token_ends_with_its_pod(cluster: Cluster, scene: Robbed) -> None:
    node = cluster.nodes[0]
    caller, own = scene.callers[NAME, node.name], f"{NODES}/{node.name}"
    assert caller.call("GET", own).ok
    pod = cluster.pod(node)["metadata"]["name"]
    cluster.kubectl("delete", "pod", pod, "--namespace", cluster.namespace)
    cluster.wait(lambda: caller.call("GET", own).code == 401, "the token is refused")
    scene.callers[NAME, node.name] = cluster.plane.bearer(steal(cluster, node))
