"""Whether the controller is alive, for the probes of its pod: each of its threads says by when it will be
heard of again, and one that is overdue hangs. An API server that is away is no reason: every request has a
deadline, and a restart would not bring it back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path


class Pulses:
    """`alive` is the file whose age the probes look at. `clock` is in seconds and only moves on. All methods
    may be called from any thread."""

    def __init__(self, alive: Path | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._alive, self._clock = alive, clock
        self._due: dict[str, float] = {}
        self._said = list[str]()
        self._lock = threading.Lock()

    def expect(self, who: str, seconds: float) -> None:
        """`who` is heard of again within `seconds`."""
        with self._lock:
            self._due[who] = self._clock() + seconds

    def rest(self, who: str) -> None:
        """Nothing is expected of `who` until it begins again."""
        with self._lock:
            self._due.pop(who, None)

    def show(self, log: Callable[[str], None] = lambda _: None) -> list[str]:
        """Touches the file, unless a thread is overdue; returns which, and logs it once."""
        with self._lock:
            now = self._clock()
            overdue = sorted(who for who, due in self._due.items() if due < now)
        if overdue and overdue != self._said:
            log(f"hangs: {', '.join(overdue)}")
        self._said = overdue
        if self._alive is not None and not overdue:
            self._alive.touch()
        return overdue
