"""What our programs write, at an API server that is asked to refuse what it does not know: nothing of it is
silently left out. Each object is made by the function that the program makes it with.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from installer.cluster.breaker import Breaker, Failure, build_breaker
from installer.cluster.leases import Permit, build_permit, build_release
from installer.cluster.node_status import (
    EVENTS_PATH,
    NodeStatus,
    build_event,
    build_node_patch,
    build_status_patch,
)
from installer.cluster.pod_context import PodContext
from installer.cluster.pods import find_ready, find_unready, pods_path
from installer.cluster.size import FleetSize, build_size
from installer.gardener import write_decision
from installer.gardener.resources import parse_extension
from installer.manifests import ManifestOptions, render_objects
from installer.model.fleet import FleetRules
from installer.model.names import NOT_READY_TAINT, READY_CONDITION
from installer.operator.api import CONFIG_MAPS, DAEMON_SETS
from installer.operator.inventory import find_installations
from installer.operator.removal_daemonset import build_removal
from tests.contract.kubeserver.objects import LEASES, Object, number, path_of
from tests.lib.api_servers import ApiServer
from tests.lib.throwaway.controlplane import Caller
from tests.lib.throwaway.fleet import kind_of
from tests.lib.throwaway.proxy import until

STRICT = "?fieldValidation=Strict"
STATUS = {"state": "failed", "reason": "the disk is full", "generation": "abc", "changed": ""}
FAILURE = {"at": "2026-11-23T15:00:00Z", "what": "install"}


def context_of(node: Object) -> PodContext:
    return PodContext("", 0, "", node["metadata"]["name"], "pod-1", "default", "ours", True, "default")


def taken(admin: Caller, method: str, path: str, body: Any, kind: str = "") -> Object:
    answer = admin.call(method, path + STRICT, body, kind)
    assert answer.ok, answer
    return answer.body


def test_events(admin: Caller, node: Object) -> None:
    for message in ("the disk is full", "x" * 5000, "\N{SNOWMAN}" * 1000, ""):
        what = {"type": "Warning", "reason": "Failed", "message": message, "time": time.time()}
        made = taken(admin, "POST", EVENTS_PATH, build_event(context_of(node), what))
        assert made["involvedObject"]["name"] == node["metadata"]["name"]
    extension = parse_extension({"metadata": {"namespace": "default", "name": "x", "uid": "y"}})
    failed = {"type": "Create", "state": "Error", "description": "\N{SNOWMAN}" * 2000}
    body = write_decision.build_event(extension, failed, time.time(), "replica-1")
    taken(admin, "POST", "/apis/events.k8s.io/v1/namespaces/default/events", body)


def test_permits(admin: Caller) -> None:
    permit = Permit(f"permit-{number()}")
    made = taken(admin, "POST", LEASES, build_permit(permit, "default", "n1@uid", time.time(), 600.0))
    released = taken(admin, "PATCH", path_of(made), build_release(made["metadata"]["resourceVersion"]))
    assert "holderIdentity" not in released["spec"]


def test_breakers(admin: Caller) -> None:
    now, rules = time.time(), FleetRules()
    failures = {f"node-{at}.example.org": Failure(now, "x" * 300) for at in range(200)}
    breaker = Breaker(f"{number():016x}", begun=now, canaries={"n1": now}, failures=failures)
    made = taken(admin, "POST", LEASES, build_breaker(breaker, "default", rules, 1000))
    released = Breaker(breaker.generation, version=made["metadata"]["resourceVersion"])
    taken(admin, "PUT", path_of(made), build_breaker(released, "default", rules, 1000))


def test_the_size_of_a_fleet(admin: Caller, lease: Object) -> None:
    annotations = build_size(FleetSize("/apis/apps/v1/namespaces/a/daemonsets/b"))
    taken(admin, "PATCH", path_of(lease), {"metadata": {"annotations": annotations}})


def test_what_is_said_of_a_node(admin: Caller, node: Object) -> None:
    """And taken back."""
    taint = {"spec": {"taints": [{"key": NOT_READY_TAINT, "effect": "NoSchedule"}]}}
    node = taken(admin, "PATCH", path_of(node), taint)
    word = build_status_patch(node, NodeStatus(STATUS, True, FAILURE), time.time())
    node = taken(admin, "PATCH", f"{path_of(node)}/status", word, "strategic-merge")
    assert READY_CONDITION in [each["type"] for each in node["status"]["conditions"]]
    assert build_status_patch(node, NodeStatus(STATUS, True, FAILURE), time.time()) is None
    node = taken(admin, "PATCH", path_of(node), build_node_patch(node, NodeStatus(STATUS, True, FAILURE)))
    assert NOT_READY_TAINT not in [each["key"] for each in node["spec"].get("taints", ())]
    removed = {"state": "removed"}
    back = build_status_patch(node, NodeStatus(removed, False, {}), time.time())
    node = taken(admin, "PATCH", f"{path_of(node)}/status", back, "strategic-merge")
    conditions = node.get("status", {}).get("conditions", ())
    assert READY_CONDITION not in [each["type"] for each in conditions]


@pytest.mark.parametrize("more", ["", "annotateNode: true\nagent: {enabled: true}\n"])
def test_a_removal_is_made_of_what_is_installed(server: ApiServer, tmp_path: Path, more: str) -> None:
    """Which has all that the server has added to it."""
    name, values = f"ours-{number()}", tmp_path / "values.yaml"
    values.write_text(f"images: {{installer: 'image:1'}}\nname: {name}\nnamespace: {name}\n{more}")
    server.admin.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    for body in render_objects(ManifestOptions(values=values), lambda _: None):
        if body["kind"] in ("DaemonSet", "ConfigMap", "ClusterRoleBinding"):
            kind, namespace = kind_of(body), body["metadata"].get("namespace")
            place = f"/namespaces/{namespace}" if namespace else ""
            taken(server.admin, "POST", f"{kind.prefix}{place}/{kind.plural}", body)
    (installed,) = find_installations(server.client(), instance=name)
    for resource, made in zip((CONFIG_MAPS, DAEMON_SETS), build_removal(installed, {}), strict=True):
        taken(server.admin, "POST", resource.path(name), made)
    assert len(find_installations(server.client(), instance=name)) == 2


def test_which_pods_of_a_node_are_ready(admin: Caller, node: Object) -> None:
    """The Table has the cells and the metadata that `pods.py` reads."""
    name = node["metadata"]["name"]
    container = {"name": "c", "image": "i"}
    spec = {"nodeName": name, "containers": [container], "automountServiceAccountToken": False}
    path = "/api/v1/namespaces/default/pods"

    def is_ready(pod: str, ready: bool) -> None:
        said = {"name": "c", "ready": ready, "restartCount": 0, "image": "i", "imageID": ""}
        runs = {"state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}
        status = {"phase": "Running", "containerStatuses": [said | runs]}
        assert admin.call("PATCH", f"{path}/{pod}/status", {"status": status}).ok

    def seen() -> Object:
        return admin.call("GET", pods_path(name), accept="application/json;as=Table;v=v1;g=meta.k8s.io").body

    up, down = (f"{each}-{number()}" for each in ("up", "down"))
    for pod in (up, down):
        metadata = {"name": pod, "namespace": "default"}
        taken(admin, "POST", path, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        is_ready(pod, pod == up)
    until(lambda: len(find_ready(seen(), "")) == 1)  # it is from the cache
    ready = find_ready(seen(), "")
    assert find_ready(seen(), f"default/{up}") == find_unready(seen(), ready) == ()
    is_ready(up, False)
    until(lambda: find_unready(seen(), ready) == (f"default/{up}",))
    for pod in (up, down):
        admin.call("DELETE", f"{path}/{pod}?gracePeriodSeconds=0")
    until(lambda: find_unready(seen(), ready) == ())
