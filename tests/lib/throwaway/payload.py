"""Builds the stand-ins' executables, and with them a payload as releases have it."""

import io
import json
import platform
import py_compile
import shutil
import struct
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from tests.lib.throwaway import real
from tests.lib.throwaway.furnish import write
from tests.lib.throwaway.host import ThrowawayHost
from tests.lib.throwaway.standins import cri_resmgr, faults

#: ELF's e_machine.
MACHINES = {"x86_64": 62, "aarch64": 183}

PYTHON = b"/usr/bin/python3"
ITSELF = b"/proc/self/exe"

PACKAGES = ("tests", "tests/lib", "tests/lib/throwaway", "tests/lib/throwaway/standins")

UNIT = """\
[Unit]
Description=CRI-Resource-Manager, a CRI proxy with resource policies
Documentation=https://intel.github.io/cri-resource-manager/
Before=kubelet.service
LogRateLimitIntervalSec=0
LogRateLimitBurst=0

[Service]
Type=simple
EnvironmentFile=/etc/default/cri-resource-manager
ExecStart=/opt/intel/bin/cri-resmgr $CONFIG_OPTIONS $POLICY_OPTIONS
Restart=always

[Install]
WantedBy=multi-user.target
"""

ENVIRONMENT = """\
# Options of cri-resmgr.
CONFIG_OPTIONS="--fallback-config /etc/cri-resmgr/fallback.cfg"
#POLICY_OPTIONS="--disable-policy-switch"
"""

SAMPLE = """\
# Used as long as there is no other configuration.
policy:
  Active: topology-aware
  ReservedResources:
    CPU: 750m
logger:
  Debug: resource-manager,cache
dump:
  Config: full:.*,off:.*List.*
"""


def elf_head(machine: str) -> bytes:
    """A program of a few instructions: exec `python3 -IS FILE ARGUMENTS...`. The file is argv[0], or its own
    where that is no path (systemd's @, a shell that found it in PATH).

    Python runs an archive with anything in front of it, so the stand-ins can be
    what the real ones are, ELF executables, without a compiler. For a machine
    other than x86_64 the code is of no use: there it is only told apart.
    """
    base, start, reserved = 0x400000, 64 + 56, 128
    words = start + reserved
    itself, python = base + words, base + words + len(ITSELF) + 1
    switch = python + len(PYTHON) + 1
    code = b"".join(
        (
            b"\x48\x8b\x04\x24",  # mov rax, [rsp]             argc
            b"\x4c\x8d\x64\xc4\x10",  # lea r12, [rsp+rax*8+16]    envp
            b"\x49\x89\xe5",  # mov r13, rsp
            b"\x48\x81\xec\x00\x20\x00\x00",  # sub rsp, 0x2000            for a path
            b"\x49\x8b\x75\x08",  # mov rsi, [r13+8]           argv[0]
            b"\xac",  # lodsb
            b"\x84\xc0",  # test al, al
            b"\x74\x06",  # jz +6                      a name: it is looked up
            b"\x3c\x2f",  # cmp al, '/'
            b"\x75\xf7",  # jne -9
            b"\xeb\x1c",  # jmp +28                    a path
            b"\xbf" + struct.pack("<I", itself),  # mov edi, itself
            b"\x48\x89\xe6",  # mov rsi, rsp
            b"\xba\xff\x0f\x00\x00",  # mov edx, 0xfff
            b"\xb8\x59\x00\x00\x00",  # mov eax, SYS_readlink
            b"\x0f\x05",  # syscall
            b"\xc6\x04\x04\x00",  # mov byte [rsp+rax], 0
            b"\x49\x89\x65\x08",  # mov [r13+8], rsp           argv[2], where argv[0] was
            b"\xbf" + struct.pack("<I", python),  # mov edi, python
            b"\x49\x89\x7d\xf8",  # mov [r13-8], rdi           argv[0]
            b"\xb8" + struct.pack("<I", switch),  # mov eax, switch
            b"\x49\x89\x45\x00",  # mov [r13], rax             argv[1], where argc was
            b"\x49\x8d\x75\xf8",  # lea rsi, [r13-8]
            b"\x4c\x89\xe2",  # mov rdx, r12
            b"\xb8\x3b\x00\x00\x00",  # mov eax, SYS_execve
            b"\x0f\x05",  # syscall
            b"\xbf\x7f\x00\x00\x00",  # mov edi, 127
            b"\xb8\x3c\x00\x00\x00",  # mov eax, SYS_exit
            b"\x0f\x05",  # syscall
        )
    )
    body = code.ljust(reserved, b"\x90") + ITSELF + b"\0" + PYTHON + b"\0-IS\0"
    size = start + len(body)
    identity = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    header = struct.pack(
        "<HHIQQQIHHHHHH", 2, MACHINES[machine], 1, base + start, 64, 0, 0, 64, 56, 1, 64, 0, 0
    )
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, base, base, size, size, 0x1000)
    return identity + header + load + body


