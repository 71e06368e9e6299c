"""A pause, and an API server that does not serve."""

from __future__ import annotations

from dataclasses import replace

import pytest

from installer.cluster.kubeapi import Answer
from installer.model.hold import PAUSE_ANNOTATION
from installer.operator.rollout import build_pause
from tests.lib.fleet_bench import (
    DAEMONSET,
    REPAIR,
    THE_FLEET,
    Store,
    anywhere,
    requests_of,
    trio,
)


def test_a_pause_stops_what_has_not_begun(store: Store) -> None:
    a, b, _ = trio(store)
    a.begin(REPAIR)
    store.pause("a disk is slow")
    a.end()
    answer = b.begin(REPAIR)
    assert (answer.granted, answer.why) == (False, "the rollout is paused: a disk is slow")
    assert 20 <= answer.wait <= 60
    store.pause(None)
    assert b.begin(REPAIR).granted


def test_a_node_repeats_only_the_beginning_of_what_leases_say(store: Store) -> None:
    """They may hold hundreds of kilobytes, and each node would log them."""
    a, b, _ = trio(store)
    a.begin(REPAIR)
    (lease,) = [path for path in store.objects if "/permit-" in path]
    held = store.objects[lease]["spec"] | {"holderIdentity": f"{'n' * 200_000}/uid"}
    store.put(lease, store.objects[lease] | {"spec": held})
    assert len(b.begin(REPAIR).detail) == 1024
    store.pause("x" * 200_000)
    assert len(b.begin(REPAIR).why) == 1024


@pytest.mark.parametrize(
    ("answer", "denied", "wait"),
    [
        (Answer(0, failure="no answer in time"), False, 0),
        (Answer(429, failure="429", retry_after=30), False, 30),
        (Answer(503, failure="503"), False, 0),
        (Answer(401, failure="401"), True, 0),
        (Answer(403, failure="403"), True, 0),
        (Answer(404, failure="404"), True, 0),
        (Answer(403, failure='403: leases "permit-1" is forbidden: exceeded quota: small'), False, 0),
    ],
)
def test_without_an_answer_planned_work_waits(
    store: Store, answer: Answer, denied: bool, wait: float
) -> None:
    a, _, _ = trio(store)
    store.away = answer
    said = a.begin()
    assert (said.granted, said.failed, said.denied, said.wait) == (False, True, denied, wait)
    assert str(answer.failure) in said.why


def test_a_removal_goes_on_when_the_daemonset_is_gone(store: Store) -> None:
    a, b, _ = trio(store)
    a.begin(REPAIR)
    a.end()
    del store.objects[DAEMONSET]
    store.now += 301  # so that its size is asked for again
    assert a.begin(REPAIR).denied
    assert a.begin(replace(REPAIR, removes=True)).granted
    assert not b.begin(replace(REPAIR, removes=True)).granted


def test_a_pause_stays_where_nodes_leave_the_size(store: Store) -> None:
    store.pause("lunch")
    a, _, _ = trio(store)
    assert not a.begin(REPAIR).granted
    store.pause(None)
    assert a.begin(REPAIR).granted
    store.pause("lunch")
    store.now += 301
    a.end(work=REPAIR)
    assert a.begin(REPAIR).why == "the rollout is paused: lunch"


def without_label(store: Store, **annotations: str) -> None:
    """The fleet's Lease as another tool has left it. No node finds it by a list."""
    store.put(THE_FLEET, {"kind": "Lease", "metadata": {"name": "fleet", "annotations": annotations}})


def test_a_pause_stops_nodes_also_where_the_lease_has_lost_its_label(store: Store) -> None:
    without_label(store)
    store.call("PATCH", THE_FLEET, build_pause("a Friday"))
    store.size(0)  # whatever nodes do to that Lease themselves
    assert trio(store)[0].begin(REPAIR).why == "the rollout is paused: a Friday"


def test_a_node_finds_a_pause_that_is_not_listed_and_shows_it_to_the_others(store: Store) -> None:
    without_label(store, **{PAUSE_ANNOTATION: "a Friday"})
    a, b, _ = trio(store)
    assert a.begin(REPAIR).why == "the rollout is paused: a Friday"
    assert store.objects[THE_FLEET]["metadata"]["labels"]
    assert requests_of(store, b, REPAIR) == ["GET leases"]
    assert store.holders() == []


def test_a_failure_is_told_while_a_pause_is_not_listed(store: Store) -> None:
    a, b, _ = trio(store, anywhere())
    a.begin()
    without_label(store, **{PAUSE_ANNOTATION: "a Friday"})
    assert a.end(ok=False).tripped
    store.pause(None)
    assert "it failed on node a" in b.begin().why
