"""Strangers are made known to the proxy before it starts with a policy that would take something from them.

At a start with the policy none cri-resmgr puts every running container into its cache, with no word about
what it was created with: for a real policy such a one has no requests, and gets the lowest weight. So what it
was created with is written there, into the entries that cri-resmgr has made itself, while the proxy is
stopped. Neither an entry nor a shape of the cache is invented here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from installer.errors import StepFailedError
from installer.host.ports import Host
from installer.model import paths
from installer.model.jsontext import parse_json
from installer.model.kubelet_managers import NO_MANAGERS
from installer.model.proxy_cache import ProxyCache, parse_cache
from installer.model.snapshot import RunningContainer
from installer.pinning.reset import find_resets
from installer.pinning.restore import CACHE_LIMIT, read_cache

CACHE_FORMAT = "1"
"""CacheVersion of cri-resmgr v0.8 - v0.9.2."""

OLD_CACHE = f"{paths.PROXY_CACHE}.before-adoption"


def is_known(container: RunningContainer, cache: ProxyCache) -> bool:
    """Whether the proxy knows what it was created with. The cache alone also has those that a start with the
    policy none has found; the mount tells that it was created through the proxy."""
    known = cache.containers.get(container.id)
    return known is not None and (container.through_proxy or known.weighed)


def unadoptable(container: RunningContainer, cache: ProxyCache) -> str:
    """Why the proxy cannot be told of this stranger; empty if it can."""
    if cache.torn:
        return "the proxy's cache cannot be read"
    if container.id not in cache.containers:
        return "the proxy has not seen it yet"
    if cache.version != CACHE_FORMAT:
        return f"the proxy's cache has a format that is not known (version {cache.version or 'not said'})"
    if not container.creation:
        return "the runtime does not say, in a shape we know, how it was created"
    return ""


def divide(
    containers: Iterable[RunningContainer], cache: ProxyCache
) -> tuple[list[RunningContainer], list[tuple[RunningContainer, str]]]:
    """The strangers among `containers`: those that the proxy can be told of; the others, each with why."""
    strangers = [(one, unadoptable(one, cache)) for one in containers if not is_known(one, cache)]
    return [one for one, why in strangers if not why], [(one, why) for one, why in strangers if why]


def adopt(host: Host, endpoint: str) -> tuple[RunningContainer, ...]:
    """Writes what each stranger was created with into the stopped proxy's cache; the old cache is kept beside
    it. Returns those that were made known. A crash leaves the old cache, or the new one.

    Raises StepFailedError, with nothing written, if one of them cannot be made known, and OSError.
    """
    cache = read_cache(host.files)
    strangers = tuple(one for one in host.cri.containers(endpoint) if not is_known(one, cache))
    for stranger in strangers:
        if problem := unadoptable(stranger, cache):
            message = f"{stranger.title} has come meanwhile and cannot be adopted: {problem}"
            raise StepFailedError(message, "run again", interfered=True)
    if strangers:
        old = host.files.read(paths.PROXY_CACHE, CACHE_LIMIT) or b""
        mode = host.files.state(paths.PROXY_CACHE).mode
        host.files.write(OLD_CACHE, old, mode)
        host.files.write(paths.PROXY_CACHE, with_strangers(old, strangers), mode)
    return strangers


def bring_back(host: Host) -> None:
    """The cache as it was before `adopt`, but for the policy: which one was activated last is true all the
    same, and tells who has to get CPUs and weight back."""
    old = host.files.read(OLD_CACHE, CACHE_LIMIT)
    if old is None:
        return
    cache, policy = parse_json(old), read_cache(host.files).policy
    if policy:
        cache["PolicyName"] = policy
    host.files.write(paths.PROXY_CACHE, json.dumps(cache).encode(), host.files.state(OLD_CACHE).mode)
    host.files.remove(OLD_CACHE)


def check_weights(host: Host, endpoint: str) -> None:
    """Raises StepFailedError if a container has less weight than it should, now that the policy is in force.
    With exclusive CPUs, which only those of Guaranteed pods get, the lowest weight is what it means."""
    cache = read_cache(host.files)
    resets = find_resets(host.cri.containers(endpoint), cache, NO_MANAGERS)
    exempt = {identifier for identifier, known in cache.containers.items() if known.guaranteed}
    lost = [
        reset.planned
        for reset in resets
        if reset.write.shares and not reset.container.through_proxy and reset.container.id not in exempt
    ]
    if lost:
        message = f"the policy has taken weight from {len(lost)} containers: {'; '.join(lost[:3])}"
        raise StepFailedError(message, "install with the policy none, or set proxy.strangers: refuse")
    host.files.remove(OLD_CACHE)


def with_strangers(raw: bytes, strangers: Iterable[RunningContainer]) -> bytes:
    """The cache with what `strangers` were created with, all else as it was."""
    cache, known = parse_json(raw), parse_cache(raw).containers
    by_id = {stranger.id: stranger for stranger in strangers}
    for entry in cache["Containers"].values():
        stranger = by_id.get(str(entry.get("Id") or entry.get("ID")))
        if stranger is not None:
            entry["LinuxReq"] = dict(stranger.creation)
            entry["Resources"] = _requirements(stranger.creation, guaranteed=known[stranger.id].guaranteed)
    return json.dumps(cache).encode()


def _requirements(creation: Mapping[str, int | str], *, guaranteed: bool) -> dict[str, dict[str, str]]:
    """Kubernetes' ResourceRequirements as cri-resmgr estimates them for what it creates itself
    (estimateComputeResources), but for the CPU request: the milliCPU that give exactly this weight."""

    def of(key: str) -> int:
        value = creation.get(key, 0)
        return value if isinstance(value, int) else 0

    requests: dict[str, str] = {}
    limits: dict[str, str] = {}
    if of("cpu_shares") > 2:
        requests["cpu"] = f"{-(-of('cpu_shares') * 1000 // 1024)}m"
    if of("memory_limit_in_bytes") > 0:
        limits["memory"] = str(of("memory_limit_in_bytes"))
    if guaranteed:
        limits |= {"cpu": requests["cpu"]} if "cpu" in requests else {}
        requests |= {"memory": limits["memory"]} if "memory" in limits else {}
    elif of("cpu_quota") > 0 and of("cpu_period") > 0:
        limits["cpu"] = f"{(of('cpu_quota') * 2000 // of('cpu_period') + 1) // 2}m"
    found: dict[str, Any] = {"requests": requests, "limits": limits}
    return {key: value for key, value in found.items() if value}
