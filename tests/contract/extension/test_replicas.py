"""Replicas: who acts, and who goes on when one is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from installer.gardener.leases import LEADER
from installer.operator.api import LEASES as LEASE_RESOURCE
from installer.operator.api import ApiError
from installer.operator.kube import connect_with
from tests.contract.extension.replica import (
    CASES,
    CHANGED,
    INSTALLED,
    REMOVED,
    SHOOT,
    Replica,
    Start,
    secrets,
)
from tests.lib.extras import EXTENSION
from tests.lib.throwaway.fleet import LEASES
from tests.lib.throwaway.gardener import EVENTS, Landscape
from tests.lib.throwaway.kubeserver import Name


def test_one_of_two_replicas_acts_and_the_other_follows(world: Landscape, start: Start) -> None:
    first, second = start("replica-1"), start("replica-2")
    world.serve(SHOOT)
    leader = world.seed.get(Name(LEASES, "extension", "cri-resmgr-extension-leader-election"))
    held_by = leader["spec"]["holderIdentity"]
    world.seed.wait(lambda: world.seed.find(EVENTS, SHOOT))  # Events come after what they report
    acted = {each["reportingInstance"] for each in world.seed.find(EVENTS, SHOOT)}
    assert acted == {held_by}
    (first if held_by == "replica-1" else second).stop()
    world.disable(SHOOT)
    world.gone(SHOOT)
    acted = {each["reportingInstance"] for each in world.seed.find(EVENTS, SHOOT)}
    assert acted == {"replica-1", "replica-2"}
    heart = world.seed.get(Name(LEASES, "extension", "gardener-extension-heartbeat"))
    assert heart["spec"]["leaseDurationSeconds"] == 30


class Mortal:
    """A connection that dies with its replica: after `lives` writes nothing goes through it any more."""

    def __init__(self, kubeconfig: str, lives: int) -> None:
        self._client, self._lives = connect_with(kubeconfig.encode()), lives
        self.died = threading.Event()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if self.died.is_set():
                raise ApiError(0, "killed")
            found = getattr(self._client, name)(*arguments, **options)
            if name in ("create", "merge", "delete") and arguments[0] != LEASE_RESOURCE:
                self._lives -= 1
                if self._lives == 0:
                    self.died.set()
                    raise ApiError(0, "killed")
            return found

        return call


def outlive(world: Landscape, lives: int, reached: Callable[[], bool]) -> int:
    """Replicas one after another, each gone after `lives` writes, until it is so; how many they were."""
    for count in range(1, 30):
        mortal = Mortal(world.seed.kubeconfig(), lives)
        replica = Replica(world, seed=mortal)
        world.seed.wait(lambda died=mortal.died: died.is_set() or reached())  # type: ignore[misc]
        mortal.died.set()
        replica.stop()
        if reached():
            return count
    raise AssertionError((world.story, world.extension(SHOOT)))


@pytest.mark.parametrize("lives", [1, 2, 5])
def test_killed_after_every_few_writes(world: Landscape, lives: int) -> None:
    """The next replica goes on from there."""
    world.add_shoot(SHOOT)
    world.enable(SHOOT)
    replicas = outlive(world, lives, lambda: world.operation(SHOOT).endswith(" Succeeded"))
    world.disable(SHOOT)
    replicas += outlive(world, lives, lambda: not world.extension(SHOOT) and not world.resource(SHOOT))
    assert replicas >= 3
    assert world.story == [
        f"{INSTALLED} created",
        f"{INSTALLED} deleted",
        f"{REMOVED} created",
        f"{REMOVED} deleted",
    ]


@pytest.mark.parametrize("lives", [1, 2])
def test_killed_while_a_shoot_moves_to_another_seed(world: Landscape, lives: int) -> None:
    world.add_shoot(SHOOT)
    world.enable(SHOOT)
    outlive(world, lives, lambda: world.operation(SHOOT).endswith(" Succeeded"))
    written = secrets(world)
    world.ask(SHOOT, "migrate")
    replicas = outlive(
        world, lives, lambda: not world.resource(SHOOT) and world.operation(SHOOT) == "Migrate Succeeded"
    )
    world.ask(SHOOT, "restore")
    restored = "Restore Succeeded", "Reconcile Succeeded"  # by the next replica
    replicas += outlive(world, lives, lambda: world.operation(SHOOT) in restored)
    assert replicas >= 4
    assert secrets(world) == written
    assert world.story == [f"{INSTALLED} created"]


def test_the_verb_works_until_it_is_told_to_end(world: Landscape, tmp_path: Path) -> None:
    """As a process, with the kubeconfig that it is given; each line of its output is JSON."""
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(world.seed.kubeconfig())
    place = {"KUBECONFIG": str(kubeconfig), "POD_NAME": "pod-1", "POD_NAMESPACE": "extension"}
    place["PYTHONPATH"] = str(EXTENSION)
    program = Path(sys.executable).parent / "cri-resmgr-installer"
    files = f"--values={CASES / 'values.yaml'}", f"--provider-config={CASES / 'deployment.yaml'}"
    world.add_shoot(SHOOT)
    world.enable(SHOOT)
    with (tmp_path / "output").open("w") as output:
        process = subprocess.Popen(
            [program, "--output=json", "extension", *files], env={**os.environ, **place}, stdout=output
        )
    try:
        world.seed.wait(lambda: world.operation(SHOOT) == "Create Succeeded")
        process.terminate()
        assert process.wait(300) == 128 + signal.SIGTERM
    finally:
        process.kill()
    said = [json.loads(line)["message"] for line in (tmp_path / "output").read_text().splitlines()]
    assert (
        f"{SHOOT}/cri-resmgr-extension: Create Succeeded: The ManagedResource of cri-resmgr is written."
        in said
    )
    lease = world.seed.get(Name(LEASES, "extension", "cri-resmgr-extension-leader-election"))
    assert lease["spec"]["holderIdentity"] == ""  # nobody has to wait for it


class Hanging:
    """A connection whose requests for the Lease get no answer from `hangs` on."""

    def __init__(self, kubeconfig: str) -> None:
        self._client = connect_with(kubeconfig.encode())
        self.hangs, self.lifted = threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if self.hangs.is_set() and LEADER in arguments:
                self.lifted.wait()
                raise ApiError(0, "no answer")
            return getattr(self._client, name)(*arguments, **options)

        return call


class Recorded:
    """A connection that notes each write, and holds one until it is let go."""

    def __init__(self, kubeconfig: str) -> None:
        self._client = connect_with(kubeconfig.encode())
        self.writes = 0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.writes += name in ("create", "merge", "delete")
            return getattr(self._client, name)(*arguments, **options)

        return call


def test_a_replica_that_cannot_know_whether_it_leads_writes_nothing(world: Landscape, start: Start) -> None:
    """Its request for the Lease hangs, and does not come back: it ends before another one begins."""
    leases, seed = Hanging(world.seed.kubeconfig()), Recorded(world.seed.kubeconfig())
    first = Replica(world, "replica-1", seed=seed, leases=leases)
    try:
        world.seed.wait(lambda: "replica-1 leads" in first.lines)
        world.serve(SHOOT)
        second = start("replica-2")
        leases.hangs.set()
        world.seed.wait(lambda: "replica-2 leads" in second.lines)
        written = seed.writes
        world.ask(SHOOT, config=CHANGED)
        world.rest(SHOOT, "Reconcile Succeeded")
        world.disable(SHOOT)
        world.gone(SHOOT)
        assert seed.writes == written
        world.seed.wait(lambda: first.ended_well is False)
    finally:
        leases.lifted.set()
        first.join()
