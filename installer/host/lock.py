"""One actor per host: two locks of flock(2), which end with the process that holds them.

The one below /run/lock is the contract; every release of this program takes it. But /run/lock is writable for
everybody: a directory at the lock's path, or a full file system, must not keep the host from an installation,
a removal or a rescue. Therefore the same lock is also taken in /run, where only root can write, and one of
the two is enough. Each file names its holder and is removed when the lock is released.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import posixpath
import shlex
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from installer.errors import BusyHostError, UnservableHostError, remedy_for
from installer.host.chase import parent_of
from installer.host.files import RootedFiles
from installer.model.paths import LOCK, LOCK_OF_ROOT

_ATTEMPTS = 100
_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@contextmanager
def host_lock(files: RootedFiles) -> Iterator[None]:
    """Holds the lock while the block lasts. Raises BusyHostError at once when another run has it,
    UnservableHostError where neither of the two can be acquired."""
    failures: list[OSError | UnservableHostError] = []
    with contextlib.ExitStack() as held:
        for path in (LOCK_OF_ROOT, LOCK):
            try:
                held.enter_context(_locked(files, path))
            except (OSError, UnservableHostError) as error:
                failures.append(error)
        if len(failures) == 2:
            hint = next((remedy_for(error) for error in failures if isinstance(error, OSError)), "")
            raise UnservableHostError(
                f"cannot acquire the host lock: {'; '.join(map(str, failures))}",
                f"{hint or 'clear the path'}; nothing was touched",
            )
        yield


@contextmanager
def _locked(files: RootedFiles, path: str) -> Iterator[None]:
    """Raises OSError, UnservableHostError, BusyHostError."""
    files.make_directory(posixpath.dirname(path))
    with parent_of(files.root, path) as place:
        descriptor = _acquire(place, path)
        try:
            with contextlib.suppress(OSError):  # the name is for people only
                os.ftruncate(descriptor, 0)
                os.write(descriptor, _ourselves().encode("utf-8", "surrogateescape"))
            yield
        finally:
            # Unlinked before it is released: afterwards the file might be the next holder's.
            with contextlib.suppress(OSError):
                os.unlink(place)
            os.close(descriptor)


def _acquire(place: str, path: str) -> int:
    for _ in range(_ATTEMPTS):
        _clear(place)
        try:
            descriptor = _open(place)
        except (IsADirectoryError, FileNotFoundError):
            continue  # replaced since it was cleared
        with contextlib.ExitStack() as closing:
            closing.callback(os.close, descriptor)
            locked = _lock(descriptor)
            if not _is_at(descriptor, place):
                continue  # removed by its last holder, or replaced, since it was opened
            if locked:
                closing.pop_all()
                return descriptor
            holder = os.pread(descriptor, 4096, 0).decode("utf-8", "replace").strip()
            raise BusyHostError(
                f"another run holds the host lock {path}: {holder or 'holder unknown'}",
                "wait until it has ended, or end it: the lock ends with its process",
            )
    raise OSError(errno.EBUSY, "replaced again and again", path)


def _clear(place: str) -> None:
    """Removes an object that is not a lock file of root's; a directory with content is moved aside. Links are
    not followed."""
    try:
        status = os.lstat(place)
    except FileNotFoundError:
        return
    if _is_trusted(status):
        return
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISDIR(status.st_mode):
            os.unlink(place)
            return
        try:
            os.rmdir(place)
        except OSError:
            os.rename(place, f"{place}.aside-{os.urandom(4).hex()}")


def _is_trusted(status: os.stat_result) -> bool:
    """Whether only root can have made it, and for this purpose: another name of it might be a file that
    must not be written to."""
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and status.st_nlink == 1


def _open(place: str) -> int:
    try:
        return os.open(place, os.O_RDWR | os.O_CREAT | _FLAGS, 0o600)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EACCES, errno.EROFS):
            raise
        # An immutable file, or one on a read-only file system: flock(2) does not need to write.
        return os.open(place, os.O_RDONLY | _FLAGS)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(descriptor: int, place: str) -> bool:
    """Whether the open file is the one at `place`, and still one to trust."""
    try:
        status = os.lstat(place)
    except FileNotFoundError:
        return False
    return _is_trusted(status) and os.path.samestat(os.fstat(descriptor), status)


def _ourselves() -> str:
    return f"pid {os.getpid()} on {os.uname().nodename}: {shlex.join(sys.argv)}\n"
