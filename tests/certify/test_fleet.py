"""What fits into a test run of `hack/certify fleet`: small fleets without faults, and one kind of fault."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.certify.fleet.certify import FLEETS, certify
from tests.certify.fleet.replay import Replay

_TWO_NODES = [name for name, fleet in FLEETS.items() if fleet.nodes == 2]


@pytest.mark.parametrize("name", _TWO_NODES)
def test_two_nodes_to_which_nothing_happens_get_there_whoever_is_first(name: str) -> None:
    found, said = certify(replace(FLEETS[name], faults=0), 5_000)
    assert not said
    assert found.is_whole


@pytest.mark.parametrize("kind", ["gone", "crash"])
def test_one_fault_at_any_moment_keeps_no_node_from_getting_there(kind: str) -> None:
    found, said = certify(replace(FLEETS["canary"], faults=1, kinds=(kind,)), 20_000)
    assert not said
    assert found.is_whole


def test_the_simulator_goes_the_same_way() -> None:
    assert not Replay(FLEETS["canary"]).play(())
