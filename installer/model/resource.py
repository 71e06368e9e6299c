"""Files, units and processes: the values that snapshots and desired states are made of."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from pathlib import Path

from installer.model.paths import GENERATION_VARIABLE, RELAY_ENDPOINT, UNIT_VARIABLE, same_endpoint


class Part(StrEnum):
    """What a resource belongs to, and so whose restart a change of it may need."""

    PROXY = "proxy"
    KUBELET = "kubelet"


class Kind(StrEnum):
    ABSENT = "absent"
    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    OTHER = "other"  # device, socket, fifo


@dataclass(frozen=True, slots=True)
class Identity:
    """What tells, without reading it, that a file is the one whose digest we know."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> Identity:
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@dataclass(frozen=True, slots=True)
class FileState:
    """One path of the host as it is. `digest` is sha256 in hex, of files only.

    `content` is kept for files of up to 1 MiB, so that a diff can be shown
    without a second look at the host; `target` is a symlink's. `attributes` are
    extended ones (ACLs, labels, capabilities) as (name, value in hex): they come
    back with an original, where its file system takes them, and differ for nobody.
    """

    kind: Kind
    mode: int = 0
    uid: int = 0
    gid: int = 0
    size: int = 0
    digest: str = ""
    target: str = ""
    content: bytes | None = field(default=None, repr=False, compare=False)
    identity: Identity | None = field(default=None, repr=False, compare=False)
    attributes: tuple[tuple[str, str], ...] = field(default=(), repr=False, compare=False)


ABSENT = FileState(Kind.ABSENT)


@dataclass(frozen=True, slots=True)
class HostPath:
    """A file of the host, where a Path is one that this process reaches by itself."""

    path: str


@dataclass(frozen=True, slots=True)
class PayloadFile:
    """Content that stays where it is until it is copied."""

    source: Path | HostPath
    digest: str
    size: int


@dataclass(frozen=True, slots=True)
class DesiredFile:
    """One file of ours: root's, `mode`, with `content`.

    `digest` is sha256 in hex of the content. `generation_carrier` marks the
    environment file that a unit is started from: its generation line is what
    the running process testifies (and what reads `pending-...` in between).
    """

    path: str
    content: bytes | PayloadFile
    mode: int
    part: Part
    digest: str
    generation_carrier: bool = False


@dataclass(frozen=True, slots=True)
class ExecLine:
    """One Exec line as systemd has loaded it: specifiers expanded, `$X` kept."""

    path: str
    argv: tuple[str, ...]


class Health(Enum):
    """What kubelet says of itself. FOREIGN: another process holds the address, so kubelet cannot be asked:
    any user of the node may take that port while kubelet is away."""

    OK = "ok"
    UNWELL = "unwell"
    FOREIGN = "foreign"


@dataclass(frozen=True, slots=True)
class UnitState:
    """A unit as systemd has it now; the names are systemd's properties."""

    name: str
    load_state: str = "not-found"
    active_state: str = "inactive"
    sub_state: str = "dead"
    unit_file_state: str = ""
    need_daemon_reload: bool = False
    n_restarts: int = 0
    result: str = "success"
    invocation_id: str = ""
    main_pid: int = 0
    environment: tuple[str, ...] = ()
    fragment_path: str = ""
    drop_in_paths: tuple[str, ...] = ()

    @property
    def exists(self) -> bool:
        return self.load_state not in ("not-found", "")

    @property
    def running(self) -> bool:
        return self.active_state in ("active", "reloading") and self.main_pid > 0

    @property
    def flapping(self) -> bool:
        """Whether the unit is down or between two tries although it should run."""
        return self.active_state == "failed" or self.sub_state == "auto-restart"

    @property
    def restarts_itself(self) -> bool:
        """Whether systemd has started it again since somebody has, or is about to."""
        return self.n_restarts > 0 or self.sub_state == "auto-restart"

    @property
    def loaded_digest(self) -> str:
        """The digest of our text that systemd itself has loaded, or an empty string."""
        return dict(pair.partition("=")[::2] for pair in self.environment).get(UNIT_VARIABLE, "")


@dataclass(frozen=True, slots=True)
class UnitDetail:
    """More of a unit, asked only where a plan needs it (properties of systemd.service).

    `environment_files` are (path, optional) in the order of reading.
    """

    exec_start: tuple[ExecLine, ...] = ()
    exec_start_pre: tuple[ExecLine, ...] = ()
    environment_files: tuple[tuple[str, bool], ...] = ()
    timeout_start_usec: int = 0


@dataclass(frozen=True, slots=True)
class ProcessState:
    """A running process: command line, environment, executable (as /proc names it). `age` is seconds since
    its start, `cpu` those of CPU time that it has used, all its threads together."""

    pid: int
    argv: tuple[str, ...]
    environ: Mapping[str, str]
    exe: str = ""
    age: float = field(default=0.0, compare=False)
    cpu: float = field(default=0.0, compare=False)

    @property
    def generation(self) -> str:
        """The generation this process was started from, or an empty string."""
        return self.environ.get(GENERATION_VARIABLE, "")

    @property
    def uses_relay(self) -> bool:
        """Whether this kubelet process talks to the relay."""
        endpoint = self.flag("--container-runtime-endpoint")
        return endpoint is not None and same_endpoint(endpoint, RELAY_ENDPOINT)

    def flag(self, name: str) -> str | None:
        """The value of the last `--name value` or `--name=value`, or None."""
        return last_flag(self.argv, name)


def last_flag(argv: tuple[str, ...], name: str) -> str | None:
    """The value of the last `--name value` or `--name=value` in a command line, or None. An underscore in a
    flag's name is a hyphen, as kubelet reads it."""
    value = None
    for index, word in enumerate(argv):
        found, equals, behind = word.partition("=")
        if found.replace("_", "-") != name:
            continue
        if equals:
            value = behind
        elif index + 1 < len(argv):
            value = argv[index + 1]
    return value
