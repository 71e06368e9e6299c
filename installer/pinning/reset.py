"""What each container has to get back of the CPUs and the CPU weight that the proxy took from it. Pure.

Nothing here guesses. The CPUs and memory nodes are those that kubelet's own managers have assigned, else what
a container was created with, else all that it could have. The weight is what kubelet asks for, by its own
account. Where kubelet keeps none, a stranger has it in its creation, or in the cache, if it was adopted. In
the creation of every other container the proxy has put its own, and the cache tells, rounded, what kubelet
had asked for. A weight is only ever raised: the proxy lowers it, so
that a higher one is the work of another, such as a resize of the pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from installer.header import is_pending
from installer.model import paths
from installer.model.kubelet_managers import KubeletManagers
from installer.model.pinning import CgroupState, CpuResources, same_list
from installer.model.proxy_cache import CachedContainer, ProxyCache
from installer.model.resource import ABSENT
from installer.model.snapshot import HostSnapshot, RunningContainer
from installer.pinning.weight import KERNEL_DEFAULT, LOWEST

_TOUCHES_NOBODY = "none"  # the policy
_NOTHING = CpuResources()


@dataclass(frozen=True, slots=True)
class Reset:
    """A container that has to get something back. `write` has only what differs. `problem` is why it is left
    alone, empty if it need not be."""

    container: RunningContainer
    write: CpuResources = _NOTHING
    problem: str = ""

    @property
    def planned(self) -> str:
        """What is to be done, for people."""
        if self.problem:
            return f"leave {self.container.title} as it is: {self.problem}"
        return f"give back to {self.container.title}: {', '.join(self._differences())}"

    @property
    def done(self) -> str:
        """What has been done, for people."""
        if self.problem:
            return f"{self.container.title} did not get back what the proxy took: {self.problem}"
        return f"given back to {self.container.title}: {', '.join(self._differences())}"

    def with_problem(self, problem: str) -> Reset:
        return replace(self, problem=problem)

    def missing(self, now: CgroupState) -> str:
        """What of `write` the kernel does not enforce, in words; empty if nothing is missing."""
        wrong = []
        if self.write.cpus and not same_list(now.cpus, self.write.cpus):
            wrong.append(f"its CPUs are {now.cpus}, not {self.write.cpus}")
        if self.write.mems and not same_list(now.mems, self.write.mems):
            wrong.append(f"its memory nodes are {now.mems}, not {self.write.mems}")
        if self.write.shares and now.is_lower_than(self.write.shares):
            has = f"cpu.weight is {now.weight}" if now.weight else f"cpu.shares are {now.shares}"
            wrong.append(f"its {has}, less than {self.write.shares} shares are")
        return " and ".join(wrong)

    def _differences(self) -> Iterator[str]:
        now = self.container.cgroup
        assert now is not None
        if self.write.cpus:
            yield f"CPUs {now.cpus} -> {self.write.cpus}"
        if self.write.mems:
            yield f"memory nodes {now.mems} -> {self.write.mems}"
        if self.write.shares:
            before = f"cpu.weight {now.weight}" if now.weight else f"{now.shares}"
            yield f"CPU weight {before} -> {self.write.shares} shares"


def find_resets(
    containers: Iterable[RunningContainer],
    cache: ProxyCache,
    managers: KubeletManagers,
    *,
    everyone: bool = False,
) -> tuple[Reset, ...]:
    """Those of `containers` that have not all that they should, each with what to write. `everyone`: also if
    the cache says that the proxy has touched nobody."""
    concerned = (each for each in containers if everyone or _concerned(each, cache))
    found = (_reset(container, cache, managers) for container in concerned)
    return tuple(reset for reset in found if reset is not None)


def was_cut_off(snapshot: HostSnapshot) -> bool:
    """Whether a run has ended between the proxy's files. Anybody may have started the proxy with any of the
    policies that were there meanwhile, and its cache tells of the last one only."""
    carrier, process = snapshot.files.get(paths.PROXY_ENVIRONMENT, ABSENT), snapshot.proxy.process
    started_between = process is not None and process.generation.startswith(paths.PENDING)
    return started_between or is_pending(carrier.content or b"")


def _concerned(container: RunningContainer, cache: ProxyCache) -> bool:
    """Under the policy none only what an earlier policy has left behind is the proxy's work."""
    known = cache.containers.get(container.id)
    return cache.policy != _TOUCHES_NOBODY or (known is not None and bool(known.cpus))


def _reset(container: RunningContainer, cache: ProxyCache, managers: KubeletManagers) -> Reset | None:
    now = container.cgroup
    if now is None:
        return Reset(container, problem="its cgroup was not found")
    known = cache.containers.get(container.id, CachedContainer())
    if container.created is None and known.request is None and not (known.weighed or container.asked):
        if not container.pinned and not now.is_lowest:
            return None
        return Reset(container, problem="the runtime does not say, in a shape we know, how it was created")
    wanted = _wanted(container, now, known, managers)
    write = CpuResources(
        cpus="" if same_list(now.cpus, wanted.cpus) else wanted.cpus,
        mems="" if same_list(now.mems, wanted.mems) else wanted.mems,
        shares=wanted.shares if now.is_lower_than(wanted.shares) else 0,
    )
    return Reset(container, write) if write != _NOTHING else None


def _wanted(
    container: RunningContainer, now: CgroupState, known: CachedContainer, managers: KubeletManagers
) -> CpuResources:
    created = container.created or _NOTHING
    # What the creation of a container behind the proxy says is what the proxy gave it.
    own = _NOTHING if container.through_proxy else created
    cpus = managers.cpus_of(container.pod_uid, container.name) or own.cpus or now.free_cpus
    # kubelet's memory manager assigns nodes at creation only, where the proxy has put its own.
    unknown = container.through_proxy and managers.assigns_memory
    mems = now.mems if unknown else own.mems or now.free_mems
    shares = created.shares or KERNEL_DEFAULT
    if container.asked:
        shares = container.asked
    elif container.created is None or (container.through_proxy and known.request is not None):
        shares = _kubelets_shares(known, created.shares)
    return CpuResources(cpus, mems, shares)


def _kubelets_shares(known: CachedContainer, created: int) -> int:
    """The cpu.shares that kubelet asked for.

    kubelet: shares = milliCPU * 1024 / 1000, cut off (MilliCPUToShares). The proxy's estimate is kubelet's
    shares in milliCPU, rounded to the nearest (SharesToMilliCPU of cri-resmgr's cache): of the one or two
    numbers that give it, the lower one, and the one of the creation where that is one of them.
    """
    request = known.request or 0
    if known.shares:
        return known.shares
    if known.annotated:
        return max(LOWEST, request * 1024 // 1000)
    if created and _estimate(created) == request:
        return created
    # The lowest whole number that is at least (request - 1/2) * 1024 / 1000.
    return max(LOWEST, -(-(2 * request - 1) * 1024 // 2000))


def _estimate(shares: int) -> int:
    return 0 if shares == LOWEST else (shares * 2000 // 1024 + 1) // 2
