"""What the installer writes about a node: on its Node (annotations, labels, condition, taint) and in Events.
Pure.

`Report` follows the daemon: what the Node is to say, and which Events are due. The functions below it make
the objects. Every patch is None if the Node says all of it already: each controller of a cluster reads Nodes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import installer
from installer.cluster.kubeapi import condition_of
from installer.cluster.pod_context import PROGRAM, PodContext
from installer.model.daemon import DaemonState, Phase
from installer.model.event import truncate
from installer.model.hold import PAUSE_ANNOTATION
from installer.model.instant import plain_time
from installer.model.jsontext import mapping_at, parse_object, text_at
from installer.model.names import (
    LAST_FAILURE,
    NOT_READY_TAINT,
    READY_CONDITION,
    READY_LABEL,
    STATUS,
    SUCCESSOR_LABEL,
    Mode,
)

EVENTS_PATH = "/api/v1/namespaces/default/events"
EVENTS = {
    Phase.CONVERGED: ("Normal", "Converged"),
    Phase.REMOVED: ("Normal", "Removed"),
    Phase.UNWELL: ("Warning", "Unwell"),
    Phase.FAILED: ("Warning", "RepairFailed"),
    Phase.REFUSED: ("Warning", "Refused"),
    Phase.HELD: ("Warning", "HoldSet"),
    Phase.LIMITED: ("Warning", "RestartLimitReached"),
    Phase.PAUSED: ("Normal", "Paused"),
    Phase.YIELDED: ("Normal", "HandedOver"),
}
"""Phase -> type and reason of the Event. Waiting for a permit has none. Nor have phases of a single pass: a
host whose every repair fails would have two Events for each attempt."""

_REASONED = (Phase.FAILED, Phase.REFUSED, Phase.CONVERGED)  # another reason is another Event
TRANSIENT = (Phase.STARTING, Phase.WAITING)
"""Usually over before they are worth a write."""
_NOT_AS_WANTED = (Phase.STARTING, Phase.WAITING, Phase.FAILED, Phase.REFUSED, Phase.LIMITED, Phase.HELD)
REASON_CHARACTERS = 1024
_REASON_BYTES = 1024  # in an annotation (those of a Node share 256 KiB), or in an Event's note
_KNOWN_SIZE = 49_152  # as JSON, of the 128 KiB that one argument of a process may have (execve(2))

Node = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """What the Node is to say: the daemon's state (`status`), whether cri-resmgr serves the node (None: not
    known), and the last failure of this daemon, empty if there was none."""

    status: Mapping[str, str] = field(default_factory=dict)
    serves: bool | None = None
    failure: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_removed(self) -> bool:
        return self.status.get("state") == Phase.REMOVED.value


@dataclass(frozen=True, slots=True)
class Report:
    """What the daemon's states so far amount to. `node` has an empty status before the first one."""

    pod: str = ""  # whose daemon it is
    node: NodeStatus = field(default_factory=NodeStatus)
    last_event: tuple[object, ...] = ()  # what it was about
    warned: bool = False  # by an Event, and no Event has said yet that it is over
    waits: bool = False  # for a permit
    failing: Mapping[str, str] = field(default_factory=dict)  # until it is over
    changes: int = 0  # of the host, by this process
    changed: str = ""  # when the last one was

    def observe(self, state: DaemonState, now: float) -> tuple[Report, Mapping[str, Any] | None]:
        """Return the report with the daemon's present state, at this time of the epoch, and the Event that is
        due."""
        phase, report = state.phase, self._with_node(state, now)
        if phase is Phase.CONVERGING or (phase is Phase.WAITING and not self.waits):
            report = replace(report, last_event=())  # what follows is news, even if it is the same as before
        about = (phase, state.hold, (state.reason if phase in _REASONED else "") or _describe_policy(state))
        if phase not in EVENTS or about == report.last_event:
            return report, None
        kind, reason = EVENTS[phase]
        if phase is Phase.CONVERGED and state.reason:
            kind, reason = "Warning", "Unplaced"
        warns = kind == "Warning"
        good = not warns and phase in (Phase.CONVERGED, Phase.REMOVED)
        report = replace(report, last_event=about, warned=warns or (self.warned and not good))
        if good and not self.warned:
            return report, None  # the Node and its pod say it
        return report, {"type": kind, "reason": reason, "message": _describe(state), "time": now}

    def _with_node(self, state: DaemonState, now: float) -> Report:
        """A failure that recurs keeps the time of its first occurrence."""
        phase, node = state.phase, self.node
        is_known = phase is not Phase.STARTING or bool(state.installed.generation)
        serves = state.serves if is_known else node.serves
        changed = plain_time(now) if state.changes > self.changes else self.changed
        failing, failure = self.failing, node.failure
        if EVENTS.get(phase, ("", ""))[0] == "Warning":
            failing = {"state": phase.value, "reason": state.reason[:REASON_CHARACTERS]}
            if failing != self.failing:
                failure = {"time": plain_time(now), **failing}
        elif phase in (Phase.CONVERGED, Phase.REMOVED):
            failing = {}
        return replace(
            self,
            node=NodeStatus(_build_status(state, changed, self.pod), serves, failure),
            waits=phase is Phase.WAITING,
            failing=failing,
            changes=max(self.changes, state.changes),
            changed=changed,
        )


