"""What is started for an action of the policy: the verb with its options, and how long it may take."""

from __future__ import annotations

from installer.daemon.configuration import Configuration
from installer.daemon.decision import Action, Decision

_PLAN_SECONDS = 120.0
_PROXY_SLACK = 15.0  # seconds, on top of what a restart of the proxy waits itself
GRACE = 10.0  # seconds from SIGTERM to SIGKILL for a child that changes little


def verb_of(decision: Decision, restarts_left: int, asks: str = "") -> tuple[str, ...]:
    """The verb of the command line with its options; the policy has looked for a pause itself.
    `restarts_left`: how often kubelet may be restarted now. `asks`: what has to be asked for first."""
    if decision.action is Action.RESTART_PROXY:
        return ("rescue", "--restart-proxy")
    if decision.action in (Action.RESCUE, Action.HOLD):
        return ("rescue", f"--reason={decision.why}", *(["--hold-only"] * (decision.action is Action.HOLD)))
    if decision.action is Action.PLAN:
        return ("plan", "--despite-pause")
    bounds = [f"--restarts-left={restarts_left}"] if decision.action is Action.INSTALL else []
    bounds += [f"--ask-first={asks}"] if asks else []
    return (decision.action.value, "--unattended", "--despite-pause", f"--because={decision.why}", *bounds)


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
