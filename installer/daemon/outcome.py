"""The lines of a pass: its events, and its result, which it states whole after each change and at its end.

The last one counts, so a pass that is killed has said what it did until then.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace

from installer.daemon.transient import UNKNOWN_END
from installer.model.event import Emit, Event
from installer.model.jsontext import from_json, to_json
from installer.model.result import BEGUN, RunResult

_KIND = "pass.outcome"


def result_event(result: RunResult) -> Event:
    """In the pass."""
    return Event(_KIND, "", {"outcome": to_json(result)})


class PassReader:
    """In the daemon: the lines of one pass. Its events go to `emit`; `changed` is called whenever it has
    changed something on the host."""

    def __init__(self, emit: Emit, changed: Callable[[], None]) -> None:
        self._emit, self._changed = emit, changed
        self._started = time.monotonic()
        self._result = BEGUN

    def line(self, text: str) -> None:
        """Take one line of its output: its result so far, an event, or something unforeseen."""
        try:
            found = json.loads(text)
            kind, message, data = found["kind"], found["message"], found["data"]
            if kind == _KIND:
                self._result = from_json(RunResult, data["outcome"])
        except (ValueError, LookupError, TypeError):
            if text.strip():
                self._emit(Event("child.output", text))
            return
        if kind == _KIND:
            if not self._result.ended:
                self._changed()
        elif kind != "converged" or data.get("changed"):  # else the daemon's state says it, once
            self._emit(Event(kind, message, data))

    def end(self, code: int, failure: str = "") -> RunResult:
        """Its process has ended with this exit code. `failure` is why we ended it, or could not start it."""
        said = self._result
        code = said.code if said.ended and code == UNKNOWN_END else code
        seconds = round(time.monotonic() - self._started, 3)
        return replace(said, code=code, ended=True, reason=said.reason or failure, seconds=seconds)
