"""R7, R8, R9: the system misbehaves; each run ends in time, says why, and leaves what the table names.

Here without the rare ones; `hack/faults misbehave` plays them all.
"""

from collections.abc import Iterator

import pytest

from tests.faults.hosts.cases import GROUPS
from tests.faults.hosts.misbehave import Theatre
from tests.faults.hosts.misfortune import Case

PLAYED = [(group, case) for group, cases in GROUPS.items() for case in cases if not case.rare]


@pytest.fixture(scope="module")
def theatre() -> Iterator[Theatre]:
    with Theatre() as found:
        yield found


@pytest.mark.parametrize(("group", "case"), PLAYED, ids=[f"{group}: {case.name}" for group, case in PLAYED])
def test_the_system_misbehaves(theatre: Theatre, group: str, case: Case) -> None:
    assert not theatre.stage(group).play(case)
