"""Somebody swaps a directory for a link out of the root, as fast as they can, while we work below it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from installer.errors import UnservableHostError
from installer.host.files import RootedFiles
from tests.faults import Report
from tests.faults.disks.crash import read_tree
from tests.faults.disks.recorder import Careless

_SECRET = b"of somebody outside"
_HERE, _EXCHANGE = -100, 2  # AT_FDCWD, RENAME_EXCHANGE: renameat2(2)
_SWITCH_SECONDS = 1e-6  # how long Python lets a thread run while another one wants to


class Swapper:
    """`place` is a directory or a link to `outside`, by turns."""

    def __init__(self, place: Path, outside: Path) -> None:
        aside = place.with_name("aside")
        aside.symlink_to(outside)
        self._both = os.fsencode(place), os.fsencode(aside)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._swap, daemon=True)
        self.turns = 0

    def __enter__(self) -> Swapper:
        self._interval = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_SECONDS)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        sys.setswitchinterval(self._interval)

    def _swap(self) -> None:
        exchange = ctypes.CDLL(None, use_errno=True).renameat2
        while not self._end.is_set():
            assert exchange(_HERE, self._both[0], _HERE, self._both[1], _EXCHANGE) == 0, ctypes.get_errno()
            self.turns += 1


def try_out(directory: Path, rounds: int) -> Iterator[tuple[str, int, list[str]]]:
    """Each operation so many times, and until the directory was swapped as often: its name, how often that
    was, and what went wrong."""
    for name in _OPERATIONS:
        root, outside = directory / name / "root", directory / name / "outside"
        for place in (root / "etc/there/below", outside / "below", outside / "empty"):
            place.mkdir(parents=True)
        for file in (outside / "x", outside / "below/x"):
            file.write_bytes(_SECRET)
        (outside / "empty/.x.cri-resmgr-installer.4194305").touch()  # as a killed run would have left it
        before = read_tree(outside)
        files = RootedFiles(root, Careless())
        wrong = []
        with Swapper(root / "etc/there", outside) as swapper:
            done = 0
            while min(done, swapper.turns) < rounds:
                done += 1
                with contextlib.suppress(OSError, UnservableHostError):
                    if _OPERATIONS[name](files):
                        wrong.append(f"{name} has seen what is outside")
        if read_tree(outside) != before:
            wrong.append(f"{name} has changed what is outside")
        yield name, swapper.turns, wrong


_OWNER = (os.geteuid(), os.getegid())


def _writes(files: RootedFiles) -> bool:
    files.write("/etc/there/x", b"ours", 0o644, *_OWNER)
    files.write("/etc/there/below/x", b"ours", 0o644, *_OWNER)
    return False


def _reads(files: RootedFiles) -> bool:
    files.write("/etc/there/x", b"ours", 0o644, *_OWNER)
    return _SECRET in (files.read("/etc/there/x"), files.read("/etc/there/below/x"))


def _looks(files: RootedFiles) -> bool:
    seen = [files.state(f"/etc/there/{name}") for name in ("x", "below/x")]
    return any(state.content == _SECRET for state in seen)


def _lists(files: RootedFiles) -> bool:
    return "empty" in files.list("/etc/there")


def _links(files: RootedFiles) -> bool:
    files.link("/etc/there/x", "/nowhere", *_OWNER)
    return False


def _removes(files: RootedFiles) -> bool:
    files.remove("/etc/there/x")
    files.remove("/etc/there/below/x")
    return False


def _makes(files: RootedFiles) -> bool:
    files.make_directory("/etc/there/made/deep", 0o700)
    return files.remove_empty_directory("/etc/there/empty")


def _sweeps(files: RootedFiles) -> bool:
    files.sweep("/etc/there/empty")
    files.sweep("/etc/there/below")
    files.remove_empty_directory("/etc/there/empty")
    return False


def _fells(files: RootedFiles) -> bool:
    files.make_directory("/etc/there/below/more")
    files.remove_tree("/etc/there/below")
    return False


_OPERATIONS: dict[str, Callable[[RootedFiles], bool]] = {
    function.__name__.strip("_"): function
    for function in (_writes, _reads, _looks, _lists, _links, _removes, _makes, _sweeps, _fells)
}


def run(report: Report, amount: int) -> None:
    """So many rounds of each operation."""
    with tempfile.TemporaryDirectory(prefix="swapped-") as directory:
        for name, turns, wrong in try_out(Path(directory), amount):
            report(f"a directory swapped {turns} times, {name}", amount, wrong)
