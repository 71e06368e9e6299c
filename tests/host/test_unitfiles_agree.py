"""What we read from kubelet's unit files is what systemd has read, and what we repeat of them is the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.unitfiles import Laboratory
from tests.throwaway.host import ThrowawayHost

UNITS = 400  # as systemd would not load more than half of what is tried, some hundred are compared
FILES = 120


@pytest.fixture
def laboratory(host: ThrowawayHost) -> Iterator[Laboratory]:
    laboratory = Laboratory(host, seed=20240102)
    yield laboratory
    laboratory.close()


def test_what_we_read_agrees_with_systemd(laboratory: Laboratory) -> None:
    wrong = laboratory.try_units(UNITS)
    assert not wrong, "\n".join(wrong)
    assert laboratory.tried > UNITS // 4
    assert laboratory.repeated > UNITS // 10
    wrong = laboratory.try_environments(FILES)
    assert not wrong, "\n".join(wrong)
