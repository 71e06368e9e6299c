"""A policy can serve less than kubelet promises: who is not placed is named, before and after."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from installer.cluster.node_status import REASON_CHARACTERS
from installer.inputs.configs import load_configs
from installer.inputs.load import Inputs, Request
from installer.inputs.settings import Settings
from installer.model import paths
from installer.model.containers import CgroupState, CpuResources
from installer.model.host import (
    HostSnapshot,
    KubeletSnapshot,
    Probe,
    ProcessState,
    ProxySnapshot,
    RunningContainer,
    UnitState,
)
from installer.model.names import Mode
from installer.model.proxy import CachedContainer, ProxyCache
from installer.node.preflight_proxy import check_capacity, check_placed

PROXY = ProcessState(7, ("cri-resmgr", f"--fallback-config={paths.FALLBACK_CONFIG}"), {})
NODE = HostSnapshot(
    ProxySnapshot(UnitState(paths.PROXY_UNIT), PROXY), KubeletSnapshot(UnitState("kubelet.service"))
)


def container(name: str, shares: int, pod_uid: str = "uid") -> RunningContainer:
    created: dict[str, int | str] = {"cpu_shares": shares}
    cgroup = CgroupState("0-1", "0", "0-1", "0", shares=shares)
    return RunningContainer(
        name, name, "pod", "ns", False, pod_uid, 1, CpuResources(shares=shares), cgroup, created
    )


def inputs(tmp_path: Path, reserved: str = "100m", policy: str = "topology-aware") -> Inputs:
    text = f"policy:\n  Active: {policy}\n  ReservedResources: {{cpu: {reserved}}}\n"
    (tmp_path / "fallback.cfg").write_text(text)
    return Inputs(Request(Mode.INSTALL, Settings(), None), None, load_configs(tmp_path))


@pytest.mark.parametrize(
    ("reserved", "shares", "warned"),
    [
        ("100m", (716, 716), True),  # 1,398m of 1,000m: a whole CPU goes for what is reserved
        ("100m", (512, 512, 2), False),  # 1,000m, and one that requests nothing
        ("1", (512, 512), False),
        ("1100m", (512,), True),
    ],
)
def test_a_plan_warns_where_more_is_requested_than_the_policy_will_have(
    tmp_path: Path, reserved: str, shares: tuple[int, ...], warned: bool
) -> None:
    containers = tuple(container(f"c{index}", each) for index, each in enumerate(shares))
    snapshot = replace(NODE, probe=Probe(containers=(*containers, container("of nobody", 1024, ""))))
    found = list(check_capacity(inputs(tmp_path, reserved), snapshot))
    assert [one.code for one in found] == ["policy-capacity"] * warned
    assert not list(check_capacity(inputs(tmp_path, reserved, "balloons"), snapshot))


def test_who_the_policy_has_not_placed_is_named() -> None:
    cached = {
        "aa": CachedContainer(500, cpus="1", title="ns/web-0/web"),
        "bb": CachedContainer(900, title="ns/db-0/db"),
        "cc": CachedContainer(900),
    }
    cache = ProxyCache(policy="topology-aware", containers=cached)
    (found,) = check_placed(replace(NODE, cache=cache))
    assert found.code == "unplaced"
    assert "topology-aware had no CPUs for 2 containers (cc, ns/db-0/db), which" in found.message
    assert not list(check_placed(replace(NODE, cache=replace(cache, policy="none"))))
    placed = {"aa": cached["aa"]}
    assert not list(check_placed(replace(NODE, cache=replace(cache, containers=placed))))


def test_however_many_are_not_placed_the_remedy_is_read() -> None:
    many = {str(index): CachedContainer(500, title=f"{index:02}/{'x' * 400}") for index in range(40)}
    cache = ProxyCache(policy="topology-aware", containers=many | {"aa": CachedContainer(500, cpus="1")})
    (found,) = check_placed(replace(NODE, cache=cache))
    assert "for 40 containers (00/xxx" in found.message
    assert "x... and 35 more), which use all CPUs" in found.message
    assert len(found.message) + len(found.hint) < REASON_CHARACTERS
