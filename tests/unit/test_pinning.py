"""What containers get back of the CPUs and the weight that the proxy took from them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from installer.host.cgroups import Cgroups
from installer.host.cri import encode_update
from installer.host.files import RootedFiles
from installer.host.protobuf import encode
from installer.model import paths
from installer.model.containers import (
    NO_MANAGERS,
    CgroupState,
    CpuResources,
    KubeletManagers,
    parse_list,
    parse_managers,
    parse_requests,
    same_list,
    weights_of,
)
from installer.model.event import Event
from installer.model.host import (
    HostSnapshot,
    KubeletBase,
    KubeletSnapshot,
    Part,
    ProcessState,
    ProxySnapshot,
    RunningContainer,
    UnitState,
    UnitText,
)
from installer.model.limits import Limits
from installer.model.names import Mode
from installer.model.plan import Changes, Desired, Plan, Step, StepKind
from installer.model.proxy import NO_CACHE, CachedContainer, ProxyCache
from installer.node.apply import apply_plan
from installer.node.pinning import find_resets
from installer.node.run import Progress
from installer.node.snapshot import kubelet_root
from tests.lib.fakes import CONTAINERD, FakeHost
from tests.lib.rules import rule

FREE = CgroupState("0-3", "0-1", "0-3", "0-1", shares=512)
TAKEN = replace(FREE, cpus="1", mems="0", shares=2)
STRANGER = RunningContainer("aa", "web", "web-0", "ns", False, "uid", 7, CpuResources(shares=512), TAKEN)
OWN = replace(STRANGER, through_proxy=True, created=CpuResources("1", "0", 2))
ENDPOINT = "unix:///run/containerd/containerd.sock"


def written(
    container: RunningContainer, cache: ProxyCache = NO_CACHE, managers: KubeletManagers = NO_MANAGERS
) -> CpuResources | None:
    """What is written for it; None if nothing is to be done."""
    resets = find_resets([container], cache, managers)
    assert not any(reset.problem for reset in resets)
    return resets[0].write if resets else None


def problem(container: RunningContainer, cache: ProxyCache = NO_CACHE) -> str:
    return "".join(reset.problem for reset in find_resets([container], cache, NO_MANAGERS))


def knows(request: int | None, *, annotated: bool = False, policy: str = "topology-aware") -> ProxyCache:
    return ProxyCache(policy=policy, containers={"aa": CachedContainer(request, annotated, "1")})


# -- who gets what ----------------------------------------------------------------------


@rule("R14")
def test_an_unknown_container_gets_all_cpus_and_the_weight_of_its_creation() -> None:
    assert written(STRANGER) == CpuResources("0-3", "0-1", 512)


@rule("R2")
def test_only_what_differs_is_written() -> None:
    assert written(replace(STRANGER, cgroup=FREE)) is None
    assert written(replace(STRANGER, cgroup=replace(FREE, cpus="0,1-3"))) is None
    assert written(replace(STRANGER, cgroup=replace(FREE, shares=2))) == CpuResources(shares=512)
    assert written(replace(STRANGER, cgroup=replace(FREE, cpus="0"))) == CpuResources("0-3")
    assert written(replace(STRANGER, cgroup=replace(FREE, mems="1"))) == CpuResources(mems="0-1")


def test_an_unknown_container_that_was_created_on_cpus_of_its_own_gets_those() -> None:
    created = CpuResources("2", "1", 512)
    assert written(replace(STRANGER, created=created)) == created
    as_created = replace(FREE, cpus="2", mems="1")
    assert written(replace(STRANGER, created=created, cgroup=as_created)) is None


def test_a_weight_that_was_raised_by_a_resize_is_left() -> None:
    assert written(replace(STRANGER, cgroup=replace(FREE, shares=600))) is None


def test_a_container_created_without_a_weight_gets_the_kernels_default() -> None:
    assert written(replace(STRANGER, created=CpuResources())) == CpuResources("0-3", "0-1", 1024)


def test_a_container_of_the_proxy_gets_what_kubelet_had_asked_for() -> None:
    assert written(OWN, knows(500)) == CpuResources("0-3", "0-1", 512)
    assert written(OWN, knows(29)) == CpuResources("0-3", "0-1", 30)
    assert written(OWN, knows(30, annotated=True)) == CpuResources("0-3", "0-1", 30)
    # No request at all: the lowest weight is its own.
    assert written(OWN, knows(None)) == CpuResources("0-3", "0-1")
    assert written(OWN) == CpuResources("0-3", "0-1")
    # A policy that leaves weights alone: the creation has kubelet's own.
    created = replace(OWN, created=CpuResources("1", "0", 22))
    assert written(created, knows(21)) == CpuResources("0-3", "0-1", 22)


def test_kubelets_weight_is_computed_from_the_proxys_estimate() -> None:
    """For each request that a pod may have: never more than kubelet asked for, at most one share less."""
    missed = 0
    for milli in range(3, 20_000):
        asked = milli * 1024 // 1000
        estimate = int(asked * 1000 / 1024 + 0.5)
        found = written(OWN, knows(estimate))
        assert found is not None
        assert found.shares in (asked, asked - 1)
        missed += found.shares != asked
    assert missed / 20_000 < 0.025


@rule("R14")
def test_what_kubelet_itself_says_that_it_asks_for_goes_before_all_else() -> None:
    """Before what the proxy has rounded, has forgotten, or has put into a creation; and with CRI-O."""
    asked = replace(OWN, asked=107)
    assert written(asked, knows(104)) == CpuResources("0-3", "0-1", 107)
    assert written(asked) == CpuResources("0-3", "0-1", 107)
    assert written(replace(STRANGER, asked=600)) == CpuResources("0-3", "0-1", 600)
    crio = replace(STRANGER, created=None, creation={"cpu_shares": 2}, asked=107)
    assert written(crio, ProxyCache(policy="topology-aware")) == CpuResources("0-3", "0-1", 107)
    assert written(replace(crio, cgroup=FREE)) is None  # never less than it has


def test_kubelets_account_of_what_it_asks_for() -> None:
    containers = {
        "web": {"requests": {"cpu": "105m"}},
        "limited": {"limits": {"cpu": "1"}},
        "best-effort": {},
        "large": {"requests": {"cpu": "1000"}},
        "tiny": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}},
        "odd": {"requests": {"cpu": "1Ki"}},
        "wrong": 7,
    }
    shares = {"web": 107, "limited": 1024, "best-effort": 2, "large": 262144, "tiny": 1024}
    expected = {("uid", name): value for name, value in shares.items()}
    for data in (
        {"allocationEntries": {"uid": containers}},
        {"entries": {"uid": {"ContainerResources": containers}}},
    ):
        assert parse_requests(json.dumps({"data": json.dumps(data), "checksum": 1}).encode()) == expected
    later = json.dumps({"entries": {"uid": {"podSpec": {"containers": []}}}})
    for text in ("", "{", "[]", '{"data": 7}', '{"data": "["}', json.dumps({"data": later})):
        assert parse_requests(text.encode()) == {}
    assert parse_requests(None) == {}


def test_kubelets_own_cpu_manager_decides() -> None:
    managers = KubeletManagers(shared="0,2-3", assigned={("uid", "db"): "1"})
    assert written(STRANGER, managers=managers) == CpuResources("0,2-3", "0-1", 512)
    assert written(replace(STRANGER, name="db"), managers=managers) == CpuResources("", "0-1", 512)


def test_memory_nodes_of_kubelets_manager_are_not_guessed() -> None:
    managers = KubeletManagers(assigns_memory=True)
    assert written(OWN, knows(500), managers) == CpuResources("0-3", "", 512)
    assert written(replace(STRANGER, created=CpuResources("", "0", 512)), managers=managers) == CpuResources(
        "0-3", "", 512
    )


@rule("R14")
def test_under_the_policy_none_only_what_an_earlier_one_left_is_the_proxys_work() -> None:
    assert written(STRANGER, ProxyCache(policy="none")) is None
    assert written(STRANGER, knows(None, policy="none")) == CpuResources("0-3", "0-1", 512)


def test_with_cgroup_v2_either_formula_of_the_weight_will_do() -> None:
    for weight in weights_of(512):
        assert written(replace(STRANGER, cgroup=replace(FREE, shares=0, weight=weight))) is None
    cut = replace(STRANGER, cgroup=replace(FREE, shares=0, weight=1))
    assert written(cut) == CpuResources(shares=512)
    assert weights_of(1024) == {39, 100}
    assert weights_of(2) == {1}
    assert weights_of(262144) == {10000}


def test_who_cannot_be_known_is_left_alone_and_named() -> None:
    assert "was not found" in problem(replace(STRANGER, cgroup=None))
    assert "how the container was created" in problem(replace(STRANGER, created=None))
    assert problem(replace(STRANGER, created=None, cgroup=FREE)) == ""
    # What it was created with is not asked of a container whose request the cache has.
    assert written(replace(OWN, created=None), knows(500)) == CpuResources("0-3", "0-1", 512)


# -- what files and answers say -----------------------------------------------------------


def test_lists_of_cpus() -> None:
    assert parse_list("0-3,8\n") == {0, 1, 2, 3, 8}
    assert same_list("0-1", "0,1")
    assert not same_list("0-1", "")
    for damaged in ("3-1", "x", "-1", "0-99999999", "0--1"):
        with pytest.raises(ValueError, match=r".*"):
            parse_list(damaged)
        assert same_list(damaged, damaged)


def test_the_state_of_kubelets_managers() -> None:
    static = {"policyName": "static", "defaultCpuSet": "0,2", "entries": {"uid": {"db": "1"}}, "checksum": 1}
    found = parse_managers(json.dumps(static).encode(), b'{"policyName":"Static"}')
    assert (found.cpus_of("uid", "db"), found.cpus_of("uid", "web"), found.assigns_memory) == (
        "1",
        "0,2",
        True,
    )
    none = json.dumps({**static, "policyName": "none"}).encode()
    for cpu in (None, b"", none, b"{", b"[]", b'{"policyName":"static","entries":7}'):
        assert parse_managers(cpu, None) == NO_MANAGERS


def test_an_update_says_only_what_is_to_be_written() -> None:
    assert encode_update("aa", CpuResources(shares=30)) == encode(1, b"aa") + encode(2, encode(3, 30))
    assert encode_update("aa", CpuResources("0-1", "0")) == (
        encode(1, b"aa") + encode(2, encode(6, b"0-1") + encode(7, b"0"))
    )


# -- what the kernel says -------------------------------------------------------------------


def lay(root: Path, texts: dict[str, str]) -> Cgroups:
    for path, text in texts.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return Cgroups(RootedFiles(root))


@pytest.mark.parametrize("above", ["", "/nspawn-3", "/../.."])
def test_cgroup_v1_seen_from_any_cgroup_namespace(tmp_path: Path, above: str) -> None:
    pod = "sys/fs/cgroup/cpuset/kubepods/pod1"
    cgroups = lay(
        tmp_path,
        {
            "proc/1/mountinfo": (
                f"30 20 0:26 {above or '/'} /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
                f"31 20 0:27 {above or '/'} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
                "32 20 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
            ),
            "proc/7/cgroup": (
                f"5:cpuset:{above}/kubepods/pod1/aa\n3:cpu,cpuacct:{above}/kubepods/pod1/aa\n0::{above}/x\n"
            ),
            f"{pod}/cpuset.cpus": "0-3\n",
            f"{pod}/cpuset.mems": "0-1\n",
            f"{pod}/aa/cpuset.cpus": "1\n",
            f"{pod}/aa/cpuset.mems": "0\n",
            "sys/fs/cgroup/cpu,cpuacct/kubepods/pod1/aa/cpu.shares": "2\n",
        },
    )
    assert cgroups.state(7, "aa") == TAKEN
    assert cgroups.state(8, "aa") is None
    assert cgroups.state(7, "bb") is None


def test_cgroup_v2_and_a_container_with_cgroups_of_its_own(tmp_path: Path) -> None:
    scope = "sys/fs/cgroup/kubepods.slice/pod1.slice/cri-containerd-aa.scope"
    cgroups = lay(
        tmp_path,
        {
            "proc/1/mountinfo": "30 20 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
            "proc/7/cgroup": "0::/kubepods.slice/pod1.slice/cri-containerd-aa.scope/init.scope\n",
            f"{scope}/cpuset.cpus": "1\n",
            f"{scope}/cpuset.mems.effective": "0\n",
            f"{scope}/cpu.weight": "20\n",
            f"{scope}/../cpuset.cpus.effective": "0-3\n",
            f"{scope}/../cpuset.mems.effective": "0-1\n",
        },
    )
    assert cgroups.state(7, "aa") == CgroupState("1", "0", "0-3", "0-1", weight=20)


@rule("R14")
@pytest.mark.parametrize(
    ("mounted", "seen", "directory"),
    [
        ("/../../../..", "/../../../../system.slice/aa.scope", "system.slice/aa.scope"),
        ("/../../../..", "/../../../burstable/pod1/aa", "kubepods.slice/burstable/pod1/aa"),
        ("/../../../..", "/../../pod2/aa", "kubepods.slice/besteffort/pod2/aa"),
        ("/../../../..", "/../aa", "kubepods.slice/besteffort/pod1/aa"),
        ("/../../../..", "/aa", "kubepods.slice/besteffort/pod1/ours/aa"),
    ],
)
def test_a_pod_in_a_cgroup_namespace_of_its_own_finds_every_container(
    tmp_path: Path, mounted: str, seen: str, directory: str
) -> None:
    """Its own cgroup is kubepods.slice/besteffort/pod1/ours, whose names the kernel does not tell it."""
    hierarchy = "sys/fs/cgroup"
    cgroups = lay(
        tmp_path,
        {
            "proc/1/mountinfo": f"30 20 0:26 {mounted} /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n",
            "proc/7/cgroup": f"0::{seen}\n",
            f"{hierarchy}/cgroup.procs": "",
            f"{hierarchy}/kubepods.slice/besteffort/pod1/ours/cpu.weight": "100\n",
            f"{hierarchy}/kubepods.slice/burstable/pod9/other/cpu.weight": "100\n",
            f"{hierarchy}/{directory}/cpu.weight": "7\n",
        },
    )
    for _ in range(2):
        state = cgroups.state(7, "aa")
        assert state is not None
        assert state.weight == 7
    assert cgroups.state(7, "bb") is None


def test_a_cgroup_that_cannot_be_seen_is_not_taken_for_one_that_lacks_nothing(tmp_path: Path) -> None:
    cgroups = lay(
        tmp_path,
        {
            "proc/1/mountinfo": "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n",
            "proc/7/cgroup": "0::/kubepods.slice/pod1.slice/cri-containerd-aa.scope\n",
        },
    )
    assert cgroups.state(7, "aa") is None


def lay_unified(root: Path, own: str, pod: str, effective: str) -> Cgroups:
    """A machine with CPUs 0 - 7 of which 3 - 5 are offline, and a container in a pod. `own` and `pod` are
    their cpusets, `effective` what the pod can use of its own."""
    slice_ = "sys/fs/cgroup/kubepods.slice/pod1.slice"
    return lay(
        root,
        {
            "proc/1/mountinfo": "30 20 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
            "proc/7/cgroup": "0::/kubepods.slice/pod1.slice/cri-containerd-aa.scope\n",
            "sys/devices/system/cpu/present": "0-7\n",
            "sys/devices/system/cpu/online": "0-2,6-7\n",
            "sys/fs/cgroup/cpuset.cpus.effective": "0-2,6-7\n",
            "sys/fs/cgroup/kubepods.slice/cpuset.cpus": "\n",
            f"{slice_}/cpuset.cpus": f"{pod}\n",
            f"{slice_}/cpuset.cpus.effective": f"{effective}\n",
            f"{slice_}/cri-containerd-aa.scope/cpuset.cpus": f"{own}\n",
        },
    )


@rule("R14")
def test_a_container_may_use_a_cpu_that_is_offline_when_it_is_back(tmp_path: Path) -> None:
    """Seen on a real machine: a removal while a CPU was away left the containers without it for ever."""
    state = lay_unified(tmp_path, own="0", pod="", effective="0-2,6-7").state(7, "aa")
    assert state is not None
    assert (state.cpus, state.free_cpus) == ("0", "0-7")


@pytest.mark.parametrize(
    ("own", "pod", "effective", "cpus", "free"),
    [
        ("", "", "0-2,6-7", "0-7", "0-7"),
        ("0-4", "0-4", "0-2", "0-4", "0-4"),
        ("1", "0-1,5", "0-1", "1", "0-1,5"),
        ("1", "not a list", "0-2", "1", "0-2"),
    ],
)
def test_what_the_cgroup_above_forbids_is_not_free(
    tmp_path: Path, own: str, pod: str, effective: str, cpus: str, free: str
) -> None:
    state = lay_unified(tmp_path, own, pod, effective).state(7, "aa")
    assert state is not None
    assert (state.cpus, state.free_cpus) == (cpus, free)


# -- what is done ---------------------------------------------------------------------------


def give_back(root: Path, fake: FakeHost) -> list[Event]:
    step = Step(StepKind.RESET_PINNING, ENDPOINT, Part.PROXY)
    plan = Plan(Mode.REMOVE, Desired(), Changes(), "kubelet.service", (step,))
    limits = Limits(proxy_start=1, kubelet_start=1, settle=1, guard=1, healthz_url="")
    said: list[Event] = []
    apply_plan(plan, fake.host, limits, said.append, Progress())
    assert (said.pop(0).kind, said.pop().kind) == ("step.started", "step.done")
    return said


def pinned_host(root: Path) -> FakeHost:
    fake = FakeHost(root)
    fake.cri.sockets[ENDPOINT] = CONTAINERD
    fake.cri.running = (
        STRANGER,
        replace(STRANGER, id="bb", name="db"),
        replace(STRANGER, id="cc", cgroup=FREE),
    )
    return fake


@rule("R14")
def test_a_runtime_that_tells_only_of_now_gives_back_what_the_cache_knows() -> None:
    """CRI-O: what it was adopted with."""
    crio = replace(STRANGER, created=None, creation={"cpu_shares": 2})
    adopted = CachedContainer(30, cpus="1", weighed=True, shares=30)
    policy = ProxyCache(policy="topology-aware", containers={"aa": adopted})
    assert written(crio, policy) == CpuResources("0-3", "0-1", 30)
    best_effort = replace(adopted, request=None, shares=0)
    assert written(crio, replace(policy, containers={"aa": best_effort})) == CpuResources("0-3", "0-1")
    assert "in an unknown format" in problem(crio, ProxyCache(policy="topology-aware"))


@rule("R14")
def test_each_container_is_reported_and_one_that_fails_does_not_stop_the_removal(tmp_path: Path) -> None:
    fake = pinned_host(tmp_path)
    fake.cri.refusals["bb"] = "not found: UpdateContainerResources: no such task"
    given, refused = give_back(tmp_path, fake)
    assert (given.kind, given.message) == (
        "pinning.reset",
        "restored ns/web-0/web: CPUs 1 -> 0-3, memory nodes 0 -> 0-1, CPU weight 2 -> 512 shares",
    )
    assert (refused.kind, refused.data["code"]) == ("warning", "pinned")
    assert "could not restore ns/web-0/db: not found" in refused.message
    del fake.cri.refusals["bb"]
    assert [event.data["id"] for event in give_back(tmp_path, fake)] == ["bb"]
    fake.cri.calls.clear()
    assert give_back(tmp_path, fake) == []
    assert "update" not in {call.method for call in fake.cri.calls}


def test_a_container_that_has_ended_meanwhile_is_none_that_keeps_what_it_has(tmp_path: Path) -> None:
    fake = pinned_host(tmp_path)
    listed, update = fake.cri.running, fake.cri.update

    def ends(endpoint: str, resources: Mapping[str, CpuResources], timeout: float = 10.0) -> dict[str, str]:
        fake.cri.running = listed[:1]
        return update(endpoint, resources, timeout) | {"bb": "not found: UpdateContainerResources"}

    fake.cri.update = ends  # type: ignore[method-assign]
    assert [(event.kind, event.data["id"]) for event in give_back(tmp_path, fake)] == [
        ("pinning.reset", "aa")
    ]


def test_a_runtime_that_does_nothing_is_not_believed(tmp_path: Path) -> None:
    fake = pinned_host(tmp_path)
    fake.cri.ignores = True
    said = give_back(tmp_path, fake)
    assert {event.kind for event in said} == {"warning"}
    assert "its CPUs are 1, not 0-3; its memory nodes are 0, not 0-1" in said[0].message
    assert "its cpu.shares are 2, less than 512 shares" in said[0].message


def test_a_runtime_that_is_away_does_not_stop_the_removal(tmp_path: Path) -> None:
    fake = pinned_host(tmp_path)
    fake.cri.sockets[ENDPOINT] = "connection refused"
    (said,) = give_back(tmp_path, fake)
    assert "could not restore CPUs and weight of the containers" in said.message


KUBELET_ROOT = "data/kubelet"  # of a kubelet with --root-dir


@rule("R14")
def test_r14_what_kubelet_asked_for_is_read_where_kubelet_keeps_its_state(tmp_path: Path) -> None:
    """The creation of this one has the lowest weight, which came with exclusive CPUs."""
    fake = pinned_host(tmp_path)
    fake.kubelet_root = f"/{KUBELET_ROOT}"
    fake.cri.running = (OWN,)
    resources = {OWN.name: {"requests": {"cpu": "1"}}}
    data = json.dumps({"entries": {OWN.pod_uid: {"ContainerResources": resources}}})
    cache = {"Version": "1", "PolicyName": "topology-aware", "Containers": {}}
    state = {f"{KUBELET_ROOT}/{paths.ALLOCATED_PODS}": json.dumps({"data": data})}
    lay(tmp_path, {paths.PROXY_CACHE[1:]: json.dumps(cache), **state})
    (event,) = give_back(tmp_path, fake)
    assert "CPU weight 2 -> 1024 shares" in event.message


@pytest.mark.parametrize(
    ("argv", "root"),
    [
        (("kubelet", "--root-dir=/data/kubelet"), "/data/kubelet"),
        (("kubelet", "--root-dir", "/data/kubelet/"), "/data/kubelet"),
        (("kubelet", "--root-dir=/a", "--v=2", "--root-dir=/b"), "/b"),
        (("kubelet", "--v=2"), "/var/lib/kubelet"),
        (("kubelet", "--root-dir=kubelet"), "/var/lib/kubelet"),
        (None, "/srv/kubelet"),
    ],
)
def test_where_kubelet_keeps_its_state(argv: tuple[str, ...] | None, root: str) -> None:
    """A kubelet that does not run has it from its unit."""
    process = None if argv is None else ProcessState(8, argv, {})
    lines = "[Service]\nExecStart=/usr/bin/kubelet --root-dir=/srv/kubelet\n"
    base = KubeletBase(texts=(UnitText("/etc/systemd/system/kubelet.service", lines),))
    kubelet = KubeletSnapshot(UnitState("kubelet.service"), process)
    found = kubelet_root(HostSnapshot(ProxySnapshot(UnitState("p")), kubelet, base=base))
    assert found == root


def test_the_cache_and_kubelets_managers_are_read_when_the_proxy_is_stopped(tmp_path: Path) -> None:
    fake = pinned_host(tmp_path)
    fake.kubelet_root = f"/{KUBELET_ROOT}"
    entry = {"ID": "aa", "Resources": {"requests": {"cpu": "29m"}}, "LinuxReq": {"cpuset_cpus": "1"}}
    lay(
        tmp_path,
        {
            paths.PROXY_CACHE[1:]: json.dumps(
                {"Version": "1", "PolicyName": "none", "Containers": {"uid:web": entry}}
            ),
            f"{KUBELET_ROOT}/{paths.CPU_MANAGER_STATE}": json.dumps(
                {"policyName": "static", "defaultCpuSet": "0-2"}
            ),
        },
    )
    fake.cri.running = (OWN, replace(STRANGER, id="bb"))
    (event,) = give_back(tmp_path, fake)
    assert "CPUs 1 -> 0-2, memory nodes 0 -> 0-1, CPU weight 2 -> 30 shares" in event.message
