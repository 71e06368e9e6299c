"""R2, R3, R4, R6, R12: whatever is done to a node and in whatever order, kubelet lives and we can go."""

from pathlib import Path

import pytest

from tests.faults.hosts import takeovers
from tests.faults.hosts.life import Life
from tests.faults.hosts.lives import live
from tests.lib.rules import rule

pytestmark = pytest.mark.long

AMOUNT = 2
STEPS = 8


@rule("R6", "R7", "R8", "R12")
@pytest.mark.parametrize("number", [1, 2])
def test_random_lives_of_a_node_of_another_installer(tmp_path: Path, number: int) -> None:
    tried = takeovers.live_share(tmp_path, number)
    assert not tried.bad, "\n".join(tried.bad)


@rule("R2", "R3", "R4", "R6", "R12")
@pytest.mark.parametrize("flavour", ["gardener-set", "quoted"])
def test_random_lives_of_a_node(tmp_path: Path, flavour: str) -> None:
    life = Life(tmp_path, flavour)
    try:
        live(life, AMOUNT, STEPS)
    finally:
        life.close()
