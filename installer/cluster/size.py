"""How large a fleet is and how long its queue, by its DaemonSet. Pure.

Ten thousand nodes need not all ask for the DaemonSet: whoever has asked writes the size to the Lease of the
fleet, and the others read it there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from installer.model.fleet import SIZE
from installer.model.jsontext import from_json, mapping_at, text_at, to_json

_MOST_NODES = 1 << 20  # more than any cluster has
_OLD = (30.0, 300.0)  # seconds after which it is asked for again: a large fleet's queue is soon another
_ASKED = 30_000.0  # nodes times seconds: each node's share of that is the same in small and large fleets
_POLL_SECONDS = 40.0  # on average, until a node asks again for what people or canaries end
POLLS_PER_SECOND = 15.0  # at most, of a large fleet that waits for that


def poll_seconds(nodes: int) -> float:
    """Return how long each of so many nodes waits, on average, until it asks again for what may end at any
    moment: a pause, a stopped generation, canaries. The wait varies between half of it and one and a half."""
    return max(_POLL_SECONDS, nodes / POLLS_PER_SECOND)


def all_poll_within(nodes: int) -> float:
    """Return the seconds within which all of so many nodes ask again; the first one does within a few."""
    return 1.5 * poll_seconds(nodes)


@dataclass(frozen=True, slots=True)
class FleetSize:
    daemonset: str  # the path of the one that was asked
    nodes: int = 0  # that it selects
    waiting: int = 0  # those of them whose pod was not available
    at: float = 0.0  # time of the epoch

    def is_fresh(self, daemonset: str, now: float) -> bool:
        """Whether another look would hardly tell more."""
        shortest, longest = _OLD
        good = min(longest, max(shortest, _ASKED / max(1, self.nodes)))
        return self.daemonset == daemonset and abs(now - self.at) < good


def measure(daemonset: Mapping[str, Any], path: str, now: float) -> FleetSize:
    """Read the DaemonSet as the API returns it. It has no nodes until its controller has counted them."""
    status = mapping_at(daemonset, "status")
    nodes, waiting = (_count(status.get(key)) for key in ("desiredNumberScheduled", "numberUnavailable"))
    return FleetSize(path, nodes, waiting, now)


def _count(found: object) -> int:
    return found if isinstance(found, int) and 0 < found < _MOST_NODES else 0


def build_size(size: FleetSize) -> dict[str, str]:
    """Build the annotation."""
    return {SIZE: to_json(size)}


def read_size(lease: Mapping[str, Any]) -> FleetSize:
    """Read it from the Lease `fleet`. If no node has written it yet, or if it is not understood, the size is
    that of the smallest fleet, and never fresh."""
    try:
        found = from_json(FleetSize, text_at(lease, "metadata", "annotations", SIZE))
    except ValueError:
        return FleetSize("")
    return replace(found, nodes=_count(found.nodes), waiting=_count(found.waiting))
