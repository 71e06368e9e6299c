"""R14: what a policy takes from running containers comes back when it leaves: of the kernel's own account."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import cast

import pytest

from installer.model.event import Event
from installer.model.names import Mode
from tests.host.command import REAL_POLICY, untouched
from tests.host.daemon import SOON, within
from tests.host.mortal import DieAfter, converge, run_apart
from tests.host.node import PROXY, STATE, Node
from tests.host.workload import ALL_CPUS, POLICIES, UNSEEN, Workload, but_cpus, enforced, free_of_pins, start
from tests.lib.rules import rule
from tests.lib.throwaway import real
from tests.lib.throwaway.containers import Mount, Pod, create_container, ctr, run_pod
from tests.lib.throwaway.host import ThrowawayHost
from tests.lib.throwaway.kubelet import UNIT, wait_healthy
from tests.lib.throwaway.pods import Assigned, pod_object
from tests.lib.throwaway.proxy import RELAY, push_config, ready, serves
from tests.lib.throwaway.standins.repinning import LOWEST

CACHE = "/var/lib/cri-resmgr/cache"
RUNNING = 1  # ContainerState of the proxy, as of the CRI

pytestmark = pytest.mark.skipif(bool(UNSEEN), reason=UNSEEN)


@pytest.fixture
def node(host: ThrowawayHost, tmp_path: Path) -> Node:
    return Node(host, tmp_path)


#: The message, up to the weight itself.
CHANGES = rf"CPUs [0-9,-]+ -> {ALL_CPUS.read_text().strip() if not UNSEEN else ''}, CPU weight {LOWEST} -> "


@rule("R14")
def test_containers_have_after_a_removal_what_they_had_before_the_installation(node: Node) -> None:
    workload = start(node, pods=4, each=3)
    before, processes = workload.usage, workload.pids
    node.run("install")
    assert workload.usage == before
    workload.repin()

    planned = node.run("plan", "--mode=remove", code=3)
    assert re.search(f"restore default/pod-3/c2: {CHANGES}", planned.out)
    assert planned.out.count("restore default/") == len(before)
    ended = node.run("--output=json", "remove")
    given = [event for event in ended.events if event["kind"] == "pinning.reset"]
    assert len(given) == len(before)
    assert workload.usage == before
    assert workload.pids == processes
    with untouched(node.host):
        assert node.run("remove").out == "nothing to do\n"


@rule("R14")
def test_a_failed_installation_gives_back_what_it_took(node: Node) -> None:
    # cri-resmgr takes the weight of adopted ones, too, where their pods have no cgroup.
    workload = start(node, pods=1, each=3, cgroup_parent="")
    before = workload.usage
    node.upgrade(fault={"exitAfterSeconds": 0.3})
    node.fallback(REAL_POLICY)
    said = node.run("install", code=5).said
    assert re.search(f"restored default/pod-0/c1: {CHANGES}", said)
    assert workload.usage == before


@rule("R14")
def test_the_policy_none_gives_back_what_the_one_before_it_took(node: Node) -> None:
    workload = start(node, pods=1, each=3)
    before = workload.usage
    workload.repin()
    node.fallback("policy:\n  Active: none\n")
    assert node.run("plan", code=3).out.count("restore default/") == len(before)
    with node.restarts(kubelet=False, proxy=True):
        node.run("install")
    assert workload.usage == before
    with untouched(node.host):
        assert node.run("install").out == "nothing to do\n"
    node.expect_good()


@rule("R14")
def test_kubelets_own_account_of_its_requests_goes_before_the_proxys(node: Node) -> None:
    """One whose request the proxy rounds, and one with CPUs of its own that its cache has forgotten."""
    real.require_stand_in("kubelet", "a pod that no API server has")
    node.run("install")
    requests = {"rounded": {"cpu": "105m"}, "forgotten": {"cpu": "1"}}
    pods = {name: run_pod(node.host, node.host.runtime_socket, name) for name in requests}
    assigned = Assigned(node.host, pods=[pod_object(pods[name], requests[name]) for name in pods])
    assigned.tell()
    within(SOON, lambda: all(map(assigned.admitted, pods.values())))
    node.host.systemctl("stop", PROXY)
    made = dict(proxied(node, {"rounded": ("104m", 106), "forgotten": ("1", LOWEST)}, pods))
    cache = json.loads(node.path(CACHE).read_text())
    del cache["Containers"][key_of(pods["forgotten"])]
    node.path(CACHE).write_text(json.dumps(cache))
    node.run("remove")
    usage = {name: enforced(node.host, identity)["cpu.shares"] for name, identity in made.items()}
    assert usage == {"rounded": str(105 * 1024 // 1000), "forgotten": "1024"}
    assigned.forget()


@rule("R14")
def test_containers_made_through_the_proxy_get_what_kubelet_asked_for(node: Node) -> None:
    """In their creation stands what the proxy gave them: exclusive CPUs come with the lowest weight."""
    node.run("install")
    node.host.systemctl("stop", PROXY)
    made = dict(
        proxied(node, {"rounded": ("29m", 29), "exclusive": ("1", LOWEST), "best-effort": ("", LOWEST)})
    )
    node.host.systemctl("start", PROXY)
    node.run("remove")
    usage = {name: enforced(node.host, identity) for name, identity in made.items()}
    assert {name: one["cpu.shares"] for name, one in usage.items()} == {
        "rounded": "30",  # of 30m, which are 29 for the proxy
        "exclusive": "1024",
        "best-effort": "2",
    }
    assert {one["cpuset.cpus"] for one in usage.values()} == {ALL_CPUS.read_text().strip()}


def proxied(
    node: Node, wanted: Mapping[str, tuple[str, int]], pods: Mapping[str, Pod] = MappingProxyType({})
) -> Iterator[tuple[str, str]]:
    """Containers as the stopped proxy has made them: name -> (CPU that its cache says, cpu.shares given)."""
    mounted = node.path("/var/lib/cri-resmgr/made-through")
    mounted.mkdir()
    mount = Mount("/.cri-resmgr", "/var/lib/cri-resmgr/made-through", readonly=True)
    cache = node.path(CACHE)
    found = json.loads(cache.read_text()) | {"PolicyName": "topology-aware"}
    for name, (cpu, shares) in wanted.items():
        socket = node.host.runtime_socket
        pod = pods.get(name) or run_pod(node.host, socket, name)
        identity = create_container(node.host, socket, name, [mount], cpuset="0", cpu_shares=shares, pod=pod)
        whose = {"Namespace": "default", "Name": name, "State": 0}
        parent = f"/kubepods/burstable/pod{pod.uid}"
        found.setdefault("Pods", {})[pod.identity] = {
            **whose,
            "ID": pod.identity,
            "UID": pod.uid,
            "CgroupParent": parent,
        }
        found.setdefault("Containers", {})[key_of(pod)] = {
            **whose,
            "ID": identity,
            "PodID": pod.identity,
            "CacheID": key_of(pod),
            "State": RUNNING,
            "Resources": {"requests": {"cpu": cpu}} if cpu else {},
            "LinuxReq": {"cpu_shares": shares, "cpuset_cpus": "0"},
        }
        yield name, identity
    cache.write_text(json.dumps(found))


def key_of(pod: Pod) -> str:
    """Of its container, which has its name, in the proxy's cache."""
    return f"{pod.uid}:{pod.name}"


