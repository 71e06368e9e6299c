"""How large a fleet is and how long its queue, as its DaemonSet says. Pure.

Who needs it reads it from the Lease of the fleet, where the last node that has asked for the DaemonSet has
left it: ten thousand nodes need not all ask.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from installer.cluster.leases import annotations_of
from installer.model.fleet import SIZE

_MOST_NODES = 1 << 20  # more than any cluster has
_OLD = (30.0, 300.0)  # seconds after which it is asked for again: a large fleet's queue is soon another
_ASKED = 30_000.0  # nodes times seconds: each node's part of that is the same in small and large fleets
_BY_PEOPLE = 40.0  # seconds, on average, until a node asks again for what people or canaries end
CROWD = 15.0  # questions a second, at most, of a large fleet that waits for that


def pace_of(nodes: int) -> float:
    """How many seconds a node of so many waits, on average, until it asks again for what may end at any
    moment: a pause, a stopped generation, canaries. It varies between half of it and one and a half."""
    return max(_BY_PEOPLE, nodes / CROWD)


def heard_by(nodes: int) -> float:
    """Seconds until all of so many nodes have asked again; the first one of them does within a few."""
    return 1.5 * pace_of(nodes)


@dataclass(frozen=True, slots=True)
class FleetSize:
    """`nodes` that the DaemonSet selects, and those of them that were `waiting` (their pod was not available)
    at the time `at` of the epoch. `daemonset` is the path of the one that was asked."""

    daemonset: str
    nodes: int = 0
    waiting: int = 0
    at: float = 0.0

    def is_fresh(self, daemonset: str, now: float) -> bool:
        """Whether another look would hardly tell more."""
        shortest, longest = _OLD
        good = min(longest, max(shortest, _ASKED / max(1, self.nodes)))
        return self.daemonset == daemonset and abs(now - self.at) < good


def measure(daemonset: Mapping[str, Any], path: str, now: float) -> FleetSize:
    """Of the DaemonSet as the API returns it. No nodes where its controller has not counted them yet."""
    status = daemonset.get("status")
    status = status if isinstance(status, dict) else {}
    nodes, waiting = (_count(status.get(key)) for key in ("desiredNumberScheduled", "numberUnavailable"))
    return FleetSize(path, nodes, waiting, now)


def _count(found: object) -> int:
    return found if isinstance(found, int) and 0 < found < _MOST_NODES else 0


def build_size(size: FleetSize) -> dict[str, str]:
    """The annotation."""
    return {SIZE: json.dumps(asdict(size), separators=(",", ":"))}


def read_size(lease: Mapping[str, Any]) -> FleetSize | None:
    """Of the Lease `fleet`. None where no node has asked yet, or where it is not understood."""
    try:
        found = json.loads(str(annotations_of(lease).get(SIZE, "")))
        nodes, waiting = _count(found["nodes"]), _count(found["waiting"])
        return FleetSize(str(found["daemonset"]), nodes, waiting, float(found["at"]))
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError):
        return None
