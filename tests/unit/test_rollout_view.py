"""What `rollout status` and `report` say of a rollout: of the generation that is asked for, and of whom it
waits for. What became of earlier ones is history."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from installer.cluster.breaker import Breaker, Failure, build_breaker
from installer.cluster.leases import Permit, build_permit
from installer.model.daemon import Phase
from installer.model.fleet import FleetRules
from installer.model.names import COMPONENTS, STATUS, Mode
from installer.model.overview import NodeHealth, NodeView, Progress, Rollout, WindowView
from installer.operator.api import CONFIG_MAPS, DAEMON_SETS, LEASES, NODES, PODS, KubeApi, Page, Resource
from installer.operator.homes import CLUSTER_ROLE_BINDINGS
from installer.operator.inventory import Installed, find_installations
from installer.operator.judge import judge_nodes
from installer.operator.rollout import see_rollouts
from installer.operator.rollout_view import build_rollout, read_leases
from installer.report.rollout import print_rollouts, rollout_json
from tests.lib.rules import rule

NOW = 1_800_000_000.0
RULES = FleetRules()
PLACE = "installer-rollout"
GOOD = Breaker("good", begun=NOW - 9000, canaries={"n1": NOW - 9000}, succeeded=frozenset({"n1"}), passed=NOW)
BAD = Breaker("bad", begun=NOW - 5000, failures={"n2": Failure(NOW - 4900, "it exits at once")})


def installed(mode: Mode = Mode.INSTALL, nodes: int = 3, updated: int = 3) -> Installed:
    name = "installer" if mode is Mode.INSTALL else "installer-removal"
    status = {"desiredNumberScheduled": nodes, "numberUnavailable": 1, "updatedNumberScheduled": updated}
    metadata = {"name": name, "namespace": "ours", "generation": 2}
    daemon_set = {"metadata": metadata, "status": {"observedGeneration": 2, **status}}
    return Installed("ours", name, "installer", mode, "image:1", daemon_set)


def view(*breakers: Breaker, nodes: tuple[NodeView, ...] = (), what: Installed | None = None) -> Rollout:
    what = what or installed()
    leases: list[Any] = [build_breaker(breaker, PLACE, RULES, 3) for breaker in breakers]
    return build_rollout(what, read_leases(leases, NOW, RULES), RULES, nodes)


def node(name: str, wanted: str, health: NodeHealth = NodeHealth.WELL, **more: Any) -> NodeView:
    given: dict[str, Any] = {"mode": Mode.INSTALL, "instance": "installer", "ready": True} | more
    return NodeView(name, health, wanted=wanted, **given)


def test_the_status_of_a_rollout_says_how_long_it_will_take() -> None:
    stream = io.StringIO()
    assert print_rollouts((view(GOOD),), "text", stream, Progress(2, 1, 0, 120, 1500)) == 0
    last = stream.getvalue().splitlines()[-1]
    assert last == "nodes at work: 1, waiting for a permit: 2; 120 per hour, about 25 min left"


def said(*seen: Rollout) -> tuple[int, str]:
    stream = io.StringIO()
    code = print_rollouts(seen, "text", stream)
    return code, stream.getvalue()


@rule("R13")
def test_a_stopped_generation_that_nobody_asks_for_is_history() -> None:
    """The corrected one has converged everywhere: a pipeline that looks goes on."""
    code, text = said(view(BAD, GOOD, nodes=(node("n1", "good"), node("n2", "good"))))
    assert (code, "stopped" in text) == (0, False)
    assert "wanted: generation good; nodes that have it: 2, waiting for a permit: 0" in text
    assert "earlier generations: bad" in text


@rule("R13")
def test_a_stopped_generation_that_is_asked_for_needs_a_person() -> None:
    waits = node("n3", "bad", NodeHealth.WORKING, phase=Phase.WAITING, ready=False)
    code, text = said(view(BAD, GOOD, nodes=(node("n1", "good", outdated=True), waits)))
    assert code == 3
    assert "wanted: generation bad; nodes that have it: 0, waiting for a permit: 1" in text
    assert "generation bad is stopped: it failed on node n2: it exits at once" in text
    assert "not done: 1 working, waiting (n3)" in text
    assert "earlier generations: good" in text


@rule("R13")
def test_permits_that_no_node_works_with_are_named_and_stop_everything() -> None:
    """`report` called a fleet well whose only permit a thief had dated ahead."""
    leases: list[Any] = [build_permit(Permit("permit-0"), PLACE, "n1/uid", NOW + 10_000, 86_400)]
    seen = build_rollout(installed(), read_leases(leases, NOW, RULES), RULES, (node("n1", "good"),))
    code, text = said(seen)
    assert code == 3
    assert "permits: 0 of 1 in use" in text
    assert "permit-0: its term is further ahead than any node dates it (`rollout retry` deletes it)" in text


def test_where_nodes_say_nothing_the_last_one_that_was_begun_is_asked_for() -> None:
    assert [each.generation for each in view(GOOD, BAD).generations if each.current] == ["bad"]
    assert view(GOOD, BAD).is_stopped


@rule("R13")
def test_a_removal_that_was_stopped_is_shown_by_the_removal_alone() -> None:
    failed = Breaker("removal", begun=NOW - 100, failures={"n1": Failure(NOW - 90, "no plugin serves it")})
    code, text = said(view(failed, GOOD, what=installed(Mode.REMOVE)))
    assert code == 3
    assert "the removal is stopped: it failed on node n1: no plugin serves it" in text
    code, text = said(view(failed, GOOD))
    assert code == 0
    assert "wanted: generation good" in text


def test_a_generation_that_the_first_node_has_refused_is_named_and_stands_still() -> None:
    refused = node("n1", "new", NodeHealth.TROUBLE, phase=Phase.REFUSED, reason="masked", ready=False)
    old = node("n2", "good", outdated=True)
    code, text = said(view(GOOD, nodes=(refused, old), what=installed(updated=1)))
    assert code == 3
    assert "wanted: generation new\n    no node has started it" in text
    assert "stalled: no node continues" in text
    assert "not done: 1 not ready, refused: masked (n1)" in text
    at_work = node("n3", "new", NodeHealth.WORKING, phase=Phase.CONVERGING)
    assert not view(nodes=(refused, at_work), what=installed(updated=1)).stuck


class Objects(KubeApi):
    """An API server's lists."""

    def __init__(self, found: Mapping[Resource, list[dict[str, Any]]]) -> None:
        self._found = found

    def now(self) -> float:
        return NOW

    def list_pages(
        self, resource: Resource, selector: str = "", namespace: str = "", fields: str = ""
    ) -> Iterator[Page]:
        found = [each for each in self._found.get(resource, ()) if self._is_in(each, namespace)]
        yield Page(tuple(found), "")

    @staticmethod
    def _is_in(found: dict[str, Any], namespace: str) -> bool:
        return not namespace or found["metadata"].get("namespace") == namespace

    def get(self, resource: Resource, namespace: str, name: str) -> Any:
        return next(each for each in self._found[resource] if each["metadata"]["name"] == name)


