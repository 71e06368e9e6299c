"""What one node's token may have written: nobody waits for ever, nobody is asked for more than there is, and
the commands of an operator read it and undo it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from installer.cluster.breaker import Breaker, build_breaker
from installer.cluster.leases import Permit, breaker_name, build_lease, build_permit, permit_name
from installer.cluster.size import FleetSize, build_size
from installer.model.fleet import BREAKER, SIZE
from installer.operator.rollout_view import RolloutLeases, read_leases, to_retry
from tests.lib.fleet_bench import (
    DAEMONSET,
    LEASES,
    NAMESPACE,
    NEW,
    REPAIR,
    RULES,
    Node,
    Store,
    anywhere,
    trio,
)

TIMES = ["9999-12-31T23:59:59Z", "9999-12-31T23:59:59.999999-14:00", "0001-01-01T00:00:00+14:00", "30 days"]
THE_FLEET = f"{LEASES}/fleet"
THE_BREAKER = f"{LEASES}/{breaker_name('one')}"


def see(store: Store) -> RolloutLeases:
    leases: list[Any] = [found for path, found in store.objects.items() if path.startswith(LEASES)]
    return read_leases(leases, store.now, RULES)


def put_permit(store: Store, index: int, **spec: Any) -> None:
    name = permit_name(index)
    store.put(f"{LEASES}/{name}", build_lease(name, NAMESPACE, "permit") | {"spec": spec})


def spec_of(store: Store, index: int) -> dict[str, Any]:
    found: dict[str, Any] = store.objects[f"{LEASES}/{permit_name(index)}"]["spec"]
    return found


def later(store: Store, seconds: float) -> str:
    """A time that is so many seconds ahead, as a permit has it."""
    made = build_permit(Permit("permit-0"), NAMESPACE, "", store.now + seconds, 1)
    return str(made["spec"]["renewTime"])


@pytest.mark.parametrize("field", ["passed", "begun"])
@pytest.mark.parametrize("time", TIMES)
def test_nobody_waits_for_a_time_that_a_breaker_has_not_seen_yet(store: Store, field: str, time: str) -> None:
    store.size(3)
    time = later(store, 30 * 86_400) if time == "30 days" else time
    breaker = Breaker("one", store.now, {"x": store.now}, frozenset({"x"}), passed=store.now)
    lease = build_breaker(breaker, NAMESPACE, RULES, 3)
    said = json.loads(lease["metadata"]["annotations"][BREAKER])
    said[field] = time
    said["canaries"]["x"]["begun"] = time
    said["failures"] = {"y": {"time": time, "why": "z" * 100_000}} if field == "begun" else {}
    lease["metadata"]["annotations"][BREAKER] = json.dumps(said)
    store.put(THE_BREAKER, lease)
    (seen,) = see(store).breakers
    assert all(len(failure.why) == 300 for failure in seen.failures.values())
    if field == "passed":
        node = Node(store, "a", RULES)
        waits = node.begin().wait
        assert waits <= RULES.soak_seconds + 10
        store.now += RULES.soak_seconds + 1
        assert node.begin().granted


@pytest.mark.parametrize("time", TIMES[:2])
def test_a_permit_that_is_dated_years_ahead_is_nobodys(store: Store, time: str) -> None:
    """Who took it could not be told to give it back: another one is there for the others."""
    store.size(3)
    put_permit(store, 0, holderIdentity="x/uid-x", renewTime=time, leaseDurationSeconds=1 << 31)
    seen = see(store)
    assert seen.permits == ()
    assert [each.lease for each in to_retry(seen, RULES, 3)] == ["permit-0"]
    assert Node(store, "a", RULES).begin(REPAIR).granted
    assert spec_of(store, 1)["holderIdentity"] == "a/uid-a"


def test_where_every_permit_is_lost_a_node_says_who_can_help(store: Store) -> None:
    store.size(3)
    for index in range(1000):
        put_permit(store, index, renewTime=TIMES[0], leaseDurationSeconds=1)
    answer = Node(store, "a", RULES).begin(REPAIR)
    assert not answer.granted
    assert "rollout retry" in answer.why
    assert len(to_retry(see(store), RULES, 3)) == 1000


@pytest.mark.parametrize(("holder", "named"), [("", "permit-0"), ("x/uid-x", "x")])
def test_a_term_that_is_yet_to_begin_counts_as_held(store: Store, holder: str, named: str) -> None:
    """Who took the permit says so: until then another node had it, and may be at work."""
    store.size(3)
    node = Node(store, "a", RULES)
    put_permit(store, 0, holderIdentity=holder, renewTime=later(store, 600), leaseDurationSeconds=1)
    assert len(see(store).permits) == 1
    answer = node.begin(REPAIR)
    assert (answer.granted, answer.detail) == (False, f": the only permit is in use ({named})")
    store.now += 602
    assert node.begin(REPAIR).granted


def test_a_holder_that_names_no_node_is_not_looked_up(store: Store) -> None:
    """Its path would be that of the list of all Nodes."""
    store.size(3)
    taken = later(store, -300)
    term = {"acquireTime": taken, "renewTime": taken, "leaseDurationSeconds": 600}
    put_permit(store, 0, holderIdentity="person", **term)
    assert not Node(store, "a", RULES).begin(REPAIR).granted
    assert not [path for _, path in store.requests if path.startswith("/api/v1/nodes")]


def test_a_retry_frees_what_a_thief_has_dated_ahead_for_a_day(store: Store) -> None:
    """The policies cannot read a clock. Whoever took over from a node that is gone is at work."""
    store.size(3)
    day = {"leaseDurationSeconds": 86_400, "acquireTime": later(store, 3 * 3600)}
    put_permit(store, 0, holderIdentity="x/uid-x", renewTime=later(store, 3 * 3600), **day)
    put_permit(store, 1, holderIdentity="y/uid-y", renewTime=later(store, RULES.hold_seconds - 5), **day)
    assert [each.lease for each in to_retry(see(store), RULES, 3)] == ["permit-0"]
    assert [permit.node for permit in see(store).permits] == ["x", "y"]


def test_a_retry_deletes_permits_of_numbers_that_no_node_may_use(store: Store) -> None:
    """Each node reads all of them. One that is in use stays."""
    store.size(3)
    for index in range(5):
        put_permit(store, index, renewTime=later(store, -300), leaseDurationSeconds=1)
    put_permit(store, 3, holderIdentity="x/u", renewTime=later(store, 0), leaseDurationSeconds=800)
    assert [each.lease for each in to_retry(see(store), RULES, 3)] == ["permit-1", "permit-2", "permit-4"]


def test_who_takes_over_a_permit_lets_its_term_begin_when_the_other_ends(store: Store) -> None:
    """Also where the other's Node is gone: the API server refuses an earlier time."""
    store.size(3)
    put_permit(store, 0, holderIdentity="gone/uid", renewTime=later(store, -200), leaseDurationSeconds=814)
    a, b, _ = trio(store)
    assert a.begin(REPAIR).granted
    assert spec_of(store, 0) | {"renewTime": later(store, 614)} == spec_of(store, 0)
    a.end(work=REPAIR)
    assert spec_of(store, 0)["renewTime"] == later(store, 614)
    assert not b.begin(REPAIR).granted
    store.now += 620
    assert b.begin(REPAIR).granted


