"""Writes down every change of a tree, in order, while it is made.

What lies on a tmpfs of a host (`/run`) does not outlive a power loss and is left out.
"""

from __future__ import annotations

import io
import os
import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

from installer.host.disk import Kernel

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

_TEMPORARY = re.compile(r"(\.cri-resmgr-installer\.)\d+$")
_NOT_ON_DISK = "/run/"


class Verb(StrEnum):
    CREATE = "create"
    DATA = "data"
    MODE = "mode"
    SYMLINK = "symlink"
    MKDIR = "mkdir"
    RENAME = "rename"
    UNLINK = "unlink"
    RMDIR = "rmdir"
    SYNC = "sync"


@dataclass(frozen=True, slots=True)
class Operation:
    """One system call on `place`, a path below the root. `mode` is what a new file or directory got,
    `data` what was written behind what is there, `target` where a link or a rename leads to."""

    verb: Verb
    place: str
    mode: int = 0
    data: bytes = b""
    target: str = ""

    def __str__(self) -> str:
        return f"{self.verb} {self.place}"


class _Note(Protocol):
    def __call__(
        self, verb: Verb, place: str, mode: int = 0, data: bytes = b"", target: str = ""
    ) -> None: ...


class Recorder(Kernel):
    """`log` has what happened below `root` so far. Owners are not recorded."""

    def __init__(self, root: Path) -> None:
        self.log: list[Operation] = []
        self._root = os.path.realpath(root)

    def create(self, place: str) -> BinaryIO:
        with super().create(place) as file:
            descriptor = os.dup(file.fileno())
        self._note(Verb.CREATE, place, _mode(place))
        return io.BufferedWriter(_Noted(descriptor, place, self._note))

    def chmod(self, place: str | int, mode: int) -> None:
        super().chmod(place, mode)
        self._note(Verb.MODE, _named(place), mode)

    def rename(self, old: str, new: str) -> None:
        super().rename(old, new)
        self._note(Verb.RENAME, old, target=self._below(new))

    def symlink(self, target: str, place: str) -> None:
        super().symlink(target, place)
        self._note(Verb.SYMLINK, place, target=target)

    def mkdir(self, place: str, mode: int) -> None:
        super().mkdir(place, mode)
        self._note(Verb.MKDIR, place, _mode(place))

    def unlink(self, place: str, directory: int | None = None) -> None:
        where = place if directory is None else f"{_named(directory)}/{place}"
        super().unlink(place, directory)
        self._note(Verb.UNLINK, where)

    def rmdir(self, place: str, directory: int | None = None) -> None:
        where = place if directory is None else f"{_named(directory)}/{place}"
        super().rmdir(place, directory)
        self._note(Verb.RMDIR, where)

    def sync(self, descriptor: int) -> None:
        """Noted only: whether the test's own disk has it does not matter."""
        self._note(Verb.SYNC, _named(descriptor))

    def _note(self, verb: Verb, place: str, mode: int = 0, data: bytes = b"", target: str = "") -> None:
        below = self._below(place)
        if not f"{below}/".startswith(_NOT_ON_DISK):
            self.log.append(Operation(verb, below, mode, data, target))

    def _below(self, place: str) -> str:
        real = os.path.realpath(os.path.dirname(place))
        below = f"{real}/{os.path.basename(place)}".removeprefix(self._root)
        assert below != place, f"{place} is not below {self._root}"
        return lasting_name(below)


class _Noted(io.FileIO):
    """A file whose every write(2) is noted."""

    def __init__(self, descriptor: int, place: str, note: _Note) -> None:
        super().__init__(descriptor, "wb")
        self._place = place
        self._note = note

    def write(self, data: Buffer, /) -> int:
        count = super().write(data)
        self._note(Verb.DATA, self._place, data=bytes(data)[:count])
        return count


class Careless(Kernel):
    """Makes every change and waits for no disk: for trees that nobody keeps."""

    def sync(self, descriptor: int) -> None:
        """Nothing."""


def lasting_name(place: str) -> str:
    """A temp file is named after its process, which does not survive: no process has the number here."""
    return _TEMPORARY.sub(r"\g<1>99999999", place)


def _named(place: str | int) -> str:
    return os.readlink(f"/proc/self/fd/{place}") if isinstance(place, int) else place


def _mode(place: str) -> int:
    return os.lstat(place).st_mode & 0o7777
