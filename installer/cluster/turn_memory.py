"""What a node remembers of its turn, in a file below /run: for the daemon that comes after this one.

Without it a permit is found again by its holder, or expires; but a failure that nobody has told would be
forgotten by the whole fleet.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from installer.errors import InstallerError
from installer.host.ports import Files
from installer.model import paths
from installer.model.fleet import PlannedWork, WorkResult
from installer.model.jsontext import from_json, to_json

MEMORY = f"{paths.OUR_RUNTIME}/turn.json"


@dataclass(frozen=True, slots=True)
class TurnMemory:
    """`permit` and the resourceVersion that it was taken with. `failed` is the generation that this node has
    told to have failed, `leads` the one that it has begun as a canary; None: after a boot, when nobody knows
    whether it has begun one. `begun` is the work that has begun in its turn, and whose end is not known yet,
    `untold` are the ends that are still to be told. `soaking` is what ended well and is watched until then,
    on the monotonic clock, which all processes of a boot share."""

    permit: str = ""
    version: str = ""
    failed: str = ""
    leads: str | None = None
    begun: PlannedWork | None = None
    untold: tuple[WorkResult, ...] = ()
    soaking: tuple[PlannedWork, float] | None = None


def recall(files: Files) -> TurnMemory:
    """A file that is not understood is as good as none."""
    with contextlib.suppress(InstallerError, OSError, ValueError):
        return from_json(TurnMemory, files.read(MEMORY) or b"{}")
    return TurnMemory()


def keep(files: Files, memory: TurnMemory) -> None:
    """Best effort. Nothing is written for a node that has nothing to remember, not even of its boot."""
    with contextlib.suppress(InstallerError, OSError):
        if memory != TurnMemory() or files.status(MEMORY) is not None:
            files.make_directory(paths.OUR_RUNTIME)
            files.write(MEMORY, to_json(memory).encode() + b"\n", 0o644)
