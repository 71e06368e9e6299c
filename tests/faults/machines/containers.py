"""R14 with cgroup v2: what the kernel enforces on real containers, before us, with a policy, and after us."""

from __future__ import annotations

from functools import partial

from tests.faults import Report
from tests.faults.machines.trial import attempt_each
from tests.host.workload import POLICIES
from tests.machine.node import NEW, OLD, REAL_CONFIGS, MachineNode
from tests.machine.policies import install
from tests.throwaway.standins.repinning import SHARED

EACH = 5  # in a pod
#: In a cgroup of kubelet's and a cgroup namespace of its own, as the pod of the profile `restricted` is.
AS_A_POD = (
    *("systemd-run", "--quiet", "--pipe", "--wait", "--slice=kubepods-besteffort-podours.slice"),
    *("unshare", "--cgroup"),
)


def run(report: Report, amount: int) -> None:
    """`amount` containers on one machine."""
    pods = max(1, amount // EACH)
    attempt_each(
        report, 1, [(f"{pods * EACH} containers with cgroup v2", partial(try_containers, pods=pods))]
    )


def try_containers(node: MachineNode, pods: int) -> None:
    """Adopted, through each policy and an upgrade, and given back, twice; then all is taken by force, and
    given back."""
    node.run_containers(pods, EACH)
    before = node.usage()
    for _ in range(2):
        node.payload = OLD
        for policy in POLICIES:
            install(node, policy, before)
        node.payload = NEW
        install(node, list(POLICIES)[-1], before)
        node.run("remove")
        assert node.usage() == before
    node.give(REAL_CONFIGS, forced=True)
    node.run("install")
    assert {(one["cpuset.cpus.effective"], one["cpu.weight"]) for one in node.usage().values()} == {
        (SHARED, "1")
    }
    node.machine.run(*AS_A_POD, *node.words("remove"))
    assert node.usage() == before
