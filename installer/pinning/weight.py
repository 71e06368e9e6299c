"""The CPU weight that a running container has to keep, and whether the proxy would take some of it. Pure."""

from __future__ import annotations

from installer.model.pinning import shares_of, weights_of
from installer.model.proxy_cache import CachedContainer, ProxyCache
from installer.model.snapshot import RunningContainer

KERNEL_DEFAULT = 1024  # cpu.shares of a container that was created without
LOWEST = 2  # cpu.shares
_WHOLE_CPU = 1000  # milliCPU: topology-aware gives a Guaranteed pod's container CPUs of its own from there on


def due_shares(container: RunningContainer) -> int:
    """The cpu.shares that it has to keep: those of its creation, or more if it has more now, as after a
    resize of its pod; 0 if neither is known. For cgroup v2 the least shares that give its weight."""
    created = 0
    if container.creation is not None:
        found = container.creation.get("cpu_shares") or KERNEL_DEFAULT
        created = found if isinstance(found, int) else KERNEL_DEFAULT
    now = container.cgroup
    if now is None:
        return created
    if not now.weight:
        return max(created, now.shares)
    return created if created and now.weight <= max(weights_of(created)) else shares_of(now.weight)


def is_known(container: RunningContainer, cache: ProxyCache) -> bool:
    """Whether the proxy knows what it was created with. The cache alone also has those that a start has
    found: with the policy none without any weight, with another one perhaps with the lowest, which a
    container that requests nothing has, too."""
    known = cache.containers.get(container.id)
    if known is None or (known.request is None and not known.weighed):
        return False
    asked = container.asked or (container.creation or {}).get("cpu_shares", LOWEST)
    return known.request is not None or asked == LOWEST


def keeps_weight(container: RunningContainer, cache: ProxyCache) -> bool:
    """Whether a policy that goes by what the proxy knows leaves it its weight. What the proxy has estimated
    of a container that it has created itself is rounded, and may be a share too little."""
    if not is_known(container, cache):
        return False
    known = cache.containers[container.id]
    return container.creation is None or due_shares(container) <= _given_shares(known)


def has_own_cpus(known: CachedContainer | None) -> bool:
    """Whether a policy may give it CPUs of its own: the lowest weight is then what it means."""
    return known is not None and known.guaranteed and (known.request or 0) >= _WHOLE_CPU


def _given_shares(known: CachedContainer) -> int:
    """As kubelet and cri-resmgr compute them: shares = milliCPU * 1024 / 1000, cut off."""
    return known.shares or max(LOWEST, (known.request or 0) * 1024 // 1000)
