"""Strangers are adopted: what is written into its cache, and when nothing is."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from installer.errors import StepFailedError
from installer.model import paths
from installer.model.containers import NO_MANAGERS, CgroupState, CpuResources, ReadyPod
from installer.model.host import Part, ProcessState, RunningContainer, UnitState, UnstartedContainer
from installer.model.instant import parse_time
from installer.model.limits import Limits
from installer.model.names import Mode
from installer.model.plan import Changes, Desired, DesiredUnit, Plan, Step, StepKind
from installer.model.proxy import CachedContainer, nano_of, parse_cache
from installer.node.adoption import (
    OLD_CACHE,
    bring_back,
    divide,
    find_lost,
    find_reduced,
    with_creations,
)
from installer.node.apply import apply_plan
from installer.node.await_kubelet import await_calm
from installer.node.pinning import due_shares, find_resets, keeps_weight
from installer.node.run import Progress
from tests.lib.fakes import CONTAINERD, Call, FakeClock, FakeHost, timed_out
from tests.lib.rules import rule
from tests.lib.snapshots import BASE, ON_LINK

ENDPOINT = "unix:///run/containerd/containerd.sock"
CREATION: dict[str, int | str] = {
    "cpu_period": 100000,
    "cpu_quota": 150000,
    "cpu_shares": 30,
    "memory_limit_in_bytes": 64 << 20,
    "oom_score_adj": 900,
}
FREE = CgroupState("0-3", "0", "0-3", "0", shares=30)
UNKNOWN = RunningContainer(
    "aa", "web", "web-0", "ns", False, "uid", 7, CpuResources(shares=30), FREE, CREATION
)


def cache(**more: Any) -> bytes:
    """As a start with the policy none leaves it."""
    entry = {"ID": "aa", "PodID": "pp", "CacheID": "uid:web", "State": 1, "Resources": {}, "LinuxReq": None}
    pod = {"ID": "pp", "UID": "uid", "CgroupParent": "/kubepods/burstable/poduid"}
    found = {
        "Version": "1",
        "Pods": {"pp": pod},
        "Containers": {"uid:web": entry},
        "NextID": (1 << 63) + 5,
        "PolicyName": "none",
        "PolicyJSON": {"allocations": '{"a":"b"}'},
    }
    return json.dumps({**found, **more}).encode()


def entry_of(raw: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(raw)["Containers"]["uid:web"]
    return found


@rule("R14")
def test_the_proxys_own_entry_gets_what_the_container_was_created_with_and_all_else_stays() -> None:
    written = with_creations(cache(), [UNKNOWN])
    entry = entry_of(written)
    assert entry["LinuxReq"] == CREATION
    # 29.296875m: cri-resmgr rounds it up to 30m, which give 30 shares; its own estimate (29m) would give 29.
    assert entry["Resources"] == {
        "requests": {"cpu": "29296875n"},
        "limits": {"cpu": "1500m", "memory": "67108864"},
    }
    before, after = json.loads(cache()), json.loads(written)
    for found in (before, after):
        del found["Containers"]["uid:web"]["LinuxReq"], found["Containers"]["uid:web"]["Resources"]
    assert after == before


def test_requests_of_a_guaranteed_and_of_a_best_effort_pod() -> None:
    pod = {"ID": "pp", "CgroupParent": "/kubepods/poduid"}
    guaranteed = entry_of(with_creations(cache(Pods={"pp": pod}), [UNKNOWN]))
    both = {"cpu": "29296875n", "memory": "67108864"}
    assert guaranteed["Resources"] == {"requests": both, "limits": both}
    free = replace(FREE, shares=2)
    least = replace(UNKNOWN, creation={"cpu_shares": 2, "oom_score_adj": 1000}, cgroup=free)
    assert entry_of(with_creations(cache(), [least]))["Resources"] == {}


@pytest.mark.parametrize("shares", [3, 10, 21, 30, 102, 512, 1024, 2048, 4096 * 7, 262144])
def test_the_request_gives_exactly_the_weight_and_is_read_back_so(shares: int) -> None:
    container = replace(UNKNOWN, creation={"cpu_shares": shares}, cgroup=replace(FREE, shares=shares))
    raw = with_creations(cache(), [container])
    known = parse_cache(raw).containers["aa"]
    assert known.request is not None
    assert known.request * 1024 // 1000 == shares  # as cri-resmgr computes it
    assert keeps_weight(container, parse_cache(raw))


@pytest.mark.parametrize(
    ("creation", "now", "due"),
    [
        ({"cpu_shares": 512}, FREE, 512),  # an earlier policy has cut it
        ({"cpu_shares": 10}, FREE, 30),  # its pod was resized, or it was given back after exclusive CPUs
        ({}, replace(FREE, shares=2), 1024),  # the kernel's default
        (None, FREE, 30),
        ({"cpu_shares": 512}, replace(FREE, shares=0, weight=20), 512),
        ({"cpu_shares": 512}, replace(FREE, shares=0, weight=59), 512),  # by runc's newer formula
        ({"cpu_shares": 2}, replace(FREE, shares=0, weight=39), 1024),
        ({"cpu_shares": 512}, None, 512),
    ],
)
def test_the_weight_that_a_container_has_to_keep(
    creation: dict[str, int | str] | None, now: CgroupState | None, due: int
) -> None:
    found = due_shares(replace(UNKNOWN, creation=creation, cgroup=now))
    assert found == due or (now is not None and now.weight == 39 and found >= 998)


@pytest.mark.parametrize(
    ("created", "asked", "now"),
    [
        (102, 512, {"weight": 59}),  # by runc's newer formula; by the older one that is 1523
        (102, 512, {"weight": 20}),
        (1024, 2048, {"weight": 174}),
        (2048, 512, {"weight": 59}),  # to less
        (1024, 512, {"shares": 512}),
        (102, 512, {"shares": 512}),
    ],
)
def test_a_container_that_was_resized_in_place_keeps_what_kubelet_asks_for(
    created: int, asked: int, now: dict[str, Any]
) -> None:
    one = replace(UNKNOWN, creation={"cpu_shares": created}, asked=asked)
    one = replace(one, cgroup=replace(FREE, **{"shares": 0, **now}))
    assert due_shares(one) == asked
    request = entry_of(with_creations(cache(), [one]))["Resources"]["requests"]["cpu"]
    assert (nano_of(request) or 0) * 1024 // 10**9 == asked


@pytest.mark.parametrize("now", [{"weight": 1}, {"shares": 2}, {"weight": 30}])
def test_what_it_has_lost_is_due_whatever_kubelet_asks_for(now: dict[str, Any]) -> None:
    one = replace(UNKNOWN, creation={"cpu_shares": 1024}, asked=1024)
    assert due_shares(replace(one, cgroup=replace(FREE, **{"shares": 0, **now}))) == 1024


def test_who_can_be_adopted() -> None:
    def why(raw: bytes | None, container: RunningContainer = UNKNOWN) -> str:
        adoptable, others = divide([container], parse_cache(raw))
        assert len(adoptable) + len(others) == 1
        return "".join(reason for _one, reason in others)

    assert why(cache()) == ""
    assert why(None) == ""
    assert why(cache(), replace(UNKNOWN, id="bb")) == ""
    assert why(b"\0" * 9) == ""  # it is set aside
    assert "unknown format (version 2)" in why(cache(Version="2"))
    assert "how the container was created" in why(cache(), replace(UNKNOWN, created=None, creation=None))
    assert why(cache(), replace(UNKNOWN, created=None)) == ""  # CRI-O


def test_who_is_unknown() -> None:
    adopted = parse_cache(with_creations(cache(), [UNKNOWN]))
    assert divide([UNKNOWN, replace(UNKNOWN, through_proxy=True)], adopted) == ([], [])
    # Created through a proxy whose cache is gone since.
    (found,), others = divide([replace(UNKNOWN, through_proxy=True)], parse_cache(cache()))
    assert (found.id, others) == ("aa", [])


def test_who_has_got_the_lowest_weight_without_a_request_is_an_unknown_one_still() -> None:
    entry: dict[str, Any] = {"ID": "aa", "PodID": "pp", "Resources": {}}
    entry |= {"LinuxReq": {"cpu_shares": 2, "cpuset_cpus": "0"}}
    cut = parse_cache(cache(Containers={"uid:web": entry}))
    assert divide([UNKNOWN], cut) == ([UNKNOWN], [])
    best_effort = replace(UNKNOWN, creation={"cpu_shares": 2})
    assert divide([best_effort], cut) == ([], [])
    # The creation has what the proxy gave to exclusive CPUs, and its cache was lost: kubelet knows better.
    exclusive = replace(best_effort, through_proxy=True, asked=1024)
    assert divide([exclusive], cut) == ([exclusive], [])
    told = with_creations(cache(), [exclusive])
    assert entry_of(told)["LinuxReq"]["cpu_shares"] == 1024
    assert keeps_weight(exclusive, parse_cache(told))


def test_what_the_proxy_has_rounded_is_corrected_and_is_not_unknown() -> None:
    entry = {
        "ID": "aa",
        "PodID": "pp",
        "Resources": {"requests": {"cpu": "29m"}},
        "LinuxReq": {"cpu_shares": 30},
    }
    raw = cache(Containers={"uid:web": entry})
    own = replace(UNKNOWN, through_proxy=True)
    assert divide([own], parse_cache(raw)) == ([], [])
    assert not keeps_weight(own, parse_cache(raw))
    assert keeps_weight(own, parse_cache(with_creations(raw, [own])))


def test_cpus_in_the_creation_behind_the_proxy_are_not_the_containers() -> None:
    own = replace(UNKNOWN, through_proxy=True, creation={"cpu_shares": 30, "cpuset_cpus": "0"})
    assert entry_of(with_creations(cache(), [own]))["LinuxReq"] == {"cpu_shares": 30}


@rule("R6", "R14")
def test_cpus_that_the_proxy_has_given_are_given_back_though_an_adoption_came_between() -> None:
    """It was cut off before the next policy's start, and somebody started the proxy: with the policy none."""
    entry: dict[str, Any] = {"ID": "aa", "PodID": "pp", "Resources": {"requests": {"cpu": "29m"}}}
    entry |= {"LinuxReq": {"cpu_shares": 2, "cpuset_cpus": "2", "cpuset_mems": "0"}}
    own = replace(UNKNOWN, through_proxy=True, cgroup=replace(FREE, cpus="2"))
    adopted = parse_cache(with_creations(cache(Containers={"uid:web": entry}), [own]))
    assert keeps_weight(own, adopted)
    (reset,) = find_resets([own], adopted, NO_MANAGERS)
    assert reset.write == CpuResources(cpus="0-3")


