"""Whether the policy that counts has CPUs for what kubelet has put on the node. Pure.

A policy's capacity is not kubelet's: topology-aware takes whole CPUs out of its pool for what is reserved, so
with 2 CPUs and 100m reserved it has 1,000m where kubelet allocates nearly 2,000m (seen with the real v0.9.2).
What it cannot place at its start runs on with all CPUs; what is created later fails.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from installer.inputs.configs import Configs, find_cpu_faults
from installer.inputs.policy import policy_in_force
from installer.model.finding import Finding, refusal, warning
from installer.model.overview import name_some
from installer.model.pinning import parse_list
from installer.model.policy import Repinning
from installer.model.proxy_cache import nano_of
from installer.model.snapshot import HostSnapshot, RunningContainer
from installer.pinning.weight import LOWEST, due_shares

if TYPE_CHECKING:
    from installer.inputs.load import Inputs

_WHOLE_CPUS = ("topology-aware", "memtier")  # what is reserved is taken from whole CPUs
_NAMED, _LONGEST = 5, 120  # containers, and letters of each name
_DOCS = 'docs/operations.md, "A policy\'s capacity"'


def check_cpus(configs: Configs, cpus: str) -> Iterable[Finding]:
    """Whether the policy that starts now is given CPUs that the node does not have, which ends its start."""
    for fault in find_cpu_faults(configs, cpus):
        yield refusal("cpus", fault, "name CPUs that each node with these configs has, or exclude the node")


def check_placed(snapshot: HostSnapshot) -> Iterable[Finding]:
    """Running containers that the policy in force has given no CPUs, by the proxy's own account."""
    policy, cached = policy_in_force(snapshot), snapshot.cache.containers
    places = policy is not None and policy.repins is not Repinning.NOTHING
    if policy is None or not places or not any(one.cpus for one in cached.values()):
        return
    left = sorted(one.title or identity for identity, one in cached.items() if not one.cpus)
    if left:
        named = name_some(
            [one if len(one) <= _LONGEST else one[: _LONGEST - 3] + "..." for one in left], _NAMED
        )
        count = f"{len(left)} container{'s' * (len(left) > 1)}"
        yield warning(
            "unplaced",
            f"the policy {policy.name} had no CPUs for {count} ({named}), which use all CPUs, and fail with "
            "CreateContainerError when they are created again",
            f"give the policy more CPUs, or the node fewer pods ({_DOCS})",
        )


def check_capacity(inputs: Inputs, snapshot: HostSnapshot) -> Iterable[Finding]:
    """Whether what runs requests more than the policy that starts now will have. Requests are known by the
    weights that kubelet makes of them."""
    containers, policy = snapshot.probe.containers if snapshot.probe else (), inputs.configs.policy
    reserved, cpus = nano_of(inputs.configs.reserved), _cpus(containers)
    if policy not in _WHOLE_CPUS or reserved is None or not cpus:
        return
    capacity = 1000 * (cpus - math.ceil(reserved / 10**9))
    shares = (one.asked or due_shares(one) for one in containers if one.pod_uid)
    requested = sum(each * 1000 // 1024 for each in shares if each > LOWEST)
    if requested > capacity:
        yield warning(
            "policy-capacity",
            f"the running containers request {requested}m CPU, and {policy} will have {capacity}m for them: "
            f"{cpus} CPUs without the whole ones that it takes for {inputs.configs.reserved} reserved",
            f"reserve less, run fewer pods, or keep kubelet's allocatable below that ({_DOCS})",
        )


def _cpus(containers: Iterable[RunningContainer]) -> int:
    """How many the node has, by what its containers may use."""
    free = (one.cgroup.free_cpus for one in containers if one.cgroup is not None)
    try:
        return max((len(parse_list(each)) for each in free), default=0)
    except ValueError:
        return 0
