"""The processes of a unit, by its cgroup: a launcher may stay its main process, and have the program that it
starts as a child."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def others_of_unit(proc: Path, pid: int) -> Iterator[int]:
    """The other processes of the service to which this one belongs; none if it belongs to none."""
    service = _cgroup(proc, str(pid))
    if not service.endswith(".service"):
        return
    for name in os.listdir(proc):
        if name.isdigit() and name != str(pid) and f"{_cgroup(proc, name)}/".startswith(f"{service}/"):
            yield int(name)


def _cgroup(proc: Path, pid: str) -> str:
    """Where systemd has put it (cgroups(7)); empty if it has ended."""
    lines = list[str]()
    with suppress(OSError):
        lines = (proc / pid / "cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    found = {line.split(":", 2)[1]: line.split(":", 2)[2] for line in lines if line.count(":") >= 2}
    return found.get("name=systemd") or found.get("", "")
