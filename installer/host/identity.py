"""Which machine the host is: its architecture, machine-id and name, from its own files.

The architecture is that of the host's programs: this process may run under emulation.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from installer.errors import UnservableHostError
from installer.host.files import RootedFiles

_PROGRAMS = ("/bin/sh", "/sbin/init", "/usr/bin/env")
# e_machine, little-endian? -> as `uname -m` says it (elf.h)
_MACHINES = {
    (3, True): "i686",
    (21, False): "ppc64",
    (21, True): "ppc64le",
    (22, False): "s390x",
    (40, True): "armv7l",
    (62, True): "x86_64",
    (183, True): "aarch64",
    (243, True): "riscv64",
    (258, True): "loongarch64",
}


def host_identity(files: RootedFiles) -> Mapping[str, str]:
    """`machine`, `machine_id` (empty if it has none yet), `hostname` and `cpus`, a list. Raises OSError."""
    machine_id = _line(files, "/etc/machine-id")
    kernel_name = _line(files, "/proc/sys/kernel/hostname")
    return {
        "machine": _machine(files),
        "machine_id": machine_id if len(machine_id) == 32 else "",
        "hostname": _line(files, "/etc/hostname") or kernel_name or os.uname().nodename,
        "cpus": _line(files, "/sys/devices/system/cpu/present"),
    }


def machine_of_elf(header: bytes) -> str:
    """The architecture of an ELF file by its first 20 bytes; empty if it is not one."""
    if len(header) < 20 or header[:4] != b"\x7fELF":
        return ""
    little = header[5] == 1
    number = int.from_bytes(header[18:20], "little" if little else "big")
    return _MACHINES.get((number, little), f"ELF machine {number}")


def _machine(files: RootedFiles) -> str:
    for program in _PROGRAMS:
        if machine := machine_of_elf(files.read(program, 20) or b""):
            return machine
    return os.uname().machine


def _line(files: RootedFiles, path: str) -> str:
    """The first line that is not a comment."""
    try:
        text = (files.read(path) or b"").decode("utf-8", "replace")
    except UnservableHostError:  # a symlink that leads out of the root
        return ""
    lines = (line.strip() for line in text.splitlines())
    return next((line for line in lines if line and not line.startswith("#")), "")
