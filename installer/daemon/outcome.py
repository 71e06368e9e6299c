"""What a pass reports to the daemon: one value, which the pass states itself, whole each time.

It is one of the pass's events. The pass states it whenever it has changed something, and when it ends. The
last one counts, so a pass that is killed has said what it did until then.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from installer.daemon.configuration import Configuration
from installer.daemon.transient import UNKNOWN_END
from installer.errors import InstallerError, KubeletKeptError
from installer.model.daemon import Installed
from installer.model.event import KUBELET_RESTART, Emit, Event, truncate
from installer.model.fleet import PlannedWork
from installer.model.jsontext import camel, from_json, to_json

_KIND = "pass.outcome"
_REASON_BYTES = 700  # an Event has room for 1024, and for what the phase says around it
_KEPT = KubeletKeptError.exit_code
_TOUCHED_NOTHING = (0, 2, _KEPT, 4, 75)  # or has come to its end


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a pass ended; before its end, how far it has come."""

    code: int  # the exit code
    changed: bool = False
    remembered: bool = False  # the failure is not tried again until an input changes
    rolled_back: bool = False
    restarts: int = 0  # of kubelet
    would_restart: bool = False  # the pass would have restarted kubelet, which it may not
    reason: str = ""
    seconds: float = 0.0
    installed: Installed | None = None  # None: the pass does not know
    fleet_generation: str = ""  # that was to be installed, if it is known
    planned: PlannedWork | None = None  # work that the pass has left undone for lack of a permit
    remarks: str = ""  # what a person should know about a converged host, and what to do
    configuration: Configuration | None = None  # of the settings that it has read
    ended: bool = True

    @property
    def is_blocked(self) -> bool:
        """Whether it ended before it touched anything, because of what it may not do."""
        return self.would_restart or self.planned is not None

    @property
    def touched(self) -> bool:
        """Whether it has changed something and not come to its end."""
        return self.code not in _TOUCHED_NOTHING and (
            self.rolled_back or self.remembered or self.restarts > 0
        )


_BEGUN = Outcome(-1, ended=False)


class PassReporter:
    """In the pass: hands events on to `emit`, and states to `machine` what they amount to."""

    def __init__(self, emit: Emit, machine: Emit) -> None:
        self._emit, self._machine = emit, machine
        self._outcome = _BEGUN

    def __call__(self, event: Event) -> None:
        kind, data, outcome = event.kind, event.data, self._outcome
        self._emit(event)
        if kind == "converged":
            self._outcome = replace(
                outcome,
                changed=bool(data["changed"]),
                installed=_installed(data),
                fleet_generation=str(data["fleetGeneration"]),
                remarks=str(data["remarks"]),
            )
        elif kind == "good.repaired":
            self._outcome = replace(outcome, changed=True)
        elif kind == "planned":
            self._outcome = replace(outcome, planned=from_json(PlannedWork, to_json(data)))
        elif kind in ("rollback.started", KUBELET_RESTART, "step.done"):
            restarts = outcome.restarts + (kind == KUBELET_RESTART)
            rolled_back = outcome.rolled_back or kind == "rollback.started"
            self._outcome = replace(outcome, restarts=restarts, rolled_back=rolled_back)
            self._state()

    def configured(self, configuration: Configuration) -> None:
        """The settings have been read, and that was all."""
        self._outcome = replace(self._outcome, configuration=configuration)
        self.ended(0)

    def planned(self, code: int, pending: str, error: InstallerError | None) -> None:
        """A plan has ended; `pending` says what it would do."""
        self._outcome = replace(self._outcome, reason=f"pending: {pending}" if pending and not error else "")
        self.ended(code, error)

    def ended(self, code: int, error: InstallerError | None = None) -> None:
        """The pass ends with this exit code; `error` is why it failed or has to wait."""
        outcome = replace(self._outcome, code=code, ended=True)
        if error is not None:
            kept = code == _KEPT and (outcome.planned is None or outcome.planned.restarts_kubelet)
            outcome = replace(
                outcome,
                would_restart=kept,
                remembered=bool(getattr(error, "remembered", False)),
                reason=_cause(error),
                installed=None if error.installed is None else _installed(error.installed),
                fleet_generation=error.fleet_generation,
            )
        self._outcome = outcome if code == _KEPT else replace(outcome, planned=None)
        self._state()

    def _state(self) -> None:
        self._machine(Event(_KIND, "", {"outcome": to_json(self._outcome)}))


class PassReader:
    """In the daemon: the lines of one pass. Its events go to `emit`; `changed` is called whenever it has
    changed something on the host."""

    def __init__(self, emit: Emit, changed: Callable[[], None]) -> None:
        self._emit, self._changed = emit, changed
        self._started = time.monotonic()
        self._outcome = _BEGUN

    def line(self, text: str) -> None:
        """Take one line of its output: its outcome so far, an event, or something unforeseen."""
        try:
            found = json.loads(text)
            kind, message, data = found["kind"], found["message"], found["data"]
            if kind == _KIND:
                self._outcome = from_json(Outcome, data["outcome"])
        except (ValueError, LookupError, TypeError):
            if text.strip():
                self._emit(Event("child.output", text))
            return
        if kind == _KIND:
            if not self._outcome.ended:
                self._changed()
        elif kind != "converged" or data.get("changed"):  # else the daemon's state says it, once
            self._emit(Event(kind, message, data))

    def end(self, code: int, failure: str = "") -> Outcome:
        """Its process has ended with this exit code. `failure` is why we ended it, or could not start it."""
        said = self._outcome
        code = said.code if said.ended and code == UNKNOWN_END else code
        seconds = round(time.monotonic() - self._started, 3)
        return replace(said, code=code, ended=True, reason=said.reason or failure, seconds=seconds)


def _installed(said: Mapping[str, object]) -> Installed:
    return Installed(*(str(said.get(camel(each.name), "")) for each in fields(Installed)))


def _cause(error: InstallerError) -> str:
    """Return every fault of the error, as far as there is room; else its first line, which has the cause."""
    faults = error.faults or error.message.splitlines()[:1]
    return listed([" ".join(fault.split()) for fault in faults], _REASON_BYTES)


def listed(texts: Sequence[str], limit: int) -> str:
    """Return as many of the texts, the most important first, as fit into `limit` bytes, and how many more
    there are. Of the first one it has at least the beginning."""
    kept, size = list[str](), 0
    for text in texts:
        size += len(text.encode("utf-8", "replace")) + len("; ")
        if kept and size > limit:
            break
        kept.append(text)
    more = len(texts) - len(kept)
    return truncate("; ".join(kept), limit) + (f" (and {more} more)" if more else "")
