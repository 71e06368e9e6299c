"""R14 with cgroup v2: what each policy may do to containers that were there first."""

from __future__ import annotations

from tests.lib.throwaway import real
from tests.lib.throwaway.standins.repinning import SHARED
from tests.machine.node import MachineNode, Usage


def install(node: MachineNode, policy: str, before: Usage) -> None:
    """Installs with a policy: it takes CPUs, and nothing else, and restarts nobody; the real one takes them
    only of those for whose requests it has room. `before`: what the kernel enforced without us."""
    node.give(policy)
    node.run("install")
    usage = node.usage()
    cpus = cpus_of(usage)
    assert cpus != cpus_of(before) if real.named("cri-resmgr") else cpus == {SHARED}, policy
    assert but_cpus(usage) == but_cpus(before), policy


def cpus_of(usage: Usage) -> set[str]:
    """The CPUs that anybody may use."""
    return {one["cpuset.cpus.effective"] for one in usage.values()}


def but_cpus(usage: Usage) -> Usage:
    """Without what a policy is to change."""
    return {name: {**one, "cpuset.cpus.effective": ""} for name, one in usage.items()}
