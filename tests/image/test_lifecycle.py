"""The built image as a DaemonSet's container, on a real node: what an operator does, and what befalls."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from installer.model.names import STATUS
from tests.host.daemon import SOON, within
from tests.host.node import BINARY, DROP_IN, FALLBACK, GUARD, PROXY
from tests.image.world import NEW, OLD, World, idle
from tests.lib.rules import rule
from tests.lib.throwaway.host import HostError, ThrowawayHost
from tests.lib.throwaway.kubelet import UNIT, wait_healthy
from tests.lib.throwaway.podserver import ApiServer
from tests.lib.throwaway.snapshot import difference, files

pytestmark = pytest.mark.host

HOLD = "/var/lib/cri-resmgr-installer/hold"
PAUSE = "/etc/cri-resmgr/pause"
RUNTIME = "/run/cri-resmgr-installer"
MARK = f"{RUNTIME}/mode.json"
MEMORY = 48_000  # kilobytes


@pytest.fixture(scope="module", params=["privileged", "restricted"])
def profile(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def world(profile: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with ThrowawayHost() as host:
        leave_something(host)
        yield World(host, tmp_path_factory.mktemp("world"), profile)


def leave_something(host: ThrowawayHost) -> None:
    """What somebody else had at our paths, and nobody but them may read or write. A directory that they own
    would be refused."""
    for name in ("etc/cri-resmgr/theirs", "etc/default/cri-resource-manager"):
        file = host.root / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("# theirs\n")
        file.chmod(0o600)
        os.chown(file, 1000, 1001)
    directory = host.root / "etc/cri-resmgr"
    directory.chmod(0o700)
    os.chown(directory, 0, 1001)


@pytest.fixture(autouse=True)
def lent(world: World) -> Iterator[None]:
    """Each test begins with no memory of restarts and of other pods."""
    for name in ("restarts.json", "mode.json"):
        world.node.path(f"{RUNTIME}/{name}").unlink(missing_ok=True)
    yield
    world.node.path(PAUSE).unlink(missing_ok=True)
    world.node.fault("cri-resmgr", "")


def moved(world: World, on_relay: bool) -> bool:
    """Whether kubelet is up and where it should be; False between two processes."""
    try:
        active = world.host.show(UNIT, "ActiveState") == "active"
        return active and world.node.on_relay() == on_relay
    except (HostError, OSError):
        return False


@rule("R11")
def test_it_installs_and_what_a_rollout_ends_and_begins_changes_nothing(
    world: World, record_property: Callable[[str, object], None]
) -> None:
    node = world.node
    with world.rollout() as pod:
        world.expect_good(pod)
        world.expect_payload(OLD)
        memory = pod.memory()
        record_property("memory of run", ", ".join(f"{name} {size} kB" for name, size in memory.items()))
        assert memory["Rss"] < MEMORY, memory
        before, state = node.invocations(), files(world.host)
        assert pod.terminate() == 0
    assert node.invocations() == before
    assert not difference(state, files(world.host))
    with world.rollout() as pod:
        assert not any(data["changed"] for data in pod.of("pass.ended"))
        world.expect_good(pod)
    assert node.invocations() == before


def test_the_container_may_do_what_its_profile_says_and_no_more(world: World, profile: str) -> None:
    with world.rollout() as pod:
        privileged = pod.capabilities() & (1 << 16) != 0  # CAP_SYS_MODULE: no profile but privileged has it
        assert privileged == (profile == "privileged")
        writes = pod.execute("sh", "-c", "echo > /written").code == 0
        assert writes == (profile == "privileged")


@rule("R3")
def test_new_configs_restart_the_proxy_alone(world: World) -> None:
    other = "policy:\n  Active: none\nlogger:\n  Debug: cache\n"
    with world.rollout() as pod:
        pod.terminate()
    with world.node.restarts(kubelet=False, proxy=True), world.rollout(fallback=other) as pod:
        assert "Debug: cache" in world.node.path(FALLBACK).read_text()
        world.expect_good(pod)


@rule("R3")
def test_drift_is_repaired_without_a_restart(world: World) -> None:
    with world.rollout() as pod, world.node.restarts(kubelet=False, proxy=False):
        for path in (GUARD, FALLBACK, DROP_IN):
            file = world.node.path(path)
            right = file.read_bytes()
            file.unlink()
            within(SOON, lambda file=file, right=right: file.exists() and file.read_bytes() == right)  # type: ignore[misc]
            world.settle(pod)


def test_a_wiped_drop_in_directory_and_a_restart_cost_one_restart_more(world: World) -> None:
    wipe = f"rm -r {Path(DROP_IN).parent}; systemctl daemon-reload; systemctl restart kubelet"
    with world.rollout() as pod:
        done = len(pod.of("pass.ended"))
        world.host.run("sh", "-c", wipe)
        within(SOON, lambda: world.node.path(DROP_IN).exists() and moved(world, on_relay=True))
        world.settle(pod)
        assert sum(int(data["kubeletRestarts"]) for data in pod.of("pass.ended")[done:]) <= 1
        world.expect_good(pod)


@rule("R13")
def test_a_refused_node_keeps_its_pod_and_is_served_as_soon_as_it_can_be(world: World) -> None:
    world.node.run("remove")
    world.host.systemctl("mask", PROXY)
    with world.pod() as pod:
        within(SOON, lambda: pod.phase() == "refused")
        within(SOON, lambda: pod.probe("startupProbe").code == 0)
        assert pod.probe("livenessProbe").code == 0
        assert pod.probe("readinessProbe").code != 0
        assert not world.node.path(BINARY).exists()
        world.host.systemctl("unmask", PROXY)
        world.settle(pod)
        world.expect_good(pod)
    world.node.run("remove")
    world.host.systemctl("mask", PROXY)
    with world.pod(rollout={"refused": "ready"}) as pod:
        within(SOON, lambda: pod.phase() == "refused")
        pod.wait_ready()
    world.host.systemctl("unmask", PROXY)


def test_while_paused_nothing_is_changed(world: World) -> None:
    with world.rollout() as pod:
        world.node.path(PAUSE).touch()
        within(SOON, lambda: pod.phase() == "paused")
        with world.node.restarts(kubelet=False, proxy=False):
            world.node.path(GUARD).unlink()
            pod.signal("SIGHUP")
            within(SOON, lambda: bool(pod.of("looked")))
            assert not pod.of("looked")[0]["running"]
            assert not world.node.path(GUARD).exists()
        # Somebody fixes the node by hand: no restart of the container would help them.
        world.host.systemctl("stop", PROXY)
        assert pod.probe("livenessProbe").code == 0
        within(SOON, lambda: idle(pod))
        world.node.path(PAUSE).unlink()
        within(SOON, world.node.path(GUARD).exists)
        world.settle(pod)
        world.expect_good(pod)


@rule("R4")
def test_kubelet_leaves_a_dead_proxy_and_returns(world: World) -> None:
    with world.rollout() as pod:
        world.node.fault("cri-resmgr", '{"startup": "exit"}')
        world.host.systemctl("kill", "--signal=KILL", PROXY)
        within(SOON, lambda: pod.probe("livenessProbe").code != 0)
        within(SOON, lambda: moved(world, on_relay=False))
        wait_healthy(world.host)
        within(SOON, lambda: pod.phase() == "unwell")
        within(SOON, lambda: not pod.ready())
        world.node.fault("cri-resmgr", "")
        within(SOON, lambda: moved(world, on_relay=True))
        world.settle(pod)
        assert pod.probe("livenessProbe").code == 0
        world.expect_good(pod)


@rule("R8")
def test_an_upgrade_and_the_way_back_restart_the_proxy_alone(world: World) -> None:
    with world.rollout() as pod:
        world.expect_payload(OLD)
        pod.terminate()
    for version in (NEW, OLD):
        with world.node.restarts(kubelet=False, proxy=True), world.rollout(version=version) as pod:
            world.expect_good(pod)
            world.expect_payload(version)
            pod.terminate()


@rule("R7", "R11")
def test_killed_in_the_middle_its_next_container_goes_on(world: World) -> None:
    with world.rollout() as pod:
        pod.terminate()
    with world.pod(version=NEW) as pod:
        within(SOON, lambda: any(data["step"] == "write" for data in pod.of("step.done")))
        assert pod.kill() == 128 + signal.SIGKILL
        pod.start()
        world.settle(pod)
        world.expect_good(pod)
        world.expect_payload(NEW)


@rule("R10")
def test_removal_and_installation_that_overlap_do_not_fight(world: World) -> None:
    node = world.node
    with (
        world.rollout(uid="installation") as installation,
        world.pod(mode="remove", uid="removal") as removal,
    ):
        removal.wait_ready()
        within(SOON, lambda: removal.phase() == "removed")
        within(SOON, lambda: installation.phase() == "yielded")
        assert not installation.ready()
        assert not any(node.path(path).exists() for path in (BINARY, GUARD, DROP_IN))
        assert not node.on_relay()
        assert json.loads(node.path(MARK).read_text())["mode"] == "remove"
        # While the removal is there, neither a restarted container nor a newer pod takes the node back.
        installation.terminate()
        installation.start()
        within(SOON, lambda: installation.phase() == "yielded")
        with world.pod(uid="newer") as newer:
            within(SOON, lambda: newer.phase() == "yielded")
            within(SOON, lambda: removal.phase() == "removed")
            assert not node.path(BINARY).exists()
            installation.terminate()
            assert removal.terminate() == 0
            assert newer.wait(SOON) == 0
            newer.start()
            world.settle(newer)
            world.expect_good(newer)


def test_it_tells_the_cluster_and_removes_only_on_its_word(world: World) -> None:
    node, values = world.node, {"removal": {"onTermination": "auto"}}
    with ApiServer(network=f"/proc/{world.host.leader}/ns/net") as server:
        with world.rollout(server=server, **values) as pod:
            within(SOON, lambda: json.loads(server.annotations.get(STATUS, "{}")).get("state") == "converged")
            before = node.invocations()
            server.fail(code=403)
            assert pod.terminate() == 0
            assert node.invocations() == before
            server.heal()
            pod.start()
            world.settle(pod)
            server.delete_daemonset()
            assert pod.terminate() == 0
        assert json.loads(server.annotations[STATUS])["state"] == "removed"
        assert not server.events
        node.expect_untraced()


@rule("R6")
def test_removal_leaves_no_trace(world: World) -> None:
    with world.rollout() as pod:
        pod.terminate()
    with world.pod(mode="remove") as pod:
        pod.wait_ready()
        within(SOON, lambda: pod.phase() == "removed")
        assert "livenessProbe" not in pod.container
        assert pod.terminate() == 0
    world.node.expect_untraced()
