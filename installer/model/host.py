"""The host as a run sees it, read once: files, units, processes and containers.

The desired state is made of the same values.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from installer.model.containers import NO_MANAGERS, CgroupState, CpuResources, KubeletManagers, same_list
from installer.model.jsontext import sha256_hex
from installer.model.paths import (
    GENERATION_VARIABLE,
    GUARD_VARIABLE,
    RELAY_ENDPOINT,
    UNIT_VARIABLE,
    link_of,
    same_endpoint,
)
from installer.model.proxy import NO_CACHE, ProxyCache

SHELLS = frozenset({"sh", "bash", "dash", "ash", "ksh", "zsh"})


class Part(StrEnum):
    """What a resource belongs to. A change of the resource may restart that unit."""

    PROXY = "proxy"
    KUBELET = "kubelet"


class Kind(StrEnum):
    ABSENT = "absent"
    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    OTHER = "other"  # device, socket, fifo
    OUTSIDE = "path out of the host root"  # through a symlink: our file cannot be there

    @property
    def words(self) -> str:
        return "a special file" if self is Kind.OTHER else f"a {self.value}"


@dataclass(frozen=True, slots=True)
class Identity:
    """Tells, without reading a file, that it is the one whose digest is known."""

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
    """One path of the host as it is. In the record: what was at a path before us, its content kept by its
    digest."""

    kind: Kind = Kind.ABSENT
    mode: int = 0
    uid: int = 0
    gid: int = 0
    size: int = 0
    digest: str = ""  # sha256 in hex, of files only
    target: str = ""  # of a symlink
    # Of files up to 1 MiB, so that a diff needs no second read.
    content: bytes | None = field(default=None, repr=False, compare=False)
    identity: Identity | None = field(default=None, repr=False, compare=False)
    # Extended attributes (ACLs, labels, capabilities): (name, value in hex). They come back with an original,
    # if its file system takes them, and count for no difference.
    attributes: tuple[tuple[str, str], ...] = field(default=(), repr=False, compare=False)

    @property
    def exists(self) -> bool:
        return self.kind not in (Kind.ABSENT, Kind.OUTSIDE)

    @property
    def obstacle(self) -> str:
        """Why no file can be written or deleted there; empty if one can."""
        return _OBSTACLES.get(self.kind, "")


ABSENT = FileState()
_OBSTACLES = {
    Kind.DIRECTORY: "a directory is in the way",
    Kind.OTHER: "a special file is in the way",
    Kind.OUTSIDE: "a symlink in the path leads out of the host root",
}


@dataclass(frozen=True, slots=True)
class HostPath:
    """A file of the host. A Path, in contrast, is one that this process opens by itself."""

    path: str


Content = bytes | Path | HostPath
"""What to write: the bytes, or the file to copy them from."""


@dataclass(frozen=True, slots=True)
class DesiredFile:
    """One of our files, owned by root.

    The record stores it without its content, which is kept by its digest (`good_desired`). Content with
    another digest is never written.
    """

    path: str
    mode: int
    part: Part
    digest: str  # sha256 of the content in hex
    size: int
    # The environment file that a unit starts from. The running process testifies to its generation line,
    # which reads `pending-...` in between.
    generation_carrier: bool = False
    content: Content = field(default=b"", repr=False, compare=False)

    @classmethod
    def of(
        cls, path: str, content: bytes, mode: int = 0o644, part: Part = Part.PROXY, *, carrier: bool = False
    ) -> DesiredFile:
        return cls(path, mode, part, sha256_hex(content), len(content), carrier, content)

    def with_content(self, content: bytes) -> DesiredFile:
        return replace(self, content=content, digest=sha256_hex(content), size=len(content))


@dataclass(frozen=True, slots=True)
class ExecLine:
    """An Exec line as systemd has loaded it: specifiers expanded, `$X` kept."""

    path: str
    argv: tuple[str, ...]


class Health(Enum):
    """What kubelet's healthz says. FOREIGN: another process listens there, so kubelet's health is unknown.
    Any user of the node may take that port while kubelet is away."""

    OK = "ok"
    UNWELL = "unwell"
    FOREIGN = "foreign"


@dataclass(frozen=True, slots=True)
class UnitState:
    """A unit as systemd has it now. The names are systemd's properties."""

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
    has_job: bool = False  # systemd starts or stops it, or is about to
    came_up: bool = False  # its last start has come to its end, whatever became of it since
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
    def starts(self) -> bool:
        """Whether it is alive and only slow to start."""
        return self.active_state in ("activating", "active") and self.main_pid > 0 and not self.flapping

    @property
    def between_restarts(self) -> bool:
        """Whether it has ended, and systemd starts it again by itself. Since systemd 254 there are two states
        of this: the second, when the delay is over and the start is a job."""
        return self.sub_state in ("auto-restart", "auto-restart-queued")

    @property
    def flapping(self) -> bool:
        """Whether the unit is down, or between two restarts, although it should run."""
        return self.active_state == "failed" or self.between_restarts

    @property
    def identifier(self) -> str:
        """What the journal calls it: its name may be an alias."""
        found = self.fragment_path.rpartition("/")[2]
        return self.name if "@" in found or not found else found

    @property
    def restarts_itself(self) -> bool:
        """Whether systemd has restarted it since the last start by hand, or is about to."""
        return self.n_restarts > 0 or self.between_restarts

    @property
    def loaded_digest(self) -> str:
        """The digest of our text that systemd has loaded; empty if it has none."""
        return dict(pair.partition("=")[::2] for pair in self.environment).get(UNIT_VARIABLE, "")


