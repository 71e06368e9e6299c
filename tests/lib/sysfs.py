"""A stand-in for what the kernel shows of CPU frequencies, resctrl and block I/O, below a directory.

It has the kernel's rules as far as they matter: a lower limit above the upper one is refused, and so is what
the hardware cannot do; the directory of a resctrl group goes with all that the kernel shows in it, and its
tasks go to the group above; a device whose rate is set to 0 has no line any more.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from tests.faults.disks.recorder import Careless

CPUS = 4
LEAST, MOST = 800_000, 3_500_000  # kHz
RESCTRL = "sys/fs/resctrl"
UNCORE = "sys/devices/system/cpu/intel_uncore_frequency/package_00_die_00"
ROOT_SCHEMATA = "MB:0=100\nL3:0=fffff\n"
_RATES = "blkio.throttle."


class Killed(BaseException):
    """The program was killed."""


class SysKernel(Careless):
    """Makes changes below `root`; before change number `kill_at` (from 1), if it is not 0, the program is
    killed: that change and all after it do not happen. `changes` counts."""

    def __init__(self, root: Path) -> None:
        self.root = os.path.realpath(root)
        self.kill_at = self.changes = 0

    def _tick(self) -> None:
        self.changes += 1
        if self.kill_at and self.changes >= self.kill_at:
            raise Killed

    def set_value(self, place: str, value: bytes) -> None:
        self._tick()
        self.put(Path(os.path.realpath(place)), value.decode().strip())

    def put(self, place: Path, value: str) -> None:
        """As the kernel takes a write, whoever writes."""
        if not place.is_file():
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(place))
        if place.name.endswith(("_freq", "_freq_khz")):
            _set_frequency(place, int(value))
        elif place.name == "tasks":
            self._move_task(place, value)
        elif place.name.startswith(_RATES) or place.name.endswith("weight_device"):
            device, _, rate = value.partition(" ")
            lines = [line for line in place.read_text().splitlines() if not line.startswith(f"{device} ")]
            place.write_text("".join(f"{line}\n" for line in (*lines, *([value] if rate != "0" else []))))
        else:
            place.write_text(f"{value}\n")

    def _move_task(self, place: Path, task: str) -> None:
        for other in sorted(Path(self.root, RESCTRL).rglob("tasks")):
            left = [line for line in other.read_text().split() if line != task]
            other.write_text("".join(f"{line}\n" for line in left))
        place.write_text(f"{place.read_text()}{task}\n")

    def rmdir(self, place: str, directory: int | None = None) -> None:
        self._tick()
        if f"/{RESCTRL}/" not in place and "/fd/" not in place:
            super().rmdir(place, directory)
            return
        group = Path(os.path.realpath(os.path.dirname(place)), os.path.basename(place))
        if f"/{RESCTRL}/" not in str(group):
            super().rmdir(place, directory)
            return
        above = group.parent.parent if group.parent.name == "mon_groups" else Path(self.root, RESCTRL)
        for task in sorted({task for found in group.rglob("tasks") for task in found.read_text().split()}):
            self.put(above / "tasks", task)
        shutil.rmtree(group)

    def sync(self, descriptor: int) -> None:
        if f"{self.root}/sys" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EINVAL, "Invalid argument")

    def unlink(self, place: str, directory: int | None = None) -> None:
        self._tick()
        super().unlink(place, directory)

    def rename(self, old: str, new: str) -> None:
        self._tick()
        super().rename(old, new)

    def mkdir(self, place: str, mode: int) -> None:
        self._tick()
        super().mkdir(place, mode)

    def symlink(self, target: str, place: str) -> None:
        self._tick()
        super().symlink(target, place)


def _set_frequency(place: Path, value: int) -> None:
    lower, upper = (
        place.parent / place.name.replace("max", "min"),
        place.parent / place.name.replace("min", "max"),
    )
    value = value or LEAST  # the kernel clamps it
    wrong = value > int(upper.read_text()) if place == lower else value < int(lower.read_text())
    if wrong or not LEAST <= value <= MOST:
        raise OSError(errno.EINVAL, "Invalid argument", str(place))
    place.write_text(f"{value}\n")


def lay(
    root: Path, containers: Mapping[str, int], *, lowest: int = 1_200_000, highest: int = 3_000_000
) -> None:
    """A machine whose administrator has set limits of their own, has a resctrl group, and runs `containers`
    (ID -> a process of it) on cgroup v1."""
    for number in range(CPUS):
        cpu = root / f"sys/devices/system/cpu/cpu{number}/cpufreq"
        cpu.mkdir(parents=True)
        _fill(
            cpu,
            scaling_min_freq=lowest,
            scaling_max_freq=highest,
            cpuinfo_min_freq=LEAST,
            cpuinfo_max_freq=MOST,
        )
    (root / UNCORE).mkdir(parents=True)
    _fill(
        root / UNCORE,
        min_freq_khz=LEAST,
        max_freq_khz=2_400_000,
        initial_min_freq_khz=LEAST,
        initial_max_freq_khz=MOST,
    )
    make_group(root / RESCTRL, tasks=(1, *containers.values()))
    (root / RESCTRL / "schemata").write_text(ROOT_SCHEMATA)
    make_group(root / RESCTRL / "databases", tasks=(77,))
    for identifier in containers:
        cgroup = root / blkio(identifier)[1:]
        cgroup.mkdir(parents=True)
        _fill(cgroup, **{"blkio.weight": 500})
        for name in ("read_bps", "write_bps", "read_iops", "write_iops"):
            (cgroup / f"{_RATES}{name}_device").write_text("")
        (cgroup / "blkio.weight_device").write_text("")


def blkio(identifier: str) -> str:
    """The host path of a container's cgroup for block I/O."""
    return f"/sys/fs/cgroup/blkio/kubepods/pod-{identifier}/{identifier}"


def make_group(place: Path, tasks: tuple[int, ...] = ()) -> None:
    """A resctrl group, as mkdir makes it."""
    (place / "mon_groups").mkdir(parents=True, exist_ok=True)
    (place / "schemata").write_text(ROOT_SCHEMATA)
    (place / "tasks").write_text("".join(f"{task}\n" for task in tasks))


def read_all(root: Path) -> dict[str, str]:
    """Every file below /sys; tasks in any order."""
    found = {
        str(path.relative_to(root)): path.read_text() for path in root.glob("sys/**/*") if path.is_file()
    }
    return {
        path: "".join(sorted(text.split())) if path.endswith("tasks") else text
        for path, text in found.items()
    }


def _fill(place: Path, **values: int) -> None:
    for name, value in values.items():
        (place / name).write_text(f"{value}\n")
