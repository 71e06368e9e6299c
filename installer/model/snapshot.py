"""The host as one run sees it: everything a decision may rest on, read once. See `installer.snapshot`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from installer.model.kubelet_managers import NO_MANAGERS, KubeletManagers
from installer.model.pinning import CgroupState, CpuResources, same_list
from installer.model.proxy_cache import NO_CACHE, ProxyCache
from installer.model.proxy_start import ExpectedStart, LastStart, expect_start
from installer.model.resource import FileState, ProcessState, UnitDetail, UnitState


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
    `last_start` is None if it has not served, or if nothing tells how long that took."""

    unit: UnitState
    process: ProcessState | None = None
    linked: bool = False
    relay_answers: bool = False
    starting: bool = False
    last_start: LastStart | None = None


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
    that tells only of now (CRI-O), what it has now; None if it is told in no shape that we know. `cgroup` is
    what the kernel enforces now, None if its cgroup was not found. `asked` are the cpu.shares that kubelet
    asks for it, 0 if kubelet does not say. `made_at` is when it was created, in seconds since 1970 by the
    host's clock, 0 if the runtime does not say.
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
    made_at: float = 0.0

    @property
    def title(self) -> str:
        """`namespace/pod/name`, or less for a container that kubelet did not create."""
        return "/".join(part for part in (self.namespace, self.pod, self.name) if part) or self.id

    @property
    def pinned(self) -> bool:
        """Whether it may not use all CPUs that it could have."""
        return self.cgroup is not None and not same_list(self.cgroup.cpus, self.cgroup.free_cpus)


class UnstartedContainer(NamedTuple):
    """A container that was created and does not run yet, or never has: where kubelet's StartContainer was cut
    off, the runtime keeps it as long as its pod lives."""

    id: str
    pod_uid: str
    name: str
    title: str


@dataclass(frozen=True, slots=True)
class Probe:
    """What costs CRI calls or disk walks, and is asked only when something is to be changed.

    `runtime_error` is empty when the runtime answered CRI v1 and is ready. `free_bytes`, `unwritable` (why)
    and `obstacles` (why) are by host path. `proxy_drop_ins` are other people's for the proxy's unit.
    `managers` are what kubelet's own CPU and memory managers have assigned, `kubelet_version` is what kubelet
    says of itself, empty if it was not asked or does not say. `newer_status` are those parts of the runtime's
    Status that are newer than the CRI of Kubernetes 1.29.
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


_UNKNOWN = Machine("", "", "")
_NO_BASE = KubeletBase()


@dataclass(frozen=True, slots=True)
class HostSnapshot:
    """`files` has every path that may be desired or is owned. `hold` is why kubelet is held on its base
    endpoint, `pause` why nobody may change anything; both are empty if that is not so. `composed`: the guard
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

    def expect_start(self, policy: str) -> ExpectedStart:
        """What a start of the proxy with this policy may take."""
        last, found = self.proxy.last_start, self.probe.containers if self.probe else ()
        then = sum(last is not None and 0 < one.made_at <= last.at for one in found)
        return expect_start(self.container_count, policy, last, len(found), then)

    @property
    def runtime_ready(self) -> bool:
        """Whether the runtime was asked and is ready, or was not asked."""
        return self.probe is None or not self.probe.runtime_error

    @property
    def sound(self) -> bool:
        """Whether nothing was wrong with the environment: only then may a generation be blamed (R8)."""
        return self.kubelet.healthy and self.runtime_ready
