"""One child of the daemon: its words passed on to the log, and what they amount to."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from installer.daemon.decision import Action
from installer.errors import KubeletKeptError
from installer.model.event import ERROR, KUBELET_RESTART, WAITING, Emit, Event
from installer.model.fleet import PlannedWork

_OUTPUT_LIMIT = 1 << 22  # characters of a plan
_REASON_BYTES = 700  # an Event has room for 1024, and for what the phase says around it
_KEPT = KubeletKeptError.exit_code
_INSTALLED = {
    "generation": "generation",
    "payload_version": "payloadVersion",
    "policy": "policy",
    "policy_source": "policySource",
}
_TOUCHED_NOTHING = (0, 2, _KEPT, 4, 75)  # or has come to its end


@dataclass(frozen=True, slots=True)
class ChildOutcome:
    """How a child ended. `remembered`: the failure is not to be tried again until an input changes.
    `restarts`: those of kubelet. `would_restart`: a plan with a restart of kubelet. `generation` and
    `payload_version`, `policy` and `policy_source` are of what is installed, where the pass `tells` of it;
    `fleet_generation` is what was asked for, if that is known. `planned` is what the pass has left undone,
    because it has to be asked for. `unplaced`: which containers the policy does not
    serve on a host that is converged, and what to do."""

    code: int
    changed: bool = False
    remembered: bool = False
    rolled_back: bool = False
    restarts: int = 0
    would_restart: bool = False
    reason: str = ""
    seconds: float = 0.0
    generation: str = ""
    payload_version: str = ""
    policy: str = ""
    policy_source: str = ""
    fleet_generation: str = ""
    planned: PlannedWork | None = None
    tells: bool = False
    unplaced: str = ""

    @property
    def touched(self) -> bool:
        """Whether it has changed something and not come to its end."""
        return self.code not in _TOUCHED_NOTHING and (
            self.rolled_back or self.remembered or self.restarts > 0
        )


class ChildRun:
    """`moved` is called whenever it has changed something on the host."""

    def __init__(self, action: Action, kubelet_unit: str, emit: Emit, moved: Callable[[], None]) -> None:
        self.action = action
        self._emit, self._moved = emit, moved
        self._unit = kubelet_unit
        self._started = time.monotonic()
        self._changed = False
        self._restarts = 0
        self._rolled_back = False
        self._converged: dict[str, Any] = {}
        self._error: dict[str, Any] = {}
        self._planned_work: PlannedWork | None = None
        self._plan = ""

    def line(self, text: str) -> None:
        """One line of its output: an event, a piece of a plan, or something unforeseen."""
        if self.action is Action.PLAN and len(self._plan) < _OUTPUT_LIMIT:
            self._plan += text + "\n"
            return
        self._event(text)

    def _event(self, text: str) -> None:
        try:
            found = json.loads(text)
            kind, message, data = found["kind"], found["message"], found["data"]
        except (ValueError, LookupError, TypeError):
            if text.strip():
                self._emit(Event("child.output", text))
            return
        if kind == "converged":
            self._changed, self._converged = bool(data.get("changed")), data
            if not self._changed:
                return  # the state says it once; a resync need not repeat it
        elif kind == "good.repaired":
            self._changed = True
        elif kind == "planned":
            self._planned_work = PlannedWork(**data)
        elif kind in (ERROR, WAITING):
            self._error = {**data, "message": message}
        elif kind == "rollback.started":
            self._rolled_back = True
            self._moved()
        elif kind in (KUBELET_RESTART, "step.done"):
            self._restarts += kind == KUBELET_RESTART
            self._moved()
        self._emit(Event(kind, message, data))

    def outcome(self, code: int, failure: str = "") -> ChildOutcome:
        """When it has ended. `failure` is why we ended it, or could not start it."""
        planned = self._planned_work if code == _KEPT else None
        kept = code == _KEPT and (planned is None or planned.restarts_kubelet)
        would_restart, reason = self._planned() if self.action is Action.PLAN else (kept, "")
        return ChildOutcome(
            code,
            changed=self._changed,
            remembered=bool(self._error.get("remembered")),
            rolled_back=self._rolled_back,
            restarts=self._restarts,
            would_restart=would_restart,
            reason=reason or self._cause() or failure,
            seconds=round(time.monotonic() - self._started, 3),
            fleet_generation=str((self._converged or self._error).get("fleetGeneration", "")),
            planned=planned,
            unplaced=str(self._converged.get("unplaced", "")),
            **self._installed(),
        )

    def _installed(self) -> dict[str, Any]:
        """What is installed, by the last word of the pass."""
        found = self._converged or self._error.get("installed")
        if not isinstance(found, dict):
            return {}
        return {"tells": True} | {name: str(found.get(key, "")) for name, key in _INSTALLED.items()}

    def _cause(self) -> str:
        """Every fault that the error tells of, as far as there is room; else its first line, which has the
        cause."""
        faults = self._error.get("faults") or str(self._error.get("message", "")).splitlines()[:1]
        return listed([" ".join(str(fault).split()) for fault in faults], _REASON_BYTES)

    def _planned(self) -> tuple[bool, str]:
        """Whether the plan restarts kubelet, and its summary."""
        try:
            plan = json.loads(self._plan)
            steps = [(step["kind"], step["target"]) for step in plan["steps"]]
            self._error = plan["error"] or {}
        except (ValueError, LookupError, TypeError):
            for text in self._plan.splitlines():
                self._event(text)
            return False, ""
        reason = f"pending: {plan['summary']}" if steps else ""
        return ("restart", self._unit) in steps, "" if self._error else reason


def listed(texts: Sequence[str], limit: int) -> str:
    """As many of the texts, the most important first, as fit into `limit` bytes, and how many more there are.
    Of the first one at least its beginning."""
    kept, size = list[str](), 0
    for text in texts:
        size += len(text.encode("utf-8", "replace")) + len("; ")
        if kept and size > limit:
            break
        kept.append(text)
    first = "; ".join(kept).encode("utf-8", "replace")
    more = len(texts) - len(kept)
    cut = first if len(first) <= limit else first[: limit - 3] + b"..."
    return cut.decode("utf-8", "ignore") + (f" (and {more} more)" if more else "")
