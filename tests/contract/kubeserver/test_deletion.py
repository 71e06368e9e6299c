"""What becomes of what is deleted: finalizers, owners, namespaces. A real garbage collector takes its time,
and so each test waits for it.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.contract.kubeserver.objects import (
    LEASES,
    SECONDS,
    Object,
    await_gone,
    new_lease,
    number,
    path_of,
    refused,
)
from tests.lib.throwaway.controlplane import Caller

HELD = "example.org/held"


def owned_by(owner: Object, **more: Any) -> Object:
    metadata = owner["metadata"]
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        **more,
    }


# -- finalizers -----------------------------------------------------------------------------------


def test_a_finalizer_keeps_what_is_deleted(admin: Caller) -> None:
    made = admin.call("POST", LEASES, new_lease(finalizers=[HELD])).body
    answer = admin.call("DELETE", path_of(made))
    assert (answer.code, answer.body["metadata"]["uid"]) == (200, made["metadata"]["uid"])
    there = admin.call("GET", path_of(made)).body
    assert there["metadata"]["deletionTimestamp"]
    assert admin.call("DELETE", path_of(made)).code == 200
    admin.call("PATCH", path_of(made), {"metadata": {"finalizers": None}})
    assert admin.call("GET", path_of(made)).code == 404


def test_what_is_gone_at_once_is_named_in_the_answer(admin: Caller, lease: Object) -> None:
    answer = admin.call("DELETE", path_of(lease))
    assert (answer.body["kind"], answer.body["status"]) == ("Status", "Success")
    assert answer.body["details"]["uid"] == lease["metadata"]["uid"]


def test_what_is_deleted_gets_no_new_finalizer_and_does_not_come_back(admin: Caller) -> None:
    made = admin.call("POST", LEASES, new_lease(finalizers=[HELD])).body
    admin.call("DELETE", path_of(made))
    more = {"metadata": {"finalizers": [HELD, "example.org/more"]}}
    assert refused(admin.call("PATCH", path_of(made), more), 422, "Invalid")
    back = admin.call("PATCH", path_of(made), {"metadata": {"deletionTimestamp": None}})
    assert back.body["metadata"]["deletionTimestamp"]
    assert admin.call("PATCH", path_of(made), {"spec": {"holderIdentity": "me"}}).ok
    admin.call("PATCH", path_of(made), {"metadata": {"finalizers": []}})
    await_gone(admin, path_of(made))


@pytest.mark.parametrize("finalizer", ["no slash", "a/b/c", "Example.org/x y"])
def test_a_finalizer_has_to_be_a_qualified_name(admin: Caller, finalizer: str) -> None:
    assert refused(admin.call("POST", LEASES, new_lease(finalizers=[finalizer])), 422, "Invalid")


# -- owners ---------------------------------------------------------------------------------------


def test_what_a_node_owns_goes_with_it(admin: Caller, node: Object) -> None:
    made = admin.call("POST", LEASES, new_lease(ownerReferences=[owned_by(node)])).body
    assert admin.call("GET", path_of(made)).ok
    admin.call("DELETE", path_of(node))
    await_gone(admin, path_of(made))


@pytest.mark.parametrize("how", ["POST", "PATCH"])
@pytest.mark.parametrize("absent", ["the object", "its UID"])
def test_what_an_absent_object_owns_is_deleted(admin: Caller, node: Object, how: str, absent: str) -> None:
    """Whoever was allowed to name it, and whether he may delete anything or not."""
    owner = owned_by(node, uid="00000000-0000-0000-0000-000000000000")
    owner |= {"name": f"nobody-{number()}"} if absent == "the object" else {}
    metadata = {"ownerReferences": [owner]}
    made = admin.call("POST", LEASES, new_lease(**(metadata if how == "POST" else {}))).body
    if how == "PATCH":
        assert admin.call("PATCH", path_of(made), {"metadata": metadata}).ok
    await_gone(admin, path_of(made))


def test_one_owner_that_is_there_is_enough(admin: Caller, node: Object) -> None:
    other = admin.call("POST", LEASES, new_lease()).body
    owners = [owned_by(node), owned_by(other)]
    made = admin.call("POST", LEASES, new_lease(ownerReferences=owners)).body
    admin.call("DELETE", path_of(other))
    probe = admin.call("POST", LEASES, new_lease(ownerReferences=[owned_by(other)])).body
    await_gone(admin, path_of(probe))
    assert admin.call("GET", path_of(made)).ok
    admin.call("DELETE", path_of(node))
    await_gone(admin, path_of(made))


@pytest.mark.parametrize("part", ["uid", "name", "kind", "apiVersion"])
def test_an_owner_is_named_in_full(admin: Caller, node: Object, part: str) -> None:
    owner = owned_by(node)
    del owner[part]
    assert refused(admin.call("POST", LEASES, new_lease(ownerReferences=[owner])), 422, "Invalid")


def test_a_held_child_outlives_its_owner(admin: Caller, node: Object) -> None:
    made = admin.call("POST", LEASES, new_lease(ownerReferences=[owned_by(node)], finalizers=[HELD])).body
    admin.call("DELETE", path_of(node))
    await_deleting(admin, path_of(made))
    admin.call("PATCH", path_of(made), {"metadata": {"finalizers": None}})
    await_gone(admin, path_of(made))


def await_deleting(admin: Caller, path: str) -> None:
    end = time.monotonic() + SECONDS
    while not admin.call("GET", path).body["metadata"].get("deletionTimestamp"):
        assert time.monotonic() < end
        time.sleep(0.1)


# -- namespaces -----------------------------------------------------------------------------------


def test_a_namespace_goes_with_all_that_is_in_it(admin: Caller) -> None:
    name = f"space-{number()}"
    namespaces, place = "/api/v1/namespaces", LEASES.replace("default", name)
    admin.call("POST", namespaces, {"metadata": {"name": name}})
    held = admin.call("POST", place, new_lease(finalizers=[HELD])).body
    free = admin.call("POST", place, new_lease()).body
    assert admin.call("DELETE", f"{namespaces}/{name}").code == 200
    await_gone(admin, f"{place}/{free['metadata']['name']}")
    there = admin.call("GET", f"{namespaces}/{name}").body
    assert (there["status"]["phase"], bool(there["metadata"]["deletionTimestamp"])) == ("Terminating", True)
    assert refused(admin.call("POST", place, new_lease()), 403, "Forbidden")
    assert admin.call("DELETE", f"{namespaces}/{name}").code == 200
    admin.call("PATCH", f"{place}/{held['metadata']['name']}", {"metadata": {"finalizers": None}})
    await_gone(admin, f"{namespaces}/{name}")
