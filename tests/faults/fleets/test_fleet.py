"""What fits into a test run of `hack/faults fleet`."""

from __future__ import annotations

import pytest

from tests.faults.fleets.scenarios import SCENARIOS, play, random_schedule


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_fleet_stays_alive_and_gets_there(name: str) -> None:
    assert play(SCENARIOS[name], 20, 1) == []


@pytest.mark.parametrize("seed", range(2))
def test_whatever_happens_in_any_order(seed: int) -> None:
    assert play(random_schedule, 20, seed) == []
