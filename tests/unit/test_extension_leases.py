"""Leader election: never two at a time, whatever the API server does, and never nobody for long."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from installer.gardener.leases import LEADER, Leadership
from installer.operator.api import MERGE, ApiError, KubeApi, Resource
from tests.lib.throwaway.apiserver import merge


class Leases(KubeApi):
    """The Leases of an API server that may be away, or gets a write only after its sender has given up."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, Any]] = {}
        self.away = self.slow = False
        self._late: list[tuple[str, Mapping[str, Any]]] = []
        self._version = 0

    def get(self, resource: Resource, namespace: str, name: str) -> Mapping[str, Any]:
        self._answer()
        if name not in self.found:
            raise ApiError(404, "not found")
        return self.found[name]

    def create(self, resource: Resource, namespace: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        self._answer()
        name = body["metadata"]["name"]
        if name in self.found:
            raise ApiError(409, "exists")
        return self._store(name, dict(body))

    def merge(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        patch: Mapping[str, Any],
        status: bool = False,
        content_type: str = MERGE,
    ) -> Mapping[str, Any]:
        if self.slow:
            self._late.append((name, patch))
            raise ApiError(0, "no answer in time")
        self._answer()
        return self._merge(name, patch)

    def arrive(self) -> None:
        """What was sent reaches the server."""
        self.slow = False
        while self._late:
            with suppress(ApiError):
                self._merge(*self._late.pop(0))

    def _merge(self, name: str, patch: Mapping[str, Any]) -> Mapping[str, Any]:
        old = self.found[name]
        wanted = patch.get("metadata", {}).get("resourceVersion", old["metadata"]["resourceVersion"])
        if wanted != old["metadata"]["resourceVersion"]:
            raise ApiError(409, "modified")
        return self._store(name, merge(old, dict(patch)))

    def _answer(self) -> None:
        if self.away:
            raise ApiError(0, "no answer")

    def _store(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        self._version += 1
        metadata = {**body["metadata"], "resourceVersion": str(self._version)}
        self.found[name] = {**body, "metadata": metadata}
        return self.found[name]


class World:
    def __init__(self, replicas: int = 2) -> None:
        self.time, self.api = 0.0, Leases()
        self.replicas = [
            Leadership(self.api, "extension", f"replica-{number}", clock=lambda: self.time)
            for number in range(replicas)
        ]

    @property
    def holders(self) -> list[int]:
        return [number for number, each in enumerate(self.replicas) if each.held()]


def test_the_first_one_leads_and_the_other_one_waits() -> None:
    world = World()
    for each in world.replicas:
        each.attempt()
    assert world.holders == [0]


def test_who_is_gone_is_followed_when_his_lease_is_over() -> None:
    world = World()
    world.replicas[0].attempt()
    world.replicas[1].attempt()
    world.time = 14
    world.replicas[1].attempt()
    assert world.holders == []
    world.time = 16
    world.replicas[1].attempt()
    assert world.holders == [1]
    assert world.api.found[LEADER]["spec"]["leaseTransitions"] == 1


def test_who_cannot_renew_stops_before_another_one_begins() -> None:
    world = World()
    world.replicas[0].attempt()
    world.replicas[1].attempt()
    world.api.away = True
    world.time = 10
    world.replicas[0].attempt()
    assert world.holders == []


def test_who_ends_gives_it_up() -> None:
    world, stop = World(), threading.Event()
    world.replicas[0].attempt()
    stop.set()
    world.replicas[0].keep(stop)
    world.replicas[1].attempt()
    assert world.holders == [1]


def test_a_release_that_arrives_late_empties_nobody_elses_lease() -> None:
    world, stop = World(3), threading.Event()
    for each in world.replicas:
        each.attempt()
    world.api.slow = True
    stop.set()
    world.replicas[0].keep(stop)
    world.api.slow = False
    world.time = 16
    world.replicas[1].attempt()
    assert world.holders == [1]
    world.api.arrive()
    world.replicas[2].attempt()
    assert world.holders == [1]


STORY = ["try-0", "try-1", "end-0", "end-1", "away", "back", "slow", "arrive"]


@given(st.lists(st.tuples(st.sampled_from(STORY), st.integers(0, 6)), max_size=60))
def test_there_are_never_two(story: list[tuple[str, int]]) -> None:
    world, stop = World(), threading.Event()
    stop.set()
    for what, seconds in story:
        world.time += seconds
        if what.startswith("try"):
            world.replicas[int(what[-1])].attempt()
        elif what.startswith("end"):
            world.replicas[int(what[-1])].keep(stop)
        elif what == "arrive":
            world.api.arrive()
        elif what == "slow":
            world.api.slow = True
        else:
            world.api.away = what == "away"
        assert len(world.holders) <= 1
