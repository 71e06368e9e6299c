"""What fits into a test run of `hack/certify fleet`: small fleets without faults, and one kind of fault."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.certify.defects import Defect, seek, why_lost
from tests.certify.fleet.certify import BOUNDS, FLEETS, certify, main, read_arguments
from tests.certify.fleet.replay import Replay
from tests.certify.fleet.seeded import SEEDED

_QUIET = [name for name, kind, _ in BOUNDS if not kind]


@pytest.mark.parametrize("name", _QUIET)
def test_nodes_to_which_nothing_happens_get_there_whoever_is_first(name: str) -> None:
    found, said = certify(replace(FLEETS[name], faults=0), 10_000)
    assert not said
    assert found.is_whole


@pytest.mark.parametrize("kind", ["gone", "crash"])
def test_one_fault_at_any_moment_keeps_no_node_from_getting_there(kind: str) -> None:
    found, said = certify(replace(FLEETS["canary"], faults=1, kinds=(kind,)), 20_000)
    assert not said
    assert found.is_whole


@pytest.mark.long
def test_what_is_enumerated_if_nothing_is_asked_for_reaches_every_branch() -> None:
    assert main(["--coverage"]) == 0


@pytest.mark.parametrize("defect", SEEDED, ids=lambda defect: defect.what)
def test_a_seeded_defect_still_has_its_place_in_the_program_and_a_fleet_to_find_it(defect: Defect) -> None:
    name, *options = defect.options.split()
    assert name == "fleet"
    assert read_arguments(options).names
    assert not why_lost(defect)


@pytest.mark.long
@pytest.mark.parametrize("defect", SEEDED, ids=lambda defect: defect.what)
def test_a_seeded_defect_is_found(defect: Defect, tmp_path: Path) -> None:
    """And its schedule shows it in the simulator, too."""
    said = seek(defect, tmp_path)
    assert "wrong: " in said
    assert "the certificate is wrong" not in said


def test_the_simulator_goes_the_same_way() -> None:
    assert not Replay(FLEETS["canary"]).play(())
