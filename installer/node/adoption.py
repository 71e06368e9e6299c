"""Make running containers known to the proxy before it starts with a policy that would take CPU weight from
them.

A start with the policy none puts every running container into cri-resmgr's cache, but without what it was
created with. To a real policy such a container requests nothing, so it gets the lowest weight. So, while the
proxy is stopped, its program runs once by itself with the policy none, at a relay that no kubelet uses,
unless the cache has all containers already. Then the installer adds to cri-resmgr's own entries what each
container was created with. The next start switches the policy, and therefore places every container again.
The installer invents neither an entry nor a format.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from installer.errors import StepFailedError
from installer.host.ports import Files, Host
from installer.host.runtime_directory import make_runtime_directory
from installer.model import paths
from installer.model.containers import CpuResources
from installer.model.event import Emit, Event, name_some
from installer.model.host import HostPath, Probe, RunningContainer, UnstartedContainer
from installer.model.jsontext import parse_json
from installer.model.proxy import NO_POLICY, ProxyCache, parse_cache, quantity_of, without_agent
from installer.node.pinning import (
    CACHE_LIMIT,
    LOWEST,
    due_shares,
    has_own_cpus,
    is_known,
    keeps_weight,
    read_cache,
    running_containers,
)

OLD_CACHE = f"{paths.PROXY_CACHE}.before-adoption"

_TRIES = 3
_OF_THE_PROXY = ("cpuset_cpus", "cpuset_mems")  # what the proxy puts into the creation of a container
_SOME = 3  # containers named in a message


def find_leftovers(
    unstarted: Iterable[UnstartedContainer], containers: Iterable[RunningContainer]
) -> tuple[UnstartedContainer, ...]:
    """Containers that never ran and never will: kubelet's start of them was interrupted, and another
    container of the same pod and name runs. cri-resmgr's cache has one entry for both
    (`podUID:containerName`), so it would lose the running one."""
    names = {(one.pod_uid, one.name) for one in containers if one.pod_uid and one.name}
    return tuple(one for one in unstarted if (one.pod_uid, one.name) in names)


def unadoptable(container: RunningContainer, cache: ProxyCache) -> str:
    """Why this container cannot be adopted; empty if it can. A torn cache does not matter: it is moved away,
    and the proxy starts a new one."""
    if cache.foreign:
        return f"the proxy's cache has an unknown format (version {cache.version or 'unknown'})"
    if container.creation is None:
        return "the runtime reports how the container was created in an unknown format"
    return ""


def divide(
    containers: Iterable[RunningContainer], cache: ProxyCache
) -> tuple[list[RunningContainer], list[tuple[RunningContainer, str]]]:
    """The containers that the proxy does not know: those that can be adopted; the others, each with the
    reason."""
    unknown = [(one, unadoptable(one, cache)) for one in containers if not is_known(one, cache)]
    return [one for one, why in unknown if not why], [(one, why) for one, why in unknown if why]


def describe_adoption(probe: Probe, cache: ProxyCache) -> Iterator[str]:
    """What `adopt` would do, a line for each container."""
    for leftover in find_leftovers(probe.unstarted, probe.containers):
        yield f"remove {leftover.title}, which never ran: another container of its name runs"
    for container in probe.containers:
        if not is_known(container, cache):
            yield f"adopt {container.title}: it keeps its CPU weight"
        elif not keeps_weight(container, cache):
            yield f"correct {container.title}: the proxy only knows a rounded CPU weight"


def adopt(
    host: Host, endpoint: str, stop_proxy: Callable[[], None], seconds: float, emit: Emit
) -> tuple[RunningContainer, ...]:
    """Write what each unknown container was created with into the proxy's cache, and keep the old cache
    beside it. Remove leftovers that are in the way. Return the containers that run now.

    Stops the proxy if, and only if, there is something to write. Running it alone to see the containers takes
    at most `seconds`. A crash leaves the old cache, one that cri-resmgr has written with the policy none, or
    the new one; the next adoption does the rest.

    Raises StepFailedError if a container cannot be adopted, InstallerError and OSError.
    """
    containers, cache = running_containers(host, endpoint), read_cache(host.files)
    for leftover in find_leftovers(host.cri.unstarted(endpoint), containers):
        host.cri.remove(endpoint, leftover.id)
        emit(Event("leftover.removed", f"removed {leftover.title}, which never ran", {"id": leftover.id}))
    if all(keeps_weight(one, cache) for one in containers):
        return containers
    stop_proxy()
    cache = read_cache(host.files)
    _check_adoptable(containers, cache)
    _keep_old(host.files)
    for _ in range(_TRIES):
        if not _has_seen(cache, containers):
            _show_containers(host, endpoint, seconds)
        containers, cache = running_containers(host, endpoint), read_cache(host.files)
        if _has_seen(cache, containers):
            break
    _check_adoptable(containers, cache)
    incomplete = tuple(one for one in containers if not keeps_weight(one, cache))
    if unseen := [one.title for one in incomplete if one.id not in cache.containers]:
        message = f"cri-resmgr read the running containers, but did not find {name_some(unseen, _SOME)}"
        raise StepFailedError(message, "run the same command again", interfered=True)
    _give_back(host, endpoint, incomplete)
    raw, mode = host.files.read(paths.PROXY_CACHE, CACHE_LIMIT) or b"", _mode(host.files)
    host.files.write(paths.PROXY_CACHE, with_creations(raw, incomplete), mode)
    for container in incomplete:
        emit(Event("adopted", f"adopted: {container.title}", {"id": container.id}))
    return containers


def bring_back(host: Host) -> None:
    """Restore the cache as it was before `adopt`, except for its policy: which policy was last active is
    still true, and tells which containers have to get CPUs and weight back. If a real policy was in force
    before, the adopted cache stays: without it that policy would take weight from the containers."""
    old = host.files.read(OLD_CACHE, CACHE_LIMIT)
    if old is None:
        return
    kept = parse_cache(old)
    if not kept.torn and kept.policy in ("", NO_POLICY):
        cache, policy = parse_json(old), read_cache(host.files).policy
        if policy:
            cache["PolicyName"] = policy
        host.files.write(paths.PROXY_CACHE, json.dumps(cache).encode(), host.files.state(OLD_CACHE).mode)
    host.files.remove(OLD_CACHE)


def set_aside_cache(files: Files) -> Event:
    """Move away a cache that no start can read. It is kept, because nothing else has what it says."""
    kept = paths.TORN_CACHE
    files.write(kept, HostPath(paths.PROXY_CACHE), 0o600)
    files.remove(paths.PROXY_CACHE)
    message = f"the cache of cri-resmgr was torn: restarting the proxy; the cache is kept as {kept}"
    return Event("cache.kept", message, {"kept": kept})


class Lost(NamedTuple):
    """A container that has less weight than is due, or that the proxy does not know."""

    how: str  # in words
    container: RunningContainer
    came_late: bool = False  # it was created after the proxy was started, so it can be adopted now
    was_low: bool = False  # it had no more before that start, which is nobody's fault that started it
    due: int = 0  # cpu.shares


def find_lost(
    host: Host, endpoint: str, before: Mapping[str, RunningContainer], *, unknown_too: bool
) -> tuple[Lost, ...]:
    """What is wrong now that the policy is in force. `before` are the containers that ran before its start,
    by ID. A later one should have what it was created with and, with `unknown_too`, be known to the proxy,
    whose next start would re-pin it otherwise. Raises StepFailedError if neither another adoption nor
    `raise_low` can help."""
    cache = read_cache(host.files)
    checked = (
        _lost(container, cache, before.get(container.id))
        if container.id in cache.containers
        else Lost(f"the proxy does not know {container.title}", container, came_late=True)
        for container in running_containers(host, endpoint)
        if unknown_too or container.id in cache.containers
    )
    lost = tuple(lost_one for lost_one in checked if lost_one)
    if taken := [lost_one.how for lost_one in lost if not (lost_one.came_late or lost_one.was_low)]:
        some = f"{len(taken)} container{'s' * (len(taken) > 1)}"
        message = f"the policy has taken weight from {some}: {name_some(taken, _SOME, '; ')}"
        hint = "install with the policy none, or set proxy.existingContainers: refuse"
        raise StepFailedError(message, hint)
    return lost


def _lost(container: RunningContainer, cache: ProxyCache, before: RunningContainer | None) -> Lost | None:
    now = container.cgroup
    if now is None or has_own_cpus(cache.containers.get(container.id)):
        return None
    due = due_shares(before or container)
    # If the runtime reports only the present, the lowest weight of a new container proves nothing.
    unsure = before is None and container.created is None and not container.through_proxy and now.is_lowest
    if not unsure and not now.is_lower_than(due):
        return None
    has = f"cpu.weight {now.weight}" if now.weight else f"{now.shares} shares"
    wanted = "its original CPU settings are unknown" if unsure else f"not {due} shares"
    late = before is None and not unsure
    was_low = before is not None and before.cgroup is not None and not now.has_less_than(before.cgroup)
    return Lost(f"{container.title} has {has}, {wanted}", container, late, was_low, due)


def raise_low(host: Host, endpoint: str, low: Iterable[Lost], emit: Emit) -> None:
    """Give containers that had too little before this run what is due, at the runtime, and report what
    became of it. Whoever took it may do so again: that is no failure of what was started."""
    wanted = {one.container.id: CpuResources(shares=one.due) for one in low}
    complaints = host.cri.update(endpoint, wanted) if wanted else {}
    for one in low:
        now, data = host.cri.cgroup(one.container), {"id": one.container.id, "code": "weight-low"}
        if one.container.id in complaints or (now is not None and now.is_lower_than(one.due)):
            hint = "it had no more before this run; it keeps that until it is recreated"
            emit(Event("warning", one.how, {**data, "hint": hint}))
        else:
            emit(Event("pinning.reset", f"{one.how}, and had no more before this run: restored", data))


def forget_old(files: Files) -> None:
    """Delete the cache from before the adoption."""
    files.remove(OLD_CACHE)


def forget_agent(files: Files) -> None:
    """Delete the configuration that the agent has sent from the cache of the stopped proxy."""
    raw = files.read(paths.PROXY_CACHE, CACHE_LIMIT)
    if raw and not parse_cache(raw).torn:
        files.write(paths.PROXY_CACHE, without_agent(raw), _mode(files))


def announce_start(files: Files) -> None:
    """Tell the guard that the next start of the proxy is ours and may activate its policy, because unknown
    containers have been handled. If no file can be written, it is treated like a start by anyone else, which
    the next run corrects."""
    with suppress(OSError):
        make_runtime_directory(files)
        files.write(paths.PROXY_START_OURS, b"ours\n", 0o644)


def find_reduced(containers: Iterable[RunningContainer], cache: ProxyCache) -> list[str]:
    """The containers that have less weight than they were created with because of a start that was not ours,
    in words. Uncertain ones are left out. A container missing from the cache may have been created outside
    the proxy, or have lost its entry to a leftover of the same name; only the lowest weight is certain
    evidence then."""
    checked = (
        _lost(container, cache, None)
        for container in containers
        if container.id in cache.containers or (container.cgroup is not None and container.cgroup.is_lowest)
    )
    return [lost.how for lost in checked if lost and lost.came_late]


def with_creations(raw: bytes, containers: Iterable[RunningContainer]) -> bytes:
    """The cache with what `containers` were created with, otherwise unchanged."""
    cache, known = parse_json(raw), parse_cache(raw).containers
    by_id = {container.id: container for container in containers}
    for entry in cache["Containers"].values():
        container = by_id.get(str(entry.get("Id") or entry.get("ID")))
        if container is not None:
            linux, before = _linux(container), entry.get("LinuxReq") or {}
            # What the proxy has given it has to be given back, whatever becomes of this run.
            given = {key: before[key] for key in _OF_THE_PROXY if key in before}
            entry["LinuxReq"] = {**given, **linux}
            entry["Resources"] = _requirements(linux, guaranteed=known[container.id].guaranteed)
    return json.dumps(cache).encode()


def _check_adoptable(containers: Iterable[RunningContainer], cache: ProxyCache) -> None:
    for container, why in divide(containers, cache)[1]:
        message = f"{container.title} was created meanwhile and cannot be adopted: {why}"
        raise StepFailedError(message, "run the same command again", interfered=True)


def _give_back(host: Host, endpoint: str, containers: tuple[RunningContainer, ...]) -> None:
    """Return the weight that a start by someone else has taken. A policy without room for a container's
    request leaves it as it is, whatever the cache says. The check of weights finds what this cannot fix."""
    due = {container.id: due_shares(container) for container in containers}
    low = [
        container.id
        for container in containers
        if container.cgroup and container.cgroup.is_lower_than(due[container.id])
    ]
    if low:
        host.cri.update(endpoint, {identity: CpuResources(shares=due[identity]) for identity in low})


def _has_seen(cache: ProxyCache, containers: Iterable[RunningContainer]) -> bool:
    """Whether the proxy has put all of them into its cache under a policy that has placed none of them. Any
    other policy would leave those that it knows where they are, at the weight that they have."""
    return cache.policy == NO_POLICY and all(one.id in cache.containers for one in containers)


def _show_containers(host: Host, endpoint: str, seconds: float) -> None:
    """Raises StepFailedError, InstallerError, OSError."""
    files, state = host.files, paths.PROXY_STATE[0]
    files.make_directory(state, 0o710)
    socket = paths.normalise_endpoint(endpoint)
    with files.opened(paths.BINARY) as binary, files.opened(state) as place, files.opened(socket) as runtime:
        complaint = host.validator.see_containers(binary, place, runtime, seconds)
    files.remove(paths.PROXY_STATE[2])  # its pid file, whose path no option changes
    if complaint:
        raise StepFailedError(f"the running containers could not be handed to cri-resmgr: {complaint}")


def _keep_old(files: Files) -> None:
    """Keep the cache, unless an interrupted adoption has: that copy has more than the cache has now. A kept
    copy that no start can read does not count."""
    kept = files.read(OLD_CACHE, CACHE_LIMIT)
    if kept is not None and parse_cache(kept).torn:
        files.remove(OLD_CACHE)
    old = files.read(paths.PROXY_CACHE, CACHE_LIMIT)
    if old is not None and files.read(OLD_CACHE, CACHE_LIMIT) is None:
        files.write(OLD_CACHE, old, _mode(files))


def _mode(files: Files) -> int:
    return files.state(paths.PROXY_CACHE).mode


def _linux(container: RunningContainer) -> dict[str, int | str]:
    """LinuxContainerResources. If the container was created through the proxy, the CPUs in its creation are
    the proxy's, and perhaps the weight as well."""
    own = _OF_THE_PROXY if container.through_proxy else ()
    found = {key: value for key, value in (container.creation or {}).items() if key not in own}
    return {**found, "cpu_shares": max(due_shares(container), container.asked)}


def _requirements(linux: Mapping[str, int | str], *, guaranteed: bool) -> dict[str, dict[str, str]]:
    """Kubernetes' ResourceRequirements as cri-resmgr estimates them for what it creates itself
    (estimateComputeResources), except for the CPU request, which gives exactly this weight."""

    def of(key: str) -> int:
        value = linux.get(key, 0)
        return value if isinstance(value, int) else 0

    requests: dict[str, str] = {}
    limits: dict[str, str] = {}
    if of("cpu_shares") > LOWEST:
        requests["cpu"] = quantity_of(of("cpu_shares"))
    if of("memory_limit_in_bytes") > 0:
        limits["memory"] = str(of("memory_limit_in_bytes"))
    if guaranteed:
        limits |= {"cpu": requests["cpu"]} if "cpu" in requests else {}
        requests |= {"memory": limits["memory"]} if "memory" in limits else {}
    elif of("cpu_quota") > 0 and of("cpu_period") > 0:
        limits["cpu"] = f"{(of('cpu_quota') * 2000 // of('cpu_period') + 1) // 2}m"
    found: dict[str, Any] = {"requests": requests, "limits": limits}
    return {key: value for key, value in found.items() if value}
