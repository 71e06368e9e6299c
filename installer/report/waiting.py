"""Shows what the program waits for now: one line that it overwrites, on a terminal only."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

from installer.report.terminal import is_screen, one_line

_WIDTH = 100  # characters: a line that the terminal wraps cannot be overwritten
_CLEAR = "\r\x1b[K"


class WaitingLine:
    """The line on `stream`. It writes nothing to a pipe or a log."""

    def __init__(self, stream: TextIO, now: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._now = now
        self._watched = is_screen(stream)
        self._message, self._began, self._shown = "", 0.0, ""

    def begin(self, message: str) -> None:
        """Show what has begun; `tick` adds how long it has taken."""
        self._message, self._began = message, self._now()
        self.show(f"  {message} ...")

    def tick(self) -> None:
        """Update the time; called now and then."""
        seconds = int(self._now() - self._began)
        if self._message and seconds:
            self.show(f"  {self._message} ... {seconds} s")

    def show(self, text: str) -> None:
        """Replace the line."""
        line = one_line(text)[:_WIDTH]
        if self._watched and line != self._shown:
            self._stream.write(f"{_CLEAR}{line}")
            self._stream.flush()
            self._shown = line

    def clear(self) -> None:
        """Remove the line."""
        self._message = ""
        if self._shown:
            self._stream.write(_CLEAR)
            self._stream.flush()
            self._shown = ""
