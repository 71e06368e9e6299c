"""What is read of a Node's metadata, and the Events that are written to the API. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from installer.cluster.node_word import cut
from installer.cluster.pod_context import PROGRAM, PodContext
from installer.model.hold import PAUSE_ANNOTATION
from installer.model.instant import plain_time

EVENTS_PATH = "/api/v1/namespaces/default/events"

_MESSAGE_LIMIT = 1024  # bytes, of an Event's note (Kubernetes API reference, events.k8s.io/v1)


def is_paused(metadata: Mapping[str, Any]) -> bool:
    """Whether the node of this metadata has the annotation, with any value except "false"."""
    annotations = _annotations(metadata)
    return PAUSE_ANNOTATION in annotations and str(annotations[PAUSE_ANNOTATION]) != "false"


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
        "message": cut(what["message"], _MESSAGE_LIMIT),
        "source": {"component": PROGRAM, "host": context.node},
        "reportingComponent": PROGRAM,
        "reportingInstance": cut(context.pod or context.node, 128),
        "firstTimestamp": when,
        "lastTimestamp": when,
        "count": 1,
    }


def _annotations(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    found = metadata.get("annotations")
    return found if isinstance(found, dict) else {}
