"""What the policy decides and remembers of it, what a pass is ordered to do, and how long that may take."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from installer.daemon.configuration import Configuration
from installer.model.fleet import AskFirst, PlannedWork

if TYPE_CHECKING:
    from installer.node.picture import Picture

_PROXY_SLACK = 15.0  # seconds, on top of what a restart of the proxy waits itself
_GRACE = 10.0  # seconds from SIGTERM to SIGKILL for a child that changes little


class Action(StrEnum):
    NOTHING = ""
    INSTALL = "install"
    REMOVE = "remove"
    RESTART_PROXY = "restart-proxy"
    RESCUE = "rescue"  # set a hold, and take kubelet off the relay, by a restart if it cannot be moved
    HOLD = "hold"  # set a hold, and move kubelet off the relay if that takes no restart
    STOP = "stop"  # SIGTERM for the running child, which ends it between two steps; SIGKILL after a grace


@dataclass(frozen=True, slots=True)
class Order:
    """The argument of the hidden verb `pass`, as JSON. The policy has checked for a pause itself.

    `restarts_left`: how many restarts of kubelet an installation may use. `begins`: the only generation that
    it may begin; None: any. `kubelet_unit`: for a rescue while the settings are invalid."""

    action: Action
    why: str = ""
    restarts_left: int = 0
    ask_first: AskFirst = AskFirst.NOTHING
    begins: str | None = None
    kubelet_unit: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """An action and its reason. `ask_first` and `begins`: see Order.

    `wants` is the work that waits for nothing but a permit. `read_node`: what comes next depends on whether
    the node is paused, and the API server has not said so recently. `is_return`: the pass takes kubelet back
    to the relay after a rescue. `looks_closer`: the host has to be assessed anew; `has_changed`: also if that
    is being done.

    `wake` is the latest time of the next look; from `due` on that must be a full look. Both are on the
    policy's clock. `grace` belongs to STOP: seconds until SIGKILL, 0 for the child's own grace."""

    action: Action
    why: str = ""
    ask_first: AskFirst = AskFirst.NOTHING
    begins: str | None = None
    wants: PlannedWork | None = None
    read_node: bool = False
    is_return: bool = False
    looks_closer: bool = False
    has_changed: bool = False
    wake: float = 0.0
    due: float = 0.0
    grace: float = 0.0


@dataclass(frozen=True, slots=True)
class Running:
    """The child that runs, if the decision has an action."""

    decision: Decision
    picture: Picture | None  # on which it began
    begun_at: float
    by_another: bool  # an earlier daemon has begun it
    host_changed: bool = False
    is_stopping: bool = False  # for a rescue


def bounds_of(action: Action, configuration: Configuration) -> tuple[float, float]:
    """Return the seconds until a child gets SIGTERM, and from then on until SIGKILL. A pass may use up all
    its time and then roll back, which SIGTERM does not interrupt and which may take as long again."""
    if action in (Action.INSTALL, Action.REMOVE):
        return configuration.converge_seconds, configuration.converge_seconds
    if action is Action.RESTART_PROXY:
        return configuration.dead_seconds / 2 + _PROXY_SLACK, _GRACE
    return configuration.kubelet_seconds, _GRACE
