"""Waiting for whatever comes first: a file, a signal, a time, a child's word. One GLib main loop.

It says that something happened, never what: who is told looks again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gi.repository import GLib

from installer.host.inotify import Inotify, WatchSpec
from installer.host.run import start


class Child:
    """A process that runs beside the loop; `on_line` gets each line of its output, `on_end` its exit
    code (128 + n after signal n) when it has ended and all is read."""

    def __init__(
        self, argv: Sequence[str], on_line: Callable[[str], None], on_end: Callable[[int], None]
    ) -> None:
        self._process: Any = start(argv)
        self._on_line, self._on_end = on_line, on_end
        self._rest = b""
        self._descriptor = self._process.stdout.fileno()
        os.set_blocking(self._descriptor, False)
        self._source = GLib.io_add_watch(
            self._descriptor, GLib.PRIORITY_DEFAULT, GLib.IO_IN | GLib.IO_HUP, self._read
        )
        GLib.child_watch_add(GLib.PRIORITY_DEFAULT, self._process.pid, self._ended)

    def signal(self, number: int) -> None:
        """Sends it a signal; it may just have ended."""
        if self._process.returncode is None:
            os.kill(self._process.pid, number)

    def _read(self, *_: object) -> bool:
        try:
            chunk = os.read(self._descriptor, 65536)
        except BlockingIOError:
            return True
        if not chunk:
            self._source = 0
            return False
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            self._on_line(line.decode("utf-8", "replace"))
        return True

    def _ended(self, _pid: int, status: int) -> None:
        code = os.waitstatus_to_exitcode(status)
        self._process.returncode = code
        # What it had started may hold the pipe open: what is there now is all that counts.
        while self._source and (before := self._rest) is not None and self._read():
            if self._rest == before:
                break
        if self._source:
            GLib.source_remove(self._source)
        self._process.stdout.close()
        if self._rest:
            self._on_line(self._rest.decode("utf-8", "replace"))
        self._on_end(code if code >= 0 else 128 - code)


class EventLoop:
    """The default main loop; everything is called from inside `run`, one thing at a time."""

    def __init__(self) -> None:
        self._loop = GLib.MainLoop()
        self._inotify: Inotify | None = None
        self._changed: Callable[[], None] = lambda: None

    def run(self) -> None:
        self._loop.run()

    def quit(self) -> None:
        self._loop.quit()

    def after(self, seconds: float, call: Callable[[], None]) -> int:
        """Calls once, in `seconds`; what is returned may be handed to `cancel` until then."""

        def once() -> bool:
            call()
            return False

        source: int = GLib.timeout_add(max(1, round(seconds * 1000)), once)
        return source

    def cancel(self, timer: int) -> None:
        GLib.source_remove(timer)

    def on_signal(self, number: int, call: Callable[[], None]) -> None:
        def again() -> bool:
            call()
            return True

        GLib.unix_signal_add(GLib.PRIORITY_HIGH, number, again)

    def watch(self, spots: Iterable[WatchSpec], changed: Callable[[], None]) -> None:
        """From now on exactly these are watched. Where the kernel has no more to give it is tried again with
        the next call."""
        if self._inotify is None:
            try:
                self._inotify = Inotify()
            except OSError:
                return
            GLib.io_add_watch(
                self._inotify.descriptor, GLib.PRIORITY_DEFAULT, GLib.IO_IN, self._told, self._inotify
            )
        self._changed = changed
        self._inotify.watch(spots)

    def _told(self, _descriptor: int, _condition: object, inotify: Inotify) -> bool:
        if inotify.changed():
            self._changed()
        return True
