"""Patterns mean the files that glob(3) finds for systemd, but below the host root."""

from __future__ import annotations

from pathlib import Path

import pytest

from installer.host.files import RootedFiles
from installer.host.kubelet_files import matching

NAMES = ("a.env", "b.env", "10.env", "2.env", ".hidden.env", "[x]", "d/a.env", "é.env")


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("a.env", "a.env"),
        ("none", ""),
        ("none*", ""),
        ("*.env", "10.env 2.env a.env b.env é.env"),
        ("?.env", "2.env a.env b.env"),
        ("??.env", "10.env é.env"),  # a character is a byte
        (".*", ".hidden.env"),
        ("[ab].env", "a.env b.env"),
        ("[!a-z]*.env", "10.env 2.env é.env"),
        ("[^a-z]*.env", "10.env 2.env é.env"),
        (r"\.*", ".hidden.env"),
        ("[[]x]", "[x]"),
        (r"\[x\]", "[x]"),
        ("[", ""),
        ("*/a.env", "d/a.env"),
        ("{a,b}.env", ""),
    ],
)
def test_a_pattern(tmp_path: Path, pattern: str, found: str) -> None:
    for name in NAMES:
        place = tmp_path / "etc" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    expected = tuple(f"/etc/{name}" for name in found.split())
    assert matching(RootedFiles(tmp_path), f"/etc/{pattern}") == expected


def test_a_pattern_leads_below_the_root_only(tmp_path: Path) -> None:
    (tmp_path / "root/etc").mkdir(parents=True)
    (tmp_path / "x.env").touch()
    (tmp_path / "root/out").symlink_to(tmp_path)
    assert matching(RootedFiles(tmp_path / "root"), "/out/*.env") == ()
