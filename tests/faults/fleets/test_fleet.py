"""What fits into a test run of `hack/faults fleet`."""

from __future__ import annotations

import pytest

from tests.faults.fleets.scenarios import SCENARIOS, play


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_fleet_stays_alive_and_gets_there(name: str) -> None:
    assert play(SCENARIOS[name], 20, 1) == []
