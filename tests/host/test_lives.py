"""R2, R3, R4, R6, R12: whatever is done to a node and in whatever order, kubelet lives and we can go."""

from collections.abc import Iterator

import pytest

from tests.faults.hosts.life import Life
from tests.faults.hosts.lives import live

AMOUNT = 6
STEPS = 8


@pytest.fixture
def life() -> Iterator[Life]:
    found = Life()
    yield found
    found.close()


def test_random_lives_of_a_node(life: Life) -> None:
    live(life, AMOUNT, STEPS)
