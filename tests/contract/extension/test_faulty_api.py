"""What an API server or a network may do to the controller."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from installer.gardener.decide import FINALIZER
from installer.gardener.watchdog import Watchdog
from installer.operator.kube import connect_with
from tests.contract.extension.replica import (
    CHANGED,
    REMOVED,
    SHOOT,
    Replica,
    Start,
    secrets,
)
from tests.lib.throwaway.gardener import (
    OPERATION,
    Landscape,
)


def test_an_api_server_that_goes_and_comes(enabled: Landscape) -> None:
    world, first = enabled, secrets(enabled)
    world.seed.go_away()
    world.seed.patch(
        world.key(SHOOT),
        {"metadata": {"annotations": {OPERATION: "reconcile"}}, "spec": {"providerConfig": CHANGED}},
    )
    world.seed.come_back()
    world.seed.wait(lambda: secrets(world) != first)
    world.rest(SHOOT, "Reconcile Succeeded")


@pytest.mark.parametrize("how", ["cut", "forgotten"])
def test_a_watch_that_ends(enabled: Landscape, how: str) -> None:
    """410 Gone included: all is listed again."""
    world, first = enabled, secrets(enabled)
    if how == "forgotten":
        world.seed.forget()
    world.seed.cut_watches()
    world.ask(SHOOT, config=CHANGED)
    world.seed.wait(lambda: secrets(world) != first)
    world.rest(SHOOT, "Reconcile Succeeded")
    world.disable(SHOOT)
    world.seed.wait(
        lambda: world.extension(SHOOT).get("status", {}).get("lastOperation", {})["type"] == "Delete"
    )
    if how == "forgotten":
        world.seed.forget()
    world.seed.cut_watches()
    world.gone(SHOOT)


@pytest.mark.parametrize("how", ["cut", "forgotten"])
def test_watches_that_never_last(world: Landscape, start: Start, how: str) -> None:
    """Whatever the state in which it happens."""
    ended = threading.Event()

    def disturb() -> None:
        while not ended.wait(0.05):
            if how == "forgotten":
                world.seed.forget()
            world.seed.cut_watches()

    nemesis = threading.Thread(target=disturb)
    nemesis.start()
    try:
        start()
        world.serve(SHOOT)
        world.ask(SHOOT, config={"configs": {"fallback": "policy.Active: baloons"}})
        world.rest(SHOOT, "Reconcile Error", "False")
        world.ask(SHOOT, "migrate", CHANGED)
        world.seed.wait(lambda: world.operation(SHOOT) == "Migrate Succeeded" and not world.resource(SHOOT))
        world.ask(SHOOT, "restore")
        world.rest(SHOOT, "Restore Succeeded")
        world.nodes["n2"] = "stuck"
        world.disable(SHOOT)
        world.seed.wait(lambda: "n2" in world.health(SHOOT)[1])
        world.nodes["n2"] = "ready"
        world.gone(SHOOT)
    finally:
        ended.set()
        nemesis.join()


def test_a_storm_of_conflicts(world: Landscape, start: Start) -> None:
    world.seed.fail("PATCH", "/extensions/", code=409, times=5)
    start()
    world.serve(SHOOT)


@pytest.mark.parametrize("method", ["PATCH", "POST", "DELETE"])
def test_an_answer_that_is_lost(world: Landscape, start: Start, method: str) -> None:
    """The request had its effect."""
    for part in ("/extensions/", "/managedresources", "/secrets"):
        world.seed.fail(method, part, after=True, times=1)
    start()
    world.serve(SHOOT)
    world.disable(SHOOT)
    world.gone(SHOOT)
    assert world.story.count(f"{REMOVED} created") == 1


def test_a_mirror_that_is_late_is_not_believed(world: Landscape, start: Start) -> None:
    """The watch of ManagedResources shows nothing new, and yet the nodes are cleaned before it ends."""
    start()
    world.seed.wait(lambda: world.seed.requests["WATCH", "managedresources"])
    world.seed.fail("GET", "/managedresources", hang=True, times=1)
    world.seed.cut_watches()
    world.seed.wait(lambda: world.seed.requests["WATCH", "managedresources"] > 1)
    world.add_shoot(SHOOT)
    world.enable(SHOOT)
    world.seed.wait(lambda: world.operation(SHOOT) == "Create Succeeded")
    world.disable(SHOOT)
    world.seed.wait(lambda: world.extension(SHOOT)["metadata"].get("deletionTimestamp"))
    asked = world.seed.requests["GET", "managedresources"]
    world.seed.wait(lambda: world.seed.requests["GET", "managedresources"] > asked)
    assert FINALIZER in world.extension(SHOOT)["metadata"]["finalizers"]
    world.seed.heal()
    world.gone(SHOOT)
    assert f"{REMOVED} created" in world.story


def test_a_slow_api_server(world: Landscape, start: Start) -> None:
    world.seed.fail("PATCH", "/extensions/", delay=0.3)
    start()
    world.serve(SHOOT)


class OddClusters:
    """A client whose watch of Clusters does what nobody has foreseen."""

    def __init__(self, world: Landscape, watch: Callable[[], Iterator[Any]]) -> None:
        self._client, self._watch = connect_with(world.seed.kubeconfig().encode()), watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def watch(self, resource: Any, *arguments: Any) -> Any:
        return self._watch() if resource.plural == "clusters" else self._client.watch(resource, *arguments)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_mirror_that_breaks_ends_the_replica(world: Landscape) -> None:
    """It is started again; what nobody keeps up to date is not decided from."""

    def break_down() -> Iterator[Any]:
        raise RuntimeError("odd")

    replica = Replica(world, seed=OddClusters(world, break_down))
    replica.join()
    assert replica.ended_well is False
    assert "a thread has ended unexpectedly; this is a bug" in replica.lines


def test_a_watch_that_hangs_is_said_to_the_probes(world: Landscape, tmp_path: Path) -> None:
    """And what does its work is not: each thread reports, even while nothing happens."""
    now, hangs, lifted, alive = [0.0], threading.Event(), threading.Event(), tmp_path / "alive"
    watchdog = Watchdog(alive, lambda: now[0])

    def hang() -> Iterator[Any]:
        hangs.set()
        lifted.wait()
        yield from ()

    replica = Replica(world, seed=OddClusters(world, hang), watchdog=watchdog)
    try:
        assert hangs.wait(300)
        world.seed.wait(alive.exists)
        now[0] += 1000.0
        world.seed.wait(lambda: "hangs: clusters" in replica.lines)
        alive.unlink()
        assert watchdog.check() == ["clusters"]
        assert not alive.exists()
    finally:
        lifted.set()
        replica.stop()
