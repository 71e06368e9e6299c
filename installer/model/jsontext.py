"""JSON, of which every fault is one kind of error, and sha256 without OpenSSL."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from importlib import import_module
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """What the text says. Raises ValueError, also where it nests too deep for Python to follow."""
    import json  # late: most runs read none

    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None


def to_json(value: Any) -> str:
    """JSON on one line, a dataclass as an object with its fields. Raises TypeError for other types."""
    import json

    return json.dumps(value, default=_fields_of)


def _fields_of(value: Any) -> dict[str, Any]:
    """Without copies, of which `dataclasses.asdict` makes one of everything below."""
    return {each.name: getattr(value, each.name) for each in fields(value)}


# The sha256 of small contents, without OpenSSL.
#
# hashlib loads OpenSSL, 3.4 MB of each process that does: more than the daemon's own code. Python has a
# sha256 of its own, in a module that random uses in the same way. It is nine times slower (0.6 s for 40 MB),
# so large files are left to hashlib.


def sha256_hex(content: bytes) -> str:
    """The digest as 64 hexadecimal digits."""
    digest: str = _SHA256(content).hexdigest()
    return digest


def _find_sha256() -> Callable[[bytes], Any]:
    for name in ("_sha2", "_sha256"):  # of CPython since 3.12, and until 3.11
        try:
            found: Callable[[bytes], Any] = import_module(name).sha256
            return found
        except ImportError:
            continue
    import hashlib  # any other Python

    return hashlib.sha256


_SHA256 = _find_sha256()
