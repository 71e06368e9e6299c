"""Read what people give: a path that may be anything, and the words for a fault in it."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from installer.errors import InvalidInputError, remedy_for

_WORDING = (
    ("Value error, ", ""),
    ("Input should be a valid integer", "must be a whole number"),
    ("Input should be a valid string", "must be a string"),
    ("Input should be a valid boolean", "must be true or false"),
    ("Input should be a valid tuple", "must be a list"),
    ("Input should be a valid list", "must be a list"),
    ("Input should be a valid mapping", "must be a mapping"),
    ("Input should be a valid dictionary", "must be a mapping"),
    ("Input should be greater than or equal to", "must be at least"),
    ("Input should be less than or equal to", "must be at most"),
    ("Input should be", "must be"),
)
_SHOWN = 80  # characters of a value


def reword(message: str) -> str:
    """A message of pydantic-core's error list in our words: `must be at least 1`."""
    for pydantics, ours in _WORDING:
        message = message.replace(pydantics, ours)
    return message


def shown(value: object) -> str:
    """The value as people recognise it, cut if it is long; for a mapping or list only its kind."""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = repr(value) if isinstance(value, (str, int, float)) else kind(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def kind(value: object) -> str:
    """`a mapping`, `a list`, `a string` ..."""
    names = {"dict": "a mapping", "list": "a list", "str": "a string", "int": "an integer"}
    name = type(value).__name__
    return names.get(name, f"a {name}")


def suggest(word: str, known: Iterable[str]) -> str:
    """`did you mean guardSeconds?` if `word` resembles one of `known`, else all of them."""
    from difflib import get_close_matches  # late: most runs have no fault

    names = {name.lower(): name for name in known}
    plain = word.replace("_", "").lower()
    close = get_close_matches(word.lower(), names, n=1) or get_close_matches(plain, names, n=1)
    return f"did you mean {names[close[0]]}?" if close else f"expected one of {', '.join(names.values())}"


def nearest(path: Path) -> str:
    """A hint about a path that does not exist: `did you mean /root/configs?`, or the part that is missing."""
    from difflib import get_close_matches  # late: most runs have no fault

    parent, name = path.absolute().parent, path.name
    while not parent.exists() and parent != parent.parent:
        parent, name = parent.parent, parent.name
    try:
        names = sorted(entry.name for entry in parent.iterdir())
    except OSError:
        names = []
    close = get_close_matches(name, names, n=1)
    return f"did you mean {parent / close[0]}?" if close else f"{parent} has no {name}"


def is_roots_own(path: str) -> bool:
    """Whether a path that a program remembers still leads to what root has put there: no link is on the way,
    and nobody else can have replaced any part of it."""
    try:
        ways = [os.lstat(way) for way in (Path(path), *Path(path).parents)]
    except OSError:
        return False
    return not any(
        each.st_uid or stat.S_ISLNK(each.st_mode) or (each.st_mode & 0o022 and not _is_sticky(each, position))
        for position, each in enumerate(ways)
    )


def _is_sticky(status: os.stat_result, position: int) -> bool:
    """Whether it is a directory on the way, such as /tmp, in which nobody can replace what root owns."""
    return bool(position and status.st_mode & stat.S_ISVTX)


# An operator's file must be a regular file of at most 1 MiB. Opening a pipe without a writer would block for
# ever, and opening a device can have an effect, so the type is checked before the file is opened for reading.

_SIZE_LIMIT = 1 << 20  # bytes: the limit of a ConfigMap
_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFDIR: "a directory",
    stat.S_IFSOCK: "a socket",
}


def open_regular(path: Path) -> int:
    """A descriptor of the file at `path`, following symlinks. The caller closes it.

    Raises OSError; if it is not a regular file, `strerror` says what it is.
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
    """Like `read_input`, but None if nothing is at `path`. A dangling symlink is a fault."""
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
