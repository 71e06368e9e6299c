"""One actor per host: a flock below the host's /run/lock, so that it ends with whoever holds it.

The file is removed when the lock is released, and says who holds it meanwhile.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import posixpath
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from installer.errors import BusyHostError, UnservableHostError, failed_on_disk
from installer.host.chase import parent_of
from installer.host.files import RootedFiles
from installer.model.paths import LOCK

_ATTEMPTS = 100


@contextmanager
def host_lock(files: RootedFiles) -> Iterator[None]:
    """Holds the lock while the block lasts. Raises BusyHostError at once when another run has it,
    UnservableHostError where there is no room for one."""
    try:
        with contextlib.ExitStack() as opened:
            files.make_directory(posixpath.dirname(LOCK))
            place = opened.enter_context(parent_of(files.root, LOCK))
            descriptor = _acquire(place)
            directory = opened.pop_all()  # stays open as long as the lock is held
    except OSError as error:
        failure = failed_on_disk("the host's lock cannot be had", error)
        raise UnservableHostError(failure.message, f"{failure.hint}; nothing was touched") from error
    with directory:
        try:
            with contextlib.suppress(OSError):  # who holds it is for people; that it is held does not need it
                os.ftruncate(descriptor, 0)
                os.write(descriptor, _ourselves().encode("utf-8", "surrogateescape"))
            yield
        finally:
            # Before the lock goes: afterwards it might be the next one's file.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(place)
            os.close(descriptor)


def _acquire(place: str) -> int:
    for _ in range(_ATTEMPTS):
        descriptor = _open(place)
        if descriptor is None:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 4096, 0).decode("utf-8", "replace").strip()
            os.close(descriptor)
            raise BusyHostError(
                f"another run holds the host's lock {LOCK}: {holder or 'it has not said who it is'}",
                "wait until it has ended, or end it: the lock goes with its process",
            ) from None
        if _is(descriptor, place):
            return descriptor
        os.close(descriptor)  # released and removed between our open and our lock
    raise BusyHostError(f"the host's lock {LOCK} could not be had: others come and go", "try again")


def _open(place: str) -> int | None:
    """The lock file, or None if what lay there had to be cleared away first: /run/lock may be
    writable for all, and a file of another user's is neither to be trusted nor, by root, to be opened."""
    try:
        descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        status = os.lstat(place)
        if status.st_uid == os.geteuid() and not os.path.islink(place):
            raise
        os.unlink(place)
        return None
    if os.fstat(descriptor).st_uid != os.geteuid():
        os.close(descriptor)
        os.unlink(place)
        return None
    return descriptor


def _is(descriptor: int, place: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(place))
    except FileNotFoundError:
        return False


def _ourselves() -> str:
    return f"pid {os.getpid()} on {os.uname().nodename}: {shlex.join(sys.argv)}\n"
