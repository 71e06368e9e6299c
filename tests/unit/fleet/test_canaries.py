"""Who begins a generation, and who waits for them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from installer.cluster.breaker import Breaker, may_be_canary
from installer.cluster.leases import breaker_name
from tests.lib.fleet_bench import (
    LEASES,
    NEW,
    RULES,
    Node,
    Store,
    requests_of,
    trio,
)


def test_the_others_wait_for_the_canary_and_while_it_is_watched(store: Store) -> None:
    a, b, c = trio(store)
    assert a.begin().canary
    a_again = b.begin()
    assert not a_again.granted
    store.now += 20
    a.end()
    answer = b.begin()
    assert (answer.granted, answer.why) == (False, "other nodes go first")
    assert answer.detail == ": the canaries, which are watched for 300 s more"
    assert 20 <= answer.wait <= 60
    store.now += 250
    assert 50 <= b.begin().wait <= 54, "it need not ask before the end that is near"
    store.now += 49
    assert not c.begin().granted
    store.now += 2
    assert b.begin().granted
    assert not b.held.canary


PATIENT = replace(RULES, soak_seconds=3600.0)


@pytest.mark.parametrize("begun", ["the canary works", "the canary is watched"])
def test_who_waits_for_canaries_hears_within_a_minute_that_one_has_failed_and_of_a_retry(
    store: Store, begun: str
) -> None:
    """However long they are watched."""
    a, b, _ = trio(store, PATIENT)
    assert a.begin().canary
    if begun == "the canary is watched":
        a.end()
    waits = b.begin()
    a.end(ok=False)
    assert waits.wait <= 60
    store.now += waits.wait
    stopped = b.begin()
    assert stopped.why == "generation one is stopped: it failed on node a: it is broken"
    assert stopped.wait <= 60
    store.now += stopped.wait
    del store.objects[f"{LEASES}/{breaker_name(NEW.generation)}"]  # `rollout retry`
    assert b.begin().canary


def test_a_large_fleet_that_waits_for_canaries_asks_no_more_often_for_it(store: Store) -> None:
    """Fifteen questions a second, and the labelled nodes, whom all others wait for, at once."""
    store.size(10_000)
    a, b, _ = trio(store, PATIENT)
    late = Node(store, "late", PATIENT, canary=True)
    assert late.begin().canary
    waits = [node.begin().wait for node in (a, b) for _ in range(200)]
    assert 10_000 / (sum(waits) / len(waits)) < 16
    late.end(ok=False)
    assert a.begin().wait > 300
    assert Node(store, "e", PATIENT, canary=True).begin().wait <= 60


def test_a_generation_that_restarts_nothing_is_not_watched(store: Store) -> None:
    a, b, _ = trio(store)
    mild = replace(NEW, restarts_kubelet=False, soaks=False)
    assert a.begin(mild).canary
    waits = b.begin(mild)
    assert (waits.why, waits.detail) == ("other nodes go first", ": the canaries (a)")
    a.end(work=mild)
    assert b.begin(mild).granted
    assert store.holders() == []


def test_labelled_nodes_go_first(store: Store) -> None:
    a, b, _ = trio(store)
    chosen = Node(store, "chosen", canary=True)
    assert "ring=canary" in a.begin().detail
    assert chosen.begin().canary
    chosen.end()
    store.now += 301
    assert b.begin().granted


def test_a_canary_that_waits_for_the_permit_is_one_all_the_same(store: Store) -> None:
    first, second = (Node(store, name, canary=True) for name in ("first", "second"))
    other, _, _ = trio(store)
    assert first.begin().canary
    assert second.begin().detail == ": the only permit is in use (first)"
    store.now += 5
    assert requests_of(store, second) == ["GET leases"]
    first.end()
    store.now += 301
    assert other.begin().detail == ": the canaries (second)"
    assert second.begin().canary
    second.end()
    assert other.begin().detail == ": the canaries, which are watched for 300 s more"
    store.now += 301
    assert other.begin().granted


def test_the_others_wait_for_a_labelled_node_that_has_not_asked_yet(store: Store) -> None:
    """Its pod comes later than the others' or never does."""
    first, late = (Node(store, name, canary=True) for name in ("first", "late"))
    other, _, _ = trio(store)
    first.begin()
    first.end()
    store.now += 400
    assert "ring=canary" in other.begin().detail
    assert late.begin().canary
    late.end(ok=False)
    assert "it failed on node late" in other.begin().why


def test_a_labelled_node_that_never_asks_holds_nobody_up(store: Store) -> None:
    first, _ = (Node(store, name, canary=True) for name in ("first", "never"))
    other, _, _ = trio(store)
    first.begin()
    first.end()
    store.now += 901
    assert "watched for 300 s" in other.begin().detail
    store.now += 301
    assert other.begin().granted


def test_where_no_labelled_node_comes_another_one_goes_first(store: Store) -> None:
    a, b, _ = trio(store)
    Node(store, "chosen", canary=True)
    assert not a.begin().granted
    store.now += 901
    assert a.begin().canary
    assert not b.begin().granted


@pytest.mark.parametrize("end", ["dies", "refused"])
def test_a_canary_that_tells_nothing_is_replaced(store: Store, end: str) -> None:
    a, b, _ = trio(store)
    a.begin()
    if end == "dies":
        store.now += 901
    else:
        a.end(ok=None)
    assert b.begin().canary


def test_a_canary_that_dies_beside_others_holds_nobody_up(store: Store) -> None:
    store.size(200)
    a, b, c = trio(store)
    a.begin()
    b.begin()
    a.end()
    assert not c.begin().granted
    store.now += 901
    assert not c.begin().granted  # now it is known that the canaries are through
    store.now += 301
    assert c.begin().granted


def test_the_failure_of_one_canary_stops_a_large_fleet(store: Store) -> None:
    store.size(10_000)
    a, b, _ = trio(store)
    a.begin()
    a.end(ok=False)
    assert "it failed on node a" in b.begin().why


def test_who_waits_for_canaries_asks_for_nothing_else(store: Store) -> None:
    """Also once they are through, and watched."""
    a, b, _ = trio(store, replace(RULES, concurrent_restarts="3"))
    assert a.begin().canary
    assert b.begin().why == "other nodes go first"
    for meanwhile in (lambda: None, a.end):
        meanwhile()
        assert requests_of(store, b) == ["GET leases"]
    store.now += 301
    assert b.begin().granted


def test_of_many_labelled_nodes_a_thousand_go_first() -> None:
    """What a breaker says has to fit into an annotation."""
    breaker = Breaker("one", canaries={f"n{at}": 1.0 for at in range(1000)}, labelled=1001)
    assert not may_be_canary(breaker, labelled=True, nodes=10_000, now=2.0)


def test_a_generation_that_returns_untried_waits_for_labelled_nodes_again(store: Store) -> None:
    """Another one was asked for before a canary could tell anything of it."""
    a, b, _ = trio(store)
    first, second = (Node(store, name, canary=True) for name in ("first", "second"))
    assert first.begin().canary
    first.end(ok=None)
    store.now += 2 * 3600
    assert not a.begin().granted
    assert second.begin().canary
    second.end()
    assert "ring=canary" in b.begin().detail
    store.now += 901
    assert not a.begin().granted
    store.now += 301
    assert a.begin().granted
