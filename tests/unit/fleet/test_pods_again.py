"""The permit stays with a node until the pods that its restart of kubelet has flipped are Ready again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from installer.cluster.kubeapi import Answer
from installer.cluster.pods import find_ready, find_unready, flips_pods
from installer.model.hold import CLUSTER_MEMORY
from tests.faults.fleets.sim import Clock, SimStore
from tests.lib.fleet_bench import PODS
from tests.lib.member_bench import ANY, MemberNode


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> SimStore:
    store = SimStore(clock)
    store.size(3)
    return store


def a_node(store: SimStore, clock: Clock, version: str = "v1.33.5-gke.1", **more: object) -> MemberNode:
    node = MemberNode(store, clock, "node", **more)  # type: ignore[arg-type]
    node.kubelet_version = version
    node.sees()
    return node


def events(node: MemberNode) -> list[str]:
    return [event.message for event in node.said if event.kind == "permit.pods"]


def test_the_permit_goes_back_when_the_pods_are_ready_again(store: SimStore, clock: Clock) -> None:
    node = a_node(store, clock)
    for name, ready in (("web", True), ("db", True), ("sick", False)):
        store.pod("node", name, ready=ready)
    store.pod("elsewhere", "other", ready=True)
    node.is_permitted()
    for name in ("web", "db", "sick"):
        store.pod("node", name, ready=False)
    node.works()
    node.is_ready(True)
    node.goes_on(12)
    assert store.holders() == ["node/uid-node"]
    assert events(node) == [
        "the permit waits, for at most 60 s, until these pods are Ready again: theirs/web, theirs/db"
    ]
    store.pod("node", "web", ready=True)
    node.goes_on(12)
    assert store.holders() == ["node/uid-node"]
    store.pod("node", "db", ready=True)
    node.goes_on(12)
    assert store.holders() == []
    assert len(events(node)) == 1


@pytest.mark.parametrize(
    "goes",
    [
        lambda store: store.objects.__delitem__(f"{PODS}/web"),
        lambda store: store.pod("node", "web", ready=False, uid="another"),
        lambda store: store.pod("node", "web", ready=False, deletionTimestamp="2026-01-01T00:00:00Z"),
        lambda store: store.pod("node", "web", ready=False, phase="Succeeded"),
    ],
    ids=["gone", "another of its name", "ends", "has ended"],
)
def test_a_pod_that_does_not_come_back_is_not_waited_for(goes: object, store: SimStore, clock: Clock) -> None:
    node = a_node(store, clock)
    store.pod("node", "web", ready=True)
    node.is_permitted()
    goes(store)  # type: ignore[operator]
    node.works()
    node.is_ready(True)
    node.goes_on(12)
    assert store.holders() == []


def test_the_wait_has_a_bound(store: SimStore, clock: Clock) -> None:
    node = a_node(store, clock)
    store.pod("node", "web", ready=True)
    node.is_permitted()
    store.pod("node", "web", ready=False)
    node.works()
    node.is_ready(True)
    node.goes_on(50)
    assert store.holders() == ["node/uid-node"]
    node.goes_on(40)
    assert store.holders() == []
    assert events(node)[1:] == [
        "the permit goes back although these pods are not Ready again after 60 s: theirs/web"
    ]


@pytest.mark.parametrize("when", ["before", "after"])
def test_without_the_right_the_permit_goes_back_with_the_node_and_that_is_said(
    when: str, store: SimStore, clock: Clock
) -> None:
    node = a_node(store, clock)
    store.pod("node", "web", ready=True)
    denied = Answer(403, failure="pods is forbidden")
    if when == "before":
        store.away, store.away_for = denied, PODS
    node.is_permitted()
    store.away, store.away_for = denied, PODS
    store.pod("node", "web", ready=False)
    node.works()
    node.is_ready(True)
    node.goes_on(12)
    assert store.holders() == []
    said = [event.message for event in node.said if event.kind == "cluster.denied"]
    assert said == ["the API server denies requests for pods: pods is forbidden; the daemon keeps working"]


def test_a_kubelet_that_keeps_its_pods_ready_makes_no_request_for_them(store: SimStore, clock: Clock) -> None:
    node = a_node(store, clock, "v1.35.0")
    store.pod("node", "web", ready=True)
    node.is_permitted()
    store.pod("node", "web", ready=False)
    node.works()
    node.is_ready(True)
    node.goes_on(12)
    assert store.holders() == []
    assert ("GET", PODS) not in store.requests


def test_a_person_who_does_not_want_the_wait_has_none(store: SimStore, clock: Clock) -> None:
    node = a_node(store, clock, rules=replace(ANY, pod_seconds=0.0))
    node.is_permitted()
    node.works()
    assert ("GET", PODS) not in store.requests


def test_a_daemon_that_starts_meanwhile_still_knows_the_pods(store: SimStore, clock: Clock) -> None:
    node = a_node(store, clock)
    store.pod("node", "web", ready=True)
    node.is_permitted()
    store.pod("node", "web", ready=False)
    node.busy = True
    node.goes_on()
    assert node.files.read(CLUSTER_MEMORY)
    later = a_node(store, clock, files=node.files)  # killed with its container, it said nothing
    later.is_ready(True)
    later.goes_on(12)
    assert store.holders() == ["node/uid-node"]
    store.pod("node", "web", ready=True)
    later.goes_on(12)
    assert store.holders() == []


@pytest.mark.parametrize(
    ("version", "flips"),
    [("v1.34.9", True), ("v1.9.0", True), ("v1.35.0-alpha.1", False), ("v1.40.1", False), ("", False)],
)
def test_kubelets_up_to_1_34_flip_their_pods(version: str, flips: bool) -> None:
    assert flips_pods({"status": {"nodeInfo": {"kubeletVersion": version}}}) is flips


def test_a_server_that_makes_no_table_is_understood() -> None:
    def pod(name: str, ready: str) -> dict[str, object]:
        metadata = {"namespace": "theirs", "name": name, "uid": f"{name}-uid"}
        return {"metadata": metadata, "status": {"conditions": [{"type": "Ready", "status": ready}]}}

    pods = {"items": [pod("web", "True"), pod("db", "False"), pod("ours", "True")]}
    assert find_ready(pods, "theirs/ours") == ("web-uid",)
    assert find_unready(pods, ("web-uid", "db-uid")) == ("theirs/db",)
    assert find_unready({"rows": [{"cells": None, "object": None}]}, ("x",)) == ()
