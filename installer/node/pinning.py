"""Give containers back the CPUs and the CPU weight that cri-resmgr took from them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from installer.errors import InstallerError, UnservableHostError
from installer.host.ports import Files, Host
from installer.model import paths
from installer.model.containers import (
    CgroupState,
    CpuResources,
    KubeletManagers,
    parse_managers,
    parse_requests,
    same_list,
    shares_of,
    weights_of,
)
from installer.model.event import Emit, Event
from installer.model.host import ABSENT, HostSnapshot, RunningContainer
from installer.model.proxy import NO_CACHE, NO_POLICY, CachedContainer, ProxyCache, parse_cache
from installer.node.header import is_pending

KERNEL_DEFAULT = 1024  # cpu.shares of a container that was created without any
LOWEST = 2  # cpu.shares
_WHOLE_CPU = 1000  # milliCPU from which topology-aware gives a Guaranteed pod's container its own CPUs


def due_shares(container: RunningContainer) -> int:
    """The cpu.shares that it has to keep: those that kubelet asks for, if it has them; else those of its
    creation, or more if it has more now; 0 if nothing is known. For cgroup v2 the lowest shares that give its
    weight, which may be far too many: which formula the runtime uses is not known."""
    created = 0
    if container.creation is not None:
        found = container.creation.get("cpu_shares") or KERNEL_DEFAULT
        created = found if isinstance(found, int) else KERNEL_DEFAULT
    now = container.cgroup
    if now is None:
        return created
    if container.asked and now.fits(container.asked):  # resized in place, or as it was created
        return container.asked
    if not now.weight:
        return max(created, now.shares)
    return created if created and now.weight <= max(weights_of(created)) else shares_of(now.weight)


def is_known(container: RunningContainer, cache: ProxyCache) -> bool:
    """Whether the proxy knows what it was created with. The cache also lists containers that a start has only
    found: with the policy none without any weight, with another policy perhaps with the lowest, which a
    container that requests nothing has as well."""
    known = cache.containers.get(container.id)
    if known is None or (known.request is None and not known.weighed):
        return False
    asked = container.asked or (container.creation or {}).get("cpu_shares", LOWEST)
    return known.request is not None or asked == LOWEST


def keeps_weight(container: RunningContainer, cache: ProxyCache) -> bool:
    """Whether a policy that relies on the proxy's knowledge leaves it its weight. For a container that the
    proxy created itself, its estimate is rounded and may be one share too low."""
    if not is_known(container, cache):
        return False
    known = cache.containers[container.id]
    return container.creation is None or due_shares(container) <= _given_shares(known)


def has_own_cpus(known: CachedContainer | None) -> bool:
    """Whether a policy may give it CPUs of its own. The lowest weight is intended then."""
    return known is not None and known.guaranteed and (known.request or 0) >= _WHOLE_CPU


def _given_shares(known: CachedContainer) -> int:
    """As kubelet and cri-resmgr compute them: shares = milliCPU * 1024 / 1000, truncated."""
    return known.shares or max(LOWEST, (known.request or 0) * 1024 // 1000)


# Which CPUs and which CPU weight each container has to get back. Pure.
#
# Nothing here guesses. CPUs and memory nodes are those that kubelet's own managers have assigned, else those
# of the container's creation, else all that it could have. The weight is the one that kubelet has stored. If
# kubelet stores none: a container that was created outside the proxy has it in its creation, or in the cache
# if it was adopted. The creation of any other container has the proxy's own, and the cache has kubelet's,
# rounded. A weight is only ever raised: the proxy lowers it, so a higher one comes from someone else, such as
# a resize of the pod.

_NOTHING = CpuResources()


@dataclass(frozen=True, slots=True)
class Reset:
    """A container that has to get something back."""

    container: RunningContainer
    write: CpuResources = _NOTHING  # only what differs
    problem: str = ""  # why it is left alone; empty if it is not

    @property
    def planned(self) -> str:
        """What will be done, for people."""
        if self.problem:
            return f"leave {self.container.title} as it is: {self.problem}"
        return f"restore {self.container.title}: {', '.join(self._differences())}"

    @property
    def done(self) -> str:
        """What was done, for people."""
        if self.problem:
            return f"could not restore {self.container.title}: {self.problem}"
        return f"restored {self.container.title}: {', '.join(self._differences())}"

    def missing(self, now: CgroupState) -> str:
        """What of `write` the kernel does not enforce, in words; empty if nothing is missing."""
        wrong = []
        if self.write.cpus and not same_list(now.cpus, self.write.cpus):
            wrong.append(f"its CPUs are {now.cpus}, not {self.write.cpus}")
        if self.write.mems and not same_list(now.mems, self.write.mems):
            wrong.append(f"its memory nodes are {now.mems}, not {self.write.mems}")
        if self.write.shares and now.is_lower_than(self.write.shares):
            has = f"cpu.weight is {now.weight}" if now.weight else f"cpu.shares are {now.shares}"
            wrong.append(f"its {has}, less than {self.write.shares} shares")
        return "; ".join(wrong)

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
    """The containers that lack something, each with what to write. `everyone`: even if the cache says that
    the proxy has touched no container."""
    concerned = (container for container in containers if everyone or _concerned(container, cache))
    resets = (_reset(container, cache, managers) for container in concerned)
    return tuple(reset for reset in resets if reset is not None)


def was_cut_off(snapshot: HostSnapshot) -> bool:
    """Whether a run was interrupted between the proxy's files. Anyone may then have started the proxy with
    any of the policies that were in place meanwhile, and its cache tells only the last one."""
    carrier, process = snapshot.files.get(paths.PROXY_ENVIRONMENT, ABSENT), snapshot.proxy.process
    started_between = process is not None and process.generation.startswith(paths.PENDING)
    return started_between or is_pending(carrier.content or b"")


def _concerned(container: RunningContainer, cache: ProxyCache) -> bool:
    """Under the policy none, only what an earlier policy has left behind is the proxy's doing."""
    known = cache.containers.get(container.id)
    return cache.policy != NO_POLICY or (known is not None and bool(known.cpus))


