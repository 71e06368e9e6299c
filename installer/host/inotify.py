"""Word of changes in directories, by inotify(7).

A watch is put on a directory that is open, and so on nothing that a link leads to meanwhile; GLib's monitors
take paths, which they find again by themselves. It says that something has changed, not what.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from installer.errors import UnservableHostError
from installer.host.chase import opened

_EVENT = struct.Struct("iIII")  # wd, mask, cookie, and the length of the name that follows
_READ_BYTES = 1 << 16
# sys/inotify.h
_OVERFLOW = 0x4000
_CHANGES = {
    "modify": 0x2,
    "attributes": 0x4,
    "close_write": 0x8,
    "moved_from": 0x40,
    "moved_to": 0x80,
    "create": 0x100,
    "delete": 0x200,
    "delete_self": 0x400,
    "move_self": 0x800,
}
_ONLY_DIRECTORIES = 0x1000000
_MASK = sum(_CHANGES.values()) | _ONLY_DIRECTORIES


@dataclass(frozen=True, slots=True)
class WatchSpec:
    """A directory below a root, and the names in it that matter; none of them: all."""

    root: Path
    directory: str
    names: frozenset[str] = frozenset()


class Inotify:
    """One instance of the kernel's. Raises OSError where there are too many already."""

    def __init__(self) -> None:
        import ctypes

        self._libc = ctypes.CDLL(None, use_errno=True)
        self.descriptor: int = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.descriptor < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        self._names: dict[int, frozenset[str]] = {}

    def watch(self, spots: Iterable[WatchSpec]) -> None:
        """From now on exactly these, as far as they are there: whoever watches looks now and then anyway."""
        found: dict[int, frozenset[str]] = {}
        for spot in spots:
            with (
                contextlib.suppress(OSError, UnservableHostError),
                opened(spot.root, spot.directory, follow=True) as (place, _status),
            ):
                watch: int = self._libc.inotify_add_watch(self.descriptor, place.encode(), _MASK)
                if watch >= 0:
                    before = found.get(watch, spot.names)
                    found[watch] = before | spot.names if before and spot.names else frozenset()
        for watch in self._names.keys() - found.keys():
            self._libc.inotify_rm_watch(self.descriptor, watch)
        self._names = found

    def changed(self) -> bool:
        """Takes what the kernel has said, and says whether anything of it matters."""
        try:
            said = os.read(self.descriptor, _READ_BYTES)
        except BlockingIOError:
            return False
        matters = False
        at = 0
        while at < len(said):
            watch, mask, _cookie, length = _EVENT.unpack_from(said, at)
            at += _EVENT.size
            name = os.fsdecode(said[at : at + length].rstrip(b"\0"))
            at += length
            matters = matters or bool(mask & _OVERFLOW) or self._matters(watch, name)
        return matters

    def _matters(self, watch: int, name: str) -> bool:
        """No name: the directory itself."""
        names = self._names.get(watch)
        return names is not None and (not names or not name or name in names)
