"""A node that can be stopped between two effects, kept as a value, and brought back on another disk.

`tests.faults.disks.node` says what its units do. Here the guard also keeps its files in /run, and containers
run: a start of the proxy takes from those that it does not know, as the real one does.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import posixpath
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any
from zlib import crc32

from installer.errors import SystemdError, UnservableHostError
from installer.host.disk import Kernel
from installer.host.kubelet_place import BASE_VARIABLE
from installer.host.ports import Host, KnownDigest, RuntimeStatus, Unwritable
from installer.inputs.systemd_syntax import parse_unit
from installer.model import paths
from installer.model.containers import CgroupState, CpuResources, ReadyPod, weights_of
from installer.model.host import (
    ABSENT,
    FileState,
    Kind,
    ProcessState,
    RunningContainer,
    UnitDetail,
    UnitState,
    UnitText,
    UnstartedContainer,
)
from installer.model.paths import link_of, same_endpoint
from installer.model.proxy import POLICIES, Repinning
from tests.certify.node.facts import FACTS, parse_facts
from tests.certify.node.kubelets import DROP_INS, LoadedUnit, command_line, load_unit
from tests.faults.disks.crash import Entry, Tree, build, read_tree
from tests.faults.disks.node import (
    BASE_UNIT,
    BREAKS,
    COMMAND,
    DROP_IN,
    END,
    KUBELET,
    RUNTIME,
    Node,
    NodeFiles,
    NodeSystemd,
)
from tests.faults.disks.recorder import Operation, Recorder, Verb
from tests.lib.fakes import CONTAINERD, FakeProcesses, FakeValidator, failed, timed_out, updated

ELSEWHERE = "unix:///run/somewhere/else.sock"
SHARES = 524
_PROXY_ENVIRONMENT = f"{paths.OUR_RUNTIME}/proxy.env"
_FREE = CgroupState("0-1", "0-1", "0-1", "0-1", shares=SHARES)
_CREATION: dict[str, int | str] = {"cpu_shares": SHARES}
_LIMITS = {"memory_limit_in_bytes": 1 << 28, "cpu_quota": 50_000, "cpu_period": 100_000}
_RESIZED = 700
MASK = "/dev/null"
NATURE = "/srv/nature"
"""How the proxy behaves on this node, in a word: `broken`: no start of it succeeds; `slow`: it answers so
late that kubelet must not hang on it; `too slow`: later than it may; `refuses`: what it is signalled to read
again; `mute`: it does not say what it has read; `leaves`: it ends when it is signalled; `late`: a container
is created while it starts; `reads slowly`: what runs, when it is run by itself; `fatal`: it ends, and says
why; `not set up`: systemd cannot run it; `stuck`: its start does not end; `slow job`: its start ends when it
answers, too late for the job; `the new one is slow`: not so the one before; `canceled`: somebody else stops
it; `exits`: soon after its start. And of others: `no runtime`, `runtime dies`: until the next start of
the proxy; `not ready`: it says so; `ill`: kubelet is never healthy; `ill behind it`: on the relay;
`flagless`: kubelet does not get our flag; `fails`: kubelet's start, behind the relay; `lost`: the bus is."""
REFUSES = b"refuses"
_LAST_WORDS = {
    b"fatal": "F: cannot start, it is fatal",
    b"not set up": f"{paths.PROXY_UNIT}: Main process exited, code=exited, status=226/NAMESPACE",
}
_GUARD_SECONDS = 15.0
_LASTING = ("free_cpus", "free_mems", "blkio")  # what is enforced on a container that nobody writes to
_LINKED = "/opt/intel"  # what a link leads out of the root, in the trouble of that name
_FULL = {
    "disk full": ("/", errno.ENOSPC),
    "disk read-only": ("/", errno.EROFS),
    "/run full": ("/run", errno.ENOSPC),
}
_FAILURES = 2  # starts of kubelet on the relay that the guard lets fail
SLOW = {b"slow": 14.0, b"too slow": 400.0, b"immovable and slow": 400.0}  # seconds
_ACTIVE = re.compile(rb"^ *Active: *([a-z-]+)", re.MULTILINE)


def stranger(name: str) -> RunningContainer:
    """A container that kubelet has created on its base endpoint. The first two are alike; then come one with
    limits, one that was resized since, and one with the weight of cgroup v2."""
    created = CpuResources(shares=SHARES)
    one = RunningContainer(name, name, "pod", "ns", False, f"uid-{name}", 7, created, _FREE, _CREATION)
    if name == "odd":  # the runtime does not know how it was created
        return replace(one, creation=None)
    if name == "c2":
        return replace(one, creation={**_CREATION, **_LIMITS})
    if name == "c3":
        return replace(one, asked=_RESIZED, cgroup=replace(_FREE, shares=_RESIZED))
    if name == "c4":
        return replace(one, cgroup=replace(_FREE, shares=0, weight=max(weights_of(SHARES))))
    return one


@dataclass(frozen=True, slots=True)
class Effect:
    """One change of the host, or one look at the relay. `ended`: how a job of systemd has, or what was
    seen."""

    verb: str
    target: str
    operation: Operation | None = None
    ended: str = ""

    def __str__(self) -> str:
        return f"{self.verb} {self.target}".strip()


Read = Mapping[str, bytes | None]
LOOK = "answers"  # an effect that changes nothing
_READS_FOR = 8.0  # seconds, of a proxy that reads slowly
_READS = ("status", "state", "read", "list")
_LINKS = 40  # in a row, as in the kernel


