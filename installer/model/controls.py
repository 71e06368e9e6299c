"""What cri-resmgr sets in the kernel beside containers' CPUs and memory: nothing of it ends with the proxy.

Read in cri-resmgr v0.9.2 (pkg/cri/resource-manager/control: cpu, rdt, blockio) and its goresctrl 0.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum


class Control(StrEnum):
    """One of cri-resmgr's controllers that leave something behind."""

    CPU_FREQUENCY = "cpu-frequency"  # `cpu.classes`: limits of CPUs, and of the uncore
    RESCTRL = "resctrl"  # `rdt`: cache and memory bandwidth
    BLOCK_IO = "block-io"  # `blockio.Classes`: throttles and weights of containers, with cgroup v1


Originals = Mapping[Control, Mapping[str, str]]
"""Control -> path in /sys -> what was there before cri-resmgr; no paths where nothing is to be kept."""

CPUS = "/sys/devices/system/cpu"
UNCORE = f"{CPUS}/intel_uncore_frequency"
RESCTRL = "/sys/fs/resctrl"
RESCTRL_PREFIX = "cri-resmgr."
SCHEMATA = f"{RESCTRL}/schemata"

THROTTLES = {
    "blkio.throttle.read_bps_device": "throttleReadBpsDevice",
    "blkio.throttle.write_bps_device": "throttleWriteBpsDevice",
    "blkio.throttle.read_iops_device": "throttleReadIOPSDevice",
    "blkio.throttle.write_iops_device": "throttleWriteIOPSDevice",
}
"""File of cgroup v1 -> its name in the OCI runtime specification. A line of each is `MAJOR:MINOR RATE`."""

WEIGHTS = {"blkio.bfq.weight": "100", "blkio.weight": "500"}
"""File of cgroup v1 -> the kernel's default. With the suffix `_device` it has a line for each device."""


@dataclass(frozen=True, slots=True)
class Return:
    """One thing that is brought back: `value` is written to `path`, or the resctrl group there is removed if
    it is None. `what` and `before` are for people. `problem` is why it was not done; empty if it was."""

    path: str
    value: str | None
    what: str
    before: str = ""
    problem: str = ""

    @property
    def planned(self) -> str:
        if self.value is None:
            return f"remove {self.what}"
        return f"set {self.what} back: {self.before} -> {self.value}"

    @property
    def done(self) -> str:
        if self.problem:
            return f"{self.what} could not be brought back: {self.problem}"
        return f"{self.what} was removed" if self.value is None else f"{self.what} is {self.value} again"

    def failed(self, problem: str) -> Return:
        return replace(self, problem=problem)
