"""Permits, brake, canaries and freeze: what one node is told, and what it writes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from installer.fleet.ask import Ask, FleetContext
from installer.fleet.brake import Brake, build_brake, read_brake, stopped, with_failure, with_success
from installer.fleet.objects import FREEZE, Member, Permit, brake_name, permit_name, read_permits, share_of
from installer.fleet.overview import build_pause, build_resume, build_rollout, to_retry
from installer.fleet.permits import choose
from installer.host.kubeapi import Answer
from installer.model.fleet import FleetAnswer, FleetFacts, FleetRequest, FleetRules
from tests.fleet_bench import (
    CONFIG_MAPS,
    DAEMONSET,
    LEASES,
    NAMESPACE,
    NEW,
    REPAIR,
    RULES,
    Node,
    Store,
    anywhere,
)

BRAKE = f"{CONFIG_MAPS}/{brake_name(NEW.generation)}"


@pytest.fixture
def store() -> Store:
    store = Store()
    store.size(3)
    return store


def trio(store: Store, rules: FleetRules = RULES) -> tuple[Node, Node, Node]:
    return Node(store, "a", rules), Node(store, "b", rules), Node(store, "c", rules)


# -- permits ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "nodes", "share"),
    [("1%", 3, 1), ("1%", 10_000, 100), ("1%", 199, 1), ("5", 3, 5), ("100%", 7, 7)],
)
def test_a_share_is_a_number_or_a_percentage_and_at_least_one(text: str, nodes: int, share: int) -> None:
    assert share_of(text, nodes) == share


@settings(max_examples=60)
@given(
    held=st.dictionaries(
        st.integers(0, 6), st.tuples(st.sampled_from("abcdef"), st.integers(-5, 5)), max_size=7
    ),
    limit=st.integers(1, 5),
    start=st.floats(0, 0.99),
)
def test_a_node_takes_a_permit_only_where_there_is_room(
    held: dict[int, tuple[str, int]], limit: int, start: float
) -> None:
    permits = [
        Permit(permit_name(index), f"{node}/{node}", expires=100.0 + left, version="1")
        for index, (node, left) in held.items()
    ]
    at_work = [permit for permit in permits if permit.is_held(100.0)]
    choice = choose(permits, Member("me", "me"), limit, 100.0, lambda: start)
    assert bool(choice.free) is (len(at_work) < limit)
    assert not {permit.name for permit in choice.free} & {permit.name for permit in at_work}
    for permit in at_work:
        node, _, uid = permit.holder.partition("/")
        found = choose(permits, Member(node, uid), limit, 100.0, lambda: start)
        assert found.mine
        assert not found.free


def test_undisturbed_it_takes_five_requests(store: Store) -> None:
    (node, _, _) = trio(store, anywhere())
    Node(store, "z", anywhere()).begin(replace(NEW, restarts_kubelet=False))  # the brake is there
    store.requests.clear()
    assert node.begin().granted
    assert store.holders() == ["a/uid-a"]
    node.end()
    assert store.holders() == []
    assert len(store.requests) == 5


def test_the_next_node_waits_until_the_permit_is_given_back(store: Store) -> None:
    a, b, _ = trio(store)
    assert a.begin(REPAIR).granted
    answer = b.begin(REPAIR)
    assert (answer.granted, answer.why) == (False, "the permit to restart kubelet is taken")
    assert answer.detail == ", by a"
    store.requests.clear()
    b.begin(REPAIR)
    assert len(store.requests) == 1  # nothing more is asked for
    a.end()
    assert b.begin(REPAIR).granted


def test_a_permit_is_found_again_and_never_two_are_taken(store: Store) -> None:
    store.size(10_000)
    a, _, _ = trio(store)
    first = a.begin(REPAIR)
    assert a.begin(REPAIR).permit == first.permit
    assert store.holders() == ["a/uid-a"]


def test_a_permit_expires_by_the_servers_clock(store: Store) -> None:
    a, b, _ = trio(store)
    a.begin(REPAIR)
    b.skew = 1e6
    assert not b.begin(REPAIR).granted
    store.now += RULES.hold_seconds + 1
    assert b.begin(REPAIR).granted
    assert a.end().released  # it has another holder, and stays with it
    assert store.holders() == ["b/uid-b"]


@pytest.mark.parametrize("change", ["gone", "rebuilt"])
def test_the_permit_of_a_node_that_is_gone_is_taken_over(store: Store, change: str) -> None:
    a, b, _ = trio(store)
    a.begin(REPAIR)
    store.now += 200
    assert not b.begin(REPAIR).granted
    if change == "gone":
        del store.objects["/api/v1/nodes/a"]
    else:
        store.node("a", uid="another")
    assert b.begin(REPAIR).granted
    assert store.holders() == ["b/uid-b"]


def test_a_node_that_was_rebuilt_needs_nobodys_help(store: Store) -> None:
    a, _, _ = trio(store)
    a.begin(REPAIR)
    a.uid = "another"
    assert a.begin(REPAIR).granted
    assert store.holders() == ["a/another"]


def test_of_two_that_take_the_same_permit_one_waits(store: Store) -> None:
    a, b, _ = trio(store)

    def competes() -> None:
        b.begin(REPAIR)

    store.before_write = competes
    assert not a.begin(REPAIR).granted
    assert store.holders() == ["b/uid-b"]
    b.end()
    store.before_write = competes  # now the Lease exists
    assert not a.begin(REPAIR).granted


# -- freeze, and an API server that does not serve ------------------------------------------------


def test_a_freeze_stops_what_has_not_begun(store: Store) -> None:
    a, b, _ = trio(store)
    a.begin(REPAIR)
    store.objects[DAEMONSET]["metadata"]["annotations"][FREEZE] = "a disk is slow"
    a.end()
    answer = b.begin(REPAIR)
    assert (answer.granted, answer.why) == (False, "the rollout is frozen: a disk is slow")
    assert 20 <= answer.wait <= 60
    del store.objects[DAEMONSET]["metadata"]["annotations"][FREEZE]
    assert b.begin(REPAIR).granted


@pytest.mark.parametrize(
    ("answer", "powerless", "wait"),
    [
        (Answer(0, failure="no answer in time"), False, 0),
        (Answer(429, failure="429", retry_after=30), False, 30),
        (Answer(503, failure="503"), False, 0),
        (Answer(401, failure="401"), True, 0),
        (Answer(403, failure="403"), True, 0),
        (Answer(404, failure="404"), True, 0),
    ],
)
def test_without_an_answer_planned_work_waits(
    store: Store, answer: Answer, powerless: bool, wait: float
) -> None:
    a, _, _ = trio(store)
    store.away = answer
    said = a.begin()
    assert (said.granted, said.failed, said.powerless, said.wait) == (False, True, powerless, wait)
    assert str(answer.failure) in said.why


def test_a_removal_goes_on_when_the_daemonset_is_gone(store: Store) -> None:
    a, b, _ = trio(store)
    a.begin(REPAIR)
    a.end()
    del store.objects[DAEMONSET]
    assert a.begin(REPAIR).powerless
    assert a.begin(replace(REPAIR, removes=True)).granted
    assert not b.begin(replace(REPAIR, removes=True)).granted


# -- brake ------------------------------------------------------------------------------------


def test_one_failure_of_a_small_fleet_stops_the_generation(store: Store) -> None:
    a, b, c = trio(store, anywhere())
    a.begin()
    answer = a.end(ok=False, why="the relay\ndoes not answer")
    assert answer.tripped == "the brake was tripped by node a: the relay does not answer"
    for node in (b, c):
        assert node.begin().why == answer.tripped
    assert store.objects[BRAKE]["data"]["stopped"] == answer.tripped
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
def test_the_brake_counts_to_its_limit(failures: int, limit: int, passed: bool) -> None:
    brake = Brake("one", passed=100.0 if passed else 0.0)
    for number in range(failures):
        brake = with_failure(with_failure(brake, f"n{number}", "x", 1000.0), f"n{number}", "again", 2000.0)
    rules = FleetRules(max_failures=str(limit))
    assert len(brake.failures) == failures
    assert bool(stopped(brake, rules, 100)) is (failures >= (limit if passed else 1))
    for number in range(failures):
        brake = with_success(brake, f"n{number}", 3000.0)
    assert not stopped(brake, rules, 100)


@settings(max_examples=40)
@given(
    canaries=st.dictionaries(st.text(min_size=1, max_size=5), st.integers(1, 10**9), max_size=4),
    why=st.text(max_size=50),
)
def test_a_brake_is_read_as_it_was_written(canaries: dict[str, int], why: str) -> None:
    brake = Brake(
        "one",
        "labelled",
        5.0,
        {node: float(at) for node, at in canaries.items()},
        frozenset(list(canaries)[:1]),
    )
    brake = with_failure(brake, "b", why, 7.0)
    assert read_brake("one", build_brake(brake, "ns", RULES, 3)) == brake


@pytest.mark.parametrize("data", [None, {}, {"canaries": "no", "failures": "{}", "ring": "", "begun": ""}])
def test_nobody_begins_on_a_brake_that_is_not_understood(store: Store, data: Any) -> None:
    a, _, _ = trio(store, anywhere())
    store.put(BRAKE, {"metadata": {"name": brake_name("one")}, "data": data})
    answer = a.begin()
    assert not answer.granted
    assert "rollout retry" in answer.why


# -- canaries ---------------------------------------------------------------------------------


def test_the_others_wait_for_the_canary_and_while_it_is_watched(store: Store) -> None:
    a, b, c = trio(store)
    assert a.begin().canary
    a_again = b.begin()
    assert not a_again.granted
    store.now += 20
    a.end()
    answer = b.begin()
    assert (answer.granted, answer.why) == (False, "canaries go first")
    assert answer.detail == ": they are watched for 300 s more"
    assert 300 <= answer.wait <= 302
    store.now += 299
    assert not c.begin().granted
    store.now += 2
    assert b.begin().granted
    assert not b.held.canary


def test_a_generation_that_restarts_nothing_is_not_watched(store: Store) -> None:
    a, b, _ = trio(store)
    mild = replace(NEW, restarts_kubelet=False, soaks=False)
    assert a.begin(mild).canary
    waits = b.begin(mild)
    assert (waits.why, waits.detail) == ("canaries go first", ": a")
    a.end(work=mild)
    assert b.begin(mild).granted
    assert store.holders() == []


def test_labelled_nodes_go_first(store: Store) -> None:
    a, b, _ = trio(store)
    chosen = Node(store, "chosen", canary=True)
    assert "ring=canary" in a.begin().detail
    assert chosen.begin().canary
    chosen.end()
    store.now += 301
    assert b.begin().granted


def test_where_no_labelled_node_comes_another_one_goes_first(store: Store) -> None:
    a, b, _ = trio(store)
    Node(store, "chosen", canary=True)
    assert not a.begin().granted
    store.now += 901
    assert a.begin().canary
    assert not b.begin().granted


@pytest.mark.parametrize("end", ["dies", "refused"])
def test_a_canary_that_tells_nothing_is_replaced(store: Store, end: str) -> None:
    a, b, _ = trio(store)
    a.begin()
    if end == "dies":
        store.now += 901
    else:
        a.end(ok=None)
    assert b.begin().canary


def test_a_canary_that_dies_beside_others_holds_nobody_up(store: Store) -> None:
    store.size(200)
    a, b, c = trio(store)
    a.begin()
    b.begin()
    a.end()
    assert not c.begin().granted
    store.now += 901
    assert not c.begin().granted  # now it is known that the canaries are through
    store.now += 301
    assert c.begin().granted


def test_the_failure_of_one_canary_stops_a_large_fleet(store: Store) -> None:
    store.size(10_000)
    a, b, _ = trio(store)
    a.begin()
    a.end(ok=False)
    assert "tripped by node a" in b.begin().why


# -- in how few requests --------------------------------------------------------------------------


def asked(store: Store, rules: FleetRules, facts: FleetFacts | None) -> tuple[FleetAnswer, list[str]]:
    """The first question of a node, and its requests."""
    store.requests.clear()
    fleet = FleetContext("b", NAMESPACE, DAEMONSET)
    request = FleetRequest("uid-b", rules, facts=facts)
    answer = Ask(fleet, request, store, lambda: store.now, lambda: 0.5).begin(NEW)
    return answer, [f"{method} {path.rpartition('/')[2]}" for method, path in store.requests]


def test_a_daemonset_that_was_seen_just_now_is_not_asked_for_again(store: Store) -> None:
    answer, requests = asked(store, anywhere(), FleetFacts(3, 3))
    assert answer.granted
    assert "GET cri-resmgr-installer" not in requests
    assert "GET cri-resmgr-installer" in asked(store, anywhere(), None)[1]


def test_a_freeze_that_was_seen_just_now_is_believed(store: Store) -> None:
    answer, _ = asked(store, anywhere(), FleetFacts(3, 3, "lunch"))
    assert (answer.granted, answer.why) == (False, "the rollout is frozen: lunch")


def test_to_hear_that_all_permits_are_taken_is_one_request(store: Store) -> None:
    """And so it knows how long the queue is, as who has asked for the DaemonSet does."""
    Node(store, "a", anywhere()).begin()
    store.size(300, 200)
    rules = anywhere(concurrent_restarts="1")
    answer, requests = asked(store, rules, FleetFacts(300, 200))
    assert (requests, answer.why) == (["GET leases"], "the permit to restart kubelet is taken")
    assert answer == asked(store, rules, None)[0]


def test_who_waits_for_canaries_asks_for_nothing_else(store: Store) -> None:
    """Also once they are through, and watched."""
    a, b, _ = trio(store, replace(RULES, concurrent_restarts="3"))
    assert a.begin().canary
    assert b.begin().why == "canaries go first"
    for meanwhile in (lambda: None, a.end):
        meanwhile()
        store.requests.clear()
        assert not b.begin().granted
        assert store.requests == [("GET", BRAKE)]
    store.now += 301
    assert b.begin().granted


# -- what an operator does ------------------------------------------------------------------------


def see(store: Store, rules: FleetRules = RULES) -> Any:
    below = {
        part: [found for path, found in store.objects.items() if path.startswith(f"{part}/")]
        for part in (LEASES, CONFIG_MAPS)
    }
    return build_rollout(store.objects[DAEMONSET], below[LEASES], below[CONFIG_MAPS], rules, store.now)


def test_a_rollout_is_seen_paused_resumed_and_retried(store: Store) -> None:
    store.size(3, 2)
    a, b, _ = trio(store)
    a.begin()
    seen = see(store)
    assert [permit.node for permit in seen.permits] == ["a"]
    assert (seen.nodes, seen.waiting, seen.limit, seen.frozen) == (3, 2, 1, None)
    assert [each.at_work for each in seen.generations] == [("a",)]
    annotations = store.objects[DAEMONSET]["metadata"]["annotations"]
    annotations |= build_pause("lunch")["metadata"]["annotations"]
    assert see(store).frozen == "lunch"
    assert build_resume()["metadata"]["annotations"] == {FREEZE: None}
    annotations.clear()
    a.end(ok=False)
    assert see(store).generations[0].stopped
    assert to_retry(see(store)) == ("brake-one",)
    del store.objects[BRAKE]
    assert b.begin().granted


def test_leases_of_others_are_passed_over() -> None:
    assert read_permits([{"metadata": {"name": "permit-x"}}, {"metadata": {"name": "other"}}, None]) == ()
    assert NAMESPACE.endswith("-rollout")
