"""Machines that are made up: what cri-resmgr and the NRI plugins read of one below /sys and /proc.

CPUs are numbered as Linux does it: first one thread of each core, then their siblings.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from installer.model.containers import format_list

MEMORY = 32 << 20  # kB of all nodes
BITS = "fffff"  # of a cache's ways
_FREQUENCIES = {"base_frequency": 2_000_000, "cpuinfo_min_freq": 800_000, "cpuinfo_max_freq": 3_500_000}
_LIMITS = {"scaling_min_freq": 800_000, "scaling_max_freq": 3_500_000}


@dataclass(frozen=True, slots=True)
class Machine:
    """`isolated` is what the kernel was told to leave alone. `rdt`: resctrl is mounted."""

    sockets: int = 1
    nodes: int = 1  # of each socket
    cores: int = 8  # of each node
    threads: int = 1
    isolated: str = ""
    rdt: bool = True

    @property
    def cpus(self) -> range:
        """All of them."""
        return range(self.sockets * self.nodes * self.cores * self.threads)

    def node_of(self, cpu: int) -> int:
        """The NUMA node that has the CPU."""
        return self._core(cpu) // self.cores

    def _core(self, cpu: int) -> int:
        return cpu % (len(self.cpus) // self.threads)

    def siblings(self, cpu: int) -> list[int]:
        """The threads of the CPU's core."""
        return [each for each in self.cpus if self._core(each) == self._core(cpu)]

    def lay(self, root: Path) -> None:
        """Writes its files below `root`: sys, and proc's meminfo and mounts."""
        (root / "sys").mkdir()
        (root / "sys/devices").symlink_to(_lay_devices(self))
        proc = {"MemTotal": MEMORY, "MemFree": MEMORY, "MemAvailable": MEMORY}
        (root / "proc").mkdir()
        (root / "proc/meminfo").write_text("".join(f"{name}: {size} kB\n" for name, size in proc.items()))
        mounts = "sysfs /sys sysfs rw 0 0\n" + (
            "resctrl /sys/fs/resctrl resctrl rw 0 0\n" if self.rdt else ""
        )
        (root / "proc/mounts").write_text(mounts)
        (root / "sys/fs/cgroup").mkdir(parents=True)
        if self.rdt:
            self._lay_resctrl(root / "sys/fs/resctrl")

    def lay_devices(self, root: Path) -> None:
        """Writes what sys/devices has, to `root`."""
        everything, nodes = format_list(self.cpus), range(self.sockets * self.nodes)
        for name in ("possible", "present", "online"):
            _write(root / "system/cpu" / name, everything)
        _write(root / "system/cpu/isolated", self.isolated)
        _write(root / "cpu_core/cpus", everything)
        for cpu in self.cpus:
            self._lay_cpu(root / f"system/cpu/cpu{cpu}", cpu)
        for node in nodes:
            self._lay_node(root / f"system/node/node{node}", node)
        for name in ("has_normal_memory", "has_memory", "has_cpu", "online", "possible"):
            _write(root / "system/node" / name, format_list(nodes))

    def _lay_cpu(self, place: Path, cpu: int) -> None:
        node, core, threads = self.node_of(cpu), self._core(cpu), format_list(self.siblings(cpu))
        topology = {
            "physical_package_id": node // self.nodes,
            "die_id": 0,
            "cluster_id": core,
            "core_id": core % (self.nodes * self.cores),
            "core_cpus_list": threads,
            "thread_siblings_list": threads,
        }
        _write(place / "online", 1)
        for name, value in topology.items():
            _write(place / "topology" / name, value)
        for name, frequency in {**_FREQUENCIES, **_LIMITS}.items():
            _write(place / "cpufreq" / name, frequency)
        of_node = format_list(each for each in self.cpus if self.node_of(each) == node)
        for index, (level, kind, shared) in enumerate(
            [
                (1, "Data", threads),
                (1, "Instruction", threads),
                (2, "Unified", threads),
                (3, "Unified", of_node),
            ]
        ):
            cache = place / f"cache/index{index}"
            what = {"id": core if level < 3 else node, "level": level, "type": kind, "size": "1024K"}
            for name, value in {**what, "shared_cpu_list": shared, "ways_of_associativity": 20}.items():
                _write(cache / name, value)
        (place / f"node{node}").symlink_to(f"../../node/node{node}")

    def _lay_node(self, place: Path, node: int) -> None:
        nodes = range(self.sockets * self.nodes)
        far = [
            10 if each == node else 11 if each // self.nodes == node // self.nodes else 21 for each in nodes
        ]
        _write(place / "cpulist", format_list(each for each in self.cpus if self.node_of(each) == node))
        _write(place / "distance", " ".join(map(str, far)))
        kinds = {"MemTotal": MEMORY, "MemFree": MEMORY, "MemUsed": 0}
        lines = [f"Node {node} {kind}: {size // len(nodes)} kB\n" for kind, size in kinds.items()]
        (place / "meminfo").write_text("".join(lines))

    def _lay_resctrl(self, place: Path) -> None:
        """As much of the kernel's as goresctrl reads. A group that is made here stays without files."""
        caches = range(self.sockets * self.nodes)
        what = {"L3": {"cbm_mask": BITS, "min_cbm_bits": 1, "num_closids": 16, "shareable_bits": 0}}
        what["MB"] = {"bandwidth_gran": 10, "delay_linear": 1, "min_bandwidth": 10, "num_closids": 8}
        for kind, values in what.items():
            for name, value in values.items():
                _write(place / "info" / kind / name, value)
        schemata = "L3:" + ";".join(f"{each}={BITS}" for each in caches)
        schemata += "\nMB:" + ";".join(f"{each}=100" for each in caches)
        for name, text in {
            "schemata": schemata,
            "tasks": "",
            "cpus": "",
            "size": schemata,
            "mode": "",
        }.items():
            _write(place / name, text)


@cache
def _lay_devices(machine: Machine) -> Path:
    """Once for all: these are a thousand files. A program may set frequencies there; nobody reads them."""
    root = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, root)
    machine.lay_devices(root)
    return root


def _write(place: Path, value: object) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(f"{value}\n")


MACHINES = {
    "one": Machine(),
    "two": Machine(sockets=2, nodes=2, cores=4, threads=2),
    "isolated": Machine(cores=8, threads=2, isolated="6-7,14-15"),
    "plain": Machine(rdt=False),
}
