"""A removal that an NRI plugin is to follow: nobody leaves without a resource for it, and the others wait
until the plugin says that it serves the node that was left."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from installer.cluster.kubeapi import Answer
from installer.cluster.successor import judge, resource_paths
from installer.daemon.fleet import LEAVE
from installer.model.daemon import DaemonState, Phase
from installer.model.fleet import PlannedWork, WorkResult
from installer.model.instant import plain_time
from installer.model.names import SUCCESSOR_LABEL, Mode
from installer.operator.inventory import Installed
from installer.operator.rollout_view import build_rollout, read_leases
from tests.faults.fleets.sim import Clock, SimStore
from tests.lib.fleet_bench import DAEMONSET, LEASES, RULES, Store, anywhere, trio
from tests.lib.member_bench import MemberNode
from tests.lib.throwaway.apiserver import merge

REMOVAL = PlannedWork("removal", begins=True, soaks=True, removes=True)
FOLLOWED = anywhere(replace(RULES, successor="kube-system"), concurrent_restarts="1")
PLACE = "/apis/config.nri/v1alpha1/namespaces/kube-system"
LEFT = DaemonState(Mode.REMOVE, Phase.REMOVED, ready=True, successor="nri")
MISSING = "namespace kube-system has no TopologyAwarePolicy or BalloonsPolicy for this node"


class Fleet:
    """Two nodes, `a` and `b`, that are to be left, and may at the same time if nobody is waited for."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.store = SimStore(self.clock)
        self.store.size(2)
        self.a, self.b = (MemberNode(self.store, self.clock, name, rules=FOLLOWED) for name in "ab")
        for node in (self.a, self.b):
            node.sees()

    def configure(self, name: str = "default", plural: str = "balloonspolicies", generation: int = 1) -> None:
        kind = {"balloonspolicies": "BalloonsPolicy"}.get(plural, "TopologyAwarePolicy")
        metadata = {"name": name, "namespace": "kube-system", "generation": generation}
        self.store.put(f"{PLACE}/{plural}/{name}", {"kind": kind, "metadata": metadata})

    def plugin_says(self, status: str, node: str = "a", generation: int = 1, errors: str = "") -> None:
        path = f"{PLACE}/balloonspolicies/default"
        said = {"status": status, "generation": generation, "errors": errors}
        self.store.put(path, {**self.store.objects[path], "status": {"nodes": {node: said}}})

    def leave_a(self) -> None:
        """Until it is removed, and ready."""
        self.a.is_permitted(REMOVAL)
        self.a.works(REMOVAL)
        self.a.client.update(LEFT, None, FOLLOWED, busy=False, read_node=False)
        self.a.is_ready(True)

    def waits(self, node: MemberNode, seconds: float = 60.0) -> str:
        """Why the removal of this node may not begin within so many seconds; empty if it may."""
        node.wants, until = REMOVAL, self.clock.now + seconds
        while self.clock.now < until and node.granted is None:
            node.goes_on(5.0)
        return "" if node.granted else node.client.permission().why


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


def test_a_node_without_a_resource_is_not_left_until_there_is_one(fleet: Fleet) -> None:
    assert fleet.waits(fleet.a).startswith(MISSING)
    assert not fleet.store.holders()
    fleet.configure("node.b")
    assert fleet.waits(fleet.a).startswith(MISSING)
    fleet.configure("node.a", "topologyawarepolicies")
    assert fleet.waits(fleet.a, 90.0) == ""


def test_one_without_a_resource_is_no_canary_for_which_others_wait(fleet: Fleet) -> None:
    fleet.a.rules = fleet.b.rules = replace(FOLLOWED, order="canary")
    assert fleet.waits(fleet.a).startswith(MISSING)
    fleet.configure("node.b")
    assert fleet.waits(fleet.b) == ""


