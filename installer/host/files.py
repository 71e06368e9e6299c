"""Files of the host: every write is atomic and durable, every path is resolved below the root.

The root may be `/`, a mount (`/host`) or another process's view (`/proc/<pid>/root`). `chase` resolves the
paths below it.

This module does not decide what is ours, keeps no originals and takes no lock. It raises failures of the file
system (full, read-only, I/O) as OSError with the path.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from installer.errors import InstallerError, UnservableHostError
from installer.host import disk, selinux
from installer.host.chase import components, directories, link_target, opened, parent_of
from installer.host.ports import KnownDigest, Unwritable
from installer.host.selinux import FilePolicy
from installer.model.host import ABSENT, Content, FileState, HostPath, Identity, Kind
from installer.model.jsontext import sha256_hex
from installer.model.paths import TEMPORARY

KEPT_BYTES = 1 << 20  # content of files up to this size is part of their state
_NO_EMPTY_DIRECTORY = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.ENOENT, errno.EBUSY)
# The last two: a process, or a cgroup, ended between open(2) and read(2).
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ESRCH, errno.ENODEV)
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


class RootedFiles:
    """The Files port below `root`. `kernel` makes the changes. With `labels`, new files get the label from
    the host's SELinux policy."""

    _root_user = 0

    def __init__(self, root: Path, kernel: disk.Kernel | None = None, *, labels: bool = False) -> None:
        self.root = root
        self.unlabelled: list[str] = []
        self._kernel = kernel or disk.Kernel()
        self._policy = FilePolicy(self.read) if labels else None

    # -- reading ----------------------------------------------------------------

    @contextlib.contextmanager
    def opened(self, path: str) -> Iterator[Path]:
        """See the port."""
        with opened(self.root, path, follow=True) as (place, _status):
            # Not through /proc/self: for a child that is another process.
            yield Path(place.replace("self", os.readlink("/proc/self"), 1))

    def status(self, path: str, *, follow: bool = False) -> os.stat_result | None:
        try:
            with opened(self.root, path, follow=follow) as (_place, status):
                return status
        except (FileNotFoundError, NotADirectoryError):
            return None

    def state(self, path: str, known: KnownDigest | None = None) -> FileState:
        try:
            with opened(self.root, path, follow=False) as (place, status):
                if stat.S_ISREG(status.st_mode):
                    return _file_state(path, place, status, known)
                if stat.S_ISLNK(status.st_mode):
                    return _plain_state(Kind.SYMLINK, status, link_target(place))
                return _plain_state(Kind.DIRECTORY if stat.S_ISDIR(status.st_mode) else Kind.OTHER, status)
        except (FileNotFoundError, NotADirectoryError):
            return ABSENT
        except UnservableHostError:
            return FileState(Kind.OUTSIDE)

    def read(self, path: str, limit: int = KEPT_BYTES) -> bytes | None:
        try:
            with opened(self.root, path, follow=True) as (place, status):
                if not stat.S_ISREG(status.st_mode):
                    return None
                with open(os.open(place, _READ), "rb") as file:
                    return file.read(limit)
        except OSError as error:
            if error.errno not in _ABSENT:
                raise
            return None

    def list(self, path: str) -> tuple[str, ...]:
        try:
            with opened(self.root, path, follow=True) as (place, _status):
                return tuple(sorted(os.listdir(place)))
        except (FileNotFoundError, NotADirectoryError):
            return ()

    def free_bytes(self, path: str) -> int:
        with self._nearest(path) as place:
            return disk.free_bytes(place)

    def unwritable(self, directory: str, *, programs: bool = False) -> Unwritable | None:
        with self._nearest(directory) as place:
            return disk.unwritable(place, programs=programs)

    def exposed(self, path: str) -> dict[str, str]:
        found = {}
        with contextlib.suppress(UnservableHostError):
            for place, status in directories(self.root, path):
                if why := self._why_exposed(status):
                    found[place] = why
        return found

    def _why_exposed(self, status: os.stat_result) -> str:
        if status.st_uid != self._root_user:
            return f"belongs to user {status.st_uid}, not to root"
        mode = stat.S_IMODE(status.st_mode)
        return f"may be written by others than root (mode {mode:04o})" if mode & 0o022 else ""

    def seal(self, directory: str) -> str:
        status = self.status(directory)
        why = self._why_exposed(status) if status and stat.S_ISDIR(status.st_mode) else ""
        if why:
            with parent_of(self.root, directory) as place, disk.named(directory):
                with disk.open_directory(place) as descriptor:
                    self._kernel.chown(descriptor, self._root_user, -1)
                    self._kernel.chmod(descriptor, 0o755)
                for name in os.listdir(place):
                    if os.lstat(f"{place}/{name}").st_uid != self._root_user:
                        disk.remove_tree(f"{place}/{name}", self._kernel)
        return why

    @contextlib.contextmanager
    def _nearest(self, path: str) -> Iterator[str]:
        """`path`, or its nearest existing parent, open."""
        names = components(path)
        while names and self.status("/".join(names), follow=True) is None:
            names.pop()
        with opened(self.root, "/".join(names), follow=True) as (place, _status):
            yield place

    # -- files and links --------------------------------------------------------

    def write(
        self,
        path: str,
        content: Content,
        mode: int,
        uid: int = 0,
        gid: int = 0,
        digest: str = "",
        attributes: Iterable[tuple[str, str]] = (),
    ) -> None:
        """Replace `path`; see the port. A crash leaves the old or the new file, never a part of one, and at
        worst the temp file beside it, which the next write or the close of the record removes."""
        with (
            self._source(content) as source,
            parent_of(self.root, path) as place,
            self._temporary(place) as temporary,
            disk.named(place),
            self._kernel.create(temporary) as file,
        ):
            if not disk.lock(file.fileno(), temporary):
                raise BlockingIOError(errno.EAGAIN, "another process is writing it")
            written = disk.copy(source, file)
            if digest and written != digest:
                raise InstallerError(
                    f"{path}: not replaced: what was copied has sha256 {written}, not {digest}",
                    "the source changed or was damaged meanwhile: run the same command again",
                )
            file.flush()
            disk.own(file.fileno(), uid, gid, self._kernel)
            self._kernel.chmod(file.fileno(), mode)
            self._label(file.fileno(), path, stat.S_IFREG)
            # After the owner and the mode, which remove capabilities and change an ACL.
            disk.give_attributes(file.fileno(), attributes, self._kernel)
            self._kernel.sync(file.fileno())
            self._kernel.rename(temporary, place)  # while the lock protects its name

    @contextlib.contextmanager
    def _source(self, content: Content) -> Iterator[bytes | Path]:
        if not isinstance(content, HostPath):
            yield content
            return
        with opened(self.root, content.path, follow=False) as (place, status):
            if not stat.S_ISREG(status.st_mode):
                raise InstallerError(f"{content.path} is not a file now")
            yield Path(place)

    def set_value(self, path: str, text: str) -> None:
        with opened(self.root, path, follow=True) as (place, _status), disk.named(path):
            self._kernel.set_value(place, text.encode("ascii", "replace") + b"\n")

    def link(self, path: str, target: str, uid: int = 0, gid: int = 0) -> None:
        with parent_of(self.root, path) as place, self._temporary(place) as temporary:
            self._kernel.symlink(target, temporary)
            status = os.lstat(temporary)
            if (status.st_uid, status.st_gid) != (uid, gid):
                self._kernel.chown(temporary, uid, gid)
            self._label(temporary, path, stat.S_IFLNK)
            self._kernel.rename(temporary, place)

    def _label(self, place: str | int, path: str, kind: int) -> None:
        """Label a new file, directory or symlink. A file without a label is better than no file."""
        try:
            label = self._policy.label(path, kind) if self._policy else ""
            if label:
                self._kernel.attribute(place, selinux.ATTRIBUTE, label.encode() + b"\0")
        except OSError as error:
            self.unlabelled.append(f"{path}: {error.strerror}")

    @contextlib.contextmanager
    def _temporary(self, place: str) -> Iterator[str]:
        """The name of a temp file that the block creates and renames to `place`. It is removed if the block
        fails. Each path has one such name, so a write finds what a killed one has left."""
        directory, name = os.path.split(place)
        temporary = f"{directory}/.{name[:200]}{TEMPORARY}"
        with disk.named(place):
            disk.clear(temporary, self._kernel)
        try:
            yield temporary
        except (BlockingIOError, FileExistsError):
            raise  # another writer owns the name now
        except BaseException:
            with contextlib.suppress(OSError):
                self._kernel.unlink(temporary)
            raise
        disk.sync_directory(directory, self._kernel)

    def remove(self, path: str) -> None:
        with self._parent_if_any(path) as place:
            if place is None:
                return
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                self._kernel.unlink(place)
            # Even if nothing was removed: a killed run may have removed it without syncing.
            disk.sync_directory(os.path.dirname(place), self._kernel)

    def move(self, path: str, target: str) -> None:
        with parent_of(self.root, path) as place, parent_of(self.root, target) as new, disk.named(place):
            self._kernel.rename(place, new)
            for changed in (new, place):
                disk.sync_directory(os.path.dirname(changed), self._kernel)

    @contextlib.contextmanager
    def _parent_if_any(self, path: str) -> Iterator[str | None]:
        """`parent_of`, or None if a parent does not exist."""
        with contextlib.ExitStack() as stack:
            try:
                place = stack.enter_context(parent_of(self.root, path))
            except (FileNotFoundError, NotADirectoryError):
                place = None
            yield place

    # -- directories ------------------------------------------------------------

    def sync(self, directory: str) -> None:
        with (
            contextlib.suppress(FileNotFoundError, NotADirectoryError),
            opened(self.root, directory, follow=True) as (place, _status),
        ):
            disk.sync_directory(place, self._kernel)

    def make_directory(self, path: str, mode: int = 0o755) -> tuple[str, ...]:
        missing = self.missing_directories(path)
        for directory in missing:
            with parent_of(self.root, directory) as place:
                self._kernel.mkdir(place, mode)
                with disk.open_directory(place) as descriptor:
                    self._kernel.chmod(descriptor, mode)  # whatever the umask is
                    self._label(descriptor, directory, stat.S_IFDIR)
                disk.sync_directory(os.path.dirname(place), self._kernel)
        return missing

    def missing_directories(self, path: str) -> tuple[str, ...]:
        """See the port. Raises UnservableHostError if a file or a dangling link is in the way."""
        names = components(path)
        prefixes = ["/" + "/".join(names[:count]) for count in range(1, len(names) + 1)]
        missing = []
        for prefix in prefixes:
            status = self.status(prefix, follow=True)
            if status is not None and stat.S_ISDIR(status.st_mode):
                continue
            if status is not None or self.status(prefix, follow=False) is not None:
                raise UnservableHostError(
                    f"{prefix} is in the way: a directory is needed there",
                    "it is a file or a dangling symlink",
                )
            missing.append(prefix)
        return tuple(missing)

    def remove_empty_directory(self, path: str) -> bool:
        with self._parent_if_any(path) as place:
            if place is None:
                return False
            removed = True
            try:
                self._kernel.rmdir(place)
            except OSError as error:
                if error.errno not in _NO_EMPTY_DIRECTORY:
                    raise
                removed = False
            if not path.startswith("/sys/"):  # the kernel refuses to sync it
                disk.sync_directory(os.path.dirname(place), self._kernel)
            return removed

    def remove_tree(self, path: str) -> None:
        """See the port. Raises OSError (busy) if a mount is below it, after removing the rest."""
        with self._parent_if_any(path) as place:
            if place is None:
                return
            if os.path.lexists(place):
                disk.remove_tree(place, self._kernel)
            disk.sync_directory(os.path.dirname(place), self._kernel)


def _plain_state(kind: Kind, status: os.stat_result, target: str = "") -> FileState:
    return FileState(
        kind,
        stat.S_IMODE(status.st_mode),
        status.st_uid,
        status.st_gid,
        target=target,
        identity=Identity.of(status),
    )


def _file_state(path: str, place: str, status: os.stat_result, known: KnownDigest | None) -> FileState:
    """A regular file. A large one is read only if its identity does not tell its digest."""
    identity = Identity.of(status)
    content = None
    large = status.st_size > KEPT_BYTES
    digest = known(path, identity) if large and known else None
    if digest is None:
        with open(os.open(place, _READ), "rb", buffering=0) as file:
            if large:
                import hashlib  # late: it loads OpenSSL

                digest = hashlib.file_digest(file, "sha256").hexdigest()
            else:
                content = file.readall()[:KEPT_BYTES]
                digest = sha256_hex(content)
    return FileState(
        Kind.FILE,
        stat.S_IMODE(status.st_mode),
        status.st_uid,
        status.st_gid,
        status.st_size,
        digest,
        content=content,
        identity=identity,
        attributes=disk.attributes(place),
    )
