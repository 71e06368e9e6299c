"""Rollbacks from a policy that pins to one that does not, on a simulated node with a container."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from installer.errors import RolledBackError
from installer.inputs.load import Request
from installer.inputs.settings import KubeletSettings, Settings
from installer.model import paths
from installer.model.containers import NO_MANAGERS, CgroupState, CpuResources
from installer.model.event import Event
from installer.model.host import RunningContainer, UnitState
from installer.model.names import Mode
from installer.model.proxy import ProxyCache
from installer.node.pinning import find_resets
from installer.node.reconcile import reconcile
from tests.faults.disks.crash import build
from tests.faults.disks.node import Node, bare_node
from tests.faults.disks.recorder import Careless
from tests.lib.rules import rule
from tests.lib.slownode import release

SETTINGS = Settings(kubelet=KubeletSettings(settle_seconds=1))
FREE = CgroupState("0-3", "0", "0-3", "0", shares=512)
CREATED = CpuResources(shares=512)
WEB = RunningContainer(
    "aa", "web", "web-0", "ns", False, "uid", 7, CREATED, FREE, creation={"cpu_shares": 512}
)
_REQUEST = {"Resources": {"requests": {"cpu": "500m"}}}
REAL = "policy:\n  Active: topology-aware\n  ReservedResources:\n    CPU: 1\n"


class PinningNode(Node):
    """Each start of the proxy pins the container, if the policy does, and notes the policy in its cache."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, Careless())
        self.fake.cri.running = (WEB,)
        start = self.systemd.on_job[paths.PROXY_UNIT]

        def begin(method: str, unit: UnitState) -> tuple[str, UnitState]:
            result = start(method, unit)
            if method != "stop":
                self.start_proxy()
            return result

        self.systemd.on_job[paths.PROXY_UNIT] = begin

    @property
    def cpus(self) -> str:
        (web,) = self.fake.cri.running
        assert web.cgroup is not None
        return web.cgroup.cpus

    def start_proxy(self) -> None:
        """As cri-resmgr does before it serves."""
        pins = b"topology-aware" in (self.read(paths.FALLBACK_CONFIG) or b"")
        (web,) = self.fake.cri.running
        if pins:
            self.fake.cri.running = (replace(web, cgroup=replace(FREE, cpus="1")),)
        # Its request is known, so that nobody has to be adopted: that takes a real socket.
        known = {"ID": "aa", "LinuxReq": {"cpuset_cpus": "1"} if pins else {}, **_REQUEST}
        policy = "topology-aware" if pins else "none"
        cache = self.fake.root / paths.PROXY_CACHE[1:]
        cache.parent.mkdir(parents=True, exist_ok=True)
        cache.write_text(json.dumps({"Version": "1", "PolicyName": policy, "Containers": {"0": known}}))

    def install(self, payload: Path, configs: Path) -> None:
        reconcile(Request(Mode.INSTALL, SETTINGS, payload, configs), self.fake.host, lambda _: None)


@rule("R14")
def test_a_cache_that_tells_of_the_policy_none_only_is_not_believed_where_another_was_there() -> None:
    pinned, none = replace(WEB, cgroup=replace(FREE, cpus="1")), ProxyCache(policy="none")
    assert find_resets([pinned], none, NO_MANAGERS) == ()
    (reset,) = find_resets([pinned], none, NO_MANAGERS, everyone=True)
    assert reset.write == CpuResources("0-3")


@rule("R14")
def test_pinned_containers_get_their_cpus_back_though_systemd_starts_the_proxy_during_the_rollback(
    tmp_path: Path,
) -> None:
    """A proxy that crashes is started again by systemd, and the files that are back already say `none`."""
    payload, configs, root = tmp_path / "payload", tmp_path / "configs", tmp_path / "node"
    release(payload, "one")
    configs.mkdir()
    root.mkdir()
    build(bare_node(), root)
    node = PinningNode(root)
    fallback = configs / "fallback.cfg"
    fallback.write_text("policy:\n  Active: none\n")
    node.install(payload, configs)
    assert node.cpus == "0-3"
    fallback.write_text(REAL)
    release(payload, "two", works=False)
    stop = node.systemd.stop

    def start_before(name: str, timeout: float) -> str:
        if b"none" in (node.read(paths.FALLBACK_CONFIG) or b""):
            assert node.cpus == "1"
            node.start_proxy()
        return stop(name, timeout)

    node.systemd.stop = start_before  # type: ignore[method-assign]
    with pytest.raises(RolledBackError):
        node.install(payload, configs)
    assert node.cpus == "0-3"


@rule("R14")
def test_the_way_back_to_a_policy_that_leaves_cpus_alone_adopts_nobody(tmp_path: Path) -> None:
    payload, configs, root = tmp_path / "payload", tmp_path / "configs", tmp_path / "node"
    release(payload, "one")
    configs.mkdir()
    root.mkdir()
    build(bare_node(), root)
    node, said = PinningNode(root), list[Event]()
    (configs / "fallback.cfg").write_text("policy:\n  Active: balloons\n  balloons:\n    PinCPU: false\n")
    settings = Settings(kubelet=KubeletSettings(settle_seconds=1))
    request = Request(Mode.INSTALL, settings, payload, configs)
    reconcile(request, node.fake.host, said.append)
    release(payload, "two", works=False)
    with pytest.raises(RolledBackError):
        reconcile(request, node.fake.host, said.append)
    assert "adopt" not in [event.data.get("step") for event in said]
    assert "rollback.started" in [event.kind for event in said]


@rule("R8")
@pytest.mark.parametrize(("containers", "blamed"), [({"0": None}, False), ({}, True)])
def test_r8_a_version_is_not_blamed_for_a_cache_that_no_start_can_read(
    tmp_path: Path, containers: dict[str, object], blamed: bool
) -> None:
    """It ends in a panic then, whose words say nothing of a cache."""
    payload, root = tmp_path / "payload", tmp_path / "node"
    release(payload, "one")
    root.mkdir()
    build(bare_node(), root)
    node = PinningNode(root)
    request = Request(Mode.INSTALL, SETTINGS, payload, default_configs=True)
    reconcile(request, node.fake.host, lambda _: None)
    release(payload, "two", works=False)
    cache = json.dumps({"Version": "1", "Containers": containers})
    start = node.systemd.on_job[paths.PROXY_UNIT]

    def spoil(method: str, unit: UnitState) -> tuple[str, UnitState]:
        found = start(method, unit)
        (root / paths.PROXY_CACHE[1:]).write_text(cache)
        return found

    node.systemd.on_job[paths.PROXY_UNIT] = spoil
    with pytest.raises(RolledBackError) as ended:
        reconcile(request, node.fake.host, lambda _: None)
    assert ended.value.remembered == blamed
