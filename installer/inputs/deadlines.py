"""How long a pass may take, computed from the settings that bound its parts. Pure; times in seconds.

The daemon ends a child at these deadlines, and the pods' probes allow for them.
"""

from __future__ import annotations

from dataclasses import dataclass

from installer.inputs.settings import Settings
from installer.model.fleet import FleetRules
from installer.model.limits import CALLS_ANSWERED, JOB_SLACK, PROXY_SETTLE, RELOAD, TAKEN_UP

_ROLLBACK = 30  # R8: the attempt and its rollback while kubelet hangs on the relay
_PERMIT_SLACK = 60.0  # that a permit lasts beyond a pass and its rollback
_BEGIN = 60  # until the first pass: the container's start, the API server, the host's lock


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds."""

    converge: int  # the longest that one pass may take
    kubelet: int  # of that, a restart of kubelet until it has settled, or a move of it
    start: int  # from the start of a container to the end of its first pass
    absent: int  # the longest that the proxy's unit may be inactive on a healthy node


def build_deadlines(settings: Settings) -> Deadlines:
    """The longest times that the settings allow."""
    proxy, kubelet = settings.proxy, settings.kubelet
    start_proxy = proxy.start_timeout_seconds + round(JOB_SLACK + PROXY_SETTLE)
    start_kubelet = (
        kubelet.guard_seconds + kubelet.start_timeout_seconds + round(JOB_SLACK) + kubelet.settle_seconds
    )
    move = round(CALLS_ANSWERED + TAKEN_UP)
    # A pass that restarts kubelet moves none; one that restarts only the proxy moves kubelet away and back.
    converge = round(RELOAD) + start_proxy + max(start_kubelet, 2 * move) + _ROLLBACK
    absent = max(converge, proxy.dead_seconds + start_proxy + _ROLLBACK)
    return Deadlines(converge, max(start_kubelet, move), _BEGIN + converge, absent)


def build_fleet_rules(settings: Settings) -> FleetRules:
    """What the nodes with these settings agree on, and a person's commands read."""
    rollout, removal = settings.rollout, settings.removal
    return FleetRules(
        concurrent_restarts=str(rollout.concurrent_restarts),
        max_failures=str(rollout.max_failures),
        order=rollout.order,
        soak_seconds=float(rollout.soak_seconds),
        hold_seconds=2.0 * build_deadlines(settings).converge + _PERMIT_SLACK,
        pod_seconds=float(rollout.pod_ready_seconds),
        window=tuple(each.window for each in rollout.window),
        successor=removal.successor_namespace if removal.successor == "nri" else "",
    )
