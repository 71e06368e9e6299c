"""What a node says of itself: which Events, in which words, and what its Node is to say. Pure.

`node_word.py` makes the objects of the Node; a child writes them (`child.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import installer
from installer.cluster.node_word import Statement
from installer.model.daemon import DaemonState, Phase
from installer.model.instant import plain_time
from installer.model.names import Mode

EVENTS = {
    Phase.CONVERGED: ("Normal", "Converged"),
    Phase.REMOVED: ("Normal", "Removed"),
    Phase.UNWELL: ("Warning", "Unwell"),
    Phase.FAILED: ("Warning", "RepairFailed"),
    Phase.REFUSED: ("Warning", "Refused"),
    Phase.HELD: ("Warning", "HoldSet"),
    Phase.LIMITED: ("Warning", "RestartLimitReached"),
    Phase.PAUSED: ("Normal", "Paused"),
    Phase.YIELDED: ("Normal", "HandedOver"),
}
"""Phase -> type and reason of the Event. A permit that is waited for has none, nor has what lasts for one
pass: a host whose every repair fails would have two events for each attempt."""

_REASONED = (Phase.FAILED, Phase.REFUSED, Phase.CONVERGED)  # another reason is another Event
_PASSING = (Phase.STARTING, Phase.WAITING)  # soon over, as a rule, and then not worth a word
MESSAGE_LIMIT = 1024  # characters; one argument of a process has at most 128 KiB (execve(2))


@dataclass(frozen=True, slots=True)
class Speech:
    """`status` is the daemon's last state, `serves` whether cri-resmgr serves the node (None: not known yet),
    `failure` the last one of this process. `told` is what the last Event was about. `warned`: by an Event,
    and not yet that it is over. `waits`: for a permit."""

    status: Mapping[str, str] = field(default_factory=dict)
    serves: bool | None = None
    failure: Mapping[str, str] = field(default_factory=dict)
    told: tuple[object, ...] = ()
    warned: bool = False
    waits: bool = False
    failing: Mapping[str, str] = field(default_factory=dict)  # until it is over
    changes: int = 0  # of this process
    changed: str = ""  # when the last one was

    @property
    def statement(self) -> Statement | None:
        return Statement(self.status, self.serves, self.failure) if self.status else None

    @property
    def lasts(self) -> bool:
        """Whether the present state is worth a word though none is due."""
        return bool(self.status) and self.status["state"] not in _PASSING

    def take(self, state: DaemonState, now: float) -> tuple[Speech, Mapping[str, Any] | None]:
        """The daemon's present state, at this time of the epoch; and the Event that is due."""
        phase, speech = state.phase, self._judge(state, now)
        speech = replace(speech, status=speech._word(state), waits=phase is Phase.WAITING)
        if phase is Phase.CONVERGING or (phase is Phase.WAITING and not self.waits):
            speech = replace(speech, told=())  # reports what comes of it, even if it is the same as before
        told = (phase, state.hold, (state.reason if phase in _REASONED else "") or policy_of(state))
        if phase not in EVENTS or told == speech.told:
            return speech, None
        kind, reason = kind_of(state)
        warns = kind == "Warning"
        good = not warns and phase in (Phase.CONVERGED, Phase.REMOVED)
        speech = replace(speech, told=told, warned=warns or (self.warned and not good))
        if good and not self.warned:
            return speech, None  # the Node and its pod say it
        return speech, {"type": kind, "reason": reason, "message": message_of(state), "time": now}

    def _judge(self, state: DaemonState, now: float) -> Speech:
        """Whether cri-resmgr serves the node, what went wrong last, and when this process has last changed
        the host. A failure that is met again and again has the time when it began."""
        phase, speech = state.phase, self
        if phase is not Phase.STARTING or state.installed.generation:  # else nothing is known yet
            speech = replace(speech, serves=state.serves)
        if state.changes > self.changes:
            speech = replace(speech, changes=state.changes, changed=plain_time(now))
        if EVENTS.get(phase, ("", ""))[0] == "Warning":
            failing = {"state": phase.value, "reason": state.reason[:MESSAGE_LIMIT]}
            if failing != self.failing:
                speech = replace(speech, failing=failing, failure={"time": plain_time(now), **failing})
        elif phase in (Phase.CONVERGED, Phase.REMOVED):
            speech = replace(speech, failing={})
        return speech

    def _word(self, state: DaemonState) -> dict[str, str]:
        left = state.phase is Phase.REMOVED and state.successor
        return {
            "version": installer.__version__,
            "state": state.phase.value,
            "reason": state.reason[:MESSAGE_LIMIT],
            "ready": str(state.serves).lower(),
            "generation": state.installed.generation,
            "wanted": state.wanted,
            "policy": state.installed.policy,
            "policySource": state.installed.policy_source,
            "hold": state.hold[:MESSAGE_LIMIT],
            "changed": self.changed,  # empty if it has not: the Node keeps what it says
        } | ({"successor": state.successor} if left else {})


def kind_of(state: DaemonState) -> tuple[str, str]:
    """Type and reason of the Event of a state whose phase has one."""
    warns = state.phase is Phase.CONVERGED and state.reason
    return ("Warning", "Unplaced") if warns else EVENTS[state.phase]


def message_of(state: DaemonState) -> str:
    """What people read in the Event."""
    words = {
        Phase.CONVERGED: f"cri-resmgr runs between kubelet and the runtime{policy_of(state)}",
        Phase.REMOVED: "cri-resmgr and all files of its installation are removed",
        Phase.PAUSED: "paused: nothing is changed on this node",
    }.get(state.phase, "")
    if state.phase is Phase.YIELDED and state.mode is Mode.INSTALL:
        words = "a newer installer has taken over this node"
    message = ": ".join(text for text in (words, state.reason) if text) or state.phase.value
    return message[:MESSAGE_LIMIT]


def policy_of(state: DaemonState) -> str:
    now = state.installed
    return f", with the policy {now.policy} from {now.policy_source}" if now.policy else ""
