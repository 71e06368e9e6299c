"""R14 with cgroup v2: what the kernel enforces on real containers, before us, with a policy, and after us."""

from __future__ import annotations

from functools import partial

from installer.model import paths
from tests.faults import Report
from tests.faults.machines.trial import attempt_each
from tests.host.daemon import within
from tests.host.workload import POLICIES
from tests.lib.program import KIT
from tests.lib.throwaway.proxy import PROXY
from tests.lib.throwaway.standins.repinning import SHARED
from tests.machine.node import NEW, NO_CONFIGS, OLD, REAL_CONFIGS, UP_SECONDS, MachineNode
from tests.machine.policies import install

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
    """Adopted, through each policy and an upgrade, and given back, twice; then a person starts a policy by
    hand, which takes all, and it is given back."""
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
    node.give(NO_CONFIGS)
    node.run("install")
    node.machine.run("cp", f"{KIT}/{REAL_CONFIGS}/fallback.cfg", "/etc/cri-resmgr/")
    # Emulated, the proxy comes back so late that kubelet leaves it: it starts with the policy none unless
    # its start is announced. On other machines a restart by hand keeps the policy.
    node.machine.run("sh", "-c", f"echo ours >{paths.PROXY_START_OURS}")
    node.machine.run("systemctl", "restart", PROXY)
    within(UP_SECONDS, partial(is_taken, node))
    node.machine.run(*AS_A_POD, *node.words("remove"))
    assert node.usage() == before


def is_taken(node: MachineNode) -> bool:
    """Whether each container has lost CPUs and weight."""
    usage = node.usage().values()
    return {(one["cpuset.cpus.effective"], one["cpu.weight"]) for one in usage} == {(SHARED, "1")}