@dataclass(frozen=True, slots=True)
class UnitDetail:
    """More properties of a unit (systemd.service(5)), read only where a plan needs them."""

    exec_start: tuple[ExecLine, ...] = ()
    exec_start_pre: tuple[ExecLine, ...] = ()
    environment_files: tuple[tuple[str, bool], ...] = ()  # (path, optional), in the order of reading
    timeout_start_usec: int = 0


@dataclass(frozen=True, slots=True)
class ProcessState:
    """A running process."""

    pid: int
    argv: tuple[str, ...]
    environ: Mapping[str, str]
    exe: str = ""  # the executable, as /proc names it
    age: float = field(default=0.0, compare=False)  # seconds since its start
    cpu: float = field(default=0.0, compare=False)  # seconds of CPU time used by all its threads

    @property
    def generation(self) -> str:
        """The generation this process was started from; empty if unknown."""
        return self.environ.get(GENERATION_VARIABLE, "")

    @property
    def is_shell(self) -> bool:
        """Whether it is a shell: one in front of kubelet has not reached its `exec` yet or has none."""
        return bool(self.argv) and is_shell(self.argv[0])

    @property
    def _endpoint(self) -> str:
        """The endpoint on kubelet's command line. A shell whose child is kubelet passes on the variable that
        our guard has composed."""
        composed = self.environ.get(self.environ.get(GUARD_VARIABLE, ""), "") if self.is_shell else ""
        return last_flag((*self.argv, *composed.split()), "--container-runtime-endpoint") or ""

    @property
    def link(self) -> str:
        """The path of our link if it is this kubelet's endpoint, else empty."""
        return link_of(self._endpoint)

    @property
    def names_relay(self) -> bool:
        """Whether this kubelet was started with the relay itself as its endpoint: by another installer, or by
        an earlier version of ours."""
        return same_endpoint(self._endpoint, RELAY_ENDPOINT)

    def flag(self, name: str) -> str | None:
        """The value of the last `--name value` or `--name=value`, or None."""
        return last_flag(self.argv, name)


def is_shell(word: str) -> bool:
    """Whether a shell has this name. A login shell's has a leading hyphen."""
    return word.rpartition("/")[2].removeprefix("-") in SHELLS


def last_flag(argv: tuple[str, ...], name: str) -> str | None:
    """The value of the last `--name value` or `--name=value` in a command line, or None. Underscores in a
    flag's name count as hyphens, as for kubelet."""
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


@dataclass(frozen=True, slots=True)
class UnitText:
    """A text file of the host that is not ours."""

    path: str  # the host path it was read from
    text: str


