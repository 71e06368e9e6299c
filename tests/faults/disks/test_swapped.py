"""Paths do not lead out of the host root, also when they are swapped between a look and a deed."""

from __future__ import annotations

from pathlib import Path

from tests.faults.disks import swapped
from tests.lib.rules import rule

ROUNDS = 100  # of each operation


@rule("R5")
def test_a_directory_that_is_swapped_for_a_link_leads_nobody_out(tmp_path: Path) -> None:
    for name, _turns, wrong in swapped.try_out(tmp_path, ROUNDS):
        assert not wrong, name
