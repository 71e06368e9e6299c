"""Freezes a unit of a throwaway host with the cgroup v1 freezer: not even SIGKILL gets through.

From outside the host: it has cgroups of its own in every hierarchy of this machine (see keeper).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.lib.throwaway.host import ThrowawayHost
from tests.lib.throwaway.keeper import cgroup_roots, processes_below


def freezer_root() -> Path | None:
    """Where the freezer of cgroup v1 is mounted; None on a machine without one."""
    return next((root for root in cgroup_roots() if "freezer" in root.name.split(",")), None)


@contextmanager
def frozen(host: ThrowawayHost, unit: str) -> Iterator[None]:
    """Every process that the unit has now stands still while the block lasts.

    Raises RuntimeError on a machine without that freezer.
    """
    root = freezer_root()
    if root is None:
        raise RuntimeError("this machine has no cgroup v1 freezer")
    directory = root / host.name / "frozen"
    directory.mkdir(exist_ok=True)
    state = directory / "freezer.state"
    state.write_text("FROZEN")  # also what is moved there later
    try:
        for place in (one / host.name for one in cgroup_roots() if one != root):
            for cgroup in place.rglob(unit):
                for pid in processes_below(cgroup):
                    with suppress(ProcessLookupError):
                        (directory / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        state.write_text("THAWED")
