"""Says which keys are due, and when: each once, however often it was added, and to one thread at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from installer.gardener.mirror import backoff

K = TypeVar("K")

_FIRST = 0.05  # seconds: usually another writer was quicker, and the watch is about to bring its change


class WorkQueue(Generic[K]):
    """`clock` is in seconds and only moves on."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due: dict[K, float] = {}
        self._taken: set[K] = set()
        self._failures: dict[K, int] = {}
        self._changed = threading.Condition()
        self._closed = False

    def add(self, key: K, seconds: float = 0.0) -> None:
        """Make the key due in `seconds`, or earlier if it was due earlier."""
        with self._changed:
            when = self._clock() + seconds
            self._due[key] = min(when, self._due.get(key, when))
            self._changed.notify()

    def take(self, wait: bool = True) -> K | None:
        """Wait for the key that is due first. Returns None when the queue is closed, and without `wait`
        where no key is due. The taker calls `done`."""
        with self._changed:
            while not self._closed:
                free = [(when, key) for key, when in self._due.items() if key not in self._taken]
                when, key = min(free, key=lambda each: each[0]) if free else (float("inf"), None)
                left = when - self._clock()
                if key is not None and left <= 0:
                    del self._due[key]
                    self._taken.add(key)
                    return key
                if not wait:
                    return None
                self._changed.wait(None if key is None else left)
            return None

    def done(self, key: K, failed: bool = False) -> None:
        """Release the key. After a failure it is due again, later each time."""
        with self._changed:
            self._taken.discard(key)
            if not failed:
                self._failures.pop(key, None)
                self._changed.notify()
                return
            self._failures[key] = self._failures.get(key, 0) + 1
            self.add(key, backoff(self._failures[key], _FIRST))

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
