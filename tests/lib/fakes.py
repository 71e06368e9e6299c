"""Hand-written fakes of every port: they record calls, inject failures, and keep the ports' promises.

Nothing of the machine is touched but the directory that the files live in. What a fake does in
the same way as the real adapter is held by tests/contract.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from installer.errors import (
    NO_SUCH_UNIT,
    TIMEOUT,
    UNIT_MASKED,
    BusyHostError,
    InterruptedRunError,
    StepFailedError,
    SystemdError,
    UnservableHostError,
)
from installer.host.disk import Kernel
from installer.host.files import RootedFiles
from installer.host.ports import Host, JournalEntries, RuntimeStatus
from installer.model.containers import CgroupState, CpuResources, ReadyPod, weights_of
from installer.model.host import (
    Health,
    HostPath,
    Machine,
    ProcessState,
    RunningContainer,
    UnitDetail,
    UnitState,
    UnstartedContainer,
)
from installer.model.limits import ANSWER_SECONDS
from installer.model.paths import KUBELET_ROOT, PROXY_UNIT, RELAY_ENDPOINT, normalise_endpoint, same_endpoint


class Call(NamedTuple):
    """One call of a fake: the method and what it was given, timeouts left out."""

    method: str
    target: str = ""
    detail: object = None


class FakeFiles(RootedFiles):
    """The real adapter below a temporary directory, with a memory and a way to fail.

    Owners are taken as given by who runs the test: nobody but root could change them.
    `fail` is asked before each change with (method, path) and may raise.
    """

    def __init__(self, root: Path, calls: list[Call] | None = None, kernel: Kernel | None = None) -> None:
        super().__init__(root, kernel)
        self.calls: list[Call] = [] if calls is None else calls
        self.fail: Callable[[str, str], None] = lambda _method, _path: None
        status = root.stat()
        self._owner = (status.st_uid, status.st_gid)
        self._root_user = status.st_uid

    def _note(self, method: str, path: str, detail: object = None) -> None:
        self.calls.append(Call(method, path, detail))
        self.fail(method, path)

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
        self._note("write", path, mode)
        owner = self._owner if (uid, gid) == (0, 0) else (uid, gid)
        super().write(path, content, mode, *owner, digest, attributes)

    def link(self, path: str, target: str, uid: int = 0, gid: int = 0) -> None:
        self._note("link", path, target)
        super().link(path, target, *(self._owner if (uid, gid) == (0, 0) else (uid, gid)))

    def remove(self, path: str) -> None:
        self._note("remove", path)
        super().remove(path)

    def move(self, path: str, target: str) -> None:
        self._note("move", path, target)
        super().move(path, target)

    def make_directory(self, path: str, mode: int = 0o755) -> tuple[str, ...]:
        made = self.missing_directories(path)
        if made:
            self._note("make_directory", path, mode)
        return super().make_directory(path, mode)

    def remove_empty_directory(self, path: str) -> bool:
        self._note("remove_empty_directory", path)
        return super().remove_empty_directory(path)

    def remove_tree(self, path: str) -> None:
        self._note("remove_tree", path)
        super().remove_tree(path)


OnJob = Callable[[str, UnitState], tuple[str, UnitState]]
"""(stop | restart, unit before) -> (the job's result, unit after)."""


@dataclass
class FakeSystemd:
    """A system manager in memory.

    `units` and `details` are what it has loaded. `on_disk` gives the unit as a daemon-reload would
    load it; without an entry a reload only clears NeedDaemonReload. `on_job` scripts what a
    unit's jobs do; without an entry they succeed and give a new main process. `errors` maps
    (method, unit) to what is raised, e.g. ("restart", "kubelet.service").
    """

    units: dict[str, UnitState] = field(default_factory=dict)
    details: dict[str, UnitDetail] = field(default_factory=dict)
    relations: dict[tuple[str, str], Collection[str]] = field(default_factory=dict)  # by unit and kind
    on_disk: dict[str, Callable[[UnitState], UnitState]] = field(default_factory=dict)
    on_job: dict[str, OnJob] = field(default_factory=dict)
    on_kill: Callable[[str, int], None] = lambda _name, _number: None
    reload_seconds: float = 0.0
    errors: dict[tuple[str, str], Exception] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    next_pid: int = 1000

    def unit(self, name: str) -> UnitState:
        self._raise("unit", name)
        return self.units.get(name, UnitState(name))

    def detail(self, name: str) -> UnitDetail:
        self._raise("detail", name)
        return self.details.get(name, UnitDetail())

    def daemon_reload(self, timeout: float) -> None:
        self._note("daemon_reload", "")
        if self.reload_seconds > timeout:
            raise SystemdError(f"daemon-reload: not done after {timeout:g} s", name=TIMEOUT)
        for name, load in self.on_disk.items():
            self.units[name] = load(self.unit(name))
        self.units = {name: replace(unit, need_daemon_reload=False) for name, unit in self.units.items()}

    def stop(self, name: str, timeout: float) -> str:
        return self._job("stop", name)

    def restart(self, name: str, timeout: float, *, at_once: bool = False) -> str:
        return self._job("restart", name)

    def related(self, name: str, kind: str) -> tuple[str, ...]:
        self._raise("related", name)
        return tuple(self.relations.get((name, kind), ()))

    def reset_failed(self, name: str) -> None:
        self._note("reset_failed", name)
        unit = self.units.get(name)
        if unit and unit.active_state == "failed":
            self.units[name] = replace(unit, active_state="inactive", sub_state="dead", result="success")

    def kill(self, name: str, signal_number: int) -> None:
        self._note("kill", name, signal_number)
        if not self.unit(name).main_pid:
            raise SystemdError(f"kill {name}: no main process", name="org.freedesktop.systemd1.NoSuchProcess")
        self.on_kill(name, signal_number)

    def _job(self, method: str, name: str) -> str:
        self._note(method, name)
        unit = self.unit(name)
        if unit.load_state == "masked" and method != "stop":
            raise SystemdError(f"{method} {name}: Unit {name} is masked.", name=UNIT_MASKED)
        if not unit.exists and method == "stop" and not unit.main_pid:
            return "done"
        if not unit.exists and method != "stop":  # one that runs stops, also if its file is gone
            raise SystemdError(f"{method} {name}: Unit {name} not found.", name=NO_SUCH_UNIT)
        result, self.units[name] = self.on_job.get(name, self._succeed)(method, unit)
        return result

    def _succeed(self, method: str, unit: UnitState) -> tuple[str, UnitState]:
        if method == "stop":
            return "done", replace(unit, active_state="inactive", sub_state="dead", main_pid=0)
        return "done", self.started(unit)

    def started(self, unit: UnitState) -> UnitState:
        """The unit running with a new main process, for use in scripts of `on_job`."""
        self.next_pid += 1
        return replace(
            unit,
            active_state="active",
            sub_state="running",
            result="success",
            main_pid=self.next_pid,
            came_up=True,
            invocation_id=f"{self.next_pid:032x}",
        )

    def _note(self, method: str, name: str, detail: object = None) -> None:
        self.calls.append(Call(method, name, detail))
        self._raise(method, name)

    def _raise(self, method: str, name: str) -> None:
        if error := self.errors.get((method, name)):
            raise error


def failed(unit: UnitState, result: str = "exit-code") -> UnitState:
    """The unit as it is after a start that failed."""
    return replace(unit, active_state="failed", sub_state="failed", result=result, main_pid=0, came_up=False)


def timed_out(name: str) -> SystemdError:
    """What a job whose deadline passes raises."""
    return SystemdError(f"systemctl start {name}: not done; the job was cancelled", name=TIMEOUT)


@dataclass
class FakeProcesses:
    processes: dict[int, ProcessState] = field(default_factory=dict)

    def get(self, pid: int) -> ProcessState | None:
        return self.processes.get(pid)

    def kubelet(self, pid: int) -> ProcessState | None:
        return self.get(pid)


@dataclass
class FakeConnections:
    """Kubelet has one connection to where its link has led when it dialled, and one to its runtime, which is
    cadvisor's. It dials anew when the first one ends: when it is cut, or when the proxy is another one."""

    files: FakeFiles
    systemd: FakeSystemd
    processes: FakeProcesses
    permitted: bool = True
    seen: bool = True
    dialled: dict[int, tuple[str, str]] = field(
        default_factory=dict
    )  # pid -> endpoint, the proxy's invocation
    calls: list[Call] = field(default_factory=list)

    def peers(self, pid: int) -> tuple[str, ...]:
        if not self.seen:
            raise UnservableHostError("cannot see where the connections lead")
        process, proxy = self.processes.get(pid), self.systemd.units.get(PROXY_UNIT)
        if process is None or not process.link:
            return ()
        base = process.environ.get("CRI_RESMGR_GUARD_BASE", "")
        now = f"{proxy.invocation_id} {proxy.main_pid}" if proxy is not None else ""
        endpoint, since = self.dialled.get(pid, ("", ""))
        if not endpoint or (is_relay(endpoint) and since != now):
            endpoint = self.files.state(process.link).target
            if not is_relay(endpoint) and endpoint != base:
                return (base,)  # nobody listens there
            self.dialled[pid] = (endpoint, now)
        return (base, endpoint)

    def may_cut(self, pid: int) -> bool:
        return self.permitted

    def drain(self, pid: int, endpoint: str) -> frozenset[int]:
        """Nothing is in flight."""
        return frozenset({pid} if self.cut(pid, endpoint) else ())

    def has(self, pid: int, sockets: frozenset[int]) -> bool:
        return False

    def cut(self, pid: int, endpoint: str, spared: frozenset[int] = frozenset()) -> int:
        if not self.permitted:
            raise UnservableHostError("cannot end connections")
        self.calls.append(Call("cut", endpoint))
        if not same_endpoint(self.dialled.get(pid, ("", ""))[0], endpoint):
            return 0
        del self.dialled[pid]
        return 1


def is_relay(endpoint: str) -> bool:
    return same_endpoint(endpoint, RELAY_ENDPOINT)


@dataclass
class FakeCri:
    """`sockets` maps an endpoint to who answers there: a status, the reason why not, or a function
    that gives either when asked. Endpoints are compared as kubelet would."""

    sockets: dict[str, RuntimeStatus | str | Callable[[], RuntimeStatus | str]] = field(default_factory=dict)
    running: tuple[RunningContainer, ...] = ()
    created: tuple[UnstartedContainer, ...] = ()
    empty: tuple[ReadyPod, ...] = ()
    ready_pods: dict[str, ReadyPod] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)
    ignores: bool = False  # it agrees to every update, and does none
    seconds: float = 0.0  # until it answers, or says how it is
    calls: list[Call] = field(default_factory=list)

    def answers(self, endpoint: str, timeout: float = ANSWER_SECONDS) -> bool:
        self.calls.append(Call("answers", endpoint))
        return self.seconds <= timeout and isinstance(self._who(endpoint), RuntimeStatus)

    def status(self, endpoint: str, timeout: float = ANSWER_SECONDS) -> RuntimeStatus:
        self.calls.append(Call("status", endpoint))
        if self.seconds > timeout:
            raise StepFailedError(f"{endpoint}: deadline exceeded", interfered=True)
        return self._status(endpoint)

    def containers(self, endpoint: str, timeout: float = 10.0) -> tuple[RunningContainer, ...]:
        self.calls.append(Call("containers", endpoint))
        self._status(endpoint)
        return self.running

    def pods(self, endpoint: str, timeout: float = ANSWER_SECONDS) -> dict[str, ReadyPod]:
        self.calls.append(Call("pods", endpoint))
        self._status(endpoint)
        return dict(self.ready_pods)

    def unstarted(self, endpoint: str, timeout: float = 10.0) -> tuple[UnstartedContainer, ...]:
        self.calls.append(Call("unstarted", endpoint))
        self._status(endpoint)
        return self.created

    def empty_pods(self, endpoint: str, timeout: float = 10.0) -> tuple[ReadyPod, ...]:
        self.calls.append(Call("empty_pods", endpoint))
        self._status(endpoint)
        return self.empty

    def remove(self, endpoint: str, identifier: str, timeout: float = 10.0) -> None:
        self.calls.append(Call("remove", endpoint, identifier))
        self._status(endpoint)
        self.created = tuple(one for one in self.created if one.id != identifier)

    def update(
        self, endpoint: str, resources: Mapping[str, CpuResources], timeout: float = 10.0
    ) -> dict[str, str]:
        """`refusals` are by the container's ID; the others have then what was asked for."""
        self.calls.append(Call("update", endpoint, dict(resources)))
        self._status(endpoint)
        self.running = tuple(
            replace(one, cgroup=updated(one.cgroup, resources[one.id]))
            if one.cgroup and one.id in resources and not (self.ignores or one.id in self.refusals)
            else one
            for one in self.running
        )
        return {key: why for key, why in self.refusals.items() if key in resources}

    def cgroup(self, container: RunningContainer) -> CgroupState | None:
        return next((one.cgroup for one in self.running if one.id == container.id), None)

    def _status(self, endpoint: str) -> RuntimeStatus:
        who = self._who(endpoint)
        if isinstance(who, str):
            raise StepFailedError(f"{endpoint}: {who}", interfered=True)
        return who

    def _who(self, endpoint: str) -> RuntimeStatus | str:
        for known, who in self.sockets.items():
            if normalise_endpoint(known) == normalise_endpoint(endpoint):
                return who() if callable(who) else who
        return "no socket"