def test_who_is_to_keep_what_the_policy_took_is_named(node: Node) -> None:
    workload = start(node, pods=1, each=2)
    workload.repin()
    node.command.set(removal={"resetPinning": False})
    taken = workload.usage
    said = node.run("remove").out
    assert said.count("still pinned to its CPUs until it is recreated: default/pod-0/c") == 2
    assert workload.usage == taken


@rule("R14")
@pytest.mark.matrix("policy switch")
def test_fifty_unknown_containers_keep_their_weight_through_every_policy_an_upgrade_and_a_removal(
    node: Node,
) -> None:
    workload = start(node, pods=10, each=5)
    before, processes = workload.usage, workload.pids
    node.fallback(POLICIES["topology-aware"])
    assert node.run("plan", code=3).out.count("adopt default/pod-") == len(before)
    with node.restarts(kubelet=True, proxy=True):
        node.run("install")
    assert len(free_of_pins(workload.usage)) < len(before), "the policy is not in force"
    assert but_cpus(workload.usage) == but_cpus(before)
    with untouched(node.host):  # beside a word on those for whom the policy has no room
        assert node.run("install").out.endswith("nothing to do\n")
    node.host.systemctl("restart", PROXY)
    node.put_back()
    node.expect_good()
    for name in ("balloons", "static-pools", "topology-aware"):
        node.fallback(POLICIES[name])
        with node.restarts(kubelet=False, proxy=True):
            node.run("install")
        assert but_cpus(workload.usage) == but_cpus(before), name
    node.upgrade()
    with node.restarts(kubelet=False, proxy=True):
        node.run("install")
    assert but_cpus(workload.usage) == but_cpus(before)
    node.run("remove")
    assert workload.usage == before
    node.expect_untraced()
    node.run("install")
    assert but_cpus(workload.usage) == but_cpus(before)
    node.run("remove")
    assert workload.usage == before
    assert workload.pids == processes


