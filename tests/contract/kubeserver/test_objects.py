"""What an API server answers to the requests that our programs make, and to mistakes that they could
make: the stand-in, and the real one (`--kubernetes DIR`).
"""

from __future__ import annotations

import json

import pytest

from tests.contract.kubeserver.objects import LEASES, NODES, Object, new_lease, number, path_of, refused
from tests.lib.api_servers import ApiServer
from tests.lib.throwaway.controlplane import Caller


def test_what_is_not_there_is_not_found(admin: Caller) -> None:
    for method, body in (("GET", None), ("PATCH", {}), ("DELETE", None)):
        assert refused(admin.call(method, f"{LEASES}/nobody", body), 404, "NotFound"), method
    found = admin.call("GET", f"{LEASES}/nobody").body["details"]
    assert (found["name"], found["kind"], found["group"]) == ("nobody", "leases", "coordination.k8s.io")


def test_a_kind_that_nobody_has_installed_is_no_object_that_is_missing(admin: Caller) -> None:
    answer = admin.call("GET", "/apis/monitoring.coreos.com/v1/podmonitors")
    assert (answer.code, answer.says.strip()) == (404, "404 page not found")


def test_a_namespace_that_is_not_there_takes_nothing(admin: Caller) -> None:
    elsewhere = LEASES.replace("default", "nowhere")
    answer = admin.call("POST", elsewhere, new_lease())
    assert refused(answer, 404, "NotFound")
    assert answer.body["details"]["kind"] == "namespaces"


def test_a_second_one_of_the_same_name_is_refused(admin: Caller, lease: Object) -> None:
    again = new_lease(name=lease["metadata"]["name"])
    assert refused(admin.call("POST", LEASES, again), 409, "AlreadyExists")


def test_a_name_that_is_generated(admin: Caller) -> None:
    body = new_lease(generateName="made-")
    del body["metadata"]["name"]
    names = {admin.call("POST", LEASES, body).body["metadata"]["name"] for _ in range(3)}
    assert len(names) == 3
    assert all(name.startswith("made-") for name in names)


@pytest.mark.parametrize("name", ["Upper", "a_b", "-a", "x" * 254])
def test_a_name_has_to_be_one(admin: Caller, name: str) -> None:
    assert refused(admin.call("POST", LEASES, new_lease(name=name)), 422, "Invalid")


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
def test_who_has_read_an_older_version_is_told_of_the_conflict(
    admin: Caller, lease: Object, method: str
) -> None:
    admin.call("PATCH", path_of(lease), {"spec": {"holderIdentity": "first"}})
    lease["spec"] = {"holderIdentity": "second"}
    assert refused(admin.call(method, path_of(lease), lease), 409, "Conflict")
    assert admin.call("GET", path_of(lease)).body["spec"] == {"holderIdentity": "first"}


def test_a_lease_is_replaced_by_who_says_which_version_only(admin: Caller, lease: Object) -> None:
    del lease["metadata"]["resourceVersion"]
    assert refused(admin.call("PUT", path_of(lease), lease), 422, "Invalid")


def test_a_change_that_changes_nothing_is_none(admin: Caller, lease: Object) -> None:
    before = lease["metadata"]["resourceVersion"]
    answer = admin.call("PATCH", path_of(lease), {"metadata": {"labels": {}}})
    assert (answer.code, answer.body["metadata"]["resourceVersion"]) == (200, before)


def test_what_the_server_gives_stays(admin: Caller, lease: Object) -> None:
    given = {"creationTimestamp": "2020-01-01T00:00:00Z", "labels": {"a": "b"}}
    answer = admin.call("PATCH", path_of(lease), {"metadata": given})
    assert answer.body["metadata"]["creationTimestamp"] == lease["metadata"]["creationTimestamp"]
    assert answer.body["metadata"]["labels"] == {"a": "b"}


