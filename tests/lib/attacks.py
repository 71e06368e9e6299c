"""What a stolen token of one pod is used for: tests that a suite takes in with `import *`, on its `scene`."""

from __future__ import annotations

import json
import time

import pytest

from installer.cluster.leases import Permit, build_lease, build_permit
from installer.model.fleet import ROLLOUT, SIZE
from installer.model.hold import PAUSE_ANNOTATION
from installer.model.names import STATUS
from tests.lib.robbed import (
    AGENT,
    LEASES,
    NAME,
    NAMESPACE,
    NODES,
    OTHER,
    OURS,
    PLACE,
    THERE,
    Object,
    Robbed,
    lease,
)
from tests.lib.throwaway.controlplane import Answer

__all__ = [
    "held",
    "test_a_forgotten_permit_is_taken_over_when_it_has_expired",
    "test_a_lease_is_not_filled_by_many_managers",
    "test_a_lease_is_not_filled_with_what_manages_it",
    "test_a_lease_of_another_name_is_refused",
    "test_a_lease_of_another_namespace_is_refused",
    "test_a_new_permit_with_more_than_a_permit_has_is_refused",
    "test_a_patch_that_is_not_a_pods_own_is_refused",
    "test_a_permit_that_is_claimed_for_later_does_not_come_free_before",
    "test_an_agent_labels_and_taints_its_own_node",
    "test_an_agent_says_of_an_adjustment_how_its_node_takes_it",
    "test_another_nodes_permit_is_neither_given_back_nor_taken",
    "test_nothing_is_deleted_by_name",
    "test_others_conditions_are_refused",
    "test_what_a_thief_leaves_keeps_no_other_node_from_a_permit",
]


@pytest.fixture
def held(scene: Robbed) -> str:
    """A permit that worker-2 has taken a moment ago."""
    permit = build_permit(Permit("permit-0"), PLACE, scene.identity(OTHER), time.time(), 814)
    scene.admin.call("DELETE", f"{THERE}/permit-0")
    answer = scene.callers[NAME, OTHER].call("POST", THERE, permit)
    assert answer.ok, answer
    return f"{THERE}/permit-0"


ABSENT = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "name": "gone",
    "uid": "00000000-0000-0000-0000-000000000001",
}
FLEET = f"{THERE}/fleet"
A_BREAKER = f"{THERE}/breaker-0a1b"
MUCH = "x" * 250_000


def annotated(key: str, text: str | None) -> Object:
    return {"metadata": {"annotations": {key: text}}}


PATCHES: dict[str, tuple[str, Object]] = {
    "delete the pause by an owner that is not there": (FLEET, {"metadata": {"ownerReferences": [ABSENT]}}),
    "delete a breaker so": (A_BREAKER, {"metadata": {"ownerReferences": [ABSENT]}}),
    "keep the namespace for ever": (FLEET, {"metadata": {"finalizers": ["example.org/never"]}}),
    "resume": (FLEET, annotated(PAUSE_ANNOTATION, None)),
    "pause for another reason": (FLEET, annotated(PAUSE_ANNOTATION, "mine")),
    "hide the pause": (FLEET, {"metadata": {"labels": {ROLLOUT: "permit"}}}),
    "hide a breaker": (A_BREAKER, {"metadata": {"labels": {ROLLOUT: None}}}),
    "fill the Lease of the fleet": (FLEET, annotated("x", MUCH)),
    "fill the size of the fleet": (FLEET, annotated(SIZE, MUCH)),
    "fill labels": (FLEET, {"metadata": {"labels": {f"l{number}": "x" for number in range(100)}}}),
    "hold the Lease of the fleet": (FLEET, {"spec": {"holderIdentity": "x"}}),
    "become the controller manager": (
        f"{LEASES.format(NAMESPACE)}/kube-controller-manager",
        {"spec": {"holderIdentity": "x"}},
    ),
    "annotate another Node": (f"{NODES}/{OTHER}", annotated(STATUS, "{}")),
    "cordon its Node": (f"{NODES}/{OURS}", {"spec": {"unschedulable": True}}),
    "untaint its Node": (f"{NODES}/{OURS}", {"spec": {"taints": []}}),
    "label its Node": (f"{NODES}/{OURS}", {"metadata": {"labels": {"pool": "secret"}}}),
    "unpause its Node": (f"{NODES}/{OURS}", annotated("cri-resource-manager.intel.com/pause", "false")),
    "fill its own annotation": (f"{NODES}/{OURS}", annotated(STATUS, MUCH)),
    "delete its Node by an owner": (f"{NODES}/{OURS}", {"metadata": {"ownerReferences": [ABSENT]}}),
    "keep its Node for ever": (f"{NODES}/{OURS}", {"metadata": {"finalizers": ["example.org/never"]}}),
    "change its phase": (f"{NODES}/{OURS}/status", {"status": {"phase": "Terminated"}}),
    "change its features": (
        f"{NODES}/{OURS}/status",
        {"status": {"features": {"supplementalGroupsPolicy": True}}},
    ),
    "change its runtime handlers": (
        f"{NODES}/{OURS}/status",
        {"status": {"runtimeHandlers": [{"name": "x"}]}},
    ),
    "change its capacity": (f"{NODES}/{OURS}/status", {"status": {"capacity": {"cpu": "400"}}}),
    "change its addresses": (
        f"{NODES}/{OURS}/status",
        {"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.9"}]}},
    ),
}