@dataclass(frozen=True, slots=True)
class Moment:
    """All of a node at one instant."""

    tree: Tree
    units: Mapping[str, UnitState] = field(default_factory=dict)
    details: Mapping[str, UnitDetail] = field(default_factory=dict)
    processes: Mapping[int, ProcessState] = field(default_factory=dict)
    next_pid: int = 10_000
    time: float = 0.0
    running: tuple[RunningContainer, ...] = ()
    read: Mapping[int, Read] = field(default_factory=dict)  # what each process was started from
    loaded: Mapping[str, Read] = field(default_factory=dict)  # what systemd has loaded each unit from
    answers: Mapping[int, float] = field(default_factory=dict)  # from when on each process does
    dialled: Mapping[int, tuple[str, str]] = field(default_factory=dict)  # see FakeConnections
    kubelet: LoadedUnit | None = None

    def process(self, unit: str) -> ProcessState | None:
        return self.processes.get(self.units[unit].main_pid) if unit in self.units else None

    @property
    def on_relay(self) -> bool:
        process = self.process(KUBELET)
        if process is None or not process.link:
            return process is not None and process.names_relay
        link = self.tree.get(process.link)
        return link is not None and same_endpoint(link.target, paths.RELAY_ENDPOINT)

    @property
    def proxy_answers(self) -> bool:
        proxy = self.units[paths.PROXY_UNIT].main_pid
        return proxy in self.processes and self.time >= self.answers.get(proxy, 0.0)

    def content(self, path: str) -> bytes | None:
        """Of the file at that path; None if there is none."""
        found = self.tree.get(path)
        return found.content if found is not None and found.kind == "f" else None


class _Tracer(Recorder):
    """Tells the world of every system call, also of those below /run."""

    def __init__(self, root: Path, world: World) -> None:
        super().__init__(root)
        self._world = world

    def _note(self, verb: Verb, place: str, mode: int = 0, data: bytes = b"", target: str = "") -> None:
        operation = Operation(verb, self._below(place), mode, data, target)
        self._world.did(Effect(verb.value, operation.place, operation))

    def _below(self, place: str) -> str:
        """As it is named below an open directory, whose own name the kernel knows."""
        directory, _, name = place.rpartition("/")
        real = (
            os.readlink(directory) if directory.startswith("/proc/self/fd/") else os.path.realpath(directory)
        )
        return f"{real}/{name}".removeprefix(self._root)


class _Files(NodeFiles):
    """Reads what the world knows of its tree, without a system call; each change is the real adapter's."""

    world: World

    def status(self, path: str, *, follow: bool = False) -> os.stat_result | None:
        if self.world.depth:
            return super().status(path, follow=follow)
        entry = self.world.entry(path, follow=follow)
        if entry is None:
            return None
        kind = {"d": stat.S_IFDIR, "l": stat.S_IFLNK, "f": stat.S_IFREG}[entry.kind]
        number = crc32((self.world.real(path) if follow else path).encode())
        return os.stat_result((kind | entry.mode, number, 0, 1, 0, 0, len(entry.content), 0, 0, 0))

    def state(self, path: str, known: KnownDigest | None = None) -> FileState:
        if self.world.depth:
            return super().state(path, known)
        try:
            entry = self.world.entry(path, follow=False)
        except UnservableHostError:
            return FileState(Kind.OUTSIDE)
        return ABSENT if entry is None else _state(entry)

    def _read(self, path: str, limit: int) -> bytes | None:
        if self.world.depth:
            return super().read(path, limit)
        entry = self.world.entry(path, follow=True)
        return entry.content[:limit] if entry is not None and entry.kind == "f" else None

    def list(self, path: str) -> tuple[str, ...]:
        if self.world.depth:
            return super().list(path)
        return self.world.names(path)

    def exposed(self, path: str) -> dict[str, str]:
        found: dict[str, str] = self.world.facts.get("exposed", {})
        return {directory: why for directory, why in found.items() if f"{path}/".startswith(f"{directory}/")}

    def free_bytes(self, path: str) -> int:
        free: dict[str, int] = self.world.facts.get("free", {})
        return free.get(path, 1 << 40)

    def unwritable(self, directory: str, *, programs: bool = False) -> Unwritable | None:
        found: dict[str, str] = self.world.facts.get("unwritable", {})
        return Unwritable(found[directory]) if directory in found else None

    def read(self, path: str, limit: int = 1 << 20) -> bytes | None:
        if path in self.world.facts.get("offline", ()):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return self._read(path, limit)

    def set_value(self, path: str, text: str) -> None:
        if "kernel refuses" in self.world.facts:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        super().set_value(path, text)
        self.world.refresh()

    def seal(self, directory: str) -> str:
        self.world.facts.get("exposed", {}).pop(directory, None)
        why: str | None = self.world.facts.get("seals")
        if why == "":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), directory)
        return why or super().seal(directory)


@cache
def _state(entry: Entry) -> FileState:
    if entry.kind == "f":
        content = entry.content
        return FileState(
            Kind.FILE, entry.mode, 0, 0, len(content), sha256(content).hexdigest(), content=content
        )
    if entry.kind == "l":
        return FileState(Kind.SYMLINK, 0o777, 0, 0, target=entry.target)
    return FileState(Kind.DIRECTORY, entry.mode)


class _Asked:
    """A port that tells the world of each question before it is asked."""

    def __init__(self, world: World, name: str, port: object) -> None:
        self._world, self._name, self._port = world, name, port

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._port, name)
        if not callable(found):
            return found

        def ask(*arguments: Any, **named: Any) -> Any:
            about = arguments[0] if arguments and isinstance(arguments[0], str) else ""
            self._world.on_question(f"{self._name}.{name} {about}".rstrip())
            if self._name == "files" and name in _READS:
                self._world.fail_to_read(about)
            return found(*arguments, **named)

        return ask


class _Processes(FakeProcesses):
    """Those that the world began with are older."""

    age = 0.0
    before: frozenset[int] = frozenset()

    def get(self, pid: int) -> ProcessState | None:
        found = super().get(pid)
        return replace(found, age=self.age) if found is not None and pid in self.before else found


def _leads_out(path: str) -> bool:
    """Whether its `..` lead above the root."""
    depth = 0
    for name in path.split("/"):
        depth += {"": 0, ".": 0, "..": -1}.get(name, 1)
        if depth < 0:
            return True
    return False


class _Validator(FakeValidator):
    """Tells the world how long it may take."""

    world: World

    def see_containers(self, binary: Path, state_directory: Path, runtime: Path, seconds: float) -> str:
        self.world.reading = seconds
        return super().see_containers(binary, state_directory, runtime, seconds)


