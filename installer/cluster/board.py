"""What one LIST of the rollout's Leases tells a node. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from installer.cluster.breaker import Breaker, read_breaker
from installer.cluster.leases import Permit, annotations_of, breaker_name, metadata_of, read_permits
from installer.cluster.size import FleetSize, read_size
from installer.model.fleet import FLEET
from installer.model.hold import PAUSE_ANNOTATION


@dataclass(frozen=True, slots=True)
class Board:
    """`paused`: why planned work is stopped, None if it is not. `breaker` is that of the generation that was
    asked for, None if nobody has begun it; `fault` says why it cannot be read. `size` is the last one that a
    node has written down, None if there is none."""

    permits: tuple[Permit, ...] = ()
    paused: str | None = None
    breaker: Breaker | None = None
    fault: str = ""
    size: FleetSize | None = None

    @property
    def grants(self) -> int:
        """How often permits were taken so far."""
        return sum(permit.holders for permit in self.permits)


def read_board(leases: object, generation: str, now: float) -> Board:
    """Of the items of a LeaseList, at the time `now` of the epoch."""
    found = {
        str(metadata_of(each).get("name", "")): each
        for each in (leases if isinstance(leases, list) else ())
        if isinstance(each, dict)
    }
    fleet = found.get(FLEET, {})
    breaker, fault = None, ""
    try:
        breaker = _read(found.get(breaker_name(generation)), generation, now)
    except ValueError as error:
        fault = str(error)
    return Board(read_permits(leases), read_pause(fleet), breaker, fault, read_size(fleet))


def _read(lease: Mapping[str, Any] | None, generation: str, now: float) -> Breaker | None:
    return None if lease is None else read_breaker(generation, lease, now)


def read_pause(lease: Mapping[str, Any]) -> str | None:
    """Of the Lease `fleet`."""
    why = annotations_of(lease).get(PAUSE_ANNOTATION)
    return None if why is None else str(why)
