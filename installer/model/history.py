"""One run that changed something on this host, as the host's journal remembers it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """`time` is RFC 3339, UTC. `action` is install, remove or hold; `outcome` is `done`, or how it ended
    instead. `summary` is what was done in one line, `why` what had differed: units first. `generation` is the
    one that was installed, empty for a removal."""

    time: str
    who: str
    action: str
    outcome: str
    summary: str
    why: tuple[str, ...] = ()
    generation: str = ""
    payload_version: str = ""

    @property
    def describe(self) -> str:
        """One line for people."""
        return f"{self.action} by {self.who}: {self.outcome}: {self.summary}"


class Past(NamedTuple):
    """What the journal tells of how the host came to be as it is: the last change, and when and how the guard
    last decided, for which start of kubelet (its InvocationID); empty where it does not know."""

    last_change: HistoryEntry | None = None
    guard_time: str = ""
    guard: str = ""
    guard_invocation: str = ""


NO_PAST = Past()


class History(NamedTuple):
    """The newest entry comes last. `fault` is why the journal cannot be read, else empty."""

    entries: tuple[HistoryEntry, ...]
    fault: str = ""
