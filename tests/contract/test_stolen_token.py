"""What one pod's token can do to a cluster, at an API server with our manifests: the stand-in that enforces
their RBAC and their admission policies, and a real one (`--kubernetes DIR`). What the pods themselves write
is taken, and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from installer.cluster.kubeapi import KubeApi
from installer.cluster.node_status import NodeStatus
from installer.cluster.permit_client import PermitClient
from installer.cluster.pod_context import PodContext
from installer.cluster.sync import NodeFacts, SyncRequest, WorkEnd
from installer.cluster.sync_child import Sync
from installer.manifests import ManifestOptions, render_objects
from installer.model.fleet import FleetRules, PlannedWork, WorkResult
from installer.model.hold import PAUSE_ANNOTATION
from installer.model.names import LAST_FAILURE, READY_CONDITION, READY_LABEL, STATUS
from tests.lib.api_servers import ApiServer, serve
from tests.lib.attacks import *  # noqa: F403
from tests.lib.attacks import FLEET, annotated
from tests.lib.robbed import (
    AGENT,
    NAME,
    NAMESPACE,
    NODES,
    OTHER,
    OURS,
    PLACE,
    THERE,
    Robbed,
)
from tests.lib.throwaway.fleet import kind_of

WORK = PlannedWork("0a1b", begins=True, soaks=True)
RULES = FleetRules(order="any")


class Scene(Robbed):
    """Nodes and pods are objects without anything behind them."""

    def __init__(self, cluster: ApiServer, directory: Path) -> None:
        super().__init__(cluster.admin)
        self._cluster, self._directory = cluster, directory
        values = directory / "values.yaml"
        given = {"images": {"installer": "image:1"}, "annotateNode": True, "agent": {"enabled": True}}
        values.write_text(yaml.safe_dump(given))
        self.objects = render_objects(ManifestOptions(values=values), lambda _: None)

    def furnish(self) -> None:
        for each in self.objects:
            if each["kind"] not in ("DaemonSet", "ConfigMap"):
                kind, namespace = kind_of(each), each["metadata"].get("namespace", "")
                place = f"/namespaces/{namespace}" if namespace else ""
                self.make(f"{kind.prefix}{place}/{kind.plural}", each)
        for node in (OURS, OTHER):
            self._add_node(node)
        self.pause()

    def _add_node(self, name: str) -> None:
        taints = [{"key": "dedicated", "effect": "NoSchedule"}]
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {"taints": taints}}
        self.uids[name] = self.make(NODES, node)["metadata"]["uid"]
        status = {"capacity": {"cpu": "4"}, "conditions": [{"type": "Ready", "status": "True"}]}
        self.admin.call("PATCH", f"{NODES}/{name}/status", {"status": status})
        for account in (NAME, AGENT):
            metadata = {"name": f"{account}-{name}", "namespace": NAMESPACE}
            spec = {
                "nodeName": name,
                "serviceAccountName": account,
                "containers": [{"name": "c", "image": "i"}],
            }
            spec |= {"tolerations": [{"operator": "Exists"}]}
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
            token = self._cluster.token_of(self.make(f"/api/v1/namespaces/{NAMESPACE}/pods", pod))
            place = self._directory / account / name
            place.mkdir(parents=True)
            (place / "token").write_text(token)
            (place / "ca.crt").write_bytes(self._cluster.authority.read_bytes())
            self.callers[account, name] = self._cluster.bearer(token)

    def api(self, node: str) -> KubeApi:
        """What our pod on this node asks with."""
        account = self._directory / NAME / node
        return KubeApi("127.0.0.1", self._cluster.port, account, time.monotonic() + 120)

    def ask(self, node: str) -> PermitClient:
        context = PodContext("", 0, "", node, "", NAMESPACE, NAME, rollout_namespace=PLACE)
        order = SyncRequest(context, node=NodeFacts(self.uids[node]), rules=RULES)
        return PermitClient(order, self.api(node), time.time, lambda: 0.0)


@pytest.fixture(scope="module", params=["stand-in", "real"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with serve(str(request.param), request.config, tmp_path_factory.mktemp("cluster")) as found:
        yield found


@pytest.fixture(scope="module")
def scene(cluster: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    found = Scene(cluster, tmp_path_factory.mktemp("scene"))
    found.furnish()
    return found


# -- what pods do ---------------------------------------------------------------------------------


def test_a_pod_says_of_its_node_what_is_its_to_say(scene: Scene) -> None:
    context = PodContext("127.0.0.1", 0, "", OURS, f"{NAME}-{OURS}", NAMESPACE, NAME, annotate=True)
    status = {"state": "failed", "reason": "no space", "generation": "0a1b", "hold": "x" * 1024}
    for serves in (True, False):
        says = NodeStatus(status, serves, {"reason": "y" * 1024})
        said = Sync(scene.api(OURS), SyncRequest(context, read_node=True, status=says)).run()
        assert {part: result for part, (result, _) in said.parts.items()} == dict.fromkeys(
            ("node", "condition", "annotation"), "ok"
        ), said.parts
        status = {**status, "state": "converged"}
    node = scene.admin.call("GET", f"{NODES}/{OURS}").body
    assert {STATUS, LAST_FAILURE} <= node["metadata"]["annotations"].keys()
    assert node["metadata"]["labels"][READY_LABEL] == "false"
    assert {each["type"] for each in node["status"]["conditions"]} == {"Ready", READY_CONDITION}


def test_nodes_take_permits_one_after_the_other(scene: Scene) -> None:
    """From the first permit to a result that stops the generation; with a pause meanwhile."""
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets"
    daemonset = next(
        each for each in scene.objects if each["kind"] == "DaemonSet" and each["metadata"]["name"] == NAME
    )
    scene.make(path, daemonset)
    for each in scene.admin.call("GET", THERE).body["items"]:
        name = each["metadata"]["name"]
        if name != "fleet":
            scene.admin.call("DELETE", f"{THERE}/{name}")
    assert "a Friday" in scene.ask(OURS).begin(WORK).why
    scene.admin.call("PATCH", FLEET, annotated(PAUSE_ANNOTATION, None))
    mine = scene.ask(OURS).begin(WORK)
    assert mine.granted, mine
    waiting = scene.ask(OTHER).begin(WORK)
    assert (waiting.granted, waiting.failed) == (False, False), waiting
    result = WorkResult(WORK, False, "it is broken")
    ended = scene.ask(OURS).end(WorkEnd(result, mine.permit, mine.version))
    assert (ended.told, ended.released) == (True, True), ended
    stopped = scene.ask(OTHER).begin(WORK)
    assert "it is broken" in stopped.why
    other = scene.ask(OTHER).begin(PlannedWork("0a1b"))
    assert other.granted, other
    assert scene.ask(OTHER).end(WorkEnd(None, other.permit, other.version)).released
    scene.admin.call("PATCH", FLEET, annotated(PAUSE_ANNOTATION, "a Friday"))
    scene.admin.call("DELETE", f"{path}/{daemonset['metadata']['name']}")
