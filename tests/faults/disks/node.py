"""A node whose units are started from the files as they lie on its disk, with no system but that.

Its processes testify what they were started from, as real ones do, so that what the installer derives
from them is derived here as well. A proxy serves if its files are whole; its program fails if it says so.
"""

from __future__ import annotations

import itertools
import os
import posixpath
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from glob import glob
from pathlib import Path

from installer.host.disk import Kernel, sync_directory
from installer.host.kubelet_place import BASE_VARIABLE, find_place
from installer.host.ports import KnownDigest, RuntimeStatus
from installer.inputs.systemd_syntax import parse_environment_file
from installer.model import paths
from installer.model.host import ExecLine, FileState, KubeletSnapshot, ProcessState, UnitDetail, UnitState
from installer.model.paths import link_of
from tests.faults.disks.crash import Entry, Tree, build
from tests.faults.disks.recorder import Careless
from tests.lib.fakes import CONTAINERD, FakeConnections, FakeFiles, FakeHost, FakeSystemd, failed
from tests.lib.throwaway.payload import ENVIRONMENT, UNIT

KUBELET = "kubelet.service"
RUNTIME = "unix:///run/containerd/containerd.sock"
BREAKS = b"it cannot work"
END = b"# end\n"
_UNIT_DIRECTORY = "/etc/systemd/system"
_PACKAGES = "/usr/lib/systemd/system"
_PACKAGED_UNIT = f"{_PACKAGES}/{paths.PROXY_UNIT}"
BASE_UNIT = f"{_UNIT_DIRECTORY}/{KUBELET}"
_BASE_DROP_IN = f"{_UNIT_DIRECTORY}/{KUBELET}.d/10-kubeadm.conf"
BASE_ENVIRONMENT = "/etc/default/kubelet"
DROP_IN = paths.drop_in(_UNIT_DIRECTORY, KUBELET)
_ENABLED = f"{_UNIT_DIRECTORY}/multi-user.target.wants/{paths.PROXY_UNIT}"
COMMAND = ("/usr/bin/kubelet", f"--container-runtime-endpoint={RUNTIME}")
_RELAY_ARGS = f"KUBELET_EXTRA_ARGS=--v=2 --container-runtime-endpoint={paths.RELAY_ENDPOINT}\n"
_boots = itertools.count(1)


def program(version: str, *, works: bool = True) -> bytes:
    """A cri-resmgr of a hundred bytes. A part of it does not work."""
    return b"#!/bin/sh\n# " + version.encode() + b"\n" + (b"" if works else BREAKS) + b"\n" * 60 + END


def bare_node() -> Tree:
    """A node with a kubelet, and with files of somebody where ours will be."""

    def file(text: str, mode: int = 0o644) -> Entry:
        return Entry("f", mode, text.encode())

    directory = Entry("d", 0o755)
    made = ("", "/default", "/systemd", "/systemd/system", f"/systemd/system/{KUBELET}.d")
    return {
        **{f"/etc{path}": directory for path in made},
        "/opt": directory,
        "/var": directory,
        "/var/lib": directory,
        "/var/run": Entry("l", 0, target="/run"),
        "/run": directory,
        BASE_UNIT: file("[Service]\nExecStart=/usr/bin/kubelet\n[Install]\nWantedBy=multi-user.target\n"),
        _BASE_DROP_IN: file(
            f"[Service]\nEnvironmentFile=-{BASE_ENVIRONMENT}\nExecStart=\n"
            f"ExecStart={' '.join(COMMAND)} $KUBELET_EXTRA_ARGS\n"
        ),
        BASE_ENVIRONMENT: file("KUBELET_EXTRA_ARGS=--v=2\n"),
        posixpath.dirname(paths.FALLBACK_CONFIG): Entry("d", 0o750),
        paths.FALLBACK_CONFIG: file("policy:\n  Active: topology-aware\n", 0o640),
        paths.PROXY_ENVIRONMENT: Entry("l", 0, target="/etc/default/kubelet"),
    }


