"""What the installer writes about a node: on its Node (annotations, label, condition, taint) and in Events.
Pure.

Every patch is None where the Node says all of it already: a Node is read by every controller of a cluster.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from installer.cluster.pod_context import PROGRAM, PodContext
from installer.model.daemon import Phase
from installer.model.hold import PAUSE_ANNOTATION
from installer.model.instant import plain_time
from installer.model.names import (
    LAST_FAILURE,
    NOT_READY_TAINT,
    READY_CONDITION,
    READY_LABEL,
    STATUS,
    SUCCESSOR_LABEL,
)

EVENTS_PATH = "/api/v1/namespaces/default/events"
_REASON_LIMIT = 1024  # bytes in an annotation (those of a node share 256 KiB), or in an Event's note

_NOT_AS_WANTED = (Phase.STARTING, Phase.WAITING, Phase.FAILED, Phase.REFUSED, Phase.LIMITED, Phase.HELD)
_KNOWN_LIMIT = 16_384  # characters: it goes on a command line. What is longer is not ours, and is replaced

Node = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Statement:
    """What the Node is to say: the daemon's state (`status`), whether cri-resmgr serves the node (None: not
    known), and the daemon's last failure, empty if there was none."""

    status: Mapping[str, str]
    serves: bool | None = None
    failure: Mapping[str, str] = field(default_factory=dict)


def build_word_patch(
    node: Node, status: Mapping[str, str], serves: bool | None, failure: Mapping[str, str], now: datetime
) -> dict[str, Any] | None:
    """A strategic merge patch of the status of the Node that was read, with all of it but the
    taint: annotations, label, and one condition beside kubelet's. `status` is the daemon's state, `failure`
    its last failure, empty if there was none. `serves`: whether cri-resmgr serves the node; None: not known,
    and what is there stays. After a removal, only the annotation that says so stays, and the label for the
    successor, if one is to come.

    Of a Node, whoever writes the status may write annotations and labels with it: kubelet itself does
    (PatchNodeStatus of k8s.io/component-helpers/node/util: "some component does use this to update node
    annotations"; nodeStatusStrategy of the API server keeps the spec alone).
    """
    changes = _metadata_changes(node, status, serves, failure)
    conditions = _condition_changes(node, status, serves, now)
    patch: dict[str, Any] = {"metadata": changes} if changes else {}
    return patch | ({"status": {"conditions": conditions}} if conditions else {}) or None


def build_node_patch(
    node: Node, status: Mapping[str, str], serves: bool | None, failure: Mapping[str, str]
) -> dict[str, Any] | None:
    """A merge patch (RFC 7386) of the whole Node that was read: the startup taint, and what of annotations
    and label the Node does not say yet.

    Taints are one list for everybody: the patch has the version of the Node that it rests on, so that
    another's taint is never lost (409 then).
    """
    changes = _metadata_changes(node, status, serves, failure)
    patch: dict[str, Any] = {"metadata": changes} if changes else {}
    taints = _mapping(node, "spec").get("taints") or []
    others = [taint for taint in taints if taint.get("key") != NOT_READY_TAINT]
    if serves and others != taints:
        patch["spec"] = {"taints": others}
        patch["metadata"] = changes | {"resourceVersion": _mapping(node, "metadata").get("resourceVersion")}
    return patch or None


def remember(node: Node) -> dict[str, Any]:
    """What the Node says of us: enough for `build_word_patch` to say the next thing without another look."""
    metadata = _mapping(node, "metadata")
    names = {"annotations": (STATUS, LAST_FAILURE), "labels": (READY_LABEL, SUCCESSOR_LABEL)}
    ours = {
        part: {
            key: str(text)[:_KNOWN_LIMIT] for key, text in _mapping(metadata, part).items() if key in wanted
        }
        for part, wanted in names.items()
    }
    return {"metadata": ours, "status": {"conditions": [found] if (found := _condition_of(node)) else []}}


def _metadata_changes(
    node: Node, status: Mapping[str, str], serves: bool | None, failure: Mapping[str, str]
) -> dict[str, Any]:
    """The annotations and labels that differ; None for one that goes."""
    metadata, removed = _mapping(node, "metadata"), _is_removed(status)
    annotations: dict[str, str | None] = {STATUS: _worded(_with_last_change(status, metadata))}
    if removed or failure:
        annotations[LAST_FAILURE] = None if removed else _worded(failure)
    labels: dict[str, str | None] = {}
    if removed or serves is not None:
        labels[READY_LABEL] = None if removed else str(serves).lower()
        labels[SUCCESSOR_LABEL] = status.get("successor")
    changes: dict[str, Any] = {}
    for key, wanted in (("annotations", annotations), ("labels", labels)):
        there = _mapping(metadata, key)
        if differing := {name: text for name, text in wanted.items() if there.get(name) != text}:
            changes[key] = differing
    return changes


