"""Kubelet's endpoint as a link: where it leads, and how kubelet is moved by it.

Kubelet gets the path of a link as its endpoint, once and for all. Its CRI client dials that path anew
whenever a connection ends, and connect(2) follows links. So to move kubelet, the link is renamed over and
kubelet's connections to the other socket are ended once the calls in flight have been answered. The kubelet
process stays, and so do exec sessions, log streams and the readiness of its pods.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from contextlib import suppress

from installer.errors import InstallerError, StepFailedError
from installer.host.kubelet_place import find_place
from installer.host.ports import Files, Host
from installer.host.runtime_directory import make_runtime_directory
from installer.model import paths
from installer.model.host import Kind, KubeletSnapshot, UnitState
from installer.model.limits import CALLS_ANSWERED, HURRIED_SECONDS, TAKEN_UP
from installer.model.paths import RELAY_ENDPOINT, RELAY_SOCKET, normalise_endpoint, same_endpoint

_POLL = 0.05


def read_kubelet(host: Host, unit: UnitState) -> KubeletSnapshot:
    """Kubelet's process, and where its calls go."""
    process = host.processes.kubelet(unit.main_pid) if unit.main_pid else None
    return find_place(unit, process, host.files, host.connections)


def mark_unknown(files: Files) -> None:
    """From now on kubelet may make pods and containers beside the proxy. Tell the guard and the next run."""
    with suppress(OSError, InstallerError):
        make_runtime_directory(files)
        files.write(paths.CONTAINERS_UNKNOWN, b"", 0o644)


def forget_unknown(host: Host, unit: str) -> None:
    """The proxy knows all. But the guard, which takes no lock, may let kubelet leave meanwhile. It sets the
    mark before and behind the link, so here the link is looked at behind the mark.

    Raises OSError, UnservableHostError.
    """
    host.files.remove(paths.CONTAINERS_UNKNOWN)
    kubelet = read_kubelet(host, host.systemd.unit(unit))
    served = kubelet.is_at(RELAY_ENDPOINT) if kubelet.linked else kubelet.on_relay
    if kubelet.process is not None and not served:
        mark_unknown(host.files)


def move(host: Host, unit: str, endpoint: str) -> None:
    """Move kubelet to one of its two endpoints, and wait until it is there, whoever else moves or restarts it
    meanwhile. It may be there already. Its next call goes there at once; those in flight are waited for, if
    anybody answers them.

    Raises StepFailedError, OSError, UnservableHostError.
    """
    relay, now = same_endpoint(endpoint, RELAY_ENDPOINT), host.clock.monotonic()
    cut_at, deadline, marked = now + CALLS_ANSWERED, now + TAKEN_UP, False
    drained = dict[int, frozenset[int]]()
    while True:
        kubelet = read_kubelet(host, host.systemd.unit(unit))
        process, now = kubelet.process, host.clock.monotonic()
        draining = process is not None and _is_draining(host, process.pid, drained)
        if is_there(kubelet, endpoint) and not draining:
            return
        if draining and now < cut_at:
            deadline = now + TAKEN_UP
        if now > deadline:
            why = "it does not connect" if kubelet.linked else "it has not been started with our link"
            raise StepFailedError(f"{unit}: it does not take up {endpoint}: {why}", interfered=True)
        if process is not None and kubelet.linked:
            if not marked and not (relay and kubelet.peers is not None and not kubelet.is_silent):
                mark_unknown(host.files)
            if not same_endpoint(kubelet.target, endpoint):
                if marked and relay and not host.cri.answers(endpoint, HURRIED_SECONDS):
                    why = "the relay stopped answering"  # and the guard has let kubelet leave
                    raise StepFailedError(f"{unit}: it does not take up {endpoint}: {why}", interfered=True)
                make_runtime_directory(host.files, posixpath.dirname(process.link))
                if host.files.state(process.link).kind is Kind.DIRECTORY:
                    host.files.remove_tree(process.link)
                host.files.link(process.link, RELAY_SOCKET if relay else normalise_endpoint(endpoint))
            left = kubelet.base if relay else RELAY_ENDPOINT
            if process.pid not in drained:
                drained[process.pid] = asked = host.connections.drain(process.pid, left)
                host.connections.cut(process.pid, left, asked)  # who cannot be asked would stay there
                if not host.cri.answers(left, HURRIED_SECONDS):
                    cut_at = now
            elif not draining or now >= cut_at:
                host.connections.cut(process.pid, left)
            marked = True
        host.clock.sleep(_POLL)


def _is_draining(host: Host, pid: int, drained: Mapping[int, frozenset[int]]) -> bool:
    return bool(drained.get(pid)) and host.connections.has(pid, drained[pid])


def is_there(kubelet: KubeletSnapshot, endpoint: str) -> bool:
    """Whether kubelet uses this one of its two endpoints, as far as can be seen."""
    return kubelet.is_at(endpoint) and not (same_endpoint(endpoint, RELAY_ENDPOINT) and kubelet.is_silent)
