"""What the stages may ask of a host: protocols, so that a test passes in a fake and patches nothing.

All paths are absolute host paths. Adapters resolve them below the host root and never follow a symlink out of
it. Every wait has a deadline in seconds, and a deadline that passes is an error.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, Protocol

from installer.model.containers import CgroupState, CpuResources, ReadyPod
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
from installer.model.paths import KUBELET_ROOT

KnownDigest = Callable[[str, Identity], str | None]
"""(path, identity) -> the known digest of a file, which need not be read then, or None."""


class Unwritable(StrEnum):
    """Why nothing can be written to a directory, or no program be started from it."""

    NO_DIRECTORY = "it is not a directory"
    NOEXEC = "its file system is mounted noexec"
    READ_ONLY = "its file system is mounted read-only"
    IMMUTABLE = "it is immutable (chattr +i)"
    FORBIDDEN = "no permission to write to it"


class Files(Protocol):
    root: Path
    unlabelled: list[str]
    """What was written without the SELinux label that the host's policy asks for: `PATH: why`."""

    def opened(self, path: str) -> AbstractContextManager[Path]:
        """The object at `path` as a path for this process and its children, to connect to, run, or pass on.
        Symlinks are followed below the root (an absolute target starts at the root again). During the block
        it stays the same file or directory, whatever happens to `path`.

        Raises FileNotFoundError, and UnservableHostError if a symlink leads out of the root through `..` or
        there are too many symlinks.
        """
        ...

    def status(self, path: str, *, follow: bool = False) -> os.stat_result | None:
        """stat(2) of the path, following links below the root or not; None if nothing is there."""
        ...

    def state(self, path: str, known: KnownDigest | None = None) -> FileState:
        """The path as it is; links are not followed. ABSENT if a parent is missing, Kind.OUTSIDE if a parent
        leads out of the host root."""
        ...

    def read(self, path: str, limit: int = 1 << 20) -> bytes | None:
        """Up to `limit` bytes of the file (links are followed below the root); None if there is no file."""
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
        """Replace `path` atomically (R5). The parent must exist. A file is copied: if the copy's digest is
        not `digest`, if that is given, this raises InstallerError and the old file stays. Of the extended
        attributes (FileState), those are set that the file system accepts. Raises BlockingIOError or
        FileExistsError if another process is writing it as well."""
        ...

    def set_value(self, path: str, text: str) -> None:
        """Write to an existing file of the kernel (/sys), in place and at once. Raises OSError if the kernel
        refuses the value."""
        ...

    def link(self, path: str, target: str, uid: int = 0, gid: int = 0) -> None:
        """Replace `path` atomically by a symlink to `target`."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file or symlink durably. It may be absent."""
        ...

    def move(self, path: str, target: str) -> None:
        """Rename whatever is at `path` durably, within its file system."""
        ...

    def make_directory(self, path: str, mode: int = 0o755) -> tuple[str, ...]:
        """Create `path` and its missing parents; return those it created, outermost first."""
        ...

    def missing_directories(self, path: str) -> tuple[str, ...]:
        """What `make_directory` would create."""
        ...

    def remove_empty_directory(self, path: str) -> bool:
        """Remove `path` if it is an empty directory; return whether it did."""
        ...

    def remove_tree(self, path: str) -> None:
        """Remove `path` and everything below it, without following links or crossing mounts. It may be
        absent."""
        ...

    def sync(self, directory: str) -> None:
        """Make the names in a directory durable (not the contents), whoever changed them. It may be
        absent."""
        ...

    def list(self, path: str) -> tuple[str, ...]:
        """The names in a directory, sorted; empty if it is not a directory."""
        ...

    def free_bytes(self, path: str) -> int:
        """Bytes free for root on the file system of `path` or of its nearest existing parent."""
        ...

    def exposed(self, path: str) -> dict[str, str]:
        """The directories on the way to `path`, links followed, and `path` itself if it is one, that anyone
        but root owns or may write: path -> why. A POSIX ACL that lets somebody write shows as the group's
        bit."""
        ...

    def seal(self, directory: str) -> str:
        """Make an exposed directory of ours root's alone again, and delete what others have put there. Return
        why it was exposed; empty if it was not, or there is none."""
        ...

    def unwritable(self, directory: str, *, programs: bool = False) -> Unwritable | None:
        """Why nothing can be written to `directory` (or its nearest existing parent), or no `programs` can
        run there; None if they can. Checks the mount and the permissions, and writes nothing. A file is
        IMMUTABLE or NO_DIRECTORY."""
        ...


