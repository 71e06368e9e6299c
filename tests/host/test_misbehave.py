"""R7, R8, R9, R12: the system misbehaves; each run ends in time, says why, and leaves what the table names.

Here without the rare ones, and a few with a reboot; `hack/faults misbehave` plays them all, with each.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.faults.hosts.misfortunes.case import Case, Reboot
from tests.faults.hosts.misfortunes.stage import Stage
from tests.faults.hosts.misfortunes.table import GROUPS
from tests.host.node import BINARY
from tests.lib.rules import rule

pytestmark = pytest.mark.long

REBOOTED = (
    ("disk", f"{BINARY} is immutable, install", Reboot.AFTERWARDS),
    ("bus", "the bus daemon is frozen in the middle of a job", Reboot.MEANWHILE),
)
PLAYED = [
    (group, case, reboot)
    for group, cases in GROUPS.items()
    for case in cases
    for reboot in Reboot
    if (not case.rare and reboot is Reboot.NEVER) or (group, case.name, reboot) in REBOOTED
]


class Theatre:
    """Has one stage at a time: cases that belong together come one after the other."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._group = ""
        self._open = ExitStack()

    def stage(self, group: str) -> Stage:
        """The host of that group; the one before it ends."""
        if group != self._group:
            self.close()
            scratch = self._scratch / group
            scratch.mkdir()
            self._stage = self._open.enter_context(Stage(scratch, group))
            self._group = group
        return self._stage

    def close(self) -> None:
        self._open.close()


@pytest.fixture(scope="module")
def theatre(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Theatre]:
    found = Theatre(tmp_path_factory.mktemp("theatre"))
    yield found
    found.close()


@rule("R7", "R8", "R9", "R12")
@pytest.mark.parametrize(
    ("group", "case", "reboot"), PLAYED, ids=[f"{group}: {case.name}, {how}" for group, case, how in PLAYED]
)
def test_the_system_misbehaves(theatre: Theatre, group: str, case: Case, reboot: Reboot) -> None:
    assert not theatre.stage(group).play(case, reboot, 0.8)
