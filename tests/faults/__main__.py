"""`python -m tests.faults`: the whole of power loss, a line for each plan."""

from __future__ import annotations

import sys
import time

from tests.faults import power


def _say(what: str, tried: int, bad: int) -> None:
    figures = f": {tried} disks tried, {bad} bad" if tried else ""
    sys.stdout.write(f"{what}{figures} ({time.monotonic() - _STARTED:.0f} s)\n")
    sys.stdout.flush()


_STARTED = time.monotonic()
sys.exit(1 if power.run(_say, int(sys.argv[1]) if len(sys.argv) > 1 else None) else 0)
