"""Three nodes whose `run` agrees through the API server's stand-in: who may restart its kubelet, and when."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from time import time

import pytest

from installer.cluster.leases import Permit, build_lease, build_permit, leases_path
from installer.model.fleet import FLEET
from installer.model.hold import PAUSE_ANNOTATION
from tests.host.daemon import SOON, Daemon, within
from tests.host.node import PROXY, Node
from tests.lib.rules import rule
from tests.lib.throwaway.host import ThrowawayHost
from tests.lib.throwaway.kubelet import wait_healthy
from tests.lib.throwaway.podserver import ApiServer

pytestmark = pytest.mark.long

NAMES = ("one", "two", "three")
NAMESPACE = "cri-resmgr-installer-rollout"
LONG = 3 * SOON  # three nodes, one after the other


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Node]]:
    """Without anything of ours, and all with the payload of one image: one permit, and one canary that
    is watched for no time."""
    with ExitStack() as stack:

        def boot(name: str) -> Node:
            return Node(stack.enter_context(ThrowawayHost()), tmp_path_factory.mktemp(name))

        with ThreadPoolExecutor() as pool:
            found = dict(zip(NAMES, pool.map(boot, NAMES), strict=True))
        for node in found.values():
            node.command.payload = found[NAMES[0]].command.payload
            node.command.set(rollout={"concurrentRestarts": 1, "soakSeconds": 0})
        yield found


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer(node=NAMES[0]) as serving:
        for name in NAMES[1:]:
            serving.add_node(name)
        serving.daemonset["status"] = {"desiredNumberScheduled": 3}
        yield serving


@contextmanager
def running(nodes: dict[str, Node], server: ApiServer, tmp_path: Path) -> Iterator[dict[str, Daemon]]:
    daemons: dict[str, Daemon] = {}
    try:
        for name, node in nodes.items():
            environment = server.environment() | {
                "NODE_NAME": name,
                "POD_NAME": name,
                "CRI_RESMGR_INSTALLER_POD_UID": name,
                "CRI_RESMGR_INSTALLER_ROLLOUT_NAMESPACE": NAMESPACE,
            }
            daemons[name] = Daemon(node, tmp_path / name / "ready", environment)
        yield daemons
    except BaseException as error:
        for name, daemon in daemons.items():
            error.add_note(f"{name}:\n{daemon.said()}")
        raise
    finally:
        for daemon in daemons.values():
            daemon.kill()


def holders(server: ApiServer) -> dict[str, str]:
    """Who has which permit, or had it last."""
    leases = {name.name: server.objects[name] for name in server.below(leases_path(NAMESPACE))}
    permits = {name: lease for name, lease in leases.items() if name.startswith("permit-")}
    return {name: lease["spec"].get("holderIdentity", "") for name, lease in permits.items()}


def restarting(daemon: Daemon) -> list[tuple[str, str]]:
    """From when until when this daemon was at a pass that restarted kubelet, as its log says."""
    passes, begun = [], ""
    for event in list(daemon.events):
        if event["kind"] == "pass.started":
            begun = event["time"]
        if event["kind"] == "pass.ended" and event["data"]["kubeletRestarts"]:
            passes.append((begun, event["time"]))
    return passes


def last_state(daemon: Daemon) -> str:
    return str(daemon.messages("state")[-1:])


def pause(server: ApiServer, why: str = "a person looks") -> None:
    """Without a reason, the pause ends."""
    lease = build_lease(FLEET, NAMESPACE, FLEET, annotations={PAUSE_ANNOTATION: why} if why else {})
    server.put(f"{leases_path(NAMESPACE)}/{FLEET}", lease)


def test_a_paused_fleet_begins_nothing(nodes: dict[str, Node], server: ApiServer, tmp_path: Path) -> None:
    pause(server)
    with running({"one": nodes["one"]}, server, tmp_path) as daemons:
        within(SOON, lambda: "paused: a person looks" in last_state(daemons["one"]))
        assert daemons["one"].phase() == "waiting"
        assert daemons["one"].restarts() == 0
        assert not holders(server)


def crashes_of(node: Node) -> int:
    return int(node.host.show(PROXY, "NRestarts"))


@rule("R4")
def test_a_removal_that_waits_leaves_no_kubelet_on_a_dead_relay(
    nodes: dict[str, Node], server: ApiServer, tmp_path: Path
) -> None:
    """Kubelet is moved, as for an installation. The restart that takes our link away waits, and nothing is
    tried meanwhile, however often the proxy crashes."""
    node = nodes["two"]
    node.run("install")
    before = node.command.config.read_text()
    removal = {"mode": "remove", "proxy": {"deadSeconds": 5}}
    node.command.config.write_text(json.dumps(json.loads(before) | removal))
    pause(server)
    with running({"two": node}, server, tmp_path) as daemons:
        within(SOON, lambda: "paused: a person looks" in last_state(daemons["two"]))
        node.fault("cri-resmgr", '{"startup": "exit"}')
        node.host.systemctl("kill", "--signal=KILL", PROXY)
        within(SOON, lambda: not node.on_relay())
        passes, crashes = len(daemons["two"].of("pass.started")), crashes_of(node)
        within(SOON, lambda: crashes_of(node) >= crashes + 10)
        assert len(daemons["two"].of("pass.started")) <= passes + 1  # because kubelet is elsewhere now
        assert not holders(server)
        pause(server, why="")
        daemons["two"].reach("removed")
        wait_healthy(node.host)
    node.fault("cri-resmgr", "")
    node.command.config.write_text(before)


@rule("R8")
def test_one_after_the_other_installs_and_a_bad_generation_stops_at_one(
    nodes: dict[str, Node], server: ApiServer, tmp_path: Path
) -> None:
    """The only permit is with a node that is gone: the first one does not wait for its end, the others do."""
    gone = build_permit(Permit("permit-0"), NAMESPACE, "zero/its-uid", time() - 800, 830)
    server.put(f"{leases_path(NAMESPACE)}/permit-0", gone)
    with running(nodes, server, tmp_path) as daemons:
        for daemon in daemons.values():
            daemon.reach("converged", LONG)
        within(SOON, lambda: holders(server) == {"permit-0": ""})
        times = sorted(pair for daemon in daemons.values() for pair in restarting(daemon))
        assert len(times) == 3
        assert all(before[1] <= after[0] for before, after in pairwise(times))
        for node in nodes.values():
            node.expect_good()

    nodes["one"].upgrade(fault={"exitAfterSeconds": 0.3})
    with running(nodes, server, tmp_path) as daemons:

        def stopped() -> int:
            return sum("it failed on node" in last_state(daemon) for daemon in daemons.values())

        within(LONG, lambda: stopped() == 2)
        (failed,) = (daemon for daemon in daemons.values() if daemon.of("rollback.started"))
        failed.reach("failed")
        within(SOON, lambda: "RolloutStopped" in [event["reason"] for event in list(server.events)])
        assert not any(daemon.restarts() for daemon in daemons.values())
    for node in nodes.values():
        wait_healthy(node.host)
        assert node.on_relay()
