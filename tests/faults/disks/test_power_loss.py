"""What a power loss may leave of a disk; on nodes: `hack/certify node` and `hack/faults power`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from installer.host.files import RootedFiles
from installer.model.paths import TEMPORARY
from tests.faults.disks.crash import Disk, Tree, read_tree
from tests.faults.disks.power import PLANS, Bench, Crash, find_bad
from tests.faults.disks.recorder import Operation, Recorder, Verb
from tests.lib.rules import rule


def possible(log: Iterable[Operation], start: Tree) -> list[Tree]:
    """Every disk that may be there after a crash at the end of the log."""
    disk = Disk(start)
    for operation in log:
        disk.apply(operation)
    return list(disk.crashes())


@pytest.mark.parametrize("forgotten", ["of files", "of directories"])
def test_a_forgotten_fsync_is_found(forgotten: str, tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    recorded = bench.record(PLANS[1])
    files = {operation.place for operation in recorded.log if operation.verb is Verb.CREATE}
    log = [
        operation
        for operation in recorded.log
        if operation.verb is not Verb.SYNC or (operation.place in files) is (forgotten != "of files")
    ]
    left = (Crash(len(log), tree) for tree in possible(log, recorded.start))
    found = find_bad(bench, recorded, left)
    assert any(found), "no disk was bad"


@rule("R5")
def test_a_write_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    start = read_tree(tmp_path)
    recorder = Recorder(tmp_path)
    RootedFiles(tmp_path, recorder).write("/file", b"new content", 0o644, os.getuid(), os.getgid())
    disk = Disk(start)
    seen = set()
    for operation in recorder.log:
        disk.apply(operation)
        seen |= {tree["/file"].content for tree in disk.crashes()}
    assert seen == {b"old", b"new content"}
    assert [tree["/file"].content for tree in disk.crashes()] == [b"new content"]


def test_what_was_not_synced_is_lost_torn_or_there(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.mkdir(f"{tmp_path}/directory", 0o755)
    with recorder.create(f"{tmp_path}/directory/file") as file:
        file.write(b"1234")
    found = possible(recorder.log, {})
    contents = [tree["/directory/file"].content for tree in found if "/directory/file" in tree]
    assert set(contents) == {b"", b"12", b"\0\0\0\0", b"1234"}
    assert {} in found
    assert any(list(tree) == ["/directory"] for tree in found)


def test_changes_of_two_directories_come_in_any_order(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    for name in "ab":
        (tmp_path / name).mkdir()
    start = read_tree(tmp_path)
    for name in "ab":
        recorder.symlink("target", f"{tmp_path}/{name}/link")
    found = [sorted(path for path in tree if "link" in path) for tree in possible(recorder.log, start)]
    assert sorted(found) == [[], ["/a/link"], ["/a/link", "/b/link"], ["/b/link"]]


def test_what_a_killed_write_left_does_not_come_back(tmp_path: Path) -> None:
    (tmp_path / f".file{TEMPORARY}").touch()
    start = read_tree(tmp_path)
    recorder = Recorder(tmp_path)
    RootedFiles(tmp_path, recorder).write("/file", b"", 0o644, os.getuid(), os.getgid())
    assert [list(tree) for tree in possible(recorder.log, start)] == [["/file"]]
