"""What a pass in a service of its own reports to `run`: a file below /run, a line of JSON for each event.

It is a file, and neither a pipe nor a socket: whatever happens to its reader, the pass neither blocks nor
ends, and a daemon that comes back reads all of it. The daemon writes the first line: what has begun.

Best effort: if it cannot be written, the pass works all the same, and systemd knows how it ended.
"""

from __future__ import annotations

import contextlib
import os
from typing import TextIO

from installer.errors import InstallerError
from installer.host.ports import Files
from installer.host.runtime_directory import make_runtime_directory
from installer.model.jsontext import parse_object, text_at, to_json
from installer.model.paths import PASS_LOG

_CHUNK = 1 << 16


def begin_pass_log(files: Files, action: str) -> PassLogReader:
    """Begin a new log, which replaces an earlier one without disturbing its reader or writer."""
    with contextlib.suppress(InstallerError, OSError):
        make_runtime_directory(files)
        files.write(PASS_LOG, to_json({"action": action}).encode() + b"\n", 0o600)
    return PassLogReader(files)


def open_pass_log(files: Files) -> TextIO:
    """Open it for the pass to append its lines. If the daemon could not create it, they are dropped."""
    try:
        with files.opened(PASS_LOG) as place:
            return open(os.open(place, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC), "w", encoding="utf-8")
    except (InstallerError, OSError):
        return open(os.devnull, "w", encoding="utf-8")


class PassLogReader:
    """Reads it from the beginning, while it grows. A removal deletes the file with its directory; what is
    written from then on is still read. `action` is empty if there is no file. `has_lines`: the pass has
    written a line that was read."""

    def __init__(self, files: Files) -> None:
        self._files, self._descriptor, self._rest = files, -1, b""
        with contextlib.suppress(InstallerError, OSError), files.opened(PASS_LOG) as place:
            self._descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
        self._lines = self._read()
        self.action = text_at(parse_object(self._lines.pop(0)), "action") if self._lines else ""
        self.has_lines = bool(self._lines)

    def lines(self) -> list[str]:
        """Return the complete lines that were added since the last call."""
        found, self._lines = self._lines + self._read(), []
        self.has_lines = self.has_lines or bool(found)
        return found

    def forget(self) -> None:
        """Its pass has been accounted for: delete the file, unless it is another pass's by now. This ends the
        reader."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor < 0:
            return
        with contextlib.suppress(InstallerError, OSError):
            there = self._files.status(PASS_LOG)
            if there is not None and os.path.samestat(there, os.fstat(descriptor)):
                self._files.remove(PASS_LOG)
        os.close(descriptor)

    def _read(self) -> list[str]:
        found = self._rest
        with contextlib.suppress(OSError):
            while self._descriptor >= 0 and (chunk := os.read(self._descriptor, _CHUNK)):
                found += chunk
        *lines, self._rest = found.split(b"\n")
        return [line.decode("utf-8", "replace") for line in lines]
