"""Judges the nodes of a Shoot: on which our pods do not do yet what they are there for, and why. By the
DaemonSets, their pods and the nodes. A Shoot may have thousands of them, and its API server may be hostile:
of each object only a few short texts are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from installer.model.daemon import Phase
from installer.model.event import name_some
from installer.model.instant import parse_time, plain_time
from installer.model.names import COMPONENT_LABEL, COMPONENTS, Mode, our_selector
from installer.operator.api import DAEMON_SETS, NODES, PODS, KubeApi
from installer.operator.homes import SYSTEM, namespace_of
from installer.operator.judge import PodView, read_pods, read_status
from installer.operator.kube_objects import (
    Object,
    condition_of,
    cut_line,
    is_observed,
    is_rolled_out,
    mapping_at,
    number_at,
    silent_since,
    text_at,
)

_COMPONENT = ("metadata", "labels", COMPONENT_LABEL)
_NAME = 253  # characters of a DNS name (RFC 1123)
_NAMED = 5  # nodes in a message
_PATIENCE = 300.0  # seconds for a pod to make a change, or to appear on a new node
SILENCE = 600.0  # seconds; after them, a silent node is given up


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    why: str


@dataclass(frozen=True, slots=True)
class Nodes:
    """`left`: nodes whose pod has not been ready for too long. `silent`: nodes whose kubelet is silent.
    `given_up`: silent for too long to wait for. `pending`: what is still under way. `unknown`: why nothing
    is known. `count`: how many nodes are selected. `installed`, of a removal: there is a DaemonSet of the
    installation that no one is deleting."""

    count: int = 0
    left: tuple[Node, ...] = ()
    silent: tuple[Node, ...] = ()
    given_up: tuple[Node, ...] = ()
    pending: str = ""
    unknown: str = ""
    installed: bool = False

    @property
    def done(self) -> bool:
        """Whether the work is done on every reachable node."""
        return not (self.left or self.silent or self.pending or self.unknown)


@dataclass(frozen=True, slots=True)
class NodeState:
    """`silent`: since when its kubelet is silent, None if it is not. `unready`: why it is not Ready, as
    kubelet says. `state` and `reason` are what the installer in `pod` has said there, empty if it says
    nothing."""

    silent: float | None = None
    unready: str = ""
    state: str = ""
    reason: str = ""
    pod: str = ""


def read_nodes(nodes: Iterable[Object]) -> dict[str, NodeState]:
    """Return the nodes by their names."""
    found = dict[str, NodeState]()
    for node in nodes:
        ready, status = condition_of(node, "Ready"), read_status(mapping_at(node, "metadata"))
        found[cut_line(text_at(node, "metadata", "name"), _NAME)] = NodeState(
            silent_since(node),
            cut_line(text_at(ready, "message")) if ready.get("status") == "False" else "",
            status.get("state", ""),
            cut_line(status.get("reason", "")),
            status.get("pod", ""),
        )
    return found


def name_nodes(nodes: Sequence[Node]) -> str:
    """Return the first of them, with their reasons."""
    return name_some([f"{each.name} ({each.why})" for each in nodes], _NAMED)


def ask_nodes(api: KubeApi, instance: str, mode: Mode, now: float) -> Nodes:
    """Judge the nodes: by one request where all is well, by some more otherwise. A removal is done only where
    neither a DaemonSet nor a pod of the installation is left: whoever created them, they would bring it back.

    Raises ApiError.
    """
    namespace, sets = _find_sets(api, instance)
    if mode is Mode.REMOVE:
        pods = _pods(api, instance, Mode.INSTALL, namespace)
        if ending := _find_ending(api, sets.get(COMPONENTS[Mode.INSTALL]), pods, now):
            return ending
    daemon_set = sets.get(COMPONENTS[mode])
    if daemon_set is None:
        removal = "The removal is about to be applied in the Shoot."
        install = "Its DaemonSet is not in the Shoot yet."
        return Nodes(pending=removal if mode is Mode.REMOVE else install)
    if is_rolled_out(daemon_set):
        return Nodes(count=number_at(daemon_set, "status", "desiredNumberScheduled"))
    pods = _pods(api, instance, mode, namespace)
    return judge(daemon_set, pods, _nodes_of(api, daemon_set), now)


def _find_sets(api: KubeApi, instance: str) -> tuple[str, dict[str, Object]]:
    """Return the namespace of the DaemonSets, and these by their components. In other namespaces, anyone may
    have created one with our labels. Raises ApiError."""

    def list_in(namespace: str) -> dict[str, Object]:
        listed = api.list_objects(DAEMON_SETS, our_selector(instance), namespace)
        return {text_at(daemon_set, *_COMPONENT): daemon_set for daemon_set in listed}

    if sets := list_in(SYSTEM):
        return SYSTEM, sets
    namespace = namespace_of(api, instance)
    return namespace, {} if namespace == SYSTEM else list_in(namespace)


def _pods(api: KubeApi, instance: str, mode: Mode, namespace: str) -> dict[str, PodView]:
    """Return the pods of one mode by their nodes."""
    return by_node(api.list_objects(PODS, our_selector(instance, mode), namespace))


def by_node(pods: Iterable[Object]) -> dict[str, PodView]:
    return {name: pod for (name, _), pod in sorted(read_pods(pods).items()) if name}


def _nodes_of(api: KubeApi, daemon_set: Object) -> dict[str, NodeState]:
    wanted = mapping_at(daemon_set, "spec", "template", "spec", "nodeSelector")
    selector = ",".join(f"{key}={value}" for key, value in sorted(wanted.items()))
    return read_nodes(api.list_objects(NODES, selector))


def _find_ending(
    api: KubeApi, installed: Object | None, pods: Mapping[str, PodView], now: float
) -> Nodes | None:
    """Return what is left of an installation; None if nothing is left, except on nodes that are given up.

    Raises ApiError.
    """
    if installed is None and not pods:
        return None
    nodes = _nodes_of(api, installed or {}) if pods else {}
    ending = list[Node]()
    for name in pods:
        since = nodes.get(name, NodeState()).silent
        if installed is not None or since is None or now - since <= SILENCE:
            is_ending = "its installation pod is terminating"
            ending.append(Node(name, is_ending if since is None else describe_silence(since)))
    if installed is None and not ending:
        return None
    ended = "The pods of the installation have ended, and its DaemonSet is still there."
    pending = f"Not yet clean: {name_nodes(ending)}." if ending else ended
    going = installed is None or bool(text_at(installed, "metadata", "deletionTimestamp"))
    return Nodes(pending=pending, installed=not going)


def judge(
    daemon_set: Object, pods: Mapping[str, PodView], nodes: Mapping[str, NodeState], now: float
) -> Nodes:
    """`pods` are by their nodes. Pure."""
    left, silent, given_up, young = list[Node](), list[Node](), list[Node](), list[str]()
    for name, pod in pods.items():
        node = nodes.get(name, NodeState())
        if node.pod not in ("", pod.name):  # an earlier pod has said it
            node = replace(node, state="", reason="")
        since = node.silent
        if pod.ready:
            continue
        if since is not None:
            (given_up if now - since > SILENCE else silent).append(Node(name, describe_silence(since)))
        elif node.state == Phase.WAITING:
            young.append(name)  # it waits for a permit, however long that takes
        elif now - parse_time(pod.created) < _PATIENCE and not pod.complaint:
            young.append(name)
        else:
            left.append(Node(name, _why(node, pod)))
    count, seen = number_at(daemon_set, "status", "desiredNumberScheduled"), len(pods)
    for name, node in sorted(nodes.items()):
        since = node.silent
        if seen < count and name not in pods and since is not None and now - since > SILENCE:
            given_up.append(Node(name, describe_silence(since)))
            seen += 1
    pending = _pending(daemon_set, count, seen, young, len(given_up))
    return Nodes(count, tuple(left), tuple(silent), tuple(given_up), pending)


def _pending(daemon_set: Object, count: int, seen: int, young: Sequence[str], given_up: int) -> str:
    if not is_observed(daemon_set):
        return "The Shoot's DaemonSet controller has not observed the new DaemonSet yet."
    if young:
        return f"Under way on {name_some(young, _NAMED)}."
    if seen < count:
        return f"{count - seen} of {count} nodes have no pod yet."
    updated = number_at(daemon_set, "status", "updatedNumberScheduled")
    if updated + given_up < count:
        return f"{updated} of {count} nodes have the new pod."
    return ""


def describe_silence(since: float) -> str:
    return f"silent since {plain_time(since)}"


def _why(node: NodeState, pod: PodView) -> str:
    if said := ": ".join(word for word in (node.state, node.reason) if word):
        return cut_line(said)
    return pod.complaint or (f"not Ready: {node.unready}" if node.unready else "its pod is not Ready")
