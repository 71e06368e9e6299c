"""What a Shoot says of its nodes: on which our pods do not do yet what they are there for, and why. From the
DaemonSets, their pods, the nodes and the events of the Shoot; `judge` is pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from installer.gardener.seen import Pod, SeenNode, items_of, parse_node, parse_pod
from installer.model.daemon import Phase
from installer.model.instant import plain_time
from installer.model.names import COMPONENT_LABEL, COMPONENTS, OURS, Mode
from installer.operator.api import CORE_EVENTS, DAEMON_SETS, NODES, PODS, ApiError, KubeApi
from installer.operator.kube_objects import Object, cut_line, mapping_at, number_at, text_at

_COMPONENT = ("metadata", "labels", COMPONENT_LABEL)
_NAMED = 5  # nodes in a message
_PATIENCE = timedelta(minutes=5)  # so long a pod may take for a change, or to come to a new node
SILENCE = timedelta(minutes=10)  # a node that is not heard of so long is not waited for


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    why: str


@dataclass(frozen=True, slots=True)
class Nodes:
    """`left`: the pod there is not ready, for longer than that takes. `silent`: the node says nothing.
    `given_up`: silent for too long to wait for. `pending`: what is still on its way. `unknown`: why nothing
    is known. `count`: how many nodes are selected. `installed`, of a removal: a DaemonSet of the installation
    is there, and nobody is deleting it."""

    count: int = 0
    left: tuple[Node, ...] = ()
    silent: tuple[Node, ...] = ()
    given_up: tuple[Node, ...] = ()
    pending: str = ""
    unknown: str = ""
    installed: bool = False

    @property
    def done(self) -> bool:
        """On every node that can be reached."""
        return not (self.left or self.silent or self.pending or self.unknown)


def name_nodes(nodes: Sequence[Node]) -> str:
    """The first of them, with their reasons."""
    named = ", ".join(f"{each.name} ({each.why})" for each in nodes[:_NAMED])
    return named + (f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else "")


def ask_nodes(api: KubeApi, mode: Mode, now: datetime) -> Nodes:
    """One request where all is well, some more where it is not. A removal is done only where neither a
    DaemonSet nor a pod of an installation is left: whoever put them there, they would bring it back."""
    try:
        sets = {text_at(each, *_COMPONENT): each for each in items_of(api.list_pages(DAEMON_SETS, OURS))}
        if mode is Mode.REMOVE and (ending := _who_ends(api, sets.get(COMPONENTS[Mode.INSTALL]), now)):
            return ending
        daemon_set = sets.get(COMPONENTS[mode])
        if daemon_set is None:
            removal = "The removal is about to be applied in the Shoot."
            install = "Its DaemonSet is not in the Shoot yet."
            return Nodes(pending=removal if mode is Mode.REMOVE else install)
        if _is_done(daemon_set):
            return Nodes(count=number_at(daemon_set, "status", "desiredNumberScheduled"))
        pods = _pods(api, mode, text_at(daemon_set, "metadata", "namespace"))
        return judge(daemon_set, pods, _nodes_of(api, daemon_set), now, lambda node: _said_of(api, node))
    except ApiError as error:
        return Nodes(unknown=f"The Shoot's API server does not list its nodes: {error}")


def _pods(api: KubeApi, mode: Mode, namespace: str = "") -> list[Pod]:
    selector = f"{OURS},{COMPONENT_LABEL}={COMPONENTS[mode]}"
    return [parse_pod(each) for each in items_of(api.list_pages(PODS, selector, namespace))]


def _nodes_of(api: KubeApi, daemon_set: Object) -> list[SeenNode]:
    wanted = mapping_at(daemon_set, "spec", "template", "spec", "nodeSelector")
    selector = ",".join(f"{key}={value}" for key, value in sorted(wanted.items()))
    return [parse_node(each) for each in items_of(api.list_pages(NODES, selector))]


def _who_ends(api: KubeApi, installed: Object | None, now: datetime) -> Nodes | None:
    """What is left of an installation; None if there is nothing, but on nodes that are not waited for.

    Raises ApiError.
    """
    pods = _by_node(_pods(api, Mode.INSTALL))
    if installed is None and not pods:
        return None
    known = {each.name: each for each in _nodes_of(api, installed or {})} if pods else {}
    ending = list[Node]()
    for name in sorted(pods):
        since = known[name].silent if name in known else None
        if installed is not None or since is None or now - since <= SILENCE:
            ending.append(Node(name, silent_words(since) if since else "its installation pod is terminating"))
    if installed is None and not ending:
        return None
    ended = "The pods of the installation have ended, and its DaemonSet is still there."
    pending = f"Not yet clean: {name_nodes(ending)}." if ending else ended
    going = installed is None or bool(text_at(installed, "metadata", "deletionTimestamp"))
    return Nodes(pending=pending, installed=not going)


def judge(
    daemon_set: Object,
    pods: Iterable[Pod],
    nodes: Iterable[SeenNode],
    now: datetime,
    said_of: Callable[[str], str],
) -> Nodes:
    """`said_of` has the last complaint of a node, or nothing."""
    by_name = {each.name: each for each in nodes}
    left, silent, given_up, young = list[Node](), list[Node](), list[Node](), list[str]()
    ready, has_pod = set[str](), _by_node(pods)
    for name, pod in sorted(has_pod.items()):
        node = by_name.get(name, SeenNode(name))
        since = node.silent
        if pod.ready:
            ready.add(name)
        elif since is not None:
            (given_up if now - since > SILENCE else silent).append(Node(name, silent_words(since)))
        elif node.state == Phase.WAITING:
            young.append(name)  # for a permit, however long that takes
        elif now - pod.created < _PATIENCE and not pod.complaint:
            young.append(name)
        else:
            said = "" if len(left) >= _NAMED else _why(node, pod) or said_of(name)
            left.append(Node(name, said or "its pod is not Ready"))
    count = number_at(daemon_set, "status", "desiredNumberScheduled")
    seen = len(ready) + len(left) + len(silent) + len(given_up) + len(young)
    for name, node in sorted(by_name.items()):
        since = node.silent
        if seen < count and name not in has_pod and since is not None and now - since > SILENCE:
            given_up.append(Node(name, silent_words(since)))
            seen += 1
    pending = _pending(daemon_set, count, seen, young, len(given_up))
    return Nodes(count, tuple(left), tuple(silent), tuple(given_up), pending)


def _pending(daemon_set: Object, count: int, seen: int, young: Sequence[str], given_up: int) -> str:
    if not _is_observed(daemon_set):
        return "The Shoot has not taken up the new DaemonSet yet."
    if young:
        more = f" and {len(young) - _NAMED} more" if len(young) > _NAMED else ""
        return f"Under way on {', '.join(young[:_NAMED])}{more}."
    if seen < count:
        return f"{count - seen} of {count} nodes have no pod yet."
    updated = number_at(daemon_set, "status", "updatedNumberScheduled")
    if updated + given_up < count:
        return f"{updated} of {count} nodes have the new pod."
    return ""


def _is_observed(daemon_set: Object) -> bool:
    generation = mapping_at(daemon_set, "metadata").get("generation")
    return mapping_at(daemon_set, "status").get("observedGeneration") == generation


def _is_done(daemon_set: Object) -> bool:
    count = number_at(daemon_set, "status", "desiredNumberScheduled")
    done = ("updatedNumberScheduled", "numberAvailable", "numberReady")
    numbers = [number_at(daemon_set, "status", key) for key in done]
    return _is_observed(daemon_set) and numbers == [count] * 3


def _by_node(pods: Iterable[Pod]) -> Mapping[str, Pod]:
    """The pod of each node; of two, the one that stays."""
    found: dict[str, Pod] = {}
    for pod in pods:
        if pod.node and (pod.node not in found or not pod.going):
            found[pod.node] = pod
    return found


def silent_words(since: datetime) -> str:
    return f"silent since {plain_time(since.timestamp())}"


def _why(node: SeenNode, pod: Pod) -> str:
    if said := ": ".join(word for word in (node.state, node.reason) if word):
        return cut_line(said)
    return pod.complaint or (f"not Ready: {node.unready}" if node.unready else "")


def _said_of(api: KubeApi, node: str) -> str:
    """The last warning of the installer on it. It is one of the node's events, as kubelet's are."""
    chosen = f"involvedObject.kind=Node,involvedObject.name={node},type=Warning"
    try:
        last, said = "", ""
        for each in items_of(api.list_pages(CORE_EVENTS, "", "default", fields=chosen)):
            when = text_at(each, "lastTimestamp")
            if text_at(each, "source", "component") == "cri-resmgr-installer" and when >= last:
                last, said = when, cut_line(f"{text_at(each, 'reason')}: {text_at(each, 'message')}")
        return said
    except ApiError:
        return ""
