"""The unpacked cri-resource-manager release that is to be installed: found, checked, identified.

Reads a few hundred bytes of the binary where the payload brings its digest or we
know it already; 80 MB otherwise. Writes nothing and runs nothing.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from installer.errors import InvalidInputError
from installer.host.ports import KnownDigest
from installer.model import paths
from installer.model.resource import Identity, PayloadFile

DIGESTS = "SHA256SUMS"
BINARY = paths.BINARY.removeprefix("/")
_TEXT_LIMIT = 1 << 20  # bytes
_MACHINES = {
    2: "sparc",
    3: "i686",
    20: "ppc",
    21: "ppc64le",
    22: "s390x",
    40: "armv7l",
    62: "x86_64",
    183: "aarch64",
    243: "riscv64",
    258: "loongarch64",
}
"""ELF's e_machine (elf.h) as uname(1) -m names it."""


@dataclass(frozen=True, slots=True)
class Payload:
    """`machine` is the binary's, as uname(1) -m says it; empty: any (a script).

    `version` is what the payload says of itself, empty if it says nothing.
    `directory` is where it lies, for messages.
    """

    directory: Path
    binary: PayloadFile
    version: str
    machine: str

    @property
    def source(self) -> Path:
        """The binary."""
        return self.directory / BINARY


def load_payload(directory: Path, known: KnownDigest | None = None) -> Payload:
    """The payload in `directory`, its binary checked to be whole and executable.

    The digest comes from SHA256SUMS (as sha256sum(1) writes it) at the payload's
    top, else from `known` by the binary's identity, else from reading it. Raises
    InvalidInputError with every fault, and what a release contains.
    """
    source = directory / BINARY
    try:
        descriptor = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        why = _why_unreadable(directory, error)
        raise InvalidInputError([f"{source}: {why}"], _hint(directory)) from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise InvalidInputError([f"{source}: not a file"], _hint(directory))
    with os.fdopen(descriptor, "rb") as stream:
        head = _read_at(stream.fileno(), 64, 0)
        faults = (
            []
            if status.st_mode & 0o111
            else [f"{source}: not executable (mode {status.st_mode & 0o7777:04o})"]
        )
        machine, fault = _examine(stream.fileno(), head, status.st_size)
        faults += [f"{source}: {fault}"] if fault else []
        if faults:
            raise InvalidInputError(faults, _hint(directory))
        digest = _listed_digest(directory) or _known_digest(source, status, known)
        if not digest:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return Payload(directory, PayloadFile(source, digest, status.st_size), _version(directory), machine)


def verify_payload(payload: Payload) -> None:
    """Reads the whole binary again; called before it is written to a host.

    Raises InvalidInputError if it is not what its digest says.
    """
    source = payload.source
    try:
        with source.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise InvalidInputError([f"{source}: {error.strerror}"], _hint(payload.directory)) from None
    if digest != payload.binary.digest:
        raise InvalidInputError(
            [f"{source}: its sha256 is {digest}, but it should be {payload.binary.digest}"],
            f"it was damaged or changed after {payload.directory / DIGESTS} was made: unpack it again",
        )


def _hint(directory: Path) -> str:
    return (
        f"--payload must name the unpacked archive cri-resource-manager-<version>.<machine>.tar.gz, "
        f"so that {directory / BINARY} is its whole, executable binary; unpack it again with tar -xzf"
    )


def _why_unreadable(directory: Path, error: OSError) -> str:
    if not directory.exists():
        return f"the payload directory {directory} does not exist"
    if isinstance(error, FileNotFoundError):
        found = (
            ", ".join(sorted(entry.name for entry in directory.iterdir())[:10]) if directory.is_dir() else ""
        )
        return f"missing; the payload has {found}" if found else "missing; the payload is empty"
    return error.strerror or type(error).__name__


def _examine(descriptor: int, head: bytes, size: int) -> tuple[str, str]:
    """The machine a program is for, and what is wrong with it (or an empty string)."""
    if size == 0:
        return "", "empty: the archive was not unpacked to its end"
    if head.startswith(b"#!"):
        return "", ""
    if not head.startswith(b"\x7fELF"):
        return "", f"not a program: it begins with {head[:8]!r}"
    if len(head) < 52 or head[4] not in (1, 2) or head[5] not in (1, 2):
        return "", "truncated: its ELF header is not whole"
    needed = _elf_size(descriptor, head)
    machine_number = struct.unpack_from(_order(head) + "H", head, 18)[0]
    machine = _MACHINES.get(machine_number, f"ELF machine {machine_number}")
    if machine == "ppc64le" and _order(head) == ">":
        machine = "ppc64"
    if needed > size:
        return machine, f"truncated: it has {size} bytes of at least {needed}"
    return machine, ""


def _order(head: bytes) -> str:
    return "<" if head[5] == 1 else ">"


def _elf_size(descriptor: int, head: bytes) -> int:
    """How many bytes the file must have for its segments and its section header table (elf(5))."""
    order, wide = _order(head), head[4] == 2
    if wide and len(head) < 64:
        return 64
    segments_at, sections_at = struct.unpack_from(order + ("QQ" if wide else "II"), head, 32 if wide else 28)
    segment_size, segments, section_size, sections = struct.unpack_from(
        order + "4H", head, 54 if wide else 42
    )
    table = segments_at + segment_size * segments
    ends = [table, sections_at + section_size * sections]
    content = _read_at(descriptor, segment_size * segments, segments_at)
    layout = order + ("8xQ16xQ" if wide else "4xI8xI")
    for start in range(0, len(content) - struct.calcsize(layout) + 1, max(segment_size, 1)):
        offset, length = struct.unpack_from(layout, content, start)
        ends.append(offset + length)
    return int(max(ends))


def _read_at(descriptor: int, length: int, offset: int) -> bytes:
    try:
        return os.pread(descriptor, length, offset)
    except (OSError, OverflowError):
        return b""


def _listed_digest(directory: Path) -> str:
    """The binary's line in SHA256SUMS, or an empty string. Raises InvalidInputError if it is no digest."""
    listing = directory / DIGESTS
    for number, line in enumerate(_text(listing).splitlines(), 1):
        digest, _space, name = line.partition(" ")
        if name[:1] in " *" and name[1:].removeprefix("./") == BINARY:
            if not re.fullmatch(r"[0-9a-fA-F]{64}", digest):
                raise InvalidInputError(
                    [f"{listing}:{number}: not a sha256 digest: {digest!r}"], _hint(directory)
                )
            return digest.lower()
    return ""


def _known_digest(source: Path, status: os.stat_result, known: KnownDigest | None) -> str:
    if known is None:
        return ""
    identity = Identity(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return known(str(source), identity) or ""


def _text(path: Path) -> str:
    """A small file's text; empty if there is none. Raises InvalidInputError if it cannot be read."""
    try:
        with path.open("rb") as stream:
            return stream.read(_TEXT_LIMIT).decode(errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        raise InvalidInputError([f"{path}: {error.strerror}"]) from None


def _version(directory: Path) -> str:
    """From a VERSION file at the payload's top, else from the documentation's directory."""
    words = _text(directory / "VERSION").split()
    if words:
        return words[0][:64]
    return next(_documented_versions(directory), "")


def _documented_versions(directory: Path) -> Iterator[str]:
    documentation = directory / "opt/intel/share/doc"
    names = sorted(entry.name for entry in documentation.iterdir()) if documentation.is_dir() else []
    for name in names:
        match = re.fullmatch(r"cri-resource-manager-(v?[0-9][\w.+~-]*)", name)
        if match:
            yield match[1]
