"""What cri-resmgr's cache says, and which policy is in force and from where."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from installer.inputs.policy import policy_in_force, policy_of
from installer.model import paths
from installer.model.host import (
    DesiredFile,
    FileState,
    HostSnapshot,
    Kind,
    KubeletSnapshot,
    ProcessState,
    ProxySnapshot,
    UnitState,
)
from installer.model.plan import Desired
from installer.model.proxy import (
    NO_CACHE,
    CachedContainer,
    PolicyInForce,
    PolicySource,
    ProxyCache,
    parse_cache,
)
from tests.lib.rules import rule

FALLBACK = ("cri-resmgr", "--fallback-config", paths.FALLBACK_CONFIG)
FORCED = ("cri-resmgr", f"--force-config={paths.FORCE_CONFIG}")
AGENT = {"policy": "Active: static-pools\n", "logger": "Debug: cri\n"}
TWO_DOCUMENTS = {"policy": "Active: podpools\n---\n"}


def snapshot(argv: tuple[str, ...], cache: ProxyCache = NO_CACHE) -> HostSnapshot:
    files = {
        path: FileState(Kind.FILE, content=f"policy.Active: {policy}\n".encode())
        for path, policy in ((paths.FALLBACK_CONFIG, "balloons"), (paths.FORCE_CONFIG, "podpools"))
    }
    unit = UnitState(paths.PROXY_UNIT, "loaded", "active", "running", main_pid=7)
    kubelet = KubeletSnapshot(UnitState("kubelet.service"))
    return HostSnapshot(ProxySnapshot(unit, ProcessState(7, argv, {})), kubelet, files, cache=cache)


@rule("R13")
@pytest.mark.parametrize(
    ("argv", "cache", "said"),
    [
        (FALLBACK, NO_CACHE, ("balloons", PolicySource.FALLBACK, "")),
        (FALLBACK, ProxyCache(policy="balloons"), ("balloons", PolicySource.FALLBACK, "")),
        (FALLBACK, ProxyCache(agent=AGENT), ("static-pools", PolicySource.AGENT, "")),
        (FALLBACK, ProxyCache(agent=AGENT, policy="none"), ("none", PolicySource.AGENT, "static-pools")),
        (FORCED, ProxyCache(agent=AGENT), ("podpools", PolicySource.FORCE, "")),
        (("cri-resmgr",), NO_CACHE, ("none", PolicySource.BUILT_IN, "")),
        (FALLBACK, ProxyCache(agent={"policy": "["}), ("none", PolicySource.AGENT, "")),
        (FALLBACK, ProxyCache(agent=TWO_DOCUMENTS), ("podpools", PolicySource.AGENT, "")),
    ],
)
def test_the_policy_in_force(
    argv: tuple[str, ...], cache: ProxyCache, said: tuple[str, PolicySource, str]
) -> None:
    found = policy_in_force(snapshot(argv, cache))
    assert found is not None
    assert (found.name, found.source, found.pending) == said


def test_it_is_said_in_one_line() -> None:
    found = policy_in_force(snapshot(FALLBACK, ProxyCache(agent=AGENT, policy="none")))
    assert found is not None
    assert found.describe == "none, from cri-resmgr-agent (the next start activates static-pools)"


def test_without_a_proxy_none_is_in_force() -> None:
    seen = snapshot(FALLBACK)
    assert policy_in_force(replace(seen, proxy=replace(seen.proxy, process=None))) is None


def test_what_the_next_start_would_activate() -> None:
    cache, fallback = ProxyCache(agent=AGENT), installs(FALLBACK_CONFIG="balloons")
    assert policy_of(fallback, NO_CACHE) == PolicyInForce("balloons", PolicySource.FALLBACK)
    assert policy_of(fallback, cache) == PolicyInForce("static-pools", PolicySource.AGENT)
    forced = installs(FALLBACK_CONFIG="none", FORCE_CONFIG="balloons")
    assert policy_of(forced, cache) == PolicyInForce("balloons", PolicySource.FORCE)


def installs(**policies: str) -> Desired:
    """By the name of a path in `paths`."""
    texts = {getattr(paths, name): f"policy:\n  Active: {policy}\n" for name, policy in policies.items()}
    files = (DesiredFile.of(path, text.encode()) for path, text in texts.items())
    return Desired(tuple(files))


CACHE = {
    "Version": "1",
    "Cfg": {"NodeName": "n", "Data": AGENT},
    "PolicyName": "none",
    "Containers": {"0": {"Id": "aa"}, "1": {"ID": "bb"}},
}


def test_a_cache_is_read() -> None:
    found = parse_cache(json.dumps(CACHE).encode())
    known = {"aa": CachedContainer(), "bb": CachedContainer()}
    assert found == ProxyCache(version="1", policy="none", agent=AGENT, containers=known)


@pytest.mark.parametrize(
    "raw", [None, b"", b'{"Version": "1", "Cfg": null, "Pods": null, "Containers": null}']
)
def test_a_cache_without_anything(raw: bytes | None) -> None:
    assert replace(parse_cache(raw), version="") == NO_CACHE


WHOLE = json.dumps(CACHE).encode()


@pytest.mark.parametrize("raw", [b"\0" * 4096, WHOLE[:-9], b"[" * 100_000, b"[]", b"\n"])
def test_a_torn_cache(raw: bytes) -> None:
    assert parse_cache(raw) == ProxyCache(torn=True)


@pytest.mark.parametrize("raw", [WHOLE[:40] + bytes(40) + WHOLE[80:], WHOLE[:60] + bytes(len(WHOLE) - 60)])
def test_a_cache_with_a_part_full_of_zeros_is_torn(raw: bytes) -> None:
    assert parse_cache(raw) == ProxyCache(torn=True)


@pytest.mark.parametrize(
    "other",
    [
        {"Version": None},
        {"Version": 1},
        {"Cfg": []},
        {"Cfg": {"Data": []}},
        {"Cfg": {"Data": {"policy": 1}}},
        {"PolicyName": 1},
        {"PolicyJSON": {"allocations": {}}},
        {"NextID": "7"},
        {"NextID": True},
        {"Pods": []},
        {"Pods": {"p": None}},
        {"Pods": {"p": {"Labels": {"name": 1}}}},
        {"Containers": []},
        {"Containers": {"c": None}},
        {"Containers": {"c": "text"}},
        {"Containers": {"c": {"ID": 1}}},
        {"Containers": {"c": {"LinuxReq": []}}},
        {"Containers": {"c": {"LinuxReq": {"cpu_shares": "2"}}}},
        {"Containers": {"c": {"Resources": {"requests": []}}}},
    ],
    ids=str,
)
def test_json_that_is_not_what_the_proxy_reads_is_a_torn_cache(other: dict[str, object]) -> None:
    assert parse_cache(json.dumps(CACHE | other).encode()) == ProxyCache(torn=True)


@pytest.mark.parametrize(
    ("text", "pins"),
    [
        ("policy:\n  Active: balloons\n  balloons:\n    PinCPU: false\n", False),
        ("policy.Active: balloons\npolicy.balloons:\n  PinCPU: false\n", False),
        ("policy:\n  Active: balloons\n  topology-aware:\n    PinCPU: false\n", True),
        ("policy:\n  Active: balloons\n  balloons:\n    PinCPU: true\n", True),
        ("policy:\n  Active: balloons\n  balloons:\n", True),
        ("", True),
    ],
)
def test_a_policy_that_is_told_to_leave_cpus_alone(text: str, pins: bool) -> None:
    file = DesiredFile.of(paths.FALLBACK_CONFIG, text.encode())
    assert policy_of(Desired((file,)), NO_CACHE).pins == pins
    sections = {"policy": "Active: balloons\nballoons:\n  PinCPU: false\n"}
    assert not policy_of(Desired((file,)), ProxyCache(agent=sections)).pins


@pytest.mark.parametrize(
    ("assigned", "classed"),
    [
        ('{"":"0","turbo":"1"}', (0, 1)),  # as the real v0.9.2 writes it
        ('{"turbo":"10,2"}', (2, 10)),
        ('{"":"0,1"}', ()),
        ('{"turbo":7,"idle":"x"}', ()),
        (f'{{"turbo":"1,²,{"9" * 5000}"}}', (1,)),
        ("{", ()),
        ("[]", ()),
    ],
)
def test_which_cpus_a_class_may_have_limited(assigned: str, classed: tuple[int, ...]) -> None:
    cache = {"Version": "1", "PolicyJSON": {"CPUClassAssignments": assigned}}
    assert parse_cache(json.dumps(cache).encode()).classed == classed