def _build_status(state: DaemonState, changed: str, pod: str) -> dict[str, str]:
    """`pod` tells whoever reads it later whether the pod of that time has written it."""
    successor = state.successor if state.phase is Phase.REMOVED else ""
    return {
        "version": installer.__version__,
        "state": state.phase.value,
        "reason": state.reason[:REASON_CHARACTERS],
        "ready": str(state.serves).lower(),
        "generation": state.installed.generation,
        "wanted": state.wanted,
        "policy": state.installed.policy,
        "policySource": state.installed.policy_source,
        "hold": state.hold[:REASON_CHARACTERS],
        "changed": changed,  # empty if this process has changed nothing: the Node keeps what it says
    } | {key: text for key, text in (("pod", pod), ("successor", successor)) if text}


def _describe(state: DaemonState) -> str:
    """Return the message of the Event."""
    text = {
        Phase.CONVERGED: f"cri-resmgr runs between kubelet and the runtime{_describe_policy(state)}",
        Phase.REMOVED: "cri-resmgr and all files of its installation are removed",
        Phase.PAUSED: "paused: the installer changes nothing on this node",
    }.get(state.phase, "")
    if state.phase is Phase.YIELDED and state.mode is Mode.INSTALL:
        text = "a newer installer has taken over this node"
    message = ": ".join(part for part in (text, state.reason) if part) or state.phase.value
    return truncate(message, _REASON_BYTES)


def _describe_policy(state: DaemonState) -> str:
    found = state.installed
    return f", with the policy {found.policy} from {found.policy_source}" if found.policy else ""


# -- objects --------------------------------------------------------------------------------------


def build_status_patch(node: Node, wanted: NodeStatus, now: float) -> dict[str, Any] | None:
    """Build a strategic merge patch of the status of the Node that was read: annotations, labels, and one
    condition beside kubelet's; the taint is not part of it. After a removal only the annotation that says so
    stays, and the label for the successor, if one is to come.

    Whoever may write a Node's status may write annotations and labels with it, as kubelet does
    (PatchNodeStatus of k8s.io/component-helpers/node/util: "some component does use this to update node
    annotations"; nodeStatusStrategy of the API server resets the spec alone).
    """
    changes = _metadata_changes(node, wanted)
    conditions = _condition_changes(node, wanted, now)
    patch: dict[str, Any] = {"metadata": changes} if changes else {}
    return patch | ({"status": {"conditions": conditions}} if conditions else {}) or None


def build_node_patch(node: Node, wanted: NodeStatus) -> dict[str, Any] | None:
    """Build a merge patch (RFC 7386) of the whole Node that was read: the startup taint, and whatever of
    annotations and labels the Node does not say yet.

    Taints are one list for everybody: a patch of them has the version of the Node that it rests on, so that
    no other taint is lost (409 then).
    """
    changes = _metadata_changes(node, wanted)
    patch: dict[str, Any] = {"metadata": changes} if changes else {}
    taints = mapping_at(node, "spec").get("taints") or []
    others = [taint for taint in taints if taint.get("key") != NOT_READY_TAINT]
    if wanted.serves and others != taints:
        patch["spec"] = {"taints": others}
        patch["metadata"] = changes | {"resourceVersion": mapping_at(node, "metadata").get("resourceVersion")}
    return patch or None


def extract_ours(node: Node) -> dict[str, Any]:
    """Return what the Node says of us: enough for `build_status_patch` to build the next patch without
    another look. Return nothing if that is longer than ours can be: others have written it."""
    metadata = mapping_at(node, "metadata")
    names = {"annotations": (STATUS, LAST_FAILURE), "labels": (READY_LABEL, SUCCESSOR_LABEL)}
    ours = {
        part: {key: text for key, text in mapping_at(metadata, part).items() if key in wanted}
        for part, wanted in names.items()
    }
    condition = condition_of(node, READY_CONDITION)
    found = {"metadata": ours, "status": {"conditions": [condition] if condition else []}}
    return found if len(json.dumps(found)) <= _KNOWN_SIZE else {}


