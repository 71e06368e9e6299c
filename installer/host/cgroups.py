"""What the kernel enforces on a container: its cgroups, v1 or v2, read below the host root. Only reads.

Where a cgroup lies is asked of the host's first process: its mounts (/proc/1/mountinfo) and the container's
paths (/proc/PID/cgroup) are both told relative to our own cgroup namespace, whichever that is
(cgroup_namespaces(7)), so that what is below the mount is the same for both.
"""

from __future__ import annotations

import posixpath
from functools import cached_property

from installer.host.files import RootedFiles
from installer.model.pinning import CgroupState

_UNIFIED = ""  # the name of cgroup v2 in /proc/PID/cgroup


class Cgroups:
    """One reading of where the hierarchies are mounted."""

    def __init__(self, files: RootedFiles) -> None:
        self._files = files

    def state(self, pid: int, identifier: str) -> CgroupState | None:
        """What the kernel enforces on the container `identifier`, in which the process `pid` runs. None if
        its cgroup is not found.

        The container's cgroup is the one named after it: a process in it may have made cgroups of its own.
        """
        memberships = self._memberships(pid)
        cpuset = self._directory(memberships, "cpuset", identifier)
        if not cpuset:
            return None
        unified = "cpuset" not in memberships
        cpus, mems = (f"cpuset.{what}" + (".effective" if unified else "") for what in ("cpus", "mems"))
        above = posixpath.dirname(cpuset)
        cpu = cpuset if unified else self._directory(memberships, "cpu", identifier)
        return CgroupState(
            cpus=self._read(f"{cpuset}/{cpus}"),
            mems=self._read(f"{cpuset}/{mems}"),
            free_cpus=self._read(f"{above}/{cpus}"),
            free_mems=self._read(f"{above}/{mems}"),
            shares=0 if unified or not cpu else _number(self._read(f"{cpu}/cpu.shares")),
            weight=_number(self._read(f"{cpu}/cpu.weight")) if unified else 0,
        )

    def runs(self, pid: int) -> bool:
        """Whether the process is there."""
        return bool(pid) and self._files.read(f"/proc/{pid}/cgroup") is not None

    def _memberships(self, pid: int) -> dict[str, str]:
        """Controller -> path; cgroup v2 is the one without a name."""
        found = {}
        for line in (self._files.read(f"/proc/{pid}/cgroup") or b"").decode("utf-8", "replace").splitlines():
            _, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            found.update(dict.fromkeys(controllers.split(","), path))
        return found

    def _directory(self, memberships: dict[str, str], controller: str, identifier: str) -> str:
        """The host path of the container's cgroup in the hierarchy of a controller; empty if not found."""
        controller = controller if controller in memberships else _UNIFIED
        path = memberships.get(controller, "")
        names = path.split("/")
        named = [number for number, name in enumerate(names) if identifier in name]
        if not named:
            return ""
        path = "/".join(names[: named[-1] + 1])
        for root, place in self._mounts.get(controller, ()):
            if root == "/" or path.startswith(f"{root}/"):
                return place + (path if root == "/" else path.removeprefix(root))
        return ""

    @cached_property
    def _mounts(self) -> dict[str, list[tuple[str, str]]]:
        """Controller -> (root, mount point) of each mount of its hierarchy: proc(5), mountinfo."""
        found: dict[str, list[tuple[str, str]]] = {}
        for line in (self._files.read("/proc/1/mountinfo") or b"").decode("utf-8", "replace").splitlines():
            mount, _, details = line.partition(" - ")
            words, (kind, _, options) = mount.split(), [*details.split(), "", "", ""][:3]
            names = {"cgroup": options.split(","), "cgroup2": [_UNIFIED]}.get(kind, [])
            for name in names:
                found.setdefault(name, []).append((words[3], words[4]))
        return found

    def _read(self, path: str) -> str:
        return (self._files.read(path) or b"").decode("ascii", "replace").strip()


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0
