"""Resolve a path below a root, as systemd's chase() does, holding every directory on the way open.

Between a check and the call that relies on it, someone may replace a directory by a symlink. An open
directory stays the same. So each component is opened relative to the one before, symlinks are read and
followed here, below the root, and the final call names the open directory. The kernel never resolves a whole
path by itself.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from installer.errors import UnservableHostError

_LINK_LIMIT = 40  # as the kernel's
_ROOT = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_DIRECTORY = _ROOT | os.O_NOFOLLOW
_ANYTHING = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def parent_of(root: Path, path: str) -> Iterator[str]:
    """The place of `path` in its open directory, for a system call that does not follow the last component.

    Raises FileNotFoundError and NotADirectoryError for an obstacle in the path, and UnservableHostError if a
    symlink leads out of the root through `..` or there are too many. An OSError in the block names the path
    as a process outside the root spells it.
    """
    with _walked(root, path) as way:
        yield way.to_parent()


@contextmanager
def opened(root: Path, path: str, *, follow: bool) -> Iterator[tuple[str, os.stat_result]]:
    """The object at `path`, opened with O_PATH: its place and status. A symlink itself, unless `follow`;
    `link_target` reads it. Raises like `parent_of`."""
    with _walked(root, path) as way:
        yield way.to_end(follow)


@contextmanager
def _walked(root: Path, path: str) -> Iterator[_Way]:
    way = _Way(root, path)
    try:
        yield way
    except OSError as error:
        way.name_in(error)
        raise
    finally:
        way.close()


def resolved(root: Path, path: str) -> tuple[str, os.stat_result]:
    """The path from outside the root, and the status, of what `path` leads to when all links are followed.
    Someone may put a link into that path afterwards, so this is only for callers whom that does not harm.
    Raises like `parent_of`."""
    with _walked(root, path) as way:
        _place, status = way.to_end(follow=True)
        return way.outside(), status


def directories(root: Path, path: str) -> list[tuple[str, os.stat_result]]:
    """Every directory that is passed on the way to `path`, links and `path` itself followed, as far as it
    exists: its path below the root, and its status. Raises UnservableHostError like `parent_of`."""
    with _walked(root, path) as way:
        way.seen.append(("/", os.fstat(way.root)))
        with suppress(FileNotFoundError, NotADirectoryError):
            way.to_end(follow=True)
        return [(name, status) for name, status in way.seen if stat.S_ISDIR(status.st_mode)]


def link_target(place: str) -> str:
    """The target of the symlink that `opened` found at `place`."""
    return os.readlink("", dir_fd=int(place.rpartition("/")[2]))


def components(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]


class _Way:
    """A path being resolved. `_names` are the names of the open directories, without the root."""

    def __init__(self, root: Path, path: str) -> None:
        self._root = root
        self._path = path
        self._pending = components(path)[::-1]
        self._links = 0
        self._names: list[str] = []
        self._open = [os.open(root, _ROOT)]
        self.seen: list[tuple[str, os.stat_result]] = []

    @property
    def root(self) -> int:
        return self._open[0]

    def close(self) -> None:
        for descriptor in self._open:
            os.close(descriptor)

    def to_parent(self) -> str:
        name = self._last()
        return f"{_place(self._open[-1])}/{name}"

    def to_end(self, follow: bool) -> tuple[str, os.stat_result]:
        while True:
            name = self._last()
            self._enter(name, _ANYTHING)
            status = os.fstat(self._open[-1])
            if not (follow and stat.S_ISLNK(status.st_mode)):
                return _place(self._open[-1]), status
            target = os.readlink("", dir_fd=self._open[-1])
            self._leave()
            self._follow(target)

    def _last(self) -> str:
        """The last component; its directory is open then."""
        while self._pending:
            name = self._pending.pop()
            if name == "..":
                self._leave()
            elif not self._pending:
                return name
            else:
                self._descend(name)
        return "."

    def _descend(self, name: str) -> None:
        try:
            self._enter(name, _DIRECTORY)
        except NotADirectoryError:
            try:
                target = os.readlink(name, dir_fd=self._open[-1])
            except OSError:
                target = None
            if target is None:
                raise  # it is a file
            self._follow(target)

    def _enter(self, name: str, flags: int) -> None:
        try:
            self._open.append(os.open(name, flags, dir_fd=self._open[-1]))
        except OSError as error:
            error.filename = self._outside([*self._names, name])
            raise
        self._names.append(name)
        self.seen.append(("/" + "/".join(self._names), os.fstat(self._open[-1])))

    def _leave(self) -> None:
        if not self._names:
            raise UnservableHostError(
                f"{self._path} leads out of the host root {self._root}",
                "the path, or a symlink in it, has too many `..`",
            )
        self._names.pop()
        os.close(self._open.pop())

    def _follow(self, target: str) -> None:
        self._links += 1
        if self._links > _LINK_LIMIT:
            raise UnservableHostError(f"{self._path} goes through too many symlinks", "look for a loop")
        while target.startswith("/") and self._names:
            self._leave()
        self._pending.extend(components(target)[::-1])

    def outside(self) -> str:
        return self._outside(self._names)

    def _outside(self, names: list[str]) -> str:
        return f"{str(self._root).rstrip('/')}/{'/'.join(names)}"

    def name_in(self, error: OSError) -> None:
        """Put the path into an error that names only a descriptor."""
        open_place = _place(self._open[-1])
        for attribute in ("filename", "filename2"):
            named = getattr(error, attribute)
            if isinstance(named, str) and f"{named}/".startswith(f"{open_place}/"):
                setattr(error, attribute, self._outside(self._names) + named[len(open_place) :])


def _place(descriptor: int) -> str:
    """A path that leads to the open object, even after a rename (proc(5))."""
    return f"/proc/self/fd/{descriptor}"