# -- the steps -------------------------------------------------------------------------------


def pinned_host(root: Path, raw: bytes | None = cache()) -> FakeHost:
    fake = FakeHost(root)
    fake.cri.sockets[ENDPOINT] = CONTAINERD
    fake.cri.running = (UNKNOWN,)
    (root / "run/containerd").mkdir(parents=True)
    (root / ENDPOINT.removeprefix("unix:///")).touch()
    (root / paths.BINARY[1:]).parent.mkdir(parents=True)
    (root / paths.BINARY[1:]).touch()
    fake.systemd.units[paths.PROXY_UNIT] = UnitState(paths.PROXY_UNIT, load_state="loaded")
    if raw is not None:
        file = root / paths.PROXY_CACHE[1:]
        file.parent.mkdir(parents=True)
        file.write_bytes(raw)
        file.chmod(0o600)
    return fake


def carry_out(fake: FakeHost, *kinds: StepKind) -> list[str]:
    """Returns what it said."""
    said: list[str] = []
    steps = tuple(Step(kind, ENDPOINT, Part.PROXY) for kind in kinds)
    plan = Plan(Mode.INSTALL, Desired(), Changes(), "kubelet.service", steps)
    limits = Limits(proxy_start=1, kubelet_start=1, settle=1, guard=1, healthz_url="")
    apply_plan(plan, fake.host, limits, lambda event: said.append(event.message), Progress())
    return said


