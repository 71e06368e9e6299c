"""Where kubelet's calls go: its endpoint may be a link of ours."""

from __future__ import annotations

import posixpath
import re
from contextlib import suppress

from installer.errors import InstallerError, UnservableHostError
from installer.host.ports import Connections, Files
from installer.model import paths
from installer.model.host import KubeletSnapshot, ProcessState, UnitState

BASE_VARIABLE = "CRI_RESMGR_GUARD_BASE"
_BASE = re.compile(rb'^%b="?([\w./@:+-]+)"?$' % BASE_VARIABLE.encode(), re.MULTILINE)
_LINKS = 4  # in a row


def find_place(
    unit: UnitState, process: ProcessState | None, files: Files, connections: Connections
) -> KubeletSnapshot:
    """Kubelet's process, and where its calls go."""
    if process is None or not process.link:
        return KubeletSnapshot(unit, process)
    peers: tuple[str, ...] | None = None
    with suppress(UnservableHostError):  # then only the link tells
        peers = connections.peers(process.pid)
    return KubeletSnapshot(
        unit,
        process,
        target=_followed(files, _target(files, process.link)),
        base=_followed(files, _base(files, process)),
        peers=peers,
        movable=connections.may_cut(process.pid),
    )


def _target(files: Files, link: str) -> str:
    with suppress(OSError, InstallerError):
        return files.state(link).target
    return ""


def _base(files: Files, process: ProcessState) -> str:
    """As the guard will find it at the next start, or as it was at the last one."""
    with suppress(OSError, InstallerError):
        if found := _BASE.search(files.read(paths.KUBELET_ENVIRONMENT) or b""):
            return found[1].decode()
    return process.environ.get(BASE_VARIABLE, "")


def _followed(files: Files, path: str) -> str:
    """Where a link at that path leads: a socket has the name by which its listener knows it."""
    for _ in range(_LINKS):
        target = _target(files, path) if path.startswith("/") else ""
        if not target:
            break
        path = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    return path