def refused(scene: Robbed, method: str, path: str, body: Object, kind: str = "") -> Answer:
    """By a policy, or by RBAC; and nothing is another than before, also when garbage was collected."""
    before = scene.state()
    answer = scene.thief.call(method, path, body, kind)
    assert not answer.ok, answer
    assert scene.state() == before
    return answer


@pytest.mark.parametrize("what", PATCHES)
def test_a_patch_that_is_not_a_pods_own_is_refused(scene: Robbed, what: str) -> None:
    path, body = PATCHES[what]
    answer = refused(scene, "PATCH", path, body)
    by_policy = NAMESPACE not in path.partition("/leases/")[0]  # there RBAC allows no Lease at all
    assert ("ValidatingAdmissionPolicy" in answer.says) is by_policy


def test_others_conditions_are_refused(scene: Robbed) -> None:
    conditions = [{"type": "Ready", "status": "False"}]
    path = f"{NODES}/{OURS}/status"
    answer = refused(scene, "PATCH", path, {"status": {"conditions": conditions}}, "strategic-merge")
    assert "the installer's condition" in answer.says


@pytest.mark.parametrize("name", ["permit-x", "permit-1000", "permit-00", "fleets", "breaker-x", "breaker-"])
def test_a_lease_of_another_name_is_refused(scene: Robbed, name: str) -> None:
    label = name.removeprefix("breaker-") if name.startswith("breaker") else "permit"
    refused(scene, "POST", THERE, build_lease(name, PLACE, label))


@pytest.mark.parametrize(
    "more",
    [
        {"annotations": {"x": MUCH}},
        {"ownerReferences": [ABSENT]},
        {"finalizers": ["example.org/never"]},
    ],
    ids=lambda more: next(iter(more)),
)
def test_a_new_permit_with_more_than_a_permit_has_is_refused(scene: Robbed, more: Object) -> None:
    permit = build_permit(Permit("permit-7"), PLACE, scene.identity(OURS), time.time(), 814)
    permit["metadata"] |= more
    refused(scene, "POST", THERE, permit)


@pytest.mark.parametrize("kind", ["Update", "Apply"])
def test_a_lease_is_not_filled_with_what_manages_it(scene: Robbed, kind: str) -> None:
    """The API server keeps the fields that a client says it manages, whether there are such or not."""
    permit = build_permit(Permit("permit-7"), PLACE, scene.identity(OURS), time.time(), 814)
    managed = {
        "manager": "x",
        "operation": kind,
        "apiVersion": "coordination.k8s.io/v1",
        "time": "2030-01-01T00:00:00Z",
        "fieldsType": "FieldsV1",
    }
    filled: tuple[Object, ...] = (
        {"f:metadata": {"f:annotations": {f"f:{MUCH}": {}}}},
        {"f:spec": {f"f:{MUCH}": {}}},
        {"f:metadata": {"f:labels": {f"f:{ROLLOUT}": {f"f:{MUCH}": {}}}}},
        {"f:metadata": {f"f:{'x' * 60}{at}": {f"f:{ROLLOUT}": {}} for at in range(8)}},
        {"f:spec": {f"f:{'x' * 60}{at}": {} for at in range(8)}},
    )
    for fields in filled:
        permit["metadata"]["managedFields"] = [managed | {"fieldsV1": fields}]
        assert "managedFields" in refused(scene, "POST", THERE, permit).says


