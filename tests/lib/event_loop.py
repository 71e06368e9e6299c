"""A main loop that runs until something is so, and what it was told."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from installer.daemon.watch import Child, EventLoop
from installer.model.daemon import Job

SOON = 60.0


class Scene:
    """A loop that runs until something is so. `failures` are what callbacks have raised."""

    def __init__(self) -> None:
        self.failures: list[Exception] = []
        self.loop = EventLoop(self.failures.append)
        self.told = 0
        self.lines: list[str] = []
        self.ends: list[int] = []

    def changed(self) -> None:
        self.told += 1

    def until(self, reached: Callable[[], bool], seconds: float = SOON) -> bool:
        deadline = time.monotonic() + seconds

        def look() -> None:
            if reached() or time.monotonic() > deadline:
                self.loop.quit()
            else:
                self.loop.after(0.005, look)

        self.loop.after(0.0, look)
        self.loop.run()
        return reached()

    def rest(self, seconds: float = 0.3) -> None:
        self.until(lambda: False, seconds)

    def hears(self) -> bool:
        """Whether anything is reported from now on, and then nothing more."""
        heard = self.until(lambda: self.told > 0)
        self.rest()
        self.told = 0
        return heard

    def hears_nothing(self) -> bool:
        self.rest()
        return self.told == 0

    def start(self, code: str, deadline: float = 60.0, grace: float = 60.0) -> Child:
        argv = (sys.executable, "-c", f"import os, signal, sys, time\n{code}")
        return self.loop.start(Job(argv, self.lines.append, self.ends.append, deadline, grace))

    def ended(self) -> bool:
        return bool(self.ends)