def text(root: Path, path: str) -> bytes | None:
    file = root / path[1:]
    return file.read_bytes() if file.exists() else None


def sees(fake: FakeHost, **more: Any) -> Callable[[Path], str]:
    """What cri-resmgr writes when it is started with the policy none: all that runs then."""

    def see(state: Path) -> str:
        old = state / "cache"
        found = json.loads(old.read_bytes()) if old.exists() else json.loads(cache(Containers={}))
        known = {entry["ID"] for entry in found["Containers"].values()}
        for one in fake.cri.running:
            if one.id not in known:
                found["Containers"][f"cache:{one.id}"] = {"ID": one.id, "PodID": "pp", "LinuxReq": None}
        old.write_text(json.dumps({**found, "PolicyName": "none", **more}))
        return ""

    return see


@rule("R14")
def test_the_old_cache_is_kept_until_the_weights_are_seen_to_hold(tmp_path: Path) -> None:
    fake = pinned_host(tmp_path)
    carry_out(fake, StepKind.ADOPT)
    assert text(tmp_path, OLD_CACHE) == cache()
    assert text(tmp_path, paths.PROXY_CACHE) == with_creations(cache(), [UNKNOWN])
    assert (tmp_path / paths.PROXY_CACHE[1:]).stat().st_mode & 0o777 == 0o600
    assert not fake.validator.calls  # an earlier start has seen it
    carry_out(fake, StepKind.CHECK_WEIGHTS)
    assert text(tmp_path, OLD_CACHE) is None