def test_all_permits_that_a_thief_may_write_fit_into_what_a_node_reads(scene: Robbed) -> None:
    """A node reads 4 MiB, and there may be a thousand permits."""
    permit = build_permit(Permit("permit-7"), PLACE, scene.identity(OURS), time.time(), 814)
    keys: Object = {f"f:{key}": {} for key in permit["metadata"]["labels"]} | {".": {}}
    spec = ("holderIdentity", "leaseDurationSeconds", "leaseTransitions", "acquireTime", "renewTime")
    fields = {
        "f:metadata": dict.fromkeys((".", "f:labels", "f:annotations", "f:ownerReferences"), keys),
        "f:spec": {f"f:{key}": {} for key in spec},
    }
    permit["metadata"]["managedFields"] = [
        {
            "manager": manager,
            "operation": "Update",
            "apiVersion": "coordination.k8s.io/v1",
            "time": "2030-01-01T00:00:00Z",
            "fieldsType": "FieldsV1",
            "fieldsV1": fields,
        }
        for manager in ("cri-resmgr-installer", "ancient-changes")
    ]
    answer = scene.thief.call("POST", THERE, permit)
    assert answer.ok, answer
    assert len(json.dumps(answer.body, separators=(",", ":"))) < 3500


def test_a_lease_is_not_filled_by_many_managers(scene: Robbed, held: str) -> None:
    """Each of a server-side apply has an entry of its own."""
    permit = build_permit(Permit("permit-0"), PLACE, scene.identity(OTHER), time.time(), 814)
    applied = [
        scene.callers[NAME, OTHER].call("PATCH", f"{held}?fieldManager=m{at}&force=true", permit, "apply").ok
        for at in range(12)
    ]
    there = scene.admin.call("GET", held).body["metadata"].get("managedFields", ())
    assert len(there) <= 3
    assert not (there and all(applied))


def test_what_a_thief_leaves_keeps_no_other_node_from_a_permit(scene: Robbed) -> None:
    """There is room for the entry of the next node's write."""
    path = f"{THERE}/permit-8"
    permit = build_permit(Permit("permit-8"), PLACE, scene.identity(OURS), time.time() - 900, 814)
    assert scene.thief.call("POST", THERE, permit).ok
    forged: Object = {
        "apiVersion": "coordination.k8s.io/v1",
        "time": "2030-01-01T00:00:00Z",
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:spec": {"f:leaseDurationSeconds": {}}},
    }
    for count in range(12):
        there = scene.admin.call("GET", path).body["metadata"].get("managedFields", [])
        ours = {"manager": "cri-resmgr-installer", "operation": "Update", "subresource": f"s{count}"}
        for whose in (ours, {"manager": f"n{count}", "operation": "Update"}, ours | {"operation": "Apply"}):
            scene.thief.call("PATCH", path, {"metadata": {"managedFields": [*there, forged | whose]}})
    left = scene.admin.call("GET", path).body["metadata"].get("managedFields", [])
    assert {(each["manager"], each["operation"]) for each in left} <= {("cri-resmgr-installer", "Update")}
    spec = build_permit(Permit("permit-8"), PLACE, scene.identity(OTHER), time.time(), 814)["spec"]
    answer = scene.callers[NAME, OTHER].call("PATCH", path, {"spec": spec})
    assert answer.ok, answer
    scene.admin.call("DELETE", path)


def test_a_lease_of_another_namespace_is_refused(scene: Robbed) -> None:
    there = {"metadata": {"name": "kube-scheduler"}, "spec": {"holderIdentity": OTHER}}
    refused(scene, "POST", LEASES.format(NAMESPACE), lease(there))


def test_nothing_is_deleted_by_name(scene: Robbed) -> None:
    for path in (FLEET, A_BREAKER, f"{NODES}/{OURS}", f"{NODES}/{OTHER}"):
        assert refused(scene, "DELETE", path, {}).code == 403


def test_another_nodes_permit_is_neither_given_back_nor_taken(scene: Robbed, held: str) -> None:
    mine, now = scene.identity(OURS), time.time()
    taken = build_permit(Permit("permit-0"), PLACE, mine, now, 814)["spec"]
    later = build_permit(Permit("permit-0"), PLACE, mine, now + 700, 814)["spec"]
    for spec in (
        {"holderIdentity": None, "leaseDurationSeconds": 1},
        {"holderIdentity": None, "leaseDurationSeconds": 1, "renewTime": later["renewTime"]},
        {"leaseDurationSeconds": 1},
        {"renewTime": "2020-01-01T00:00:00.000000Z"},
        taken,
        later,
    ):
        answer = refused(scene, "PATCH", held, {"spec": spec})
        assert "another node's permit" in answer.says or "only for its own node" in answer.says


