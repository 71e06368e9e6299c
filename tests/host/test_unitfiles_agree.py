"""What we read from kubelet's unit files is what systemd has read, and what we repeat of them is the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from installer.errors import UnservableHostError
from installer.host.files import RootedFiles
from installer.host.systemd import BusSystemd
from tests.faults.inputs.unitfiles import Laboratory
from tests.lib.throwaway.host import ThrowawayHost

pytestmark = pytest.mark.long

UNITS = 400  # as systemd would not load more than half of what is tried, some hundred are compared
FILES = 120


@pytest.fixture(scope="module")
def host() -> Iterator[ThrowawayHost]:
    """One for both."""
    with ThrowawayHost() as booted:
        yield booted


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
    wrong = laboratory.try_environments(FILES) + laboratory.try_patterns(FILES)
    assert not wrong, "\n".join(wrong)


def test_what_systemd_cannot_say_is_refused_in_words(host: ThrowawayHost) -> None:
    (host.root / "run/systemd/system/bytes.service").write_text("[Service]\nExecStart=/bin/true \\xe9\n")
    systemd = BusSystemd(RootedFiles(host.root))
    systemd.daemon_reload(timeout=60)
    with pytest.raises(UnservableHostError, match=r"what bytes\.service runs: .* not UTF-8"):
        systemd.detail("bytes.service")
    systemd.close()