@pytest.mark.parametrize(
    ("spec", "code", "reason"),
    [
        ({"leaseDurationSeconds": 0}, 422, "Invalid"),
        ({"leaseTransitions": -1}, 422, "Invalid"),
        ({"leaseDurationSeconds": "1"}, 400, "BadRequest"),
        ({"renewTime": "yesterday"}, 400, "BadRequest"),
        ({"renewTime": "2026-01-02T03:04:05.123456Z", "leaseDurationSeconds": 1}, 201, None),
    ],
)
def test_the_parts_of_a_lease_have_bounds(admin: Caller, spec: Object, code: int, reason: str) -> None:
    answer = admin.call("POST", LEASES, new_lease() | {"spec": spec})
    assert (answer.code, answer.body.get("reason")) == (code, reason)


def test_the_status_of_a_node_is_written_at_its_own_path_only(admin: Caller, node: Object) -> None:
    conditions = [{"type": "Ours", "status": "True"}]
    admin.call("PATCH", path_of(node), {"status": {"conditions": conditions}})
    assert "Ours" not in json.dumps(admin.call("GET", path_of(node)).body.get("status"))
    answer = admin.call("PATCH", f"{path_of(node)}/status", {"status": {"conditions": conditions}})
    assert "Ours" in json.dumps(answer.body["status"])


def test_a_strategic_patch_knows_one_condition_from_another(admin: Caller, node: Object) -> None:
    """It also accepts annotations and labels at the path of the status."""
    for kind in ("Theirs", "Ours"):
        patch = {"status": {"conditions": [{"type": kind, "status": "True"}]}}
        admin.call("PATCH", f"{path_of(node)}/status", patch, "strategic-merge")
    marks = {"annotations": {"example.org/a": "1"}, "labels": {"example.org/b": "2"}}
    answer = admin.call("PATCH", f"{path_of(node)}/status", {"metadata": marks}, "strategic-merge")
    assert {each["type"] for each in answer.body["status"]["conditions"]} == {"Theirs", "Ours"}
    assert answer.body["metadata"]["annotations"]["example.org/a"] == "1"
    assert answer.body["metadata"]["labels"]["example.org/b"] == "2"


def test_an_event_lies_in_the_namespace_that_it_names(admin: Caller) -> None:
    involved = {"kind": "Node", "name": "node-x", "namespace": "elsewhere"}
    body = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": "ours-", "namespace": "default"},
        "involvedObject": involved,
        "reason": "Converged",
        "type": "Normal",
    }
    assert admin.call("POST", "/api/v1/namespaces/default/events", body).code == 422
    del involved["namespace"]
    assert admin.call("POST", "/api/v1/namespaces/default/events", body).code == 201


def test_who_has_no_token_that_is_known_is_told_so(server: ApiServer) -> None:
    assert refused(server.bearer("nonsense").call("GET", NODES), 401, "Unauthorized")


# -- what is refused, and what is left out -------------------------------------------------------


def test_who_creates_names_no_version(admin: Caller) -> None:
    answer = admin.call("POST", LEASES, new_lease(resourceVersion="1"))
    assert (answer.code, answer.says) == (500, "resourceVersion should not be set on objects to be created")


def test_a_lease_that_is_gone_does_not_come_back_by_a_replacement(admin: Caller, lease: Object) -> None:
    """As of a permit that somebody has deleted meanwhile."""
    admin.call("DELETE", path_of(lease))
    assert refused(admin.call("PUT", path_of(lease), lease), 409, "Conflict")


def test_a_patch_of_another_object_of_that_name_is_refused(admin: Caller, lease: Object) -> None:
    patch = {"metadata": {"uid": "00000000-0000-0000-0000-000000000000"}}
    assert refused(admin.call("PATCH", path_of(lease), patch), 422, "Invalid")


def test_a_field_that_nobody_knows_is_left_out(admin: Caller, lease: Object) -> None:
    strange = {"spec": {"holderIdentity": "me", "strange": 1}, "strange": {"a": 1}}
    for method, path, body in (
        ("POST", LEASES, new_lease() | strange),
        ("PATCH", path_of(lease), strange),
    ):
        answer = admin.call(method, path, body)
        assert answer.ok
        assert "strange" not in json.dumps(answer.body)
        assert answer.body["spec"]["holderIdentity"] == "me"


