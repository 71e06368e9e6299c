"""How much CPU a container may use: what it was created with, what kubelet asked for, and what the kernel
enforces now."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from installer.model.jsontext import mapping_at, parse_object, text_at
from installer.model.proxy import nano_of

_HIGHEST = 1 << 16  # a higher CPU or memory node number means a damaged file

Weights = frozenset[int]


@dataclass(frozen=True, slots=True)
class CpuResources:
    """The CPU part of CRI's LinuxContainerResources."""

    cpus: str = ""  # as the kernel writes a list (`0-3,8`); empty: unset
    mems: str = ""  # the same, of memory nodes
    shares: int = 0  # cgroup v1's cpu.shares (2 - 262144); 0: unset


@dataclass(frozen=True, slots=True)
class CgroupState:
    """What the kernel enforces on a container."""

    cpus: str  # cgroup v2 lists offline CPUs as well
    mems: str
    free_cpus: str  # what the parent cgroup allows: the most that the container could have
    free_mems: str
    shares: int = 0  # cpu.shares of cgroup v1; 0 on v2, or without the controller
    weight: int = 0  # cpu.weight of cgroup v2; 0 on v1, or without the controller
    # Host path of its cgroup of v1 for block I/O; empty: it has none.
    blkio: str = field(default="", compare=False)

    def is_lower_than(self, shares: int) -> bool:
        """Whether the weight is less than these cpu.shares give. False if it is unknown."""
        if self.weight:
            return self.weight < min(weights_of(shares))
        return 0 < self.shares < shares

    def fits(self, shares: int) -> bool:
        """Whether the weight is what these cpu.shares give, by either formula."""
        return self.weight in weights_of(shares) if self.weight else self.shares == shares

    def has_less_than(self, other: CgroupState | None) -> bool:
        """Whether the weight is less than the other. False if one is unknown."""
        if other is None:
            return False
        if self.weight and other.weight:
            return self.weight < other.weight
        return 0 < self.shares < other.shares

    @property
    def is_lowest(self) -> bool:
        return self.weight == 1 or self.shares == 2


def parse_list(text: str) -> frozenset[int]:
    """The numbers in a list such as `0-3,8` (cpuset(7)). Raises ValueError for anything else."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        low, high = int(first), int(last or first)
        if not 0 <= low <= high < _HIGHEST:
            raise ValueError(f"not a list of CPUs or memory nodes: {text!r}")
        found.update(range(low, high + 1))
    return frozenset(found)


def format_list(numbers: Iterable[int]) -> str:
    """The list that `parse_list` reads back."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in ranges)


def same_list(one: str, other: str) -> bool:
    """Whether two lists name the same CPUs, however they are written. Text that is not a list equals only
    itself."""
    try:
        return parse_list(one) == parse_list(other)
    except ValueError:
        return one == other


class ReadyPod(NamedTuple):
    """A pod whose sandbox is ready."""

    title: str  # `namespace/name`
    created: float  # of the sandbox, in seconds since the epoch
    autoscaled: bool = False  # a VerticalPodAutoscaler has set what it requests


def shares_of(weight: int) -> int:
    """The lowest cpu.shares that give at least this cpu.weight, whichever formula the runtime uses."""
    low, high = 2, 262144
    while low < high:
        middle = (low + high) // 2
        if min(weights_of(middle)) < weight:
            low = middle + 1
        else:
            high = middle
    return low


def weights_of(shares: int) -> Weights:
    """The values of cpu.weight that a runtime may write for these shares.

    Two formulas are in use: a linear one (kubernetes/enhancements KEP-2254), and, since runc 1.3.2, one that
    gives the default shares (1024) the default weight (100): opencontainers/cgroups,
    ConvertCPUSharesToCgroupV2Value.
    """
    import math  # late: only nodes with cgroup v2 need it

    shares = min(max(shares, 2), 262144)
    linear = 1 + (shares - 2) * 9999 // 262142
    log = math.log2(shares)
    curved = math.ceil(10 ** ((log * log + 125 * log) / 612.0 - 7.0 / 34.0))
    if shares == 2:
        curved = 1
    return frozenset({linear, min(curved, 10000)})


