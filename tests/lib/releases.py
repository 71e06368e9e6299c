"""Programs and unpacked releases, as small as they can be."""

from __future__ import annotations

import struct
from pathlib import Path

from installer.inputs.payload import BINARY


def elf(machine: int = 62, wide: bool = True, little: bool = True, segment: int = 40) -> bytes:
    """A program with one segment of `segment` bytes and a section header table at its end."""
    order = "<" if little else ">"
    header, entry, section = (64, 56, 64) if wide else (52, 32, 40)
    start = header + entry
    head = b"\x7fELF" + bytes([2 if wide else 1, 1 if little else 2, 1]) + bytes(9)
    word = "QQQ" if wide else "III"
    head += struct.pack(
        order + "HHI" + word + "IHHHHHH",
        *(2, machine, 1, 0, header, start + segment, 0, header, entry, 1, section, 1, 0),
    )
    if wide:
        load = struct.pack(order + "IIQQQQQQ", 1, 5, start, 0, 0, segment, segment, 8)
    else:
        load = struct.pack(order + "IIIIIIII", 1, start, 0, 0, segment, segment, 5, 8)
    return head + load + bytes(segment) + bytes(section)


def unpack(directory: Path, content: bytes, mode: int = 0o755) -> Path:
    binary = directory / BINARY
    binary.parent.mkdir(parents=True)
    binary.write_bytes(content)
    binary.chmod(mode)
    return directory
