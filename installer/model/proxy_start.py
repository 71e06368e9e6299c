"""How long a start of cri-resmgr takes. Pure; times in seconds.

It places every container before it answers. Seen with the real 0.9.2: topology-aware and balloons take 14 to
20 ms for each, up to 40 ms on a busy machine; none, static and static-pools 1 to 3 ms.
"""

from __future__ import annotations

WHILE_HANGING = 11.0
"""What a start may take while kubelet hangs on the relay: the node goes NotReady after ~31 s, and the
attempt, the rollback, and kubelet's move to its base endpoint should that fail too, have to fit into 30 s
(R8)."""

_QUICK = frozenset({"none", "static", "static-pools"})
_BASE, _EACH, _EACH_QUICK = 1.0, 0.05, 0.005


def longest_start(containers: int, policy: str = "") -> float:
    """What a start may take with so many containers, on a busy machine. Without a policy: with any."""
    return _BASE + containers * (_EACH_QUICK if policy in _QUICK else _EACH)


def patience(timeout: float, containers: int) -> float:
    """When a start that nobody hangs on has failed: settings' proxy.startTimeoutSeconds, and what the
    containers call for besides."""
    return timeout + containers * _EACH
