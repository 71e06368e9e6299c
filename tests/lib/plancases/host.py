"""A host of values: what each step of a plan leaves behind, with systemd, guard and processes as far as a
plan depends on them. Cut off between two steps, it is what a killed run leaves (R7)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field, replace

from installer.host.kubelet_place import BASE_VARIABLE
from installer.inputs.policy import asked_by_agent
from installer.inputs.settings import Settings
from installer.inputs.systemd_syntax import parse_environment_file
from installer.model import paths
from installer.model.host import (
    ABSENT,
    DesiredFile,
    FileState,
    HostSnapshot,
    Kind,
    KubeletBase,
    KubeletSnapshot,
    Machine,
    Probe,
    ProcessState,
    ProxySnapshot,
    UnitState,
)
from installer.model.paths import normalise_endpoint
from installer.model.plan import Step, StepKind
from installer.model.proxy import NO_CACHE, ProxyCache
from installer.node.kept import object_path
from installer.node.kubelet_command import next_command_line, parse_base
from installer.node.links import find_links
from installer.node.pinning import find_resets
from installer.node.record import Goes, Record, objects_of
from installer.node.takeover import with_texts
from tests.lib.fakes import updated
from tests.lib.plancases.files import MemoryFiles, file_state

KUBELET = "kubelet.service"
_MARK = re.compile(rf"^Environment=({paths.UNIT_VARIABLE}=\w+)$", re.M)
_GIB = 1 << 30


@dataclass
class MemoryHost:
    """A host whose kubelet runs on `base`, and everything of ours that steps bring."""

    base: KubeletBase
    files: MemoryFiles = field(default_factory=lambda: MemoryFiles({}))
    machine: Machine = field(default_factory=lambda: Machine("x86_64", "machine-1", "node-1"))
    cache: ProxyCache = NO_CACHE
    probe: Probe = field(default_factory=lambda: Probe(free_bytes={"/opt/intel/bin": _GIB}))
    proxy: UnitState = field(default_factory=lambda: UnitState(paths.PROXY_UNIT))
    kubelet: UnitState = field(
        default_factory=lambda: UnitState(KUBELET, "loaded", unit_file_state="enabled")
    )
    proxy_process: ProcessState | None = None
    kubelet_process: ProcessState | None = None
    answers: bool = False
    starting: bool = False
    took: float = 0.0  # the proxy's last start, in seconds, if anything tells
    healthy: bool = True
    hold: str = ""
    composed: bool = False
    target: str = ""  # of our link, which kubelet follows at once
    movable: bool = True
    leftovers: tuple[str, ...] = ()
    edited_base: bool = False
    accepts_plugins: bool = True
    unknown_pods: tuple[str, ...] | None = ()
    may_be_unknown: bool = False
    _starts: int = 0
    _loaded: Mapping[str, FileState] = field(default_factory=dict)  # what systemd has read of our unit texts

    def copy(self) -> MemoryHost:
        return replace(self, files=MemoryFiles(copy(self.files.at)))

    def snapshot(self, settings: Settings, record: Record) -> HostSnapshot:
        if not self.proxy.exists:  # systemd looks again for what it has not found
            self._load_proxy()
        drop_in = paths.drop_in(settings.kubelet.drop_in_directory, settings.kubelet.unit)
        texts = self._texts()
        proxy, kubelet = self.proxy, self.kubelet
        if proxy.exists and self._loaded.get(paths.PROXY_UNIT_FILE) != texts.get(paths.PROXY_UNIT_FILE):
            proxy = replace(proxy, need_daemon_reload=True)
        if self.edited_base or self._drop_in(self._loaded) != self._drop_in(texts):
            kubelet = replace(kubelet, need_daemon_reload=True)
        base = self.current_base()
        if self.kubelet_process is None:  # its command line says where its configuration is
            base = replace(base, config=None, config_dir=None)
        wanted = {*paths.OUR_FILES, drop_in, *record.going(Goes.BACK), *map(object_path, objects_of(record))}
        return HostSnapshot(
            ProxySnapshot(
                proxy,
                self.proxy_process,
                frozenset(find_links(self.files)),
                self.answers,
                self.starting,
                self.took,
            ),
            self._kubelet(kubelet),
            {path: self.files.state(path) for path in sorted(wanted)},
            self.hold,
            self.composed,
            self.leftovers,
            self.cache,
            self.machine,
            base,
            accepts_plugins=self.accepts_plugins,
            unknown_pods=self.unknown_pods if self.answers else None,
            may_be_unknown=self.may_be_unknown,
        )

    def _kubelet(self, unit: UnitState) -> KubeletSnapshot:
        process, healthy = self.kubelet_process, self.healthy and unit.running
        if process is None or not process.link:
            return KubeletSnapshot(unit, process, healthy)
        base = self._variables(paths.KUBELET_ENVIRONMENT).get(BASE_VARIABLE, "")
        base = base or process.environ.get(BASE_VARIABLE, "")
        return KubeletSnapshot(
            *(unit, process, healthy),
            target=self.target,
            base=base,
            peers=(base, self.target) if self.target else (base,),
            movable=self.movable,
        )

    def put_base(self) -> None:
        """Lays kubelet's own files where a takeover finds them."""
        for text in self.base.configured():
            self.files.at[text.path] = file_state(text.text.encode("utf-8", "surrogateescape"))

    def current_base(self) -> KubeletBase:
        """Kubelet's own files, as they lie there now."""
        found = {text.path: self.files.read(text.path) for text in self.base.configured()}
        return with_texts(self.base, {path: raw.decode() for path, raw in found.items() if raw is not None})

    def do(self, step: Step, *, resets_all: bool) -> None:
        """What the step changes, in a plan that `resets_all`. Steps that only wait change nothing."""
        if any(step.target == text.path for text in self.base.texts):
            self.edited_base = True
        match step.kind:
            case StepKind.WRITE | StepKind.MARK_PENDING:
                assert isinstance(step.file, DesiredFile)
                self.files.write(step.target, step.file.content, step.file.mode, digest=step.file.digest)
            case StepKind.RESTORE:
                assert isinstance(step.file, FileState)
                kept = self.files.state(f"{paths.OBJECTS}/{step.file.digest}").content
                self.files.at[step.target] = replace(step.file, content=kept)
            case StepKind.DELETE:
                self.files.remove(step.target)
            case StepKind.DELETE_STATE:
                self.leftovers = tuple(path for path in self.leftovers if path != step.target)
            case StepKind.CLEAR_HOLD:
                self.hold = ""
            case StepKind.FORGET_AGENT:
                self.cache = replace(self.cache, agent=None)
            case StepKind.SET_ASIDE_CACHE:
                self.cache = NO_CACHE
            case StepKind.RESET_PINNING:
                self._reset_pinning(everyone=resets_all)
            case StepKind.DISABLE:
                for path in find_links(self.files):
                    self.files.remove(path)
                self.proxy = replace(self.proxy, unit_file_state="static")
            case StepKind.DAEMON_RELOAD:
                self.reload()
            case StepKind.STOP:
                self._stop_proxy()
            case StepKind.SET_HOLD:
                assert isinstance(step.file, DesiredFile)
                assert isinstance(step.file.content, bytes)
                self.hold = step.file.content.decode().strip()
            case StepKind.AWAIT_START:
                self.answers, self.starting = True, False
            case StepKind.CHECK_PODS if not self.unknown_pods:
                self.may_be_unknown = False
            case StepKind.RESTART if step.target == paths.PROXY_UNIT:
                self.start_proxy()
            case StepKind.RESTART:
                self.start_kubelet()
            case StepKind.MOVE:
                self.target = normalise_endpoint(step.target)
                self.may_be_unknown = True

    def _reset_pinning(self, *, everyone: bool) -> None:
        resets = find_resets(self.probe.containers, self.cache, self.probe.managers, everyone=everyone)
        given = {reset.container.id: reset.write for reset in resets if not reset.problem}
        containers = tuple(
            replace(one, cgroup=updated(one.cgroup, given[one.id])) if one.cgroup and one.id in given else one
            for one in self.probe.containers
        )
        self.probe = replace(self.probe, containers=containers)

    def _stop_proxy(self) -> None:
        self.proxy = replace(self.proxy, active_state="inactive", sub_state="dead", main_pid=0)
        self.proxy_process, self.answers, self.starting = None, False, False

    @property
    def linked(self) -> bool:
        return bool(find_links(self.files))

    def reload(self) -> None:
        self.edited_base = False
        self._load_proxy()
        texts = self._texts()
        path = self._drop_in(texts)[0]
        own = (path,) if path else ()
        base = tuple(text.path for text in self.base.texts[1:])
        self._loaded = texts
        if self.kubelet.load_state == "loaded":
            self.kubelet = replace(
                self.kubelet,
                environment=self._mark(path),
                drop_in_paths=(*base, *own),
                need_daemon_reload=False,
            )

    def start_proxy(self) -> None:
        self.proxy, pid = self._started(self.proxy)
        argv, variables = (paths.BINARY,), self._variables(paths.PROXY_ENVIRONMENT)
        self.proxy_process = ProcessState(pid, argv, variables)
        self.answers, self.starting, self.leftovers = True, False, paths.PROXY_STATE
        self.unknown_pods = ()
        if self.cache.agent is not None:
            self.cache = replace(self.cache, policy=asked_by_agent(self.cache).policy)
        self.took = 0.0
        if self.kubelet.flapping and self.composed:
            self.start_kubelet()  # systemd tries it again, and it has what it lacked

    def start_kubelet(self) -> None:
        """Its guard included: a proxy that does not answer, or a hold, means the base endpoint."""
        self.kubelet, pid = self._started(self.kubelet)
        base = self.current_base()
        argv = next_command_line(parse_base(base), base)
        variables = self._variables(paths.KUBELET_ENVIRONMENT) if self.kubelet.loaded_digest else {}
        guard = self.files.state(paths.GUARD).kind is Kind.FILE
        self.composed = bool(variables) and guard
        on_relay = self.composed and self.answers and not self.hold
        self.may_be_unknown |= not on_relay and bool(variables)
        if self.composed:
            argv = (*argv, variables["CRI_RESMGR_GUARD_FLAG"])
            self.target = normalise_endpoint(paths.RELAY_SOCKET if on_relay else variables[BASE_VARIABLE])
        self.kubelet_process = ProcessState(pid, argv, variables)

    def _started(self, unit: UnitState) -> tuple[UnitState, int]:
        self._starts += 1
        pid = 100 + self._starts
        ran = replace(unit, active_state="active", sub_state="running", result="success", main_pid=pid)
        return replace(ran, invocation_id=f"invocation-{pid}"), pid

    def _load_proxy(self) -> None:
        there = self.files.state(paths.PROXY_UNIT_FILE)
        state = ("enabled" if self.linked else "static") if there.kind is Kind.FILE else ""
        if self.proxy.load_state != "masked":
            load = "loaded" if there.kind is Kind.FILE else "not-found"
            mark = self._mark(paths.PROXY_UNIT_FILE)
            self.proxy = replace(
                self.proxy,
                load_state=load,
                environment=mark,
                unit_file_state=state,
                need_daemon_reload=False,
                fragment_path=paths.PROXY_UNIT_FILE if there.kind is Kind.FILE else "",
            )
        self._loaded = {**self._loaded, paths.PROXY_UNIT_FILE: there}

    def _texts(self) -> dict[str, FileState]:
        ours = (
            paths.PROXY_UNIT_FILE,
            *(paths.drop_in(directory, KUBELET) for directory in paths.UNIT_DIRECTORIES),
        )
        return {path: self.files.state(path) for path in ours}

    @staticmethod
    def _drop_in(texts: Mapping[str, FileState]) -> tuple[str, str]:
        """Of two directories' drop-ins of one name the first one's counts."""
        named = (
            (path, texts.get(path, ABSENT))
            for path in (paths.drop_in(d, KUBELET) for d in paths.UNIT_DIRECTORIES)
        )
        return next(((path, state.digest) for path, state in named if state.kind is Kind.FILE), ("", ""))

    def _mark(self, path: str) -> tuple[str, ...]:
        return tuple(_MARK.findall((self.files.read(path) or b"").decode("utf-8", "replace")))

    def _variables(self, path: str) -> dict[str, str]:
        return parse_environment_file((self.files.read(path) or b"").decode("utf-8", "replace"))
