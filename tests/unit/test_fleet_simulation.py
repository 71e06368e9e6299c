"""Hundreds of nodes on a simulated clock: never more at once than permitted, and everyone gets there."""

from __future__ import annotations

import random

import pytest

from installer.host.kubeapi import Answer
from installer.model.fleet import FleetRules
from tests.fleet_bench import NEW, REPAIR, RULES, Fleet, Life, anywhere

HOUR = 3600.0


def lives(count: int, seed: int = 1, **more: object) -> list[Life]:
    """Pods that come within a minute, work of 15 to 30 s, and clocks that are an hour wrong."""
    chance = random.Random(seed)
    return [
        Life(chance.uniform(0, 60), chance.uniform(15, 30), skew=chance.choice((-HOUR, 0.0, HOUR)), **more)  # type: ignore[arg-type]
        for _ in range(count)
    ]


@pytest.mark.parametrize(("rules", "limit"), [(RULES, 3), (anywhere(concurrent_restarts="20"), 20)])
def test_everyone_gets_there_and_never_too_many_at_once(rules: FleetRules, limit: int) -> None:
    fleet = Fleet(lives(300), rules)
    fleet.run()
    assert len(fleet.done) == 300
    assert fleet.most_at_once == limit
    assert not fleet.store.holders()
    assert sum(fleet.requests.values()) / 300 < 15


def test_a_bad_generation_touches_the_canaries_only() -> None:
    fleet = Fleet([Life(life.starts, life.takes, ok=False) for life in lives(100)], RULES)
    fleet.run(until=1200)
    assert len(fleet.begun) == 1
    assert not fleet.store.holders()


@pytest.mark.parametrize("seed", range(2))
def test_a_generation_that_fails_on_some_stops_at_the_brakes_limit(seed: int) -> None:
    chance = random.Random(seed)
    bad = [Life(life.starts, life.takes, ok=chance.random() > 0.3) for life in lives(100, seed)]
    fleet = Fleet(bad, anywhere(max_failures="5", concurrent_restarts="4"), seed=seed)
    fleet.run(until=1200)
    assert 5 <= len(fleet.failed) <= 5 + 3


@pytest.mark.parametrize("seed", range(2))
def test_dead_nodes_stall_nobody(seed: int) -> None:
    chance = random.Random(seed)
    mixed = [Life(life.starts, life.takes, dies=chance.random() < 0.1) for life in lives(80, seed)]
    fleet = Fleet(mixed, anywhere(concurrent_restarts="4"), seed=seed)
    fleet.run()
    assert len(fleet.done) == sum(not life.dies for life in mixed)
    assert fleet.most_at_once <= 4


def test_an_api_server_that_is_away_for_an_hour_only_delays() -> None:
    fleet = Fleet(lives(60), anywhere(concurrent_restarts="4"), REPAIR)
    fleet.run(until=30)
    begun = len(fleet.begun)
    fleet.store.away = Answer(0, failure="no answer in time")
    fleet.run(until=HOUR)
    assert len(fleet.begun) == begun
    fleet.store.away = None
    fleet.run()
    assert len(fleet.done) == 60
    assert fleet.most_at_once <= 4
    assert not fleet.store.holders()


def test_labelled_canaries_come_first() -> None:
    labelled = [Life(life.starts, life.takes, canary=number < 2) for number, life in enumerate(lives(100))]
    fleet = Fleet(labelled, RULES, NEW)
    fleet.run()
    first = sorted(fleet.begun, key=lambda number: fleet.begun[number])
    assert min(first[:2]) < 2
    assert len(fleet.done) == 100
