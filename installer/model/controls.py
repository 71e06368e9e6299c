"""What cri-resmgr sets in the kernel besides containers' CPUs and memory. None of it ends with the proxy.

Source: cri-resmgr v0.9.2 (pkg/cri/resource-manager/control: cpu, rdt, blockio) and its goresctrl 0.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Control(StrEnum):
    """A controller of cri-resmgr that leaves settings behind."""

    CPU_FREQUENCY = "cpu-frequency"  # `cpu.classes`: limits of CPUs, and of the uncore
    RESCTRL = "resctrl"  # `rdt`: cache and memory bandwidth
    BLOCK_IO = "block-io"  # `blockio.Classes`: throttles and weights of containers; cgroup v1 only


Originals = Mapping[Control, Mapping[str, str]]
"""Control -> path in /sys -> the value before cri-resmgr; no paths if there is nothing to keep."""

THROTTLES = {
    "blkio.throttle.read_bps_device": "throttleReadBpsDevice",
    "blkio.throttle.write_bps_device": "throttleWriteBpsDevice",
    "blkio.throttle.read_iops_device": "throttleReadIOPSDevice",
    "blkio.throttle.write_iops_device": "throttleWriteIOPSDevice",
}
"""File of cgroup v1 -> its name in the OCI runtime specification. Each line reads `MAJOR:MINOR RATE`."""

WEIGHTS = {"blkio.bfq.weight": "100", "blkio.weight": "500"}
"""File of cgroup v1 -> the kernel's default. The file with the suffix `_device` has a line per device."""
