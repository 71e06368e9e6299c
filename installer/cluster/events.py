"""What a node says of itself: which Events, in which words, and what it wants its Node to say. No effects.

`node_word.py` makes the objects; a child writes them (`child.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
"""Phase -> type and reason of the Event. A turn that is waited for has none, nor has what lasts for one pass:
a host whose every repair fails would have two events for each attempt."""


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
    return ": ".join(text for text in (words, state.reason) if text) or state.phase.value


def policy_of(state: DaemonState) -> str:
    return f", with the policy {state.policy} from {state.policy_source}" if state.policy else ""


MESSAGE_LIMIT = 1024  # characters; one argument of a process has at most 128 KiB (execve(2))

_PASSING = (Phase.STARTING, Phase.WAITING)  # soon over, as a rule, and then not worth a word


class NodeSpeech:
    """`statement` is what the Node is to say, of `status`, `serves` and `failure`; `known` is all that it
    said of us when it was last seen, empty where that is not known. `now` is the time of the epoch."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.status: dict[str, str] = {}
        self.serves: bool | None = None
        self.failure: dict[str, str] = {}  # the last one of this process
        self.known: dict[str, Any] = {}
        self._failing: dict[str, str] = {}  # until it is over
        self._changes, self._changed_at = 0, ""  # of this process
        self._sent: dict[str, str] = {}  # the status that is being sent
        self._shown: dict[str, str] = {}  # by the annotation, as far as we know

    # -- what it is to say ----------------------------------------------------------------

    def take(self, state: DaemonState) -> None:
        """The daemon's present state."""
        self.status = {
            "version": installer.__version__,
            "state": state.phase.value,
            "reason": state.reason[:MESSAGE_LIMIT],
            "ready": str(state.serves).lower(),
            "generation": state.generation,
            "wanted": state.wanted,
            "policy": state.policy,
            "policySource": state.policy_source,
            "hold": state.hold[:MESSAGE_LIMIT],
            "changed": self._last_change(state),
        }
        self._judge(state)

    def _last_change(self, state: DaemonState) -> str:
        """When this process has last changed the host; empty if it has not: the Node keeps what it says."""
        if state.changes > self._changes:
            self._changes, self._changed_at = state.changes, plain_time(self._now())
        return self._changed_at

    def _judge(self, state: DaemonState) -> None:
        """Whether cri-resmgr serves the node, and what went wrong last. A failure that is met again and again
        has the time when it began."""
        phase = state.phase
        if phase is not Phase.STARTING or state.generation:  # else nothing is known yet
            self.serves = state.serves
        if EVENTS.get(phase, ("", ""))[0] == "Warning":
            failing = {"state": phase.value, "reason": state.reason[:MESSAGE_LIMIT]}
            if failing != self._failing:
                self._failing, self.failure = failing, {"time": plain_time(self._now()), **failing}
        elif phase in (Phase.CONVERGED, Phase.REMOVED):
            self._failing = {}

    # -- what it says ---------------------------------------------------------------------

    @property
    def differs(self) -> bool:
        """Whether the Node says anything else than what it is to say."""
        return bool(self.status) and self.status != self._shown

    @property
    def shows_state(self) -> bool:
        return bool(self.status) and self.status["state"] == self._shown.get("state")

    @property
    def lasts(self) -> bool:
        """Whether the present state is worth a word though none is due."""
        return bool(self.status) and (self.status["state"] not in _PASSING or self.shows_state)

    def shows(self, phase: Phase) -> bool:
        return self._shown.get("state") == phase

    @property
    def statement(self) -> Statement | None:
        return Statement(self.status, self.serves, self.failure) if self.status else None

    def sending(self, says: Statement | None) -> None:
        """The Node is about to be told this."""
        self._sent = dict(says.status) if says else {}

    def heard(self, said: Mapping[str, Any] | None, *, told: bool | None) -> None:
        """An answer has come: what the Node says of us, None if it was not seen; and whether what was sent
        has come through, None if the Node was not to be told anything."""
        self.known = dict(said) if said else self.known
        if told is not None:
            self._shown, self.known = (self._sent, self.known) if told else ({}, {})
