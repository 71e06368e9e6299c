"""What containers may use of the CPUs: by their creation, by kubelet, and by the kernel now."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from installer.model.jsontext import parse_json
from installer.model.proxy import nano_of

_HIGHEST = 1 << 16  # a CPU or memory node above it is a damaged file, not a machine

Weights = frozenset[int]


@dataclass(frozen=True, slots=True)
class CpuResources:
    """As CRI's LinuxContainerResources says it. `cpus` and `mems` are lists as the kernel writes them
    (`0-3,8`), empty: not said. `shares` is cgroup v1's cpu.shares (2 - 262144), 0: not said."""

    cpus: str = ""
    mems: str = ""
    shares: int = 0


@dataclass(frozen=True, slots=True)
class CgroupState:
    """What the kernel enforces on a container. `free_cpus` and `free_mems` are what the cgroup above it
    allows: all that it could have. cgroup v2 lists offline CPUs as well. `shares` is
    cpu.shares of cgroup v1, `weight` cpu.weight of v2; the other one is 0, and so are both if the kernel has
    no such controller. `blkio` is the host path of its cgroup of v1 for block I/O, empty if it has none."""

    cpus: str
    mems: str
    free_cpus: str
    free_mems: str
    shares: int = 0
    weight: int = 0
    blkio: str = field(default="", compare=False)

    def is_lower_than(self, shares: int) -> bool:
        """Whether the weight is less than these cpu.shares give. False where it is not known."""
        if self.weight:
            return self.weight < min(weights_of(shares))
        return 0 < self.shares < shares

    @property
    def is_lowest(self) -> bool:
        return self.weight == 1 or self.shares == 2


def parse_list(text: str) -> frozenset[int]:
    """The numbers of a list such as `0-3,8` (cpuset(7)). Raises ValueError if it is not one."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        low, high = int(first), int(last or first)
        if not 0 <= low <= high < _HIGHEST:
            raise ValueError(f"not a list of CPUs or memory nodes: {text!r}")
        found.update(range(low, high + 1))
    return frozenset(found)


def format_list(numbers: Iterable[int]) -> str:
    """Numbers as a list that `parse_list` reads."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in ranges)


def same_list(one: str, other: str) -> bool:
    """Whether two lists name the same CPUs, however they are written. What is not a list is only itself."""
    try:
        return parse_list(one) == parse_list(other)
    except ValueError:
        return one == other


def shares_of(weight: int) -> int:
    """The least cpu.shares that give at least this cpu.weight, whichever formula the runtime uses."""
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


# What kubelet's own static CPU and memory managers have assigned, as far as it matters to us.
#
# kubelet keeps it in /var/lib/kubelet/cpu_manager_state and memory_manager_state: JSON with `policyName`
# (`none` or `static`; `None` or `Static`), and of a static CPU manager `defaultCpuSet` and `entries`: pod
# UID, container, CPUs (k8s.io/kubernetes/pkg/kubelet/cm/cpumanager/state, since 1.18).


@dataclass(frozen=True, slots=True)
class KubeletManagers:
    """`shared` are the CPUs of all containers without a set of their own, empty unless the CPU manager is
    static. `assigned`: (pod UID, container) -> its CPUs. `assigns_memory`: the memory manager is static."""

    shared: str = ""
    assigned: Mapping[tuple[str, str], str] = field(default_factory=dict)
    assigns_memory: bool = False

    def cpus_of(self, pod_uid: str, name: str) -> str:
        """The CPUs of a container, empty where the CPU manager assigns none."""
        return self.assigned.get((pod_uid, name), self.shared)


NO_MANAGERS = KubeletManagers()


def parse_managers(cpu: bytes | None, memory: bytes | None) -> KubeletManagers:
    """From the two files' content, None if there is no file. Damaged ones count as missing: so they do for
    kubelet, which then refuses to start."""
    found, assigns_memory = _load_state(cpu), _load_state(memory).get("policyName") == "Static"
    if found.get("policyName") != "static":
        return KubeletManagers(assigns_memory=assigns_memory)
    entries = found.get("entries")
    return KubeletManagers(
        shared=str(found.get("defaultCpuSet") or ""),
        assigned={
            (uid, name): str(cpus)
            for uid, pod in (entries.items() if isinstance(entries, dict) else ())
            for name, cpus in (pod.items() if isinstance(pod, dict) else ())
        },
        assigns_memory=assigns_memory,
    )


def _load_state(raw: bytes | None) -> dict[str, object]:
    try:
        found = parse_json((raw or b"{}").decode("utf-8", "replace"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


# The CPU weight that kubelet asks for each of its containers, as far as it keeps that in a file.
#
# kubelet writes down what it has admitted: /var/lib/kubelet/allocated_pods_state, JSON with `data`, which is
# a JSON text again (k8s.io/kubernetes/pkg/kubelet/allocation/state, with the feature
# InPlacePodVerticalScaling, by default since 1.33). That text has `allocationEntries`: pod UID, container,
# its resources (1.33), or `entries`: pod UID, `ContainerResources`, container, its resources (1.34 - 1.37).
# Another shape says nothing.
#
# kubelet's API would say the same. Its port for everybody is closed by default, and who listens there may be
# another; on the other port kubelet's own certificate is refused (the Node authorizer grants no nodes/proxy),
# and a token that is not could execute commands in each container.

_LOWEST_SHARES, _HIGHEST_SHARES = 2, 262144  # cpu.shares

Asked = Mapping[tuple[str, str], int]
"""(pod UID, container) -> cpu.shares."""


def parse_requests(raw: bytes | None) -> Asked:
    """From the file's content, None if there is no file. What is not of a known shape is left out."""
    found = _load((raw or b"{}").decode("utf-8", "replace"))
    text = found.get("data")
    data = _load(text if isinstance(text, str) else "{}")
    pods = {
        uid: _mapping(pod).get("ContainerResources") for uid, pod in _mapping(data.get("entries")).items()
    }
    return dict(_shares({**_mapping(data.get("allocationEntries")), **pods}))


def _shares(pods: Mapping[str, object]) -> Iterator[tuple[tuple[str, str], int]]:
    for uid, containers in pods.items():
        for name, resources in _mapping(containers).items():
            if not isinstance(resources, dict):
                continue
            requested = _mapping(resources.get("requests")).get("cpu")
            nano = nano_of(
                _mapping(resources.get("limits")).get("cpu", "0") if requested is None else requested
            )
            if nano is not None:
                # kubelet: MilliCPUToShares of the request in milliCPU, rounded up.
                yield (uid, name), min(max(_LOWEST_SHARES, -(-nano // 10**6) * 1024 // 1000), _HIGHEST_SHARES)


def _load(text: str) -> Mapping[str, Any]:
    try:
        return _mapping(parse_json(text))
    except ValueError:
        return {}


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
