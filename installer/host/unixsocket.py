"""A unix socket path holds 107 bytes; paths below a host root may be longer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LONGEST = 107  # sockaddr_un, less the closing NUL


@contextmanager
def connectable(path: Path) -> Iterator[str]:
    """A name for the socket that fits, good while the block lasts: `path`, or its directory by descriptor.

    Raises OSError when it is too long and the directory cannot be opened.
    """
    if len(os.fsencode(path)) <= _LONGEST:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
