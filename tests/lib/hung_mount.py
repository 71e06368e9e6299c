"""A mount whose server never answers, as of an NFS server that is gone."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

_FORCE, _DETACH = 1, 2  # umount2(2)
_LIBC = ctypes.CDLL(None, use_errno=True)
_INIT = 26  # linux/fuse.h


@contextmanager
def hung_mount(place: Path, *, for_ever: bool = False) -> Iterator[None]:
    """From now on, and until the end, who looks at `place` waits. Raises OSError where FUSE is missing.

    `for_ever`: not even SIGKILL ends who waits, as if a disk did not answer: the server has taken the
    request."""
    place.mkdir(parents=True, exist_ok=True)
    server = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={server},rootmode=40000,user_id=0,group_id=0"
    try:
        _check(_LIBC.mount(b"hung", bytes(place), b"fuse", 0, options.encode()))
        try:
            if for_ever:
                Thread(target=_take_requests, args=(server,), daemon=True).start()
            yield
        finally:
            _check(_LIBC.umount2(bytes(place), _FORCE | _DETACH))
    finally:
        os.close(server)  # who waits gets ENOTCONN


def _take_requests(server: int) -> None:
    """Answer none but the first."""
    with suppress(OSError):
        while True:
            _length, what, number = struct.unpack_from("=IIQ", os.read(server, 1 << 17))
            if what == _INIT:
                answer = struct.pack("=4I2H2I36x", 7, 31, 1 << 16, 0, 12, 12, 1 << 16, 1)
                os.write(server, struct.pack("=IiQ", 16 + len(answer), 0, number) + answer)


def _check(code: int) -> None:
    if code:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