class Connections(Protocol):
    """A process's connections to unix sockets. Each method but `may_cut` raises UnservableHostError if the
    kernel has no such call or does not permit it."""

    def peers(self, pid: int) -> tuple[str, ...]:
        """The names that the other ends are bound to, one for each accepted connection of the process. Empty
        if it has ended."""
        ...

    def may_cut(self, pid: int) -> bool:
        """Whether `cut` is possible here. Never raises."""
        ...

    def cut(self, pid: int, endpoint: str, spared: frozenset[int] = frozenset()) -> int:
        """End the process's connections to the socket that is bound to this path, but not those with these
        inodes; return how many."""
        ...

    def drain(self, pid: int, endpoint: str) -> frozenset[int]:
        """Ask the process, a client of gRPC, to make no further call on its connections to that socket: it
        closes each as soon as it has its answers. Returns the inodes of those for which that was possible."""
        ...

    def has(self, pid: int, sockets: frozenset[int]) -> bool:
        """Whether the process still has one of these open."""
        ...


class Systemd(Protocol):
    """The host's system manager. Each method names its systemctl equivalent."""

    def unit(self, name: str) -> UnitState:
        """`systemctl show NAME`. A unit that does not exist has the load_state not-found."""
        ...

    def detail(self, name: str) -> UnitDetail:
        """`systemctl show -p ExecStart,... NAME`."""
        ...

    def daemon_reload(self, timeout: float) -> None:
        """`systemctl daemon-reload`. Returns when the manager answers again. Raises SystemdError if it does
        not within `timeout` seconds."""
        ...

    def restart(self, name: str, timeout: float, *, at_once: bool = False) -> str:
        """`systemctl restart NAME`. Returns the job's result: `done`, `failed`, `timeout`, `canceled`,
        `dependency`, `skipped`... Raises SystemdError if systemd refuses (start limit, masked, not found) or
        `timeout` passes, which cancels the job. `at_once` (`--job-mode=ignore-dependencies`): do not wait for
        jobs of other units."""
        ...

    def stop(self, name: str, timeout: float) -> str:
        """`systemctl stop NAME`. Otherwise like `restart`, but a unit that does not exist is `done`."""
        ...

    def related(self, name: str, kind: str) -> tuple[str, ...]:
        """The units in this property of a unit: `After`, `Wants` ..., or its own `Names`."""
        ...

    def reset_failed(self, name: str) -> None:
        """`systemctl reset-failed NAME`. The unit need not be loaded."""
        ...

    def kill(self, name: str, signal_number: int) -> None:
        """`systemctl kill --kill-whom=main -s N NAME`."""
        ...


class WatchedSystemd(Systemd, Protocol):
    """A system manager whose units the default main loop watches."""

    @property
    def is_listening(self) -> bool:
        """Whether the signals that `listen` asked for still arrive."""
        ...

    def listen(self, names: Iterable[str], changed: Callable[[], None]) -> None:
        """Call `changed` when a property of one of these units changes, and when systemd reloads. Cheap to
        repeat: only a new connection subscribes again."""
        ...


class Processes(Protocol):
    def get(self, pid: int) -> ProcessState | None:
        """The process; None if it has ended, even while being read. Raises OSError."""
        ...

    def kubelet(self, pid: int) -> ProcessState | None:
        """The kubelet of the service whose main process this is: itself, or what a program that stays in
        front of kubelet has started. A shell is itself. Raises OSError."""
        ...


class RuntimeStatus(NamedTuple):
    """The answers to CRI Version and Status."""

    name: str
    version: str
    api_version: str
    ready: bool
    reason: str = ""  # why the runtime is not ready
    # Parts of Status that are newer than Kubernetes 1.29 (`runtime handlers`, `features`).
    extras: tuple[str, ...] = ()