def test_resources_that_may_not_be_read_are_as_good_as_none(fleet: Fleet) -> None:
    """A removal whose rights are gone would not wait."""
    fleet.configure()
    fleet.store.away, fleet.store.away_for = Answer(403, failure="403"), f"{PLACE}/balloonspolicies"
    assert "does not return the resources of NRI plugins: 403" in fleet.waits(fleet.a, 200.0)


def test_the_next_node_waits_until_the_plugin_serves_the_first(fleet: Fleet) -> None:
    fleet.configure()
    fleet.leave_a()
    assert fleet.waits(fleet.b, 120.0) == "other nodes go first"
    assert [each.message for each in fleet.a.said if each.kind == "permit.waiting"][-1:] == [
        "cri-resmgr is removed, but no NRI plugin reports yet that it serves this node"
    ]
    fleet.plugin_says("Success", generation=0)  # of the resource as it was
    assert fleet.waits(fleet.b) == "other nodes go first"
    fleet.plugin_says("Success")
    assert fleet.waits(fleet.b) == ""


def test_a_permit_that_was_not_used_waits_for_no_plugin(fleet: Fleet) -> None:
    fleet.configure()
    fleet.a.is_permitted(REMOVAL)
    waits = replace(LEFT, phase=Phase.WAITING, ready=False)
    fleet.a.client.update(waits, None, FOLLOWED, busy=False, read_node=False)
    fleet.a.wants = None
    fleet.a.goes_on(10)
    assert not fleet.store.holders()


def test_a_node_that_leaves_because_its_pod_ends_gives_its_permit_back_at_once(fleet: Fleet) -> None:
    fleet.configure()
    fleet.a.is_permitted(LEAVE)
    fleet.a.busy = True
    fleet.a.goes_on()
    fleet.a.client.report_result(WorkResult(LEAVE, ok=True))
    fleet.a.client.update(LEFT, None, FOLLOWED, busy=False, read_node=False)
    fleet.a.client.end(leaves=True)
    assert not fleet.store.holders()


def test_a_plugin_that_fails_stops_the_second_node(fleet: Fleet) -> None:
    fleet.configure()
    fleet.leave_a()
    fleet.plugin_says("Failure", errors="no such CPU")
    why = "cri-resmgr is removed, but BalloonsPolicy kube-system/default: no such CPU"
    assert fleet.waits(fleet.b, 600.0) == f"the removal is stopped: it failed on node a: {why}"
    assert fleet.store.events["RolloutStopped"] == 1
    assert not fleet.store.holders()


def test_a_plugin_that_never_says_anything_stops_the_second_node(fleet: Fleet) -> None:
    fleet.configure()
    fleet.leave_a()
    began = fleet.clock.now
    while not fleet.store.events["RolloutStopped"]:
        for node in (fleet.a, fleet.b):
            node.wants = REMOVAL if node is fleet.b else None
            fleet.waits(fleet.b, 5.0)
        fleet.a.goes_on(5.0)
    assert RULES.hold_seconds / 2 <= fleet.clock.now - began < RULES.hold_seconds
    assert "no NRI plugin reports yet that it serves this node" in fleet.waits(fleet.b, 600.0)


class Removals:
    """Three nodes, and removals of them one after another, each with its own DaemonSet of the same name."""

    def __init__(self) -> None:
        self.store = Store()
        self.store.size(3)
        metadata = {"name": "default", "namespace": "kube-system", "generation": 1}
        path = f"{PLACE}/balloonspolicies/default"
        self.store.put(path, {"kind": "BalloonsPolicy", "metadata": metadata})
        self.nodes = trio(self.store, replace(RULES, successor="kube-system"))
        self.begin()

    def begin(self) -> None:
        self.store.now += 3600
        created = {"creationTimestamp": plain_time(self.store.now)}
        self.store.put(DAEMONSET, merge(self.store.objects[DAEMONSET], {"metadata": created}))


