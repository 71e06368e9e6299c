"""Events, as the core emits them. Reporters turn them into text or JSON lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

ERROR, WAITING = "error", "waiting"
"""The last event of a run that failed, and of one that has to wait. Both carry the same data."""

KUBELET_RESTART = "kubelet.restart"
"""Emitted when a restart of kubelet is requested, however it ends: it counts towards restartsPerHour."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened."""

    kind: str  # stable, for machines (`step.done`)
    message: str  # one line for people
    data: Mapping[str, object] = field(default_factory=dict)  # JSON values only


Emit = Callable[[Event], None]


def name_some(names: Sequence[str], most: int = 5, between: str = ", ") -> str:
    """The first names, and how many more there are."""
    more = len(names) - most
    return between.join(names[:most]) + (f" and {more} more" if more > 0 else "")


def truncate(text: str, limit: int) -> str:
    """Return at most `limit` bytes of it, in valid UTF-8; what was longer ends in three dots."""
    raw = text.encode("utf-8", "replace")
    return raw.decode() if len(raw) <= limit else raw[: limit - 3].decode("utf-8", "ignore") + "..."


def silent(_event: Event) -> None:
    """An Emit that drops every event."""
