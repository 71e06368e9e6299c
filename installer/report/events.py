"""Reports events and errors as they happen: each as a line of text, or of JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TextIO

from installer.errors import InstallerError, InvalidInputError, RolledBackError
from installer.model.event import ERROR, KUBELET_RESTART, WAITING, Emit, Event
from installer.report.terminal import (
    BOLD,
    RED,
    YELLOW,
    cut,
    escape,
    one_line,
    paint,
    pick,
    read_on,
    wants_color,
)
from installer.report.waiting import WaitingLine

STEP_STARTED = "step.started"
Now = Callable[[], str]


def utc_now() -> str:
    """RFC 3339, UTC, milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class TextReporter:
    """Writes one line for each event; `verbose` adds the event's kind and data. Diagnostics are a block,
    for `verbose` only: the error that follows says what a person needs first. The start of a step goes to
    `waiting`; a restart of kubelet is also a step."""

    def __init__(self, stream: TextIO, verbose: bool = False, waiting: WaitingLine | None = None) -> None:
        self._stream = stream
        self._waiting = waiting
        self._verbose = verbose
        self._color = wants_color(stream)

    def __call__(self, event: Event) -> None:
        if event.kind == STEP_STARTED:
            if self._waiting is not None:
                self._waiting.begin(event.message)
            return
        if event.kind == KUBELET_RESTART:
            return
        if self._waiting is not None:
            self._waiting.clear()
        if event.kind == "diagnostics":
            block = json.dumps(dict(event.data), indent=2, default=str) if self._verbose else ""
            self._stream.write(f"{one_line(event.message)}\n{escape(block)}\n" if block else "")
            return
        line = one_line(event.message)
        hint = event.data.get("hint")
        if event.kind == "warning":
            line = paint("warning:", YELLOW, self._color) + " " + line
            line += f" [{code}]" if (code := event.data.get("code")) else ""
            line += f" ({one_line(str(hint))})" if hint else ""
        elif event.kind == "step.done":
            line = f"  {line}{_lasted(event.data.get('seconds'))}"
        if self._verbose:
            line += f"  [{event.kind}] {cut(json.dumps(dict(event.data), default=str))}"
        self._stream.write(line + "\n")
        self._stream.flush()


def _lasted(seconds: object) -> str:
    """Return the duration only if it was long enough to notice."""
    return f" ({seconds:.1f} s)" if isinstance(seconds, (int, float)) and seconds >= 0.1 else ""


class JsonReporter:
    """One JSON object for each event and line: {"time", "kind", "message", "data"}. Of a step only the end
    is an event."""

    def __init__(self, stream: TextIO, now: Now = utc_now) -> None:
        self._stream = stream
        self._now = now

    def __call__(self, event: Event) -> None:
        if event.kind == STEP_STARTED:
            return
        line = {"time": self._now(), "kind": event.kind, "message": event.message, "data": dict(event.data)}
        self._stream.write(json.dumps(line, default=str) + "\n")
        self._stream.flush()


def build_reporter(
    output: str,
    stream: TextIO,
    verbose: bool = False,
    waiting: WaitingLine | None = None,
    log: TextIO | None = None,
) -> Emit:
    """Return the reporter for `output`, text or json. `log` also gets each event, as JSON."""
    report = JsonReporter(stream) if output == "json" else TextReporter(stream, verbose, waiting)
    if log is None:
        return report
    also = JsonReporter(log)

    def report_both(event: Event) -> None:
        also(event)
        report(event)

    return report_both


def error_event(error: InstallerError) -> Event:
    """Return what `report_error` writes as JSON."""
    data = {"error": type(error).__name__, **pick(error, "exit_code hint faults codes")}
    if isinstance(error, RolledBackError):
        data |= {"remembered": error.remembered, "fleetGeneration": error.fleet_generation}
    return Event(WAITING if error.waits else ERROR, error.message, data)


def report_error(error: InstallerError, output: str, stream: TextIO, now: Now = utc_now) -> None:
    """Write the error, its hint, and where to read on: `error: ...`, `hint: ...` and `more: ...`, or an
    event of the kind `error` whose data are {"error": the class, "exitCode", "hint", "faults", "codes"}, and
    of a RolledBackError "remembered" and "fleetGeneration". A run that has to wait reports `waiting` instead
    of `error`."""
    event = error_event(error)
    kind = event.kind
    if output == "json":
        JsonReporter(stream, now)(event)
        return
    color = wants_color(stream)
    label = paint(f"{kind}:", YELLOW if error.waits else RED, color)
    if isinstance(error, InvalidInputError):
        text = "".join(f"{label} {one_line(fault)}\n" for fault in error.faults)
    else:
        first, *rest = escape(error.message).split("\n")
        text = f"{label} {first}\n" + "".join(f"  {line}\n" for line in rest)
    if error.hint:
        first, *rest = escape(error.hint).split("\n")
        text += f"{paint('hint:', BOLD, color)} {first}\n" + "".join(f"  {line}\n" for line in rest)
    text += f"{paint('more:', BOLD, color)} {read_on(*error.codes or (f'exit-{error.exit_code}',))}\n"
    stream.write(text)
    stream.flush()
