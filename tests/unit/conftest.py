"""The fence: a unit test starts no process, connects to nothing and writes only below tmp_path.

Python's own audit events tell (see "Audit events table" in its documentation), so
that what is used to get out makes no difference. Code under test gets its
effects handed in; whoever trips over this fence has found a door that is not.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator

import pytest

_STARTS = {
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.spawn",
    "os.fork",
    "os.forkpty",
    "pty.spawn",
}
_CONNECTIONS = {"socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo"}
_PATHS = {  # event -> which of its arguments are paths that change
    "os.remove": (0,),
    "os.rename": (0, 1),
    "os.mkdir": (0,),
    "os.rmdir": (0,),
    "os.link": (1,),
    "os.symlink": (1,),
    "os.chmod": (0,),
    "os.chown": (0,),
    "os.truncate": (0,),
    "os.utime": (0,),
    "shutil.rmtree": (0,),
}
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_HARMLESS = ("__pycache__", "/.hypothesis", "/dev/null", *filter(None, (sys.pycache_prefix,)))


class _Fence:
    """Active only while a test runs; an audit hook cannot be removed, only switched off.

    A breach is kept as well as raised: code under test may swallow what is raised.
    """

    def __init__(self) -> None:
        self.allowed: tuple[str, ...] | None = None
        self.programs = False
        self.breaches: list[str] = []

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.allowed is None:
            return
        if (event in _STARTS and not self.programs) or event in _CONNECTIONS:
            self._breach(f"{event} {arguments[:2]!r}")
        elif event == "open":
            path, _mode, flags = (*arguments, None, None)[:3]
            if isinstance(flags, int) and flags & _WRITE_FLAGS:
                self._check_path(event, path)
        elif event in _PATHS:
            for index in _PATHS[event]:
                self._check_path(event, arguments[index])

    def _check_path(self, event: str, path: object) -> None:
        if not isinstance(path, (str, bytes, os.PathLike)):
            return  # a descriptor: its own opening was seen
        text = os.fsdecode(path)
        if not os.path.isabs(text) or any(part in text for part in _HARMLESS):
            return  # relative: to a directory descriptor, whose opening was seen
        if not os.path.realpath(os.path.dirname(text)).startswith(self.allowed or ()):
            self._breach(f"{event} {text}")

    def _breach(self, what: str) -> None:
        self.breaches.append(what)
        raise PermissionError(f"a unit test reached out: {what}")


_fence = _Fence()
sys.addaudithook(_fence)


@pytest.fixture(autouse=True)
def fence(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fails a test that reaches out, also if the code under test hides the error.

    A test module that imports subprocess itself has a program as its subject (kubectl,
    systemd-analyze): it may start processes, and nothing else.
    """
    _fence.breaches.clear()
    _fence.programs = hasattr(request.module, "subprocess")
    _fence.allowed = (os.path.realpath(tmp_path_factory.getbasetemp()),)  # every tmp_path is below it
    try:
        yield
    finally:
        _fence.allowed = None
    assert not _fence.breaches, "a unit test reached out of its tmp_path"


@pytest.fixture
def fence_itself() -> _Fence:
    """For the fence's own tests."""
    return _fence


assert tempfile.gettempdir()  # found before the fence is up: finding it tries to write
