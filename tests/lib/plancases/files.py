"""The port `Files` on a dictionary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from hashlib import sha256
from os import stat_result
from pathlib import Path

from installer.host.ports import KnownDigest
from installer.model.host import ABSENT, FileState, HostPath, Kind


def file_state(content: bytes, mode: int = 0o644, uid: int = 0, gid: int = 0) -> FileState:
    digest = sha256(content).hexdigest()
    return FileState(Kind.FILE, mode, uid, gid, len(content), digest, content=content)


class MemoryFiles:
    """What a record needs of the port. Directories are there when they are needed."""

    def __init__(self, at: Mapping[str, FileState]) -> None:
        self.at = dict(at)
        self.root = Path("/")
        self.unlabelled: list[str] = []

    def state(self, path: str, known: KnownDigest | None = None) -> FileState:
        return self.at.get(path, ABSENT)

    def exposed(self, path: str) -> dict[str, str]:
        return {}

    def seal(self, directory: str) -> str:
        return ""

    def read(self, path: str, limit: int = 1 << 20) -> bytes | None:
        return self.state(path).content

    def write(
        self,
        path: str,
        content: bytes | Path | HostPath,
        mode: int,
        uid: int = 0,
        gid: int = 0,
        digest: str = "",
        attributes: Iterable[tuple[str, str]] = (),
    ) -> None:
        if isinstance(content, bytes):
            self.at[path] = file_state(content, mode, uid, gid)
        elif isinstance(content, HostPath):
            self.at[path] = replace(self.at[content.path], mode=mode, uid=uid, gid=gid)
        else:
            self.at[path] = FileState(Kind.FILE, mode, uid, gid, digest=digest)

    def link(self, path: str, target: str, uid: int = 0, gid: int = 0) -> None:
        self.at[path] = FileState(Kind.SYMLINK, 0o777, uid, gid, target=target)

    def remove(self, path: str) -> None:
        self.at.pop(path, None)

    def move(self, path: str, target: str) -> None:
        self.at[target] = self.at.pop(path)

    def set_value(self, path: str, text: str) -> None:
        raise FileNotFoundError(path)  # it has no /sys

    def remove_tree(self, path: str) -> None:
        self.at = {name: state for name, state in self.at.items() if not f"{name}/".startswith(f"{path}/")}

    def list(self, path: str) -> tuple[str, ...]:
        below = (name[len(path) + 1 :] for name in self.at if name.startswith(f"{path}/"))
        return tuple(sorted({name.partition("/")[0] for name in below}))

    def make_directory(self, path: str, mode: int = 0o755) -> tuple[str, ...]:
        return ()

    def missing_directories(self, path: str) -> tuple[str, ...]:
        return ()

    def remove_empty_directory(self, path: str) -> bool:
        return False

    def sync(self, directory: str) -> None: ...

    def free_bytes(self, path: str) -> int:
        return 1 << 30

    def unwritable(self, directory: str, *, programs: bool = False) -> None: ...

    def opened(self, path: str) -> AbstractContextManager[Path]:
        raise NotImplementedError

    def status(self, path: str, *, follow: bool = False) -> stat_result | None:
        raise NotImplementedError
