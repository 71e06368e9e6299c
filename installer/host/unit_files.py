"""The drop-ins of a unit on the disk, and what `systemctl set-property` writes there."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from installer.host.ports import Files
from installer.model import paths

_DIRECTORIES = (paths.CONTROL_UNITS, "/run/systemd/system.control", *paths.UNIT_DIRECTORIES[1:])
_SET = (
    b"# This is a drop-in unit file extension, created via"  # systemd: src/core/unit.c, unit_write_setting()
)
_LIMIT = 1 << 16  # bytes
_INFINITY = (1 << 64) - 1
_DIGITS = 20  # of such a number


def find_drop_ins(files: Files, names: Iterable[str]) -> tuple[str, ...]:
    """Those of a service with these names, in systemd's order: its own, those for a prefix of its name, and
    those for every service. Of two with the same file name, the one in the first directory counts
    (systemd.unit(5))."""
    owners: list[str] = []
    for name in names:
        words = name.removesuffix(".service").split("-")
        owners += [name, *("-".join(words[:count]) + "-.service" for count in range(len(words) - 1, 0, -1))]
    first: dict[str, str] = {}
    for owner, parent in itertools.product((*owners, "service"), _DIRECTORIES):
        directory = f"{parent}/{owner}.d"
        for name in files.list(directory):
            if name.endswith(".conf") and files.read(f"{directory}/{name}", 0) is not None:
                first.setdefault(name, f"{directory}/{name}")
    return tuple(first[name] for name in sorted(first))


def is_listed(path: str) -> bool:
    """Whether `find_drop_ins` looks where this file is. It does not in directories of generators."""
    return path.rsplit("/", 2)[0] in _DIRECTORIES


def set_properties(files: Files, path: str) -> dict[str, int | None] | None:
    """What a file of `systemctl set-property` sets, with each value that is a plain number. systemd applies
    such a file as it writes it. None if it is another file."""
    text = files.read(path, _LIMIT) or b""
    return dict(_values(text.decode("utf-8", "replace"))) if text.startswith(_SET) else None


def _values(text: str) -> Iterator[tuple[str, int | None]]:
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            number = int(value) if value.isdecimal() and len(value) <= _DIGITS else None
            yield key.strip(), _INFINITY if value == "infinity" else number
