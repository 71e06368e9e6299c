"""What `files` does to resolved paths: temp files, durability, trees, free space.

Paths here are as this process sees them; nothing here knows of a host root. Every change of a tree is one
call of `Kernel`, so that a test double sees all of them, in order.
"""

from __future__ import annotations

import array
import contextlib
import errno
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from installer.host.ports import Unwritable
from installer.model.jsontext import sha256_hex

_CHUNK = 1 << 20
_DERIVED = ("security.ima", "security.evm", "trusted.overlay.")  # xattr(7), ima/evm, overlayfs
_FS_IOC_GETFLAGS = 0x80086601  # linux/fs.h
_FS_IMMUTABLE_FL = 0x10


class Kernel:
    """The system calls that change a tree. Content need not survive a power loss without `sync` of the file,
    nor a directory's entries without `sync` of the directory (fsync(2))."""

    def create(self, place: str) -> BinaryIO:
        """A new file, only root's until its mode is set. It must not exist."""
        return open(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")

    def chmod(self, place: str | int, mode: int) -> None:
        os.chmod(place, mode)

    def chown(self, place: str | int, uid: int, gid: int) -> None:
        """Of the link itself if `place` is one."""
        if isinstance(place, int):
            os.fchown(place, uid, gid)
        else:
            os.lchown(place, uid, gid)

    def attribute(self, place: str | int, name: str, value: bytes) -> None:
        """Of the link itself if `place` is one."""
        if isinstance(place, int):
            os.setxattr(place, name, value)
        else:
            os.setxattr(place, name, value, follow_symlinks=False)

    def set_value(self, place: str, value: bytes) -> None:
        """With one write(2): a file in /sys takes each write as a whole."""
        with open(place, "r+b", buffering=0) as file:
            file.write(value)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def symlink(self, target: str, place: str) -> None:
        os.symlink(target, place)

    def mkdir(self, place: str, mode: int) -> None:
        os.mkdir(place, mode)

    def unlink(self, place: str, directory: int | None = None) -> None:
        """`place` is relative to the open `directory`, if given."""
        os.unlink(place, dir_fd=directory)

    def rmdir(self, place: str, directory: int | None = None) -> None:
        os.rmdir(place, dir_fd=directory)

    def sync(self, descriptor: int) -> None:
        os.fsync(descriptor)


def clear(temporary: str, kernel: Kernel) -> None:
    """Remove what a killed write has left. Raises BlockingIOError if that write is still in progress."""
    try:
        descriptor = os.open(temporary, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        kernel.unlink(temporary)  # a symlink, which only the lock holder creates
        return
    try:
        if lock(descriptor, temporary):
            kernel.unlink(temporary)
    finally:
        os.close(descriptor)


def lock(descriptor: int, temporary: str) -> bool:
    """Lock an open temp file for as long as it is open, so that no other process of this program removes it.
    Return whether it still has its name. Raises BlockingIOError if another process has the lock."""
    import fcntl

    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return is_at(descriptor, temporary)


def is_at(descriptor: int, place: str) -> bool:
    """Whether the open file still has this name."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(place))
    except FileNotFoundError:
        return False


def copy(content: bytes | Path, file: BinaryIO) -> str:
    """Write `content` (of a Path: the file's) and return the sha256 of what was written."""
    if isinstance(content, bytes):
        file.write(content)
        return sha256_hex(content)
    # Not copy_file_range(2): the digest has to cover the very bytes that are written.
    import hashlib  # late: it loads OpenSSL

    digest = hashlib.sha256()
    buffer = memoryview(bytearray(_CHUNK))
    with open(content, "rb", buffering=0) as source:
        while count := source.readinto(buffer):
            digest.update(buffer[:count])
            file.write(buffer[:count])
    return digest.hexdigest()


def own(descriptor: int, uid: int, gid: int, kernel: Kernel) -> None:
    """Change the owner, if it differs."""
    status = os.fstat(descriptor)
    if (status.st_uid, status.st_gid) != (uid, gid):
        kernel.chown(descriptor, uid, gid)


def attributes(place: str) -> tuple[tuple[str, str], ...]:
    """A file's extended attributes, values in hex, without those that the kernel derives from the content.
    None if the file system does not support them."""
    with contextlib.suppress(OSError):
        names = sorted(name for name in os.listxattr(place) if not name.startswith(_DERIVED))
        return tuple((name, os.getxattr(place, name).hex()) for name in names)
    return ()


def give_attributes(descriptor: int, given: Iterable[tuple[str, str]], kernel: Kernel) -> None:
    """Set those that the file system accepts: an original without its label is better than no original."""
    for name, value in given:
        with contextlib.suppress(OSError, ValueError):
            kernel.attribute(descriptor, name, bytes.fromhex(value))


@contextlib.contextmanager
def open_directory(place: str) -> Iterator[int]:
    """A directory, open for reading. Refuses a symlink to one. Raises OSError."""
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def sync_directory(directory: str, kernel: Kernel) -> None:
    """Make a rename or removal in `directory` durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with named(directory):
            kernel.sync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def named(place: str) -> Iterator[None]:
    """Give an error of a descriptor the file's path."""
    try:
        yield
    except OSError as error:
        if error.errno and error.filename is None:
            raise OSError(error.errno, error.strerror, place) from error
        raise


def remove_tree(place: str, kernel: Kernel) -> None:
    """Remove a file, symlink, or directory with everything below it. Does not follow symlinks. Leaves mounts:
    it removes the rest, then raises OSError (EBUSY)."""
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except NotADirectoryError:
        kernel.unlink(place)
        return
    except OSError as error:
        if error.errno != errno.ELOOP:  # a symlink
            raise
        kernel.unlink(place)
        return
    try:
        mounts: list[str] = []
        mount = _mount_id(descriptor)
        parent = os.open("..", os.O_RDONLY | os.O_CLOEXEC, dir_fd=descriptor)
        try:
            if _mount_id(parent) != mount:
                raise OSError(errno.EBUSY, "a mount is in the way", place)
        finally:
            os.close(parent)
        _empty(descriptor, place, mount, mounts, kernel)
    finally:
        os.close(descriptor)
    if mounts:
        raise OSError(errno.EBUSY, "a mount is in the way", mounts[0])
    kernel.rmdir(place)


def _empty(descriptor: int, place: str, mount: str, mounts: list[str], kernel: Kernel) -> None:
    """Empty an open directory. Adds the mounts that stay to `mounts`."""
    with os.scandir(descriptor) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_directory in found:
        if not is_directory:
            kernel.unlink(name, descriptor)
            continue
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        child = os.open(name, flags, dir_fd=descriptor)
        try:
            if _mount_id(child) != mount:
                mounts.append(f"{place}/{name}")
                continue
            before = len(mounts)
            _empty(child, f"{place}/{name}", mount, mounts, kernel)
            kept = len(mounts) > before
        finally:
            os.close(child)
        if not kept:
            kernel.rmdir(name, descriptor)


def _mount_id(descriptor: int) -> str:
    """The mount that an open directory belongs to. Device numbers would not show a bind mount."""
    with open(f"/proc/self/fdinfo/{descriptor}") as info:
        return next(line for line in info if line.startswith("mnt_id:"))


def free_bytes(place: str) -> int:
    """Bytes that root may still write there; 0 if no file can be added."""
    status = os.statvfs(place)
    if status.f_files and not status.f_ffree:
        return 0
    return status.f_bfree * status.f_frsize


def unwritable(place: str, *, programs: bool = False) -> Unwritable | None:
    """Why nothing can be created in the directory `place`, or no `programs` can run there; None if they can.
    Of a file, whether it can be replaced and deleted."""
    if not os.path.isdir(place):
        fixed = os.path.isfile(place) and _immutable(place)
        return Unwritable.IMMUTABLE if fixed else Unwritable.NO_DIRECTORY
    flags = os.statvfs(place).f_flag
    if flags & os.ST_RDONLY:
        return Unwritable.READ_ONLY
    if programs and flags & os.ST_NOEXEC:
        return Unwritable.NOEXEC
    if _immutable(place):  # before access(2), which also refuses there
        return Unwritable.IMMUTABLE
    return None if os.access(place, os.W_OK | os.X_OK) else Unwritable.FORBIDDEN


def _immutable(place: str) -> bool:
    """Whether it has the immutable flag, like the `/` of an ostree host."""
    import fcntl

    flags = array.array("l", [0])
    descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(descriptor, _FS_IOC_GETFLAGS, flags)
    except OSError:  # a file system without such flags
        return False
    finally:
        os.close(descriptor)
    return bool(flags[0] & _FS_IMMUTABLE_FL)
