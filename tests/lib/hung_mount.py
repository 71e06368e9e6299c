"""A mount whose server never answers, as of an NFS server that is gone."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_FORCE, _DETACH = 1, 2  # umount2(2)
_LIBC = ctypes.CDLL(None, use_errno=True)


@contextmanager
def hung_mount(place: Path) -> Iterator[None]:
    """From now on, and until the end, who looks at `place` waits. Raises OSError where FUSE is missing."""
    place.mkdir(parents=True, exist_ok=True)
    server = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={server},rootmode=40000,user_id=0,group_id=0"
    try:
        _check(_LIBC.mount(b"hung", bytes(place), b"fuse", 0, options.encode()))
        try:
            yield
        finally:
            _check(_LIBC.umount2(bytes(place), _FORCE | _DETACH))
    finally:
        os.close(server)  # who waits gets ENOTCONN


def _check(code: int) -> None:
    if code:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
