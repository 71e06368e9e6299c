"""What the API server refuses, by the policies that `manifests` renders: requests in, their answers out.

Each policy is judged by its own (tests/admission.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from installer.daemon.cluster.pod_context import lease_name
from installer.model.fleet import ROLLOUT
from installer.model.node_marks import READY_CONDITION
from tests.admission import judge
from tests.unit.manifests.rendering import CASES, Maker, objects, rendered, the

NODE, UID = "worker-7", "5f1c"
PREFIX = "cri-resource-manager.intel.com"
ACCOUNT = "system:serviceaccount:kube-system:cri-resmgr-installer"
EXTRA = {"authentication.kubernetes.io/node-name": [NODE], "authentication.kubernetes.io/node-uid": [UID]}
READY = {"type": "Ready", "status": "True"}
TAINTS = [
    {"key": "dedicated", "value": "batch", "effect": "NoSchedule"},
    {"key": f"{PREFIX}/not-ready", "effect": "NoSchedule"},
]


@cache
def spec_of(policy: str, case: str) -> dict[str, Any]:
    found = [each for each in objects(rendered(case)) if each["kind"] == "ValidatingAdmissionPolicy"]
    (spec,) = (
        each["spec"]
        for each in found
        if each["metadata"]["name"] in (f"cri-resmgr-installer-{policy}", f"resmgr-{policy}")
    )
    return dict(spec)


def denials(policy: str, case: str = "minimal", **given: Any) -> list[str]:
    """The messages of the policy with this suffix, for a request that its rules match."""
    return judge(spec_of(policy, case), given)


def request(resource: str, namespace: str = "", user: str = ACCOUNT, **extra: Any) -> dict[str, Any]:
    info = {"username": user, "extra": extra.get("extra", EXTRA)}
    what = {"resource": {"resource": resource}, "operation": extra.get("operation", "UPDATE")}
    return {**what, "namespace": namespace, "userInfo": info}


def node(**changes: Any) -> dict[str, Any]:
    metadata = {
        "name": NODE,
        "uid": UID,
        "labels": {"os": "linux"},
        "annotations": {"theirs": "1", f"{PREFIX}/pause": "true"},
        **changes.pop("metadata", {}),
    }
    status = {"conditions": [READY], "capacity": {"cpu": "4"}, **changes.pop("status", {})}
    return {"metadata": metadata, "spec": {"taints": TAINTS, **changes}, "status": status}


OURS: list[Callable[[], dict[str, Any]]] = [
    node,
    lambda: node(metadata={"labels": {"os": "linux", f"{PREFIX}/ready": "true"}}),
    lambda: node(
        metadata={
            "annotations": {
                "theirs": "1",
                f"{PREFIX}/pause": "true",
                f"{PREFIX}/installer": "{}",
                f"{PREFIX}/last-failure": "{}",
            }
        }
    ),
    lambda: node(taints=TAINTS[:1]),
    lambda: node(status={"conditions": [READY, {"type": READY_CONDITION, "status": "True"}]}),
]


@pytest.mark.parametrize("made", OURS)
def test_a_pod_may_write_what_is_ours_on_its_node(made: Callable[[], dict[str, Any]]) -> None:
    assert denials("own-node", request=request("nodes"), object=made(), oldObject=node()) == []


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"metadata": {"name": "worker-8"}}, "only the Node"),
        ({"metadata": {"uid": "an earlier one"}}, "only the Node"),
        ({"metadata": {"labels": {"os": "linux", "pool": "secret"}}}, "its own label"),
        ({"metadata": {"labels": {"os": "plan9"}}}, "its own label"),
        ({"metadata": {"labels": {}}}, "its own label"),
        ({"metadata": {"annotations": {"theirs": "1"}}}, "its own annotations"),
        ({"metadata": {"annotations": {"theirs": "2", f"{PREFIX}/pause": "true"}}}, "its own annotations"),
        ({"taints": []}, "its own taint"),
        ({"taints": [*TAINTS, {"key": "more", "effect": "NoExecute"}]}, "its own taint"),
        ({"taints": [TAINTS[0], {**TAINTS[1], "effect": "NoExecute"}]}, "its own taint"),
        ({"unschedulable": True}, "cordon"),
        ({"status": {"conditions": [{**READY, "status": "False"}]}}, "its own condition"),
        ({"status": {"conditions": []}}, "its own condition"),
        ({"status": {"capacity": {"cpu": "400"}}}, "capacity"),
        ({"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.9"}]}}, "addresses"),
        ({"status": {"images": [{"names": ["ours"], "sizeBytes": 1}]}}, "images"),
        ({"status": {"nodeInfo": {"machineID": "another"}}}, "nodeInfo"),
        ({"podCIDR": "10.0.0.0/24"}, "podCIDR"),
        ({"podCIDRs": ["10.0.0.0/24"]}, "podCIDRs"),
        ({"providerID": "cloud:///another"}, "providerID"),
        ({"metadata": {"ownerReferences": [{"kind": "Pod", "uid": "gone"}]}}, "ownerReferences"),
        ({"metadata": {"finalizers": ["never"]}}, "finalizers"),
    ],
    ids=str,
)
def test_a_pod_may_write_nothing_else(changed: dict[str, Any], why: str) -> None:
    (said,) = denials("own-node", request=request("nodes"), object=node(**changed), oldObject=node())
    assert why in said


def test_a_token_that_names_no_node_writes_none() -> None:
    asked = request("nodes", extra={"authentication.kubernetes.io/pod-name": ["p"]})
    assert "Kubernetes 1.30" in denials("own-node", request=asked, object=node(), oldObject=node())[0]
    del asked["userInfo"]["extra"]
    assert "Kubernetes 1.30" in denials("own-node", request=asked, object=node(), oldObject=node())[0]


def test_the_agent_may_write_its_own_node_only() -> None:
    """Policies of cri-resmgr label and taint it."""
    asked = request("nodes", user="system:serviceaccount:kube-system:cri-resmgr-agent")
    labelled = node(metadata={"labels": {"cmk": "yes"}})
    assert denials("agent-own-node", "full", request=asked, object=labelled, oldObject=node()) == []
    another = node(metadata={"name": "worker-8"})
    assert denials("agent-own-node", "full", request=asked, object=another, oldObject=another)


def test_others_are_not_asked() -> None:
    asked = request("nodes", user="system:node:worker-8", extra={})
    assert denials("own-node", request=asked, object=node(metadata={"labels": {}}), oldObject=node()) == []


@pytest.mark.parametrize(
    ("namespace", "name", "holder", "allowed"),
    [
        ("kube-system", lease_name(NODE), "any pod", True),
        ("kube-system", lease_name("worker-8"), "any pod", False),
        ("kube-system", "kube-scheduler", "any pod", False),
        ("cri-resmgr-installer-rollout", "permit-3", f"{NODE}/{UID}", True),
        ("cri-resmgr-installer-rollout", "permit-3", "", True),
        ("cri-resmgr-installer-rollout", "permit-3", None, True),
        ("cri-resmgr-installer-rollout", "permit-3", "worker-8/5f1c", False),
        ("cri-resmgr-installer-rollout", "permit-3", f"{NODE}/another", False),
        ("cri-resmgr-installer-rollout", "brake-one", "", True),
        ("cri-resmgr-installer-rollout", "brake-one", f"{NODE}/{UID}", False),
        ("cri-resmgr-installer-rollout", "fleet", None, True),
        ("cri-resmgr-installer-rollout", "fleets", "", False),
        ("cri-resmgr-installer-rollout", "another", "", False),
    ],
)
def test_leases(namespace: str, name: str, holder: str | None, allowed: bool) -> None:
    spec = {} if holder is None else {"holderIdentity": holder}
    labels = {ROLLOUT: name.removeprefix("brake-") if name[:6] != "permit" else "permit"}
    lease = {"metadata": {"name": name, "namespace": namespace, "labels": labels}, "spec": spec}
    asked = request("leases", namespace, operation="CREATE")
    said = denials("own-lease", request=asked, object=lease)
    assert (said == []) is allowed


def fleet(**annotations: str) -> dict[str, Any]:
    named = {f"{PREFIX}/{key}": text for key, text in annotations.items()}
    metadata = {
        "name": "fleet",
        "namespace": "cri-resmgr-installer-rollout",
        "labels": {ROLLOUT: "fleet"},
    }
    return {"metadata": {**metadata, **({"annotations": named} if named else {})}}


@pytest.mark.parametrize(
    ("before", "after", "allowed"),
    [
        (None, fleet(size="3"), True),
        (None, fleet(freeze=""), False),
        (fleet(), fleet(size="3"), True),
        (fleet(), fleet(freeze=""), False),
        (fleet(freeze="lunch"), fleet(freeze="lunch", size="4"), True),
        (fleet(freeze="lunch"), fleet(freeze="dinner"), False),
        (fleet(freeze="lunch"), fleet(size="4"), False),
        (fleet(freeze=""), fleet(), False),
    ],
    ids=str,
)
def test_nodes_neither_pause_nor_resume_a_rollout(
    before: dict[str, Any] | None, after: dict[str, Any], allowed: bool
) -> None:
    operation = "CREATE" if before is None else "UPDATE"
    asked = request("leases", "cri-resmgr-installer-rollout", operation=operation)
    said = denials("own-lease", request=asked, object=after, oldObject=before)
    assert said == ([] if allowed else ["a pod of the installer may neither pause nor resume a rollout"])


@pytest.mark.parametrize(
    ("name", "labels", "allowed"),
    [
        ("permit-1", {ROLLOUT: "permit"}, True),
        ("fleet", {ROLLOUT: "fleet", "more": "than that"}, True),
        ("brake-0123", {ROLLOUT: "0123"}, True),
        ("permit-1", {}, False),
        ("permit-1", None, False),
        ("fleet", {ROLLOUT: "permit"}, False),
        ("brake-0123", {ROLLOUT: "4567"}, False),
        ("brake-0123", {ROLLOUT: "fleet"}, False),
        ("brake-0123", {}, False),
    ],
)
def test_no_node_hides_a_freeze_or_a_brake_from_the_others(
    name: str, labels: dict[str, str] | None, allowed: bool
) -> None:
    metadata = {"name": name, "namespace": "cri-resmgr-installer-rollout"}
    lease = {"metadata": metadata | ({} if labels is None else {"labels": labels})}
    said = denials(
        "own-lease", request=request("leases", metadata["namespace"]), object=lease, oldObject=lease
    )
    assert (said == []) is allowed


MARK = {f"{PREFIX}/uninstalling": "true"}


def deletion(resource: str, old: dict[str, Any], namespace: dict[str, Any] | None = None) -> list[str]:
    """Of an object of the case `full`, by a person."""
    asked = request(resource, user="kubernetes-admin", extra={})
    return denials("deletion", "full", request=asked, oldObject=old, namespaceObject=namespace)


def test_what_cleaning_needs_stays_until_it_is_marked() -> None:
    """Every ServiceAccount, role and binding of the installer, and its own namespaces."""
    rights = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
    found = [each for each in objects(rendered("full")) if each["kind"] in rights]
    ours = [each for each in found if each["metadata"]["name"].startswith("resmgr")]
    assert {each["kind"] for each in ours} == set(rights)
    for each in ours:
        resource, metadata = each["kind"].lower() + "s", each["metadata"]
        (said,) = deletion(resource, each)
        where = f" -n {metadata['namespace']}" if "namespace" in metadata else ""
        command = f"kubectl annotate {resource} {metadata['name']}{where} {PREFIX}/uninstalling=true"
        assert said.endswith(command)
        marked = {**each, "metadata": {**metadata, "annotations": metadata["annotations"] | MARK}}
        assert deletion(resource, marked) == []
    for name in ("node-tools", "resmgr-rollout"):
        assert deletion("namespaces", {"metadata": {"name": name}})
        assert deletion("namespaces", {"metadata": {"name": name, "annotations": MARK}}) == []


def test_the_rest_of_the_cluster_may_be_deleted() -> None:
    assert deletion("namespaces", {"metadata": {"name": "kube-system"}}) == []
    assert deletion("serviceaccounts", {"metadata": {"name": "resmgr", "namespace": "others"}}) == []
    labels = {"app.kubernetes.io/name": "cri-resmgr-installer", "app.kubernetes.io/instance": "another"}
    assert deletion("clusterroles", {"metadata": {"name": "another", "labels": labels}}) == []


def test_what_is_in_a_namespace_goes_with_it() -> None:
    account = next(each for each in objects(rendered("full")) if each["kind"] == "ServiceAccount")
    assert deletion("serviceaccounts", account, {"metadata": {"name": "node-tools"}})
    going = {"metadata": {"name": "node-tools", "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    assert deletion("serviceaccounts", account, going) == []


def test_policies_are_deleted_last_by_a_deletion_of_everything() -> None:
    kinds = [each["kind"] for each in objects(rendered("full"))]
    first = min(kinds.index(kind) for kind in set(kinds) if kind.startswith("ValidatingAdmission"))
    assert {kind.startswith("ValidatingAdmission") for kind in kinds[first:]} == {True}
    assert kinds[first - 1] == "DaemonSet"


def test_gardener_keeps_what_cleaning_needs_by_itself() -> None:
    """And must be able to delete what it has brought."""
    found = objects((CASES / "gardener-disabled/objects.yaml").read_text())
    policies = [each for each in found if each["kind"].startswith("ValidatingAdmission")]
    assert {each["metadata"]["name"].rpartition("-own-")[2] for each in policies} == {"node", "lease"}
    keep = {"resources.gardener.cloud/keep-object": "true"}
    assert all(each["metadata"]["annotations"].items() >= keep.items() for each in policies)


def test_a_shoot_that_is_too_old_for_policies_gets_none() -> None:
    """Its version is 1.27.11. gardener-resource-manager could not apply what has them."""
    assert "ValidatingAdmission" not in (CASES / "managed-resource/objects.yaml").read_text()


@pytest.mark.parametrize(
    ("values", "policies", "writes"),
    [
        ({}, True, True),
        ({"admissionPolicies": False}, False, False),
        ({"admissionPolicies": False, "annotateNode": True}, False, True),
        ({"annotateNode": False}, True, False),
    ],
)
def test_nodes_are_written_only_where_pods_are_held_to_their_own(
    tmp_path: Path, values: dict[str, Any], policies: bool, writes: bool
) -> None:
    found = Maker(tmp_path)(values)
    assert ("ValidatingAdmissionPolicy" in [each["kind"] for each in found]) is policies
    rules = {tuple(rule["resources"]): rule["verbs"] for rule in the(found, "ClusterRole")["rules"]}
    patched = {("nodes",): ["get", "list", "patch"], ("nodes/status",): ["patch"]}
    assert rules == (patched if writes else {("nodes",): ["get", "list"]})
