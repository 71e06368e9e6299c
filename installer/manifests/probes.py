"""When kubelet asks the pods, and how long it waits before it loses patience. Pure.

A probe must never end what is still within its deadlines: every bound is computed from the settings
that the pods run with. Times in seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from installer.inputs.settings import Settings
from installer.model import paths
from installer.model.plan import JOB_SLACK, PROXY_SETTLE

READY_FILE = "/run/cri-resmgr-installer/ready"
PAUSED_FILE = "/run/cri-resmgr-installer/paused"  # whether by a file on the node or by its annotation

_ROLLBACK = 30  # R8: the attempt and its rollback while kubelet hangs on the relay
_BEGIN = 60  # until the first pass: the container's start, the API server, the host's lock


@dataclass(frozen=True, slots=True)
class Deadlines:
    """`converge`: the longest that one pass may take. `start`: from the start of a container to the
    end of its first pass. `absent`: the longest that the proxy's unit may not be active while all is
    as it should be."""

    converge: int
    start: int
    absent: int


def build_deadlines(settings: Settings) -> Deadlines:
    """From the settings, each time the most that they allow."""
    proxy, kubelet = settings.proxy, settings.kubelet
    start_proxy = proxy.start_timeout_seconds + round(JOB_SLACK + PROXY_SETTLE)
    start_kubelet = (
        kubelet.guard_seconds + kubelet.start_timeout_seconds + round(JOB_SLACK) + kubelet.settle_seconds
    )
    converge = start_proxy + start_kubelet + _ROLLBACK
    absent = max(converge, proxy.dead_seconds + start_proxy + _ROLLBACK)
    return Deadlines(converge, settings.rollout.spread_seconds + _BEGIN + converge, absent)


def build_probes(settings: Settings) -> dict[str, Any]:
    """The container's probes as they stand in the pod template.

    Liveness asks the host's systemctl, which takes no process of ours, and is content while kubelet
    is held on its base endpoint or `run` has seen a pause of the node: then a restart would help nobody.
    A removal has nothing to be alive but itself.
    """
    ready = {
        "exec": {"command": ["test", "-f", READY_FILE]},
        "periodSeconds": 5,
        "timeoutSeconds": 5,
        "failureThreshold": 2,
    }
    if settings.mode == "remove":
        return {"readinessProbe": ready}
    deadlines = build_deadlines(settings)
    return {
        "startupProbe": _alive(deadlines.start),
        "livenessProbe": _alive(deadlines.absent),
        "readinessProbe": ready,
    }


def _alive(patience: int) -> dict[str, Any]:
    period = 10
    excused = f"test -e /host{paths.HOLD} || test -e {PAUSED_FILE}"
    status = f"exec chroot /host systemctl status -n0 {paths.PROXY_UNIT}"
    return {
        "exec": {"command": ["/bin/sh", "-c", f"{excused} || {status}"]},
        "periodSeconds": period,
        "timeoutSeconds": 10,
        "failureThreshold": math.ceil(patience / period) + 1,
    }
