"""Builds the pods' probes. Pure.

A probe must never end work that is still within its deadlines: every bound is computed from the settings
that the pods run with. Times are in seconds.
"""

from __future__ import annotations

import math
from typing import Any

from installer.inputs.deadlines import build_deadlines
from installer.inputs.settings import Settings
from installer.model import paths
from installer.model.daemon import ALIVE_FILE, EXCUSED_FILE, READY_FILE

FRESH = 60
"""How old a probe file of the daemon may be. The daemon touches them every 5 seconds; a bus that does not
answer may delay that by some 20."""

_READY_PERIOD = 5


def build_min_ready(settings: Settings) -> int:
    """Return how long a pod has to be Ready until it counts (`minReadySeconds`).

    A restarted kubelet reports our container as Ready until it has run the probe (seen with 1.36, for 0.6
    s, at every first installation and every removal). The pass that has restarted it works until kubelet
    has settled. So a pod that is Ready for longer than that, and for one probe more, is Ready by its probe.
    """
    return settings.kubelet.settle_seconds + _READY_PERIOD


def build_probes(settings: Settings) -> dict[str, Any]:
    """Build the container's probes as the pod template has them.

    Readiness: the daemon works, and reports its node as ready. Liveness: the daemon works, and the proxy's
    unit is active on the host, by the host's own systemctl. The unit does not matter while kubelet is held
    on its base endpoint, nor while the daemon stands back: it waits for a permit, or is paused, refused,
    limited or replaced, or its first installation fails. A probe fails only for what a restart of the
    container could fix. A removal is never restarted.
    """
    # For a pod that is not ready, kubelet shows the daemon's reason, and not a missing file.
    script = f"{_is_fresh(READY_FILE, ' 2>/dev/null')} || {{ cat {ALIVE_FILE}; exit 1; }}"
    ready = {
        "exec": {"command": ["/bin/sh", "-c", script]},
        "periodSeconds": _READY_PERIOD,
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


def _is_fresh(file: str, quietly: str = "") -> str:
    """A missing file is not fresh: unless `quietly`, `find` says so in the probe's message."""
    return f"test -n \"$(find {file} -newermt '-{FRESH} seconds'{quietly})\""


def _alive(patience: int) -> dict[str, Any]:
    period = 10
    excused = f"test -e /host{paths.HOLD} || test -e {EXCUSED_FILE}"
    status = f"exec chroot /host systemctl status -n0 {paths.PROXY_UNIT}"
    script = f"{_is_fresh(ALIVE_FILE)} || exit 1; {excused} || {status}"
    return {
        "exec": {"command": ["/bin/sh", "-c", script]},
        "periodSeconds": period,
        "timeoutSeconds": 10,
        "failureThreshold": math.ceil(patience / period) + 1,
    }
