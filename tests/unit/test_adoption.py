"""Strangers are made known to the proxy: what is written into its cache, and when nothing is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from installer.apply import Limits, Progress, apply_plan
from installer.errors import StepFailedError
from installer.model import paths
from installer.model.change import Changes
from installer.model.pinning import CgroupState, CpuResources
from installer.model.plan import Plan, Step, StepKind
from installer.model.proxy_cache import parse_cache
from installer.model.resource import Part
from installer.model.snapshot import RunningContainer
from installer.model.state import Desired, Mode
from installer.pinning.adopt import OLD_CACHE, bring_back, divide, with_strangers
from tests.fakes import CONTAINERD, FakeHost
from tests.rules import rule

ENDPOINT = "unix:///run/containerd/containerd.sock"
CREATION: dict[str, int | str] = {
    "cpu_period": 100000,
    "cpu_quota": 150000,
    "cpu_shares": 30,
    "memory_limit_in_bytes": 64 << 20,
    "oom_score_adj": 900,
}
FREE = CgroupState("0-3", "0", "0-3", "0", shares=30)
STRANGER = RunningContainer(
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
def test_the_proxys_own_entry_gets_what_the_stranger_was_created_with_and_all_else_stays() -> None:
    written = with_strangers(cache(), [STRANGER])
    entry = entry_of(written)
    assert entry["LinuxReq"] == CREATION
    # 30m give 30 shares; what the proxy itself would estimate of them (29m) gives 29.
    assert entry["Resources"] == {
        "requests": {"cpu": "30m"},
        "limits": {"cpu": "1500m", "memory": "67108864"},
    }
    before, after = json.loads(cache()), json.loads(written)
    for found in (before, after):
        del found["Containers"]["uid:web"]["LinuxReq"], found["Containers"]["uid:web"]["Resources"]
    assert after == before


def test_requests_of_a_guaranteed_and_of_a_best_effort_pod() -> None:
    pod = {"ID": "pp", "CgroupParent": "/kubepods/poduid"}
    guaranteed = entry_of(with_strangers(cache(Pods={"pp": pod}), [STRANGER]))
    both = {"cpu": "30m", "memory": "67108864"}
    assert guaranteed["Resources"] == {"requests": both, "limits": both}
    least = replace(STRANGER, creation={"cpu_shares": 2, "oom_score_adj": 1000})
    assert entry_of(with_strangers(cache(), [least]))["Resources"] == {}


@pytest.mark.parametrize("shares", [3, 10, 21, 30, 102, 512, 1024, 2048, 4096 * 7])
def test_the_request_gives_exactly_the_weight(shares: int) -> None:
    entry = entry_of(with_strangers(cache(), [replace(STRANGER, creation={"cpu_shares": shares})]))
    assert int(entry["Resources"]["requests"]["cpu"].removesuffix("m")) * 1024 // 1000 == shares


def test_who_can_be_adopted() -> None:
    def why(raw: bytes | None, container: RunningContainer = STRANGER) -> str:
        adoptable, others = divide([container], parse_cache(raw))
        assert len(adoptable) + len(others) == 1
        return "".join(reason for _one, reason in others)

    assert why(cache()) == ""
    assert why(None) == "the proxy has not seen it yet"
    assert why(cache(), replace(STRANGER, id="bb")) == "the proxy has not seen it yet"
    assert "cannot be read" in why(b"\0" * 9)
    assert "not known (version 2)" in why(cache(Version="2"))
    assert "not known (version not said)" in why(cache(Version=None))
    assert "how it was created" in why(cache(), replace(STRANGER, created=None, creation={}))


def test_who_is_no_stranger() -> None:
    adopted = parse_cache(with_strangers(cache(), [STRANGER]))
    assert divide([STRANGER, replace(STRANGER, through_proxy=True)], adopted) == ([], [])
    assert divide([replace(STRANGER, through_proxy=True)], parse_cache(cache())) == ([], [])


# -- the steps -------------------------------------------------------------------------------


def pinned_host(root: Path, raw: bytes = cache()) -> FakeHost:
    fake = FakeHost(root)
    fake.cri.sockets[ENDPOINT] = CONTAINERD
    fake.cri.running = (STRANGER,)
    file = root / paths.PROXY_CACHE[1:]
    file.parent.mkdir(parents=True)
    file.write_bytes(raw)
    file.chmod(0o600)
    return fake


def carry_out(fake: FakeHost, *kinds: StepKind) -> None:
    steps = tuple(Step(kind, ENDPOINT, Part.PROXY) for kind in kinds)
    plan = Plan(Mode.INSTALL, Desired(), Changes(), "kubelet.service", steps)
    limits = Limits(proxy_start=1, kubelet_start=1, settle=1, guard=1, healthz_url="")
    apply_plan(plan, fake.host, limits, lambda _event: None, Progress())


def text(root: Path, path: str) -> bytes | None:
    file = root / path[1:]
    return file.read_bytes() if file.exists() else None


@rule("R14")
def test_the_old_cache_is_kept_until_the_weights_are_seen_to_hold(tmp_path: Path) -> None:
    fake = pinned_host(tmp_path)
    carry_out(fake, StepKind.ADOPT)
    assert text(tmp_path, OLD_CACHE) == cache()
    assert text(tmp_path, paths.PROXY_CACHE) == with_strangers(cache(), [STRANGER])
    assert (tmp_path / paths.PROXY_CACHE[1:]).stat().st_mode & 0o777 == 0o600
    carry_out(fake, StepKind.CHECK_WEIGHTS)
    assert text(tmp_path, OLD_CACHE) is None


@rule("R14")
@rule("R8")
def test_a_weight_that_is_lost_is_a_failure_and_the_cache_comes_back(tmp_path: Path) -> None:
    fake = pinned_host(tmp_path, cache(PolicyName="topology-aware"))
    fake.cri.running = (replace(STRANGER, cgroup=replace(FREE, cpus="0", shares=2)),)
    with pytest.raises(StepFailedError, match=r"has taken weight from 1 containers: .*ns/web-0/web"):
        carry_out(fake, StepKind.ADOPT, StepKind.CHECK_WEIGHTS)
    assert json.loads(text(tmp_path, paths.PROXY_CACHE) or b"") == json.loads(
        cache(PolicyName="topology-aware")
    )
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


def test_exclusive_cpus_of_a_guaranteed_pod_come_with_the_lowest_weight(tmp_path: Path) -> None:
    pod = {"ID": "pp", "CgroupParent": "/kubepods.slice/kubepods-poduid.slice"}
    fake = pinned_host(tmp_path, cache(PolicyName="topology-aware", Pods={"pp": pod}))
    fake.cri.running = (replace(STRANGER, cgroup=replace(FREE, cpus="1", shares=2)),)
    carry_out(fake, StepKind.CHECK_WEIGHTS)


def test_a_container_that_has_come_meanwhile_stops_it_with_nothing_written(tmp_path: Path) -> None:
    fake = pinned_host(tmp_path)
    fake.cri.running = (STRANGER, replace(STRANGER, id="bb", name="new"))
    with pytest.raises(StepFailedError, match="ns/web-0/new has come meanwhile") as failure:
        carry_out(fake, StepKind.ADOPT)
    assert failure.value.interfered
    assert text(tmp_path, paths.PROXY_CACHE) == cache()
    assert text(tmp_path, OLD_CACHE) is None