def _condition_changes(
    node: Node, status: Mapping[str, str], serves: bool | None, now: datetime
) -> list[dict[str, Any]]:
    """Our condition, as a strategic merge patch changes it; nothing where the Node says it already."""
    old = _condition_of(node)
    if _is_removed(status):
        return [{"type": READY_CONDITION, "$patch": "delete"}] if old else []
    if serves is None:
        return []
    message = ": ".join(text for text in (_installed(status, serves), status.get("reason", "")) if text)
    wanted = {
        "type": READY_CONDITION,
        "status": str(serves),
        "reason": status.get("state", "unknown").capitalize(),
        "message": cut(message, _REASON_LIMIT),
    }
    if all(old.get(key) == value for key, value in wanted.items()):
        return []
    when = plain_time(now.timestamp())
    since = old.get("lastTransitionTime", when) if old.get("status") == wanted["status"] else when
    return [wanted | {"lastHeartbeatTime": when, "lastTransitionTime": since}]


def _installed(status: Mapping[str, str], serves: bool) -> str:
    """What is there, and what is asked for where that is another matter."""
    generation = status.get("generation")
    there = (
        f"generation {generation}" if generation else "an earlier generation" if serves else "not installed"
    )
    wanted = status.get("wanted") if status.get("state") in _NOT_AS_WANTED else ""
    return there + (f", asked for generation {wanted[:12]}" if wanted else "")


def _condition_of(node: Node) -> Mapping[str, Any]:
    found = _mapping(node, "status").get("conditions") or []
    return next((each for each in found if each.get("type") == READY_CONDITION), {})


def build_event(context: PodContext, what: Mapping[str, Any]) -> dict[str, Any]:
    """`what` has `type` (Normal or Warning), `reason`, `message` and `time` (of the epoch).

    It regards the node as kubelet's own events do, its name as UID, so that `kubectl describe node`
    shows both (kubelet's `nodeRef`; an object without namespace has its events in `default`).
    """
    when = plain_time(what["time"])
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{PROGRAM}-", "namespace": "default"},
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": context.node, "uid": context.node},
        "type": what["type"],
        "reason": what["reason"],
        "message": cut(what["message"], _REASON_LIMIT),
        "source": {"component": PROGRAM, "host": context.node},
        "reportingComponent": PROGRAM,
        "reportingInstance": cut(context.pod or context.node, 128),
        "firstTimestamp": when,
        "lastTimestamp": when,
        "count": 1,
    }


def is_paused(metadata: Mapping[str, Any]) -> bool:
    """Whether the node of this metadata has the annotation, with any value except "false"."""
    annotations = _mapping(metadata, "annotations")
    return PAUSE_ANNOTATION in annotations and str(annotations[PAUSE_ANNOTATION]) != "false"


def cut(text: str, limit: int) -> str:
    """At most `limit` bytes of it; what was longer ends in three dots."""
    raw = text.encode("utf-8", "replace")
    return text if len(raw) <= limit else raw[: limit - 3].decode("utf-8", "ignore") + "..."


def _is_removed(status: Mapping[str, str]) -> bool:
    return status.get("state") == Phase.REMOVED.value


def _with_last_change(status: Mapping[str, str], metadata: Mapping[str, Any]) -> Mapping[str, str]:
    """A daemon that has changed nothing keeps what an earlier one has said of the last change."""
    if status.get("changed", "no word of it"):
        return status
    try:
        before = json.loads(_mapping(metadata, "annotations").get(STATUS) or "{}")
        return {**status, "changed": str(before.get("changed", ""))}
    except (ValueError, TypeError, AttributeError, RecursionError):  # edited by hand
        return status


def _worded(values: Mapping[str, str]) -> str:
    long = {key: cut(values[key], _REASON_LIMIT) for key in ("reason", "hold") if key in values}
    whole = {**values, **long}
    return json.dumps(whole, separators=(",", ":"), ensure_ascii=False)


def _mapping(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = values.get(key)
    return found if isinstance(found, dict) else {}