def _reset(container: RunningContainer, cache: ProxyCache, managers: KubeletManagers) -> Reset | None:
    now = container.cgroup
    if now is None:
        return Reset(container, problem="its cgroup was not found")
    known = cache.containers.get(container.id, CachedContainer())
    if container.created is None and known.request is None and not (known.weighed or container.asked):
        if not container.pinned and not now.is_lowest:
            return None
        return Reset(
            container, problem="the runtime reports how the container was created in an unknown format"
        )
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
    # For a container created through the proxy, the creation has what the proxy gave it.
    own = _NOTHING if container.through_proxy else created
    cpus = managers.cpus_of(container.pod_uid, container.name) or own.cpus or now.free_cpus
    # kubelet's memory manager assigns nodes only at creation, where the proxy has replaced them.
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

    kubelet: shares = milliCPU * 1024 / 1000, truncated (MilliCPUToShares). The proxy's estimate is kubelet's
    shares in milliCPU, rounded to the nearest (SharesToMilliCPU of cri-resmgr's cache). Of the one or two
    numbers that round to it, this is the one in the creation, if that is one of them, else the lower one.
    """
    if known.shares or known.annotated:
        return _given_shares(known)
    request = known.request or 0
    if created and _estimate(created) == request:
        return created
    # The lowest whole number that is at least (request - 1/2) * 1024 / 1000.
    return max(LOWEST, -(-(2 * request - 1) * 1024 // 2000))


def _estimate(shares: int) -> int:
    return 0 if shares == LOWEST else (shares * 2000 // 1024 + 1) // 2


# Give running containers their CPUs and CPU weight back, directly at the runtime.
#
# Only while the proxy is stopped: otherwise it would overwrite all of it. Nothing is remembered: each call
# reads the differences again, so after a crash the next call does the rest.

_ASKED_LIMIT = 16 << 20  # bytes; a container has about 300. A longer file is ignored.
CACHE_LIMIT = 64 << 20  # bytes of the proxy's cache (10 KiB per container); a longer one is ignored


def give_back(host: Host, endpoint: str, emit: Emit, *, everyone: bool) -> None:
    """Give running containers back what the proxy took, and report it; `everyone` as in find_resets. A
    container that cannot get it back is reported, which is no failure. Nor is it one if the runtime cannot be
    asked."""
    try:
        cache, managers = read_cache(host.files), read_managers(host)
        resets = find_resets(running_containers(host, endpoint), cache, managers, everyone=everyone)
        writes = {reset.container.id: reset.write for reset in resets if not reset.problem}
        complaints = host.cri.update(endpoint, writes) if writes else {}
        done = [_checked(reset, complaints.get(reset.container.id, ""), host) for reset in resets]
    except (InstallerError, OSError) as error:
        message = f"could not restore CPUs and weight of the containers: {error}"
        hint = "they keep what they have until they are recreated"
        emit(Event("warning", message, {"code": "pinned", "hint": hint}))
        return
    for reset in filter(None, done):
        data = {"id": reset.container.id, "code": "pinned"}
        if reset.problem:
            hint = "it keeps what it has until it is recreated"
            emit(Event("warning", reset.done, {**data, "hint": hint}))
        else:
            emit(Event("pinning.reset", reset.done, data))


def _checked(reset: Reset, complaint: str, host: Host) -> Reset | None:
    """The kernel's answer counts, not the absence of a complaint. None if the container has ended
    meanwhile."""
    if reset.problem:
        return reset
    now = host.cri.cgroup(reset.container)
    return None if now is None else replace(reset, problem=complaint or reset.missing(now))


def running_containers(host: Host, endpoint: str) -> tuple[RunningContainer, ...]:
    """The running containers, with what kubelet has stored of each. Raises StepFailedError."""
    running = host.cri.containers(endpoint)
    try:
        asked = parse_requests(host.files.read(f"{host.kubelet_root}/{paths.ALLOCATED_PODS}", _ASKED_LIMIT))
    except (OSError, InstallerError):  # unreadable, or not below the host root
        return running
    return tuple(
        replace(container, asked=asked.get((container.pod_uid, container.name), container.asked))
        for container in running
    )


def read_managers(host: Host) -> KubeletManagers:
    """What kubelet's own CPU and memory managers have assigned."""
    names = (paths.CPU_MANAGER_STATE, paths.MEMORY_MANAGER_STATE)
    try:
        return parse_managers(*(host.files.read(f"{host.kubelet_root}/{name}") for name in names))
    except UnservableHostError:  # a link leads out of the host root, so kubelet could not read it either
        return parse_managers(None, None)


def read_cache(files: Files) -> ProxyCache:
    """The proxy's cache; none if it is larger than any plausible one."""
    try:
        raw = files.read(paths.PROXY_CACHE, CACHE_LIMIT)
    except UnservableHostError:  # a link leads out of the host root, so the proxy could not read it either
        return NO_CACHE
    return NO_CACHE if raw is not None and len(raw) >= CACHE_LIMIT else parse_cache(raw)
