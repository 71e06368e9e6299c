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


def test_a_turn_in_a_rollout_takes_few_requests() -> None:
    """Five, where nobody waits: the permits, the DaemonSet, the brake, its permit taken and given back."""
    fleet = SimFleet([Nature()] * 20, replace(RULES, order="any", concurrent_restarts="100%"))
    fleet.install("one")
    fleet.turns_asked = 0
    before = fleet.asked
    fleet.controller.apply("two")
    assert not arrives(fleet, "two")
    assert fleet.turns_asked / 20 <= 6  # sometimes two take the same permit
    assert (fleet.asked - before) / 20 <= 25  # with what a node says of itself in that time