@dataclass(frozen=True, slots=True)
class KubeletSnapshot:
    """Kubelet's unit and main process."""

    unit: UnitState
    process: ProcessState | None = None
    healthy: bool = False  # the unit runs, and healthz answers 200 (or no URL is set)
    foreign_healthz: bool = False  # it runs, but another process listens on the address of its healthz
    by_config: bool = False  # it uses the relay because another installer edited its configuration
    # If its endpoint is our link:
    target: str = ""  # where the link leads, and so its next connection; empty: nowhere
    base: str = ""  # its base endpoint
    # The sockets to which its connections lead; None: unknown. One always leads to the runtime: cadvisor's.
    peers: tuple[str, ...] | None = None
    movable: bool = True  # its connections can be ended, so that it takes up another target

    @property
    def unwell(self) -> bool:
        """Whether it is known to be unhealthy."""
        return not self.healthy and not self.foreign_healthz

    def ails(self, seconds: float) -> bool:
        """Whether it is unhealthy though it was started more than `seconds` ago."""
        return self.unwell and self.process is not None and self.process.age > seconds

    @property
    def linked(self) -> bool:
        """Whether the running process has our link as its endpoint."""
        return self.process is not None and self.process.link != ""

    @property
    def moves(self) -> bool:
        """Whether it can be moved without a restart."""
        return self.linked and self.movable and self.base != ""

    @property
    def on_relay(self) -> bool:
        """Whether the running process uses the relay: a connection of it does, or its next one will."""
        if self.process is None:
            return False
        if not self.linked:
            return self.process.names_relay or self.by_config
        return self._uses_relay or same_endpoint(self.target, RELAY_ENDPOINT)

    def is_at(self, endpoint: str) -> bool:
        """Whether it is linked, its next connection leads to this one of the two endpoints, and none to the
        relay, if that is the other one."""
        relay = same_endpoint(endpoint, RELAY_ENDPOINT)
        return self.linked and same_endpoint(self.target, endpoint) and (relay or not self._uses_relay)

    @property
    def is_silent(self) -> bool:
        """Whether it is known to have no connection to the relay: it has not been moved there, or dials."""
        return self.peers is not None and not self._uses_relay

    @property
    def _uses_relay(self) -> bool:
        return any(same_endpoint(peer, RELAY_ENDPOINT) for peer in self.peers or ())


@dataclass(frozen=True, slots=True)
class ProxySnapshot:
    """The proxy's unit and main process."""

    unit: UnitState
    process: ProcessState | None = None
    links: frozenset[str] = frozenset()  # by which others start it: node/links.py
    relay_answers: bool = False  # the relay has just answered
    starting: bool = False  # it has not served since its start, and is within the time that a start may take
    last_start: float = 0.0  # seconds that its last start took; 0: unknown


@dataclass(frozen=True, slots=True)
class KubeletBase:
    """What kubelet's next start without us consists of, unparsed."""

    detail: UnitDetail = field(default_factory=UnitDetail)
    # The unit file and every drop-in except ours, in the order in which systemd reads them.
    texts: tuple[UnitText, ...] = ()
    # The file of --config; None: not read, because no running kubelet names it.
    config: UnitText | None = None
    # The files of --config-dir in kubelet's order; None as above.
    config_dir: tuple[UnitText, ...] | None = None
    # EnvironmentFile= as systemd names it -> the files found: several for a pattern.
    environment_files: Mapping[str, tuple[UnitText, ...]] = field(default_factory=dict)
    # The program of the command line is a script, which may do anything with its arguments.
    scripted: bool = False
    # `texts` are as a takeover leaves them; the running kubelet may have started from others.
    repaired: bool = False

    def configured(self) -> Iterable[UnitText]:
        """Each file that may name kubelet's endpoint, once."""
        found = [*self.texts, *chain.from_iterable(self.environment_files.values()), *(self.config_dir or ())]
        if self.config is not None:
            found.append(self.config)
        return {text.path: text for text in found}.values()


@dataclass(frozen=True, slots=True)
class Machine:
    """What stays the same during a run."""

    architecture: str  # as the host's `uname -m` prints it (`x86_64`)
    machine_id: str
    hostname: str
    # The existing units among the few whose presence matters (gardener-node-agent ...).
    services: tuple[str, ...] = ()
    cpus: str = ""  # all of its CPUs, offline ones included, as the kernel lists them (`0-3`); empty: unknown


