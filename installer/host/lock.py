"""One actor per host: a flock(2) in /run, where only root can write.

The lock ends with the process that holds it. Its file names the holder, and is removed on release. Until a
new holder has written its name, the kernel tells its pid.
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
from pathlib import Path

from installer.errors import BusyHostError, UnservableHostError, remedy_for
from installer.host.chase import parent_of
from installer.host.disk import is_at
from installer.host.files import RootedFiles
from installer.model.paths import LOCK

_ATTEMPTS = 100
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@contextmanager
def host_lock(files: RootedFiles) -> Iterator[None]:
    """Hold the lock during the block. Raises BusyHostError at once if another run has it, UnservableHostError
    if it cannot be acquired."""
    with contextlib.ExitStack() as held:
        try:
            files.make_directory(posixpath.dirname(LOCK))
            place = held.enter_context(parent_of(files.root, LOCK))
            descriptor = _acquire(files, place)
        except OSError as error:
            raise UnservableHostError(
                f"cannot acquire the host lock {LOCK}: {error.strerror or error}",
                f"{remedy_for(error) or 'clear the path'}; nothing was touched",
            ) from error
        held.callback(os.close, descriptor)
        held.callback(_forget, place)  # before the release: afterwards the file may belong to the next holder
        with contextlib.suppress(OSError):  # the name is for people only
            os.ftruncate(descriptor, 0)
            os.write(descriptor, _ourselves().encode("utf-8", "surrogateescape"))
        yield


def lock_holder(files: RootedFiles) -> str:
    """Who holds the lock now, in the holder's own words; empty if nobody does. Does not touch the lock: a run
    that begins at this instant would be refused."""
    try:
        status = files.status(LOCK)
        if status is None or not stat.S_ISREG(status.st_mode):
            return ""
        pid = _taker(files, status)
        return pid and _named(pid, files.read(LOCK) or b"")
    except (OSError, UnservableHostError):
        return ""


def _taker(files: RootedFiles, status: os.stat_result) -> str:
    """The process that has locked the file, by the kernel's list (proc(5), `/proc/locks`); empty if there is
    none, or it is out of sight."""
    try:
        # Of the host's /proc: another one leaves out processes that it does not have.
        locks = files.read("/proc/locks") or Path("/proc/locks").read_bytes()
    except (OSError, UnservableHostError):
        return ""
    file = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    for line in locks.decode().splitlines():
        # "1: FLOCK ADVISORY WRITE <pid> <file> 0 EOF"; one that waits has "->" before FLOCK
        match line.split():
            case [_, "FLOCK", _, _, pid, locked, *_] if locked == file:
                return pid
    return ""


def _named(pid: str, said: bytes) -> str:
    """What the lock's file says, unless a holder before this one has written it."""
    name = said.decode("utf-8", "replace").strip()
    return name if not pid or name.startswith(f"pid {pid} ") else f"pid {pid}"


def _acquire(files: RootedFiles, place: str) -> int:
    for _ in range(_ATTEMPTS):
        with contextlib.ExitStack() as closing:
            descriptor = os.open(place, _FLAGS, 0o600)
            closing.callback(os.close, descriptor)
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EEXIST, "it is not a regular file")
            locked = _lock(descriptor)
            if not is_at(descriptor, place):
                continue  # its last holder removed it after we opened it
            if locked:
                closing.pop_all()
                return descriptor
            pid = _taker(files, status)  # before the name: its holder may be about to write that
            holder = _named(pid, os.pread(descriptor, 4096, 0))
            raise BusyHostError(
                f"another run holds the host lock {LOCK}: {holder or 'holder unknown'}",
                "wait until it has ended, or end it: the lock is released when its process ends",
            )
    raise OSError(errno.EBUSY, "the lock file keeps being replaced")


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _forget(place: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(place)


def _ourselves() -> str:
    return f"pid {os.getpid()} on {os.uname().nodename}: {shlex.join(sys.argv)}\n"
