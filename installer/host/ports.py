"""What the stages may ask of a host: protocols, so that a test hands in a fake and patches nothing.

All paths are absolute host paths; adapters resolve them below the host root and
never follow a symlink out of it. Every wait has a deadline, in seconds; a
deadline that passes is an error.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from installer.model.containers import CgroupState, CpuResources
from installer.model.host import (
    Content,
    FileState,
    Health,
    Identity,
    Machine,
    ProcessState,
    RunningContainer,
    UnitDetail,
    UnitState,
    UnstartedContainer,
)
from installer.model.limits import ANSWER_SECONDS

KnownDigest = Callable[[str, Identity], str | None]
"""(path, identity) -> the digest of a file that need not be read again, or None."""


class Files(Protocol):
    root: Path
    unlabelled: list[str]
    """What was written and did not get the SELinux label that the host's policy says: `PATH: why`."""

    def opened(self, path: str) -> AbstractContextManager[Path]:
        """The object at `path`, symlinks followed below the root (an absolute target starts at the root
        again), as a path for this process and its children: to connect to, run, or pass on. It stays the same
        file or directory, whatever happens to `path`, and is valid while the block lasts.

        Raises FileNotFoundError, and UnservableHostError where a symlink leads out of the root through `..`
        or there are too many symlinks."""
        ...

    def status(self, path: str, *, follow: bool = False) -> os.stat_result | None:
        """stat(2) of the path, links below the root followed or not; None if there is nothing."""
        ...

    def state(self, path: str, known: KnownDigest | None = None) -> FileState:
        """The path as it is, links not followed. Absent parents: ABSENT; a parent that leads out of the host
        root: Kind.OUTSIDE."""
        ...

    def read(self, path: str, limit: int = 1 << 20) -> bytes | None:
        """Up to `limit` bytes of the file (links followed below the root), None if there is none."""
        ...

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
        """Replaces `path` atomically (R5). A file is copied; if `digest` is given and what was
        copied has another, raises InstallerError with the old file in place. The parent must exist.
        Of the extended attributes (FileState) those are set that the file system takes. Raises
        BlockingIOError or FileExistsError where another process is also writing it."""
        ...

    def set_value(self, path: str, text: str) -> None:
        """Writes to a file of the kernel (/sys), in place and at once; it has to be there. Raises OSError if
        the kernel refuses the value."""
        ...

    def link(self, path: str, target: str, uid: int = 0, gid: int = 0) -> None:
        """Replaces `path` atomically by a symlink to `target`."""
        ...

    def remove(self, path: str) -> None:
        """Removes a file or symlink, and makes that durable. Absent is fine."""
        ...

    def make_directory(self, path: str, mode: int = 0o755) -> tuple[str, ...]:
        """Makes `path` and its missing parents; returns those it made, outermost first."""
        ...

    def missing_directories(self, path: str) -> tuple[str, ...]:
        """What `make_directory` would make."""
        ...

    def remove_empty_directory(self, path: str) -> bool:
        """Removes `path` if it is an empty directory; says whether it did."""
        ...

    def remove_tree(self, path: str) -> None:
        """Removes `path` and all below it, never following links nor crossing mounts. Absent is fine."""
        ...

    def sync(self, directory: str) -> None:
        """Makes the names in a directory durable (not the contents), whoever changed them. Absent is fine."""
        ...

    def list(self, path: str) -> tuple[str, ...]:
        """The names in a directory, sorted; empty if it is not one."""
        ...

    def free_bytes(self, path: str) -> int:
        """Bytes free to root on the file system of `path` or of its nearest existing parent."""
        ...

    def unwritable(self, directory: str) -> str:
        """Why nothing can be written to `directory` (or its nearest existing parent), or empty.
        Asks the mount and the permissions; writes nothing."""
        ...