def earlier_node() -> Tree:
    """A node whose kubelet has the relay from its environment file, and upstream's release."""

    def file(content: bytes, mode: int = 0o644) -> Entry:
        return Entry("f", mode, content)

    tree = {path: entry for path, entry in bare_node().items() if path != paths.PROXY_ENVIRONMENT}
    directory = Entry("d", 0o755)
    return {
        **tree,
        "/opt/intel": directory,
        "/opt/intel/bin": directory,
        "/etc/systemd/system/multi-user.target.wants": directory,
        paths.PROXY_WANTED: Entry("l", 0, target=paths.PROXY_UNIT_FILE),
        paths.BINARY: file(program("theirs"), 0o755),
        paths.PROXY_UNIT_FILE: file(UNIT.encode()),
        paths.PROXY_ENVIRONMENT: file(ENVIRONMENT.encode()),
        f"{paths.FALLBACK_CONFIG}.sample": file(b"# a sample\n"),
        BASE_ENVIRONMENT: file(_RELAY_ARGS.encode()),
    }


def packaged_node() -> Tree:
    """The same, with the proxy's unit where a package has it, and an empty directory of theirs."""
    tree = earlier_node()
    unit = tree.pop(paths.PROXY_UNIT_FILE)
    directory = Entry("d", 0o755)
    parents = ("/usr", "/usr/lib", "/usr/lib/systemd", _PACKAGES, "/opt/intel/licenses")
    return {
        **tree,
        **dict.fromkeys(parents, directory),
        _PACKAGED_UNIT: unit,
        paths.PROXY_WANTED: Entry("l", 0, target=_PACKAGED_UNIT),
    }


def node_after_takeover() -> Tree:
    """What is left of it when it was taken over and then removed."""
    gone = (paths.FALLBACK_CONFIG, posixpath.dirname(paths.FALLBACK_CONFIG), paths.PROXY_ENVIRONMENT)
    repaired = Entry("f", 0o644, _RELAY_ARGS.replace(paths.RELAY_ENDPOINT, RUNTIME).encode())
    return {path: entry for path, entry in bare_node().items() if path not in gone} | {
        BASE_ENVIRONMENT: repaired
    }


CACHE = b'{"Version": "1"}'  # what the proxy writes into its own


class NodeFiles(FakeFiles):
    """Whoever runs the test is root on the node."""

    def state(self, path: str, known: KnownDigest | None = None) -> FileState:
        state = super().state(path, known)
        return replace(state, uid=0, gid=0) if (state.uid, state.gid) == self._owner else state


class Node:
    """The node whose disk is `root`, booted: nothing of an earlier boot lives."""

    def __init__(self, root: Path, kernel: Kernel) -> None:
        self.fake = FakeHost(root)
        self.fake.files = self._make_files(kernel)
        self.systemd = self.fake.systemd = self._make_systemd(kernel)
        self.fake.connections = FakeConnections(self.fake.files, self.systemd, self.fake.processes)
        self.fake.cri.sockets = {RUNTIME: CONTAINERD, paths.RELAY_ENDPOINT: self._relay}
        self.fake.healthz.healthy = self.kubelet_healthy
        self._boot()

    def _make_files(self, kernel: Kernel) -> NodeFiles:
        return NodeFiles(self.fake.root, self.fake.calls, kernel)

    def _make_systemd(self, kernel: Kernel) -> NodeSystemd:
        return NodeSystemd(self, kernel)

    def add_drop_in(self, name: str, text: str) -> None:
        """Another person's, of kubelet's unit; loaded."""
        path = f"{_UNIT_DIRECTORY}/{KUBELET}.d/{name}"
        (self.fake.root / path[1:]).write_text(text)
        self.systemd.drop_ins += (path,)
        self.systemd.load()

    def _boot(self) -> None:
        run = self.fake.root / "run"
        shutil.rmtree(run)
        run.mkdir()
        systemd = self.systemd
        systemd.next_pid = next(_boots) * 10_000  # what an earlier boot has seen is not seen again
        systemd.units = {KUBELET: UnitState(KUBELET), paths.PROXY_UNIT: UnitState(paths.PROXY_UNIT)}
        systemd.load()
        proxy = systemd.unit(paths.PROXY_UNIT)
        wanted = proxy.unit_file_state == "enabled" or DROP_IN in systemd.unit(KUBELET).drop_in_paths
        if proxy.exists and wanted:
            systemd.restart(proxy.name, 0)
        systemd.restart(KUBELET, 0)
        self.fake.calls.clear()

    @property
    def on_relay(self) -> bool:
        return self.place(self.systemd.unit(KUBELET)).on_relay

    def place(self, kubelet: UnitState) -> KubeletSnapshot:
        """Where kubelet's calls go."""
        process = self.fake.processes.get(kubelet.main_pid)
        return find_place(kubelet, process, self.fake.files, self.fake.connections)

    @property
    def proxy_runs(self) -> bool:
        return self.process(paths.PROXY_UNIT) is not None

    def kubelet_healthy(self) -> bool:
        """Whether it runs, and somebody is at its endpoint."""
        return self.process(KUBELET) is not None and (self.proxy_runs or not self.on_relay)

    def process(self, unit: str) -> ProcessState | None:
        return self.fake.processes.get(self.systemd.unit(unit).main_pid)

    def _relay(self) -> RuntimeStatus | str:
        return CONTAINERD if self.proxy_runs else "no socket"

    def read(self, path: str) -> bytes | None:
        return self.fake.files.read(path)

    def variables(self, path: str) -> dict[str, str]:
        """What an EnvironmentFile sets; nothing, if it is not there."""
        return parse_environment_file((self.read(path) or b"").decode("utf-8", "replace"))


