"""The breaker: what a fleet has learnt of a generation."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from installer.cluster.breaker import (
    Breaker,
    build_breaker,
    read_breaker,
    stopped,
    with_failure,
    with_success,
)
from installer.cluster.leases import breaker_name, build_lease
from installer.model.fleet import BREAKER, FleetRules
from tests.lib.fleet_bench import (
    LEASES,
    NAMESPACE,
    NEW,
    REPAIR,
    RULES,
    Store,
    anywhere,
    trio,
)

# Any character but those that are none: hypothesis need not build its table of what UTF-8 can say.
WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)
THE_BREAKER = f"{LEASES}/{breaker_name(NEW.generation)}"


def test_one_failure_of_a_small_fleet_stops_the_generation(store: Store) -> None:
    a, b, c = trio(store, anywhere())
    a.begin()
    answer = a.end(ok=False, why="the relay\ndoes not answer")
    assert answer.tripped == "generation one is stopped: it failed on node a: the relay does not answer"
    for node in (b, c):
        assert node.begin().why == answer.tripped
    assert (
        json.loads(store.objects[THE_BREAKER]["metadata"]["annotations"][BREAKER])["stopped"]
        == answer.tripped
    )
    assert b.begin(replace(NEW, generation="two")).granted
    b.end()
    assert c.begin(REPAIR).granted  # what was verified here is repaired all the same


def test_it_never_lapses_and_the_failed_node_takes_it_back(store: Store) -> None:
    a, b, _ = trio(store, anywhere())
    a.begin()
    a.end(ok=False)
    store.now += 1e6
    assert not b.begin().granted
    assert a.begin().granted  # a person has said `install --retry` there
    a.end(ok=True)
    a.held = replace(a.held, canary=True)
    a.end(ok=True)
    assert b.begin().granted


@settings(max_examples=40)
@given(failures=st.integers(0, 9), limit=st.integers(1, 5), passed=st.booleans())
def test_the_breaker_counts_to_its_limit(failures: int, limit: int, passed: bool) -> None:
    breaker = Breaker("one", passed=100.0 if passed else 0.0)
    for number in range(failures):
        breaker = with_failure(
            with_failure(breaker, f"n{number}", "x", 1000.0), f"n{number}", "again", 2000.0
        )
    rules = FleetRules(max_failures=str(limit))
    assert len(breaker.failures) == failures
    assert bool(stopped(breaker, rules, 100)) is (failures >= (limit if passed else 1))
    for number in range(failures):
        breaker = with_success(breaker, f"n{number}", 3000.0)
    assert not stopped(breaker, rules, 100)


@settings(max_examples=40)
@given(
    canaries=st.dictionaries(WORDS.filter(bool), st.integers(1, 10**9), max_size=4),
    why=WORDS,
)
def test_a_breaker_is_read_as_it_was_written(canaries: dict[str, int], why: str) -> None:
    breaker = Breaker(
        "one",
        5.0,
        {node: float(at) for node, at in canaries.items()},
        frozenset(list(canaries)[:1]),
        labelled=7,
    )
    breaker = with_failure(breaker, "b", why, 7.0)
    assert read_breaker("one", build_breaker(breaker, "ns", RULES, 3), now=1e9) == breaker


@pytest.mark.parametrize(
    "said",
    [
        "",
        "{}",
        "[]",
        '{"canaries": "no", "failures": {}, "ring": "", "begun": ""}',
        '{"canaries": {}, "failures": {}, "ring": "", "begun": "", "labelled": Infinity}',
        "[" * 100_000,
    ],
    ids=lambda said: said[:20],
)
def test_nobody_begins_on_a_breaker_that_is_not_understood(store: Store, said: str) -> None:
    a, _, _ = trio(store, anywhere())
    store.put(THE_BREAKER, build_lease(breaker_name("one"), NAMESPACE, "one", annotations={BREAKER: said}))
    answer = a.begin()
    assert not answer.granted
    assert "rollout retry" in answer.why
    assert a.begin(REPAIR).granted


def test_a_breaker_that_many_have_tripped_fits_into_an_annotation() -> None:
    """Annotations of an object have 256 KiB together (Kubernetes API, TotalAnnotationSizeLimitB)."""
    breaker = Breaker("one", canaries={f"a-rather-long-name-of-a-node-{at}": 1.0 for at in range(1000)})
    for at in range(1000):
        breaker = with_failure(breaker, f"a-rather-long-name-of-a-node-{at}", "ü" * 400, 1.0)
    said = build_breaker(breaker, NAMESPACE, RULES, 10_000)["metadata"]["annotations"]
    assert sum(len(text.encode()) for text in said.values()) < 200 << 10


@pytest.mark.parametrize("asks_first", ["another", "the canary"])
def test_a_breaker_that_has_lost_its_label_is_found_again(store: Store, asks_first: str) -> None:
    """Without it, it is in no list of nodes; they would find it in their way for ever."""
    a, b, _ = trio(store)
    a.begin()
    lease = store.objects[THE_BREAKER]
    store.put(THE_BREAKER, {**lease, "metadata": {**lease["metadata"], "labels": {}}})
    if asks_first == "another":
        assert b.begin().detail == ": the canaries (a)"
    assert a.end(ok=False).told
    assert "it failed on node a" in b.begin().why
