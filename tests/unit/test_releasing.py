"""Releases: what says the version of a release, and what keeps one from being made."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hack.releasing import CHANGES, CHARTS, PROGRAM, VERSION, faults, make, prepare
from installer import __version__

TOP = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in (PROGRAM, CHANGES, *CHARTS):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(TOP / name, tmp_path / name)
    return tmp_path


def test_a_prepared_checkout_says_its_version_everywhere(checkout: Path) -> None:
    assert len(faults(checkout, "9.8.7")) == 4
    prepare(checkout, "9.8.7", "2026-11-24")
    assert faults(checkout, "9.8.7") == []
    changes = (checkout / CHANGES).read_text()
    before, _, after = changes.partition("## [9.8.7] - 2026-11-24\n")
    assert before.rstrip().endswith("## [Unreleased]")
    assert after.lstrip().startswith("### Highlights")


def test_a_version_without_changes_is_none(checkout: Path) -> None:
    prepare(checkout, "9.8.7", "2026-11-24")
    with pytest.raises(ValueError, match="nothing stands below"):
        prepare(checkout, "9.8.8", "2026-11-25")


def test_what_an_earlier_release_has_left_is_not_mixed_in(tmp_path: Path) -> None:
    (tmp_path / "old.tgz").touch()
    with pytest.raises(ValueError, match=r"is not empty: old\.tgz"):
        make(tmp_path, "9.8.7", [], [])


@pytest.mark.parametrize("version", ["1.2.3", "0.10.0", "1.0.0-rc.1"])
def test_versions(version: str) -> None:
    assert VERSION.fullmatch(version)
    assert not VERSION.fullmatch(f"v{version}")
    assert VERSION.fullmatch(__version__)
