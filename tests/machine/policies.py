"""R14 with cgroup v2: what each policy may do to containers that were there first."""

from __future__ import annotations

from tests.lib.throwaway.standins.repinning import SHARED
from tests.machine.node import MachineNode, Usage


def install(node: MachineNode, policy: str, before: Usage) -> None:
    """Installs with a policy: it takes CPUs, and nothing else, and restarts nobody. `before`: what the kernel
    enforced without us."""
    node.give(policy)
    node.run("install")
    usage = node.usage()
    assert {one["cpuset.cpus.effective"] for one in usage.values()} == {SHARED}, policy
    assert but_cpus(usage) == but_cpus(before), policy


def but_cpus(usage: Usage) -> Usage:
    """Without what a policy is to change."""
    return {name: {**one, "cpuset.cpus.effective": ""} for name, one in usage.items()}