# What kubelet's static CPU and memory managers have assigned.
#
# kubelet keeps it in /var/lib/kubelet/cpu_manager_state and memory_manager_state: JSON with `policyName`
# (`none` or `static`; `None` or `Static`). A static CPU manager adds `defaultCpuSet` and `entries`: pod UID,
# container, CPUs (k8s.io/kubernetes/pkg/kubelet/cm/cpumanager/state, since 1.18).


@dataclass(frozen=True, slots=True)
class KubeletManagers:
    """The assignments of kubelet's static managers."""

    # CPUs of all containers without a set of their own; empty unless the CPU manager is static.
    shared: str = ""
    assigned: Mapping[tuple[str, str], str] = field(default_factory=dict)  # (pod UID, container) -> its CPUs
    assigns_memory: bool = False  # the memory manager is static

    def cpus_of(self, pod_uid: str, name: str) -> str:
        """The CPUs of a container; empty if the CPU manager assigns none."""
        return self.assigned.get((pod_uid, name), self.shared)


NO_MANAGERS = KubeletManagers()


def parse_managers(cpu: bytes | None, memory: bytes | None) -> KubeletManagers:
    """Parse the content of the two files; None where there is no file. A damaged file counts as missing:
    kubelet does the same, and then refuses to start."""
    found, assigns_memory = _load(cpu), _load(memory).get("policyName") == "Static"
    if found.get("policyName") != "static":
        return KubeletManagers(assigns_memory=assigns_memory)
    return KubeletManagers(
        shared=str(found.get("defaultCpuSet") or ""),
        assigned={
            (uid, name): str(cpus)
            for uid, pod in mapping_at(found, "entries").items()
            for name, cpus in mapping_at(pod).items()
        },
        assigns_memory=assigns_memory,
    )


# The CPU weight that kubelet requests for each of its containers.
#
# kubelet stores what it has admitted in /var/lib/kubelet/allocated_pods_state: JSON whose `data` is a string
# of JSON (k8s.io/kubernetes/pkg/kubelet/allocation/state, with the feature InPlacePodVerticalScaling, on by
# default since 1.33). It has `allocationEntries`: pod UID, container, its resources (1.33), or `entries`: pod
# UID, `ContainerResources`, container, its resources (1.34 - 1.37). Any other shape is ignored.
#
# kubelet's API has the same data, but is no alternative. Its read-only port is closed by default, and another
# process may listen there. Its authenticated port refuses kubelet's own certificate (the Node authorizer
# grants no nodes/proxy), and a token that it accepts could execute commands in every container.

_LOWEST_SHARES, _HIGHEST_SHARES = 2, 262144  # cpu.shares

Asked = Mapping[tuple[str, str], int]
"""(pod UID, container) -> cpu.shares."""


def parse_requests(raw: bytes | None) -> Asked:
    """Parse the file's content; None if there is no file. Entries of an unknown shape are left out."""
    data = _load(text_at(_load(raw), "data"))
    pods = {uid: mapping_at(pod, "ContainerResources") for uid, pod in mapping_at(data, "entries").items()}
    return dict(_shares({**mapping_at(data, "allocationEntries"), **pods}))


def _shares(pods: Mapping[str, object]) -> Iterator[tuple[tuple[str, str], int]]:
    for uid, containers in pods.items():
        for name, resources in mapping_at(containers).items():
            if not isinstance(resources, dict):
                continue
            requested = mapping_at(resources, "requests").get("cpu")
            limit = mapping_at(resources, "limits").get("cpu", "0")
            nano = nano_of(limit if requested is None else requested)
            if nano is not None:
                # kubelet rounds the request up to milliCPU and applies MilliCPUToShares.
                yield (uid, name), min(max(_LOWEST_SHARES, -(-nano // 10**6) * 1024 // 1000), _HIGHEST_SHARES)


def _load(given: bytes | str | None) -> Mapping[str, Any]:
    """The JSON object in the content of a file, or in a text; empty if there is none."""
    text = given.decode("utf-8", "replace") if isinstance(given, bytes) else given
    return parse_object(text or "")
