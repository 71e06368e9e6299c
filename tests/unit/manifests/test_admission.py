"""What the API server refuses, by the policies that `manifests` renders: requests in, their answers out.

Each policy is judged by its own (tests/lib/admission.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from installer.cluster.kubeapi import USER_AGENT
from installer.model.fleet import ROLLOUT
from installer.model.names import READY_CONDITION
from tests.lib.admission import compile_policy, judge, unknown_fields
from tests.lib.cel import CelError
from tests.unit.manifests.rendering import NAMES, Maker, applied, objects, rendered, the

NODE, UID = "worker-7", "5f1c"
PREFIX = "cri-resource-manager.intel.com"
ROLLOUT_NAMESPACE = "cri-resmgr-installer-rollout"
ACCOUNT = "system:serviceaccount:kube-system:cri-resmgr-installer"
EXTRA = {"authentication.kubernetes.io/node-name": [NODE], "authentication.kubernetes.io/node-uid": [UID]}
READY = {"type": "Ready", "status": "True"}
OURS_READY = {"type": READY_CONDITION, "status": "True"}
THEIRS = {"theirs": "1", f"{PREFIX}/pause": "true"}
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


@pytest.mark.parametrize("case", NAMES)
def test_an_api_server_takes_every_policy_and_warns_of_none(case: str) -> None:
    for text in {rendered(case), applied(case)}:
        for each in objects(text):
            if each["kind"] == "ValidatingAdmissionPolicy":
                compile_policy(each["spec"])
                assert unknown_fields(each["spec"]) == []


@pytest.mark.parametrize(
    "expression",
    [
        "object.metadata.name in [variables.label, 'breaker-' + variables.label]",
        "{'a': 1, 'b': variables.label} == {}",
        "[1, 'one'] == []",
        "variables.lable == ''",
        "request.operation == 1",
        "request.operatoin == ''",
        "request.operation",
    ],
)
def test_what_an_api_server_refuses_is_refused_here(expression: str) -> None:
    variable = {"name": "label", "expression": "has(object.x) ? object.x['y'] : ''"}
    spec = {"matchConditions": [], "variables": [variable], "validations": [{"expression": expression}]}
    with pytest.raises(CelError):
        compile_policy(spec)


def test_a_field_that_a_node_has_not_is_found() -> None:
    rules = {"resourceRules": [{"resources": ["nodes", "nodes/status"]}]}
    read = "object.status.capacity == object.spec.taints || has(object.status.phases)"
    spec = {"matchConditions": [], "matchConstraints": rules, "validations": [{"expression": read}]}
    assert unknown_fields(spec) == ["object.status.capacity", "object.status.phases"]


def node(**changes: Any) -> dict[str, Any]:
    metadata = {
        "name": NODE,
        "uid": UID,
        "labels": {"os": "linux"},
        "annotations": THEIRS,
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
                **THEIRS,
                f"{PREFIX}/installer": "{}",
                f"{PREFIX}/last-failure": "{}",
            }
        }
    ),
    lambda: node(taints=TAINTS[:1]),
    lambda: node(metadata={"resourceVersion": "2", "managedFields": [{"manager": "ours"}]}),
    lambda: node(status={"conditions": [READY, OURS_READY]}),
]


@pytest.mark.parametrize("made", OURS)
def test_a_pod_may_write_what_is_ours_on_its_node(made: Callable[[], dict[str, Any]]) -> None:
    assert denials("own-node", request=request("nodes"), object=made(), oldObject=node()) == []


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"metadata": {"name": "worker-8"}}, "only its own Node"),
        ({"metadata": {"uid": "an earlier one"}}, "only its own Node"),
        ({"metadata": {"labels": {"os": "linux", "pool": "secret"}}}, "the installer's label"),
        ({"metadata": {"labels": {"os": "plan9"}}}, "the installer's label"),
        ({"metadata": {"labels": {}}}, "the installer's label"),
        ({"metadata": {"annotations": {"theirs": "1"}}}, "the installer's annotations"),
        (
            {"metadata": {"annotations": {"theirs": "2", f"{PREFIX}/pause": "true"}}},
            "the installer's annotations",
        ),
        ({"taints": []}, "the installer's taint"),
        ({"taints": [*TAINTS, {"key": "more", "effect": "NoExecute"}]}, "the installer's taint"),
        ({"taints": [TAINTS[0], {**TAINTS[1], "effect": "NoExecute"}]}, "the installer's taint"),
        ({"metadata": {"annotations": {**THEIRS, f"{PREFIX}/installer": "a" * 8193}}}, "8192 characters"),
        ({"unschedulable": True}, "the spec"),
        ({"configSource": {"configMap": {}}}, "the spec"),
        ({"a field of a later Kubernetes": 1}, "the spec"),
        ({"status": {"conditions": [READY, OURS_READY, OURS_READY]}}, "the installer's condition"),
        (
            {"status": {"conditions": [READY, {**OURS_READY, "message": "a" * 8193}]}},
            "the installer's condition",
        ),
        (
            {"status": {"conditions": [READY, {**OURS_READY, "reason": "A" * 257}]}},
            "the installer's condition",
        ),
        (
            {"status": {"conditions": [READY, {**OURS_READY, "status": "T" * 200_000}]}},
            "the installer's condition",
        ),
        ({"status": {"conditions": [READY, {**OURS_READY, "status": "true"}]}}, "the installer's condition"),
        ({"status": {"phase": "Terminated"}}, "the status"),
        ({"status": {"config": {"error": "made up"}}}, "the status"),
        ({"status": {"features": {"supplementalGroupsPolicy": True}}}, "the status"),
        ({"status": {"runtimeHandlers": [{"name": "made up"}]}}, "the status"),
        ({"status": {"declaredFeatures": ["made up"]}}, "the status"),
        ({"status": {"conditions": [{**READY, "status": "False"}]}}, "the installer's condition"),
        ({"status": {"conditions": []}}, "the installer's condition"),
        ({"status": {"capacity": {"cpu": "400"}}}, "the status"),
        ({"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.9"}]}}, "the status"),
        ({"status": {"images": [{"names": ["ours"], "sizeBytes": 1}]}}, "the status"),
        ({"status": {"nodeInfo": {"machineID": "another"}}}, "the status"),
        ({"podCIDR": "10.0.0.0/24"}, "the spec"),
        ({"podCIDRs": ["10.0.0.0/24"]}, "the spec"),
        ({"providerID": "cloud:///another"}, "the spec"),
        ({"metadata": {"ownerReferences": [{"kind": "Pod", "uid": "gone"}]}}, "the metadata"),
        ({"metadata": {"finalizers": ["never"]}}, "the metadata"),
    ],
    ids=str,
)
def test_a_pod_may_write_nothing_else(changed: dict[str, Any], why: str) -> None:
    said, *_ = denials("own-node", request=request("nodes"), object=node(**changed), oldObject=node())
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
    cordoned = node(unschedulable=True)
    assert denials("agent-own-node", "full", request=asked, object=cordoned, oldObject=node())


def adjustment(**nodes: str) -> dict[str, Any]:
    said = {name.replace("_", "-"): {"errors": {"request": why}} for name, why in nodes.items()}
    return {"metadata": {"name": "a"}, "spec": {"scope": []}, "status": {"nodes": said}}


@pytest.mark.parametrize(
    ("before", "after", "allowed"),
    [
        ({"metadata": {"name": "a"}, "spec": {"scope": []}}, adjustment(worker_7="bad"), True),
        (adjustment(worker_7="bad", worker_8="x"), adjustment(worker_8="x"), True),
        (adjustment(worker_7="bad", worker_8="x"), adjustment(worker_7="bad"), False),
        (adjustment(worker_8="x"), adjustment(worker_8="y"), False),
        (adjustment(), adjustment(worker_8="made up"), False),
        (adjustment(), {**adjustment(), "spec": {"scope": [{"nodes": ["*"]}]}}, False),
        (adjustment(), {**adjustment(), "metadata": {"name": "a", "finalizers": ["never"]}}, False),
        (adjustment(), {**adjustment(), "more": 1}, False),
    ],
    ids=str,
)
def test_the_agent_says_of_an_adjustment_only_how_its_own_node_takes_it(
    before: dict[str, Any], after: dict[str, Any], allowed: bool
) -> None:
    asked = request("adjustments", "kube-system", user="system:serviceaccount:kube-system:cri-resmgr-agent")
    said = denials("agent-adjustments", "full", request=asked, object=after, oldObject=before)
    assert (said == []) is allowed


API = "criresmgr.intel.com/v1alpha1"
APPLIED = {
    "manager": "kubectl",
    "operation": "Apply",
    "apiVersion": API,
    "fieldsV1": {"f:spec": {"f:scope": {}}},
}


def owned(manager: str = "cri-resmgr-agent", **nodes: list[str]) -> dict[str, Any]:
    """An entry of managedFields, as an API server writes it for reports of these nodes with these errors."""
    told: dict[str, Any] = {
        f"f:{name.replace('_', '-')}": {".": {}, "f:errors": {".": {}, **{f"f:{key}": {} for key in keys}}}
        for name, keys in nodes.items()
    }
    fields = {"f:status": {".": {}, "f:nodes": {".": {}, **told}}}
    return {"manager": manager, "operation": "Update", "apiVersion": API, "fieldsV1": fields}


def managed(made: dict[str, Any], *entries: dict[str, Any]) -> dict[str, Any]:
    return {**made, "apiVersion": API, "metadata": {**made["metadata"], "managedFields": list(entries)}}


SAID, THERE = ["request"], owned(worker_8=["request"])
BEFORE = managed(adjustment(worker_8="x"), APPLIED, THERE)
BOTH = adjustment(worker_7="bad", worker_8="x")
BOTH_OWNED = owned(worker_7=SAID, worker_8=SAID)


@pytest.mark.parametrize(
    ("after", "allowed"),
    [
        (managed(BOTH, APPLIED, BOTH_OWNED), True),
        (managed(BOTH, APPLIED, THERE, owned("another build", worker_7=SAID)), True),
        (managed(BOTH, owned("old", worker_8=SAID) | {"manager": "ancient-changes"}, BOTH_OWNED), True),
        (managed(BOTH, APPLIED, owned("taken over", worker_8=SAID), BOTH_OWNED), True),
        (managed(BOTH), True),
        (managed(adjustment(worker_7="b" * 1025, worker_8="x"), APPLIED, BOTH_OWNED), False),
        (managed(BOTH, APPLIED, THERE, owned(worker_7=SAID) | {"operation": "Apply"}), False),
        (managed(BOTH, APPLIED, THERE, owned(worker_7=SAID) | {"apiVersion": "v2"}), False),
        (managed(BOTH, APPLIED, owned(worker_7=["made", "up"], worker_8=SAID)), False),
        (managed(BOTH, APPLIED, owned(worker_7=SAID, worker_8=["request", "more"])), False),
        (managed(BOTH, APPLIED, owned(worker_7=SAID, worker_8=SAID, worker_9=[])), False),
        (managed(BOTH, APPLIED, BOTH_OWNED, APPLIED | {"manager": "forged"}), False),
        (managed(BOTH, BOTH_OWNED, {**THERE, "fieldsV1": {"f:metadata": {"f:labels": {"f:x": {}}}}}), False),
    ],
    ids=str,
)
def test_an_agent_leaves_room_in_an_adjustment_for_all_nodes(after: dict[str, Any], allowed: bool) -> None:
    asked = request("adjustments", "kube-system", user="system:serviceaccount:kube-system:cri-resmgr-agent")
    said = denials("agent-adjustments", "full", request=asked, object=after, oldObject=BEFORE)
    assert (said == []) is allowed, said


@pytest.mark.parametrize(
    ("errors", "allowed"),
    [
        ({f"{number:064x}": "no" * 512 for number in range(100)}, True),
        ({f"{number:064x}": "no" for number in range(101)}, False),
        ({"k" * 254: "no"}, False),
    ],
    ids=["each", "more", "long"],
)
def test_a_node_says_so_much_of_an_adjustment(errors: dict[str, str], allowed: bool) -> None:
    asked = request("adjustments", "kube-system", user="system:serviceaccount:kube-system:cri-resmgr-agent")
    after = {**adjustment(), "status": {"nodes": {NODE: {"errors": errors}}}}
    said = denials("agent-adjustments", "full", request=asked, object=after, oldObject=adjustment())
    assert (said == []) is allowed
    # What another request has left there does not keep a node from saying less.
    assert denials("agent-adjustments", "full", request=asked, object=adjustment(), oldObject=after) == []


def test_others_are_not_asked() -> None:
    asked = request("nodes", user="system:node:worker-8", extra={})
    assert denials("own-node", request=asked, object=node(metadata={"labels": {}}), oldObject=node()) == []


@pytest.mark.parametrize(
    ("namespace", "name", "holder", "allowed"),
    [
        (ROLLOUT_NAMESPACE, "permit-3", f"{NODE}/{UID}", True),
        (ROLLOUT_NAMESPACE, "permit-999", f"{NODE}/{UID}", True),
        (ROLLOUT_NAMESPACE, "permit-1000", f"{NODE}/{UID}", False),
        (ROLLOUT_NAMESPACE, "permit-03", f"{NODE}/{UID}", False),
        (ROLLOUT_NAMESPACE, "permit-x", f"{NODE}/{UID}", False),
        (ROLLOUT_NAMESPACE, "permit-3", "", True),
        (ROLLOUT_NAMESPACE, "permit-3", None, True),
        (ROLLOUT_NAMESPACE, "permit-3", "worker-8/5f1c", False),
        (ROLLOUT_NAMESPACE, "permit-3", f"{NODE}/another", False),
        (ROLLOUT_NAMESPACE, "breaker-0123", "", True),
        (ROLLOUT_NAMESPACE, "breaker-0123", f"{NODE}/{UID}", False),
        (ROLLOUT_NAMESPACE, "breaker-" + "a" * 65, "", False),
        (ROLLOUT_NAMESPACE, "fleet", None, True),
        (ROLLOUT_NAMESPACE, "fleets", "", False),
        (ROLLOUT_NAMESPACE, "another", "", False),
    ],
)
def test_leases(namespace: str, name: str, holder: str | None, allowed: bool) -> None:
    asked = request("leases", namespace, operation="CREATE")
    said = denials("own-lease", request=asked, object=lease(name, holder, namespace))
    assert (said == []) is allowed


OURS_ABOVE = {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": UID}


@pytest.mark.parametrize(
    ("metadata", "spec"),
    [
        ({"ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "gone"}]}, {}),
        ({"ownerReferences": [OURS_ABOVE]}, {}),
        ({"finalizers": ["never"]}, {}),
        ({"annotations": {"filled": "up"}}, {}),
        ({"labels": {ROLLOUT: "permit", "more": "than that"}}, {}),
        ({}, {"preferredHolder": "a" * 1000}),
        ({}, {"leaseDurationSeconds": 86_401}),
        ({}, {"leaseDurationSeconds": None}),
    ],
    ids=str,
)
@pytest.mark.parametrize("operation", ["CREATE", "UPDATE"])
def test_no_lease_is_filled_or_handed_to_another_owner(
    operation: str, metadata: dict[str, Any], spec: dict[str, Any]
) -> None:
    there = lease("permit-3", f"{NODE}/{UID}")
    new = {**there, "metadata": there["metadata"] | metadata, "spec": there["spec"] | spec}
    new["spec"] = {key: value for key, value in new["spec"].items() if value is not None}
    asked = request("leases", ROLLOUT_NAMESPACE, operation=operation)
    old = there if operation == "UPDATE" else None
    assert denials("own-lease", request=asked, object=there, oldObject=old) == []
    assert denials("own-lease", request=asked, object=new, oldObject=old)


@pytest.mark.parametrize(
    ("before", "after", "allowed"),
    [
        # Its own and free ones: any time that is not earlier.
        (("", 0), (f"{NODE}/{UID}", 0), True),
        (("", 0), (f"{NODE}/{UID}", 5000), True),
        (("", 10), (f"{NODE}/{UID}", 9), False),
        ((f"{NODE}/{UID}", 0), ("", 0), True),
        ((f"{NODE}/{UID}", 10), ("", 9), False),
        # Another node's, which ends after 814 s.
        (("worker-8/77", 0), ("", 0), False),
        (("worker-8/77", 0), ("", 5000), False),
        (("worker-8/77", 0), ("worker-8/77", 1), False),
        (("worker-8/77", 0), (f"{NODE}/{UID}", 0), False),
        (("worker-8/77", 0), (f"{NODE}/{UID}", 813), False),
        (("worker-8/77", 0), (f"{NODE}/{UID}", 814), True),
        ((f"{NODE}/of an earlier node", 0), (f"{NODE}/{UID}", 0), False),
    ],
    ids=str,
)
def test_the_term_of_another_nodes_permit_ends_when_it_ends(
    before: tuple[str, int], after: tuple[str, int], allowed: bool
) -> None:
    old, new = (lease("permit-0", holder, seconds=seconds) for holder, seconds in (before, after))
    said = denials("own-lease", request=request("leases", ROLLOUT_NAMESPACE), object=new, oldObject=old)
    assert (said == []) is allowed


def lease(
    name: str, holder: str | None, namespace: str = ROLLOUT_NAMESPACE, seconds: int = 0
) -> dict[str, Any]:
    """As our pods write it; renewed so many seconds after some time."""
    begins = f"2026-01-01T{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.000000Z"
    spec: dict[str, Any] = {} if holder is None else {"holderIdentity": holder}
    permit = name.startswith("permit-")
    spec |= {"leaseDurationSeconds": 814, "renewTime": begins} if permit else {}
    labels = {ROLLOUT: "permit" if permit else name.removeprefix("breaker-")}
    return {"metadata": {"name": name, "namespace": namespace, "labels": labels}, "spec": spec}


OURSELVES = USER_AGENT.partition("/")[0]


def writer(manager: str = OURSELVES, operation: str = "Update", **more: Any) -> dict[str, Any]:
    """An entry of managedFields."""
    fields: dict[str, Any] = {"f:spec": {"f:leaseDurationSeconds": {}}}
    found = {"manager": manager, "operation": operation, "apiVersion": "coordination.k8s.io/v1"}
    return {**found, "fieldsV1": fields, **more}


@pytest.mark.parametrize(
    ("before", "after", "allowed"),
    [
        ([], [writer()], True),
        ([writer("kubectl")], [writer("kubectl"), writer()], True),
        ([writer("kubectl", "Apply")], [writer("kubectl", "Apply", fieldsV1={}), writer()], True),
        ([writer(f"m{at}") for at in range(9)], [*(writer(f"m{at}") for at in range(9)), writer()], True),
        ([writer(f"m{at}") for at in range(10)], [writer("ancient-changes"), writer()], True),
        ([writer()], [writer(), writer("forged")], False),
        ([writer()], [writer(), writer(operation="Apply")], False),
        ([writer()], [writer(), writer(subresource="status")], False),
        ([writer()], [writer(), writer(apiVersion="coordination.k8s.io/v1beta1")], False),
        ([], [writer("forged")], False),
    ],
    ids=str,
)
def test_a_lease_has_few_writers_and_none_keeps_another_node_out(
    before: list[dict[str, Any]], after: list[dict[str, Any]], allowed: bool
) -> None:
    """The entries are those of an API server after the request."""
    old, new = lease("permit-3", ""), lease("permit-3", f"{NODE}/{UID}")
    for each, entries in ((old, before), (new, after)):
        each["apiVersion"] = "coordination.k8s.io/v1"
        each["metadata"]["managedFields"] = entries
    said = denials("own-lease", request=request("leases", ROLLOUT_NAMESPACE), object=new, oldObject=old)
    assert (said == []) is allowed, said


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
        (None, fleet(pause=""), False),
        (fleet(), fleet(size="3"), True),
        (fleet(), fleet(pause=""), False),
        (fleet(pause="lunch"), fleet(pause="lunch", size="4"), True),
        (fleet(pause="lunch"), fleet(pause="dinner"), False),
        (fleet(pause="lunch"), fleet(size="4"), False),
        (fleet(pause=""), fleet(), False),
        (fleet(), fleet(size="9" * 1025), False),
        (fleet(), fleet(breaker="{}"), False),
    ],
    ids=str,
)
def test_nodes_neither_pause_nor_resume_a_rollout(
    before: dict[str, Any] | None, after: dict[str, Any], allowed: bool
) -> None:
    operation = "CREATE" if before is None else "UPDATE"
    asked = request("leases", "cri-resmgr-installer-rollout", operation=operation)
    said = denials("own-lease", request=asked, object=after, oldObject=before)
    assert (said == []) is allowed
    assert allowed or "may neither pause nor resume a rollout" in said[0]


@pytest.mark.parametrize(
    ("name", "labels", "allowed"),
    [
        ("permit-1", {ROLLOUT: "permit"}, True),
        ("fleet", {ROLLOUT: "fleet", "app.kubernetes.io/name": "cri-resmgr-installer"}, True),
        ("breaker-0123", {ROLLOUT: "0123"}, True),
        ("permit-1", {}, False),
        ("permit-1", None, False),
        ("fleet", {ROLLOUT: "permit"}, False),
        ("breaker-0123", {ROLLOUT: "4567"}, False),
        ("breaker-0123", {ROLLOUT: "fleet"}, False),
        ("breaker-0123", {}, False),
    ],
)
def test_no_node_hides_a_pause_or_a_breaker_from_the_others(
    name: str, labels: dict[str, str] | None, allowed: bool
) -> None:
    there = lease(name, "")
    there["metadata"] |= {"labels": labels} if labels is not None else {}
    if labels is None:
        del there["metadata"]["labels"]
    asked = request("leases", ROLLOUT_NAMESPACE)
    said = denials("own-lease", request=asked, object=there, oldObject=there)
    assert (said == []) is allowed


MARK = {f"{PREFIX}/uninstalling": "true"}


def deletion(resource: str, old: dict[str, Any], namespace: dict[str, Any] | None = None) -> list[str]:
    """Of an object of the case `full`, by a person."""
    asked = request(resource, user="kubernetes-admin", extra={})
    if namespace is None and "namespace" in old["metadata"]:
        namespace = {"metadata": {"name": old["metadata"]["namespace"]}}
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
    found = objects(applied("gardener-disabled"))
    policies = [each for each in found if each["kind"].startswith("ValidatingAdmission")]
    assert {each["metadata"]["name"].rpartition("-own-")[2] for each in policies} == {"node", "lease"}
    keep = {"resources.gardener.cloud/keep-object": "true"}
    assert all(each["metadata"]["annotations"].items() >= keep.items() for each in policies)


def test_a_shoot_that_is_too_old_for_policies_gets_none() -> None:
    """Its version is 1.27.11. gardener-resource-manager could not apply what has them."""
    assert "ValidatingAdmission" not in applied("managed-resource")


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
    assert rules == {("pods",): ["list"], **(patched if writes else {("nodes",): ["get", "list"]})}


def test_pods_may_be_listed_only_where_a_permit_waits_for_them(tmp_path: Path) -> None:
    rollout = {"podReadySeconds": 0}
    rules = the(Maker(tmp_path)({"settings": {"rollout": rollout}}), "ClusterRole")["rules"]
    assert ["pods"] not in [each["resources"] for each in rules]