#: A pod's cgroup as kubelet's two cgroup drivers name it.
PARENTS = (
    "/kubepods/burstable/pod{uid}",
    "/kubepods/pod{uid}",
    "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{uid}.slice",
    "/kubepods.slice/kubepods-pod{uid}.slice",
)


@rule("R14")
def test_unknown_containers_keep_their_weight_in_the_pods_of_either_cgroup_driver(node: Node) -> None:
    """From the cgroup's name the proxy reads what class the pod is of."""
    socket, found = node.host.runtime_socket, dict[str, str]()
    for number, parent in enumerate(PARENTS):
        pod = run_pod(node.host, socket, f"pod-{number}", parent.format(uid=f"00{number}"))
        found[pod.name] = create_container(node.host, socket, "c", cpu_shares=150 + number, pod=pod)
    workload = Workload(node, found)
    before = workload.usage
    node.fallback(REAL_POLICY)
    node.run("install")
    assert len(free_of_pins(workload.usage)) < len(before), "the policy is not in force"
    assert but_cpus(workload.usage) == but_cpus(before)
    node.run("remove")
    assert workload.usage == before


def running(node: Node) -> set[str]:
    """All containers of the CRI, the pods' own too."""
    return set(ctr(node.host, "containers", "list", "--quiet").split())


@dataclass(slots=True)
class ContainerComes:
    """A container is created just before the proxy starts for the first time, when those that it is told of
    are known. It goes into another process, where the host is no more than its root."""

    root: Path
    socket: str
    pod: Pod
    has_come: bool = False

    def __call__(self, event: Event) -> None:
        if event.kind == "step.done" and event.data["step"] == "adopt" and not self.has_come:
            self.has_come = True
            create_container(cast("ThrowawayHost", self), self.socket, "late", cpu_shares=307, pod=self.pod)


@rule("R14")
def test_who_comes_while_the_proxy_starts_is_adopted_at_once(node: Node) -> None:
    workload = start(node, pods=1, each=2)
    socket = node.host.runtime_socket
    comes = ContainerComes(node.host.root, socket, run_pod(node.host, socket, "late"))
    before = workload.usage
    node.fallback(REAL_POLICY)
    ended = run_apart(node, Mode.INSTALL, listen=comes)
    assert ended.how == "changed", ended
    assert "adopted: default/late/late" in ended.said
    weights = {enforced(node.host, one)["cpu.shares"] for one in running(node) - {*workload.unknown.values()}}
    assert "307" in weights
    assert but_cpus(workload.usage) == but_cpus(before)
    node.expect_good()


@rule("R7", "R12")
def test_killed_while_the_proxy_is_stopped_kubelet_is_on_its_base_endpoint(node: Node) -> None:
    """The guard has let it leave, so that it can start a pod of ours that repairs it."""
    node.run("install")
    start(node, pods=1, each=2)
    node.fallback(REAL_POLICY)
    adopted = "adopt running containers that the proxy does not know, if there are any"
    with node.restarts(kubelet=False, proxy=True):
        assert converge(node, Mode.INSTALL, listen=DieAfter(adopted)) == "killed"
        assert node.host.systemctl("is-active", PROXY, check=False) == "inactive"
        assert not node.on_relay()
        wait_healthy(node.host)
        node.run("install")
    node.expect_good()


