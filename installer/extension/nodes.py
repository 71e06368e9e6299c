"""What a Shoot says of its nodes: on which our pods do not do yet what they are there for, and why. From the
DaemonSet, its pods, the nodes and the events of the Shoot; `judge` is pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from installer.admin.find import Lists
from installer.kube.api import DAEMON_SETS, ApiError
from installer.kube.objects import (
    Object,
    complaint_of,
    condition_of,
    cut_line,
    is_ready_pod,
    mapping_at,
    number_at,
    parse_time,
    silent_since,
    text_at,
)
from installer.model.daemon import Phase
from installer.model.labels import COMPONENT_LABEL, COMPONENTS, OURS
from installer.model.state import Mode

_NAMED = 5  # nodes in a message
_PATIENCE = timedelta(minutes=5)  # so long a pod may take for a change, or to come to a new node
SILENCE = timedelta(minutes=10)  # a node that is not heard of so long is not waited for
_STATUS = "cri-resource-manager.intel.com/installer"  # the annotation with the value annotateNode


class ShootApi(Lists, Protocol):
    """See KubeClient."""

    def list_nodes(self, selector: str) -> tuple[Object, ...]: ...
    def list_pods(self, namespace: str, selector: str) -> tuple[Object, ...]: ...
    def list_events(self, namespace: str, selector: str) -> tuple[Object, ...]: ...


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    why: str


@dataclass(frozen=True, slots=True)
class Nodes:
    """`left`: the pod there is not ready, for longer than that takes. `silent`: the node says nothing.
    `given_up`: so long that nobody waits for it. `pending`: what is still on its way. `unknown`: why nothing
    is known. `count`: how many nodes are selected."""

    count: int = 0
    left: tuple[Node, ...] = ()
    silent: tuple[Node, ...] = ()
    given_up: tuple[Node, ...] = ()
    pending: str = ""
    unknown: str = ""

    @property
    def done(self) -> bool:
        """On every node that can be reached."""
        return not (self.left or self.silent or self.pending or self.unknown)


def name_nodes(nodes: Sequence[Node]) -> str:
    """The first of them, with their reasons."""
    named = ", ".join(f"{each.name} ({each.why})" for each in nodes[:_NAMED])
    return named + (f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else "")


def ask_nodes(api: ShootApi, mode: Mode, now: datetime) -> Nodes:
    """One request where all is well, some more where it is not."""
    install, selector = mode is Mode.INSTALL, _selector(mode)
    try:
        found = [each for page in api.list_pages(DAEMON_SETS, selector) for each in page.items]
        if not found:
            return Nodes(pending="Its DaemonSet is not in the Shoot yet." if install else _who_ends(api, now))
        daemon_set = found[0]
        if _is_done(daemon_set):
            return Nodes(count=number_at(daemon_set, "status", "desiredNumberScheduled"))
        pods = api.list_pods(text_at(daemon_set, "metadata", "namespace"), selector)
        return judge(daemon_set, pods, _nodes_of(api, daemon_set), now, lambda node: _said_of(api, node))
    except ApiError as error:
        return Nodes(unknown=f"The Shoot's API server cannot be asked for its nodes: {error}")


def _selector(mode: Mode) -> str:
    return f"{OURS},{COMPONENT_LABEL}={COMPONENTS[mode]}"


def _nodes_of(api: ShootApi, daemon_set: Object) -> tuple[Object, ...]:
    wanted = mapping_at(daemon_set, "spec", "template", "spec", "nodeSelector")
    return api.list_nodes(",".join(f"{key}={value}" for key, value in sorted(wanted.items())))


def _who_ends(api: ShootApi, now: datetime) -> str:
    """Before the removal comes, the pods of the installation end. Raises ApiError."""
    selector = _selector(Mode.INSTALL)
    found = [each for page in api.list_pages(DAEMON_SETS, selector) for each in page.items]
    if not found:
        return "The removal is about to be applied in the Shoot."
    pods = _by_node(api.list_pods(text_at(found[0], "metadata", "namespace"), selector))
    known = {text_at(each, "metadata", "name"): each for each in _nodes_of(api, found[0])}
    ending = []
    for name in sorted(pods):
        since = silent_since(known.get(name, {}))
        ending.append(Node(name, silent_words(since) if since else "its pod of the installation ends"))
    return f"Not yet clean: {name_nodes(ending)}." if ending else "The pods of the installation have ended."


def judge(
    daemon_set: Object,
    pods: Iterable[Object],
    nodes: Iterable[Object],
    now: datetime,
    said_of: Callable[[str], str],
) -> Nodes:
    """`said_of` has the last complaint of a node, or nothing."""
    by_name = {text_at(each, "metadata", "name"): each for each in nodes}
    left, silent, given_up, young = list[Node](), list[Node](), list[Node](), list[str]()
    ready, has_pod = set[str](), _by_node(pods)
    for name, pod in sorted(has_pod.items()):
        node = by_name.get(name, {})
        if is_ready_pod(pod):
            ready.add(name)
            continue
        since = silent_since(node)
        if since is not None:
            (given_up if now - since > SILENCE else silent).append(Node(name, silent_words(since)))
        elif _says(node).get("state") == Phase.WAITING:
            young.append(name)  # for its turn in the rollout, however long that takes
        elif now - parse_time(text_at(pod, "metadata", "creationTimestamp")) < _PATIENCE and _waits(pod):
            young.append(name)
        else:
            said = "" if len(left) >= _NAMED else _why(node, pod) or said_of(name)
            left.append(Node(name, said or "its pod is not Ready"))
    count = number_at(daemon_set, "status", "desiredNumberScheduled")
    seen = len(ready) + len(left) + len(silent) + len(given_up) + len(young)
    for name, node in sorted(by_name.items()):
        since = silent_since(node)
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


def _by_node(pods: Iterable[Object]) -> Mapping[str, Object]:
    """The pod of each node; of two, the one that stays."""
    found: dict[str, Object] = {}
    for pod in pods:
        name = text_at(pod, "spec", "nodeName")
        if name and (name not in found or not text_at(pod, "metadata", "deletionTimestamp")):
            found[name] = pod
    return found


def silent_words(since: datetime) -> str:
    return f"not heard of since {since.strftime('%Y-%m-%dT%H:%M:%SZ')}"


def _waits(pod: Object) -> bool:
    """Whether nothing is known to be wrong with it."""
    return not complaint_of(pod)


def _says(node: Object) -> Mapping[str, str]:
    """The word of the installer on it; a word that we do not know stands as its reason."""
    annotation = text_at(node, "metadata", "annotations", _STATUS)
    try:
        found = json.loads(annotation or "{}")
        return {key: str(found.get(key, "")) for key in ("state", "reason")}
    except (ValueError, AttributeError):
        return {"state": "", "reason": annotation}


def _why(node: Object, pod: Object) -> str:
    says = _says(node)
    if said := ": ".join(word for word in (says["state"], says["reason"]) if word):
        return cut_line(said)
    if complaint := complaint_of(pod):
        return complaint
    ready = condition_of(node, "Ready")
    return cut_line(f"not Ready: {text_at(ready, 'message')}") if ready.get("status") == "False" else ""


def _said_of(api: ShootApi, node: str) -> str:
    """The last warning of the installer on it. It is one of the node's events, as kubelet's are."""
    try:
        chosen = f"involvedObject.kind=Node,involvedObject.name={node},type=Warning"
        found = [
            each
            for each in api.list_events("default", chosen)
            if text_at(each, "source", "component") == "cri-resmgr-installer"
        ]
    except ApiError:
        return ""
    last = max(found, key=lambda each: text_at(each, "lastTimestamp"), default=None)
    return cut_line(f"{text_at(last, 'reason')}: {text_at(last, 'message')}") if last else ""