class World(Node):
    """`moment`: as what it begins. Without one it boots from what lies below `root`."""

    systemd: _Systemd

    def __init__(self, root: Path, moment: Moment | None = None, *, containers: int = 0) -> None:
        self.effects: list[Effect] = []
        self.tree: Tree = {}
        self._kept = False  # in a moment, which does not change any more
        self.on_effect: Callable[[Effect], None] = lambda _effect: None
        self.on_question: Callable[[str], None] = lambda _question: None
        self.traces = False
        self.started_from: dict[int, Read] = {}
        self.answers: dict[int, float] = {}
        self.boots = False
        self.kubelet = moment.kubelet if moment is not None else None  # as systemd has loaded it
        self.struck = ""
        """What is in trouble now, in a word: see `troubles`."""
        self.reading = 0.0  # seconds that the proxy may take to list what runs
        self.runtime_died = False  # for the rest of a run, or until the next start of the proxy
        self._moment = moment
        self._containers = containers
        place = root / FACTS[1:]
        self.facts: dict[str, Any] = parse_facts(place.read_bytes() if place.exists() else None)
        self._names: dict[str, list[str]] = {}
        self._names_of: Tree | None = None
        self.depth = 1  # until the tree is known
        super().__init__(root, _Tracer(root, self))
        files = self.fake.files
        assert isinstance(files, _Files)
        files.world = self
        self.fake.cri.sockets = {RUNTIME: self._runtime, paths.RELAY_ENDPOINT: self._answer}
        self.fake.validator = _Validator(on_see=self._see_containers)
        self.fake.validator.world = self
        self.systemd.on_kill = self._signalled
        self.fake.connections.permitted = not (self.read(NATURE) or b"").startswith(b"immovable")
        files.fail = self._fail
        if moment is not None:
            self.fake.clock.time = moment.time
            self.fake.connections.dialled = dict(moment.dialled)
        self.tree = read_tree(root) if moment is None else moment.tree
        self._believe()
        self._kept = moment is not None
        self.depth = 0
        self.traces = True

    def _believe(self) -> None:
        """What the ports say on a host of another kind."""
        fake, facts = self.fake, self.facts
        given = {name: facts[name] for name in ("architecture", "cpus") if name in facts}
        fake.identity = replace(fake.identity, **given)
        fake.kubelets = {"/usr/bin/kubelet": facts.get("kubelet", "")}
        processes = _Processes(fake.processes.processes)
        age = 1000 if self.read(NATURE) == b"long ill" else facts.get("age", 0)
        processes.age, processes.before = float(age), frozenset(processes.processes)
        fake.processes = fake.connections.processes = processes
        fake.healthz.foreign = bool(facts.get("foreign"))
        fake.lock.holder = facts.get("holder", "")
        fake.files.unlabelled = list(facts.get("unlabelled", ()))
        fake.cri.refusals, fake.cri.ignores = facts.get("refusals", {}), bool(facts.get("ignores"))
        fake.cri.created = tuple(UnstartedContainer(*one) for one in facts.get("unstarted", ()))

    @property
    def host(self) -> Host:
        """Its doors. Each tells `on_question` of what it is asked, and may be in trouble."""
        host = self.fake.host
        names = ("files", "systemd", "processes", "connections", "cri", "healthz", "journal", "clock")
        asked: dict[str, Any] = {name: _Asked(self, name, getattr(host, name)) for name in names}
        return replace(host, **asked)

    def _make_systemd(self, kernel: Kernel) -> NodeSystemd:
        return _Systemd(self, kernel)

    def _make_files(self, kernel: Kernel) -> NodeFiles:
        files = _Files(self.fake.root, self.fake.calls, kernel)
        files.world = self
        return files

    def read(self, path: str) -> bytes | None:
        with suppress(UnservableHostError):
            entry = self.entry(path, follow=True) if not self.depth else None
            if not self.depth:
                return entry.content if entry is not None and entry.kind == "f" else None
            return super().read(path)
        return None

    def entry(self, path: str, *, follow: bool) -> Entry | None:
        """What is at that path, through links; of a link itself unless `follow`. Raises UnservableHostError
        like the real adapter, if a link leads out of the root, or in a circle."""
        for _ in range(_LINKS):
            found = self.tree.get(path)
            if found is not None and not (follow and found.kind == "l"):
                return found
            names = path.split("/")[1:]
            prefix = ""
            for number, name in enumerate(names):
                prefix = f"{prefix}/{name}"
                on_the_way = self.tree.get(prefix)
                if on_the_way is None:
                    return Entry("d", 0o755) if prefix == "/" else None
                if on_the_way.kind == "l" and (follow or number < len(names) - 1):
                    target = on_the_way.target
                    target = target if target.startswith("/") else f"{prefix.rpartition('/')[0]}/{target}"
                    if _leads_out(target):
                        raise UnservableHostError(f"{path}: a symlink leads out of the host root")
                    path = "/".join([posixpath.normpath(target), *names[number + 1 :]])
                    break
            else:
                return found
        raise UnservableHostError(f"{path}: too many symlinks")

    def names(self, directory: str) -> tuple[str, ...]:
        place, known = self.real(directory), self._names
        if self._names_of is not self.tree:
            known.clear()
            for path in self.tree:
                above, _, name = path.rpartition("/")
                known.setdefault(above, []).append(name)
            self._names_of = self.tree
        return tuple(sorted(known.get(place, ())))

    def real(self, directory: str) -> str:
        """Its path without links, as far as it exists."""
        for _ in range(20):
            names = directory.rstrip("/").split("/")
            prefixes = ["/".join(names[:count]) for count in range(2, len(names) + 1)]
            link = next((one for one in prefixes if (e := self.tree.get(one)) and e.kind == "l"), None)
            if link is None:
                return directory.rstrip("/")
            target = self.tree[link].target
            target = target if target.startswith("/") else f"{link.rpartition('/')[0]}/{target}"
            directory = posixpath.normpath(target) + directory.rstrip("/")[len(link) :]
        return directory

    def _boot(self) -> None:
        moment = self._moment
        if moment is None:
            # What kubelet has made again after a boot is as it was created.
            names = [f"c{number}" for number in range(self._containers)]
            run = self.fake.root / "run"
            shutil.rmtree(run, ignore_errors=True)
            (run / "containerd").mkdir(parents=True)
            (run / "containerd/containerd.sock").touch()
            self._set_running([])
            self._start_units()
            strangers = [self._at_first(stranger(name)) for name in names]
            if "low" in self.facts and strangers:
                strangers[0] = replace(strangers[0], cgroup=replace(_FREE, shares=2))
            self._set_running(strangers)
            if self.on_relay:
                self._see(self._policy(), everyone=True)
        else:
            systemd = self.systemd
            systemd.units, systemd.details = dict(moment.units), dict(moment.details)
            systemd.next_pid = moment.next_pid
            self.fake.processes.processes = dict(moment.processes)
            self.started_from = dict(moment.read)
            self.answers = dict(moment.answers)
            self._loaded().update(moment.loaded)
            self._set_running(moment.running)

    def _start_units(self) -> None:
        systemd = self.systemd
        systemd.next_pid = 10_000
        systemd.units = {KUBELET: UnitState(KUBELET), paths.PROXY_UNIT: UnitState(paths.PROXY_UNIT)}
        systemd.load()
        proxy = systemd.unit(paths.PROXY_UNIT)
        wanted = proxy.unit_file_state == "enabled" or DROP_IN in systemd.unit(KUBELET).drop_in_paths
        self.boots = True
        if proxy.load_state == "loaded" and wanted:
            with suppress(SystemdError):  # a start that does not end
                systemd.restart(proxy.name, 0)
        if systemd.unit(KUBELET).load_state == "loaded":
            systemd.restart(KUBELET, 0)
        self.boots = False
        self.wait()

    def wait(self) -> None:
        """systemd starts kubelet again, until it stays."""
        while self.systemd.unit(KUBELET).sub_state == "auto-restart":
            self.systemd.restart(KUBELET, 0)

    def _set_running(self, containers: Iterable[RunningContainer]) -> None:
        cri, scaled = self.fake.cri, bool(self.facts.get("autoscaled"))
        cri.running = tuple(map(self._as_reported, containers))
        pods = [*(one.id for one in cri.running), *(["unlisted"] if self.struck == "unlisted" else [])]
        cri.ready_pods = {f"pod-{pod}": ReadyPod(f"ns/{pod}", 0.0, scaled) for pod in pods}

    def count_pods(self) -> None:
        self._set_running(self.fake.cri.running)

    def _as_reported(self, one: RunningContainer) -> RunningContainer:
        facts = self.facts
        given: dict[str, Any] = {name: facts[name] for name in ("creation", "created") if name in facts}
        if "cgroup" in facts and one.id == "c0":
            given["cgroup"] = None
        elif one.cgroup is not None:
            given["cgroup"] = replace(one.cgroup, **self._enforced(lasting=True))
        if "created with" in facts:
            given["created"] = CpuResources(**facts["created with"])
        if "created_io" in facts:
            given["created_io"] = facts["created_io"]
        return replace(one, through_proxy=bool(facts.get("through")), **given)

    def _enforced(self, *, lasting: bool) -> dict[str, Any]:
        found: dict[str, Any] = self.facts.get("enforced", {})
        return {name: value for name, value in found.items() if (name in _LASTING) == lasting}

    def _at_first(self, one: RunningContainer) -> RunningContainer:
        """With what is enforced on it until somebody writes to it."""
        if one.cgroup is None:
            return one
        return replace(one, cgroup=replace(one.cgroup, **self._enforced(lasting=False)))

    def become(self, facts: bytes) -> None:
        """From now on it is a host of another kind."""
        self.put(FACTS, facts)
        self.facts = parse_facts(facts)
        self._set_running(map(self._at_first, self.fake.cri.running))

    def create(self, name: str) -> None:
        if all(one.id != name for one in self.fake.cri.running):
            self._set_running([*self.fake.cri.running, self._at_first(stranger(name))])

    def end(self, name: str) -> None:
        """It ends, and kubelet deletes it; the proxy then forgets it."""
        self._set_running([one for one in self.fake.cri.running if one.id != name])
        cache = self._cache()
        for kind, key in (("Containers", f"uid-{name}:{name}"), ("Pods", f"pod-{name}")):
            cache.get(kind, {}).pop(key, None)
        if cache:
            (self.fake.root / paths.PROXY_CACHE[1:]).write_text(json.dumps(cache))
            self.refresh()

    def _loaded(self) -> dict[str, Read]:
        assert isinstance(self.systemd, _Systemd)
        return self.systemd.loaded

    def keep(self) -> Moment:
        """The node as it is now."""
        systemd = self.systemd
        alive = {unit.main_pid for unit in systemd.units.values()}
        processes = {pid: one for pid, one in self.fake.processes.processes.items() if pid in alive}
        self._kept = True
        return Moment(
            self.tree,
            dict(systemd.units),
            dict(systemd.details),
            processes,
            systemd.next_pid,
            self.fake.clock.time,
            self.fake.cri.running,
            {pid: read for pid, read in self.started_from.items() if pid in alive},
            dict(self._loaded()),
            {pid: time for pid, time in self.answers.items() if pid in alive},
            {pid: where for pid, where in self.fake.connections.dialled.items() if pid in alive},
            self.kubelet,
        )

    def did(self, effect: Effect) -> None:
        """Something has happened."""
        if self.depth:
            return  # within a job: the tree is read again at its end
        if effect.operation is not None and effect.operation.verb is not Verb.SYNC:
            self.tree = dict(self.tree) if self._kept else self.tree
            self._kept = False
            self._names_of = None
            _apply(self.tree, effect.operation)
        if self.traces:
            self.effects.append(effect)
            self.on_effect(effect)

    def put(
        self, path: str, content: bytes | None, mode: int = 0o644, *, link: str = "", directory: bool = False
    ) -> None:
        """What somebody else puts there, in the place of whatever was there; nothing if nothing is given."""
        place = self.fake.root / path[1:]
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        place.unlink(missing_ok=True)
        if content is None and not (link or directory):
            return
        place.parent.mkdir(parents=True, exist_ok=True)
        if link:
            place.symlink_to(link)
        elif directory:
            place.mkdir()
        else:
            place.write_bytes(content or b"")
            place.chmod(mode)

    def leave(self, path: str, content: bytes | None) -> None:
        """Somebody else puts it there, at once."""
        self.put(path, content)
        self.refresh()

    def refresh(self) -> None:
        """The tree as it is now."""
        self.tree, self._kept = read_tree(self.fake.root), False

    # -- what others do, and what goes wrong ------------------------------------------

    def somebody(self, method: str, unit: str, *, counts: bool = False) -> None:
        """Stops or restarts a unit; `counts`: systemd does, because it has crashed."""
        self.depth += 1
        try:
            with suppress(SystemdError):
                self.systemd.job(method, unit)
            before = self.systemd.units[unit]
            self.systemd.units[unit] = replace(before, n_restarts=before.n_restarts + counts)
        finally:
            self.depth -= 1
        self.refresh()

    def reload(self) -> None:
        """Somebody's daemon-reload."""
        self.depth += 1
        self.systemd.daemon_reload(0)
        self.depth -= 1

    def fail_to_read(self, path: str) -> None:
        """A disk that gives nothing any more."""
        if self.struck == "disk unreadable" and not f"{path}/".startswith("/run/"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    def _fail(self, method: str, path: str) -> None:
        """A disk that takes nothing more."""
        if self.struck == "link" and f"{path}/".startswith((f"{_LINKED}/", "/etc/cri-resmgr/")):
            raise UnservableHostError(f"{path}: a symlink leads out of the host root")
        if self.depth or self.struck not in _FULL:
            return
        place, error = _FULL[self.struck]
        grows = method in ("write", "link", "make_directory")
        if path.startswith("/run/") == (place == "/run") and (grows or error == errno.EROFS):
            raise OSError(error, os.strerror(error), path)

    # -- what runs on it --------------------------------------------------------------

    def process(self, unit: str) -> ProcessState | None:
        found = self.systemd.units.get(unit)
        return self.fake.processes.get(found.main_pid) if found is not None else None

    @property
    def proxy_answers(self) -> bool:
        now, pid = self.fake.clock.time, self.systemd.units[paths.PROXY_UNIT].main_pid
        return self.struck != "relay" and self.proxy_runs and now >= self.answers.get(pid, now)

    def kubelet_healthy(self) -> bool:
        nature = self.read(NATURE)
        if (
            self.struck == "ill"
            or nature in (b"ill", b"long ill")
            or (nature == b"ill behind it" and self.on_relay)
        ):
            return False
        return self.process(KUBELET) is not None and (self.proxy_answers or not self.on_relay)

    def _runtime(self) -> RuntimeStatus | str:
        nature = self.read(NATURE)
        if nature == b"no runtime" or self.runtime_died or self.struck == "runtime":
            return "connection refused"
        who = CONTAINERD._replace(extras=tuple(self.facts.get("extras", ())))
        loads = nature == b"not ready" or self.struck == "not ready"
        return who._replace(ready=False, reason="it loads") if loads else who

    def on_relay_by_link(self, variables: Mapping[str, str]) -> bool:
        """Whether a kubelet with these variables is about to start on the relay."""
        link = link_of(variables["CRI_RESMGR_GUARD_FLAG"].partition("=")[2])
        return self.fake.files.state(link).target == paths.RELAY_SOCKET

    def await_proxy(self, seconds: float) -> bool:
        """As the guard does: whether it answers by then."""
        clock, pid = self.fake.clock, self.systemd.unit(paths.PROXY_UNIT).main_pid
        if not self.proxy_runs:
            return False
        clock.time = min(max(clock.time, self.answers.get(pid, 0.0)), clock.time + seconds)
        return self.proxy_answers

    def _answer(self) -> RuntimeStatus | str:
        who = self._runtime() if self.proxy_answers else "no socket"
        look = Effect(LOOK, "", ended="no" if isinstance(who, str) else "yes")
        if self.effects[-1:] != [look]:  # one of many in a row
            self.did(look)
        if self.proxy_answers:
            self._serves()
        return who

    def _serves(self) -> None:
        """A start of the proxy ends when it answers."""
        unit = self.systemd.units[paths.PROXY_UNIT]
        if unit.active_state == "activating":
            self.systemd.units[unit.name] = replace(unit, active_state="active", sub_state="running")
        place = self.fake.root / paths.PROXY_PID_FILE[1:]
        if not place.exists() and place.parent.is_dir():
            place.write_text(f"{unit.main_pid}\n")
            self.refresh()

    def _signalled(self, unit: str, _number: int) -> None:
        pid = self.systemd.unit(unit).main_pid
        nature = self.read(NATURE)
        if nature == b"mute":
            return
        if nature == b"leaves":
            self.systemd.units[unit] = failed(self.systemd.units[unit])
            return
        self.fake.journal.say(unit, "I: reading the configuration again")
        if nature == REFUSES:
            self.fake.journal.say(unit, "E: failed to reload configuration: it is refused")
            return
        if paths.FORCE_CONFIG in self.started_from.get(pid, {}):
            reread = {paths.FORCE_CONFIG: self.read(paths.FORCE_CONFIG)}
            self.started_from[pid] = {**self.started_from[pid], **reread}
        self.fake.journal.say(unit, "I: successfully switched to new configuration")

    def _see_containers(self, _state: Path) -> str:
        nature = self.read(NATURE)
        if nature == b"reads slowly":
            late = self.reading < _READS_FOR
            self.fake.clock.time += min(self.reading, _READS_FOR)
            if late:
                return "it has not read them in time"
        if nature not in (b"blind", b"unseeing"):
            self._see("none", everyone=False)
        return "it cannot list them" if nature == b"blind" else ""

    def _see(self, policy: str, *, everyone: bool) -> None:
        """The proxy lists what runs, and writes its cache. `everyone`: it was created through it."""
        cache = self._cache()
        known = {entry["ID"]: entry for entry in cache.get("Containers", {}).values()}
        takes = POLICIES[policy].takes
        newer = policy == "balloons" or b"# two" in (self.read(paths.BINARY) or b"")
        takes_all = newer and self.read(NATURE) == b"takes"
        entries, running = {}, []
        for one in self.fake.cri.running:
            entry = known.get(one.id) or {"ID": one.id, "PodID": f"pod-{one.id}", "State": 1}
            given = dict(entry.get("LinuxReq") or {})
            now = one.cgroup
            if everyone:
                shares = one.asked or int((one.creation or {}).get("cpu_shares", SHARES))
                rounded = -(-shares * 1000 // 1024)
                if "rounded" in self.facts:
                    rounded = (shares * 2000 // 1024 + 1) // 2
                else:
                    given["cpu_shares"] = shares
                entry = {**entry, "Resources": {"requests": {"cpu": f"{rounded}m"}}}
            if takes is not Repinning.NOTHING and one.id != self.facts.get("unplaced"):
                given["cpuset_cpus"] = "0"
                weight = 0
                if takes is Repinning.CPUS_AND_WEIGHT:
                    weight = int(given.setdefault("cpu_shares", 2))
                if takes_all and one.id == "c0":  # it has no room for it
                    weight = 2
                if now is not None:
                    now = updated(replace(now, cpus="0", mems="0"), CpuResources(shares=weight))
            entries[f"uid-{one.id}:{one.id}"] = {**entry, "LinuxReq": given or None}
            running.append(replace(one, cgroup=now))
        parent = self.facts.get("parent", "")
        pods = {
            f"pod-{one.id}": {"ID": f"pod-{one.id}", "UID": f"uid-{one.id}", "CgroupParent": parent}
            for one in running
        }
        agent = cache.get("Cfg")
        found = {"Version": "1", "Pods": pods, "Containers": entries, "Cfg": agent, "PolicyName": policy}
        self._set_running(running)
        place = self.fake.root / paths.PROXY_CACHE[1:]
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(found))
        if not self.depth:
            self.refresh()

    def _cache(self) -> dict[str, Any]:
        raw = self.read(paths.PROXY_CACHE)
        found: dict[str, Any] = json.loads(raw) if raw else {}
        return found

    def _torn(self) -> bool:
        raw = self.read(paths.PROXY_CACHE)
        return bool(raw) and not (raw or b"").endswith((b"}", b"}\n"))

    def _policy(self) -> str:
        process = self.process(paths.PROXY_UNIT)
        flags = ("--force-config", "--fallback-config")
        config = next(filter(None, (process.flag(flag) for flag in flags)), "") if process else ""
        agent = self._cache().get("Cfg")
        if agent and process and not process.flag("--force-config"):
            found = _ACTIVE.search(str(agent["Data"]["policy"]).encode())
        else:
            found = _ACTIVE.search(self.read(config) or b"") if config else None
        return found[1].decode() if found else "none"

    def start_of_proxy(self, extra: bool) -> dict[str, str] | None:
        """The guard's part of it, and the variables with which it starts; None: it does not."""
        if not (self.read(paths.GUARD) or b"").startswith(b"#!/bin/sh\n"):
            return None
        run = self.fake.root / paths.OUR_RUNTIME[1:]
        first = not (run / "proxy-start").exists()
        run.mkdir(parents=True, exist_ok=True)
        ours = run / "proxy-start-ours"
        announced = ours.is_file() and ours.read_text() == "ours\n"
        if announced:
            ours.write_text("")
        unknown = os.path.exists(f"{self.fake.root}{paths.CONTAINERS_UNKNOWN}")
        if announced or first or (self.read(paths.PROXY_CACHE) and not unknown):
            if (run / "proxy.env").exists():
                (run / "proxy.env").write_text("")
        else:
            (run / "none.cfg").write_text("policy:\n  Active: none\n")
            (run / "proxy.env").write_text(f'CONFIG_OPTIONS="--force-config {paths.SPARING_CONFIG}"\n')
        cache = self.fake.root / paths.PROXY_CACHE[1:]
        if first and self._torn():
            cache.rename(self.fake.root / paths.TORN_CACHE[1:])
        (run / "proxy-start").write_text("0\n")
        files = [paths.EXTRA_OPTIONS] if extra else []
        files += [paths.PROXY_ENVIRONMENT, _PROXY_ENVIRONMENT]
        variables: dict[str, str] = {}
        for path in files:
            variables |= self.variables(path)
        return variables

    def start_of_kubelet(self, variables: Mapping[str, str]) -> bool:
        """The guard's part of it: whether it starts on our link."""
        root, run = self.fake.root, self.fake.root / paths.OUR_RUNTIME[1:]
        run.mkdir(parents=True, exist_ok=True)
        unknown, ours = run / "containers-unknown", run / "kubelet-start-ours"
        marked, announced = os.path.lexists(unknown), os.path.lexists(ours)
        if announced:
            ours.unlink()
        for name in ("kubelet.env", "kubelet.env.used", "relay-start"):
            (run / name).unlink(missing_ok=True)
        failures = int(self.read(paths.RELAY_FAILURES) or 0)
        flag, base = variables.get("CRI_RESMGR_GUARD_FLAG", ""), variables.get(BASE_VARIABLE, "")
        held = any(os.path.exists(f"{root}{path}") for path in paths.HOLDS)
        may = flag and not held and failures < _FAILURES and (announced or not marked)
        on_relay = may and self.await_proxy(_GUARD_SECONDS)
        if not on_relay and not marked:
            unknown.write_text("1\n")
        if not flag or not (on_relay or os.path.exists(f"{root}{base}")):
            return False
        self.systemd.point(link_of(flag.partition("=")[2]), paths.RELAY_SOCKET if on_relay else base)
        (run / "kubelet.env.used").write_text("composed\n")
        if on_relay:
            (run / "relay-start").write_text("0\n")
        return True


class _Systemd(NodeSystemd):
    """`loaded`: of each unit, the files that it was loaded from, as they were."""

    def __init__(self, world: World, kernel: Kernel) -> None:
        super().__init__(world, kernel)
        self._world = world
        self.loaded: dict[str, Read] = {}

    def load(self) -> None:
        super().load()
        self._note_loaded()

    def daemon_reload(self, timeout: float) -> None:
        with _Job(self._world, "daemon-reload"):
            super().daemon_reload(timeout)
            self._note_loaded()

    def unit(self, name: str) -> UnitState:
        unit = super().unit(name)
        if name not in self.on_disk:  # of somebody
            there = self._world.read(f"/etc/systemd/system/{name}") is not None
            return replace(unit, load_state="loaded") if there else unit
        if name not in self.loaded:
            self._note_loaded(name)
        if not unit.exists or self.loaded[name] == self._files_of(unit):
            return unit
        return replace(unit, need_daemon_reload=True)

    def _note_loaded(self, *names: str) -> None:
        for name in names or self.on_disk:
            self.loaded[name] = self._files_of(self.units[name])

    def _files_of(self, unit: UnitState) -> Read:
        """systemd notices a text that has another time, is gone, or has come."""
        drop_ins = {*unit.drop_in_paths, *(self._drop_ins() if unit.name == KUBELET else ())}
        found = {path: self._node.fake.files.state(path) for path in (unit.fragment_path, *drop_ins) if path}
        return {path: f"{state.kind} {state.digest} {state.target}".encode() for path, state in found.items()}

    def job(self, method: str, name: str) -> None:
        self._job(method, name)

    def _raise(self, method: str, name: str) -> None:
        super()._raise(method, name)
        if self._world.struck == "bus" and not self._world.depth:
            raise SystemdError(f"{method} {name}: the bus is away", lost=True)

    def reset_failed(self, name: str) -> None:
        with _Job(self._world, "reset-failed", name):
            super().reset_failed(name)

    def kill(self, name: str, signal_number: int) -> None:
        with _Job(self._world, "signal", name):
            super().kill(name, signal_number)

    def _job(self, method: str, name: str) -> str:
        with _Job(self._world, method, name) as job:
            job.ended = super()._job(method, name)
        return job.ended

    def _load_proxy(self, unit: UnitState) -> UnitState:
        there = self._node.fake.files.state(paths.PROXY_UNIT_FILE)
        if there.kind is Kind.SYMLINK and there.target == MASK:
            place = paths.PROXY_UNIT_FILE
            unit = replace(unit, unit_file_state="masked", environment=(), fragment_path=place)
            return replace(unit, load_state="masked")
        return super()._load_proxy(unit)

    def _load_kubelet(self, unit: UnitState) -> UnitState:
        world = self._world
        there = world.fake.files.state(BASE_UNIT)
        if there.kind is Kind.ABSENT:
            return UnitState(KUBELET, "not-found")
        texts = [(path, text) for path in self._drop_ins() if (text := world.read(path)) is not None]
        loaded = load_unit([(BASE_UNIT, world.read(BASE_UNIT) or b""), *texts])
        unit = replace(unit, load_state="loaded", unit_file_state="enabled", fragment_path=BASE_UNIT)
        if there.kind is Kind.SYMLINK and there.target == MASK:
            return replace(unit, load_state="masked", environment=(), drop_in_paths=())
        unit = replace(unit, load_state=world.facts.get("load_state", "loaded"))
        self.details[KUBELET], world.kubelet = loaded.detail, loaded
        return replace(unit, environment=loaded.environment, drop_in_paths=tuple(path for path, _ in texts))

    def _drop_ins(self) -> list[str]:
        """Of two with the same name, the one in the first directory counts."""
        found: dict[str, str] = {}
        for directory in (f"{paths.CONTROL_UNITS}/{KUBELET}.d", DROP_INS):
            for name in self._world.fake.files.list(directory):
                if name.endswith(".conf"):
                    found.setdefault(name, f"{directory}/{name}")
        return [found[name] for name in sorted(found)]

    def related(self, name: str, kind: str) -> tuple[str, ...]:
        """As the files say."""
        super().related(name, kind)
        if name == KUBELET:
            names = [BASE_UNIT, *self.unit(KUBELET).drop_in_paths]
        else:
            names = [f"/etc/systemd/system/{name}"]
        texts = [UnitText(path, (self._world.read(path) or b"").decode("utf-8", "replace")) for path in names]
        lines = [line for text in texts for line in parse_unit(text)]
        found = [line.value.split() for line in lines if (line.section, line.key) == ("Unit", kind)]
        if kind == "After" and name != KUBELET and name in self._befores():
            found.append([KUBELET])
        return (*itertools.chain.from_iterable(found), *((name,) if kind == "Names" else ()))

    def _befores(self) -> set[str]:
        """What kubelet's own files put behind it."""
        texts = [
            UnitText("", (self._world.read(path) or b"").decode("utf-8", "replace"))
            for path in (BASE_UNIT, *self.unit(KUBELET).drop_in_paths)
        ]
        lines = [line for text in texts for line in parse_unit(text)]
        return {word for line in lines if line.key == "Before" for word in line.value.split()}

    def _proxy_job(self, method: str, unit: UnitState) -> tuple[str, UnitState]:
        world = self._world
        if world.struck == "stops slowly" and unit.main_pid:
            self.units[unit.name] = replace(unit, active_state="deactivating", sub_state="stop-sigterm")
            raise timed_out(unit.name)
        if method == "stop":
            self.leave()  # an announcement alone does not tell, says the guard
            return self._succeed(method, unit)
        text = world.read(unit.fragment_path) or b""
        (world.fake.root / paths.PROXY_PID_FILE[1:]).unlink(missing_ok=True)
        if paths.GUARD.encode() in text:
            variables = world.start_of_proxy(paths.EXTRA_OPTIONS.encode() in text)
        else:  # another installer's
            variables = world.variables(paths.PROXY_ENVIRONMENT)
        options = (variables or {}).get("CONFIG_OPTIONS", "")
        extra = (variables or {}).get("EXTRA_OPTIONS", "")
        binary, mode = world.read(paths.BINARY) or b"", world.fake.files.state(paths.BINARY).mode
        config = world.read(options.rpartition(" ")[2]) if options else None
        whole = binary.endswith(END) and BREAKS not in binary and mode & 0o100
        sound = whole and config and _is_configuration(config) and not world._torn()
        nature = world.read(NATURE) or b""
        slow = b"slow" if nature.endswith(b"the new one is slow") and b"# two" in binary else nature
        world.runtime_died = nature == b"runtime dies" and not whole
        if variables is None or not sound or nature == b"broken":
            self.leave()
            if nature in _LAST_WORDS:
                world.fake.journal.say(unit.name, _LAST_WORDS[nature])
            return "failed", failed(unit)
        if nature == b"stuck":
            begun = replace(self.started(unit), active_state="activating", sub_state="start", main_pid=0)
            self.units[unit.name] = begun
            raise timed_out(unit.name)
        if nature in (b"canceled", b"exits"):
            return ("canceled", unit) if nature == b"canceled" else ("done", failed(unit))
        unit = self.started(unit)
        argv = (paths.BINARY, *f"{options} {variables.get('RUNTIME_OPTIONS', '')} {extra}".split())
        world.fake.processes.processes[unit.main_pid] = ProcessState(unit.main_pid, argv, variables)
        self.units[unit.name] = unit
        inputs = (paths.BINARY, paths.PROXY_UNIT_FILE, paths.PROXY_ENVIRONMENT, paths.EXTRA_OPTIONS, argv[2])
        world.started_from[unit.main_pid] = {path: world.read(path) for path in inputs}
        world._see(world._policy(), everyone=False)
        if nature == b"slow job":
            world.answers[unit.main_pid] = world.fake.clock.time + SLOW[b"slow"]
            self.units[unit.name] = replace(unit, active_state="activating", sub_state="start")
            raise timed_out(unit.name)
        if slow in SLOW:
            self.leave()  # it was silent for three seconds
            world.answers[unit.main_pid] = world.fake.clock.time + SLOW[slow]
        if nature == b"late":
            world.create("late")
        if world.struck == "new pods":
            world.create(f"late{unit.main_pid}")
        (world.fake.root / "run/cri-resmgr").mkdir(exist_ok=True)
        (world.fake.root / "run/cri-resmgr/cri-resmgr.sock").touch()
        (world.fake.root / paths.PROXY_PID_FILE[1:]).write_text(f"{unit.main_pid}\n")
        return "done", unit

    def _kubelet_job(self, method: str, unit: UnitState) -> tuple[str, UnitState]:
        if method == "stop":
            return self._succeed(method, unit)
        world, unit = self._world, self.started(unit)
        detail = self.detail(KUBELET)
        assert world.kubelet is not None
        variables = world.kubelet.variables()
        for path, _optional in detail.environment_files:
            if path != paths.KUBELET_COMPOSED:
                variables |= world.variables(path)
        guard = (world.read(paths.GUARD) or b"").startswith(b"#!/bin/sh\n")
        nature = world.read(NATURE)
        if nature == b"lost" and not world.boots:
            raise SystemdError(f"restart {KUBELET}: the bus is away", lost=True)
        if detail.exec_start_pre and guard and world.start_of_kubelet(variables):
            name, flag = variables["CRI_RESMGR_GUARD_VARIABLE"], variables["CRI_RESMGR_GUARD_FLAG"]
            if nature != b"flagless":
                variables |= {name: f"{variables.get(name, '')} {flag}".strip()}
            if nature == b"fails" and world.on_relay_by_link(variables):
                failures = int(world.read(paths.RELAY_FAILURES) or 0) + 1
                (world.fake.root / paths.RELAY_FAILURES[1:]).write_text(f"{failures}\n")
                return "failed", replace(failed(unit), active_state="activating", sub_state="auto-restart")
        try:
            argv = command_line(world.kubelet, variables, world.read)
        except ValueError:  # it runs since before somebody broke that line
            argv = COMMAND
        exe = next((word for word in argv[:1] if word.startswith("/")), "")
        world.fake.processes.processes[unit.main_pid] = ProcessState(unit.main_pid, argv, variables, exe)
        return "done", unit


class _Job:
    """What systemd does at once; what happens within is not the installer's."""

    def __init__(self, world: World, verb: str, target: str = "") -> None:
        self._world, self._verb, self._target, self.ended = world, verb, target, ""

    def __enter__(self) -> _Job:
        self._world.depth += 1
        return self

    def __exit__(self, *_: object) -> None:
        world = self._world
        world.depth -= 1
        if not world.depth and world.traces:
            if self._verb in ("restart", "stop"):
                world.refresh()
            world.did(Effect(self._verb, self._target, ended=self.ended))


def _is_configuration(raw: bytes) -> bool:
    """Whether cri-resmgr starts with it."""
    return raw.lstrip().startswith((b"policy:", b"#", b"logger:")) and b"broken" not in raw


def _apply(tree: Tree, done: Operation) -> None:
    """The tree after one more system call."""
    verb, place = done.verb, done.place
    if verb is Verb.CREATE:
        tree[place] = Entry("f", done.mode)
    elif verb is Verb.DATA:
        tree[place] = replace(tree[place], content=tree[place].content + done.data)
    elif verb is Verb.MODE:
        tree[place] = replace(tree[place], mode=done.mode)
    elif verb is Verb.RENAME:
        tree[done.target] = tree.pop(place)
    elif verb in (Verb.UNLINK, Verb.RMDIR):
        tree.pop(place, None)
    elif verb is Verb.SYMLINK:
        tree[place] = Entry("l", 0, target=done.target)
    elif verb is Verb.MKDIR:
        tree[place] = Entry("d", done.mode)


def lay(tree: Tree, root: Path) -> None:
    """The tree on a disk of its own, whatever was there."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    build(tree, root)
    (root / "run").mkdir(exist_ok=True)
