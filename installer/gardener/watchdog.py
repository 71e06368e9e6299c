"""Tells the probes of the controller's pod whether it is alive: each thread says by when it will report
again, and a thread that is overdue hangs. An API server that is away is no reason: every request has a
deadline, and a restart would not bring the server back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path


class Watchdog:
    """`alive` is the file whose age the probes check. `clock` is in seconds and only moves on. Every method
    may be called from any thread."""

    def __init__(self, alive: Path | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._alive, self._clock = alive, clock
        self._due: dict[str, float] = {}
        self._logged = list[str]()
        self._lock = threading.Lock()

    def expect(self, who: str, seconds: float) -> None:
        """`who` reports again within `seconds`."""
        with self._lock:
            self._due[who] = self._clock() + seconds

    def rest(self, who: str) -> None:
        """Expect nothing of `who` until it begins again."""
        with self._lock:
            self._due.pop(who, None)

    def check(self, log: Callable[[str], None] = lambda _: None) -> list[str]:
        """Touch the file, unless a thread is overdue; return the overdue threads, and log them once."""
        with self._lock:
            now = self._clock()
            overdue = sorted(who for who, due in self._due.items() if due < now)
        if overdue and overdue != self._logged:
            log(f"hangs: {', '.join(overdue)}")
        self._logged = overdue
        if self._alive is not None and not overdue:
            self._alive.touch()
        return overdue
