"""The host as one run sees it, read once: files, units, processes, containers, and what decisions rest on.

The same values make up the desired state.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from pathlib import Path
from typing import NamedTuple

from installer.model.containers import NO_MANAGERS, CgroupState, CpuResources, KubeletManagers, same_list
from installer.model.jsontext import sha256_hex
from installer.model.paths import GENERATION_VARIABLE, RELAY_ENDPOINT, UNIT_VARIABLE, same_endpoint
from installer.model.proxy import NO_CACHE, ProxyCache


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
    OUTSIDE = "path out of the host root"  # by a symlink on the way: our file cannot be there


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
    The record has the state of what was at a path before us; its content is kept by its digest.
    """

    kind: Kind = Kind.ABSENT
    mode: int = 0
    uid: int = 0
    gid: int = 0
    size: int = 0
    digest: str = ""
    target: str = ""
    content: bytes | None = field(default=None, repr=False, compare=False)
    identity: Identity | None = field(default=None, repr=False, compare=False)
    attributes: tuple[tuple[str, str], ...] = field(default=(), repr=False, compare=False)

    @property
    def exists(self) -> bool:
        return self.kind not in (Kind.ABSENT, Kind.OUTSIDE)

    @property
    def obstacle(self) -> str:
        """Why no file can be put there, or deleted; empty if one can."""
        return _OBSTACLES.get(self.kind, "")


ABSENT = FileState()
_OBSTACLES = {
    Kind.DIRECTORY: "a directory is in the way",
    Kind.OTHER: "a special file is in the way",
    Kind.OUTSIDE: "a symlink on the way leads out of the host root",
}


@dataclass(frozen=True, slots=True)
class HostPath:
    """A file of the host, where a Path is one that this process reaches by itself."""

    path: str


Content = bytes | Path | HostPath
"""What is written: itself, or where it stays until it is copied."""


@dataclass(frozen=True, slots=True)
class DesiredFile:
    """One of our files: root's, `mode`, with `content`, whose sha256 in hex is `digest`.

    `generation_carrier` marks the environment file that a unit is started from: its generation line is what
    the running process testifies (and what reads `pending-...` in between). The record has no content: what
    is kept by the digest takes its place (`good_desired`), and nothing of another digest is written.
    """

    path: str
    mode: int
    part: Part
    digest: str
    size: int
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
    def starts(self) -> bool:
        """Whether it lives, and its start is only slow."""
        return self.active_state in ("activating", "active") and self.main_pid > 0 and not self.flapping

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


@dataclass(frozen=True, slots=True)
class UnitText:
    """A text file of the host that is not ours, with the host path it was read from."""

    path: str
    text: str


@dataclass(frozen=True, slots=True)
class KubeletSnapshot:
    """Kubelet's unit and main process. `healthy`: the unit runs and healthz answers 200 (or no URL is
    set). `by_config`: it has the relay from a configuration that another installer has edited.
    `foreign_healthz`: it runs, and cannot be asked: another process holds the address of its healthz."""

    unit: UnitState
    process: ProcessState | None = None
    healthy: bool = False
    foreign_healthz: bool = False
    by_config: bool = False

    @property
    def unwell(self) -> bool:
        """Whether it is known not to be healthy."""
        return not self.healthy and not self.foreign_healthz

    @property
    def on_relay(self) -> bool:
        """Whether the running process uses the relay."""
        return self.process is not None and (self.process.uses_relay or self.by_config)


@dataclass(frozen=True, slots=True)
class ProxySnapshot:
    """The proxy's unit and main process. `linked`: the link that enables the unit exists, which systemd does
    not tell of a unit without a file. `relay_answers`: something answered on the relay just now. `starting`:
    it does not answer yet, has not served since its start, and is within the time that this may take.
    `last_start` is what its start took, in seconds: 0 if it has not served, or if nothing tells."""

    unit: UnitState
    process: ProcessState | None = None
    linked: bool = False
    relay_answers: bool = False
    starting: bool = False
    last_start: float = 0.0


@dataclass(frozen=True, slots=True)
class KubeletBase:
    """What kubelet's next start without us is made of, unparsed.

    `texts` are the fragment and every drop-in except ours, in the order in which systemd reads them. `config`
    is the content of its --config file, `config_dir` the files of --config-dir in the order in which kubelet
    reads them; None if they were not read, because no running kubelet names them.
    `scripted`: the program of its command line is a script, which may do anything with its arguments.
    `environment_files` has, for each EnvironmentFile= of the base as systemd names it, the files found:
    several for a pattern. `repaired`: texts are as a takeover leaves them, and the running kubelet may have
    been started from others.
    """

    detail: UnitDetail = field(default_factory=UnitDetail)
    texts: tuple[UnitText, ...] = ()
    config: UnitText | None = None
    config_dir: tuple[UnitText, ...] | None = None
    environment_files: Mapping[str, tuple[UnitText, ...]] = field(default_factory=dict)
    scripted: bool = False
    repaired: bool = False

    def configured(self) -> Iterator[UnitText]:
        """Each file that may name kubelet's endpoint; one that is read twice comes twice."""
        yield from self.texts
        for found in self.environment_files.values():
            yield from found
        yield from self.config_dir or ()
        if self.config is not None:
            yield self.config


