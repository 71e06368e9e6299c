"""The unpacked cri-resource-manager release to install: found, checked, identified.

Reads a few hundred bytes of the binary if its digest is known or comes with the payload, else all 80 MB.
Writes nothing and runs nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from installer.errors import InvalidInputError, remedy_for
from installer.host.machine import machine_of_elf
from installer.host.ports import KnownDigest
from installer.inputs.reading import nearest, open_regular, read_if_present
from installer.model import paths
from installer.model.host import DesiredFile, Identity, Part

DIGESTS = "SHA256SUMS"
BINARY = paths.BINARY.removeprefix("/")


@dataclass(frozen=True, slots=True)
class Payload:
    """A release."""

    directory: Path
    binary: DesiredFile
    version: str  # as the payload names it; empty: unknown
    machine: str  # of the binary, as `uname -m` names it; empty: any (a script)

    @property
    def source(self) -> Path:
        """The binary."""
        return self.directory / BINARY


def load_payload(directory: Path, known: KnownDigest | None = None) -> Payload:
    """The payload in `directory`, whose binary is checked to be an executable program.

    The digest comes from SHA256SUMS (as sha256sum(1) writes it) at the payload's top, else from `known` by
    the binary's identity, else from reading the binary. Raises InvalidInputError with every fault, and what a
    release contains.
    """
    source = directory / BINARY
    with _opened(source, directory) as stream:
        status = os.fstat(stream.fileno())
        machine, faults = _examine(os.pread(stream.fileno(), 64, 0))
        if not status.st_mode & 0o111:
            faults.append(f"not executable (mode {status.st_mode & 0o7777:04o})")
        if faults:
            raise InvalidInputError([f"{source}: {fault}" for fault in faults], _hint(directory))
        digest = _listed_digest(directory) or (known(str(source), Identity.of(status)) if known else None)
        if not digest:
            digest = _digest_of(stream)
    binary = DesiredFile(paths.BINARY, 0o755, Part.PROXY, digest, status.st_size, content=source)
    return Payload(directory, binary, _version(directory), machine)


def _digest_of(stream: BufferedReader) -> str:
    import hashlib  # late: it loads OpenSSL

    return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def _opened(source: Path, directory: Path) -> Iterator[BufferedReader]:
    """The binary, open for reading. Raises InvalidInputError, also for an OSError in the block."""
    try:
        with os.fdopen(open_regular(source), "rb") as stream:
            yield stream
    except OSError as error:
        reason = _why_unreadable(directory, error)
        raise InvalidInputError([f"{source}: {reason}"], remedy_for(error) or _hint(directory)) from None


def verify_payload(payload: Payload) -> None:
    """Read the whole binary again, before it is written to a host.

    Raises InvalidInputError if it does not match its digest.
    """
    source = payload.source
    with _opened(source, payload.directory) as stream:
        digest = _digest_of(stream)
    if digest != payload.binary.digest:
        raise InvalidInputError(
            [f"{source}: its sha256 is {digest}, expected {payload.binary.digest}"],
            f"it was damaged or changed after {payload.directory / DIGESTS} was made: unpack it again",
        )


def _hint(directory: Path) -> str:
    return (
        f"--payload must name the unpacked archive cri-resource-manager-<version>.<machine>.tar.gz, "
        f"with a complete, executable {directory / BINARY}; unpack it again with tar -xzf"
    )


def _why_unreadable(directory: Path, error: OSError) -> str:
    if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return error.strerror or type(error).__name__  # to look at the directory may fail as well
    if not directory.exists():
        return f"the payload directory {directory} does not exist; {nearest(directory)}"
    if not directory.is_dir():
        return f"the payload {directory} is a file, not the directory of the unpacked release"
    if isinstance(error, FileNotFoundError):
        found = sorted(entry.name for entry in directory.iterdir())
        has = f"has {', '.join(found[:10])}" if found else "is empty"
        return f"missing; the payload {has}"
    return error.strerror or type(error).__name__


def _examine(head: bytes) -> tuple[str, list[str]]:
    """The machine that a program is for, and its faults, from its first 64 bytes.

    A program truncated after its header is found by its checksum and by the private run.
    """
    if not head:
        return "", ["empty: the archive was not unpacked completely"]
    if head.startswith(b"#!"):
        return "", []
    if not head.startswith(b"\x7fELF"):
        return "", [f"not a program: it begins with {head[:8]!r}"]
    if len(head) < 64:
        return "", ["truncated: its ELF header is incomplete"]
    return machine_of_elf(head), []


def _listed_digest(directory: Path) -> str:
    """The binary's line in SHA256SUMS, or an empty string. Raises InvalidInputError if it is not a digest."""
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


def _text(path: Path) -> str:
    """A small file's text; empty if there is no file. Raises InvalidInputError if it cannot be read."""
    return (read_if_present(path) or b"").decode(errors="replace")


def _version(directory: Path) -> str:
    """From a VERSION file at the payload's top, else from the name of its documentation directory."""
    words = _text(directory / "VERSION").split()
    if words:
        return words[0][:64]
    named = (entry.name for entry in directory.glob("opt/intel/share/doc/cri-resource-manager-*"))
    found = (re.fullmatch(r"cri-resource-manager-(v?[0-9][\w.+~-]*)", name) for name in sorted(named))
    return next((match[1] for match in found if match), "")
