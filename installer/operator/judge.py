"""Judges every node of a cluster by its DaemonSets, their pods and the Nodes, which are listed in pages.
Keeps of each object only what it needs, and makes no request for a single node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from installer.cluster.node_status import is_paused
from installer.cluster.selection import selects
from installer.model.daemon import Phase
from installer.model.instant import parse_time, plain_time
from installer.model.jsontext import parse_object
from installer.model.names import COMPONENT_LABEL, INSTANCE_LABEL, LEFT, STATUS, Mode, mode_of, our_selector
from installer.model.overview import NodeHealth, NodeView, Overview
from installer.operator.api import CORE_EVENTS, NODES, PODS, ApiError, KubeApi
from installer.operator.inventory import Installed, find_installations
from installer.operator.kube_objects import (
    Object,
    complaint_of,
    cut_line,
    is_ready_pod,
    items_at,
    mapping_at,
    node_of,
    silent_since,
    text_at,
)

_WORKING = (Phase.STARTING, Phase.WAITING, Phase.CONVERGING, Phase.REPAIRING, Phase.CHECKING, Phase.YIELDED)
_DONE = {Mode.INSTALL: Phase.CONVERGED, Mode.REMOVE: Phase.REMOVED}
_OVER = ("Succeeded", "Failed")  # phases of a pod
_REVISION = "controller-revision-hash"  # label (Kubernetes API reference, apps/v1 DaemonSet)
_DESELECTED = "no DaemonSet selects it any more"
_NO_DAEMON_SET = "no DaemonSet is left to clean it: apply the manifests again"
_STATUS_SIZE = 16_384  # characters; ours has about 3,000 at most (node_status.py)
_VALUE_SIZE = 1024
_NAME = 253  # characters of a DNS name (RFC 1123)
_POD_SECONDS = 300.0  # until a new node, or each node of a new DaemonSet, has a pod


@dataclass(frozen=True, slots=True)
class PodView:
    """One of our pods. `ready`: and not about to go. `complaint`: why one cannot run.
    `over`: it ends, or has ended. `created` is a time as the API writes it, `revision` that of the
    template of its DaemonSet, which is one of this `instance`."""

    ready: bool
    complaint: str
    over: bool = False
    created: str = ""
    revision: str = ""
    instance: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Listed:
    """What was listed besides the nodes. `pods` are by node and mode. `present`: the revision of the present
    template of each instance and mode, None while no pod has it. `refusal`: why the API server refuses new
    pods of a DaemonSet, empty if it is not known to. `others`: installations that were not asked for."""

    installations: tuple[Installed, ...]
    pods: Mapping[tuple[str, Mode], PodView]
    now: float
    present: Mapping[tuple[str, Mode], str | None] = field(default_factory=dict)
    refusal: Callable[[Installed], str] = lambda _: ""
    others: tuple[Installed, ...] = ()


def judge_nodes(
    api: KubeApi, installations: Sequence[Installed], instance: str = "", others: Sequence[Installed] = ()
) -> Overview:
    """Return every node with its health, the worst first, without rollouts. `instance`: of the pods; by
    default of all. A node that only another installation selects is not ours. `others`: installations that
    may select the same nodes, besides the given ones. Raises ApiError."""
    namespaces = sorted({each.namespace for each in installations})
    owners = {text_at(each.daemon_set, "metadata", "uid") for each in installations}
    pods = read_pods(
        pod
        for each in namespaces
        for pod in api.list_objects(PODS, our_selector(instance), each)
        if any(owner.get("uid") in owners for owner in items_at(pod, "metadata", "ownerReferences"))
    )
    present = {(each.instance, each.mode): _find_revision(each, pods) for each in installations}
    theirs = cache(lambda: find_others(api, installations))  # asked for once, and seldom
    refusals: dict[str, str] = {}  # the same

    def refusal(installed: Installed) -> str:
        if installed.name not in refusals:
            refusals[installed.name] = find_refusal(api, installed)
        return refusals[installed.name]

    views, unserved = [], 0
    for node in api.list_objects(NODES):
        listed = Listed(tuple(installations), pods, api.now(), present, refusal, tuple(others))
        view = judge_node(node, listed)
        if view is None or (view.mode is None and is_selected(node, theirs())):
            unserved += 1
        else:
            views.append(view)
    order = list(NodeHealth)
    views.sort(key=lambda view: (order.index(view.health), view.name))
    when = plain_time(api.now())
    return Overview(when, tuple(installations), tuple(views), unserved)


def find_refusal(api: KubeApi, installed: Installed) -> str:
    """Return why the API server refuses new pods of the DaemonSet (a quota, Pod Security, a webhook), as its
    controller says in an Event; empty if it says nothing, or Events may not be read."""
    about = f"involvedObject.uid={text_at(installed.daemon_set, 'metadata', 'uid')},reason=FailedCreate"
    try:
        pages = api.list_pages(CORE_EVENTS, "", installed.namespace, about)
        events = [each for page in pages for each in page.items]
    except ApiError:
        return ""
    newest = max(events, key=lambda each: text_at(each, "lastTimestamp"), default={})
    return cut_line(text_at(newest, "message").removeprefix("Error creating: "))


def find_others(api: KubeApi, ours: Iterable[Installed]) -> tuple[Installed, ...]:
    """Return the other installations. Raises ApiError."""
    known = {(each.namespace, each.name) for each in ours}
    return tuple(each for each in find_installations(api) if (each.namespace, each.name) not in known)


def find_unclean(api: KubeApi) -> tuple[NodeView, ...]:
    """Return the nodes whose annotation does not say that they are clean, for a cluster that has none of our
    DaemonSets. Raises ApiError."""
    nodes = judge_nodes(api, ()).nodes
    return tuple(
        replace(each, reason=_NO_DAEMON_SET) if each.reason == _DESELECTED else each for each in nodes
    )


def is_any_told(api: KubeApi) -> bool:
    """Whether any Node has our annotation: whether nodes write one is a setting. Those of another
    installation tell nothing of ours. Raises ApiError."""
    others = find_installations(api)
    unselected = (node for node in api.list_objects(NODES) if not is_selected(node, others))
    return any(read_status(mapping_at(node, "metadata")) for node in unselected)


def judge_node(node: Object, listed: Listed) -> NodeView | None:
    """Return None for a node that no DaemonSet selects and that has none of our annotations. Pure."""
    metadata = mapping_at(node, "metadata")
    name = text_at(metadata, "name")
    status = read_status(metadata)
    labels = mapping_at(metadata, "labels")
    selectors = [each for each in listed.installations if _selects(each, name, labels)]
    selecting = {each.mode: each for each in selectors}
    rivals = [each for each in listed.others if selecting and _selects(each, name, labels, doubt=False)]
    several = {each.instance: each for each in (*selectors, *rivals) if each.mode is Mode.INSTALL}
    mode = Mode.REMOVE if Mode.REMOVE in selecting else Mode.INSTALL
    pod = listed.pods.get((name, mode))
    is_stale = pod is not None and not is_of_pod(status, pod)
    said = {key: text for key, text in status.items() if not is_stale or key not in ("state", "reason")}
    health, reason = NodeHealth.DIRTY, _left_reason(status) or _DESELECTED
    if len(several) > 1:
        named = " and ".join(f"{each.namespace}/{each.name}" for _, each in sorted(several.items()))
        health, reason = NodeHealth.TROUBLE, f"{named} both select it: exclude it from all but one of them"
    elif selecting:
        health, reason = _judge(node, said, pod, selecting[mode], listed)
    elif status.get("state", "") in ("", Phase.REMOVED):
        return None
    return NodeView(
        name,
        health,
        cut_line(reason),
        phase=said.get("state", ""),
        outdated=pod is None or is_stale or pod.revision != listed.present.get((pod.instance, mode)),
        hold=cut_line(status.get("hold", "")),
        paused=is_paused(metadata),
        ready=pod is not None and pod.ready,
        reachable=silent_since(node) is None,
        mode=mode if selecting else None,
        instance=selecting[mode].instance if selecting else "",
        **{key: status.get(key, "") for key in ("generation", "wanted", "policy", "version", "changed")},
    )


def _judge(
    node: Object, status: Mapping[str, str], pod: PodView | None, installed: Installed, listed: Listed
) -> tuple[NodeHealth, str]:
    """Judge a node that a DaemonSet selects."""
    mode = installed.mode
    if silent_since(node) is not None:
        return NodeHealth.SILENT, "its kubelet is silent"
    if pod is None:
        if refused := listed.refusal(installed):
            return NodeHealth.TROUBLE, f"its pod cannot be created: {refused}"
        created = [text_at(each, "metadata", "creationTimestamp") for each in (node, installed.daemon_set)]
        age = listed.now - max(map(parse_time, created))
        health = NodeHealth.SILENT if age > _POD_SECONDS else NodeHealth.WORKING
        return health, "the DaemonSet selects it, but it has no pod"
    phase, reason = status.get("state", ""), status.get("reason", "")
    if phase == Phase.PAUSED:
        return NodeHealth.PAUSED, reason
    if phase in _WORKING or (mode is Mode.REMOVE and phase == Phase.CONVERGED):
        return _unready(pod, reason or phase)
    if phase in ("", _DONE[mode]):  # without an annotation, the pod alone decides
        return (NodeHealth.WELL, reason) if pod.ready else _unready(pod, "its pod is not Ready yet")
    return NodeHealth.TROUBLE, reason or pod.complaint


def is_clean(node: NodeView) -> bool:
    """Whether the node is clean, by its pod: the pod of a removal is Ready when it has removed. So a node
    with a wrong clock, or one that may not write its annotation, still counts as clean."""
    return node.mode is Mode.REMOVE and node.ready and node.reachable


def _unready(pod: PodView, reason: str) -> tuple[NodeHealth, str]:
    """A pod that kubelet complains of does not recover by itself."""
    broken = pod.complaint and not pod.ready
    return (NodeHealth.TROUBLE, pod.complaint) if broken else (NodeHealth.WORKING, reason)


def _selects(installation: Installed, name: str, labels: Mapping[str, Any], doubt: bool = True) -> bool:
    try:
        return selects(installation.template, name, labels)
    except ValueError:
        return doubt  # unknown affinity: rather show the node than hide it


def is_selected(node: Object, installations: Iterable[Installed]) -> bool:
    """Whether one of the installations selects the Node."""
    metadata = mapping_at(node, "metadata")
    name, labels = text_at(metadata, "name"), mapping_at(metadata, "labels")
    return any(_selects(each, name, labels, doubt=False) for each in installations)


def read_status(metadata: Object) -> Mapping[str, str]:
    """Read the node's own annotation, each value as one line. Ignores one that is longer than ours can be."""
    text = text_at(metadata, "annotations", STATUS)
    found = parse_object(text) if len(text) <= _STATUS_SIZE else {}
    return {key: cut_line(str(value), _VALUE_SIZE) for key, value in found.items()}


