"""One child of the resident: its words passed on to the log, and what they amount to."""

from __future__ import annotations

import json
import time
from typing import Any

from installer.daemon.decision import Action, Outcome
from installer.daemon.poller import PollSnapshot
from installer.errors import KubeletKeptError
from installer.model.event import Emit, Event

_OUTPUT_LIMIT = 1 << 22  # characters of a plan
_KEPT = KubeletKeptError.exit_code
_TOUCHED_NOTHING = (0, 2, _KEPT, 4, 75)  # or told of each restart


class ChildRun:
    """`before` is what was seen when it began."""

    def __init__(self, action: Action, before: PollSnapshot, kubelet_unit: str, emit: Emit) -> None:
        self.action, self.before = action, before
        self._emit = emit
        self._restart = f"restart {kubelet_unit}"
        self._unit = kubelet_unit
        self._started = time.monotonic()
        self._changed = False
        self._restarts = 0
        self._rolled_back = False
        self._converged: dict[str, Any] = {}
        self._error: dict[str, Any] = {}
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
        except (ValueError, KeyError, TypeError):
            if text.strip():
                self._emit(Event("child.output", text))
            return
        if kind == "converged":
            self._changed, self._converged = bool(data.get("changed")), data
            if not self._changed:
                return  # said once by the state, not at each resync
        elif kind == "error":
            self._error = {**data, "message": message}
        elif kind == "rollback.started":
            self._rolled_back = True
        elif kind == "step.done" and data.get("step") == "restart" and message == self._restart:
            self._restarts += 1
        self._emit(Event(kind, message, data))

    def outcome(self, code: int, after: PollSnapshot) -> Outcome:
        """When it has ended. A restart that failed is told by nobody: kubelet's own start tells."""
        started_anew = after.kubelet.invocation_id != self.before.kubelet.invocation_id
        if code not in _TOUCHED_NOTHING and not self._restarts and started_anew:
            self._restarts = 1
        would_restart, reason = self._planned() if self.action is Action.PLAN else (code == _KEPT, "")
        return Outcome(
            code,
            changed=self._changed,
            remembered=bool(self._error.get("remembered")),
            rolled_back=self._rolled_back,
            restarts=self._restarts,
            would_restart=would_restart,
            reason=reason or str(self._error.get("message", "")).partition("\n")[0],
            seconds=round(time.monotonic() - self._started, 3),
            generation=str(self._converged.get("generation", "")),
            payload_version=str(self._converged.get("payloadVersion", "")),
        )

    def _planned(self) -> tuple[bool, str]:
        """Whether the plan restarts kubelet, and its summary."""
        try:
            plan = json.loads(self._plan)
            steps = [(step["kind"], step["target"]) for step in plan["steps"]]
        except (ValueError, KeyError, TypeError):
            for text in self._plan.splitlines():
                self._event(text)
            return False, ""
        return ("restart", self._unit) in steps, f"pending: {plan['summary']}" if steps else ""
