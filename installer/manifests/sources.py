"""Reads the files that the operator gives, with the line of every key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from installer.errors import InvalidInputError
from installer.inputs.reading import kind
from installer.inputs.yaml_document import KeyPath, parse_document

_SIZE_LIMIT = 1 << 20  # bytes

Fault = tuple[KeyPath, str]
"""A path in the values, and what is wrong there."""


@dataclass(frozen=True, slots=True)
class Source:
    """A part of the values. `places` says where (`file:line`) each key comes from."""

    data: Mapping[str, Any]
    places: Mapping[KeyPath, str] = field(default_factory=dict)

    def place(self, path: KeyPath) -> str:
        """Return the place of the nearest key that has one; empty if there is none."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path, "")

    def fault(self, path: KeyPath, what: str) -> str:
        """`path: what (file:line)`."""
        place = self.place(path)
        return f"{'.'.join(path)}: {what}" + (f" ({place})" if place else "")


def read_file(path: Path) -> bytes:
    """Read a file or a pipe, as in `--values <(...)`; a node reads files alone.

    Raises InvalidInputError when the file cannot be read or is too large.
    """
    try:
        with path.open("rb") as stream:
            content = stream.read(_SIZE_LIMIT + 1)
    except OSError as error:
        raise InvalidInputError([f"{path}: {error.strerror or type(error).__name__}"]) from None
    if len(content) > _SIZE_LIMIT:
        raise InvalidInputError([f"{path}: larger than {_SIZE_LIMIT >> 20} MiB"])
    return content


def parse_mapping(content: bytes, name: str) -> Source:
    """Parse one YAML document; leave out keys without a value.

    Raises InvalidInputError where it is not a mapping, or cannot be written out again.
    """
    document = parse_document(content, name)
    data = {} if document.data is None else document.data
    if not isinstance(data, dict):
        raise InvalidInputError([f"{name}: must be a mapping, not {kind(data)}"])
    if document.faults:
        raise InvalidInputError(document.faults)
    present = {str(key): value for key, value in data.items() if value is not None}
    places = {path: f"{name}:{line}" for path, line in document.lines.items()}
    return Source(present, {(): name, **places})