@rule("R14")
@pytest.mark.parametrize("raw", [None, cache(Containers={}), cache(PolicyName="balloons")])
def test_the_proxy_is_shown_whom_it_has_not_seen_under_the_policy_none(
    tmp_path: Path, raw: bytes | None
) -> None:
    """Without a cache, with one from before the container, and after a real policy has pinned it."""
    fake = pinned_host(tmp_path, raw)
    fake.validator.on_see = sees(fake)
    carry_out(fake, StepKind.ADOPT)
    (call,) = fake.validator.calls
    assert call.method == "see_containers"
    found = parse_cache(text(tmp_path, paths.PROXY_CACHE))
    assert (found.policy, found.containers["aa"].request) == ("none", 30)
    assert [call.method for call in fake.systemd.calls if call.target == paths.PROXY_UNIT][:1] == ["stop"]


@rule("R14")
def test_weight_that_a_start_of_somebody_else_has_taken_is_given_back_at_the_runtime(tmp_path: Path) -> None:
    """A policy that has no room for a container leaves it as it is, whatever the cache says."""
    fake = pinned_host(tmp_path)
    fake.cri.running = (replace(UNKNOWN, cgroup=replace(FREE, shares=2)),)
    carry_out(fake, StepKind.ADOPT)
    (given,) = [call for call in fake.cri.calls if call.method == "update"]
    assert given == Call("update", ENDPOINT, {"aa": CpuResources(shares=30)})
    assert adopted(tmp_path)["aa"].request == 30
    carry_out(fake, StepKind.CHECK_WEIGHTS)


@rule("R14")
def test_what_never_ran_and_stands_in_the_way_of_a_running_one_is_removed(tmp_path: Path) -> None:
    """The proxy's cache has one entry for both, and would lose the running one. What kubelet is about to
    start stays, and so does what belongs to another pod."""
    fake = pinned_host(tmp_path)
    left = UnstartedContainer("bb", UNKNOWN.pod_uid, UNKNOWN.name, "ns/web-0/web")
    starting = UnstartedContainer("cc", UNKNOWN.pod_uid, "sidecar", "ns/web-0/sidecar")
    others = UnstartedContainer("dd", "another", UNKNOWN.name, "ns/web-1/web")
    fake.cri.created = (left, starting, others)
    said = carry_out(fake, StepKind.ADOPT)
    assert [one.id for one in fake.cri.created] == ["cc", "dd"]
    assert "removed ns/web-0/web, which never ran" in said