def _metadata_changes(node: Node, wanted: NodeStatus) -> dict[str, Any]:
    """Return the annotations and labels that differ; None for one that goes."""
    metadata, removed = mapping_at(node, "metadata"), wanted.is_removed
    status = _with_last_change(wanted.status, metadata)
    annotations: dict[str, str | None] = {STATUS: _to_annotation(status)}
    if removed or wanted.failure:
        annotations[LAST_FAILURE] = None if removed else _to_annotation(wanted.failure)
    labels: dict[str, str | None] = {}
    if removed or wanted.serves is not None:
        labels[READY_LABEL] = None if removed else str(wanted.serves).lower()
        labels[SUCCESSOR_LABEL] = wanted.status.get("successor")
    changes: dict[str, Any] = {}
    for key, texts in (("annotations", annotations), ("labels", labels)):
        there = mapping_at(metadata, key)
        if differing := {name: text for name, text in texts.items() if there.get(name) != text}:
            changes[key] = differing
    return changes


def _condition_changes(node: Node, wanted: NodeStatus, now: float) -> list[dict[str, Any]]:
    """Return our condition as a strategic merge patch changes it; nothing if the Node says it already."""
    old, status = condition_of(node, READY_CONDITION), wanted.status
    if wanted.is_removed:
        return [{"type": READY_CONDITION, "$patch": "delete"}] if old else []
    if wanted.serves is None:
        return []
    message = ": ".join(part for part in (_describe_installed(wanted), status.get("reason", "")) if part)
    condition = {
        "type": READY_CONDITION,
        "status": str(wanted.serves),
        "reason": status.get("state", "unknown").capitalize(),
        "message": truncate(message, _REASON_BYTES),
    }
    if all(old.get(key) == value for key, value in condition.items()):
        return []
    when = plain_time(now)
    since = old.get("lastTransitionTime", when) if old.get("status") == condition["status"] else when
    return [condition | {"lastHeartbeatTime": when, "lastTransitionTime": since}]


def _describe_installed(wanted: NodeStatus) -> str:
    """Name the generation that is there, and the one that is to be there if that is another."""
    status, generation = wanted.status, wanted.status.get("generation")
    there = "an earlier generation" if wanted.serves else "not installed"
    there = f"generation {generation}" if generation else there
    asked = status.get("wanted") if status.get("state") in _NOT_AS_WANTED else ""
    return there + (f", pending generation {asked[:12]}" if asked else "")


def build_event(context: PodContext, what: Mapping[str, Any]) -> dict[str, Any]:
    """Build an Event from `type` (Normal or Warning), `reason`, `message` and `time` (of the epoch).

    It regards the node as kubelet's own Events do, with its name as UID, so that `kubectl describe node`
    shows both (kubelet's `nodeRef`; Events of an object without namespace are in `default`).
    """
    when = plain_time(what["time"])
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{PROGRAM}-", "namespace": "default"},
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": context.node, "uid": context.node},
        "type": what["type"],
        "reason": what["reason"],
        "message": truncate(what["message"], _REASON_BYTES),
        "source": {"component": PROGRAM, "host": context.node},
        "reportingComponent": PROGRAM,
        "reportingInstance": truncate(context.pod or context.node, 128),
        "firstTimestamp": when,
        "lastTimestamp": when,
        "count": 1,
    }


def is_paused(metadata: Mapping[str, Any]) -> bool:
    """Whether the Node with this metadata has the pause annotation, with any value except "false"."""
    annotations = mapping_at(metadata, "annotations")
    return PAUSE_ANNOTATION in annotations and str(annotations[PAUSE_ANNOTATION]) != "false"


def _with_last_change(status: Mapping[str, str], metadata: Mapping[str, Any]) -> Mapping[str, str]:
    """Keep an earlier daemon's time of the last change if this one has changed nothing."""
    if status.get("changed", "not stated"):
        return status
    before = parse_object(text_at(metadata, "annotations", STATUS))  # which may be edited by hand
    return {**status, "changed": str(before.get("changed", ""))}


def _to_annotation(values: Mapping[str, str]) -> str:
    long = {key: truncate(values[key], _REASON_BYTES) for key in ("reason", "hold") if key in values}
    return json.dumps({**values, **long}, separators=(",", ":"), ensure_ascii=False)
