"""What a node does with its permit: it uses it or gives it back, and tells how its work ended."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from installer.cluster.kubeapi import Answer
from installer.cluster.member import Due, Member
from installer.cluster.pod_context import PodContext
from installer.daemon.configuration import Configuration
from installer.daemon.decision import Action, Decision
from installer.daemon.fleet import build_result, report_end
from installer.daemon.policy import Policy
from installer.daemon.poller import PollSnapshot
from installer.model.fleet import NO_WORK, AskFirst, PlannedWork, WorkResult
from installer.model.hold import CLUSTER_MEMORY
from installer.model.result import RunResult
from tests.faults.fleets.sim import Clock, MemoryFiles, SimStore
from tests.lib.fleet_bench import LEASES, RULES
from tests.lib.member_bench import ANY, ONE, MemberNode

OTHER = PlannedWork("other", begins=True)
FILES = PlannedWork("files", restarts_kubelet=False, begins=True)
REMOVAL = PlannedWork("removal", removes=True)
CANARIES = replace(ANY, order="canary", soak_seconds=0.0)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> SimStore:
    store = SimStore(clock)
    store.size(3)
    return store


@pytest.fixture
def node(store: SimStore, clock: Clock) -> MemberNode:
    node = MemberNode(store, clock, "node")
    node.sees()
    return node


# -- a permit that is not used -------------------------------------------------------------------


def test_a_permit_that_is_not_used_is_given_back_and_others_come_first(
    node: MemberNode, store: SimStore, clock: Clock
) -> None:
    node.is_permitted()
    other = MemberNode(store, clock, "other")
    other.sees()
    other.wants = OTHER
    for _ in range(20):
        node.goes_on(5)
        other.goes_on(5)
    assert store.holders() == ["other/uid-other"]
    assert other.granted == OTHER


def test_a_node_that_stands_alone_asks_for_an_unused_permit_again(node: MemberNode) -> None:
    node.is_permitted()
    node.goes_on(60)
    assert not node.granted
    node.goes_on(60)
    assert node.granted == ONE


@pytest.mark.parametrize("ready", [True, False])
def test_work_that_never_began_gives_its_permit_back_at_once(
    node: MemberNode, store: SimStore, ready: bool
) -> None:
    node.sees(ready=ready)
    node.is_permitted()
    node.wants = None
    node.goes_on()
    assert not store.holders()
    node.goes_on(10)
    assert not node.client.member.due


def test_what_never_began_is_not_what_a_later_daemon_follows(
    node: MemberNode, store: SimStore, clock: Clock
) -> None:
    node.is_permitted()
    node.wants = None
    node.goes_on()
    node.ends()
    assert MemberNode(store, clock, "node", node.files).client.permission().begun is None


def test_a_permit_that_was_used_waits_until_the_node_is_ready(node: MemberNode, store: SimStore) -> None:
    node.is_permitted()
    node.works()
    assert store.holders()
    assert node.client.member.awaits_ready
    node.sees()
    node.goes_on()
    assert not store.holders()


def test_a_permit_waits_for_a_ready_node_also_where_a_pass_has_reported_nothing(
    node: MemberNode, store: SimStore
) -> None:
    node.sees(ready=False)
    node.is_permitted()
    node.busy = True
    node.goes_on()
    node.busy, node.wants = False, None
    node.goes_on()
    assert store.holders()
    node.sees()
    node.goes_on()
    assert not store.holders()


def test_a_permit_that_cannot_be_given_back_is_offered_ever_more_seldom(
    node: MemberNode, store: SimStore
) -> None:
    node.is_permitted()
    node.wants = None
    store.away, store.away_for = Answer(503, failure="503"), LEASES
    store.requests.clear()
    node.goes_on(300)
    assert 3 < len(store.requests) < 20


def test_while_a_pause_stops_its_next_work_a_node_gives_its_permit_back(
    node: MemberNode, store: SimStore
) -> None:
    node.is_permitted()
    node.works()
    store.pause("a Friday")
    node.wants = OTHER
    node.goes_on()
    assert node.client.permission().why == "the rollout is paused: a Friday"
    assert store.holders()
    node.sees()
    node.goes_on()
    assert not store.holders()


def test_the_permit_of_earlier_work_is_not_forgotten_over_work_that_needs_none(
    node: MemberNode, store: SimStore
) -> None:
    node.is_permitted()
    node.works()
    node.is_permitted(FILES)
    node.works(FILES)
    node.sees()
    node.goes_on()
    assert not store.holders()


@pytest.mark.parametrize("busy", [False, True])
def test_a_pod_that_ends_gives_its_permit_back_unless_a_pass_is_at_work(
    node: MemberNode, store: SimStore, busy: bool
) -> None:
    node.is_permitted()
    node.busy = busy
    node.goes_on()
    node.ends()
    assert bool(store.holders()) is busy


def test_a_breaker_that_is_not_understood_keeps_no_permit_and_no_other_work(
    node: MemberNode, store: SimStore
) -> None:
    node.rules = RULES
    node.is_permitted()
    breaker = store.objects[f"{LEASES}/breaker-one"]
    store.put(f"{LEASES}/breaker-one", {**breaker, "metadata": {**breaker["metadata"], "annotations": {}}})
    node.works()
    node.sees()
    node.goes_on(10)
    assert not store.holders()
    node.is_permitted(PlannedWork("two", begins=True))


def test_a_node_that_does_not_become_ready_forgets_its_permit_when_it_has_expired(
    node: MemberNode, store: SimStore, clock: Clock
) -> None:
    node.is_permitted()
    node.works()
    node.sees(ready=False)
    node.goes_on(node.rules.hold_seconds - 60)
    assert node.client.member.awaits_ready
    node.goes_on(120)
    assert not node.client.member.awaits_ready
    other = MemberNode(store, clock, "other")
    other.sees()
    other.is_permitted()
    node.sees()
    node.goes_on()
    assert store.holders() == ["other/uid-other"]


@pytest.mark.parametrize("code", [403, 404])
def test_a_removal_that_may_not_see_its_node_begins_after_a_minute(
    node: MemberNode, store: SimStore, clock: Clock, code: int
) -> None:
    """Its pod started when the rights were gone already, or the Node, and it knows no UID to ask with."""
    store.away = Answer(code, failure=f"{code}: gone")
    later = MemberNode(store, clock, "node")
    later.wants = REMOVAL
    for _ in range(11):
        later.goes_on(5)
        assert later.granted is None
    clock.run(clock.now + 30)
    assert later.granted == REMOVAL


def test_a_question_that_falls_due_during_a_pass_is_asked_when_the_pass_has_ended(
    node: MemberNode, store: SimStore, clock: Clock
) -> None:
    """The pass has left the planned work undone, so the node still wants the same."""
    other = MemberNode(store, clock, "other")
    other.sees()
    other.is_permitted()
    node.wants = ONE
    node.goes_on(10)
    node.busy = True
    node.goes_on(60)
    node.busy = False
    other.wants = None
    other.goes_on()
    assert not store.holders()
    node.goes_on(20)
    assert node.granted == ONE


# -- an end that is not told at once -------------------------------------------------------------


def the_breaker(store: SimStore) -> str:
    return str(store.objects.get(f"{LEASES}/breaker-one", {}).get("metadata", {}).get("annotations"))


def test_a_daemon_that_comes_later_knows_what_the_pass_that_it_follows_was_about(
    node: MemberNode, store: SimStore, clock: Clock
) -> None:
    node.is_permitted()
    node.busy = True
    node.goes_on()
    node.ends()
    later = MemberNode(store, clock, "node", node.files)
    assert later.client.permission().begun == ONE
    later.works(ok=False)
    later.sees()
    later.goes_on()
    assert "it is broken" in the_breaker(store)
    assert later.client.permission().begun is None


@pytest.mark.parametrize("ends", [True, False])
def test_a_failure_that_could_not_be_told_is_told_by_the_next_daemon(
    node: MemberNode, store: SimStore, clock: Clock, ends: bool
) -> None:
    node.is_permitted()
    store.away = Answer(429, failure="429: TooManyRequests", retry_after=60.0)
    node.works(ok=False)
    if ends:
        node.ends()
    store.away = None
    later = MemberNode(store, clock, "node", node.files)
    later.sees()
    later.goes_on()
    assert "it is broken" in the_breaker(store)


@pytest.mark.parametrize(
    ("work", "ok", "after", "trips"),
    [
        (ONE, True, 200.0, True),
        (ONE, True, 400.0, False),
        (ONE, None, 200.0, False),
        # A pass that was cut off, and one that needs no permit finds it done.
        (replace(ONE, restarts_kubelet=False), True, 200.0, True),
    ],
)
def test_a_relay_that_dies_while_it_is_watched_is_a_failure_also_for_the_next_daemon(
    node: MemberNode,
    store: SimStore,
    clock: Clock,
    work: PlannedWork,
    ok: bool | None,
    after: float,
    trips: bool,
) -> None:
    node.is_permitted()
    node.works(work, ok=ok)
    node.ends()
    later = MemberNode(store, clock, "node", node.files)
    later.sees()
    later.goes_on(after)
    later.client.report_result(WorkResult(NO_WORK, False, "the relay died soon afterwards"))
    later.goes_on()
    assert ("the relay died" in the_breaker(store)) is trips


def test_a_canary_whose_power_was_cut_says_that_it_has_what_others_wait_for(
    store: SimStore, clock: Clock
) -> None:
    """The boot has taken what it remembered, and its first look finds everything as it should be."""
    node, other = (MemberNode(store, clock, name, rules=CANARIES) for name in ("node", "other"))
    for each in (node, other):
        each.sees()
    node.is_permitted(FILES)
    node.busy = True
    node.goes_on()
    other.wants = FILES
    other.goes_on(60)
    assert not other.granted
    node.ends()
    later = MemberNode(store, clock, "node", rules=CANARIES)
    later.sees()
    later.client.report_result(WorkResult(FILES, True))
    later.goes_on()
    other.goes_on(60)
    assert other.granted == FILES


def test_the_others_go_on_as_soon_as_a_canary_has_succeeded(store: SimStore, clock: Clock) -> None:
    node, other = (MemberNode(store, clock, name, rules=CANARIES) for name in ("node", "other"))
    for each in (node, other):
        each.sees()
    node.is_permitted(FILES)
    node.works(FILES)
    other.wants = FILES
    other.goes_on(60)
    assert other.granted == FILES


@pytest.mark.parametrize("action", [Action.INSTALL, Action.REMOVE])
def test_a_permit_that_a_boot_has_made_forgotten_is_given_back(
    store: SimStore, clock: Clock, action: Action
) -> None:
    """The power was cut when kubelet had been restarted: what is left needs no turn, and nobody asks."""
    node, other = (MemberNode(store, clock, name) for name in ("node", "other"))
    for each in (node, other):
        each.sees()
    node.is_permitted()
    node.busy = True
    node.goes_on()
    other.wants = OTHER
    other.goes_on(60)
    assert not other.granted
    later = MemberNode(store, clock, "node")
    later.sees()
    result = build_result(action, RunResult(0, fleet_generation="one"), None)
    assert result
    later.client.report_result(result)
    later.goes_on()
    other.goes_on(30)
    assert other.granted == OTHER


@pytest.mark.parametrize(("generation", "told"), [("one", True), ("another", False)])
def test_a_failure_that_only_the_host_remembers_is_told(
    node: MemberNode, store: SimStore, clock: Clock, generation: str, told: bool
) -> None:
    """The pass ended together with its pod, and the next one does not try the generation again."""
    node.is_permitted()
    node.busy = True
    node.goes_on()
    node.ends()
    later = MemberNode(store, clock, "node", node.files).client
    policy = Policy(Configuration(), lambda: 0.5, 0.0)
    policy.begun(Decision(Action.INSTALL, ask_first=AskFirst.ALL), PollSnapshot())
    report_end(later, policy, Action.INSTALL, RunResult(0, fleet_generation="a third one"))
    reason = "it is not tried again"
    report_end(later, policy, Action.INSTALL, RunResult(5, remembered=True, reason=reason))
    outcome = RunResult(5, remembered=True, reason=reason, fleet_generation=generation)
    report_end(later, policy, Action.INSTALL, outcome)
    clock.run(clock.now + 5)
    assert (reason in the_breaker(store)) is told


@pytest.mark.parametrize("retried", [False, True])
def test_a_canary_that_has_failed_and_booted_says_so_unless_a_person_has_said_retry(
    store: SimStore, clock: Clock, retried: bool
) -> None:
    """The boot came before its report, and has taken what it remembered; its record has not forgotten."""
    node, other = (MemberNode(store, clock, name, rules=CANARIES) for name in ("node", "other"))
    for each in (node, other):
        each.sees()
    node.is_permitted()
    node.busy = True
    node.goes_on()
    if retried:
        del store.objects[f"{LEASES}/breaker-one"]
    later = MemberNode(store, clock, "node", rules=CANARIES)
    later.sees()
    outcome = RunResult(5, remembered=True, reason="it is broken", fleet_generation="one")
    for _pass in range(2):
        result = build_result(Action.INSTALL, outcome, None)
        assert result
        later.client.report_result(result)
        later.goes_on()
    assert ("it is broken" in the_breaker(store)) is not retried
    assert not store.holders()
    other.wants = ONE
    other.goes_on(20)
    assert (other.granted == ONE) is retried


@pytest.mark.parametrize("retried", [False, True])
def test_a_node_that_has_failed_and_booted_says_so_while_it_still_has_its_permit(
    store: SimStore, clock: Clock, retried: bool
) -> None:
    """It was no canary, and the boot came before its report. A person may have said retry meanwhile."""
    canary, node = (MemberNode(store, clock, name, rules=CANARIES) for name in ("canary", "node"))
    for each in (canary, node):
        each.sees()
    canary.is_permitted()
    canary.works()
    canary.sees()
    node.wants = ONE
    node.goes_on(30)
    assert node.granted == ONE
    node.busy = True
    node.goes_on()
    if retried:
        del store.objects[f"{LEASES}/breaker-one"]
        another = MemberNode(store, clock, "another", rules=CANARIES)
        another.sees()
        another.wants = ONE
        another.goes_on(60)
    later = MemberNode(store, clock, "node", rules=CANARIES)
    later.sees()
    result = build_result(
        Action.INSTALL, RunResult(5, remembered=True, reason="it is broken", fleet_generation="one"), None
    )
    assert result
    store.away, store.away_for = Answer(503, failure="503"), "/breaker-one"
    later.client.report_result(result)
    later.goes_on()
    store.away = None
    later.goes_on(30)
    assert ("it is broken" in the_breaker(store)) is not retried
    assert "node/" not in str(store.holders())


def test_the_failure_of_a_removal_that_others_do_not_wait_for_is_not_told(
    node: MemberNode, store: SimStore
) -> None:
    removal = replace(REMOVAL, restarts_kubelet=False)
    node.is_permitted(removal)
    node.works(removal, ok=False)
    node.goes_on()
    assert not any("breaker" in path for path in store.objects)


def test_a_failure_is_told_when_the_pod_ends(node: MemberNode, store: SimStore) -> None:
    node.is_permitted()
    node.client.report_result(WorkResult(ONE, False, "it is broken"))
    node.ends()
    assert "it is broken" in the_breaker(store)


@pytest.mark.parametrize(
    "text", ["", "[]", '{"begun": {"what": 1}}', '{"results": [{}]}', '{"results": 1}', '{"watched": [1]}']
)
def test_a_memory_that_is_damaged_is_none(store: SimStore, clock: Clock, text: str) -> None:
    files = MemoryFiles()
    files.write(CLUSTER_MEMORY, text.encode(), 0o644)
    node = MemberNode(store, clock, "node", files)
    node.sees()
    node.is_permitted()


# -- two daemons of one node ---------------------------------------------------------------------


def test_a_removal_keeps_the_permit_that_the_replaced_daemon_has_worked_with(
    node: MemberNode, store: SimStore, clock: Clock
) -> None:
    """Both are the same holder: the Leases know nodes."""
    node.is_permitted()
    node.works()
    removal = MemberNode(store, clock, "node")
    removal.sees(ready=False)
    removal.is_permitted(REMOVAL)
    removal.busy = True
    node.sees()  # before it knows that it was replaced
    node.goes_on(10)
    assert store.holders() == ["node/uid-node"]


def test_a_daemon_that_was_replaced_keeps_its_hands_off_the_permit(
    node: MemberNode, store: SimStore, clock: Clock
) -> None:
    node.is_permitted()
    node.works()
    node.client.become(node.client.member.handed_over())
    node.sees()
    node.goes_on(10)
    assert store.holders() == ["node/uid-node"]
    remembers = MemberNode(store, clock, "node", node.files)
    remembers.sees()
    remembers.goes_on()
    assert not store.holders()


def test_a_daemon_that_ends_leaves_the_permit_to_a_newer_one_that_it_has_not_seen_yet(
    node: MemberNode, store: SimStore, clock: Clock
) -> None:
    """Both may have asked for it; the last one to write it knows its version."""
    newer = MemberNode(store, clock, "node")
    newer.is_permitted()
    node.is_permitted()
    node.client.end(replaced=True)
    assert store.holders() == ["node/uid-node"]


def test_a_permit_is_not_given_back_while_an_earlier_daemon_may_be_at_work(
    node: MemberNode, store: SimStore, clock: Clock
) -> None:
    node.is_permitted()
    removal = MemberNode(store, clock, "node", node.files)
    clock.run(clock.now + 1)  # before its daemon decides anything
    removal.busy = True  # until it has had the host's lock
    removal.sees()
    removal.goes_on(10)
    assert store.holders() == ["node/uid-node"]
    removal.busy = False
    removal.goes_on()
    assert not store.holders()


@pytest.mark.parametrize(
    "away", [Answer(503, failure="503"), Answer(429, failure="429: TooManyRequests", retry_after=300.0)]
)
def test_planned_work_does_not_begin_while_nobody_says_whether_the_node_is_paused(
    node: MemberNode, store: SimStore, clock: Clock, away: Answer
) -> None:
    """The API server grants permits, and does not show the Node. Repairs go on: they ask for no turn."""

    def looks(seconds: float) -> list[PlannedWork | None]:
        permissions = []
        for _ in range(round(seconds / 5)):
            node.decides(read_node=not node.client.permission().fresh)
            clock.run(clock.now + 5)
            permissions.append(node.client.permission())
        return [each.granted if each.fresh else None for each in permissions]

    node.wants = ONE
    clock.run(clock.now + 5)
    store.away, store.away_for = away, "/nodes/"
    clock.run(clock.now + 15)
    node.decides(read_node=True)
    assert set(looks(120)) == {None}
    reasons = "whether this node is paused", "the request for a permit failed"
    found = node.client.permission()
    assert any(each in found.why for each in reasons) or not found.fresh
    store.away = None
    assert ONE in looks(700)


@pytest.mark.parametrize(
    "outcome",
    [
        RunResult(0, fleet_generation="other"),
        RunResult(5, rolled_back=True, remembered=True, fleet_generation="other"),
        RunResult(3, planned=OTHER),
    ],
)
def test_what_became_of_other_inputs_says_nothing_of_the_permitted_generation(outcome: RunResult) -> None:
    """They have changed when the permit had come."""
    assert build_result(Action.INSTALL, outcome, ONE) == WorkResult(ONE, None, outcome.reason)


@pytest.mark.parametrize(
    ("outcome", "ok"),
    [
        (RunResult(0, changed=True), True),
        (RunResult(5, rolled_back=True, remembered=True), False),
        (RunResult(6, rolled_back=True), False),
        (RunResult(5, rolled_back=True, restarts=1), None),
        (RunResult(4), None),
    ],
)
def test_a_fault_of_the_nodes_environment_stops_no_generation(outcome: RunResult, ok: bool | None) -> None:
    """A rollback that blames nothing returns its permit, and reports nothing."""
    result = build_result(Action.INSTALL, outcome, ONE)
    assert result
    assert result.ok is ok


# -- for how long a grant counts ---------------------------------------------------------------------


def granted_then(now: float, **more: Any) -> PlannedWork | None:
    """What a node may begin that was granted its work at 100 s, and looked at its Node then."""
    context = PodContext("", 0, "", "node", "pod", "kube-system", "d", rollout_namespace="rollout")
    given: dict[str, Any] = {
        "work": ONE,
        "busy": False,
        "granted": ONE,
        "granted_at": 100.0,
        "read_at": 100.0,
    }
    return Member(context=context, **(given | more)).permission(now).granted


def test_what_was_granted_lapses_also_where_the_daemon_has_slept() -> None:
    assert granted_then(144.9) == ONE
    assert granted_then(145.0) is None
    assert granted_then(999.0) is None
    assert granted_then(999.0, busy=True) == ONE  # it has begun


def test_a_node_that_may_not_ask_whether_it_is_paused_begins_nothing() -> None:
    """The server wants to be left alone: what is known of a pause grows old."""
    assert granted_then(109.9, quiet_until=130.0) == ONE
    assert granted_then(110.0, quiet_until=130.0) is None
    assert granted_then(130.0, quiet_until=130.0) == ONE  # a look comes first: it is not fresh
    assert granted_then(105.0, unread=True) is None
    assert granted_then(110.0, quiet_until=130.0, busy=True) == ONE


def test_syncs_keep_their_distance() -> None:
    context = PodContext("", 0, "", "node", "pod", "kube-system", "d")
    member = Member(context=context, synced_at=100.0)
    assert member.due_soon(Due.NODE, 100.2).due == {Due.NODE: 101.0}
    assert member.due_soon(Due.NODE, 105.0).due == {Due.NODE: 105.0}
