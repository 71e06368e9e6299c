"""What units say in the journal: read with the host's own journalctl, which knows the host's journal format.

A message about a failure must not fail itself: errors are returned as a line, or as no lines.
"""

from __future__ import annotations

from pathlib import Path

from installer.host.run import Finished, run

_SECONDS = 5.0
_CURSOR = "-- cursor: "


class HostJournal:
    """The Journal port, through chroot(8)."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def tail(self, unit: str, lines: int = 30) -> tuple[str, ...]:
        finished = self._journalctl("-o", "short-iso", "-u", unit, "-n", str(lines))
        return finished.lines if finished.code == 0 else (f"[{finished.failure}]",)

    def cursor(self) -> str:
        finished = self._journalctl("-o", "cat", "-n", "1", "--show-cursor")
        found = [line.removeprefix(_CURSOR) for line in finished.lines if line.startswith(_CURSOR)]
        return found[-1] if finished.code == 0 and found else ""

    def since(self, unit: str, cursor: str) -> tuple[str, ...]:
        if not cursor:
            return ()
        finished = self._journalctl("-o", "cat", "-u", unit, f"--after-cursor={cursor}")
        return finished.lines if finished.code == 0 else ()

    def _journalctl(self, *words: str) -> Finished:
        return run(("chroot", str(self._root), "journalctl", "--no-pager", "-q", *words), _SECONDS)
