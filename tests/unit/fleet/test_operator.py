"""What an operator sees of a rollout, and does with it."""

from __future__ import annotations

from typing import Any

import pytest

from installer.cluster.leases import breaker_name, read_permits
from installer.model.fleet import FleetRules
from installer.model.names import Mode
from installer.operator.inventory import Installed
from installer.operator.rollout import build_pause, rules_of
from installer.operator.rollout_view import Released, RolloutLeases, build_rollout, read_leases, to_retry
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


def see(store: Store) -> RolloutLeases:
    leases: list[Any] = [found for path, found in store.objects.items() if path.startswith(f"{LEASES}/")]
    return read_leases(leases, store.now, RULES)


def test_a_rollout_is_seen_paused_resumed_and_retried(store: Store) -> None:
    store.size(3, 2)
    a, b, _ = trio(store)
    a.begin()
    seen = build_rollout(
        Installed("ours", "installer", "installer", Mode.INSTALL, "image:1", store.objects[DAEMONSET]),
        see(store),
        RULES,
        (),
    )
    assert [node for node, _ in seen.permits] == ["a"]
    assert (seen.nodes, seen.waiting, seen.limit, seen.paused) == (3, 2, 1, None)
    assert [(each.canaries, each.succeeded) for each in seen.generations] == [(("a",), ())]
    store.put(THE_FLEET, merge(store.objects[THE_FLEET], build_pause("lunch")))
    assert see(store).paused == "lunch"
    assert not b.begin().granted
    store.put(THE_FLEET, merge(store.objects[THE_FLEET], build_pause(None)))
    assert see(store).paused is None
    a.end(ok=False)
    assert to_retry(see(store), RULES, 3) == (Released("breaker-one", "one", ("a",)),)
    del store.objects[THE_BREAKER]
    assert b.begin().granted


def test_leases_of_others_are_passed_over() -> None:
    assert read_permits([{"metadata": {"name": "permit-x"}}, {"metadata": {"name": "other"}}, None]) == ()
    assert NAMESPACE.endswith("-rollout")


@pytest.mark.parametrize(
    "given",
    [{"soakSeconds": "5m"}, {"concurrentRestarts": "2.5%"}, {"maxFailures": None}, {"order": []}, "fast"],
)
def test_rules_that_no_node_follows_are_the_defaults(given: object) -> None:
    """The nodes report the fault; `report` and `rollout` have to show it."""
    assert rules_of({"rollout": given}) == FleetRules()


def test_rules_are_read_as_nodes_read_them() -> None:
    given = {"concurrentRestarts": 5, "maxFailures": "2%", "order": "any", "soakSeconds": 60}
    assert rules_of({"rollout": given}) == FleetRules("5", "2%", "any", 60.0)
