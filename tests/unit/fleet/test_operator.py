"""What an operator sees of a rollout, and does with it."""

from __future__ import annotations

from typing import Any

from installer.cluster.leases import breaker_name, read_permits
from installer.model.fleet import FleetRules
from installer.operator.rollout_view import Released, build_pause, build_resume, build_rollout, to_retry
from tests.lib.fleet_bench import (
    DAEMONSET,
    LEASES,
    NAMESPACE,
    NEW,
    RULES,
    THE_FLEET,
    Store,
    trio,
)
from tests.lib.throwaway.apiserver import merge

THE_BREAKER = f"{LEASES}/{breaker_name(NEW.generation)}"


def see(store: Store, rules: FleetRules = RULES) -> Any:
    leases = [found for path, found in store.objects.items() if path.startswith(f"{LEASES}/")]
    return build_rollout(store.objects[DAEMONSET], leases, rules, store.now)


def test_a_rollout_is_seen_paused_resumed_and_retried(store: Store) -> None:
    store.size(3, 2)
    a, b, _ = trio(store)
    a.begin()
    seen = see(store)
    assert [permit.node for permit in seen.permits] == ["a"]
    assert (seen.nodes, seen.waiting, seen.limit, seen.paused) == (3, 2, 1, None)
    assert [each.at_work for each in seen.generations] == [("a",)]
    store.put(THE_FLEET, merge(store.objects[THE_FLEET], build_pause("lunch")))
    assert see(store).paused == "lunch"
    assert not b.begin().granted
    store.put(THE_FLEET, merge(store.objects[THE_FLEET], build_resume()))
    assert see(store).paused is None
    a.end(ok=False)
    assert see(store).generations[0].stopped
    assert to_retry(see(store)) == (Released("breaker-one", "one", ("a",)),)
    del store.objects[THE_BREAKER]
    assert b.begin().granted


def test_leases_of_others_are_passed_over() -> None:
    assert read_permits([{"metadata": {"name": "permit-x"}}, {"metadata": {"name": "other"}}, None]) == ()
    assert NAMESPACE.endswith("-rollout")