def build_archive(module: str, baked: Mapping[str, object], ballast_mib: int) -> bytes:
    """A Python archive that runs `main` of one of the stand-ins' modules."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive, tempfile.TemporaryDirectory() as scratch:
        add_module(archive, "__main__", f"from {module} import main\nmain()\n", Path(scratch))
        for package in PACKAGES:
            add_module(archive, f"{package}/__init__", "", Path(scratch))
        for part in Path(str(faults.__file__)).parent.glob("[a-z]*.py"):
            add_module(archive, f"{PACKAGES[-1]}/{part.stem}", part.read_text(), Path(scratch))
        archive.writestr(faults.MEMBER, json.dumps(dict(baked)))
        if ballast_mib:
            archive.writestr("ballast", bytes(ballast_mib << 20))
    return out.getvalue()


def add_module(archive: zipfile.ZipFile, name: str, source: str, scratch: Path) -> None:
    """Adds a module as source and compiled, for a start without a compiler."""
    path, compiled = scratch / "source.py", scratch / "compiled.pyc"
    path.write_text(source)
    py_compile.compile(
        str(path),
        cfile=str(compiled),
        dfile=f"{name}.py",
        doraise=True,
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
    archive.writestr(f"{name}.py", source)
    archive.writestr(f"{name}.pyc", compiled.read_bytes())


def build_executable(
    module: str,
    target: Path,
    baked: Mapping[str, object] | None = None,
    ballast_mib: int = 0,
    machine: str | None = None,
) -> Path:
    """Writes an executable stand-in to `target`.

    `module` is that of the stand-in, `baked` its faults. With `machine`, the file
    claims to be for that one.
    """
    machine = machine or platform.machine()
    head = elf_head(machine) if machine in MACHINES else b"#!" + PYTHON + b" -IS\n"
    if machine == platform.machine() and machine != "x86_64":
        head = b"#!" + PYTHON + b" -IS\n"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(head + build_archive(module, baked or {}, ballast_mib))
    target.chmod(0o755)
    return target


def build_payload(
    directory: Path,
    version: str = "v0.9.2",
    fault: str | Mapping[str, object] = "",
    ballast_mib: int = 0,
    machine: str | None = None,
) -> Path:
    """Unpacks, so to speak, a release of cri-resource-manager into `directory`.

    `fault` is what goes wrong when it starts (see standins/cri_resmgr.py: a
    `startup` word, or several faults as a mapping); `ballast_mib` makes the
    binary as large as real ones. Returns `directory`.

    Where the real program is named (see `real`), it is the binary of each good
    version, the same but for some bytes at its end; a version with a fault is
    always a stand-in.
    """
    baked: dict[str, object] = {"startup": fault} if isinstance(fault, str) and fault else {}
    if not isinstance(fault, str):
        baked.update(fault)
    baked["version"] = version
    binary, good = directory / "opt/intel/bin/cri-resmgr", real.named("cri-resmgr")
    if good and not fault and machine in (None, platform.machine()):
        binary.parent.mkdir(parents=True, exist_ok=True)
        binary.unlink(missing_ok=True)
        binary.write_bytes(good.read_bytes() + f"\n{version}\n".encode())
        binary.chmod(0o755)
    else:
        build_executable(cri_resmgr.__name__, binary, baked, ballast_mib, machine)
    share = directory / "opt/intel/share/doc/cri-resource-manager"
    write(share / "README.md", f"CRI-Resource-Manager {version}, a stand-in\n")
    write(directory / "opt/intel/licenses/cri-resource-manager/LICENSE", "Apache-2.0\n")
    write(directory / "etc/systemd/system/cri-resource-manager.service", UNIT)
    write(directory / "etc/default/cri-resource-manager", ENVIRONMENT)
    write(directory / "etc/cri-resmgr/fallback.cfg.sample", SAMPLE)
    return directory


def lay_payload(host: ThrowawayHost, payload: Path) -> None:
    """Copies a payload to a host's disk as it is, as somebody would by hand."""
    shutil.copytree(payload, host.disk, dirs_exist_ok=True)
