"""The sha256 of small contents, without OpenSSL.

hashlib loads OpenSSL, 3.4 MB of each process that does: more than the daemon's own code. Python has a sha256
of its own, in a module that random uses in the same way. It is nine times slower (0.6 s for 40 MB), so large
files are left to hashlib.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any


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
