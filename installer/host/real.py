"""The real host behind all ports. Building it costs nothing: each door opens on first use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from installer.host.bus import require_bus
from installer.host.clock import SystemClock
from installer.host.connections import HostConnections
from installer.host.cri import SocketCri
from installer.host.files import RootedFiles
from installer.host.healthz import HostHealthz
from installer.host.journal import HostJournal
from installer.host.lock import host_lock, lock_holder
from installer.host.machine import host_identity, kubelet_version
from installer.host.ports import Host
from installer.host.process import ProcProcesses
from installer.host.systemd import BusSystemd
from installer.host.validator import BinaryValidator


def build_host(root: Path) -> Host:
    """The host with this root directory: `/`, a mount of it, or /proc/<pid>/root."""
    files = RootedFiles(root, labels=True)
    systemd = BusSystemd(files)
    return Host(
        files=files,
        systemd=systemd,
        processes=ProcProcesses(root),
        connections=HostConnections(root),
        cri=SocketCri(files),
        healthz=HostHealthz(root),
        journal=HostJournal(files, systemd.kill),
        clock=SystemClock(),
        validator=BinaryValidator(files),
        lock=lambda: _lock(files),
        identity=lambda: host_identity(files),
        kubelet_version=lambda path: kubelet_version(files, path),
        lock_holder=lambda: lock_holder(files),
    )


@contextmanager
def _lock(files: RootedFiles) -> Iterator[None]:
    """The lock of a host. Creates nothing, not even the lock's directory, below a root that is not a host's.

    Raises UnservableHostError, BusyHostError.
    """
    require_bus(files)
    with host_lock(files):
        yield
