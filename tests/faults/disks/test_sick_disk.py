"""R7, R8: a disk may fail at any operation, here in the size of a unit test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.disks.power import PLANS, Plan
from tests.faults.disks.sick import SICKNESSES, Sickness, Ward, find_bad
from tests.lib.rules import rule

TRIED = 2  # operations of each plan


@rule("R8")
@pytest.mark.parametrize("sickness", SICKNESSES, ids=[sickness.name for sickness in SICKNESSES])
@pytest.mark.parametrize("plan", PLANS, ids=[plan.name for plan in PLANS])
def test_r8_a_sick_disk_is_named_and_blames_no_version(
    plan: Plan, sickness: Sickness, tmp_path: Path
) -> None:
    ward = Ward(tmp_path)
    tried = list(find_bad(ward, plan, sickness, amount=TRIED))
    assert tried
    assert not [why for _operation, why in tried if why]
