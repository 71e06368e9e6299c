"""A run that changed something on this host, as the host's journal remembers it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One entry of the history."""

    time: str  # RFC 3339, UTC
    who: str
    action: str  # install, remove or hold
    outcome: str  # `done`, or how it ended instead
    summary: str  # what was done, in one line
    why: tuple[str, ...] = ()  # what differed, units first
    generation: str = ""  # the one that was installed; empty for a removal
    payload_version: str = ""

    @property
    def describe(self) -> str:
        """One line for people."""
        return f"{self.action} by {self.who}: {self.outcome}: {self.summary}"


class Past(NamedTuple):
    """What the journal knows about how the host got into its present state. Empty where it does not know."""

    last_change: HistoryEntry | None = None
    guard_time: str = ""  # when the guard last decided
    guard: str = ""  # what it decided
    guard_invocation: str = ""  # the InvocationID of the start of kubelet that it decided for


NO_PAST = Past()


class History(NamedTuple):
    """The entries of the journal, the newest last."""

    entries: tuple[HistoryEntry, ...]
    fault: str = ""  # why the journal cannot be read; empty if it can
    at_work: str = ""  # the run that works on this host now, in its own words; empty if there is none
