"""How large the fleet is, and how long its queue: one node asks for all."""

from __future__ import annotations

import json

import pytest

from installer.cluster.leases import build_lease
from installer.cluster.size import FleetSize, build_size
from installer.model.fleet import SIZE
from tests.lib.fleet_bench import (
    DAEMONSET,
    NAMESPACE,
    REPAIR,
    THE_FLEET,
    Node,
    Store,
    anywhere,
    requests_of,
    trio,
)


def test_the_size_of_the_fleet_is_asked_for_by_one_node_in_a_while(store: Store) -> None:
    store.size(300, 200)
    a, b, c = trio(store, anywhere(concurrent_restarts="1"))
    asks = ["GET leases", "GET cri-resmgr-installer", "PATCH fleet"]
    assert requests_of(store, a, REPAIR) == [*asks, "POST leases", "POST leases"]
    assert requests_of(store, b, REPAIR) == ["GET leases"]
    assert store.objects[THE_FLEET]["metadata"]["labels"]
    store.now += 101
    assert requests_of(store, c, REPAIR) == asks
    assert requests_of(store, b, REPAIR) == ["GET leases"]


def test_a_fleet_that_is_not_counted_yet_is_not_remembered(store: Store) -> None:
    store.size(0)
    a, b, _ = trio(store, anywhere(concurrent_restarts="100%"))
    assert a.begin(REPAIR).granted
    assert not b.begin(REPAIR).granted
    assert THE_FLEET not in store.objects
    store.size(1000)
    assert b.begin(REPAIR).granted  # there are a thousand permits


def test_the_longer_the_queue_the_longer_a_node_waits(store: Store) -> None:
    store.size(10_000, 9000)
    rules = anywhere(concurrent_restarts="1")
    Node(store, "a", rules).begin(REPAIR)
    waits = [Node(store, f"n{at}", rules).begin(REPAIR).wait for at in range(20)]
    assert max(waits) > 3600
    store.size(10_000, 1)
    store.now += 31
    assert all(Node(store, f"n{at}", rules).begin(REPAIR).wait < 20 for at in range(20))


def test_another_fleets_size_is_not_believed(store: Store) -> None:
    """Of a DaemonSet that has the same namespace for its rollout."""
    store.pause(None)
    says = build_size(FleetSize("/somebody/elses", 10_000, at=store.now))
    store.objects[THE_FLEET]["metadata"]["annotations"] |= says
    a, b, _ = trio(store)
    a.begin(REPAIR)
    assert not b.begin(REPAIR).granted


MANY = "1" + "0" * 400
NUMBERS = '{"daemonset": "x", "nodes": %s, "waiting": 0, "at": %s}'


@pytest.mark.parametrize(
    "said",
    ["", "[]", "{}", '{"nodes": "many"}', "[" * 100_000, NUMBERS % ("1", MANY), NUMBERS % ("1", "NaN")],
    ids=lambda said: said[:20],
)
def test_a_size_that_is_not_understood_is_asked_for(store: Store, said: str) -> None:
    store.put(THE_FLEET, build_lease("fleet", NAMESPACE, "fleet", annotations={SIZE: said}))
    assert "GET cri-resmgr-installer" in requests_of(store, trio(store)[0])


@pytest.mark.parametrize("key", ["nodes", "waiting"])
def test_a_number_that_no_fleet_has_is_none(store: Store, key: str) -> None:
    numbers = {"daemonset": DAEMONSET, "nodes": 3, "waiting": 2, "at": store.now}
    said = json.dumps(numbers | {key: int(MANY)})
    store.put(THE_FLEET, build_lease("fleet", NAMESPACE, "fleet", annotations={SIZE: said}))
    a, b, _ = trio(store)
    assert a.begin(REPAIR).granted
    assert b.begin(REPAIR).wait < 60
