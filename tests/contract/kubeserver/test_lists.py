"""What an API server answers to who lists and watches as our programs do: pages, bookmarks, versions that
nobody knows any more, lines for people.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from installer.cluster.kubeapi import NO_OBJECTS
from installer.operator.api import LEASES as THE_LEASES
from installer.operator.api import ApiError, Limits, Resource
from tests.contract.kubeserver.objects import (
    LEASES,
    NODES,
    Object,
    await_gone,
    new_lease,
    number,
    path_of,
    refused,
)
from tests.lib.api_servers import ApiServer
from tests.lib.throwaway.controlplane import Caller

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
Seen = tuple[str, str]


@pytest.fixture
def label() -> str:
    return f"in-{number()}"


def create(admin: Caller, label: str, **metadata: str) -> Object:
    return admin.call("POST", LEASES, new_lease(labels={"in": label}, **metadata)).body


def chosen(label: str, more: str = "") -> str:
    return f"{LEASES}?labelSelector=in%3D{label}{more}"


def version_of(found: Object) -> str:
    return str(found["metadata"]["resourceVersion"])


def told(events: Iterator[Object]) -> Iterator[Seen]:
    """Of each event what it is, and the name of what it is about."""
    return ((each["type"], each["object"]["metadata"].get("name", "")) for each in events)


# -- pages ----------------------------------------------------------------------------------------


def test_a_list_in_pages_has_each_object_once(admin: Caller, label: str) -> None:
    made = {create(admin, label)["metadata"]["name"] for _ in range(5)}
    found, more, pages = [], "", 0
    while pages == 0 or more:
        page = admin.call("GET", chosen(label, f"&limit=2&continue={more}")).body
        found += [each["metadata"]["name"] for each in page["items"]]
        more, pages = page["metadata"].get("continue", ""), pages + 1
    assert (sorted(found), pages) == (sorted(made), 3)


def test_all_pages_are_of_the_moment_of_the_first(admin: Caller, label: str) -> None:
    made = [create(admin, label, name=f"m-{label}-{at}") for at in range(4)]
    first = admin.call("GET", chosen(label, "&limit=2")).body
    admin.call("DELETE", path_of(made[0]))
    admin.call("DELETE", path_of(made[3]))
    create(admin, label, name=f"a-{label}")
    create(admin, label, name=f"z-{label}")
    second = admin.call("GET", chosen(label, f"&limit=2&continue={first['metadata']['continue']}")).body
    assert [each["metadata"]["name"] for each in second["items"]] == [f"m-{label}-2", f"m-{label}-3"]
    assert version_of(second) == version_of(first)


def test_a_page_that_goes_on_nowhere_is_refused(admin: Caller) -> None:
    assert admin.call("GET", f"{LEASES}?limit=2&continue=nonsense").code == 400


def test_a_list_that_was_forgotten_goes_on_as_it_is_now(server: ApiServer, label: str) -> None:
    """The refusal says where to go on."""
    admin = server.admin
    made = [create(admin, label, name=f"m-{label}-{at}") for at in range(4)]
    first = admin.call("GET", chosen(label, "&limit=2")).body
    admin.call("DELETE", path_of(made[3]))
    create(admin, label, name=f"a-{label}")
    create(admin, label, name=f"z-{label}")
    server.forget()
    answer = admin.call("GET", chosen(label, f"&limit=2&continue={first['metadata']['continue']}"))
    assert refused(answer, 410, "Expired")
    rest = admin.call("GET", chosen(label, f"&limit=2&continue={answer.body['metadata']['continue']}")).body
    assert [each["metadata"]["name"] for each in rest["items"]] == [f"m-{label}-2", f"z-{label}"]
    assert int(version_of(rest)) > int(version_of(first))


def test_the_client_goes_on_with_a_list_that_was_forgotten(server: ApiServer, label: str) -> None:
    """A watch from the client's version misses nothing, or tells the client to list everything again."""
    made = {create(server.admin, label)["metadata"]["name"] for _ in range(5)}
    found = list[str]()
    versions = set[str]()
    for page in server.client(Limits(page=2)).list_pages(THE_LEASES, f"in={label}"):
        found += [each["metadata"]["name"] for each in page.items]
        versions.add(page.version)
        create(server.admin, "elsewhere")
        server.forget()
    assert (sorted(found), len(versions)) == (sorted(made), 1)
    with pytest.raises(ApiError) as raised:
        list(server.client().watch(THE_LEASES, versions.pop()))
    assert raised.value.expired


