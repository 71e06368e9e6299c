"""The identity of the machine, and the version of its kubelet."""

from __future__ import annotations

import os
import re
import stat

from installer.errors import InstallerError, UnservableHostError
from installer.host.command import run
from installer.host.files import RootedFiles
from installer.model.host import Machine

# Architecture, machine-id and name, from the host's own files.
#
# The architecture is that of the host's programs, since this process may run under emulation.

_PROGRAMS = ("/bin/sh", "/sbin/init", "/usr/bin/env")
# (e_machine, whether little-endian) -> as `uname -m` names it (elf.h)
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


def host_identity(files: RootedFiles) -> Machine:
    """The machine, without its services. `machine_id` is empty if it has none yet. Raises OSError."""
    machine_id = _line(files, "/etc/machine-id")
    kernel_name = _line(files, "/proc/sys/kernel/hostname")
    return Machine(
        architecture=_architecture(files),
        machine_id=machine_id if len(machine_id) == 32 else "",
        hostname=_line(files, "/etc/hostname") or kernel_name or os.uname().nodename,
        cpus=_line(files, "/sys/devices/system/cpu/present"),
    )


def machine_of_elf(header: bytes) -> str:
    """The architecture of an ELF file, from its first 20 bytes; empty if it is not one."""
    if len(header) < 20 or header[:4] != b"\x7fELF":
        return ""
    little = header[5] == 1
    number = int.from_bytes(header[18:20], "little" if little else "big")
    return _MACHINES.get((number, little), f"ELF machine {number}")


def _architecture(files: RootedFiles) -> str:
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


# The version of a kubelet, as it reports it.
#
# Neither a node's files nor kubelet's healthz tell it, and the API server only knows it of nodes that have
# joined. So the program is run once with --version, and only if something is to be changed: it prints one
# line and exits (k8s.io/component-base/version/verflag). A program that others than root could have written
# is not run.

_SECONDS = 5.0  # it normally takes 0.1 s
_SAID = re.compile(r"Kubernetes v([0-9]+\.[0-9]+\.[0-9]+\S*)")
_ELF = b"\x7fELF"


def kubelet_version(files: RootedFiles, path: str) -> str:
    """The version (`1.36.2`) of the kubelet at a host path; empty if it does not report one, or is not
    root's."""
    try:
        status = files.status(path, follow=True)
        if status is None or not stat.S_ISREG(status.st_mode) or status.st_uid != 0 or status.st_mode & 0o022:
            return ""
        if files.read(path, len(_ELF)) != _ELF:
            return ""  # a script may do more than print its version
    except (InstallerError, OSError):
        return ""
    finished = run(("chroot", str(files.root), path, "--version"), _SECONDS)
    found = next((match for line in finished.lines if (match := _SAID.match(line))), None)
    return found[1] if found and finished.code == 0 else ""