class Cri(Protocol):
    """CRI v1 at a unix socket below the host root. Endpoints are as kubelet writes them."""

    def answers(self, endpoint: str, timeout: float = ANSWER_SECONDS) -> bool:
        """Whether a CRI `Version` call succeeds within `timeout` seconds. Cheap: no grpcio. Raises OSError in
        a shortage of resources."""
        ...

    def status(self, endpoint: str, timeout: float = ANSWER_SECONDS) -> RuntimeStatus:
        """/runtime.v1.RuntimeService/Version, then Status, each within `timeout` seconds. Raises
        StepFailedError with the reason."""
        ...

    def containers(self, endpoint: str, timeout: float = 10.0) -> tuple[RunningContainer, ...]:
        """The running containers. Raises StepFailedError with the reason, also if the runtime answers nothing
        for `timeout` seconds. The total time depends on the number of containers."""
        ...

    def pods(self, endpoint: str, timeout: float = ANSWER_SECONDS) -> Mapping[str, ReadyPod]:
        """The pods whose sandboxes are ready, by the sandbox's ID. Cheap: no grpcio. Raises StepFailedError
        with the reason."""
        ...

    def unstarted(self, endpoint: str, timeout: float = 10.0) -> tuple[UnstartedContainer, ...]:
        """The containers that were created but do not run. Raises StepFailedError with the reason."""
        ...

    def empty_pods(self, endpoint: str, timeout: float = 10.0) -> tuple[ReadyPod, ...]:
        """The pods whose sandboxes are ready and have no container, not even one that has ended. Raises
        StepFailedError with the reason."""
        ...

    def remove(self, endpoint: str, identifier: str, timeout: float = 10.0) -> None:
        """Remove a container that does not run. Raises StepFailedError with the reason."""
        ...

    def update(
        self, endpoint: str, resources: Mapping[str, CpuResources], timeout: float = 10.0
    ) -> dict[str, str]:
        """Set what running containers may use, by their ID. Empty or 0 leaves a value unchanged. Returns the
        runtime's complaint for each one that it refused and, once it has answered nothing for `timeout`
        seconds, for each remaining one. Raises StepFailedError if it cannot be asked."""
        ...

    def cgroup(self, container: RunningContainer) -> CgroupState | None:
        """What the kernel enforces on it now; None if it has ended or its cgroup is not found."""
        ...


class Healthz(Protocol):
    def ask(self, url: str, pid: int, timeout: float = ANSWER_SECONDS) -> Health:
        """Whether `url` answers 200 in the host's network namespace and a process of the service of `pid`
        listens there. With pid 0 any process may listen, for when kubelet's process is unknown. An empty URL
        is OK. Raises OSError in a shortage of resources, UnservableHostError if the process may not be
        read."""
        ...


class JournalEntries(NamedTuple):
    """The fields of each entry, as journalctl(1) has them in JSON, oldest first."""

    entries: tuple[Mapping[str, str], ...]
    fault: str = ""  # why the journal cannot be read; empty if it can


class Journal(Protocol):
    def entries(self, matches: tuple[str, ...], count: int) -> JournalEntries:
        """The last `count` entries whose fields match `matches` (`FIELD=value`)."""
        ...

    def write(self, fields: Mapping[str, str]) -> None:
        """Add an entry. Does nothing on a host without a journal, or whose journal accepts nothing now."""
        ...

    def sync(self) -> None:
        """Like `journalctl --sync`: afterwards, everything logged before is readable. journald reads the
        lines of units in its own time. Waits a second at most, and fails silently."""
        ...

    def cursor(self) -> str:
        """The present end of the journal, for `since`; empty if it cannot be read."""
        ...

    def since(self, unit: str, cursor: str) -> tuple[str, ...]:
        """What a unit has logged since then, oldest first; empty if it cannot be read."""
        ...

    def tail(self, unit: str, lines: int = 30) -> tuple[str, ...]:
        """The last lines of a unit's journal, oldest first; a reason in brackets if it cannot be read."""
        ...


class Clock(Protocol):
    def now(self) -> str:
        """Wall-clock time, UTC, RFC 3339 with seconds."""
        ...

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float) -> None:
        """Raises InterruptedRunError as soon as a signal asks the run to end."""
        ...

    def sleep_through(self, seconds: float) -> None:
        """The same, whatever signal comes."""
        ...

    def check(self) -> None:
        """Raises InterruptedRunError if a signal has asked the run to end. Called between two steps."""
        ...


class Validator(Protocol):
    def validate(self, binary: Path, config: bytes) -> str:
        """Run the payload's own binary privately with a cri-resmgr configuration. Returns its complaint, the
        cause first, or an empty string. Leaves nothing on the host. Raises RolledBackError if no answer came
        in time, UnservableHostError if it could not be run."""
        ...

    def see_containers(self, binary: Path, state_directory: Path, runtime: Path, seconds: float) -> str:
        """While the proxy is down, run `binary` with the policy none on the proxy's state and the runtime's
        socket, at a relay of its own, and kill it when its cache has every running container. Returns its
        complaint or an empty string. Raises like `validate`."""
        ...


@dataclass(frozen=True, slots=True)
class Host:
    """All doors of one host."""

    files: Files
    systemd: Systemd
    processes: Processes
    connections: Connections
    cri: Cri
    healthz: Healthz
    journal: Journal
    clock: Clock
    validator: Validator
    lock: Callable[[], AbstractContextManager[None]]  # held for a whole converging run; raises BusyHostError
    identity: Callable[[], Machine]  # without its services; raises OSError
    # Runs the kubelet at a host path with --version: `1.36.2`, or an empty string.
    kubelet_version: Callable[[str], str]
    kubelet_root: str = KUBELET_ROOT  # where kubelet keeps its state
    lock_holder: Callable[[], str] = str  # the run that is at work, in its own words; empty if there is none
