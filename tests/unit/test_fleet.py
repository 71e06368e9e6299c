"""Permits, brake, canaries and freeze: what one node is told, and what it writes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from installer.fleet.brake import (
    BRAKE,
    Brake,
    build_brake,
    may_be_canary,
    read_brake,
    stopped,
    with_failure,
    with_success,
)
from installer.fleet.objects import (
    Member,
    Permit,
    brake_name,
    build_lease,
    permit_name,
    read_permits,
    share_of,
)
from installer.fleet.overview import build_pause, build_resume, build_rollout, to_retry
from installer.fleet.permits import choose
from installer.fleet.size import SIZE, FleetSize, build_size
from installer.host.kubeapi import Answer
from installer.model.fleet import FleetRules, PlannedWork
from tests.fleet_bench import (
    DAEMONSET,
    LEASES,
    NAMESPACE,
    NEW,
    REPAIR,
    RULES,
    THE_FLEET,
    Node,
    Store,
    anywhere,
)
from tests.throwaway.apiserver import merge

THE_BRAKE = f"{LEASES}/{brake_name(NEW.generation)}"


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


def test_undisturbed_it_takes_three_requests(store: Store) -> None:
    (node, _, _) = trio(store, anywhere())
    Node(store, "z", anywhere()).begin(replace(NEW, restarts_kubelet=False))  # brake and size are there
    store.requests.clear()
    assert node.begin().granted
    assert store.holders() == ["a/uid-a"]
    node.end()
    assert store.holders() == []
    assert len(store.requests) == 3


def test_the_next_node_waits_until_the_permit_is_given_back(store: Store) -> None:
    a, b, _ = trio(store)
    assert a.begin(REPAIR).granted
    answer = b.begin(REPAIR)
    assert (answer.granted, answer.why) == (False, "other nodes go first")
    assert answer.detail == ": the permit is taken, by a"
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
    store.freeze("a disk is slow")
    a.end()
    answer = b.begin(REPAIR)
    assert (answer.granted, answer.why) == (False, "the rollout is frozen: a disk is slow")
    assert 20 <= answer.wait <= 60
    store.freeze(None)
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
    store.now += 301  # so that its size is asked for again
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
    assert json.loads(store.objects[THE_BRAKE]["metadata"]["annotations"][BRAKE])["stopped"] == answer.tripped
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


@pytest.mark.parametrize(
    "said", ["", "{}", "[]", '{"canaries": "no", "failures": {}, "ring": "", "begun": ""}']
)
def test_nobody_begins_on_a_brake_that_is_not_understood(store: Store, said: str) -> None:
    a, _, _ = trio(store, anywhere())
    store.put(THE_BRAKE, build_lease(brake_name("one"), NAMESPACE, "one", annotations={BRAKE: said}))
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
    assert (answer.granted, answer.why) == (False, "other nodes go first")
    assert answer.detail == ": canaries, which are watched for 300 s more"
    assert 300 <= answer.wait <= 304
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
    assert (waits.why, waits.detail) == ("other nodes go first", ": canaries, a")
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


def requests_of(store: Store, node: Node, work: PlannedWork = NEW) -> list[str]:
    """That one question makes."""
    store.requests.clear()
    node.begin(work)
    return [f"{method} {path.rpartition('/')[2]}" for method, path in store.requests]


def test_the_size_of_the_fleet_is_asked_for_by_one_node_in_a_while(store: Store) -> None:
    store.size(300, 200)
    a, b, c = trio(store, anywhere(concurrent_restarts="1"))
    asks = ["GET leases", "GET cri-resmgr-installer", "PATCH fleet"]
    assert requests_of(store, a, REPAIR) == [*asks, "POST leases", "POST leases"]
    assert requests_of(store, b, REPAIR) == ["GET leases"]
    assert store.objects[THE_FLEET]["metadata"]["labels"]
    store.now += 101
    assert requests_of(store, c, REPAIR) == asks
    assert requests_of(store, b, REPAIR) == ["GET leases"]


def test_a_fleet_that_is_not_counted_yet_is_not_remembered(store: Store) -> None:
    store.size(0)
    a, b, _ = trio(store)
    assert a.begin(REPAIR).granted
    assert THE_FLEET not in store.objects
    store.size(1000)
    assert b.begin(REPAIR).granted  # there are ten permits


def test_the_longer_the_queue_the_longer_a_node_waits(store: Store) -> None:
    store.size(10_000, 9000)
    rules = anywhere(concurrent_restarts="1")
    Node(store, "a", rules).begin(REPAIR)
    waits = [Node(store, f"n{at}", rules).begin(REPAIR).wait for at in range(20)]
    assert max(waits) > 3600
    store.size(10_000, 1)
    store.now += 31
    assert all(Node(store, f"n{at}", rules).begin(REPAIR).wait < 20 for at in range(20))


def test_another_fleets_size_is_not_believed(store: Store) -> None:
    """Of a DaemonSet that has the same namespace for its rollout."""
    store.freeze(None)
    says = build_size(FleetSize("/somebody/elses", 10_000, at=store.now))
    store.objects[THE_FLEET]["metadata"]["annotations"] |= says
    a, b, _ = trio(store)
    a.begin(REPAIR)
    assert not b.begin(REPAIR).granted


@pytest.mark.parametrize("said", ["", "[]", "{}", '{"nodes": "many"}'])
def test_a_size_that_is_not_understood_is_asked_for(store: Store, said: str) -> None:
    store.put(THE_FLEET, build_lease("fleet", NAMESPACE, "fleet", annotations={SIZE: said}))
    assert "GET cri-resmgr-installer" in requests_of(store, trio(store)[0])


def test_a_freeze_stays_where_nodes_leave_the_size(store: Store) -> None:
    store.freeze("lunch")
    a, _, _ = trio(store)
    assert not a.begin(REPAIR).granted
    store.freeze(None)
    assert a.begin(REPAIR).granted
    store.freeze("lunch")
    store.now += 301
    a.end(work=REPAIR)
    assert a.begin(REPAIR).why == "the rollout is frozen: lunch"


def test_a_permit_that_has_lost_its_label_is_found(store: Store) -> None:
    """It is not listed; it can be taken all the same, and no two nodes have it."""
    a, b, _ = trio(store)
    store.put(f"{LEASES}/permit-0", {"metadata": {"name": "permit-0"}, "spec": {}})
    assert a.begin(REPAIR).granted
    del store.objects[f"{LEASES}/permit-0"]["metadata"]["labels"]
    assert not b.begin(REPAIR).granted
    assert store.holders() == ["a/uid-a"]


def test_who_waits_for_canaries_asks_for_nothing_else(store: Store) -> None:
    """Also once they are through, and watched."""
    a, b, _ = trio(store, replace(RULES, concurrent_restarts="3"))
    assert a.begin().canary
    assert b.begin().why == "other nodes go first"
    for meanwhile in (lambda: None, a.end):
        meanwhile()
        assert requests_of(store, b) == ["GET leases"]
    store.now += 301
    assert b.begin().granted


def test_of_many_labelled_nodes_a_thousand_go_first() -> None:
    """What a brake says has to fit into an annotation."""
    brake = Brake("one", "labelled", canaries={f"n{at}": 1.0 for at in range(1000)})
    assert not may_be_canary(brake, "another", labelled=True, nodes=10_000, now=2.0)
    assert may_be_canary(brake, "n7", labelled=True, nodes=10_000, now=2.0)


def test_a_brake_that_many_have_tripped_fits_into_an_annotation() -> None:
    """Annotations of an object have 256 KiB together (Kubernetes API, TotalAnnotationSizeLimitB)."""
    brake = Brake("one", canaries={f"a-rather-long-name-of-a-node-{at}": 1.0 for at in range(1000)})
    for at in range(1000):
        brake = with_failure(brake, f"a-rather-long-name-of-a-node-{at}", "ü" * 400, 1.0)
    said = build_brake(brake, NAMESPACE, RULES, 10_000)["metadata"]["annotations"]
    assert sum(len(text.encode()) for text in said.values()) < 200 << 10


# -- what an operator does ------------------------------------------------------------------------


def see(store: Store, rules: FleetRules = RULES) -> Any:
    leases = [found for path, found in store.objects.items() if path.startswith(f"{LEASES}/")]
    return build_rollout(store.objects[DAEMONSET], leases, rules, store.now)


def test_a_rollout_is_seen_paused_resumed_and_retried(store: Store) -> None:
    store.size(3, 2)
    a, b, _ = trio(store)
    a.begin()
    seen = see(store)
    assert [permit.node for permit in seen.permits] == ["a"]
    assert (seen.nodes, seen.waiting, seen.limit, seen.frozen) == (3, 2, 1, None)
    assert [each.at_work for each in seen.generations] == [("a",)]
    store.put(THE_FLEET, merge(store.objects[THE_FLEET], build_pause("lunch")))
    assert see(store).frozen == "lunch"
    assert not b.begin().granted
    store.put(THE_FLEET, merge(store.objects[THE_FLEET], build_resume()))
    assert see(store).frozen is None
    a.end(ok=False)
    assert see(store).generations[0].stopped
    assert to_retry(see(store)) == ("brake-one",)
    del store.objects[THE_BRAKE]
    assert b.begin().granted


def test_leases_of_others_are_passed_over() -> None:
    assert read_permits([{"metadata": {"name": "permit-x"}}, {"metadata": {"name": "other"}}, None]) == ()
    assert NAMESPACE.endswith("-rollout")