def test_what_comes_from_memory_comes_whole(admin: Caller, label: str) -> None:
    for _ in range(3):
        create(admin, label)
    query = chosen(label, "&limit=2&resourceVersion=0")
    page = admin.call("GET", query).body
    while len(page["items"]) < 3 and "continue" not in page["metadata"]:  # its memory is a moment behind
        page = admin.call("GET", query).body
    assert (len(page["items"]), page["metadata"].get("continue")) == (3, None)


def test_a_namespace_that_is_not_there_has_an_empty_list(admin: Caller) -> None:
    answer = admin.call("GET", LEASES.replace("default", "nowhere"))
    assert (answer.code, answer.body["items"]) == (200, [])


@pytest.mark.parametrize(
    ("selector", "names"),
    [("a%3D1", "1"), ("a%3D%3D2", "2"), ("a+in+(1,2)", "12"), ("a+in+(3)", ""), ("a", "12"), ("b", "")],
)
def test_labels_select(admin: Caller, label: str, selector: str, names: str) -> None:
    for value in "12":
        admin.call("POST", LEASES, new_lease(labels={"a": value, "in": label}))
    page = admin.call("GET", chosen(label, f",{selector}")).body
    assert "".join(sorted(each["metadata"]["labels"]["a"] for each in page["items"])) == names


def test_a_selector_that_is_none_is_refused(admin: Caller) -> None:
    assert refused(admin.call("GET", f"{LEASES}?labelSelector=a%3D%3D%3Db"), 400, "BadRequest")


# -- lines for people -----------------------------------------------------------------------------


def test_a_list_as_a_table_has_a_line_for_each(admin: Caller, node: Object) -> None:
    admin.call("PATCH", path_of(node), {"metadata": {"labels": {"in": node["metadata"]["name"]}}})
    query = f"{NODES}?labelSelector=in%3D{node['metadata']['name']}"
    bare = admin.call("GET", f"{query}&{NO_OBJECTS}", accept=TABLE).body
    assert (bare["kind"], [each.get("object") for each in bare["rows"]]) == ("Table", [None])
    assert bare["metadata"]["resourceVersion"]
    (row,) = admin.call("GET", query, accept=TABLE).body["rows"]
    assert row["object"]["metadata"]["name"] == row["cells"][0] == node["metadata"]["name"]


def test_an_object_as_a_table_is_one_line(admin: Caller, lease: Object) -> None:
    (row,) = admin.call("GET", path_of(lease), accept=TABLE).body["rows"]
    assert row["cells"][0] == lease["metadata"]["name"]


def test_a_failure_is_no_table(admin: Caller) -> None:
    assert refused(admin.call("GET", f"{LEASES}/nobody", accept=TABLE), 404, "NotFound")


# -- watches --------------------------------------------------------------------------------------


def test_a_watch_tells_what_happens_after_a_version(admin: Caller, label: str) -> None:
    before = create(admin, label)
    made = create(admin, label)
    admin.call("PATCH", path_of(made), {"spec": {"holderIdentity": "me"}})
    admin.call("DELETE", path_of(made))
    events = admin.watch(chosen(label, f"&resourceVersion={version_of(before)}"))
    seen = list(itertools.islice(events, 3))
    name = made["metadata"]["name"]
    assert list(told(iter(seen))) == [("ADDED", name), ("MODIFIED", name), ("DELETED", name)]
    versions = [int(version_of(each["object"])) for each in seen]
    assert versions == sorted(set(versions))


