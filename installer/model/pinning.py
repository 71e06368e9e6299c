"""What a container may use of the CPUs: what it was created with, and what the kernel enforces now."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

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
    allows: all that it could have. The CPUs of cgroup v2 are told with those that are offline. `shares` is
    cpu.shares of cgroup v1, `weight` cpu.weight of v2; the other one is 0, and so are both if the kernel has
    no such controller."""

    cpus: str
    mems: str
    free_cpus: str
    free_mems: str
    shares: int = 0
    weight: int = 0

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
