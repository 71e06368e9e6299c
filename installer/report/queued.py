"""A log that a process writes without waiting for it."""

from __future__ import annotations

import contextlib
from queue import Full, Queue
from threading import Thread
from typing import Any, TextIO

_MOST = 200  # texts
_LAST_SECONDS = 2.0


class QueuedStream:
    """For a process that must not wait for its reader: a thread writes to `stream`. If that takes nothing for
    long, as a log on a disk that hangs, what no longer fits into the queue is lost. If no thread can be
    started, the texts wait for the next one."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._queue = stream, Queue[str | None](_MOST)
        self._thread = Thread()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._put(text)
        return len(text)

    def flush(self) -> None:
        """The thread does that."""

    def finish(self) -> None:
        """Wait for a moment until all is written."""
        self._put(None)
        if self._thread.is_alive():
            self._thread.join(_LAST_SECONDS)

    def _put(self, text: str | None) -> None:
        with contextlib.suppress(Full):
            self._queue.put_nowait(text)
        if not self._thread.is_alive():
            self._thread = Thread(target=self._write_on, name="log", daemon=True)
            with contextlib.suppress(RuntimeError):
                self._thread.start()

    def _write_on(self) -> None:
        while (text := self._queue.get()) is not None:
            with contextlib.suppress(OSError, ValueError):  # it takes nothing, or not this text
                self._stream.write(text)
                self._stream.flush()