def updated(cgroup: CgroupState, given: CpuResources) -> CgroupState:
    """A cgroup as the runtime leaves it."""
    weight = max(weights_of(given.shares)) if given.shares and cgroup.weight else cgroup.weight
    shares = given.shares if given.shares and cgroup.shares else cgroup.shares
    cpus, mems = given.cpus or cgroup.cpus, given.mems or cgroup.mems
    return replace(cgroup, cpus=cpus, mems=mems, shares=shares, weight=weight)


CONTAINERD = RuntimeStatus(name="containerd", version="1.6.20", api_version="v1", ready=True)


@dataclass
class FakeHealthz:
    healthy: bool | Callable[[], bool] = True
    foreign: bool = False  # another process has taken the address
    seconds: float = 0.0  # until it answers
    calls: list[Call] = field(default_factory=list)

    def ask(self, url: str, pid: int, timeout: float = ANSWER_SECONDS) -> Health:
        self.calls.append(Call("ask", url))
        if not url:
            return Health.OK
        if self.foreign:
            return Health.FOREIGN
        healthy = self.healthy() if callable(self.healthy) else self.healthy
        return Health.OK if healthy and self.seconds <= timeout else Health.UNWELL


@dataclass
class FakeJournal:
    """`unsaid` are lines that journald has not taken yet. `uid` is the user who writes: journald adds it."""

    lines: dict[str, tuple[str, ...]] = field(default_factory=dict)
    unsaid: list[tuple[str, str]] = field(default_factory=list)
    written: list[Mapping[str, str]] = field(default_factory=list)
    fault: str = ""
    uid: int = 0

    def say(self, unit: str, line: str) -> None:
        self.lines[unit] = (*self.lines.get(unit, ()), line)

    def sync(self) -> None:
        for unit, line in self.unsaid:
            self.say(unit, line)
        self.unsaid.clear()

    def cursor(self) -> str:
        return json.dumps({unit: len(lines) for unit, lines in self.lines.items()})

    def since(self, unit: str, cursor: str) -> tuple[str, ...]:
        return self.lines.get(unit, ())[json.loads(cursor).get(unit, 0) :] if cursor else ()

    def tail(self, unit: str, lines: int = 30) -> tuple[str, ...]:
        return self.lines.get(unit, ())[-lines:] if lines > 0 else ()

    def entries(self, matches: tuple[str, ...], count: int) -> JournalEntries:
        wanted = dict(match.split("=", 1) for match in matches)
        found = [fields for fields in self.written if wanted.items() <= fields.items()]
        return JournalEntries(() if self.fault else tuple(found[-count:]), self.fault)

    def write(self, fields: Mapping[str, str]) -> None:
        kept = {name: value for name, value in fields.items() if value and not name.startswith("_")}
        self.written.append({**kept, "_UID": str(self.uid)})


