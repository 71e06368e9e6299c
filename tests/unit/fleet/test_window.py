"""Windows: when a generation may begin on a node, and what does not wait for one."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from installer.cluster.sync import NodeFacts, SyncRequest
from installer.errors import InvalidInputError
from installer.inputs.deadlines import build_fleet_rules
from installer.inputs.settings import parse_settings
from installer.model.fleet import REMOVAL, FleetRules, PlannedWork
from installer.model.instant import parse_time, plain_time
from installer.model.jsontext import from_json, to_json
from installer.model.window import Window, WindowState, find_zone, judge_windows
from tests.faults.fleets.sim import Clock, SimStore
from tests.lib.fleet_bench import NEW, REPAIR, RULES, Node, Store, anywhere
from tests.lib.member_bench import MemberNode
from tests.lib.rules import rule

BERLIN = "Europe/Berlin"


def windows(text: str) -> tuple[Window, ...]:
    return build_fleet_rules(parse_settings(f"rollout: {{window: {text}}}".encode())).window


def at(text: str, zone: str = BERLIN) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


NIGHT = f"{{from: 22:00, to: 06:00, timeZone: {BERLIN}}}"
WEEKEND = f"{{days: [Sat], from: 22:00, to: 06:00, timeZone: {BERLIN}}}"
TOUCHING = "[{from: 01:00, to: 02:00}, {from: 02:00, to: 03:00}]"
OVERLAPPING = "[{from: 01:00, to: 04:00}, {from: 02:00, to: 03:00}]"
APART = "[{from: 05:00, to: 06:00}, {from: 02:00, to: 03:00}]"
SKIPPED = f"{{from: 02:00, to: 03:00, timeZone: {BERLIN}}}"
SKIPPED_SUNDAY = f"{{days: [Sun], from: 02:00, to: 03:00, timeZone: {BERLIN}}}"
AROUND = f"{{from: 01:00, to: 04:00, timeZone: {BERLIN}}}"


@pytest.mark.parametrize(
    ("text", "now", "is_open", "until"),
    [
        (NIGHT, "2026-11-27T21:59:59", False, "2026-11-27T21:00:00Z"),
        (NIGHT, "2026-11-27T22:00", True, "2026-11-28T05:00:00Z"),
        (NIGHT, "2026-11-28T05:59:59", True, "2026-11-28T05:00:00Z"),
        (NIGHT, "2026-11-28T06:00", False, "2026-11-28T21:00:00Z"),
        # Its days are those on which it begins: 2026-11-28 is a Saturday.
        (WEEKEND, "2026-11-29T05:00", True, "2026-11-29T05:00:00Z"),
        (WEEKEND, "2026-11-28T05:00", False, "2026-11-28T21:00:00Z"),
        (WEEKEND, "2026-11-29T06:00", False, "2026-12-05T21:00:00Z"),
        # Several: those that touch or overlap are one.
        (TOUCHING, "2026-11-27T02:30", True, "2026-11-27T03:00:00Z"),
        (OVERLAPPING, "2026-11-27T03:30", True, "2026-11-27T04:00:00Z"),
        (APART, "2026-11-27T04:30", False, "2026-11-27T05:00:00Z"),
        # A whole day, and every one.
        ("{days: [Sun, Mon], from: 00:00, to: 24:00}", "2026-11-29T12:00", True, "2026-12-01T00:00:00Z"),
        ("{from: 00:00, to: 24:00}", "2026-11-29T12:00", True, ""),
        # The clocks go forward on 2026-03-29 at 02:00, and back on 2026-10-25 at 03:00.
        (SKIPPED, "2026-03-29T01:30", False, "2026-03-30T00:00:00Z"),
        (AROUND, "2026-03-29T01:30", True, "2026-03-29T02:00:00Z"),
        (AROUND, "2026-10-25T01:30", True, "2026-10-25T03:00:00Z"),
        (SKIPPED_SUNDAY, "2026-03-28T12:00", False, "2026-04-05T00:00:00Z"),
        ("{from: 22:00, to: 23:00, timeZone: '+05:30'}", "2026-11-27T16:45", True, "2026-11-27T17:30:00Z"),
        ("{from: 22:00, to: 23:00, timeZone: '-10:00'}", "2026-11-27T17:45", False, "2026-11-28T08:00:00Z"),
    ],
)  # fmt: skip
def test_when_a_window_is_open(text: str, now: str, is_open: bool, until: str) -> None:
    zone = BERLIN if BERLIN in text else "UTC"
    found = judge_windows(windows(text), at(now, zone))
    assert not found.fault
    assert (found.open, plain_time(found.until) if found.until else "") == (is_open, until)


def test_a_zone_that_this_machine_lacks_keeps_the_window_closed() -> None:
    lost = Window((0, 1, 2, 3, 4, 5, 6), 0, 1440, "Europe/Nowhere")
    found = judge_windows((lost,), at("2026-11-27T12:00"))
    assert found == WindowState(False, fault="there is no data of the time zone Europe/Nowhere")
    assert judge_windows((lost, replace(lost, zone="UTC")), at("2026-11-27T12:00")).open


@pytest.mark.parametrize("name", ["", "..", "/etc/passwd", "Europe", "+15:00", "+1:00", "x" * 500, "a\0b"])
def test_what_is_no_time_zone_is_a_fault_and_no_crash(name: str) -> None:
    with pytest.raises(ValueError, match="no data of the time zone"):
        find_zone(name)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{from: 22:00, to: 22:00}", "rollout.window.0.to: must differ from `from`: such a window"),
        ("{from: 22:00, to: 22:09}", "rollout.window.0.to: must be at least 10 minutes after `from`"),
        ("{days: [], from: 22:00, to: 23:00}", "rollout.window.0.days: must have a day"),
        ("{days: [Sat, Tag], from: 22:00, to: 23:00}", "rollout.window.0.days.1: must be 'Mon', 'Tue'"),
        ("{from: 2200, to: 23:00}", "rollout.window.0.from: must be a string, not 2200"),
        ("{from: 24:00, to: 23:00}", "rollout.window.0.from: must be a time from 00:00 to 23:59"),
        ("{from: 22:00}", "rollout.window.0.to: must be given"),
        ("{from: 22:00, to: 23:00, timeZone: Europe/Berln}", "rollout.window.0.timeZone: must be UTC"),
        ("{from: 22:00, to: 23:00, timezone: UTC}", "rollout.window.0.timezone: unknown key; did you mean"),
        ("[{from: 22:00, to: 23:00}, {from: 1, to: 01:00}]", "rollout.window.1.from: must be a string"),
    ],
)  # fmt: skip
def test_a_window_that_never_opens_or_is_not_understood_is_refused(text: str, fault: str) -> None:
    with pytest.raises(InvalidInputError) as error:
        windows(text)
    assert error.value.faults[0].startswith(fault)


def test_without_a_window_planned_work_begins_at_any_time() -> None:
    assert windows("[]") == build_fleet_rules(parse_settings(b"")).window == ()


# -- a rollout ------------------------------------------------------------------------------------

OPEN = at("2026-11-27T23:00")
CLOSED = at("2026-11-27T12:00")
NIGHTS = windows(NIGHT)


@rule("R13")
def test_a_generation_begins_in_a_window_alone(store: Store) -> None:
    store.now = CLOSED
    rules = replace(anywhere(), window=NIGHTS)
    node = Node(store, "a", rules)
    answer = node.begin(NEW)
    assert (answer.granted, answer.why) == (False, "the rollout's window is closed")
    assert answer.detail == ": it opens at 2026-11-27T21:00:00Z"
    assert store.holders() == []
    assert not any("breaker" in path for path in store.objects)  # nobody is a canary yet
    assert answer.wait <= 7200 + 7200  # a person may have given other settings
    store.now = OPEN
    assert node.begin(NEW).granted


def test_near_its_opening_a_node_asks_when_it_opens_and_not_all_at_once(store: Store) -> None:
    store.size(3000)
    store.now = at("2026-11-27T21:59")
    waits = {
        round(Node(store, name, replace(anywhere(), window=NIGHTS)).begin(NEW).wait) for name in "abcdefgh"
    }
    assert min(waits) >= 60
    assert len(waits) > 4


@pytest.mark.parametrize(
    "work",
    [
        REPAIR,
        PlannedWork(REMOVAL, removes=True),
        PlannedWork("one", restarts_kubelet=True, soaks=True),
    ],
    ids=["a repair", "a removal", "a repair that changes the policy"],
)
def test_what_does_not_wait_for_a_window(work: PlannedWork, store: Store) -> None:
    store.now = CLOSED
    assert Node(store, "a", replace(anywhere(), window=NIGHTS)).begin(work).granted


def test_a_pause_is_named_first(store: Store) -> None:
    store.now = CLOSED
    store.pause("a Friday")
    assert (
        Node(store, "a", replace(anywhere(), window=NIGHTS)).begin(NEW).why
        == "the rollout is paused: a Friday"
    )


# -- a node that has just joined ------------------------------------------------------------------


def a_member(clock: Clock, store: SimStore, created: float) -> MemberNode:
    closed = "[{from: '03:00', to: '04:00'}]"
    node = MemberNode(store, clock, "node", rules=replace(anywhere(), window=windows(closed)))
    path = "/api/v1/nodes/node"
    metadata = {**store.objects[path]["metadata"], "creationTimestamp": plain_time(created)}
    store.objects[path] = {**store.objects[path], "metadata": metadata}
    node.sees()
    node.wants = PlannedWork("one", begins=True)
    node.goes_on()
    return node


@pytest.mark.parametrize(("age", "begins"), [(60.0, True), (3000.0, True), (5000.0, False)])
def test_a_node_that_has_just_joined_does_not_wait(age: float, begins: bool) -> None:
    """An autoscaler has made it for pods that wait."""
    clock = Clock()
    store = SimStore(clock)
    store.size(3)
    assert not judge_windows(windows("{from: '03:00', to: '04:00'}"), store.now).open
    node = a_member(clock, store, store.now - age)
    assert (node.granted is not None) is begins


def test_a_node_that_joined_after_the_generation_had_begun_does_not_wait(store: Store) -> None:
    rules = replace(RULES, window=NIGHTS)
    store.now = OPEN
    first = Node(store, "a", rules)
    assert first.begin(NEW).canary
    first.end()
    later, earlier = Node(store, "b", rules), Node(store, "c", rules)
    later.joined, earlier.joined = OPEN + 60, OPEN - 86_400
    store.now = OPEN + 12 * 3600
    assert not earlier.begin(NEW).granted
    assert later.begin(NEW).granted


def test_the_rules_reach_the_process_that_asks() -> None:
    rules = replace(FleetRules(), window=windows(f"[{NIGHT}, {WEEKEND}]"))
    node = MemberNode(SimStore(Clock()), Clock(), "n")
    facts = NodeFacts(joined=parse_time("2026-01-01T00:00:00Z"))
    request = SyncRequest(node.client.member.context, rules=rules, node=facts)
    assert from_json(SyncRequest, to_json(request)) == request
