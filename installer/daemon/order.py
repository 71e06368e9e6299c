"""What the daemon orders a pass to do, and how long that may take."""

from __future__ import annotations

from dataclasses import dataclass

from installer.daemon.configuration import Configuration
from installer.daemon.decision import Action

_PLAN_SECONDS = 120.0
_PROXY_SLACK = 15.0  # seconds, on top of what a restart of the proxy waits itself
GRACE = 10.0  # seconds from SIGTERM to SIGKILL for a child that changes little


@dataclass(frozen=True, slots=True)
class Order:
    """The argument of the hidden verb `pass`, as JSON. The policy has looked for a pause itself.

    `restarts_left`: how often an installation may restart kubelet. `ask_first`: what has to be asked for
    before it begins ("restarts", "all" or nothing)."""

    action: Action
    why: str = ""
    restarts_left: int = 0
    ask_first: str = ""


def bounds_of(action: Action, configuration: Configuration) -> tuple[float, float]:
    """Seconds until a child gets SIGTERM, and from then on until SIGKILL. A pass may take all its time and
    then roll back, which no SIGTERM ends, and which may take that time again."""
    if action in (Action.INSTALL, Action.REMOVE):
        return configuration.converge_seconds, configuration.converge_seconds
    if action in (Action.RESCUE, Action.HOLD):
        return configuration.kubelet_seconds, GRACE
    if action is Action.RESTART_PROXY:
        return configuration.dead_seconds / 2 + _PROXY_SLACK, GRACE
    return _PLAN_SECONDS, GRACE
