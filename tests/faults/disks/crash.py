"""Every tree that a disk may have after the power went, given what was done to it before.

What POSIX promises is little: the content and mode of a file are there after an fsync of the file, a
name after an fsync of its directory, in any order among themselves; a rename is whole or has not
happened. What is not yet promised may also be there. (fsync(2); rename in POSIX.1-2017.)

A tree here is a value; nothing is on a disk until `build` puts it there.
"""

from __future__ import annotations

import os
import random
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

from tests.faults.disks.recorder import Operation, Verb, lasting_name

_ALL_SUBSETS = 8  # pending operations
_RANDOM_SUBSETS = 64
_SEED = 20240102


@dataclass(frozen=True, slots=True)
class Entry:
    """One path of a tree: a directory has neither content nor target."""

    kind: str  # "d", "f" or "l"
    mode: int
    content: bytes = b""
    target: str = ""


Tree = dict[str, Entry]
"""By path below the root, which itself is left out."""


def read_tree(root: Path, without: Sequence[str] = ()) -> Tree:
    """What is below `root`, but for the directories `without` (as `/run`) and all below."""
    tree: Tree = {}
    pending = [""]
    while pending:
        directory = pending.pop()
        with os.scandir(f"{root}{directory}") as entries:
            for entry in entries:
                path = lasting_name(f"{directory}/{entry.name}")
                if path in without:
                    continue
                mode = stat.S_IMODE(entry.stat(follow_symlinks=False).st_mode)
                if entry.is_symlink():
                    tree[path] = Entry("l", 0, target=os.readlink(entry.path))
                elif entry.is_dir():
                    tree[path] = Entry("d", mode)
                    pending.append(path)
                else:
                    tree[path] = Entry("f", mode, Path(entry.path).read_bytes())
    return tree


def build(tree: Tree, root: Path) -> None:
    """Makes the tree in the empty directory `root`."""
    for path in sorted(tree):
        entry, place = tree[path], f"{root}{path}"
        if entry.kind == "l":
            os.symlink(entry.target, place)
            continue
        if entry.kind == "d":
            os.mkdir(place)
        else:
            with open(place, "wb") as file:
                file.write(entry.content)
        os.chmod(place, entry.mode)


@dataclass(slots=True)
class _Inode:
    """`content` and `mode` are those that last; the rest is what was done since."""

    kind: str
    mode: int
    content: bytes = b""
    target: str = ""
    written: bytes = b""
    chmod: int | None = None
    entries: dict[str, int] = field(default_factory=dict)  # of a directory: as a process sees it
    lasting: dict[str, int] = field(default_factory=dict)  # and as it lasts

    @property
    def unsure(self) -> bool:
        return bool(self.written) or self.chmod is not None


@dataclass(frozen=True, slots=True)
class _Pending:
    """A change of a directory's names that may be lost: name -> inode, or None where it goes."""

    directory: int
    names: tuple[tuple[str, int | None], ...]