STARTING = UnstartedContainer("cc", "uid", "sidecar", "ns/web-0/sidecar")
PULLING = ReadyPod("ns/web-1", parse_time(FakeClock.wall) - 5.0)


@pytest.mark.parametrize(
    ("created", "empty", "named"),
    [
        ((STARTING,), (), "ns/web-0/sidecar"),
        ((), (PULLING,), "ns/web-1"),
        ((STARTING,), (PULLING,), "ns/web-0/sidecar, ns/web-1"),
    ],
)
def test_a_move_of_kubelet_waits_for_what_it_is_starting(
    tmp_path: Path, created: tuple[UnstartedContainer, ...], empty: tuple[ReadyPod, ...], named: str
) -> None:
    """With a bound: one that never starts does not keep it for ever."""
    fake = pinned_host(tmp_path)
    fake.cri.sockets[paths.RELAY_ENDPOINT] = CONTAINERD
    said: list[str] = []
    await_calm(fake.host, lambda event: said.append(event.message))
    assert (said, fake.clock.time) == ([], 0.0)
    fake.cri.created, fake.cri.empty = created, empty
    await_calm(fake.host, lambda event: said.append(event.message))
    assert said == [f"waiting until kubelet has started {named}"]
    assert 9.0 <= fake.clock.time <= 11.0
    fake.cri.sockets[paths.RELAY_ENDPOINT] = "nobody answers"
    waited = fake.clock.time
    await_calm(fake.host, lambda event: said.append(event.message))
    assert fake.clock.time == waited, "kubelet does not wait on a silent relay"


@pytest.mark.parametrize("age", [3600.0, -3600.0])
def test_an_image_that_cannot_be_pulled_delays_no_move(tmp_path: Path, age: float) -> None:
    """Nor does a clock that was set back."""
    fake = pinned_host(tmp_path)
    fake.cri.sockets[paths.RELAY_ENDPOINT] = CONTAINERD
    fake.cri.empty = (PULLING._replace(created=PULLING.created - age),)
    await_calm(fake.host, lambda event: None)
    assert fake.clock.time == 0.0


def test_nobody_is_stopped_for_nothing(tmp_path: Path) -> None:
    fake = pinned_host(tmp_path, with_creations(cache(), [UNKNOWN]))
    carry_out(fake, StepKind.ADOPT, StepKind.CHECK_WEIGHTS)
    assert not fake.calls or {call.method for call in fake.calls} == {"remove"}


def test_who_comes_while_the_proxy_is_shown_the_others_is_shown_to_it_too(tmp_path: Path) -> None:
    fake = pinned_host(tmp_path, None)
    see, new = sees(fake), replace(UNKNOWN, id="bb", name="new")

    def late(state: Path) -> str:
        said = see(state)
        fake.cri.running = (UNKNOWN, new)
        return said

    fake.validator.on_see = late
    carry_out(fake, StepKind.ADOPT)
    assert len(fake.validator.calls) == 2
    assert {key: one.request for key, one in adopted(tmp_path).items()} == {"aa": 30, "bb": 30}


def adopted(root: Path) -> Mapping[str, CachedContainer]:
    return parse_cache(text(root, paths.PROXY_CACHE)).containers


def linked_host(root: Path) -> FakeHost:
    """Kubelet hangs on the relay while the proxy is away."""
    fake, unit = pinned_host(root, None), "kubelet.service"
    fake.clock.time = 100.0
    fake.systemd.units[unit] = UnitState(unit, "loaded", "active", "running", main_pid=8)
    fake.processes.processes[8] = ProcessState(8, ON_LINK, {"CRI_RESMGR_GUARD_BASE": BASE})
    link = paths.endpoint_link(BASE)
    fake.files.make_directory(posixpath.dirname(link))
    fake.files.link(link, paths.RELAY_SOCKET)
    return fake


def has_left(fake: FakeHost) -> bool:
    return fake.files.state(paths.endpoint_link(BASE)).target == BASE


