"""What a node does with its turn: it uses its permit or gives it back, and tells how its work ended."""

from __future__ import annotations

import pytest

from installer.model.fleet import PlannedWork
from tests.faults.fleets.sim import Clock, SimStore
from tests.turns_bench import ONE, TurnsOfANode

OTHER = PlannedWork("other", begins=True)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> SimStore:
    store = SimStore(clock)
    store.size(3)
    return store


@pytest.fixture
def node(store: SimStore, clock: Clock) -> TurnsOfANode:
    node = TurnsOfANode(store, clock, "node")
    node.sees()
    return node


# -- a permit that is not used -------------------------------------------------------------------


def test_a_turn_that_is_not_used_is_given_back_and_others_come_first(
    node: TurnsOfANode, store: SimStore, clock: Clock
) -> None:
    node.gets_turn()
    other = TurnsOfANode(store, clock, "other")
    other.sees()
    other.wants = OTHER
    for _ in range(20):
        node.goes_on(5)
        other.goes_on(5)
    assert store.holders() == ["other/uid-other"]
    assert other.granted == OTHER


def test_a_node_that_stands_alone_asks_for_its_unused_turn_again(node: TurnsOfANode) -> None:
    node.gets_turn()
    node.goes_on(60)
    assert not node.granted
    node.goes_on(60)
    assert node.granted == ONE


@pytest.mark.parametrize("ready", [True, False])
def test_work_that_never_began_gives_its_permit_back_at_once(
    node: TurnsOfANode, store: SimStore, ready: bool
) -> None:
    node.sees(ready=ready)
    node.gets_turn()
    node.wants = None
    node.goes_on()
    assert not store.holders()


def test_a_permit_that_was_used_waits_until_the_node_is_ready(node: TurnsOfANode, store: SimStore) -> None:
    node.gets_turn()
    node.works()
    assert store.holders()
    assert node.turns.awaits_node
    node.sees()
    node.goes_on()
    assert not store.holders()


def test_while_a_freeze_stops_its_next_work_a_node_gives_its_permit_back(
    node: TurnsOfANode, store: SimStore
) -> None:
    node.gets_turn()
    node.works()
    store.freeze("a Friday")
    node.wants = OTHER
    node.goes_on()
    assert node.turns.turn().why == "the rollout is frozen: a Friday"
    assert store.holders()
    node.sees()
    node.goes_on()
    assert not store.holders()
