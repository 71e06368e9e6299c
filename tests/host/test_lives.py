"""R2, R3, R4, R6, R12: whatever is done to a node and in whatever order, kubelet lives and we can go."""

from pathlib import Path

import pytest

from tests.faults.hosts.life import Life
from tests.faults.hosts.lives import live
from tests.rules import rule

AMOUNT = 2
STEPS = 8


@rule("R2", "R3", "R4", "R6", "R12")
@pytest.mark.parametrize("flavour", ["gardener-set", "quoted"])
def test_random_lives_of_a_node(tmp_path: Path, flavour: str) -> None:
    life = Life(tmp_path, flavour)
    try:
        live(life, AMOUNT, STEPS)
    finally:
        life.close()
