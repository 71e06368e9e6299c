"""One running container, as the answers of CRI and the kernel tell of it.

The values of its creation are only in the verbose ContainerStatus, a text that each runtime makes as it
likes: containerd (1.6 - 2.x) has the request of CRI in it, `config`; CRI-O has not, and its `runtimeSpec`
follows each update. What is not of a shape that is known here is told as unknown.
"""

from __future__ import annotations

from typing import Any

from installer.host.cgroups import Cgroups
from installer.host.protobuf import Fields, encode, mapping, message, messages, text
from installer.model.jsontext import parse_json
from installer.model.pinning import CpuResources
from installer.model.snapshot import RunningContainer

_MOUNT_OF_PROXY = "/.cri-resmgr"
_RESOURCES = (
    *("cpu_period", "cpu_quota", "cpu_shares", "memory_limit_in_bytes", "oom_score_adj"),
    *("cpuset_cpus", "cpuset_mems"),
)
_LABEL = "io.kubernetes.pod."


def build_container(listed: Fields, status: Fields, cgroups: Cgroups) -> RunningContainer | None:
    """From its entry in ListContainers and its verbose ContainerStatus; None if it has ended meanwhile."""
    identifier, labels = text(listed, 1), mapping(listed, 8)
    info = _info(status)
    pid = info.get("pid")
    pid = pid if isinstance(pid, int) else 0
    creation = _creation(info)
    created = _created(creation)
    if pid and not cgroups.runs(pid):
        return None
    return RunningContainer(
        id=identifier,
        name=text(message(listed, 3), 1),
        pod=labels.get(f"{_LABEL}name", ""),
        namespace=labels.get(f"{_LABEL}namespace", ""),
        through_proxy=any(text(mount, 1) == _MOUNT_OF_PROXY for mount in messages(message(status, 1), 14)),
        pod_uid=labels.get(f"{_LABEL}uid", ""),
        pid=pid,
        created=created,
        creation=creation if created else {},
        cgroup=cgroups.state(pid, identifier) if pid else None,
    )


def encode_update(identifier: str, resources: CpuResources) -> bytes:
    """UpdateContainerResourcesRequest. A field that is not set stays as it is."""
    linux = b""
    if resources.shares:
        linux += encode(3, resources.shares)
    if resources.cpus:
        linux += encode(6, resources.cpus.encode())
    if resources.mems:
        linux += encode(7, resources.mems.encode())
    return encode(1, identifier.encode()) + encode(2, linux)


def _info(status: Fields) -> dict[str, Any]:
    try:
        found = parse_json(mapping(status, 2).get("info", "{}"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _creation(info: dict[str, Any]) -> Any:
    """LinuxContainerResources in JSON, which leaves out what is empty or 0. Of all that it may have only what
    the proxy knows, too: numbers and texts."""
    found: Any = info
    for key in ("config", "linux", "resources"):
        found = found.get(key) if isinstance(found, dict) else None
    if not isinstance(found, dict):
        return None
    return {key: value for key, value in found.items() if key in _RESOURCES}


def _created(found: Any) -> CpuResources | None:
    if not isinstance(found, dict):
        return None
    cpus, mems = found.get("cpuset_cpus", ""), found.get("cpuset_mems", "")
    shares = found.get("cpu_shares", 0)
    if not (isinstance(cpus, str) and isinstance(mems, str) and isinstance(shares, int)):
        return None
    return CpuResources(cpus, mems, shares)
