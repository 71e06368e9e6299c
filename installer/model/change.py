"""One difference each, and the mildest action that removes it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum

from installer.model.resource import DesiredFile, FileState, Part


class UnitAction(IntEnum):
    """What a unit needs, mildest first: a harsher one includes the milder."""

    NOTHING = 0
    RELOAD = 1  # SIGHUP to the proxy
    RESTART = 2  # includes a first start
    STOP = 3  # removal of the proxy


class Verb(StrEnum):
    CREATE = "create"
    CHANGE = "change"
    DELETE = "delete"
    RESTORE = "restore"  # the original that was there before us comes back


@dataclass(frozen=True, slots=True)
class FileChange:
    """One file that differs. `after` is None for a deletion, a FileState for an original."""

    path: str
    part: Part
    verb: Verb
    before: FileState
    after: DesiredFile | FileState | None
    why: str


@dataclass(frozen=True, slots=True)
class UnitChange:
    """What a unit needs and every reason for it. `daemon_reload`: systemd has to re-read first. `awaited`:
    its start is under way and has to come to its end before the action."""

    name: str
    part: Part
    action: UnitAction
    why: tuple[str, ...]
    daemon_reload: bool = False
    enable: bool = False
    disable: bool = False
    awaited: bool = False


@dataclass(frozen=True, slots=True)
class Changes:
    """Everything that differs; empty means converged."""

    files: tuple[FileChange, ...] = ()
    units: tuple[UnitChange, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.files or self.units)

    @property
    def disturb(self) -> bool:
        """Whether a unit is to be restarted, signalled or waited for: not all is done by writing."""
        return any(change.action > UnitAction.NOTHING or change.awaited for change in self.units)

    def within(self, parts: Collection[Part]) -> Changes:
        """Those of some parts only."""
        files = tuple(change for change in self.files if change.part in parts)
        return Changes(files, tuple(change for change in self.units if change.part in parts))

    def with_restart(self, name: str, part: Part, why: str) -> Changes:
        """The same, and this unit restarts."""
        unit = self.unit(part) or UnitChange(name, part, UnitAction.NOTHING, ())
        unit = replace(unit, action=max(unit.action, UnitAction.RESTART), why=(*unit.why, why))
        return replace(self, units=(unit, *(change for change in self.units if change.part is not part)))

    def describe(self) -> tuple[str, ...]:
        """What differs and why, a line each."""
        files = (f"{change.path}: {change.why}" for change in self.files)
        return (*files, *(f"{change.name}: {', '.join(change.why)}" for change in self.units))

    def unit(self, part: Part) -> UnitChange | None:
        return next((change for change in self.units if change.part is part), None)
