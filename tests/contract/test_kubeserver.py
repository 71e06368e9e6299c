"""What an API server answers to the requests that our programs make, and to mistakes that they could
make: the stand-in, and the real one (`--kubernetes DIR`).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.contract.api_servers import ApiServer, serve
from tests.throwaway.controlplane import Answer, Caller

LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
NODES = "/api/v1/nodes"
Object = dict[str, Any]
_numbers = itertools.count()


@pytest.fixture(scope="module", params=["stand-in", "real"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with serve(str(request.param), request.config, tmp_path_factory.mktemp("server")) as found:
        yield found


@pytest.fixture
def admin(server: ApiServer) -> Caller:
    return server.admin


@pytest.fixture
def lease(admin: Caller) -> Object:
    """One that is there."""
    answer = admin.call("POST", LEASES, new_lease())
    assert answer.code == 201
    return answer.body


@pytest.fixture
def node(admin: Caller) -> Object:
    name = f"node-{next(_numbers)}"
    answer = admin.call("POST", NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    assert answer.code == 201
    return answer.body


def new_lease(**metadata: Any) -> Object:
    named = {"name": f"lease-{next(_numbers)}", **metadata}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": named, "spec": {}}


def path_of(found: Object) -> str:
    where = LEASES if found["kind"] == "Lease" else NODES
    return f"{where}/{found['metadata']['name']}"


def refused(answer: Answer, code: int, reason: str) -> bool:
    return (answer.code, answer.body.get("reason"), answer.body.get("kind")) == (code, reason, "Status")


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


def test_a_finalizer_keeps_what_is_deleted(admin: Caller) -> None:
    made = admin.call("POST", LEASES, new_lease(finalizers=["example.org/held"])).body
    assert admin.call("DELETE", path_of(made)).code == 200
    there = admin.call("GET", path_of(made)).body
    assert there["metadata"]["deletionTimestamp"]
    assert admin.call("DELETE", path_of(made)).code == 200
    admin.call("PATCH", path_of(made), {"metadata": {"finalizers": None}})
    assert admin.call("GET", path_of(made)).code == 404


def test_the_status_of_a_node_is_written_at_its_own_path_only(admin: Caller, node: Object) -> None:
    conditions = [{"type": "Ours", "status": "True"}]
    admin.call("PATCH", path_of(node), {"status": {"conditions": conditions}})
    assert "Ours" not in json.dumps(admin.call("GET", path_of(node)).body.get("status"))
    answer = admin.call("PATCH", f"{path_of(node)}/status", {"status": {"conditions": conditions}})
    assert "Ours" in json.dumps(answer.body["status"])


def test_a_strategic_patch_knows_one_condition_from_another(admin: Caller, node: Object) -> None:
    """And takes annotations and labels at the path of the status, too."""
    for kind in ("Theirs", "Ours"):
        patch = {"status": {"conditions": [{"type": kind, "status": "True"}]}}
        admin.call("PATCH", f"{path_of(node)}/status", patch, "strategic-merge")
    marks = {"annotations": {"example.org/a": "1"}, "labels": {"example.org/b": "2"}}
    answer = admin.call("PATCH", f"{path_of(node)}/status", {"metadata": marks}, "strategic-merge")
    assert {each["type"] for each in answer.body["status"]["conditions"]} == {"Theirs", "Ours"}
    assert answer.body["metadata"]["annotations"]["example.org/a"] == "1"
    assert answer.body["metadata"]["labels"]["example.org/b"] == "2"


def test_a_list_in_pages_has_each_object_once(admin: Caller) -> None:
    label = f"page-{next(_numbers)}"
    made = {
        admin.call("POST", LEASES, new_lease(labels={"in": label})).body["metadata"]["name"] for _ in range(5)
    }
    found, more, pages = [], "", 0
    while pages == 0 or more:
        page = admin.call("GET", f"{LEASES}?labelSelector=in%3D{label}&limit=2&continue={more}").body
        found += [each["metadata"]["name"] for each in page["items"]]
        more, pages = page["metadata"].get("continue", ""), pages + 1
    assert (sorted(found), pages) == (sorted(made), 3)


def test_a_page_that_goes_on_nowhere_is_refused(admin: Caller) -> None:
    assert admin.call("GET", f"{LEASES}?limit=2&continue=nonsense").code == 400


def test_what_comes_from_memory_comes_whole(admin: Caller) -> None:
    label = f"whole-{next(_numbers)}"
    for _ in range(3):
        admin.call("POST", LEASES, new_lease(labels={"in": label}))
    query = f"?labelSelector=in%3D{label}&limit=2&resourceVersion=0"
    page = admin.call("GET", LEASES + query).body
    while len(page["items"]) < 3 and "continue" not in page["metadata"]:  # its memory is a moment behind
        page = admin.call("GET", LEASES + query).body
    assert (len(page["items"]), page["metadata"].get("continue")) == (3, None)


@pytest.mark.parametrize(
    ("selector", "chosen"),
    [("a%3D1", "1"), ("a%3D%3D2", "2"), ("a+in+(1,2)", "12"), ("a+in+(3)", ""), ("a", "12"), ("b", "")],
)
def test_labels_select(admin: Caller, selector: str, chosen: str) -> None:
    scene = f"s{next(_numbers)}"
    for value in "12":
        admin.call("POST", LEASES, new_lease(labels={"a": value, "scene": scene}))
    page = admin.call("GET", f"{LEASES}?labelSelector=scene%3D{scene},{selector}").body
    assert "".join(sorted(each["metadata"]["labels"]["a"] for each in page["items"])) == chosen


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
