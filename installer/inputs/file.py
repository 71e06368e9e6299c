"""Reads a file that the operator gives: a regular file of at most 1 MiB, and nothing that could block or act.

A pipe without a writer would block for ever, and opening a device can have an effect, so a file is opened for
reading only once it is known to be a regular one.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from installer.errors import InvalidInputError, remedy_for

_SIZE_LIMIT = 1 << 20  # bytes: the most that a ConfigMap may hold
_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFDIR: "a directory",
    stat.S_IFSOCK: "a socket",
}


def open_regular(path: Path) -> int:
    """A descriptor of the file at `path`, symlinks followed, for the caller to close.

    Raises OSError, with the reason as its `strerror` where it is not a regular file.
    """
    found = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        mode = os.fstat(found).st_mode
        if not stat.S_ISREG(mode):
            kind = _KINDS.get(stat.S_IFMT(mode), "something else")
            raise OSError(errno.EINVAL, f"is {kind}, not a regular file", str(path))
        return os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    finally:
        os.close(found)


def read_input(path: Path, hint: str = "") -> bytes:
    """The content of the file. Raises InvalidInputError, with `hint` if the file is missing or unreadable."""
    try:
        with os.fdopen(open_regular(path), "rb") as stream:
            content = stream.read(_SIZE_LIMIT + 1)
    except OSError as error:
        raise InvalidInputError([f"{path}: {_reason(path, error)}"], remedy_for(error) or hint) from None
    if len(content) > _SIZE_LIMIT:
        raise InvalidInputError([f"{path}: larger than {_SIZE_LIMIT >> 20} MiB"])
    return content


def read_if_present(path: Path) -> bytes | None:
    """As `read_input`; None where there is nothing at `path`. A dangling symlink is a fault."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InvalidInputError([f"{path}: {_reason(path, error)}"], remedy_for(error)) from None
    return read_input(path)


def _reason(path: Path, error: OSError) -> str:
    if isinstance(error, FileNotFoundError) and path.is_symlink():
        return "dangling symlink"
    return error.strerror or type(error).__name__