def adopt_while_linked(fake: FakeHost, *, may_leave: bool) -> None:
    steps = [Step(StepKind.ADOPT, ENDPOINT, Part.PROXY)]
    steps += [Step(StepKind.LEAVE_IF_SLOW, ENDPOINT, Part.PROXY)] * may_leave
    desired = Desired(proxy=DesiredUnit(paths.PROXY_UNIT, "", "", "new"))
    plan = Plan(Mode.INSTALL, desired, Changes(), "kubelet.service", tuple(steps))
    limits = Limits(11.0, kubelet_start=9, settle=1, guard=1, healthz_url="", hanging=True, unhurried=60)
    apply_plan(plan, fake.host, limits, lambda _event: None, Progress())


@rule("R8")
@pytest.mark.parametrize(
    ("seconds", "may_leave", "leaves"),
    [(5.5, True, True), (5.5, False, False), (0.5, True, False)],  # the last one fails, and is not slow
)
def test_kubelet_does_not_hang_while_the_program_looks_at_many_containers(
    tmp_path: Path, seconds: float, may_leave: bool, leaves: bool
) -> None:
    """It may look for half of the time that kubelet may hang: the rest is for the start that follows."""
    fake = linked_host(tmp_path)
    see = sees(fake)

    def slowly(state: Path) -> str:
        fake.clock.sleep(seconds)
        if not has_left(fake):
            raise StepFailedError("it has not read the running containers", interfered=True)
        return see(state)

    fake.validator.on_see = slowly
    if leaves:
        adopt_while_linked(fake, may_leave=may_leave)
    else:
        with pytest.raises(StepFailedError, match="it has not read the running containers"):
            adopt_while_linked(fake, may_leave=may_leave)
    assert has_left(fake) is leaves


@rule("R8")
@pytest.mark.parametrize("answers", [True, False])
def test_kubelet_leaves_only_a_silent_relay_while_the_proxys_stop_waits_for_another_unit(
    tmp_path: Path, answers: bool
) -> None:
    fake = linked_host(tmp_path)
    fake.validator.on_see = sees(fake)
    fake.cri.sockets[paths.RELAY_ENDPOINT] = CONTAINERD if answers else "no answer"
    waits = [20.0]

    def stop(_method: str, unit: UnitState) -> tuple[str, UnitState]:
        if waits:
            fake.clock.sleep(waits.pop())
            raise timed_out(unit.name)
        return "done", unit

    fake.systemd.on_job[paths.PROXY_UNIT] = stop
    if answers:
        with pytest.raises(StepFailedError, match="another unit's job came first") as ended:
            adopt_while_linked(fake, may_leave=True)
        assert ended.value.interfered
    else:
        adopt_while_linked(fake, may_leave=True)
    assert has_left(fake) is not answers


@rule("R8")
def test_a_program_that_cannot_be_shown_them_is_a_failure_with_its_complaint(tmp_path: Path) -> None:
    fake = pinned_host(tmp_path, None)
    fake.validator.on_see = lambda _state: "F: broken"
    with pytest.raises(StepFailedError, match="could not be handed to cri-resmgr: F: broken"):
        carry_out(fake, StepKind.ADOPT)


def test_a_program_that_does_not_see_them_is_a_failure_that_names_them(tmp_path: Path) -> None:
    fake = pinned_host(tmp_path, None)
    with pytest.raises(StepFailedError, match="did not find ns/web-0/web") as failure:
        carry_out(fake, StepKind.ADOPT)
    assert failure.value.interfered


