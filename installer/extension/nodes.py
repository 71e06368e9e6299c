"""What a Shoot says of its nodes: on which our pods do not do yet what they are there for, and why. From the
DaemonSet, its pods, the nodes and the events of the Shoot; `judge` is pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from installer.kube.api import DAEMON_SETS, ApiError, Page, Resource
from installer.kube.objects import Object, mapping_at, parse_time, text_at
from installer.model.state import Mode

_NAMED = 5  # nodes in a message
_PATIENCE = timedelta(minutes=5)  # so long a pod may take for a change, or to come to a new node
_SILENCE = timedelta(
    minutes=10
)  # a node that has said nothing for so long is not waited for: removal.waitSeconds
_SAID = 300  # characters of one reason
_STATUS = "cri-resource-manager.intel.com/installer"  # the annotation with the value annotateNode
_COMPONENTS = {Mode.INSTALL: "installation", Mode.REMOVE: "removal"}


class ShootApi(Protocol):
    """See KubeClient."""

    def list_pages(self, resource: Resource, selector: str = "") -> Iterable[Page]: ...
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
    selector = f"app.kubernetes.io/name=cri-resmgr-installer,app.kubernetes.io/component={_COMPONENTS[mode]}"
    try:
        found = [each for page in api.list_pages(DAEMON_SETS, selector) for each in page.items]
        if not found:
            return Nodes(pending="Its DaemonSet is not in the Shoot yet.")
        daemon_set = found[0]
        if _is_done(daemon_set):
            return Nodes(count=_number(daemon_set, "desiredNumberScheduled"))
        wanted = mapping_at(daemon_set, "spec", "template", "spec", "nodeSelector")
        nodes = api.list_nodes(",".join(f"{key}={value}" for key, value in sorted(wanted.items())))
        pods = api.list_pods(text_at(daemon_set, "metadata", "namespace"), selector)
        return judge(daemon_set, pods, nodes, now, lambda node: _said_of(api, node))
    except ApiError as error:
        return Nodes(unknown=f"The Shoot's API server cannot be asked for its nodes: {error}")


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
        if _is_ready(pod):
            ready.add(name)
            continue
        since = _silent_since(node)
        if since is not None:
            (given_up if now - since > _SILENCE else silent).append(Node(name, _silent_words(since)))
        elif now - parse_time(text_at(pod, "metadata", "creationTimestamp")) < _PATIENCE and _waits(pod):
            young.append(name)
        else:
            said = "" if len(left) >= _NAMED else _why(node, pod) or said_of(name)
            left.append(Node(name, said or "its pod is not Ready"))
    count = _number(daemon_set, "desiredNumberScheduled")
    seen = len(ready) + len(left) + len(silent) + len(given_up) + len(young)
    for name, node in sorted(by_name.items()):
        since = _silent_since(node)
        if seen < count and name not in has_pod and since is not None and now - since > _SILENCE:
            given_up.append(Node(name, _silent_words(since)))
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
    updated = _number(daemon_set, "updatedNumberScheduled")
    if updated + given_up < count:
        return f"{updated} of {count} nodes have the new pod."
    return ""


def _is_observed(daemon_set: Object) -> bool:
    generation = mapping_at(daemon_set, "metadata").get("generation")
    return mapping_at(daemon_set, "status").get("observedGeneration") == generation


def _is_done(daemon_set: Object) -> bool:
    count = _number(daemon_set, "desiredNumberScheduled")
    numbers = [
        _number(daemon_set, key) for key in ("updatedNumberScheduled", "numberAvailable", "numberReady")
    ]
    return _is_observed(daemon_set) and numbers == [count] * 3


def _number(daemon_set: Object, key: str) -> int:
    found = mapping_at(daemon_set, "status").get(key)
    return found if isinstance(found, int) else 0


def _by_node(pods: Iterable[Object]) -> Mapping[str, Object]:
    """The pod of each node; of two, the one that stays."""
    found: dict[str, Object] = {}
    for pod in pods:
        name = text_at(pod, "spec", "nodeName")
        if name and (name not in found or not text_at(pod, "metadata", "deletionTimestamp")):
            found[name] = pod
    return found


def _condition(given: Object, kind: str) -> Object:
    listed = mapping_at(given, "status").get("conditions")
    found = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    return next((each for each in found if each.get("type") == kind), {})


def _is_ready(pod: Object) -> bool:
    return text_at(_condition(pod, "Ready"), "status") == "True" and not text_at(
        pod, "metadata", "deletionTimestamp"
    )


def _silent_since(node: Object) -> datetime | None:
    """Its kubelet has not been heard of; a node that is not Ready still runs pods."""
    ready = _condition(node, "Ready")
    return parse_time(ready.get("lastTransitionTime")) if ready.get("status") == "Unknown" else None


def _silent_words(since: datetime) -> str:
    return f"not heard of since {since.strftime('%Y-%m-%dT%H:%M:%SZ')}"


def _waits(pod: Object) -> bool:
    """Whether nothing is known to be wrong with it."""
    return not _complaint(pod)


def _why(node: Object, pod: Object) -> str:
    annotation = text_at(node, "metadata", "annotations", _STATUS)
    if annotation:
        try:
            given = json.loads(annotation)
            phase, reason = given.get("phase", ""), given.get("reason", "")
            return _cut(f"{phase}: {reason}" if reason else phase)
        except (ValueError, AttributeError):
            return _cut(annotation)
    if complaint := _complaint(pod):
        return complaint
    ready = _condition(node, "Ready")
    return _cut(f"not Ready: {text_at(ready, 'message')}") if ready.get("status") == "False" else ""


def _complaint(pod: Object) -> str:
    """What kubelet or the scheduler says of a pod that cannot run."""
    listed = mapping_at(pod, "status").get("containerStatuses")
    for each in listed if isinstance(listed, list) else ():
        waiting = mapping_at(each, "state", "waiting") if isinstance(each, dict) else {}
        if waiting and text_at(waiting, "reason") not in ("ContainerCreating", "PodInitializing"):
            return _cut(f"{text_at(waiting, 'reason')}: {text_at(waiting, 'message')}".rstrip(": "))
        ended = mapping_at(each, "lastState", "terminated") if isinstance(each, dict) else {}
        if ended and ended.get("exitCode") not in (0, None):
            return _cut(f"its pod ended with exit code {ended['exitCode']}")
    return ""


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
    return _cut(f"{text_at(last, 'reason')}: {text_at(last, 'message')}") if last else ""


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SAID else line[: _SAID - 3] + "..."