class NodeSystemd(FakeSystemd):
    """Loads and starts both units from the files."""

    def __init__(self, node: Node, kernel: Kernel) -> None:
        super().__init__(calls=node.fake.calls)
        self._node = node
        self._kernel = kernel
        self.drop_ins: tuple[str, ...] = (_BASE_DROP_IN,)
        self.on_job = {KUBELET: self._kubelet_job, paths.PROXY_UNIT: self._proxy_job}
        self.on_disk = {KUBELET: self._load_kubelet, paths.PROXY_UNIT: self._load_proxy}

    def unit(self, name: str) -> UnitState:
        """What was not found is looked for again, as systemd does (252), without a reload."""
        unit = super().unit(name)
        if not unit.exists and name in self.on_disk:
            unit = self.units[name] = self.on_disk[name](unit)
        return unit

    def load(self) -> None:
        """Reads all files."""
        for name, read in self.on_disk.items():
            self.units[name] = read(self.unit(name))

    def _enabled(self) -> bool:
        return bool(self._links())

    def _links(self) -> list[str]:
        return glob(f"{self._node.fake.root}{_UNIT_DIRECTORY}/*.wants/{paths.PROXY_UNIT}")

    def _load_proxy(self, unit: UnitState) -> UnitState:
        places = (paths.PROXY_UNIT_FILE, _PACKAGED_UNIT)
        place = next((path for path in places if self._node.read(path) is not None), "")
        text = self._node.read(place) if place else None
        if text is None:
            return replace(unit, load_state="not-found", unit_file_state="", environment=(), fragment_path="")
        return replace(
            unit,
            load_state="loaded",
            unit_file_state="enabled" if self._enabled() else "disabled",
            environment=unit_environment(text),
            fragment_path=place,
        )

    def _load_kubelet(self, unit: UnitState) -> UnitState:
        text = self._node.read(DROP_IN)
        lines = tuple(unit_environment(text or b""))
        drop_ins = self.drop_ins if text is None else (*self.drop_ins, DROP_IN)
        files = [(BASE_ENVIRONMENT, True)]
        before = []
        for line in (text or b"").decode("utf-8", "replace").splitlines():
            key, _, value = line.partition("=-")
            if key == "EnvironmentFile":
                files.append((value, True))
            elif key == "ExecStartPre":
                words = tuple(value.removeprefix("+").split())
                before.append(ExecLine(words[0], words))
        command = ExecLine(COMMAND[0], (*COMMAND, "$KUBELET_EXTRA_ARGS"))
        self.details[KUBELET] = UnitDetail((command,), tuple(before), tuple(files))
        return replace(
            unit,
            load_state="loaded",
            unit_file_state="enabled",
            environment=lines,
            fragment_path=BASE_UNIT,
            drop_in_paths=drop_ins,
        )

    def _proxy_job(self, method: str, unit: UnitState) -> tuple[str, UnitState]:
        if method == "stop":
            self.leave()
            return self._succeed(method, unit)
        node = self._node
        text = node.read(unit.fragment_path) or b""
        extra = node.variables(paths.EXTRA_OPTIONS) if paths.EXTRA_OPTIONS.encode() in text else {}
        variables = extra | node.variables(paths.PROXY_ENVIRONMENT)
        config = variables.get("CONFIG_OPTIONS", "").rpartition(" ")[2]
        binary = node.read(paths.BINARY) or b""
        works = binary.endswith(END) and BREAKS not in binary and node.read(config)
        mode = node.fake.files.state(paths.BINARY).mode
        if not works or not mode & 0o100:
            return "failed", failed(unit)
        unit = self.started(unit)
        options = (variables["CONFIG_OPTIONS"], variables.get("RUNTIME_OPTIONS", ""))
        argv = (paths.BINARY, *" ".join(options).split())
        node.fake.processes.processes[unit.main_pid] = ProcessState(unit.main_pid, argv, variables)
        self._leave_state()
        return "done", unit

    def _leave_state(self) -> None:
        """What cri-resmgr itself leaves on a disk."""
        state = f"{self._node.fake.root}{paths.PROXY_STATE[0]}"
        if not os.path.isdir(state):
            self._kernel.mkdir(state, 0o755)
        if self._node.read(paths.PROXY_CACHE) != CACHE:
            self._node.fake.files.remove(paths.PROXY_CACHE)
            with self._kernel.create(f"{state}/cache") as file:
                file.write(CACHE)
                file.flush()
                self._kernel.sync(file.fileno())
            sync_directory(state, self._kernel)  # but not its parent, which would help us, too
        for path in paths.PROXY_STATE[1:]:
            Path(f"{self._node.fake.root}{path}").touch()

    def _kubelet_job(self, method: str, unit: UnitState) -> tuple[str, UnitState]:
        """Its guard included: without a proxy that serves it starts on its own endpoint."""
        if method == "stop":
            return self._succeed(method, unit)
        node = self._node
        unit = self.started(unit)
        files = [path for path, _optional in self.detail(KUBELET).environment_files]
        variables: dict[str, str] = {}
        for path in files:
            variables |= node.variables(path)
        argv = (*COMMAND, *variables.get("KUBELET_EXTRA_ARGS", "").split())
        guard = (node.read(paths.GUARD) or b"").startswith(b"#!/bin/sh\n")
        pre = self.detail(KUBELET).exec_start_pre
        flag = variables.get("CRI_RESMGR_GUARD_FLAG", "")
        held = any(os.path.exists(f"{node.fake.root}{path}") for path in paths.HOLDS)
        to_relay, link = not held and node.proxy_runs, link_of(flag.partition("=")[2])
        if flag and guard and pre and (to_relay or link):  # an earlier version's names the relay itself
            argv = (*argv, flag)
            if link:
                self.point(link, paths.RELAY_SOCKET if to_relay else variables[BASE_VARIABLE])
        node.fake.processes.processes[unit.main_pid] = ProcessState(unit.main_pid, argv, variables)
        return "done", unit

    def leave(self) -> None:
        """What the guard does when the proxy is stopped by order."""
        variables = self._node.variables(paths.KUBELET_ENVIRONMENT)
        link = link_of(variables.get("CRI_RESMGR_GUARD_FLAG", "").partition("=")[2])
        if link and self._node.fake.files.state(link).target.endswith("cri-resmgr/cri-resmgr.sock"):
            self.point(link, variables[BASE_VARIABLE])
            (self._node.fake.root / paths.CONTAINERS_UNKNOWN[1:]).touch()

    def point(self, link: str, target: str) -> None:
        """What the guard does, below /run, which no power loss survives."""
        place = f"{self._node.fake.root}{link}"
        os.makedirs(posixpath.dirname(place), exist_ok=True)
        with suppress(FileNotFoundError):
            os.unlink(place)
        os.symlink(target, place)


def unit_environment(text: bytes) -> tuple[str, ...]:
    lines = text.decode("utf-8", "replace").splitlines()
    return tuple(line.removeprefix("Environment=") for line in lines if line.startswith("Environment="))


class Killed(BaseException):
    """The run ends, and nothing of it goes on."""


@contextmanager
def killed_at(node: Node, method: str, path: str) -> Iterator[None]:
    """The run in the block is killed when it is about to do that to the path."""

    def fail(about: str, target: str) -> None:
        if (about, target) == (method, path):
            raise Killed

    node.fake.files.fail = fail
    try:
        yield
    except Killed:
        return
    finally:
        node.fake.files.fail = lambda _method, _path: None
    raise AssertionError(f"the run has ended before it would {method} {path}")


def lay_node(root: Path, tree: Tree | None = None) -> Node:
    """A node with the files of `tree`, or of `bare_node`, in a new directory."""
    root.mkdir()
    build(bare_node() if tree is None else tree, root)
    return Node(root, Careless())
