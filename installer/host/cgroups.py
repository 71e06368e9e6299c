"""What the kernel enforces on a container: its cgroups, v1 or v2, read below the host root. Read-only.

The host's first process tells where the hierarchies are mounted (/proc/1/mountinfo), and /proc/PID/cgroup
tells the container's paths. The kernel shows both relative to our own cgroup namespace
(cgroup_namespaces(7)). That is the host's, or, with cgroup v2, the namespace of an unprivileged pod. In that
case both paths begin with `/..` for each level up, without the names of the cgroups that we are in ourselves.

A CPU that goes offline leaves a cpuset of v1 for good (cpuset(7)). A cpuset of v2 keeps it for when it is
back. With v2, what a container is set to counts therefore, not what it can use at the moment.
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
        # (mount point, levels below it) -> a cgroup that we are in
        self._ours: dict[tuple[str, int], str] = {}

    def state(self, pid: int, identifier: str) -> CgroupState | None:
        """What the kernel enforces on the container `identifier`, in which the process `pid` runs. None if
        its cgroup is not found.

        The container's cgroup is the one named after it. A process in it may have created cgroups of its own.
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
        """Of cgroup v2. An unset cpuset is that of the parent cgroup."""
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
        """The CPUs that a cgroup of v2 can use, plus those that it could use if they were online."""
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
        """The CPUs that the machine has but does not use now (Documentation/admin-guide/cputopology.rst)."""
        present, online = (self._read(f"/sys/devices/system/cpu/{name}") for name in ("present", "online"))
        try:
            return parse_list(present) - parse_list(online)
        except ValueError:
            return frozenset()

    def runs(self, pid: int) -> bool:
        """Whether the process exists."""
        return bool(pid) and self._files.read(f"/proc/{pid}/cgroup") is not None

    def _memberships(self, pid: int) -> dict[str, str]:
        """Controller -> path. cgroup v2 is the one without a name."""
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
        """Where the cgroup `path` lies in the hierarchy whose `root` is mounted at `place`; empty if it is
        not there."""
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
        """The cgroup, `depth` levels below a directory, that contains `tail`; empty if there is none."""
        if depth == 0:
            return directory if self._files.status(f"{directory}/{tail}") is not None else ""
        found = (self._search(f"{directory}/{name}", depth - 1, tail) for name in self._files.list(directory))
        return next(filter(None, found), "")

    @cached_property
    def _mounts(self) -> dict[str, list[tuple[str, str]]]:
        """Controller -> (root, mount point) of each mount of its hierarchy (proc(5), mountinfo)."""
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
    """How many levels a path goes up first, and the rest: `/../../c/d` -> (2, `c/d`)."""
    names = path.strip("/").split("/")
    above = names.count("..")
    return above, "/".join(names[above:])


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0