@dataclass(frozen=True, slots=True)
class Machine:
    """What stays the same during a run. `architecture` is as `uname -m` prints it for the host (`x86_64`).
    `services` are those units, of the few whose presence matters, that exist (gardener-node-agent and the
    like). `cpus` are those that it has, offline or not, as the kernel lists them (`0-3`); empty if it does
    not say."""

    architecture: str
    machine_id: str
    hostname: str
    services: tuple[str, ...] = ()
    cpus: str = ""


@dataclass(frozen=True, slots=True)
class RunningContainer:
    """A running container. `through_proxy`: it has the mount /.cri-resmgr, which only the proxy makes.

    `pid` is its main process's. `created` is what it was created with, None if the runtime does not say so in
    a shape that we know. `creation` is the same in full, as LinuxContainerResources in JSON; of a runtime
    that tells only of now (CRI-O), what it has now; None if its form is unknown. `cgroup` is what the kernel
    enforces now, None if its cgroup was not found. `asked` are the cpu.shares that kubelet asks for it, 0 if
    kubelet does not say. `created_io`, of its creation: file of cgroup v1 -> device (empty: all) -> limit.
    """

    id: str
    name: str
    pod: str
    namespace: str
    through_proxy: bool
    pod_uid: str = ""
    pid: int = 0
    created: CpuResources | None = None
    cgroup: CgroupState | None = None
    creation: Mapping[str, int | str] | None = None
    asked: int = 0
    created_io: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """`namespace/pod/name`, or less for a container that kubelet did not create."""
        return "/".join(part for part in (self.namespace, self.pod, self.name) if part) or self.id

    @property
    def pinned(self) -> bool:
        """Whether it may not use all CPUs that it could have."""
        return self.cgroup is not None and not same_list(self.cgroup.cpus, self.cgroup.free_cpus)


class UnstartedContainer(NamedTuple):
    """A container that does not run yet, or never has: a StartContainer that was cut off leaves one."""

    id: str
    pod_uid: str
    name: str
    title: str


@dataclass(frozen=True, slots=True)
class Probe:
    """What costs CRI calls or disk walks, and is asked only when something is to be changed.

    `runtime_error` is empty when the runtime answered CRI v1 and is ready. `free_bytes`, `unwritable` (why)
    and `obstacles` (why) are by host path. `proxy_drop_ins` are other people's for the proxy's unit.
    `managers`: what kubelet's own CPU and memory managers have assigned; `kubelet_version`: what kubelet says
    of itself, if it does. `newer_status`: parts of the runtime's Status that are newer than the CRI of
    Kubernetes 1.29. `returns`: settings of the kernel that come back. `no_nri`: why no plugin runs.
    """

    runtime_error: str = ""
    containers: tuple[RunningContainer, ...] = ()
    unstarted: tuple[UnstartedContainer, ...] = ()
    free_bytes: Mapping[str, int] = field(default_factory=dict)
    unwritable: Mapping[str, str] = field(default_factory=dict)
    obstacles: Mapping[str, str] = field(default_factory=dict)
    proxy_drop_ins: tuple[UnitText, ...] = ()
    managers: KubeletManagers = NO_MANAGERS
    kubelet_version: str = ""
    newer_status: tuple[str, ...] = ()
    returns: tuple[str, ...] = ()
    no_nri: str = ""


_UNKNOWN = Machine("", "", "")
_NO_BASE = KubeletBase()


@dataclass(frozen=True, slots=True)
class HostSnapshot:
    """`files` has every path that may be desired or is owned. `hold` is why kubelet is held on its base
    endpoint, `pause` why nothing may be changed; both are empty if that is not so. `composed`: the guard
    composed a flag for kubelet's last start. `leftovers` are those directories and files of cri-resmgr itself
    that exist, `cache` is what it keeps over restarts. `probe` is None until it is needed. `damaged` are the
    digests of kept contents that are damaged or gone.
    """

    proxy: ProxySnapshot
    kubelet: KubeletSnapshot
    files: Mapping[str, FileState] = field(default_factory=dict)
    hold: str = ""
    composed: bool = False
    leftovers: tuple[str, ...] = ()
    cache: ProxyCache = NO_CACHE
    machine: Machine = _UNKNOWN
    base: KubeletBase = _NO_BASE
    probe: Probe | None = None
    pause: str = ""
    damaged: frozenset[str] = frozenset()

    @property
    def container_count(self) -> int:
        """How many a start of the proxy has to do with, at most: those that run, or that it remembers."""
        running = len(self.probe.containers) if self.probe else 0
        return max(running, len(self.cache.containers))

    @property
    def runtime_ready(self) -> bool:
        """Whether the runtime was asked and is ready, or was not asked."""
        return self.probe is None or not self.probe.runtime_error

    @property
    def sound(self) -> bool:
        """Whether nothing was wrong with the environment: only then may a generation be blamed (R8)."""
        return self.kubelet.healthy and self.runtime_ready