@dataclass
class FakeClock:
    """Time that passes only by sleeping. `on_sleep` is called after each sleep with the time it is;
    `interrupt` is the signal that asks the run to end, `interrupt_after` when (monotonic)."""

    time: float = 0.0
    wall: str = "2024-01-02T03:04:05Z"
    interrupt: int = 0
    interrupt_after: float = 0.0
    on_sleep: Callable[[float], None] = lambda _time: None
    slept: list[float] = field(default_factory=list)

    def now(self) -> str:
        return self.wall

    def monotonic(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.check()
        self.sleep_through(seconds)
        self.check()

    def sleep_through(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += max(0.0, seconds)
        self.on_sleep(self.time)

    def check(self) -> None:
        if self.interrupt and self.time >= self.interrupt_after:
            raise InterruptedRunError(self.interrupt)


@dataclass
class FakeValidator:
    """`complaint` is the verdict on every configuration, or computed from its bytes."""

    complaint: str | Callable[[bytes], str] = ""
    on_see: Callable[[Path], str] = lambda _state: ""
    calls: list[Call] = field(default_factory=list)

    def validate(self, binary: Path, config: bytes) -> str:
        self.calls.append(Call("validate", str(binary), config))
        return self.complaint(config) if callable(self.complaint) else self.complaint

    def see_containers(self, binary: Path, state_directory: Path, runtime: Path, seconds: float) -> str:
        """`on_see` writes the cache as cri-resmgr would, and gives its complaint."""
        self.calls.append(Call("see_containers", str(binary), runtime))
        return self.on_see(state_directory)


@dataclass
class FakeLock:
    """A lock in memory; `holder` set means that somebody else has it."""

    holder: str = ""
    held: bool = False
    taken: int = 0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        if self.holder or self.held:
            raise BusyHostError(f"another run holds the host lock: {self.holder or 'ourselves'}")
        self.held = True
        self.taken += 1
        try:
            yield
        finally:
            self.held = False


IDENTITY = Machine("x86_64", "0123456789abcdef0123456789abcdef", "node-1", cpus="0-1")


@dataclass
class FakeHost:
    """All fakes of one host, each reachable by its own type; `host` is what the stages take.

    The changing calls of files and systemd go into one list, `calls`, in their order.
    """

    root: Path
    calls: list[Call] = field(default_factory=list)
    identity: Machine = IDENTITY
    processes: FakeProcesses = field(default_factory=FakeProcesses)
    cri: FakeCri = field(default_factory=FakeCri)
    healthz: FakeHealthz = field(default_factory=FakeHealthz)
    journal: FakeJournal = field(default_factory=FakeJournal)
    clock: FakeClock = field(default_factory=FakeClock)
    validator: FakeValidator = field(default_factory=FakeValidator)
    lock: FakeLock = field(default_factory=FakeLock)
    kubelets: dict[str, str] = field(default_factory=dict)  # path -> version
    kubelet_root: str = KUBELET_ROOT
    files: FakeFiles = field(init=False)
    systemd: FakeSystemd = field(init=False)
    connections: FakeConnections = field(init=False)

    def __post_init__(self) -> None:
        self.files = FakeFiles(self.root, self.calls)
        self.systemd = FakeSystemd(calls=self.calls)
        self.connections = FakeConnections(self.files, self.systemd, self.processes)

    @property
    def host(self) -> Host:
        return Host(
            files=self.files,
            systemd=self.systemd,
            processes=self.processes,
            connections=self.connections,
            cri=self.cri,
            healthz=self.healthz,
            journal=self.journal,
            clock=self.clock,
            validator=self.validator,
            lock=self.lock,
            identity=lambda: self.identity,
            kubelet_version=lambda path: self.kubelets.get(path, ""),
            kubelet_root=self.kubelet_root,
            lock_holder=lambda: self.lock.holder,
        )
