"""A small fleet on a simulated clock: what it asks of the API server, and that everyone gets there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from installer.model.daemon import Phase
from installer.model.hold import PAUSE_ANNOTATION
from tests.faults.fleets.scenarios import HOUR, RULES, SCENARIOS, arrives, play
from tests.faults.fleets.sim import Nature, SimFleet


@pytest.mark.parametrize("name", ["upgrade", "mass reboot"])
def test_everyone_gets_there_and_never_too_many_at_once(name: str) -> None:
    assert play(SCENARIOS[name], 20, 1) == []


def test_a_node_without_a_restart_left_is_held_and_takes_no_permit() -> None:
    """Others restart its kubelet off the relay, again and again. The next installation takes it back."""
    fleet = SimFleet([Nature()] * 3, RULES)
    fleet.install("one")
    node = fleet.nodes[0]
    for _ in range(4):
        node.drift()
        fleet.run(120)
    assert "3 times within an hour" in node.hold
    assert not fleet.holders()
    fleet.run(HOUR)
    fleet.controller.apply("two")
    assert not arrives(fleet, "two")


def test_at_rest_ten_thousand_nodes_would_make_seventeen_requests_a_second() -> None:
    fleet = SimFleet([Nature()] * 20, RULES)
    fleet.install("one")
    fleet.run(600)
    before, begun = fleet.asked, fleet.clock.now
    fleet.run(HOUR)
    per_second = (fleet.asked - before) / (fleet.clock.now - begun) / 20
    assert 14 < per_second * 10_000 < 17.5


def test_a_node_at_rest_says_again_what_somebody_has_deleted_and_hears_of_a_pause() -> None:
    fleet = SimFleet([Nature()] * 2, RULES)
    fleet.install("one")
    fleet.run(600)
    node, watcher = fleet.store.objects["/api/v1/nodes/node-0"], fleet.nodes[0].watcher
    said = node["metadata"].pop("annotations")
    assert said
    fleet.run(800)
    node = fleet.store.objects["/api/v1/nodes/node-0"]
    assert node["metadata"]["annotations"] == said
    node["metadata"]["annotations"][PAUSE_ANNOTATION] = "yes"
    fleet.run(800)
    assert watcher is not None
    assert watcher.policy.state.phase is Phase.PAUSED


def by_node(fleet: SimFleet, nodes: int) -> dict[str, float]:
    """The requests of one node by kind; the first ones of a generation are those of a few."""
    return {kind: round(count / nodes, 1) for kind, count in fleet.kinds.items() if count >= nodes / 10}


def taken(made: dict[str, float]) -> float:
    """The requests that take a permit: the first time there is no Lease yet."""
    return made.pop("POST all Leases of the rollout", 0.0) + made.pop("PUT permit", 0.0)


def test_a_node_makes_six_requests_for_an_upgrade_whose_permit_comes_at_once() -> None:
    """docs/fleet.md says what each is for."""
    fleet = SimFleet([Nature()] * 40, replace(RULES, order="any", concurrent_restarts="100%"))
    fleet.install("one")
    fleet.run(600)
    fleet.kinds.clear()
    fleet.controller.apply("two")
    fleet.run(HOUR, "two")
    made = by_node(fleet, 40)
    assert 1.0 <= taken(made) <= 1.2  # sometimes two take the same one
    assert made.pop("GET Node") <= 1.5  # one, and those of a node at rest
    assert made == {
        "GET DaemonSet": 1.0,
        "GET all Leases of the rollout": 1.0,
        "PATCH Node": 1.0,
        "PATCH permit": 1.0,
    }


def test_a_first_installation_whose_permit_comes_at_once_is_six_requests() -> None:
    fleet = SimFleet([Nature()] * 40, replace(RULES, order="any", concurrent_restarts="100%"))
    fleet.controller.apply("one")
    assert not arrives(fleet, "one")
    made = by_node(fleet, 40)
    assert taken(made) <= 1.2
    assert made == {
        "GET DaemonSet": 1.0,
        "GET Node": 1.0,
        "GET all Leases of the rollout": 1.0,
        "PATCH Node": 1.0,
        "PATCH permit": 1.0,
    }


def test_a_node_that_waits_for_a_permit_says_so_and_looks_once_more_before_it_begins() -> None:
    fleet = SimFleet([Nature()] * 100, replace(RULES, order="any", concurrent_restarts="5%"))
    fleet.controller.apply("one")
    assert not arrives(fleet, "one")
    made = by_node(fleet, 100)
    assert made.pop("GET all Leases of the rollout") <= 4.0  # two or three questions
    assert made.pop("GET Node") <= 1.4  # one, and those of a node at rest
    assert 0.9 <= taken(made) <= 1.2
    wanted = {"GET DaemonSet": 1.0, "PATCH Node": 3.0, "PATCH permit": 1.0}
    assert made == pytest.approx(wanted, abs=0.15)


def test_a_node_that_stays_not_ready_after_its_work_asks_ever_more_seldom() -> None:
    """A network plugin that is down during a rollout leaves many of them."""
    fleet = SimFleet([Nature()] * 3, replace(RULES, hold_seconds=814.0))
    fleet.install("one")
    node = fleet.nodes[0]
    node.drift()
    fleet.run(8)
    path = f"/api/v1/nodes/{node.name}"
    down = {"conditions": [{"type": "Ready", "status": "False"}]}
    fleet.store.put(path, {**fleet.store.objects[path], "status": down})
    made = list[int]()
    for _ in range(2):
        before = node.asked
        fleet.run(HOUR)
        made.append(node.asked - before)
    assert made[0] <= 60
    assert made[1] <= 20  # as at rest
