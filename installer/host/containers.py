"""One running container, as the answers of CRI and the kernel tell of it.

The values of its creation are only in the verbose ContainerStatus, a text that each runtime makes as it
likes: containerd (1.6 - 2.x, ContainerInfo of its CRI plugin) has the request of CRI in it, `config`, which
no update changes. CRI-O (containerInfo of its server) has not: its `runtimeSpec` follows each update, and so
tells only what the container has now. What is not of a shape that is known here is told as unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from installer.host.cgroups import Cgroups
from installer.host.protobuf import Fields, encode, integer, mapping, message, messages, text
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
    creation, created = _creation(info)
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
        creation=creation,
        cgroup=cgroups.state(pid, identifier) if pid else None,
        made_at=integer(listed, 7) / 1e9,
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


def _creation(info: dict[str, Any]) -> tuple[Mapping[str, int | str] | None, CpuResources | None]:
    """`creation` and `created` of RunningContainer. Of all that LinuxContainerResources may have only what
    the proxy knows, too: numbers and texts."""
    if "config" not in info:
        return _of_spec(info), None
    found = _below(info, "config", "linux", "resources")
    if found is None:
        return None, None
    found = {key: value for key, value in found.items() if key in _RESOURCES}
    created = _created(found)
    return (found, created) if created else (None, None)


def _of_spec(info: dict[str, Any]) -> Mapping[str, int | str] | None:
    """What CRI-O's `runtimeSpec` says, a configuration of the OCI runtime specification, in the words of
    LinuxContainerResources. Without cpu.shares, which kubelet always sets, it is not one that we know."""
    cpu = _below(info, "runtimeSpec", "linux", "resources", "cpu")
    if "sandboxID" not in info or cpu is None or not isinstance(cpu.get("shares"), int):
        return None
    memory = _below(info, "runtimeSpec", "linux", "resources", "memory") or {}
    process = _below(info, "runtimeSpec", "process") or {}
    found = {
        **{f"cpu_{key}": cpu.get(key) for key in ("period", "quota", "shares")},
        **{f"cpuset_{key}": cpu.get(key) for key in ("cpus", "mems")},
        "memory_limit_in_bytes": memory.get("limit"),
        "oom_score_adj": process.get("oomScoreAdj"),
    }
    return {key: value for key, value in found.items() if value and isinstance(value, int | str)}


def _below(found: Any, *keys: str) -> dict[str, Any] | None:
    """The mapping at the end of this way; None if there is none."""
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else None


def _created(found: Mapping[str, Any]) -> CpuResources | None:
    cpus, mems = found.get("cpuset_cpus", ""), found.get("cpuset_mems", "")
    shares = found.get("cpu_shares", 0)
    if not (isinstance(cpus, str) and isinstance(mems, str) and isinstance(shares, int)):
        return None
    return CpuResources(cpus, mems, shares)
