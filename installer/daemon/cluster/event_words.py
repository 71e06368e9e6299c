"""Which Events a node sends, and in which words. Pure."""

from __future__ import annotations

from installer.model.daemon import DaemonState, Phase
from installer.model.state import Mode

EVENTS = {
    Phase.WAITING: ("Normal", "WaitingForTurn"),
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
"""Phase -> type and reason of the Event. What lasts for one pass has none: a host whose every repair fails
would have two events for each attempt."""


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