def test_a_field_that_nobody_knows_is_refused_to_who_asks_for_that(admin: Caller, lease: Object) -> None:
    strange = {"spec": {"strange": 1}}
    strict = "?fieldValidation=Strict"
    posted = admin.call("POST", LEASES + strict, new_lease() | strange)
    assert refused(posted, 400, "BadRequest")
    assert 'unknown field "spec.strange"' in posted.says
    patched = admin.call("PATCH", path_of(lease) + strict, strange)
    assert patched.code in (400, 422), patched
    assert 'unknown field "spec.strange"' in patched.says


@pytest.mark.parametrize(
    ("part", "given"),
    [
        ("labels", {"a": "x" * 64}),
        ("labels", {"a": "no spaces"}),
        ("labels", {"": "a"}),
        ("labels", {"a/b/c": "d"}),
        ("labels", {"x" * 64: "d"}),
        ("annotations", {"no spaces": "a"}),
        ("annotations", {"a": "x" * (256 << 10)}),
    ],
)
@pytest.mark.parametrize("status", ["", "/status"])
def test_labels_and_annotations_have_bounds(
    admin: Caller, node: Object, part: str, given: Object, status: str
) -> None:
    kind = "strategic-merge" if status else ""
    answer = admin.call("PATCH", path_of(node) + status, {"metadata": {part: given}}, kind)
    assert refused(answer, 422, "Invalid")


@pytest.mark.parametrize("given", [{"a": 1}, {"a": True}, ["a"]])
def test_labels_are_texts(admin: Caller, node: Object, given: object) -> None:
    metadata = {"labels": given}
    assert refused(admin.call("PATCH", path_of(node), {"metadata": metadata}), 422, "Invalid")
    assert refused(admin.call("POST", LEASES, new_lease(**metadata)), 400, "BadRequest")


def test_what_a_strategic_patch_takes_away_need_not_be_there(admin: Caller, node: Object) -> None:
    gone = {"status": {"conditions": [{"type": "Ours", "$patch": "delete"}]}}
    answer = admin.call("PATCH", f"{path_of(node)}/status", gone, "strategic-merge")
    assert answer.ok
    assert "Ours" not in json.dumps(answer.body["status"])


def test_a_condition_has_times(admin: Caller, node: Object) -> None:
    bad = {"type": "Ours", "status": "True", "lastTransitionTime": "yesterday"}
    patch = {"status": {"conditions": [bad]}}
    assert admin.call("PATCH", f"{path_of(node)}/status", patch, "strategic-merge").code in (400, 422)


@pytest.mark.parametrize("taint", [{"key": "a"}, {"key": "a", "effect": "Never"}, {"effect": "NoSchedule"}])
def test_a_taint_says_what_and_how(admin: Caller, node: Object, taint: Object) -> None:
    assert refused(admin.call("PATCH", path_of(node), {"spec": {"taints": [taint]}}), 422, "Invalid")


def test_a_secret_that_is_immutable_stays(admin: Caller) -> None:
    secrets = "/api/v1/namespaces/default/secrets"
    name = f"secret-{number()}"
    made = {"metadata": {"name": name}, "data": {"a": "Yg=="}, "immutable": True}
    assert admin.call("POST", secrets, made).body["type"] == "Opaque"
    assert refused(admin.call("POST", secrets, made), 409, "AlreadyExists")
    for body in ({"data": {"a": "Yw=="}}, {"immutable": False}):
        assert refused(admin.call("PATCH", f"{secrets}/{name}", body), 422, "Invalid")
    assert admin.call("PATCH", f"{secrets}/{name}", {"metadata": {"labels": {"a": "b"}}}).ok


def test_what_is_not_in_base64_is_no_secret(admin: Caller) -> None:
    made = {"metadata": {"name": f"secret-{number()}"}, "data": {"a": "not base64"}}
    assert refused(admin.call("POST", "/api/v1/namespaces/default/secrets", made), 400, "BadRequest")
