"""A small fleet on a simulated clock: what it asks of the API server, and that everyone gets there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.faults.fleets.scenarios import HOUR, RULES, SCENARIOS, arrives, play
from tests.faults.fleets.sim import Nature, SimFleet


@pytest.mark.parametrize("name", ["upgrade", "mass reboot"])
def test_everyone_gets_there_and_never_too_many_at_once(name: str) -> None:
    assert play(SCENARIOS[name], 20, 1) == []


def test_at_rest_ten_thousand_nodes_would_make_fifty_requests_a_second() -> None:
    fleet = SimFleet([Nature()] * 20, RULES)
    fleet.install("one")
    fleet.run(600)
    before, begun = fleet.asked, fleet.clock.now
    fleet.run(HOUR)
    per_second = (fleet.asked - before) / (fleet.clock.now - begun) / 20
    assert per_second * 10_000 <= 50


def by_node(fleet: SimFleet, nodes: int) -> dict[str, float]:
    """The requests of one node by kind; the first ones of a generation are those of a few."""
    return {kind: round(count / nodes, 1) for kind, count in fleet.kinds.items() if count >= nodes / 10}


def test_a_node_makes_nine_requests_for_an_upgrade_whose_turn_comes_at_once() -> None:
    """docs/fleet.md says what each is for."""
    fleet = SimFleet([Nature()] * 40, replace(RULES, order="any", concurrent_restarts="100%"))
    fleet.install("one")
    fleet.run(600)
    fleet.kinds.clear()
    fleet.controller.apply("two")
    fleet.run(HOUR, "two")
    made = by_node(fleet, 40)
    taken = made.pop("POST permits", 0.0) + made.pop("PUT permit", 0.0)
    assert 1.0 <= taken <= 1.2  # sometimes two take the same one
    assert made.pop("PATCH own Lease") <= 3  # one, and those of a node at rest in the time that it took
    assert made.pop("GET Node") <= 1.5  # one, and those of a node at rest
    assert made == {
        "GET DaemonSet": 1.0,
        "GET permits": 1.0,
        "GET brake": 1.0,
        "PATCH Node": 1.0,
        "POST Event": 1.0,
        "PATCH permit": 1.0,
    }


def test_a_node_that_waits_for_its_turn_makes_five_requests_more_beside_its_further_questions() -> None:
    fleet = SimFleet([Nature()] * 200, replace(RULES, order="any", concurrent_restarts="5%"))
    fleet.controller.apply("one")
    assert not arrives(fleet, "one")
    made = by_node(fleet, 200)
    made.pop("PATCH own Lease", 0.0)  # its renewals, as at rest
    assert made.pop("GET permits") <= 5.5  # two, and further questions
    assert made.pop("GET Node") <= 2.2  # the look before each pass, and those of a node at rest
    taken = made.pop("POST permits", 0.0) + made.pop("PUT permit", 0.0)
    assert 0.9 <= taken <= 1.2
    assert made == pytest.approx(
        {
            "GET DaemonSet": 2.0,
            "POST own Lease": 1.0,
            "GET brake": 1.0,
            "PATCH Node": 3.0,
            "POST Event": 1.0,
            "PATCH permit": 1.0,
        },
        abs=0.11,
    )