@pytest.mark.parametrize("ok", [True, False])
def test_a_second_removal_begins_with_canaries_however_the_first_has_ended(ok: bool) -> None:
    removals = Removals()
    a, b, c = removals.nodes
    assert a.begin(REMOVAL).canary
    a.end(ok=ok, work=REMOVAL)
    removals.store.now += RULES.soak_seconds + 1
    assert b.begin(REMOVAL).granted is ok
    b.end(work=REMOVAL)
    removals.begin()
    assert c.begin(REMOVAL).canary
    assert (b.begin(REMOVAL).granted, b.begin(REMOVAL).why) == (False, "other nodes go first")
    c.end(work=REMOVAL)
    removals.store.now += RULES.soak_seconds + 1
    assert b.begin(REMOVAL).granted


def test_the_failure_of_an_earlier_removal_is_not_shown_as_that_of_this_one() -> None:
    removals = Removals()
    a, _, _ = removals.nodes
    a.begin(REMOVAL)
    a.end(ok=False, work=REMOVAL)

    def is_stopped() -> bool:
        daemon_set = removals.store.objects[DAEMONSET]
        installed = Installed("ours", "installer", "installer", Mode.REMOVE, "image:1", daemon_set)
        leases: list[Any] = [
            found for path, found in removals.store.objects.items() if path.startswith(LEASES)
        ]
        return build_rollout(installed, read_leases(leases, removals.store.now, RULES), RULES, ()).is_stopped

    assert is_stopped()
    removals.begin()
    assert not is_stopped()


def test_a_plugin_that_stays_silent_is_a_failure_also_where_the_pod_is_replaced(fleet: Fleet) -> None:
    """However late: the report comes before the permit expires."""
    fleet.configure()
    fleet.leave_a()
    fleet.a.goes_on(RULES.hold_seconds / 2 - 30)
    fleet.a.ends()
    later = MemberNode(fleet.store, fleet.clock, "a", fleet.a.files, FOLLOWED)
    fleet.clock.run(fleet.clock.now + 20)
    later.busy = True
    later.goes_on(20)
    later.busy = False
    later.client.update(LEFT, None, FOLLOWED, busy=False, read_node=False)
    later.is_ready(True)
    later.goes_on(RULES.hold_seconds)
    assert fleet.store.events["RolloutStopped"] == 1
    assert not fleet.store.holders()


def test_the_resource_of_the_node_goes_before_its_groups_and_that_before_the_default() -> None:
    node = {"metadata": {"name": "n1", "labels": {"config.nri/group": "big"}}}
    names = [[path.rpartition("/")[2] for path in paths] for paths in resource_paths("ns", node)]
    assert names == [["node.n1", "group.big", "default"]] * 2
    alone = [len(paths) for paths in resource_paths("ns", {"metadata": {"name": "n1"}})]
    assert alone == [2, 2]


@pytest.mark.parametrize("status", [None, [], {"nodes": []}, {"nodes": {"n1": 7}}, {"nodes": {"n1": {}}}])
def test_a_status_of_another_form_says_nothing(status: object) -> None:
    resource = {"kind": "BalloonsPolicy", "metadata": {"generation": 2}, "status": status}
    assert judge([resource], "n1")[1] is False


def test_a_node_that_was_left_has_the_label_for_the_chart() -> None:
    from datetime import UTC, datetime

    from installer.cluster.node_status import Report, build_status_patch, extract_ours

    now = datetime(2026, 1, 2, tzinfo=UTC).timestamp()
    report, _ = Report().observe(LEFT, 0.0)
    node = {"metadata": {"name": "n1", "labels": {"os": "linux"}}}
    patch = build_status_patch(node, report.node, now)
    assert patch is not None
    assert patch["metadata"]["labels"] == {SUCCESSOR_LABEL: "nri"}
    node = merge(node, patch)
    assert build_status_patch(extract_ours(node), report.node, now) is None
    back, _ = report.observe(DaemonState(Mode.INSTALL, Phase.CONVERGED, ready=True, serves=True), 1.0)
    patch = build_status_patch(node, back.node, now)
    assert patch is not None
    assert patch["metadata"]["labels"][SUCCESSOR_LABEL] is None