class Disk:
    """What is sure and what is pending, after some of the operations."""

    def __init__(self, start: Tree) -> None:
        self._inodes = [_Inode("d", 0o755)]
        self._pending: list[_Pending] = []
        for path in sorted(start):
            entry = start[path]
            number = self._new(_Inode(entry.kind, entry.mode, entry.content, entry.target))
            directory, name = self._split(path)
            self._inodes[directory].entries[name] = number
            self._inodes[directory].lasting[name] = number

    def apply(self, done: Operation) -> None:
        """One more operation."""
        if done.verb is Verb.SYNC:
            self._sync(self._find(done.place))
        elif done.verb is Verb.DATA:
            self._inodes[self._find(done.place)].written += done.data
        elif done.verb is Verb.MODE:
            self._inodes[self._find(done.place)].chmod = done.mode
        elif done.verb is Verb.RENAME:
            moved = self._find(done.place)
            directory, name = self._split(done.place)
            other, new = self._split(done.target)
            assert directory == other, f"{done}: to another directory"
            self._change(directory, ((name, None), (new, moved)))
        elif done.verb in (Verb.UNLINK, Verb.RMDIR):
            directory, name = self._split(done.place)
            self._change(directory, ((name, None),))
        else:
            kind = {Verb.CREATE: "f", Verb.MKDIR: "d", Verb.SYMLINK: "l"}[done.verb]
            target = done.target if kind == "l" else ""
            directory, name = self._split(done.place)
            number = self._new(_Inode(kind, done.mode, target=target))
            self._change(directory, ((name, number),))

    def crashes(self, *, worst_only: bool = False) -> Iterator[Tree]:
        """The trees that may be there after a crash now, perhaps some of them twice. With
        `worst_only`: all is done, nothing that was not promised is, and in between."""
        pending = range(len(self._pending))
        subsets = [tuple(pending), ()] if worst_only else list(_subsets(len(pending)))
        for subset in subsets:
            done = [self._pending[index] for index in subset]
            directories = self._directories(done)
            unsure = [n for n in self._reachable(directories) if self._inodes[n].unsure]
            for fate in _fates(unsure, worst_only=worst_only):
                yield self._tree(directories, fate)

    def _new(self, inode: _Inode) -> int:
        self._inodes.append(inode)
        return len(self._inodes) - 1

    def _find(self, path: str) -> int:
        number = 0
        for name in path.split("/")[1:]:
            number = self._inodes[number].entries[name]
        return number

    def _split(self, path: str) -> tuple[int, str]:
        directory, _, name = path.rpartition("/")
        return (self._find(directory) if directory else 0), name

    def _change(self, directory: int, names: tuple[tuple[str, int | None], ...]) -> None:
        _apply(self._inodes[directory].entries, names)
        self._pending.append(_Pending(directory, names))

    def _sync(self, number: int) -> None:
        inode = self._inodes[number]
        inode.content += inode.written
        inode.written = b""
        inode.mode = inode.mode if inode.chmod is None else inode.chmod
        inode.chmod = None
        if inode.kind == "d":
            inode.lasting = dict(inode.entries)
            self._pending = [change for change in self._pending if change.directory != number]

    def _directories(self, done: Iterable[_Pending]) -> dict[int, dict[str, int]]:
        """The names in every directory where of all that is pending only `done` has happened."""
        found = {n: dict(inode.lasting) for n, inode in enumerate(self._inodes) if inode.kind == "d"}
        for change in done:
            _apply(found[change.directory], change.names)
        return found

    @staticmethod
    def _reachable(directories: dict[int, dict[str, int]]) -> Iterator[int]:
        pending = [0]
        while pending:
            number = pending.pop()
            yield number
            pending += directories.get(number, {}).values()

    def _tree(self, directories: dict[int, dict[str, int]], fate: dict[int, str]) -> Tree:
        tree: Tree = {}
        pending = [("", 0)]
        while pending:
            path, directory = pending.pop()
            for name, number in directories[directory].items():
                inode = self._inodes[number]
                below = f"{path}/{name}"
                tree[below] = _entry(inode, fate.get(number, "done"))
                if inode.kind == "d":
                    pending.append((below, number))
        return tree


def _apply(names: dict[str, int], change: tuple[tuple[str, int | None], ...]) -> None:
    for name, number in change:
        if number is None:
            names.pop(name, None)
        else:
            names[name] = number


def _entry(inode: _Inode, fate: str) -> Entry:
    mode, content = inode.mode, inode.content
    if fate == "torn":
        content += inode.written[: len(inode.written) // 2]
    elif fate == "zeros":
        content += bytes(len(inode.written))
    elif fate != "lost":
        content += inode.written
    if fate == "done" and inode.chmod is not None:
        mode = inode.chmod
    return Entry(inode.kind, 0 if inode.kind == "l" else mode, content, inode.target)


def _fates(unsure: Sequence[int], *, worst_only: bool) -> Iterator[dict[int, str]]:
    """What becomes of content and modes that were not synced: all alike, and each one otherwise."""
    yield dict.fromkeys(unsure, "done")
    for fate in ("lost", "torn") if worst_only else ("lost", "torn", "zeros", "without its mode"):
        if unsure:
            yield dict.fromkeys(unsure, fate)
        if len(unsure) > 1 and not worst_only:
            for one in unsure:
                yield {**dict.fromkeys(unsure, "done"), one: fate}


def _subsets(count: int) -> Iterator[tuple[int, ...]]:
    """Which of the pending operations have happened: all there are, or where those are too many: all,
    none, all but one, the first so many, and 64 at random."""
    every = range(count)
    if count <= _ALL_SUBSETS:
        for size in range(count, -1, -1):
            yield from combinations(every, size)
        return
    yield tuple(every)
    for one in every:
        yield tuple(index for index in every if index != one)
    for size in every:
        yield tuple(range(size))
    choose = random.Random(_SEED)
    for _time in range(_RANDOM_SUBSETS):
        yield tuple(index for index in every if choose.random() < 0.5)
