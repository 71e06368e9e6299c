"""What a pass has begun is finished on the node, whatever becomes of its pod (R11)."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from installer.model.paths import PASS_UNIT
from tests.host.daemon import SOON, within
from tests.host.node import GUARD, PROXY
from tests.image.world import OLD, World
from tests.lib.rules import rule
from tests.lib.throwaway.host import HostError, ThrowawayHost
from tests.lib.throwaway.kubelet import UNIT, wait_healthy

pytestmark = pytest.mark.host

NSENTER = "/usr/bin/nsenter"
STAMPS = "/run/cri-resmgr-installer/restarts.json"


@pytest.fixture(scope="module", params=["privileged", "restricted"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with ThrowawayHost() as host:
        yield World(host, tmp_path_factory.mktemp("world"), str(request.param))


@pytest.fixture(autouse=True)
def lent(world: World) -> Iterator[None]:
    yield
    world.node.fault("kubelet", "")
    world.node.fault("cri-resmgr", "")
    within(SOON, lambda: not at_work(world))


def at_work(world: World) -> bool:
    return world.host.show(PASS_UNIT, "ActiveState") in ("activating", "active", "deactivating")


@contextmanager
def kubelet_waits(world: World, *, on_relay: bool) -> Iterator[Callable[[], None]]:
    """The kubelet that a pass restarts is not healthy before what this yields is called."""
    fault = {"healthz": False}
    world.node.fault("kubelet", json.dumps({"onRelay": fault} if on_relay else {"offRelay": fault}))
    try:
        yield lambda: world.node.fault("kubelet", "")
    finally:
        world.node.fault("kubelet", "")


def moved(world: World, *, on_relay: bool) -> bool:
    """Whether kubelet has been started where it should be; False between two processes."""
    try:
        return world.host.show(UNIT, "ActiveState") == "active" and world.node.on_relay() == on_relay
    except (HostError, OSError):
        return False


@rule("R11")
def test_an_installation_is_finished_without_its_pod(world: World) -> None:
    with kubelet_waits(world, on_relay=True) as let_go, world.pod() as pod:
        within(SOON, lambda: moved(world, on_relay=True))
        pod.destroy()
        assert at_work(world)
        let_go()
        within(SOON, lambda: not at_work(world))
    wait_healthy(world.host)
    assert moved(world, on_relay=True)
    world.expect_payload(OLD)
    before = world.node.invocations()
    with world.rollout() as pod:  # it accounts for that pass, and has nothing left to do
        assert [(data["changed"], data["kubeletRestarts"]) for data in pod.of("pass.ended")] == [(True, 1)]
        world.expect_good(pod)
    assert world.node.invocations() == before
    assert "wait until kubelet.service is healthy and stays healthy" in world.host.journal(PASS_UNIT)


@rule("R11")
def test_a_removal_is_finished_without_its_pod(world: World) -> None:
    with world.rollout() as pod:
        pod.terminate()
    with kubelet_waits(world, on_relay=False) as let_go, world.pod(mode="remove") as pod:
        within(SOON, lambda: moved(world, on_relay=False))
        pod.destroy()
        assert at_work(world)
        let_go()
        within(SOON, lambda: not at_work(world))
    world.node.expect_untraced()


@rule("R11")
def test_a_pod_that_is_asked_to_end_sees_its_pass_through(world: World) -> None:
    world.node.run("remove")
    with kubelet_waits(world, on_relay=True) as let_go, world.pod() as pod:
        within(SOON, lambda: moved(world, on_relay=True))
        pod.signal("SIGTERM")
        within(SOON, lambda: any(event["kind"] == "daemon.ending" for event in pod.events()))
        assert at_work(world)
        let_go()
        assert pod.wait(SOON) == 0
        assert [data["exitCode"] for data in pod.of("pass.ended")] == [0]
    wait_healthy(world.host)
    assert moved(world, on_relay=True)


@rule("R11")
def test_a_container_that_starts_again_follows_the_pass_that_it_finds(world: World) -> None:
    world.node.run("remove")
    world.node.path(STAMPS).unlink(missing_ok=True)
    with kubelet_waits(world, on_relay=True) as let_go, world.pod() as pod:
        within(SOON, lambda: moved(world, on_relay=True))
        pod.kill()
        pod.start()
        within(SOON, lambda: bool(pod.of("pass.started")))
        assert pod.of("pass.started")[0]["why"] == "started by an earlier daemon"
        assert at_work(world)
        let_go()
        world.settle(pod)
        world.expect_good(pod)
        assert [data["kubeletRestarts"] for data in pod.of("pass.ended")] == [1]
        assert len(json.loads(world.node.path(STAMPS).read_text())["restarts"]) == 1


@contextmanager
def hangs_once(world: World) -> Iterator[Callable[[], bool]]:
    """The next pass hangs before it has begun; what this yields says whether one does."""
    program, theirs = world.node.path(NSENTER), world.node.path(f"{NSENTER}.theirs")
    hang, hung = "/run/hang", "/run/hung"
    program.rename(theirs)
    # A rename is one pass's alone: the next one, which is to help, is not to hang.
    program.write_text(f'#!/bin/sh\nmv {hang} {hung} && exec sleep 3600\nexec {NSENTER}.theirs "$@"\n')
    program.chmod(0o755)
    world.node.path(hang).touch()
    try:
        yield world.node.path(hung).exists
    finally:
        theirs.rename(program)
        for name in (hang, hung):
            world.node.path(name).unlink(missing_ok=True)


@rule("R4")
def test_a_pass_that_hangs_is_ended_for_a_kubelet_that_hangs_on_a_dead_relay(world: World) -> None:
    with world.rollout() as pod, hangs_once(world) as hung:
        world.node.path(GUARD).unlink()
        within(SOON, hung)
        assert at_work(world)
        world.node.fault("cri-resmgr", '{"startup": "exit"}')
        world.host.systemctl("kill", "--signal=KILL", PROXY)
        within(SOON, lambda: moved(world, on_relay=False))
        (stopped,) = (event["message"] for event in pod.events() if event["kind"] == "pass.stopped")
        assert stopped.startswith("stopping install: kubelet hangs on a relay")
        world.node.fault("cri-resmgr", "")
        within(SOON, lambda: moved(world, on_relay=True))
        world.settle(pod)
        world.expect_good(pod)