@rule("R14")
def test_an_adoption_that_the_proxy_does_not_heed_goes_back(node: Node) -> None:
    workload = start(node, pods=1, each=3)
    before = workload.usage
    node.run("install")
    node.upgrade(fault={"forgetsRequests": True})
    node.fallback(REAL_POLICY)
    said = node.run("install", code=5).err
    assert "the policy has taken weight from 3 containers" in said
    assert workload.usage == before


@rule("R8", "R14")
def test_an_upgrade_that_fails_behind_a_real_policy_takes_nothing(node: Node) -> None:
    """A container that has come past the proxy meanwhile is adopted, by the attempt and on the way back."""
    node.fallback(REAL_POLICY)
    node.run("install")
    workload = start(node, pods=1, each=2)
    before = but_cpus(workload.usage)
    node.upgrade(fault={"exitAfterSeconds": 0.3})
    node.run("install", code=5)
    assert but_cpus(workload.usage) == before
    assert node.on_relay()


def crash(node: Node) -> None:
    """The proxy dies, and systemd starts it again."""
    was = node.invocations()[1]
    node.host.systemctl("kill", "--signal=KILL", PROXY)
    within(SOON, lambda: node.invocations()[1] not in (was, "") and ready(node.host) and serves(node.host))


@rule("R14", "R13")
def test_r14_containers_that_came_past_the_proxy_keep_their_weight_when_it_crashes(node: Node) -> None:
    """They began while kubelet was held on its base endpoint. The next run tells the proxy of them."""
    node.fallback(REAL_POLICY)
    node.run("install")
    node.path(f"{STATE}/hold").write_text("a person looks into it\n")
    node.host.systemctl("restart", UNIT)
    wait_healthy(node.host)
    workload = start(node, pods=1, each=2)
    before = workload.usage
    crash(node)
    assert workload.usage == before
    node.run("install")
    assert but_cpus(workload.usage) == but_cpus(before)
    node.expect_good()
    crash(node)
    assert but_cpus(workload.usage) == but_cpus(before)
    node.put_back()


@rule("R14", "R13")
def test_r14_an_empty_cache_takes_no_weight_when_the_proxy_crashes(node: Node) -> None:
    """As a power loss leaves it."""
    workload = start(node, pods=1, each=2)
    before = but_cpus(workload.usage)
    node.fallback(REAL_POLICY)
    node.run("install")
    node.path(CACHE).write_bytes(b"")
    crash(node)
    assert but_cpus(workload.usage) == before
    node.run("install")
    assert but_cpus(workload.usage) == before
    node.expect_good()


@rule("R13", "R14")
def test_r13_converged_is_not_said_while_a_start_of_another_has_taken_weight(node: Node) -> None:
    """Of containers that came past the proxy though kubelet was on the relay: a person's, with crictl."""
    node.fallback(REAL_POLICY)
    node.run("install")
    workload = start(node, pods=1, each=2)
    before = but_cpus(workload.usage)
    crash(node)
    assert but_cpus(workload.usage) != before, "nobody has spared them"
    assert "took CPU weight from containers" in node.run("status", code=3).out
    with node.restarts(kubelet=False, proxy=True):
        node.run("install")
    assert but_cpus(workload.usage) == before
    node.expect_good()
    assert node.run("install").out == "nothing to do\n"