def test_a_deletion_has_a_version_of_its_own_and_the_last_content(admin: Caller, label: str) -> None:
    made = create(admin, label)
    admin.call("DELETE", path_of(made))
    (event,) = itertools.islice(admin.watch(chosen(label, f"&resourceVersion={version_of(made)}")), 1)
    assert event["object"]["metadata"]["uid"] == made["metadata"]["uid"]
    assert int(version_of(event["object"])) > int(version_of(made))


def test_a_watch_from_nowhere_begins_with_what_is_there(admin: Caller, label: str) -> None:
    gone, there = create(admin, label), create(admin, label)
    admin.call("DELETE", path_of(gone))
    (seen,) = itertools.islice(told(admin.watch(chosen(label))), 1)
    assert seen == ("ADDED", there["metadata"]["name"])


def test_what_is_selected_no_longer_is_told_as_deleted(admin: Caller, label: str) -> None:
    made = create(admin, label)
    for value in ("elsewhere", label):
        admin.call("PATCH", path_of(made), {"metadata": {"labels": {"in": value}}})
    events = admin.watch(chosen(label, f"&resourceVersion={version_of(made)}"))
    name = made["metadata"]["name"]
    assert list(itertools.islice(told(events), 2)) == [("DELETED", name), ("ADDED", name)]


def test_a_watch_ends_in_time_and_says_before_how_far_it_is(admin: Caller, label: str) -> None:
    """Where something has happened, if not to what it is about: who goes on from there misses nothing."""
    before = create(admin, label)
    query = f"&resourceVersion={version_of(before)}&timeoutSeconds=10&allowWatchBookmarks=true"
    events = admin.watch(chosen(label, query))
    elsewhere = create(admin, "elsewhere")
    seen = list(events)
    last = seen[-1]
    assert (last["type"], list(last["object"]["metadata"])) == ("BOOKMARK", ["resourceVersion"])
    assert int(version_of(last["object"])) >= int(version_of(elsewhere))
    after = create(admin, label)
    events = admin.watch(chosen(label, f"&resourceVersion={version_of(last['object'])}"))
    assert next(told(events)) == ("ADDED", after["metadata"]["name"])


def test_a_watch_of_what_nobody_changes_is_silent_until_it_ends(server: ApiServer) -> None:
    """However long it is: silence alone is no failure."""
    client = server.client(Limits(watch_seconds=5))
    quiet = Resource("policy", "v1", "poddisruptionbudgets")
    (page,) = client.list_pages(quiet)
    assert list(client.watch(quiet, page.version)) == []


def test_nobody_who_has_not_asked_gets_a_bookmark(admin: Caller, label: str) -> None:
    before = create(admin, label)
    assert list(admin.watch(chosen(label, f"&resourceVersion={version_of(before)}&timeoutSeconds=4"))) == []


def test_a_version_that_is_too_old_is_gone(server: ApiServer) -> None:
    """The client has it as an error, which says that all is to be listed again."""
    version = version_of(create(server.admin, "forgotten"))
    create(server.admin, "forgotten")
    server.forget()
    (event,) = server.admin.watch(f"{LEASES}?resourceVersion={version}")
    assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")
    with pytest.raises(ApiError) as raised:
        list(server.client().watch(THE_LEASES, version))
    assert raised.value.expired


def test_the_client_watches_all_namespaces(server: ApiServer, lease: Object) -> None:
    selector = "in=client"
    (*_, page) = server.client().list_pages(THE_LEASES, selector)
    made = create(server.admin, "client")
    (seen,) = itertools.islice(server.client().watch(THE_LEASES, page.version, selector), 1)
    assert (seen[0], seen[1]["metadata"]["uid"]) == ("ADDED", made["metadata"]["uid"])
    admin = server.admin
    admin.call("DELETE", path_of(made))
    await_gone(admin, path_of(made))
