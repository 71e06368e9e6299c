"""What the policy answers with, what it is told of an action's end, and what is pure beside it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from installer.daemon.poller import PollSnapshot, Token

SHORT_SILENCE = 2.0  # seconds: a restart of the proxy; not yet worth a word


class Action(StrEnum):
    NOTHING = ""
    INSTALL = "install"
    REMOVE = "remove"
    PLAN = "plan"
    RESTART_PROXY = "restart-proxy"
    RESCUE = "rescue"  # hold, and kubelet back to its base endpoint
    HOLD = "hold"
    STOP = "stop"  # the child is asked to end between two steps


@dataclass(frozen=True, slots=True)
class Decision:
    """`wake`: when to look again at the latest; `due`: from when on that has to be a full look, because
    something is to be done then. Both on the clock of `now`."""

    action: Action
    why: str = ""
    wake: float = 0.0
    due: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a child ended. `remembered`: the failure is not to be tried again until an input changes.
    `restarts`: those of kubelet. `would_restart`: a plan with a restart of kubelet. `generation` and
    `payload_version` are told by a pass that converged."""

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


def complaint(snapshot: PollSnapshot, silent: float) -> str:
    """What is not well with what should be running; empty if all is. `silent`: seconds of the relay."""
    for unit in (snapshot.proxy, snapshot.kubelet):
        if not unit.running and not (unit is snapshot.proxy and silent < SHORT_SILENCE):
            return f"{unit.name} is {unit.active_state}"
    if silent >= SHORT_SILENCE:
        return "the relay does not answer" + ("" if snapshot.runtime else ", nor does the runtime")
    return "" if snapshot.on_relay else "kubelet runs on its base endpoint"


def proxy_is_coming(snapshot: PollSnapshot) -> bool:
    """Systemd tries again by itself, or a rescue will: a pass now would blame the good generation."""
    trying = snapshot.proxy.active_state in ("activating", "deactivating")
    return trying or (snapshot.proxy.running and not snapshot.relay)


def everything(snapshot: PollSnapshot) -> Token:
    return (snapshot.inputs, snapshot.files, snapshot.units)


def refusable(snapshot: PollSnapshot) -> Token:
    """What of all that preflight may refuse: when somebody has put it right, nobody should have to wait."""
    proxy, kubelet = snapshot.proxy, snapshot.kubelet
    return (
        snapshot.files,
        (proxy.load_state, proxy.drop_in_paths),
        (kubelet.load_state, kubelet.active_state == "inactive", kubelet.need_daemon_reload),
    )
