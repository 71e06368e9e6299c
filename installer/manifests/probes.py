"""When kubelet asks the pods, and how long it waits before it loses patience. Pure.

A probe must never end what is still within its deadlines: every bound is computed from the settings that
the pods run with. Times in seconds.
"""

from __future__ import annotations

import math
from typing import Any

from installer.inputs.deadlines import build_deadlines
from installer.inputs.settings import Settings
from installer.model import paths
from installer.model.daemon import ALIVE_FILE, EXCUSED_FILE, READY_FILE

FRESH = 60
"""How old a file of the daemon's may be. It touches them each 5 seconds; a bus that does not answer may
delay that by some 20."""

_READY_PERIOD = 5


def build_min_ready(settings: Settings) -> int:
    """How long a pod has to be Ready until it counts (`minReadySeconds`), in seconds.

    A restarted kubelet calls our container Ready until it has asked the probe (seen with 1.36, for 0.6 s, at
    every first installation and every removal). The pass that has restarted it is at work as long as kubelet
    settles. So a pod that is Ready for longer than that, and for one probe more, is Ready by its own word.
    """
    return settings.kubelet.settle_seconds + _READY_PERIOD


def build_probes(settings: Settings) -> dict[str, Any]:
    """The container's probes as they stand in the pod template.

    Readiness: the daemon works, and says that its node is ready. Liveness: the daemon works, and the proxy's
    unit is active on the host, by the host's own systemctl. Not while kubelet is held on its base endpoint,
    nor while the daemon stands back: it waits for a permit, or is paused, refused, limited or replaced, or
    its first installation fails. A probe fails only for what a restart of the container could mend. A removal
    is never restarted.
    """
    # What kubelet says of a pod that is not ready is the daemon's own word, and not a missing file.
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
    """A missing file is not: `find` says so in the probe's message, if that is not to be quiet."""
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