@rule("R8", "R14")
@pytest.mark.parametrize("heeds", [True, False])
@pytest.mark.parametrize("known", [True, False])
def test_a_weight_that_was_low_before_is_given_back_and_blames_nobody(
    tmp_path: Path, heeds: bool, known: bool
) -> None:
    """A policy that was in force before the run, or somebody else, has taken it, and goes on."""
    raw = cache(PolicyName="topology-aware")
    fake = pinned_host(tmp_path, with_creations(raw, [UNKNOWN]) if known else raw)
    fake.cri.sockets[paths.RELAY_ENDPOINT] = CONTAINERD
    fake.validator.on_see = sees(fake)
    fake.cri.ignores = not heeds
    low = replace(UNKNOWN, cgroup=replace(FREE, shares=2))
    fake.cri.running = (low,)

    def take_again(method: str, path: str) -> None:
        if (method, path) == ("write", paths.PROXY_CACHE):
            fake.cri.running = (low,)

    fake.files.fail = take_again
    said = carry_out(fake, StepKind.ADOPT, StepKind.CHECK_WEIGHTS, StepKind.CHECK_WEIGHTS)
    (message,) = [line for line in said if "has 2 shares, not 30 shares" in line]
    assert message.endswith("restored") is heeds
    assert fake.cri.running == ((UNKNOWN,) if heeds else (low,))


@rule("R8")
def test_a_weight_that_is_lost_is_a_failure_and_the_cache_comes_back(tmp_path: Path) -> None:
    fake = pinned_host(tmp_path)
    real = fake.cri.containers

    def cut(endpoint: str, timeout: float = 10.0) -> tuple[RunningContainer, ...]:
        if any(call.method == "write" and call.target == paths.PROXY_CACHE for call in fake.calls):
            fake.cri.running = (replace(UNKNOWN, cgroup=replace(FREE, cpus="0", shares=2)),)
        return real(endpoint, timeout)

    fake.cri.containers = cut  # type: ignore[method-assign]
    with pytest.raises(StepFailedError, match=r"has taken weight from 1 container: ns/web-0/web has 2"):
        carry_out(fake, StepKind.ADOPT, StepKind.CHECK_WEIGHTS)
    assert json.loads(text(tmp_path, paths.PROXY_CACHE) or b"") == json.loads(cache())
    assert text(tmp_path, OLD_CACHE) is None


@rule("R7")
def test_a_kept_cache_that_no_start_can_read_does_not_come_back(tmp_path: Path) -> None:
    """An adoption that found a torn cache has kept that one: there is nothing in it to go back to."""
    fake = pinned_host(tmp_path)
    for torn in (b'{"Version": "1", "Conta', bytes(90), b'{"Version": "1", "Containers": []}'):
        (tmp_path / OLD_CACHE[1:]).write_bytes(torn)
        bring_back(fake.host)
        assert text(tmp_path, paths.PROXY_CACHE) == cache()
        assert text(tmp_path, OLD_CACHE) is None


@rule("R14")
def test_which_policy_was_activated_last_stays_true(tmp_path: Path) -> None:
    """It tells who has to get something back."""
    fake = pinned_host(tmp_path)
    carry_out(fake, StepKind.ADOPT)
    (tmp_path / paths.PROXY_CACHE[1:]).write_bytes(cache(PolicyName="balloons", Containers={}))
    bring_back(fake.host)
    found = text(tmp_path, paths.PROXY_CACHE) or b""
    assert json.loads(found) == json.loads(cache(PolicyName="balloons"))


@rule("R14")
def test_a_real_policy_goes_on_with_the_adopted_cache(tmp_path: Path) -> None:
    """It would take the weight of those that the old cache does not know."""
    fake = pinned_host(tmp_path, cache(PolicyName="topology-aware"))
    fake.validator.on_see = sees(fake)
    carry_out(fake, StepKind.ADOPT)
    bring_back(fake.host)
    assert adopted(tmp_path)["aa"].request == 30
    assert text(tmp_path, OLD_CACHE) is None


def test_exclusive_cpus_of_a_guaranteed_pod_come_with_the_lowest_weight(tmp_path: Path) -> None:
    pod = {"ID": "pp", "UID": "uid", "CgroupParent": "/kubepods.slice/kubepods-poduid.slice"}
    whole = replace(UNKNOWN, creation={"cpu_shares": 1024})
    raw = with_creations(cache(PolicyName="topology-aware", Pods={"pp": pod}), [whole])
    fake = pinned_host(tmp_path, raw)
    fake.cri.running = (replace(whole, cgroup=replace(FREE, cpus="1", shares=2)),)
    carry_out(fake, StepKind.CHECK_WEIGHTS)


