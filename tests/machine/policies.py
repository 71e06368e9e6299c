"""R14 with cgroup v2: what each policy may do to containers that were there first."""

from __future__ import annotations

from tests.host.workload import POLICIES
from tests.machine.node import MachineNode, Usage
from tests.throwaway.standins.repinning import SHARED


def go_through_policies(node: MachineNode, before: Usage) -> None:
    """Installs with one policy after the other. `before`: what the kernel enforced without us."""
    for policy in POLICIES:
        install(node, policy, before)


def install(node: MachineNode, policy: str, before: Usage) -> None:
    """Installs with a policy: it takes CPUs, and nothing else, and restarts nobody."""
    node.give(policy)
    node.run("install")
    usage = node.usage()
    assert {one["cpuset.cpus.effective"] for one in usage.values()} == {SHARED}, policy
    assert but_cpus(usage) == but_cpus(before), policy


def but_cpus(usage: Usage) -> Usage:
    """Without what a policy is to change."""
    return {name: {**one, "cpuset.cpus.effective": ""} for name, one in usage.items()}
