"""The host's journal: what units log, and entries of our own.

The host's own journalctl reads it, since it knows the host's journal format. Entries are written with
journald's native protocol (https://systemd.io/JOURNAL_NATIVE_PROTOCOL). A report of a failure must not fail
itself: an error is returned as a line, or as no lines.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import time
from collections.abc import Callable, Iterable, Mapping

from installer.errors import InstallerError, UnservableHostError
from installer.host.command import KEPT_BYTES, Finished, run
from installer.host.files import RootedFiles
from installer.host.ports import JournalEntries
from installer.model.event import truncate
from installer.model.jsontext import parse_object

_SECONDS = 5.0
_SYNC_SECONDS = 1.0  # kubelet may hang on the relay meanwhile
_SYNC_POLL = 0.01  # seconds
_WRITE_SECONDS = 1.0
_FIELD_BYTES = 16 << 10  # an entry of ours has ten fields, and a datagram takes about 200 kB
_ENTRIES_BYTES = 16 << 20  # an entry of ours has about 2 kB
_SOCKET = "/run/systemd/journal/socket"
_CURSOR = "-- cursor: "
# SIGRTMIN+1 asks journald to sync, after it has read everything that is queued. journald then writes the time
# to the file (systemd-journald.service(8); journald-server.c of systemd 236 - 257).
_JOURNALD = "systemd-journald.service"
_SYNCED = "/run/systemd/journal/synced"


class HostJournal:
    """The Journal port, through chroot(8) and journald's socket. `kill` signals the main process of a
    unit."""

    def __init__(self, files: RootedFiles, kill: Callable[[str, int], None]) -> None:
        self._files, self._kill = files, kill

    def tail(self, unit: str, lines: int = 30) -> tuple[str, ...]:
        finished = self._journalctl("-o", "short-iso", "-u", unit, "-n", str(lines))
        return finished.lines if finished.code == 0 else (f"[{finished.failure}]",)

    def sync(self) -> None:
        """Not with `journalctl --sync`: journald answers only processes in its own PID namespace."""
        deadline = time.monotonic() + _SYNC_SECONDS
        with contextlib.suppress(OSError, InstallerError):
            before = self._files.read(_SYNCED)
            self._kill(_JOURNALD, signal.SIGRTMIN + 1)
            while self._files.read(_SYNCED) == before and time.monotonic() < deadline:
                time.sleep(_SYNC_POLL)

    def cursor(self) -> str:
        finished = self._journalctl("-o", "cat", "-n", "1", "--show-cursor")
        found = [line.removeprefix(_CURSOR) for line in finished.lines if line.startswith(_CURSOR)]
        return found[-1] if finished.code == 0 and found else ""

    def since(self, unit: str, cursor: str) -> tuple[str, ...]:
        if not cursor:
            return ()
        finished = self._journalctl("-o", "cat", "-u", unit, f"--after-cursor={cursor}")
        return finished.lines if finished.code == 0 else ()

    def entries(self, matches: tuple[str, ...], count: int) -> JournalEntries:
        finished = self._journalctl("-o", "json", "--all", "-n", str(count), *matches, keep=_ENTRIES_BYTES)
        if finished.code != 0:
            return JournalEntries((), finished.failure)
        return JournalEntries(tuple(_parse(finished.output.split("\n"))))  # text may have U+2028

    def write(self, fields: Mapping[str, str]) -> None:
        message = b"".join(
            _field(name, truncate(value, _FIELD_BYTES)) for name, value in fields.items() if value
        )
        with (
            contextlib.suppress(OSError, UnservableHostError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journald,
            self._files.opened(_SOCKET) as place,
        ):
            journald.settimeout(_WRITE_SECONDS)
            journald.sendto(message, str(place))

    def _journalctl(self, *words: str, keep: int = KEPT_BYTES) -> Finished:
        root = str(self._files.root)
        return run(("chroot", root, "journalctl", "--no-pager", "-q", *words), _SECONDS, keep=keep)


def _field(name: str, value: str) -> bytes:
    raw = value.encode()
    if b"\n" not in raw:
        return name.encode() + b"=" + raw + b"\n"
    return name.encode() + b"\n" + len(raw).to_bytes(8, "little") + raw + b"\n"


def _parse(lines: Iterable[str]) -> Iterable[dict[str, str]]:
    """Fields that are not text are left out: journalctl prints them as a list, or as null if very long."""
    for line in lines:
        if fields := parse_object(line):  # else a message of journalctl itself, about a damaged journal file
            yield {name: value for name, value in fields.items() if isinstance(value, str)}