def is_of_pod(status: Mapping[str, str], pod: PodView) -> bool:
    """Whether the pod may have written it: what an earlier pod of the node has said is history."""
    return status.get("pod", pod.name) == pod.name


def _left_reason(status: Mapping[str, str]) -> str:
    """Return why an uninstallation has left the node as it was; empty if none has."""
    return status.get("reason", "") if status.get("state") == LEFT else ""


def read_pods(pods: Iterable[Object]) -> dict[tuple[str, Mode], PodView]:
    """Return the pod that counts of each node and mode: a DaemonSet puts a new one beside one that ends or
    was evicted."""
    views = dict[tuple[str, Mode], PodView]()
    for pod in pods:
        metadata = mapping_at(pod, "metadata")
        mode = mode_of(text_at(metadata, "labels", COMPONENT_LABEL)) or Mode.INSTALL
        key = cut_line(node_of(pod), _NAME), mode
        view = PodView(
            is_ready_pod(pod),
            complaint_of(pod),
            bool(text_at(metadata, "deletionTimestamp")) or text_at(pod, "status", "phase") in _OVER,
            text_at(metadata, "creationTimestamp"),
            text_at(metadata, "labels", _REVISION),
            text_at(metadata, "labels", INSTANCE_LABEL),
            text_at(metadata, "name"),
        )
        views[key] = max(
            views.get(key, view), view, key=lambda pod_view: (not pod_view.over, pod_view.created)
        )
    return views


def _find_revision(installed: Installed, pods: Mapping[tuple[str, Mode], PodView]) -> str | None:
    """Return the revision of its present template; None while no pod has it. The controller creates pods of
    no other. But where people have gone back to an earlier template, pods of that are older than those of the
    one in between, and there are as many of them as the controller counts."""
    updated = installed.updated
    ours = [
        pod
        for (_, mode), pod in pods.items()
        if (pod.instance, mode) == (installed.instance, installed.mode) and not pod.over
    ]
    count = Counter(pod.revision for pod in ours)
    if not (ours and updated):
        return None
    newest = max(ours, key=lambda pod: pod.created).revision
    earlier = [revision for revision, number in count.items() if number == updated]
    return earlier[0] if count[newest] < updated and len(earlier) == 1 else newest
