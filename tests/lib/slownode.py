"""A simulated node where a start of the proxy takes longer than kubelet may hang on it."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path

from installer.inputs.load import Request
from installer.inputs.settings import KubeletSettings, Settings
from installer.model import paths
from installer.model.event import Event
from installer.model.host import UnitState
from installer.model.names import Mode
from installer.node.reconcile import reconcile
from tests.faults.disks.crash import build
from tests.faults.disks.node import Node, bare_node, program
from tests.faults.disks.recorder import Careless
from tests.lib.fakes import CONTAINERD

SECONDS = 14.0  # of a slow start
SETTINGS = Settings(kubelet=KubeletSettings(settle_seconds=1))


class SlowNode(Node):
    """A start takes its `seconds` if the program then is one of the `slow` ones. `off_relay_at`: when
    kubelet was first seen on its base endpoint."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, Careless())
        self._serves_at = 0.0
        self.slow: tuple[str, ...] = ()
        self.seconds = SECONDS
        self._is_busy = False
        self.said: list[Event] = []
        self.off_relay_at: float | None = None
        start = self.systemd.on_job[paths.PROXY_UNIT]

        def begin(method: str, unit: UnitState) -> tuple[str, UnitState]:
            slow = (self.read(paths.BINARY) or b"") in map(program, self.slow)
            self._serves_at = self.fake.clock.time + (self.seconds if slow else 0.0)
            result, begun = start(method, unit)
            if not slow:
                self._serves(begun.main_pid)
            return result, begun

        def serves() -> bool:
            return self.proxy_runs and self.fake.clock.time >= self._serves_at

        self.systemd.on_job[paths.PROXY_UNIT] = begin
        self.fake.cri.sockets[paths.RELAY_ENDPOINT] = lambda: CONTAINERD if serves() else "no answer"
        self.fake.clock.on_sleep = self._watch

    def _serves(self, pid: int) -> None:
        pid_file = self.fake.root / paths.PROXY_PID_FILE[1:]
        pid_file.parent.mkdir(exist_ok=True)
        pid_file.write_text(f"{pid}\n")

    def be_silent(self) -> None:
        """The proxy, from now on, and busy: at whatever it is."""
        self._serves_at, self._is_busy = math.inf, True

    def _watch(self, time: float) -> None:
        processes, pid = self.fake.processes.processes, self.systemd.unit(paths.PROXY_UNIT).main_pid
        if self._is_busy and pid in processes:
            processes[pid] = replace(processes[pid], cpu=time)
        if self.off_relay_at is None and not self.on_relay:
            self.off_relay_at = time

    def install(self, payload: Path, configs: Path | None = None) -> None:
        self.off_relay_at = None
        asked = Request(Mode.INSTALL, SETTINGS, payload, configs, default_configs=configs is None)
        reconcile(asked, self.fake.host, self.said.append)


def last_start_took(node: Node, seconds: float) -> None:
    """As the files of the proxy that runs tell."""
    unit = node.systemd.unit(paths.PROXY_UNIT)
    processes = node.fake.processes.processes
    processes[unit.main_pid] = replace(processes[unit.main_pid], age=3600.0)
    run = node.fake.root / "run"
    if not (run / "cri-resmgr").is_dir():
        (run / "cri-resmgr").unlink()
        (run / "cri-resmgr").mkdir()
    socket, pid_file = run / "cri-resmgr/cri-resmgr.sock", node.fake.root / paths.PROXY_PID_FILE[1:]
    socket.touch()
    pid_file.write_text(f"{unit.main_pid}\n")
    os.utime(socket, (1_700_000_000, 1_700_000_000))
    os.utime(pid_file, (1_700_000_000, 1_700_000_000 + seconds))


def release(payload: Path, version: str, *, works: bool = True) -> None:
    """A payload with another program."""
    binary = payload / paths.BINARY[1:]
    binary.parent.mkdir(parents=True, exist_ok=True)
    binary.write_bytes(program(version, works=works))
    binary.chmod(0o755)


def build_slow_node(root: Path, payload: Path) -> SlowNode:
    """Installed; no start is slow yet."""
    root.mkdir()
    build(bare_node(), root)
    made = SlowNode(root)
    made.install(payload)
    return made
