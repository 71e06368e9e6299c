"""A root directory with as much of a node as the guard looks at, and the guard run below it."""

from __future__ import annotations

import os
import stat
import subprocess
import time
from pathlib import Path

from installer.inputs.systemd_syntax import parse_environment_file
from installer.rendering import unit_text

SOON = 10  # seconds: what does not wait is done by then, also on a machine with much else to do
BUDGET = "30"  # of what must not use it up
NAME = "cri-resmgr-kubelet-guard"
LINK = "/run/cri-resmgr-installer/endpoint/containerd.sock"
FLAG = f"--container-runtime-endpoint=unix://{LINK}"
RELAY, BASE = "/var/run/cri-resmgr/cri-resmgr.sock", "/run/containerd/containerd.sock"
LISTENS = "0000000000000000: 00000002 00000000 00010000 0001 01 4711 /var/run/cri-resmgr/cri-resmgr.sock"


class Node:
    """A root directory with as much of a node as the guard looks at."""

    def __init__(self, root: Path, shell: list[str]) -> None:
        self.root = root
        self.shell = shell
        self.script = root / NAME
        self.script.write_text(unit_text(NAME))
        self.pid_file = root / "var/run/cri-resmgr.pid"
        self.binary = root / "opt/intel/bin/cri-resmgr"
        self.hold = root / "var/lib/cri-resmgr-installer/hold"
        self.run = root / "run/cri-resmgr-installer"
        self.composed = self.run / "kubelet.env"
        self.socket = root / "var/run/cri-resmgr/cri-resmgr.sock"
        for directory in ("proc/net", "var/run", "opt/intel/bin", "var/lib/cri-resmgr-installer", "run"):
            (root / directory).mkdir(parents=True, exist_ok=True)
        (root / ".cri-resmgr-guard-test-root").touch()
        (root / "proc/net/unix").write_text("Num RefCount Protocol Flags Type St Inode Path\n")
        self.binary.touch(mode=0o755)
        self.link = root / LINK[1:]
        runtime = root / BASE[1:]
        runtime.parent.mkdir(parents=True, exist_ok=True)
        if not runtime.exists():
            os.mknod(runtime, stat.S_IFSOCK | 0o600)

    def serve(self, comm: str = "cri-resmgr", line: str = LISTENS, pid: str = "42\n") -> None:
        (self.root / "proc/42").mkdir(exist_ok=True)
        self.socket.parent.mkdir(exist_ok=True)
        if not self.socket.exists():
            os.mknod(self.socket, stat.S_IFSOCK | 0o600)
        (self.root / "proc/42/comm").write_text(f"{comm}\n")
        (self.root / "proc/net/unix").write_text(f"Num RefCount Protocol Flags Type St Inode Path\n{line}\n")
        self.pid_file.write_text(pid)

    def guard(
        self, verb: str, base: str | bytes | None = None, complains: bool = False, **more: str
    ) -> subprocess.CompletedProcess[str]:
        """`base` is the variable's value, `complains`: the shell may say something."""
        environment = {
            "PATH": os.environ["PATH"],
            "CRI_RESMGR_GUARD_ROOT": str(self.root),
            "CRI_RESMGR_GUARD_VARIABLE": "ARGS",
            "CRI_RESMGR_GUARD_FLAG": FLAG,
            "CRI_RESMGR_GUARD_BASE": BASE,
            "CRI_RESMGR_GUARD_SECONDS": BUDGET,
            **more,
        }
        if base is not None:
            environment[environment["CRI_RESMGR_GUARD_VARIABLE"]] = os.fsdecode(base)
        done = subprocess.run(
            [*self.shell, str(self.script), verb],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=60,
        )
        assert complains or done.stderr == ""
        return done

    @property
    def target(self) -> str:
        """Where the link leads; empty: there is none."""
        return str(self.link.readlink()) if self.link.is_symlink() else ""

    @property
    def on_relay(self) -> bool:
        """Whether kubelet is started with our flag, and with the link to the relay."""
        return self.composed.exists() and self.target == RELAY

    def lead_to(self, target: str) -> None:
        self.link.parent.mkdir(parents=True, exist_ok=True)
        self.link.unlink(missing_ok=True)
        self.link.symlink_to(target)

    def composed_value(self, variable: str = "ARGS") -> str:
        found = parse_environment_file(self.composed.read_bytes().decode())
        assert list(found) == [variable]
        return found[variable]


def elapsed(began: float) -> float:
    return time.monotonic() - began


def uptime() -> float:
    return float(Path("/proc/uptime").read_text().split()[0])
