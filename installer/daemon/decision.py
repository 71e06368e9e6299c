"""What the policy can decide: an action, why, and when to look again."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Action(StrEnum):
    NOTHING = ""
    INSTALL = "install"
    REMOVE = "remove"
    PLAN = "plan"
    RESTART_PROXY = "restart-proxy"
    RESCUE = "rescue"  # hold, and kubelet back to its base endpoint
    HOLD = "hold"
    STOP = "stop"  # the child gets SIGTERM, which ends it between two steps, and after a grace SIGKILL


@dataclass(frozen=True, slots=True)
class Decision:
    """`wake`: the latest time of the next look; `due`: from when on that has to be a full look, because
    there may be something to do. Both on the clock of `now`. `grace` belongs to STOP: seconds until
    SIGKILL, 0 where the child's own bound counts."""

    action: Action
    why: str = ""
    wake: float = 0.0
    due: float = 0.0
    grace: float = 0.0