class Systemd(Protocol):
    """The host's system manager. Each method names its systemctl twin."""

    def unit(self, name: str) -> UnitState:
        """`systemctl show NAME`; a unit that does not exist has load_state not-found."""
        ...

    def detail(self, name: str) -> UnitDetail:
        """`systemctl show -p ExecStart,... NAME`."""
        ...

    def daemon_reload(self, timeout: float) -> None:
        """`systemctl daemon-reload`; returns when the manager answers again. Raises SystemdError when it does
        not within `timeout` seconds."""
        ...

    def restart(self, name: str, timeout: float, *, at_once: bool = False) -> str:
        """`systemctl restart NAME`. Returns the job's result: `done`, `failed`, `timeout`,
        `canceled`, `dependency`, `skipped`...; raises SystemdError when refused (start limit,
        masked, not found) or when `timeout` passes (the job is then cancelled). `at_once`
        (`--job-mode=ignore-dependencies`): it waits for no job of another unit."""
        ...

    def stop(self, name: str, timeout: float) -> str:
        """`systemctl stop NAME`; as `restart`."""
        ...

    def arm_start(self, name: str, seconds: float) -> None:
        """`systemd-run --on-active=SECONDS --unit=NAME`: a transient timer of systemd starts the service so
        many seconds from now, also if we are dead by then. A second call counts anew."""
        ...

    def disarm_start(self, name: str) -> None:
        """Ends what `arm_start` has begun, if it has."""
        ...

    def enable(self, name: str) -> None:
        """`systemctl enable --no-reload NAME`."""
        ...

    def disable(self, name: str) -> None:
        """`systemctl disable --no-reload NAME`."""
        ...

    def reset_failed(self, name: str) -> None:
        """`systemctl reset-failed NAME`; a unit that is not loaded is fine."""
        ...

    def kill(self, name: str, signal_number: int) -> None:
        """`systemctl kill --kill-whom=main -s N NAME`."""
        ...


class WatchedSystemd(Systemd, Protocol):
    """A system manager whose units are watched by the default main loop."""

    @property
    def is_listening(self) -> bool:
        """Whether what `listen` was asked for still arrives."""
        ...

    def listen(self, names: Iterable[str], changed: Callable[[], None]) -> None:
        """`changed` is called when a property of one of these units changes, and when systemd reloads.
        Cheap to repeat: only a new connection listens again."""
        ...


class Processes(Protocol):
    def get(self, pid: int) -> ProcessState | None:
        """The process, or None when it has ended (also while being read). Raises OSError."""
        ...


class RuntimeStatus(NamedTuple):
    """CRI Version and Status. `reason` says why the runtime is not ready; `extras` are those parts of Status
    that are newer than Kubernetes 1.29 (`runtime handlers`, `features`)."""

    name: str
    version: str
    api_version: str
    ready: bool
    reason: str = ""
    extras: tuple[str, ...] = ()


class Cri(Protocol):
    """CRI v1 at a unix socket below the host root; endpoints as kubelet writes them."""

    def answers(self, endpoint: str, timeout: float = ANSWER_SECONDS) -> bool:
        """Whether a CRI `Version` call is answered with success in `timeout` seconds: cheap, without
        grpcio. Raises OSError in a shortage."""
        ...

    def status(self, endpoint: str, timeout: float = ANSWER_SECONDS) -> RuntimeStatus:
        """/runtime.v1.RuntimeService/Version, then Status, each within `timeout` seconds. Raises
        StepFailedError with the reason."""
        ...

    def containers(self, endpoint: str, timeout: float = 10.0) -> tuple[RunningContainer, ...]:
        """The running containers. Raises StepFailedError with the reason, and when the runtime answers
        nothing for `timeout` seconds: how long all takes depends on how many there are."""
        ...

    def unstarted(self, endpoint: str, timeout: float = 10.0) -> tuple[UnstartedContainer, ...]:
        """The containers that were created and do not run. Raises StepFailedError with the reason."""
        ...

    def remove(self, endpoint: str, identifier: str, timeout: float = 10.0) -> None:
        """Removes a container that does not run. Raises StepFailedError with the reason."""
        ...

    def update(
        self, endpoint: str, resources: Mapping[str, CpuResources], timeout: float = 10.0
    ) -> dict[str, str]:
        """Sets what running containers may use, by their ID; what is empty or 0 is left as it is. Returns
        the runtime's complaint for each that it refused, or, once it has answered nothing for `timeout`
        seconds, for each that is left. Raises StepFailedError if it cannot be asked."""
        ...

    def cgroup(self, container: RunningContainer) -> CgroupState | None:
        """What the kernel enforces on it now; None if it has ended, or its cgroup is not found."""
        ...