@rule("R14")
def test_who_has_come_while_the_proxy_started_is_adopted_at_once(tmp_path: Path) -> None:
    fake = pinned_host(tmp_path)
    fake.cri.sockets[paths.RELAY_ENDPOINT] = CONTAINERD
    fake.validator.on_see = sees(fake)
    new = replace(UNKNOWN, id="bb", name="new")
    carry_out(fake, StepKind.ADOPT)
    fake.cri.running = (UNKNOWN, new)  # and the proxy has missed it
    carry_out(fake, StepKind.CHECK_WEIGHTS)
    assert adopted(tmp_path)["bb"].request == 30
    assert [call.method for call in fake.systemd.calls].count("restart") == 1


@rule("R8")
def test_that_more_containers_come_with_each_start_is_no_fault_of_what_is_started(tmp_path: Path) -> None:
    fake = pinned_host(tmp_path)
    fake.cri.sockets[paths.RELAY_ENDPOINT] = CONTAINERD
    fake.validator.on_see = sees(fake)

    def start(method: str, unit: UnitState) -> tuple[str, UnitState]:
        if method == "restart":
            number = len(fake.cri.running)
            fake.cri.running += (replace(UNKNOWN, id=f"new-{number}", name=f"new-{number}"),)
        return "done", fake.systemd.started(unit)

    fake.systemd.on_job[paths.PROXY_UNIT] = start
    start("restart", fake.systemd.units[paths.PROXY_UNIT])
    with pytest.raises(StepFailedError, match="keep being created outside the proxy") as failure:
        carry_out(fake, StepKind.CHECK_WEIGHTS)
    assert failure.value.interfered
    assert len(fake.cri.running) == 4  # it was tried twice


def test_who_only_is_not_known_waits_until_kubelet_has_moved(tmp_path: Path) -> None:
    """Until then more of them may come."""
    fake = pinned_host(tmp_path)
    carry_out(fake, StepKind.ADOPT)
    before = {UNKNOWN.id: UNKNOWN}
    fake.cri.running = (UNKNOWN, replace(UNKNOWN, id="bb", name="new"))
    assert find_lost(fake.host, ENDPOINT, before, unknown_too=False) == ()
    (lost,) = find_lost(fake.host, ENDPOINT, before, unknown_too=True)
    assert (lost.how, lost.came_late) == ("the proxy does not know ns/web-0/new", True)


@pytest.mark.parametrize(("shares", "found"), [(2, True), (20, False), (30, False)])
def test_of_who_is_not_in_the_cache_only_the_lowest_weight_is_certain(shares: int, found: bool) -> None:
    """Kubelet may have resized one that came past the proxy."""
    unknown = replace(UNKNOWN, id="bb", cgroup=replace(FREE, shares=shares))
    said = find_reduced([unknown], parse_cache(cache(PolicyName="topology-aware")))
    assert said == ["ns/web-0/web has 2 shares, not 30 shares"] * found


@rule("R14")
def test_where_the_runtime_tells_only_of_now_a_late_one_with_the_lowest_weight_is_a_failure(
    tmp_path: Path,
) -> None:
    fake = pinned_host(tmp_path)
    cut = replace(UNKNOWN, created=None, creation={"cpu_shares": 2}, cgroup=replace(FREE, shares=2))
    fake.cri.running = (cut,)
    with pytest.raises(StepFailedError, match="its original CPU settings are unknown"):
        carry_out(fake, StepKind.CHECK_WEIGHTS)


def test_who_has_come_and_is_of_unknown_shape_stops_it_with_nothing_written(tmp_path: Path) -> None:
    fake = pinned_host(tmp_path)
    new = replace(UNKNOWN, id="bb", name="new", created=None, creation=None)
    fake.cri.running = (UNKNOWN, new)
    with pytest.raises(StepFailedError, match="ns/web-0/new was created meanwhile") as failure:
        carry_out(fake, StepKind.ADOPT)
    assert failure.value.interfered
    assert text(tmp_path, paths.PROXY_CACHE) == cache()
    assert text(tmp_path, OLD_CACHE) is None
