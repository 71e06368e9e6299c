"""Permits: who may restart kubelet now, and who waits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from installer.cluster.kubeapi import Answer
from installer.cluster.leases import Holder, Permit, permit_name, permits_of, share_of
from installer.cluster.permit_choice import choose_permit
from tests.lib.fleet_bench import (
    LEASES,
    NEW,
    REPAIR,
    RULES,
    Node,
    Store,
    anywhere,
    trio,
)


@pytest.mark.parametrize(
    ("text", "nodes", "share"),
    [("1%", 3, 1), ("1%", 10_000, 100), ("1%", 199, 1), ("5", 3, 5), ("100%", 7, 7)],
)
def test_a_share_is_a_number_or_a_percentage_and_at_least_one(text: str, nodes: int, share: int) -> None:
    assert share_of(text, nodes) == share


def test_there_are_at_most_a_thousand_permits() -> None:
    """All that nodes read at once has to fit into an answer."""
    assert permits_of("50%", 10_000) == permits_of("4000", 10_000) == 1000
    assert permits_of("5%", 10_000) == 500


@settings(max_examples=60)
@given(
    held=st.dictionaries(
        st.integers(0, 6), st.tuples(st.sampled_from("abcdef"), st.integers(-5, 5)), max_size=7
    ),
    limit=st.integers(1, 5),
    start=st.floats(0, 0.99),
)
def test_a_node_takes_a_permit_only_where_there_is_room(
    held: dict[int, tuple[str, int]], limit: int, start: float
) -> None:
    permits = [
        Permit(permit_name(index), f"{node}/{node}", expires=100.0 + left, version="1")
        for index, (node, left) in held.items()
    ]
    at_work = [permit for permit in permits if permit.is_held(100.0)]
    choice = choose_permit(permits, Holder("me", "me"), limit, 100.0, lambda: start)
    assert len(choice.free) == max(0, limit - len(at_work))  # each may be taken by another node by then
    assert not {permit.name for permit in choice.free} & {permit.name for permit in at_work}
    for permit in at_work:
        node, _, uid = permit.holder.partition("/")
        found = choose_permit(permits, Holder(node, uid), limit, 100.0, lambda: start)
        assert found.mine
        assert not found.free


def test_undisturbed_it_takes_three_requests(store: Store) -> None:
    (node, _, _) = trio(store, anywhere())
    first = Node(store, "z", anywhere()).begin(replace(NEW, restarts_kubelet=False))
    assert not first.canary  # breaker and size are there
    store.requests.clear()
    assert node.begin().granted
    assert store.holders() == ["a/uid-a"]
    node.end()
    assert store.holders() == []
    assert len(store.requests) == 3


def test_the_next_node_waits_until_the_permit_is_given_back(store: Store) -> None:
    a, b, _ = trio(store)
    assert a.begin(REPAIR).granted
    answer = b.begin(REPAIR)
    assert (answer.granted, answer.why) == (False, "other nodes go first")
    assert answer.detail == ": the only permit is in use (a)"
    store.requests.clear()
    b.begin(REPAIR)
    assert len(store.requests) == 1  # nothing more is asked for
    a.end()
    assert b.begin(REPAIR).granted


def test_a_permit_is_found_again_and_never_two_are_taken(store: Store) -> None:
    store.size(10_000)
    a, _, _ = trio(store)
    first = a.begin(REPAIR)
    assert a.begin(REPAIR).permit == first.permit
    assert store.holders() == ["a/uid-a"]


def test_nodes_that_ask_in_the_same_moment_keep_to_a_smaller_limit(store: Store) -> None:
    """Each of them reads the same Leases before the first one writes."""
    earlier = [Node(store, f"a{at}", anywhere(concurrent_restarts="10")) for at in range(10)]
    for node in earlier:
        node.begin(REPAIR)
    for node in earlier:
        if node.held.permit not in ("permit-4", "permit-7"):
            node.end(work=REPAIR)
    others = [Node(store, f"b{at}", anywhere(concurrent_restarts="5")) for at in range(12)]

    def the_next_one_asks() -> None:
        if others:
            node = others.pop()
            store.before_write = the_next_one_asks
            node.begin(REPAIR)

    the_next_one_asks()
    assert not others
    assert len(store.holders()) == 5


def test_a_permit_expires_by_the_servers_clock(store: Store) -> None:
    a, b, _ = trio(store)
    a.begin(REPAIR)
    b.skew = 1e6
    assert not b.begin(REPAIR).granted
    store.now += RULES.hold_seconds + 1
    assert b.begin(REPAIR).granted
    assert a.end().released  # it has another holder, and stays with it
    assert store.holders() == ["b/uid-b"]


@pytest.mark.parametrize("change", ["gone", "rebuilt"])
def test_the_permit_of_a_node_that_is_gone_is_taken_over(store: Store, change: str) -> None:
    a, b, _ = trio(store)
    a.begin(REPAIR)
    store.now += 200
    assert not b.begin(REPAIR).granted
    if change == "gone":
        del store.objects["/api/v1/nodes/a"]
    else:
        store.node("a", uid="another")
    assert b.begin(REPAIR).granted
    assert store.holders() == ["b/uid-b"]


class Lagging(Store):
    """One of several API servers, whose cache has fallen behind: a GET of a Node from it (resourceVersion=0)
    finds another than etcd has."""

    def __init__(self) -> None:
        super().__init__()
        self.cached: dict[str, Any] = {}

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Answer:
        if path.startswith("/api/v1/nodes/") and path.endswith("?resourceVersion=0"):
            return Answer(200, self.cached) if self.cached else Answer(404, failure="404")
        return super().call(method, path, body)


@pytest.mark.parametrize("cached", [{}, {"metadata": {"uid": "of-the-machine-before"}}])
def test_no_old_answer_takes_the_permit_from_a_new_node(cached: dict[str, Any]) -> None:
    store = Lagging()
    store.size(3)
    store.cached = cached
    a, b, _ = trio(store)
    assert a.begin(REPAIR).granted
    store.now += 200
    assert not b.begin(REPAIR).granted


def test_permits_of_nodes_that_are_gone_are_taken_over_beside_one_that_is_at_work_for_long(
    store: Store,
) -> None:
    rules = anywhere(concurrent_restarts="3")
    works, b, c = trio(store, rules)
    for node in (works, b, c):
        assert node.begin(REPAIR).granted
    for node in (b, c):
        del store.objects[f"/api/v1/nodes/{node.name}"]
    store.now += 121
    waiting = [Node(store, f"n{at}", rules) for at in range(2)]
    for _ in range(12):  # a minute, at the pace of nodes that wait
        store.now += 5
        waiting = [node for node in waiting if not node.begin(REPAIR).granted]
    assert not waiting
    assert sorted(store.holders()) == ["a/uid-a", "n0/uid-n0", "n1/uid-n1"]


def test_a_node_that_was_rebuilt_needs_nobodys_help(store: Store) -> None:
    a, _, _ = trio(store)
    a.begin(REPAIR)
    a.uid = "another"
    assert a.begin(REPAIR).granted
    assert store.holders() == ["a/another"]


def test_of_two_that_take_the_same_permit_one_waits(store: Store) -> None:
    a, b, _ = trio(store)

    def competes() -> None:
        b.begin(REPAIR)

    store.before_write = competes
    assert not a.begin(REPAIR).granted
    assert store.holders() == ["b/uid-b"]
    b.end()
    store.before_write = competes  # now the Lease exists
    assert not a.begin(REPAIR).granted


def test_a_permit_that_has_lost_its_label_is_found(store: Store) -> None:
    """It is not listed; it can be taken all the same, and no two nodes have it."""
    a, b, _ = trio(store)
    store.put(f"{LEASES}/permit-0", {"metadata": {"name": "permit-0"}, "spec": {}})
    assert a.begin(REPAIR).granted
    del store.objects[f"{LEASES}/permit-0"]["metadata"]["labels"]
    assert not b.begin(REPAIR).granted
    assert store.holders() == ["a/uid-a"]
