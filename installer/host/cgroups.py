"""What the kernel enforces on a container: its cgroups, v1 or v2, read below the host root. Only reads.

Where a cgroup lies is asked of the host's first process: its mounts (/proc/1/mountinfo) and the container's
paths (/proc/PID/cgroup) are both told relative to our own cgroup namespace (cgroup_namespaces(7)). That is
the host's own, or, with cgroup v2, that of a pod that is not privileged. Then both begin with `/..` for each
cgroup on the way up, and the names of those that we are in ourselves are not told.

A CPU that goes offline is gone for good from a cpuset of v1 (cpuset(7)). One of v2 keeps it for the day when
it is back: there, what a container is set to counts, and not what it can use of that at the moment.
"""

from __future__ import annotations

import posixpath
from functools import cached_property

from installer.host.files import RootedFiles
from installer.model.containers import CgroupState, format_list, parse_list

_UNIFIED = ""  # the name of cgroup v2 in /proc/PID/cgroup


class Cgroups:
    """One reading of where the hierarchies are mounted."""

    def __init__(self, files: RootedFiles) -> None:
        self._files = files
        self._ours: dict[
            tuple[str, int], str
        ] = {}  # (mount point, levels below it) -> a cgroup that we are in

    def state(self, pid: int, identifier: str) -> CgroupState | None:
        """What the kernel enforces on the container `identifier`, in which the process `pid` runs. None if
        its cgroup is not found.

        The container's cgroup is the one named after it: a process in it may have made cgroups of its own.
        """
        memberships = self._memberships(pid)
        cpuset = self._directory(memberships, "cpuset", identifier)
        if not cpuset:
            return None
        if "cpuset" not in memberships:
            return self._unified_state(cpuset)
        above = posixpath.dirname(cpuset)
        cpu = self._directory(memberships, "cpu", identifier)
        return CgroupState(
            cpus=self._read(f"{cpuset}/cpuset.cpus"),
            mems=self._read(f"{cpuset}/cpuset.mems"),
            free_cpus=self._read(f"{above}/cpuset.cpus"),
            free_mems=self._read(f"{above}/cpuset.mems"),
            shares=_number(self._read(f"{cpu}/cpu.shares")) if cpu else 0,
            blkio=self._directory(memberships, "blkio", identifier) if "blkio" in memberships else "",
        )

    def _unified_state(self, cgroup: str) -> CgroupState:
        """Of cgroup v2. A cpuset that is not set is that of the cgroup above it."""
        above = posixpath.dirname(cgroup)
        free_cpus = self._with_offline(above, self._read(f"{above}/cpuset.cpus.effective"))
        return CgroupState(
            cpus=self._read(f"{cgroup}/cpuset.cpus") or free_cpus,
            mems=self._read(f"{cgroup}/cpuset.mems.effective"),
            free_cpus=free_cpus,
            free_mems=self._read(f"{above}/cpuset.mems.effective"),
            weight=_number(self._read(f"{cgroup}/cpu.weight")),
        )

    def _with_offline(self, cgroup: str, effective: str) -> str:
        """The CPUs that a cgroup of v2 can use, with those that it could if they were online."""
        away = self._offline
        try:
            while away and (raw := self._files.read(f"{cgroup}/cpuset.cpus")) is not None:
                allowed = parse_list(raw.decode("ascii", "replace"))
                away = away & allowed if allowed else away
                cgroup = posixpath.dirname(cgroup)
            return format_list(parse_list(effective) | away) if away else effective
        except ValueError:
            return effective

    @cached_property
    def _offline(self) -> frozenset[int]:
        """The CPUs that the machine has and does not use now (Documentation/admin-guide/cputopology.rst)."""
        present, online = (self._read(f"/sys/devices/system/cpu/{name}") for name in ("present", "online"))
        try:
            return parse_list(present) - parse_list(online)
        except ValueError:
            return frozenset()

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
            if found := self._place(root, place, path):
                return found
        return ""

    def _place(self, root: str, place: str, path: str) -> str:
        """Where the cgroup `path` is, in the hierarchy of which `root` is mounted at `place`; empty if not
        there."""
        (above, tail), (height, rest) = _climb(path), _climb(root)
        depth = height - above
        if rest or depth < 0:
            return place + path.removeprefix(root) if path.startswith(f"{root}/") else ""
        if (place, depth) not in self._ours:
            if not (found := self._search(place, depth, tail)):
                return ""
            self._ours[place, depth] = found
        return f"{self._ours[place, depth]}/{tail}"

    def _search(self, directory: str, depth: int, tail: str) -> str:
        """The cgroup, so many levels below a directory, that has `tail` below it; empty if there is none."""
        if depth == 0:
            return directory if self._files.status(f"{directory}/{tail}") is not None else ""
        found = (self._search(f"{directory}/{name}", depth - 1, tail) for name in self._files.list(directory))
        return next(filter(None, found), "")

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


def _climb(path: str) -> tuple[int, str]:
    """How many cgroups a path goes up first, and what follows: `/../../c/d` -> (2, `c/d`)."""
    names = path.strip("/").split("/")
    above = names.count("..")
    return above, "/".join(names[above:])


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0