@rule("R14")
def test_a_start_that_was_cut_off_costs_no_container_of_its_name_anything(node: Node) -> None:
    """The proxy's cache has one entry for all containers of a pod that have the same name, and reads those
    that never ran, too: it would know one of them, and each time another one."""
    socket, made, left = node.host.runtime_socket, dict[str, str](), list[str]()
    for number in range(4):
        pod = run_pod(node.host, socket, f"pod-{number}")
        for index in range(3):
            name, shares = f"c{index}", 20 + 4 * len(made)
            left.append(create_container(node.host, socket, name, pod=pod, starts=False))
            made[f"{pod.name}/{name}"] = create_container(
                node.host, socket, name, cpu_shares=shares, pod=pod, attempt=1
            )
            left.append(create_container(node.host, socket, name, pod=pod, starts=False, attempt=2))
    before = {name: enforced(node.host, identity) for name, identity in made.items()}
    node.fallback(REAL_POLICY)
    said = node.run("install").said
    assert said.count("which never ran") == len(left)
    assert but_cpus({name: enforced(node.host, one) for name, one in made.items()}) == but_cpus(before)
    assert not {one for one in left if one in ctr(node.host, "containers", "list")}
    assert node.run("install").out == "nothing to do\n"
    node.run("remove")
    assert {name: enforced(node.host, one) for name, one in made.items()} == before


@rule("R13", "R14")
def test_who_has_lost_the_place_in_the_cache_and_the_weight_is_seen_and_gets_it_back(node: Node) -> None:
    """Starts of the proxy that are not ours: one writes the cache with the leftover, and to the next one the
    container that runs is unknown, or the other way round."""
    node.fallback(REAL_POLICY)
    node.run("install")
    pod = run_pod(node.host, RELAY, "web-0")
    identity = create_container(node.host, RELAY, "web", cpu_shares=512, pod=pod)
    create_container(node.host, RELAY, "web", cpu_shares=512, pod=pod, starts=False, attempt=1)
    for _ in range(2):
        node.host.systemctl("restart", PROXY)
        within(SOON, lambda: serves(node.host))
        taken = enforced(node.host, identity)["cpu.shares"] == str(LOWEST)
        assert ("not converged" in node.command("status").out) is taken
    assert taken
    assert "removed default/web-0/web, which never ran" in node.run("install").said
    assert enforced(node.host, identity)["cpu.shares"] == "512"
    assert node.run("install").out == "nothing to do\n"
    node.run("status")


AGENTS = {"policy": REAL_POLICY.replace("policy:\n", "").replace("\n  ", "\n").removeprefix("  ")}


@rule("R14")
def test_r14_a_policy_that_the_agent_asks_for_takes_nothing_from_running_containers(node: Node) -> None:
    """cri-resmgr activates it at its next start, whoever begins that."""
    workload = start(node, pods=1, each=3)
    node.run("install")
    before = workload.usage
    assert push_config(node.host, AGENTS) == ""
    node.host.systemctl("kill", "--signal=KILL", PROXY)
    within(SOON, lambda: serves(node.host) and ready(node.host))
    assert workload.usage == before
    assert "it may not know all running containers" in node.host.journal(PROXY)
    assert "the guard started it without its policy" in node.run("plan", code=3).out
    with node.restarts(kubelet=False, proxy=True):
        node.run("install")
    assert json.loads(node.path(CACHE).read_text())["PolicyName"] == "topology-aware"
    assert but_cpus(workload.usage) == but_cpus(before)
    node.expect_good()


@rule("R13", "R14")
def test_r14_what_the_agent_asks_for_is_a_difference_and_goes_with_the_agent(node: Node) -> None:
    workload = start(node, pods=1, each=3)
    node.run("install")
    before = workload.usage
    push_config(node.host, AGENTS)
    asks = "its agent asks for the policy topology-aware, and none is in force"
    within(SOON, lambda: asks in node.command("plan").out)
    with node.restarts(kubelet=False, proxy=True):
        node.run("install")
    assert but_cpus(workload.usage) == but_cpus(before)
    assert "topology-aware, from cri-resmgr-agent" in node.run("status").out
    with node.restarts(kubelet=False, proxy=False):
        assert "nothing to do" in node.run("install").said
    push_config(node.host, {"policy": "Active: topology-unaware"})
    within(SOON, lambda: "agent-policy" in node.command("plan").out)
    with node.restarts(kubelet=False, proxy=False):
        node.run("install")
    push_config(node.host, {})
    node.command.set(proxy={"agent": "disabled"})
    node.run("install")
    assert json.loads(node.path(CACHE).read_text())["Cfg"] is None
    assert "none, from fallback.cfg" in node.run("status").out
    assert workload.usage == before