def test_a_permit_that_is_claimed_for_later_does_not_come_free_before(scene: Robbed, held: str) -> None:
    """What is allowed of another's permit: to be the next. It cannot be handed on before the other's time is
    over, and who reads it takes it for held until then."""
    now = time.time()
    claim = build_permit(Permit("permit-0"), PLACE, scene.identity(OURS), now + 900, 814)["spec"]
    assert scene.thief.call("PATCH", held, {"spec": claim}).ok
    back = {
        "holderIdentity": None,
        "renewTime": build_permit(Permit("x"), PLACE, "", now, 1)["spec"]["renewTime"],
    }
    assert not scene.thief.call("PATCH", held, {"spec": back}).ok
    assert scene.thief.call("PATCH", held, {"spec": {"holderIdentity": None}}).ok
    assert not scene.callers[NAME, OTHER].call("PATCH", held, {"spec": back}).ok
    scene.admin.call("DELETE", held)


def test_a_forgotten_permit_is_taken_over_when_it_has_expired(scene: Robbed, held: str) -> None:
    old = build_permit(Permit("permit-0"), PLACE, scene.identity(OTHER), time.time() - 900, 814)["spec"]
    assert scene.admin.call("PATCH", held, {"spec": old}).ok
    spec = build_permit(Permit("permit-0"), PLACE, scene.identity(OURS), time.time(), 814)["spec"]
    assert scene.thief.call("PATCH", held, {"spec": spec}).ok


def test_an_agent_says_of_an_adjustment_how_its_node_takes_it(scene: Robbed) -> None:
    path = f"/apis/criresmgr.intel.com/v1alpha1/namespaces/{NAME}-agent/adjustments"
    made = {
        "apiVersion": "criresmgr.intel.com/v1alpha1",
        "kind": "Adjustment",
        "metadata": {"name": "a"},
        "spec": {"scope": []},
    }
    deadline = time.monotonic() + 60
    while not (answer := scene.admin.call("POST", path, made)).ok:  # the CRD has just been created
        assert time.monotonic() < deadline, answer
        time.sleep(0.1)
    agent = scene.callers[AGENT, OURS]

    def says(node: str, why: str = "no") -> Object:
        return {"status": {"nodes": {node: {"errors": {"request": why}}}}}

    while "agent-adjustments" not in (answer := agent.call("PATCH", f"{path}/a", says(OTHER))).says:
        assert time.monotonic() < deadline, answer
        scene.admin.call("PATCH", f"{path}/a", {"status": None})
        time.sleep(0.1)
    assert agent.call("PATCH", f"{path}/a", says(OURS)).ok
    assert scene.callers[AGENT, OTHER].call("PATCH", f"{path}/a", says(OTHER)).ok
    for body in (
        {"status": {"nodes": {OTHER: None}}},
        {"spec": {"scope": [{"nodes": ["*"]}]}},
        {"metadata": {"finalizers": ["example.org/never"]}},
        {"metadata": {"labels": {"x": "y"}}},
    ):
        assert not agent.call("PATCH", f"{path}/a", body).ok
    # The object has 1.5 MB, which all nodes share.
    for errors in ({f"{at}": "no" for at in range(101)}, {"request": "a" * 1025}):
        assert (
            "errors"
            in agent.call("PATCH", f"{path}/a", {"status": {"nodes": {OURS: {"errors": errors}}}}).says
        )
    there = scene.admin.call("GET", f"{path}/a").body["metadata"].get("managedFields", [])
    forged = {"operation": "Update", "apiVersion": made["apiVersion"], "time": "2030-01-01T00:00:00Z"}
    filled: tuple[Object, ...] = (
        {"f:status": {"f:nodes": {f"f:{MUCH}": {}}}},
        {"f:status": {"f:nodes": {f"f:{OURS}": {"f:errors": {f"f:{MUCH}": {}}}}}},
        {"f:spec": {f"f:{MUCH}": {}}},
    )
    for fields in filled:
        entry = {"manager": "x", "fieldsType": "FieldsV1", "fieldsV1": fields, **forged}
        assert (
            "managedFields"
            in agent.call("PATCH", f"{path}/a", {"metadata": {"managedFields": [*there, entry]}}).says
        )
    assert scene.callers[AGENT, OTHER].call("PATCH", f"{path}/a", says(OTHER, "again")).ok
    assert agent.call("PATCH", f"{path}/a", {"status": {"nodes": {OURS: None}}}).ok


def test_an_agent_labels_and_taints_its_own_node(scene: Robbed) -> None:
    agent, own = scene.callers[AGENT, OURS], f"{NODES}/{OURS}"
    assert agent.call("PATCH", own, {"metadata": {"labels": {"cmk": "yes"}}}).ok
    assert agent.call("PATCH", own, {"metadata": {"labels": {"cmk": None}}}).ok
    for body in ({"spec": {"unschedulable": True}}, {"metadata": {"ownerReferences": [ABSENT]}}):
        assert not agent.call("PATCH", own, body).ok
    assert not agent.call("PATCH", f"{NODES}/{OTHER}", {"metadata": {"labels": {"cmk": "yes"}}}).ok
