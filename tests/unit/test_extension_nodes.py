"""What a Shoot's DaemonSet, pods and nodes say: who is left, why, and who is not waited for."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from installer.gardener.nodes import Node, Nodes, ask_nodes, by_node, judge, name_nodes, read_nodes
from installer.model.instant import plain_time
from installer.model.names import STATUS, Mode
from installer.operator.api import DAEMON_SETS, NODES, PODS, KubeApi, Page, Resource

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp()


def ago(**duration: float) -> str:
    return plain_time(NOW - timedelta(**duration).total_seconds())


def daemon_set(desired: int, updated: int | None = None, observed: bool = True) -> dict[str, Any]:
    numbers = {
        "desiredNumberScheduled": desired,
        "updatedNumberScheduled": desired if updated is None else updated,
    }
    return {"metadata": {"generation": 2}, "status": {"observedGeneration": 2 if observed else 1, **numbers}}


def pod(node: str, ready: bool = False, since: str = "", **status: Any) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {
        "metadata": {"creationTimestamp": since or ago(hours=1)},
        "spec": {"nodeName": node},
        "status": {"conditions": conditions, **status},
    }


def node(name: str, ready: str = "True", since: str = "", **more: Any) -> dict[str, Any]:
    condition = {"type": "Ready", "status": ready, "lastTransitionTime": since or ago(hours=1), **more}
    return {"metadata": {"name": name}, "status": {"conditions": [condition]}}


def judged(desired: int, pods: list[dict[str, Any]], nodes: list[dict[str, Any]], **more: Any) -> Nodes:
    return judge(daemon_set(desired, **more), by_node(pods), read_nodes(nodes), NOW)


def test_all_is_well() -> None:
    found = judged(2, [pod("n1", ready=True), pod("n2", ready=True)], [node("n1"), node("n2")])
    assert found == Nodes(count=2)
    assert found.done


def test_a_node_that_is_silent_is_waited_for_and_then_given_up() -> None:
    shortly = judged(1, [pod("n1")], [node("n1", "Unknown", ago(minutes=9))])
    assert shortly.silent == (Node("n1", "silent since 2026-03-01T11:51:00Z"),)
    assert not shortly.done
    long = judged(1, [pod("n1")], [node("n1", "Unknown", ago(minutes=11))])
    assert [each.name for each in long.given_up] == ["n1"]
    assert long.done


def test_a_node_without_a_pod_is_given_up_only_if_it_is_silent() -> None:
    pods = [pod("n1", ready=True)]
    assert judged(2, pods, [node("n1"), node("n2", "Unknown")]).done
    assert judged(2, pods, [node("n1"), node("n2")]).pending == "1 of 2 nodes have no pod yet."


def test_a_node_that_is_not_ready_can_be_reached() -> None:
    """Its kubelet speaks, so its pods are run."""
    found = judged(1, [pod("n1")], [node("n1", "False", message="container runtime is down")])
    assert found.left == (Node("n1", "not Ready: container runtime is down"),)


def test_a_pod_whose_node_is_not_known_is_not_forgotten() -> None:
    assert [each.name for each in judged(1, [pod("n1")], []).left] == ["n1"]


def test_a_new_pod_has_its_time() -> None:
    found = judged(2, [pod("n1", ready=True), pod("n2", since=ago(minutes=4))], [node("n1"), node("n2")])
    assert (found.left, found.pending) == ((), "Under way on n2.")
    late = judged(1, [pod("n1", since=ago(minutes=6))], [node("n1")])
    assert late.left == (Node("n1", "its pod is not Ready"),)


def test_a_rollout_is_not_done() -> None:
    pods = [pod("n1", ready=True), pod("n2", ready=True)]
    nodes = [node("n1"), node("n2")]
    assert judged(2, pods, nodes, updated=1).pending == "1 of 2 nodes have the new pod."
    assert "not observed" in judged(2, pods, nodes, observed=False).pending


def test_of_two_pods_the_one_that_stays_counts() -> None:
    going = pod("n1", ready=True)
    going["metadata"]["deletionTimestamp"] = ago(minutes=1)
    for pods in ([going, pod("n1")], [pod("n1"), going]):
        assert [each.name for each in judged(1, pods, [node("n1")]).left] == ["n1"]
    assert judged(1, [going], [node("n1")]).left


@pytest.mark.parametrize(
    ("waiting", "why"),
    [
        ({"reason": "ImagePullBackOff", "message": "no such image"}, "ImagePullBackOff: no such image"),
        ({"reason": "ContainerCreating"}, "its pod is not Ready"),
    ],
)
def test_what_kubelet_says_of_the_pod(waiting: dict[str, str], why: str) -> None:
    stuck = pod("n1", containerStatuses=[{"state": {"waiting": waiting}}])
    assert judged(1, [stuck], [node("n1")]).left == (Node("n1", why),)


def test_what_the_installer_says_of_the_node() -> None:
    annotated = node("n1")
    said = json.dumps({"state": "refused", "reason": "no containerd"})
    annotated["metadata"]["annotations"] = {"cri-resource-manager.intel.com/installer": said}
    assert judged(1, [pod("n1")], [annotated]).left == (Node("n1", "refused: no containerd"),)


def test_a_node_that_waits_for_a_permit_is_under_way() -> None:
    """A canary is watched for longer than a pod gets to become Ready."""
    waits = node("n1")
    said = json.dumps({"state": "waiting", "reason": "canaries go first: n2"})
    waits["metadata"]["annotations"] = {"cri-resource-manager.intel.com/installer": said}
    found = judged(1, [pod("n1", since=ago(minutes=30))], [waits])
    assert (found.left, found.pending) == ((), "Under way on n1.")


def test_only_the_first_nodes_are_named() -> None:
    names = [f"n{number}" for number in range(8)]
    found = judged(8, [pod(name) for name in names], [node(name) for name in names])
    assert len(found.left) == 8
    assert name_nodes(found.left).endswith("n4 (its pod is not Ready) and 3 more")


class Shoot(KubeApi):
    """Its DaemonSets and pods by component, and its nodes; `asked` are the requests."""

    def __init__(self, daemon_sets: dict[str, Any], pods: dict[str, list[Any]], nodes: list[Any]) -> None:
        self._daemon_sets, self._pods, self._nodes = daemon_sets, pods, nodes
        self.asked: list[str] = []

    def list_pages(
        self, resource: Resource, selector: str = "", namespace: str = "", fields: str = ""
    ) -> list[Page]:
        self.asked.append(resource.plural)
        found = {NODES: self._nodes, DAEMON_SETS: [], PODS: []}.get(resource, [])
        if resource == DAEMON_SETS:
            for component, each in self._daemon_sets.items():
                each["metadata"]["labels"] = {"app.kubernetes.io/component": component}
                found.append(each)
        for component, pods in self._pods.items() if resource == PODS else ():
            found += pods if selector.endswith(f"={component}") else []
        return [Page(tuple(found[at : at + 1]), "1") for at in range(len(found))]


def test_before_the_removal_comes_the_pods_of_the_installation_end() -> None:
    """One on a node that is switched off does not, and is named with the reason."""
    pods = {"installation": [pod("n1"), pod("n2")]}
    shoot = Shoot({"installation": daemon_set(2)}, pods, [node("n1"), node("n2", "Unknown")])
    found = ask_nodes(shoot, "installer", Mode.REMOVE, NOW)
    assert not found.done
    silent = "n2 (silent since 2026-03-01T11:00:00Z)"
    assert found.pending == f"Not yet clean: n1 (its installation pod is terminating), {silent}."
    assert not ask_nodes(Shoot({}, {}, []), "installer", Mode.REMOVE, NOW).done


def removed(**installed: Any) -> Shoot:
    """The removal says that it is done on each of two nodes."""
    done = daemon_set(2)
    done["status"] |= dict.fromkeys(("numberAvailable", "numberReady"), 2)
    pods = {"installation": installed.get("pods", [])}
    sets = {"removal": done} | ({"installation": installed["set"]} if "set" in installed else {})
    return Shoot(sets, pods, [node("n1"), node("n2", "Unknown")])


def test_no_node_is_clean_while_an_installation_is_there() -> None:
    """Nobody may know of it any more: its pods would bring everything back."""
    assert ask_nodes(removed(), "installer", Mode.REMOVE, NOW).done
    found = ask_nodes(removed(set=daemon_set(2), pods=[pod("n1", ready=True)]), "installer", Mode.REMOVE, NOW)
    assert (found.done, found.installed) == (False, True)
    assert found.pending == "Not yet clean: n1 (its installation pod is terminating)."
    going = daemon_set(2)
    going["metadata"]["deletionTimestamp"] = ago(minutes=1)
    assert not ask_nodes(removed(set=going), "installer", Mode.REMOVE, NOW).installed
    assert not ask_nodes(removed(set=going), "installer", Mode.REMOVE, NOW).done
    assert not ask_nodes(removed(pods=[pod("n1")]), "installer", Mode.REMOVE, NOW).done
    assert ask_nodes(removed(pods=[pod("n2")]), "installer", Mode.REMOVE, NOW).done  # off for an hour


def test_a_healthy_shoot_costs_one_request() -> None:
    done = daemon_set(1)
    done["status"] |= dict.fromkeys(("numberAvailable", "numberReady"), 1)
    shoot = Shoot({"installation": done}, {}, [])
    assert ask_nodes(shoot, "installer", Mode.INSTALL, NOW).done
    assert shoot.asked == ["daemonsets"]


def test_words_of_a_shoot_are_short_and_can_be_seen() -> None:
    """They come into conditions, and from there onto terminals."""
    long, colour = "x" * 100_000, chr(27) + "[31m" + chr(0x202E)
    bad = pod(colour + long, containerStatuses=[{"state": {"waiting": {"reason": colour, "message": long}}}])
    annotated = node(colour + long)
    annotated["metadata"]["annotations"] = {STATUS: json.dumps({"state": colour + long, "reason": long})}
    for nodes in ([], [annotated]):
        said = name_nodes(judged(1, [bad], nodes).left)
        assert len(said) < 1000
        assert said.isprintable()


def test_a_pod_that_cannot_start_is_not_what_its_predecessor_said() -> None:
    """It waited for a permit, however long that takes. The new one has no image."""
    waits = node("n1")
    waits["metadata"]["annotations"] = {STATUS: '{"state": "waiting", "pod": "p1"}'}
    for name, left in (("p1", 0), ("p2", 1)):
        new = pod("n1")
        new["metadata"]["name"] = name
        assert len(judged(1, [new], [waits]).left) == left
