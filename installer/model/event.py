"""What happened, as the core tells it: reporters turn events into text or JSON lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

ERROR, WAITING = "error", "waiting"
"""The last event of a run that failed, and of one that has to wait: they have the same data."""

KUBELET_RESTART = "kubelet.restart"
"""Said of each restart of kubelet when it is asked for, however it ends: it counts for restartsPerHour."""


@dataclass(frozen=True, slots=True)
class Event:
    """`kind` is stable and for machines (`step.done`); `message` is one line for people.

    `data` holds JSON values only.
    """

    kind: str
    message: str
    data: Mapping[str, object] = field(default_factory=dict)


Emit = Callable[[Event], None]


def name_some(names: Sequence[str], most: int = 5, between: str = ", ") -> str:
    """As many of the names, and how many more there are."""
    more = len(names) - most
    return between.join(names[:most]) + (f" and {more} more" if more > 0 else "")


def silent(_event: Event) -> None:
    """The reporter of tests: nothing."""
