"""The last lines of a unit's journal, for messages: read with the host's own journalctl, which knows
the host's journal format. A message about a failure must not fail itself: errors are returned as a line.
"""

from __future__ import annotations

from pathlib import Path

from installer.host.run import run

_SECONDS = 5.0


class HostJournal:
    """The Journal port, through chroot(8)."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def tail(self, unit: str, lines: int = 30) -> tuple[str, ...]:
        journalctl = ("journalctl", "--no-pager", "-q", "-o", "short-iso", "-u", unit, "-n", str(lines))
        finished = run(("chroot", str(self._root), *journalctl), _SECONDS)
        return finished.lines if finished.code == 0 else (f"[{finished.failure}]",)
