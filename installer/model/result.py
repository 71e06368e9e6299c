"""What a run answers: one value, for whoever has asked for the run. Events are for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from installer.errors import InstallerError, KubeletKeptError
from installer.model.event import truncate
from installer.model.fleet import PlannedWork

_REASON_BYTES = 700  # an Event has room for 1024, and for what the phase says around it
_KEPT = KubeletKeptError.exit_code
_TOUCHED_NOTHING = (0, 2, _KEPT, 4, 75)  # or has come to its end


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run has ended; before its end, how far it has come."""

    code: int  # the exit code
    changed: bool = False
    remembered: bool = False  # the failure is not tried again until an input changes
    rolled_back: bool = False
    restarts: int = 0  # of kubelet
    would_restart: bool = False  # the run would have restarted kubelet, which it may not
    reason: str = ""
    seconds: float = 0.0
    generation: str = ""  # that the run has converged to
    fleet_generation: str = ""  # that was to be installed, if it is known
    planned: PlannedWork | None = None  # work that the run has left undone for lack of a permit
    remarks: str = ""  # what a person should know about a converged host, and what to do
    ended: bool = True

    @property
    def is_blocked(self) -> bool:
        """Whether it ended before it touched anything, because of what it may not do."""
        return self.would_restart or self.planned is not None

    @property
    def touched(self) -> bool:
        """Whether it has changed something and not come to its end."""
        return self.code not in _TOUCHED_NOTHING and (
            self.rolled_back or self.remembered or self.restarts > 0
        )

    def failed(self, error: InstallerError) -> RunResult:
        """The same run, which ends with this error."""
        planned = error.planned if error.exit_code == _KEPT else None
        kept = error.exit_code == _KEPT and (planned is None or planned.restarts_kubelet)
        return replace(
            self,
            code=error.exit_code,
            ended=True,
            would_restart=kept,
            remembered=error.remembered,
            reason=_cause(error),
            fleet_generation=error.fleet_generation or self.fleet_generation,
            planned=planned,
        )


BEGUN = RunResult(-1, ended=False)


@dataclass(slots=True)
class Tally:
    """What a run has done so far. `note` gets it after each change, so that a run that is killed has said it
    until then."""

    note: Callable[[RunResult], None] = lambda _result: None
    result: RunResult = field(default=BEGUN)

    def count(self, *, restarts: int = 0, rolls_back: bool = False) -> None:
        """The host has changed."""
        now = self.result
        self.result = replace(
            now, restarts=now.restarts + restarts, rolled_back=now.rolled_back or rolls_back
        )
        self.note(self.result)


def _cause(error: InstallerError) -> str:
    """Return every fault of the error, as far as there is room; else its first line, which has the cause."""
    faults = error.faults or error.message.splitlines()[:1]
    return listed([" ".join(fault.split()) for fault in faults], _REASON_BYTES)


def listed(texts: Sequence[str], limit: int = _REASON_BYTES) -> str:
    """Return as many of the texts, the most important first, as fit into `limit` bytes, and how many more
    there are. Of the first one it has at least the beginning."""
    kept, size = list[str](), 0
    for text in texts:
        size += len(text.encode("utf-8", "replace")) + len("; ")
        if kept and size > limit:
            break
        kept.append(text)
    more = len(texts) - len(kept)
    return truncate("; ".join(kept), limit) + (f" (and {more} more)" if more else "")