def pod(mode: Mode, created: int, ready: bool, revision: str = "", **more: Any) -> dict[str, Any]:
    labels = {"app.kubernetes.io/component": COMPONENTS[mode], "controller-revision-hash": revision}
    labels |= {"app.kubernetes.io/instance": "installer"}
    times = {"creationTimestamp": f"2027-01-0{created}T00:00:00Z"}
    owner = {"ownerReferences": [{"kind": "DaemonSet", "uid": f"installer-{mode}"}]}
    conditions = [{"type": "Ready", "status": str(ready)}]
    return {
        "metadata": {"name": f"p{created}", "namespace": "ours", "labels": labels} | times | owner | more,
        "spec": {"nodeName": "n1"},
        "status": {"phase": "Running", "conditions": conditions},
    }


def daemon_set(mode: Mode, updated: int = 1, observed: int = 1) -> dict[str, Any]:
    labels = {"app.kubernetes.io/instance": "installer", "app.kubernetes.io/component": COMPONENTS[mode]}
    name = {"name": f"i-{mode}", "namespace": "ours", "uid": f"installer-{mode}", "labels": labels}
    counts = {"desiredNumberScheduled": 1, "updatedNumberScheduled": updated, "observedGeneration": observed}
    return {"metadata": name | {"generation": 1}, "spec": {"template": {"spec": {}}}, "status": counts}


THE_NODE = {
    "metadata": {"name": "n1", "labels": {"a": "b"}, "annotations": {STATUS: '{"state": "converged"}'}},
    "status": {"conditions": [{"type": "Ready", "status": "True"}]},
}
ENDS = {"deletionTimestamp": "2027-01-09T00:00:00Z"}


