"""Containers that run on a node before anything of ours does, and what cgroup v1 enforces on them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.host.command import REAL_POLICY
from tests.host.daemon import SOON, within
from tests.host.node import Node
from tests.lib.throwaway.containers import container_pid, create_container, run_pod
from tests.lib.throwaway.host import ThrowawayHost
from tests.lib.throwaway.proxy import PROXY, serves
from tests.lib.throwaway.standins.repinning import LOWEST, SHARED

#: Policies that take CPUs from whoever runs, each with what its configuration begins with. The pools are as
#: upstream documents them (static-pools, "Dynamic Configuration"), and need cri-resmgr-agent.
POLICIES = {
    "topology-aware": REAL_POLICY,
    "balloons": "policy:\n  Active: balloons\n  ReservedResources:\n    CPU: 750m\n",
    "static-pools": "policy:\n  Active: static-pools\n  static-pools:\n    pools:\n      shared:\n"
    f'        cpuLists: [{{Socket: 0, Cpuset: "{SHARED}"}}]\n',
}

CGROUPS = "sys/fs/cgroup"
VALUES = {
    "cpuset": ("cpuset.cpus", "cpuset.mems"),
    "cpu": ("cpu.shares", "cpu.cfs_quota_us"),
    "memory": ("memory.limit_in_bytes",),
}
ALL_CPUS = Path(f"/{CGROUPS}/cpuset/cpuset.cpus")

#: Why none of this can be seen here; empty if it can.
UNSEEN = (
    "needs cgroup v1 and two CPUs" if not ALL_CPUS.exists() or ALL_CPUS.read_text().strip() == SHARED else ""
)

#: Container -> what the kernel enforces on it, by file of its cgroups.
Usage = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Workload:
    """A node with containers that were there first. `unknown`: name -> ID."""

    node: Node
    unknown: dict[str, str]

    @property
    def usage(self) -> dict[str, dict[str, str]]:
        return {name: enforced(self.node.host, identity) for name, identity in self.unknown.items()}

    @property
    def pids(self) -> list[int | None]:
        """Another one after a restart of the container."""
        return [container_pid(self.node.host, identity) for identity in self.unknown.values()]

    def repin(self) -> None:
        """Takes CPUs and weight from each of them, on a node with the policy none."""
        self.node.run("install")
        repin_by_hand(self.node)
        assert {one["cpu.shares"] for one in self.usage.values()} == {str(LOWEST)}
        assert not free_of_pins(self.usage)


def repin_by_hand(node: Node) -> None:
    """A person edits the node's configuration, restarts the proxy, which nobody has told of containers, and
    puts the file back."""
    file = node.path("/etc/cri-resmgr/fallback.cfg")
    ours = file.read_text()
    file.write_text(REAL_POLICY)
    node.host.systemctl("restart", PROXY)
    within(SOON, lambda: serves(node.host))
    file.write_text(ours)


def enforced(host: ThrowawayHost, identity: str) -> dict[str, str]:
    """What the kernel enforces on a container."""
    found = {}
    for controller, names in VALUES.items():
        (directory,) = (host.root / CGROUPS / controller).glob(f"**/*{identity}")
        found.update({name: (directory / name).read_text().strip() for name in names})
    return found


def but_cpus(usage: Usage) -> Usage:
    return {name: {**one, "cpuset.cpus": ""} for name, one in usage.items()}


def free_of_pins(usage: Usage) -> list[str]:
    """Those that may use every CPU: a policy leaves them so where it has no room for what they request."""
    return [name for name, one in usage.items() if one["cpuset.cpus"] == ALL_CPUS.read_text().strip()]


def start(node: Node, pods: int, each: int, cgroup_parent: str | None = None) -> Workload:
    """Containers with weights, quotas and memory limits of their own, as kubelet makes them; `cgroup_parent`:
    as of `run_pod`."""
    socket = node.host.runtime_socket
    found: dict[str, str] = {}
    for number in range(pods):
        pod = run_pod(node.host, socket, f"pod-{number}", cgroup_parent)
        for index in range(each):
            milli = 10 + 137 * len(found) % 1900
            found[f"{pod.name}/c{index}"] = create_container(
                node.host,
                socket,
                f"c{index}",
                cpu_shares=max(2, milli * 1024 // 1000),
                cpu_quota=milli * 200 if index % 2 else 0,
                memory_limit=(64 + number) << 20 if index % 3 else 0,
                pod=pod,
            )
    return Workload(node, found)


def start_once(node: Node, pods: int = 1, each: int = 3) -> None:
    """Containers of which `expect_kept` knows what they had at first."""
    kept = node.scratch / "workload.json"
    if not kept.exists():
        workload = start(node, pods, each)
        found = {"unknown": workload.unknown, "usage": workload.usage, "pids": workload.pids}
        kept.write_text(json.dumps(found))


def expect_kept(node: Node, policy: str) -> None:
    """Nobody was restarted, nor has less than at first; only a real policy has CPUs of theirs."""
    kept = json.loads((node.scratch / "workload.json").read_text())
    workload = Workload(node, kept["unknown"])
    assert workload.pids == kept["pids"], "a container was restarted"
    now: Usage = workload.usage
    before: Usage = kept["usage"]
    if policy != "none":
        assert not free_of_pins(now), now
        now, before = but_cpus(now), but_cpus(before)
    assert now == before, f"{now}, not {before}"
