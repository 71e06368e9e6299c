"""The proxy's warnings and errors, for the pod's log.

The collectors of many clusters keep what pods write and drop the journals of units that they do not know.
Every two minutes the host's own journalctl reads the end of the unit's journal, beside the main loop. Nothing
waits for it, and what it adds to the log has a bound: each text once an hour, and so many in each look. So a
line that two looks read is not repeated. If the clock is set, the lines of one look may be missing.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable
from pathlib import Path

from installer.model.daemon import Job, Loop, RunningChild
from installer.model.event import Emit, Event, truncate
from installer.model.jsontext import parse_object, text_at
from installer.model.paths import PROXY_UNIT

EVERY = 120.0  # seconds between two looks: each is a process, a fifth of the CPU of a daemon at rest
MOST = 20  # events of one look
_ENTRIES = 400  # of the journal, that one look reads
_OVERLAP = 5.0  # seconds that two looks both read: journald writes a little late
_AGAIN = 3600.0  # seconds after which the same text is written again
_TEXT = 500  # bytes of a line
_DEADLINE, _GRACE = 10.0, 1.0  # seconds
_KEPT = 500  # texts that are remembered
# journald's, with which systemd itself logs the proxy's failures (syslog(3)).
_PRIORITIES = dict.fromkeys("0123", "error") | {"4": "warning"}
# cri-resmgr below journald; its libraries; the Go runtime.
_SEVERE = re.compile(r"(?:\?\?\? )?(?:([WEFP])(?:: |\d{4} )|(panic: |fatal error: ))")
_NAMES = {"W": "warning", "E": "error", "F": "fatal", "P": "fatal"}
_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+")


class ProxyLog:
    """`look` may be called at any time, and is cheap."""

    def __init__(self, loop: Loop, root: Path, emit: Emit, now: Callable[[], float] = time.monotonic) -> None:
        self._loop, self._root, self._emit, self._now = loop, root, emit, now
        self._child: RunningChild | None = None
        self._due = 0.0
        self._read_at = now() - EVERY  # what another pod may have reported already is not repeated
        self._lines: list[str] = []
        self._said: dict[str, float] = {}

    def look(self) -> None:
        """Begin to read, unless that was done a short while ago, or hangs."""
        now = self._now()
        if now < self._due or not (self._child is None or self._child.is_gone):
            return
        self._due = now + EVERY
        since = f"--since=-{now - self._read_at + _OVERLAP:.0f}s"
        words = ("journalctl", "--no-pager", "-q", "-u", PROXY_UNIT, "-r", "-n", str(_ENTRIES), since)
        job = Job(
            ("chroot", str(self._root), *words, "-o", "json", "--output-fields=MESSAGE,PRIORITY"),
            self._lines.append,
            self._ended,
            _DEADLINE,
            _GRACE,
        )
        with contextlib.suppress(OSError):  # no process can be started: others say so
            self._child = self._loop.start(job)

    def close(self) -> None:
        if self._child is not None:
            self._child.kill()

    def _ended(self, code: int) -> None:
        """A node without journald, or without journalctl, works like any other."""
        lines, self._lines = self._lines, []
        if code:
            return
        self._read_at = self._due - EVERY
        found = [severe for line in reversed(lines) if (severe := _severe(line))]
        self._report(found, missed=len(lines) >= _ENTRIES)

    def _report(self, found: list[tuple[str, str]], *, missed: bool) -> None:
        now = self._now()
        kept = {text: at for text, at in self._said.items() if now - at < _AGAIN}
        self._said = dict(list(kept.items())[-_KEPT:])
        texts: dict[str, tuple[str, str, int]] = {}
        for severity, text in found:
            key = _NUMBERS.sub("0", text)
            if key not in self._said:
                times = texts[key][2] if key in texts else 0
                texts[key] = (severity, text, times + 1)
        for key, (severity, text, times) in list(texts.items())[-MOST:]:
            self._said[key] = now
            data = {"unit": PROXY_UNIT, "severity": severity, "times": times}
            self._emit(Event("proxy.log", truncate(text, _TEXT), data))
        if (missed or len(texts) > MOST) and self._said.setdefault("", now) == now:
            message = f"some lines of {PROXY_UNIT} are left out here: `journalctl -u {PROXY_UNIT}` has all"
            self._emit(Event("proxy.log", message, {"unit": PROXY_UNIT, "severity": "warning", "times": 1}))


def _severe(line: str) -> tuple[str, str] | None:
    """The severity and the text of an entry that is worth it."""
    entry = parse_object(line)
    text = text_at(entry, "MESSAGE")  # none if it is not text, or very long
    if match := _SEVERE.match(text):
        return _NAMES[match[1]] if match[1] else "fatal", text
    severity = _PRIORITIES.get(text_at(entry, "PRIORITY"))  # any process of the unit's may say anything
    return (severity, text) if severity and text else None