def test_a_node_that_holds_several_permits_loses_all_but_one_by_a_retry(store: Store) -> None:
    store.size(3)
    for index in range(3):
        put_permit(store, index, holderIdentity="x/u", renewTime=later(store, 0), leaseDurationSeconds=800)
    assert [each.lease for each in to_retry(see(store), RULES, 3)] == ["permit-1", "permit-2"]


def test_no_node_begins_by_a_size_that_another_one_made_up(store: Store) -> None:
    store.size(3)
    a, b, _ = trio(store)
    assert a.begin(REPAIR).granted
    says = build_size(FleetSize(DAEMONSET, 100_000, at=store.now))
    store.objects[THE_FLEET]["metadata"]["annotations"] |= says
    assert not b.begin(REPAIR).granted
    left = json.loads(store.objects[THE_FLEET]["metadata"]["annotations"][SIZE])
    assert left["nodes"] == 3


def test_a_made_up_size_trips_no_breaker_later(store: Store) -> None:
    store.size(200)
    rules = anywhere(replace(RULES, max_failures="1%"))
    nodes = [Node(store, name, rules) for name in "abc"]
    for node in nodes[:2]:
        assert node.begin().granted
        node.end(ok=False)
    says = build_size(FleetSize(DAEMONSET, 100_000, at=store.now))
    store.objects[THE_FLEET]["metadata"]["annotations"] |= says
    assert not nodes[2].begin(NEW).granted


def test_a_made_up_queue_lets_nobody_wait_for_days(store: Store) -> None:
    store.size(3)
    a, b, _ = trio(store)
    a.begin(REPAIR)
    says = build_size(FleetSize(DAEMONSET, 3, waiting=(1 << 20) - 1, at=store.now))
    store.objects[THE_FLEET]["metadata"]["annotations"] |= says
    assert b.begin(REPAIR).wait <= 4 * 3600