class Healthz(Protocol):
    def ask(self, url: str, pid: int, timeout: float = ANSWER_SECONDS) -> Health:
        """Whether `url` answers 200 in the host's network namespace, if process `pid` listens there; 0:
        whoever does, where nobody can say which process kubelet is. An empty URL is OK. Raises OSError in a
        shortage, UnservableHostError when not allowed to look."""
        ...


class JournalEntries(NamedTuple):
    """The fields of each entry as journalctl(1) has them in JSON, oldest first. `fault` is why the journal
    cannot be read, else empty."""

    entries: tuple[Mapping[str, str], ...]
    fault: str = ""


class Journal(Protocol):
    def entries(self, matches: tuple[str, ...], count: int) -> JournalEntries:
        """The last `count` entries whose fields are as `matches` (`FIELD=value`) say."""
        ...

    def write(self, fields: Mapping[str, str]) -> None:
        """Adds one entry. A host without a journal, or whose journal takes nothing now, is no error."""
        ...

    def sync(self) -> None:
        """As `journalctl --sync`: what was said before can be read afterwards. journald takes the lines of
        units in its own time. Waits a second at most, and fails silently."""
        ...

    def cursor(self) -> str:
        """Where the journal ends now, for `since`; empty if it cannot be read."""
        ...

    def since(self, unit: str, cursor: str) -> tuple[str, ...]:
        """What a unit has said since then, oldest first; empty if it cannot be read."""
        ...

    def tail(self, unit: str, lines: int = 30) -> tuple[str, ...]:
        """The last lines of a unit's journal, oldest first; a reason in brackets if unreadable."""
        ...


class Clock(Protocol):
    def now(self) -> str:
        """Wall-clock time, UTC, RFC 3339 with seconds."""
        ...

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float) -> None:
        """Sleeps. Raises InterruptedRunError as soon as a signal asked the run to end."""
        ...

    def check(self) -> None:
        """Raises InterruptedRunError if a signal asked the run to end: called between two steps."""
        ...


class Validator(Protocol):
    def validate(self, binary: Path, config: bytes) -> str:
        """Runs the payload's own binary privately on a cri-resmgr configuration; returns its
        complaint, its cause first, or an empty string. Leaves nothing on the host. Raises RolledBackError
        where no answer came in time, UnservableHostError where it could not be run."""
        ...

    def see_containers(self, binary: Path, state_directory: Path, runtime: Path, seconds: float) -> str:
        """Runs `binary` with the policy none on the proxy's state and the runtime's socket while the proxy is
        down, at a relay of its own, and kills it when its cache has every running container. Returns its
        complaint or an empty string. Raises as `validate`."""
        ...


@dataclass(frozen=True, slots=True)
class Host:
    """All doors of one host. `lock` is held for a whole converging run; it raises BusyHostError.

    `identity` is the machine, its services left out; it raises OSError. `kubelet_version` returns what a
    kubelet at a host path says of itself (`1.36.2`), or an empty string: it is run for that.
    """

    files: Files
    systemd: Systemd
    processes: Processes
    cri: Cri
    healthz: Healthz
    journal: Journal
    clock: Clock
    validator: Validator
    lock: Callable[[], AbstractContextManager[None]]
    identity: Callable[[], Machine]
    kubelet_version: Callable[[str], str]
