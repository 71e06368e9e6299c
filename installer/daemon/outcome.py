"""The lines of a pass: its events, and its result, which it states whole after each change and at its end.

The last one counts, so a pass that is killed has said what it did until then.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from installer.daemon.transient import UNKNOWN_END
from installer.model.event import Emit, Event
from installer.model.jsontext import from_json, to_json
from installer.model.result import BEGUN, RunResult

_KIND = "pass.outcome"


def result_event(result: RunResult) -> Event:
    """Return the line of a pass that states its result so far."""
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
            event = from_json(Event, text)
            if event.kind == _KIND:
                self._result = from_json(RunResult, str(event.data.get("outcome")))
        except ValueError:
            if text.strip():
                self._emit(Event("child.output", text))
            return
        if event.kind == _KIND:
            if not self._result.ended:
                self._changed()
        elif event.kind != "converged" or event.data.get("changed"):  # else the daemon's state says it, once
            self._emit(event)

    def end(self, code: int, failure: str = "") -> RunResult:
        """Its process has ended with this exit code. `failure` is why we ended it, or could not start it."""
        said = self._result
        code = said.code if said.ended and code == UNKNOWN_END else code
        seconds = round(time.monotonic() - self._started, 3)
        return replace(said, code=code, ended=True, reason=said.reason or failure, seconds=seconds)