@dataclass(frozen=True, slots=True)
class RunningContainer:
    """A running container."""

    id: str
    name: str
    pod: str
    namespace: str
    through_proxy: bool  # it has the mount /.cri-resmgr, which only the proxy makes
    pod_uid: str = ""
    pid: int = 0  # of its main process
    # What it was created with; None if the runtime reports no known shape.
    created: CpuResources | None = None
    cgroup: CgroupState | None = None  # what the kernel enforces now; None if its cgroup was not found
    # The same in full, as LinuxContainerResources in JSON; of a runtime that reports only the present
    # (CRI-O), its present resources; None if the shape is unknown.
    creation: Mapping[str, int | str] | None = None
    asked: int = 0  # the cpu.shares that kubelet requests for it; 0: unknown
    # Of its creation: file of cgroup v1 -> device (empty: all) -> limit.
    created_io: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """`namespace/pod/name`, or less for a container that kubelet did not create."""
        return "/".join(part for part in (self.namespace, self.pod, self.name) if part) or self.id

    @property
    def pinned(self) -> bool:
        """Whether it is confined to fewer CPUs than it could have."""
        return self.cgroup is not None and not same_list(self.cgroup.cpus, self.cgroup.free_cpus)


class UnstartedContainer(NamedTuple):
    """A container that is not running yet, or never ran: an interrupted StartContainer leaves one."""

    id: str
    pod_uid: str
    name: str
    title: str


@dataclass(frozen=True, slots=True)
class Probe:
    """Facts that cost CRI calls or disk walks, read only if something is to be changed."""

    runtime_error: str = ""  # empty if the runtime answers CRI v1 and is ready
    containers: tuple[RunningContainer, ...] = ()
    unstarted: tuple[UnstartedContainer, ...] = ()
    free_bytes: Mapping[str, int] = field(default_factory=dict)  # by host path
    unwritable: Mapping[str, str] = field(default_factory=dict)  # host path -> why
    obstacles: Mapping[str, str] = field(default_factory=dict)  # host path -> why
    proxy_drop_ins: tuple[UnitText, ...] = ()  # other people's, for the proxy's unit
    missing: frozenset[str] = frozenset()  # paths that kubelet's unit, or those drop-ins, cannot do without
    managers: KubeletManagers = NO_MANAGERS  # what kubelet's own CPU and memory managers have assigned
    kubelet_version: str = ""  # as kubelet reports it; empty if it does not
    newer_status: tuple[str, ...] = ()  # parts of the runtime's Status beyond the CRI of Kubernetes 1.29
    autoscaled: tuple[str, ...] = ()  # pods, `namespace/name`
    returns: tuple[str, ...] = ()  # kernel settings to restore
    cycle: tuple[str, ...] = ()  # see node/ordering.py


_UNKNOWN = Machine("", "", "")
_NO_BASE = KubeletBase()


@dataclass(frozen=True, slots=True)
class HostSnapshot:
    """The host at one instant."""

    proxy: ProxySnapshot
    kubelet: KubeletSnapshot
    files: Mapping[str, FileState] = field(default_factory=dict)  # every path that may be desired or is owned
    hold: str = ""  # why kubelet is held on its base endpoint; empty: it is not
    composed: bool = False  # the guard composed a flag for kubelet's last start
    leftovers: tuple[str, ...] = ()  # cri-resmgr's own directories and files that exist
    cache: ProxyCache = NO_CACHE  # what cri-resmgr keeps across restarts
    machine: Machine = _UNKNOWN
    base: KubeletBase = _NO_BASE
    probe: Probe | None = None  # None until it is needed
    pause: str = ""  # why nothing may be changed; empty: it may
    damaged: frozenset[str] = frozenset()  # digests of kept contents that are damaged or missing
    exposed: Mapping[str, str] = field(default_factory=dict)  # directory on the way to our files -> why
    accepts_plugins: bool = False  # the runtime listens for NRI plugins; read only if one is to follow
    unknown_pods: tuple[str, ...] | None = None  # that the proxy does not know; None: that cannot be told
    may_be_unknown: bool = False  # kubelet was on its base endpoint, and no run has compared the pods since

    @property
    def container_count(self) -> int:
        """The most containers that a start of the proxy has to handle: running or remembered."""
        running = len(self.probe.containers) if self.probe else 0
        return max(running, len(self.cache.containers))

    @property
    def sound(self) -> bool:
        """Whether the environment is in order: kubelet is healthy, and so is the runtime, if it was asked.
        Only then may a generation be blamed (R8)."""
        return self.kubelet.healthy and not (self.probe and self.probe.runtime_error)