@rule("R13")
@pytest.mark.parametrize(
    ("pods", "ready"),
    [
        ([pod(Mode.INSTALL, 1, True), pod(Mode.INSTALL, 2, False)], False),
        ([pod(Mode.INSTALL, 2, False), pod(Mode.INSTALL, 1, True)], False),
        ([pod(Mode.INSTALL, 1, True), pod(Mode.INSTALL, 2, False, **ENDS)], True),
        ([pod(Mode.INSTALL, 2, False) | {"status": {"phase": "Failed"}}, pod(Mode.INSTALL, 1, True)], True),
    ],
    ids=["the newer one", "in any order", "not one that ends", "not one that was evicted"],
)
def test_of_two_pods_of_a_node_the_one_that_is_there_now_counts(
    pods: list[dict[str, Any]], ready: bool
) -> None:
    found = {DAEMON_SETS: [daemon_set(Mode.INSTALL)], PODS: pods, NODES: [THE_NODE]}
    api = Objects(found)
    (seen,) = judge_nodes(api, find_installations(api, "ours")).nodes
    assert seen.ready is ready


@rule("R13")
def test_a_pod_that_finds_no_place_on_its_node_says_why() -> None:
    """It names its node only in the affinity that the DaemonSet's controller gives it."""
    fields = [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]
    required = {"nodeSelectorTerms": [{"matchFields": fields}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    why = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no free ports"}
    waits = {"spec": {"affinity": affinity}, "status": {"phase": "Pending", "conditions": [why]}}
    pods = [pod(Mode.INSTALL, 1, False) | waits]
    api = Objects({DAEMON_SETS: [daemon_set(Mode.INSTALL)], PODS: pods, NODES: [THE_NODE]})
    (seen,) = judge_nodes(api, find_installations(api, "ours")).nodes
    assert (seen.health, seen.reason) == (NodeHealth.TROUBLE, "Unschedulable: no free ports")


@rule("R13")
def test_what_a_node_without_a_pod_has_asked_for_is_history() -> None:
    nodes = [
        THE_NODE | {"metadata": {"name": name, "annotations": {STATUS: f'{{"wanted": "{wanted}"}}'}}}
        for name, wanted in (("n1", "good"), ("without", "bad"))
    ]
    found = {DAEMON_SETS: [daemon_set(Mode.INSTALL)], PODS: [pod(Mode.INSTALL, 1, True)], NODES: nodes}
    api = Objects({**found, LEASES: [build_breaker(BAD, PLACE, RULES, 2)]})
    installations = find_installations(api, "ours")
    (seen,) = see_rollouts(api, installations, judge_nodes(api, installations).nodes)
    assert not seen.is_stopped
    assert [each.generation for each in seen.generations if each.current] == ["good"]


def test_a_rollout_is_one_whichever_daemonsets_work_on_it() -> None:
    """While `uninstall` works there are two, and the removal is what nodes do."""
    sets = [daemon_set(Mode.INSTALL), daemon_set(Mode.REMOVE)]
    bad = build_breaker(BAD, PLACE, RULES, 1)
    api = Objects({DAEMON_SETS: sets, LEASES: [bad], NODES: [THE_NODE]})
    both = (installed(), installed(Mode.REMOVE, nodes=2))
    awaited = node("n9", "", NodeHealth.SILENT, mode=Mode.REMOVE, reason="its kubelet is silent")
    (seen,) = see_rollouts(api, both, (awaited, node("n1", "", mode=Mode.REMOVE)))
    code, text = said(seen)
    assert code == 0  # which generation was stopped is no matter any more
    assert text.startswith("ours/installer-removal, a removal: 1 of 2 pods are available\n")
    assert "not done: 1 silent: its kubelet is silent (n9)" in text


@rule("R13")
def test_each_of_two_installations_is_told_of_its_own_nodes() -> None:
    """Each has a pool of its own, and pods that the other's DaemonSet knows nothing of."""
    found: dict[Resource, list[dict[str, Any]]] = {
        DAEMON_SETS: [],
        PODS: [],
        NODES: [],
        CLUSTER_ROLE_BINDINGS: [],
    }
    for at, name in enumerate(("a", "b"), start=1):
        ours = {"app.kubernetes.io/instance": name}
        each, one = daemon_set(Mode.INSTALL), pod(Mode.INSTALL, at, True, revision=f"of-{name}")
        each["metadata"]["labels"] |= ours
        each["metadata"] |= {"name": name, "uid": name}
        one["metadata"]["ownerReferences"] = [{"kind": "DaemonSet", "uid": name}]
        account = {"kind": "ServiceAccount", "name": name, "namespace": "ours"}
        found[CLUSTER_ROLE_BINDINGS].append(
            {"metadata": {"name": name, "labels": ours}, "subjects": [account]}
        )
        each["spec"]["template"]["spec"]["nodeSelector"] = {"pool": name}
        one["metadata"]["labels"] |= ours
        one["spec"]["nodeName"] = name
        says = {STATUS: f'{{"state": "failed", "reason": "full", "wanted": "wanted-{name}"}}'}
        head = {"metadata": {"name": name, "labels": {"pool": name}, "annotations": says}}
        for resource, new in ((DAEMON_SETS, each), (PODS, one), (NODES, THE_NODE | head)):
            found[resource].append(new)
    api = Objects(found)
    installations = find_installations(api)
    overview = judge_nodes(api, installations)
    assert not any(each.outdated for each in overview.nodes)
    seen = see_rollouts(api, installations, overview.nodes)
    assert [[group.nodes for group in each.awaited] for each in seen] == [[("a",)], [("b",)]]
    wanted = [[generation.generation for generation in each.generations] for each in seen]
    assert wanted == [["wanted-a"], ["wanted-b"]]


def looked_at(pods: list[dict[str, Any]], says: Mapping[str, str], **counts: int) -> tuple[int, str]:
    """What `rollout status` says of nodes on which the generation `bad` was refused before it began."""
    names = dict.fromkeys(each["spec"]["nodeName"] for each in pods)
    nodes = [
        THE_NODE
        | {"metadata": {"name": name, "annotations": {STATUS: json.dumps({"state": "refused", **says})}}}
        for name in names
    ]
    found = {DAEMON_SETS: [daemon_set(Mode.INSTALL, **counts)], PODS: pods, NODES: nodes}
    api = Objects({**found, LEASES: [build_breaker(GOOD, PLACE, RULES, 2)]})
    installations = find_installations(api, "ours")
    return said(*see_rollouts(api, installations, judge_nodes(api, installations).nodes))


@rule("R13")
@pytest.mark.parametrize(
    ("pods", "says", "counts"),
    [
        ([pod(Mode.INSTALL, 1, False, "r1")], {"wanted": "bad", "pod": "p1"}, {"observed": 0}),
        ([pod(Mode.INSTALL, 1, False, "r1")], {"wanted": "bad", "pod": "p1"}, {"updated": 0}),
        ([pod(Mode.INSTALL, 2, False, "r2")], {"wanted": "bad", "pod": "p1"}, {}),
        ([pod(Mode.INSTALL, 2, False, "r2")], {"wanted": "", "pod": "p2", "state": "converging"}, {}),
    ],
    ids=["not observed", "no new pod yet", "the new pod has not reported", "its first pass is at work"],
)
def test_what_is_asked_for_is_not_known_before_a_new_pod_has_said_it(
    pods: list[dict[str, Any]], says: Mapping[str, str], counts: Mapping[str, int]
) -> None:
    """A person has corrected a generation, and looks at once whether it is taken up."""
    code, text = looked_at(pods, says, **counts)
    assert "wanted: not known yet, because no pod of the present template has reported" in text
    assert "wanted: generation" not in text
    assert "stalled" not in text
    assert code == 0


@rule("R13")
def test_the_new_pod_has_said_what_is_asked_for() -> None:
    code, text = looked_at([pod(Mode.INSTALL, 2, False, "r2")], {"wanted": "bad", "pod": "p2"})
    assert "wanted: generation bad\n    no node has started it" in text
    assert "stalled" not in text  # its own pod is the only one
    assert code == 0


def test_an_annotation_that_names_no_pod_is_believed() -> None:
    """An earlier version has written it."""
    _, text = looked_at([pod(Mode.INSTALL, 2, False, "r2")], {"wanted": "old"})
    assert "wanted: generation old" in text


@rule("R13")
def test_a_person_who_goes_back_to_the_last_template_asks_for_what_its_pods_have() -> None:
    """`kubectl rollout undo`: the pods that asked for the bad one are the newest for a while."""
    pods = [
        pod(Mode.INSTALL, at, True, revision) | {"spec": {"nodeName": f"n{at}"}}
        for at, revision in ((1, "r1"), (2, "r1"), (3, "r2"))
    ]
    for each in pods:
        each["metadata"] = each["metadata"] | {"name": each["spec"]["nodeName"]}
    nodes = [
        THE_NODE
        | {
            "metadata": {
                "name": f"n{at}",
                "annotations": {STATUS: json.dumps({"wanted": w, "pod": f"n{at}"})},
            }
        }
        for at, w in ((1, "good"), (2, "good"), (3, "bad"))
    ]
    found = {PODS: pods, NODES: nodes, LEASES: [build_breaker(BAD, PLACE, RULES, 3)]}
    for updated, wanted in ((2, "good"), (1, "bad")):
        api = Objects({DAEMON_SETS: [daemon_set(Mode.INSTALL, updated)], **found})
        installations = find_installations(api, "ours")
        (seen,) = see_rollouts(api, installations, judge_nodes(api, installations).nodes)
        assert [each.generation for each in seen.generations if each.current] == [wanted]


@rule("R13")
def test_what_an_earlier_pod_has_said_is_not_what_its_successor_lacks() -> None:
    """A pod that cannot start is named with its own reason."""
    waits = {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}
    broken = pod(Mode.INSTALL, 2, False, "r2")
    broken["status"] = broken["status"] | {"containerStatuses": [{"name": "installer", "state": waits}]}
    status = {STATUS: json.dumps({"state": "refused", "reason": "masked", "pod": "p1", "generation": "ab"})}
    node = THE_NODE | {"metadata": {"name": "n1", "annotations": status}}
    api = Objects({DAEMON_SETS: [daemon_set(Mode.INSTALL)], PODS: [broken], NODES: [node]})
    (seen,) = judge_nodes(api, find_installations(api, "ours")).nodes
    assert (seen.health, seen.phase, seen.generation) == (NodeHealth.TROUBLE, "", "ab")
    assert "ImagePullBackOff" in seen.reason
    assert "masked" not in seen.reason


def settings_map(window: str) -> dict[str, Any]:
    return {
        "metadata": {"name": "settings", "namespace": "ours"},
        "data": {"settings.yaml": f"rollout: {{window: {window}}}"},
    }


@rule("R13")
@pytest.mark.parametrize(
    ("window", "mode", "says"),
    [  # NOW is 2027-01-15T08:00:00Z, a Friday
        ("{from: 22:00, to: 06:00}", Mode.INSTALL, "window: closed; it opens at 2027-01-15T22:00:00Z"),
        ("{from: 07:00, to: 09:00}", Mode.INSTALL, "window: open until 2027-01-15T09:00:00Z"),
        ("{days: [Sat], from: 07:00, to: 09:00}", Mode.INSTALL, "it opens at 2027-01-16T07:00:00Z"),
        ("{from: 00:00, to: 24:00}", Mode.INSTALL, "window: always open"),
        ("{from: 22:00, to: 06:00}", Mode.REMOVE, ""),
    ],
)
def test_rollout_status_says_when_the_window_opens(window: str, mode: Mode, says: str) -> None:
    what = daemon_set(mode)
    volume = {"name": "settings", "configMap": {"name": "settings"}}
    what["spec"]["template"]["spec"]["volumes"] = [volume]
    api = Objects({DAEMON_SETS: [what], CONFIG_MAPS: [settings_map(window)]})
    code, text = said(*see_rollouts(api, find_installations(api, "ours"), ()))
    assert code == 0  # nothing is wrong
    assert says in text
    assert ("window:" in text) is bool(says)


def test_machines_read_the_window_and_a_zone_that_is_not_known_is_said() -> None:
    seen = replace(view(GOOD), window=WindowView(False, "2027-01-15T22:00:00Z"))
    assert rollout_json(seen)["window"] == {"open": False, "until": "2027-01-15T22:00:00Z", "fault": ""}
    assert rollout_json(view(GOOD))["window"] is None
    lost = replace(seen, window=WindowView(False, fault="there is no data of the time zone Mars/X"))
    assert "window: closed, because there is no data of the time zone Mars/X" in said(lost)[1]
