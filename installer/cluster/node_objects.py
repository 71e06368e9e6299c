"""The objects that are written to the API: a Lease, an Event. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from installer.cluster.node_word import cut
from installer.cluster.pod_context import PROGRAM, PodContext, lease_name
from installer.model.hold import PAUSE_ANNOTATION
from installer.model.instant import micro_time, plain_time
from installer.model.names import NAME_LABEL

EVENTS_PATH = "/api/v1/namespaces/default/events"
LEASE_SECONDS = 900  # two renewals of 300 to 360 s may be lost (agenda.py)

_MESSAGE_LIMIT = 1024  # bytes, of an Event's note (Kubernetes API reference, events.k8s.io/v1)


def is_paused(metadata: Mapping[str, Any]) -> bool:
    """Whether the node of this metadata has the annotation, with any value except "false"."""
    annotations = _annotations(metadata)
    return PAUSE_ANNOTATION in annotations and str(annotations[PAUSE_ANNOTATION]) != "false"


def build_renewal(context: PodContext, now: datetime) -> dict[str, Any]:
    """A merge patch of the Lease. Its holder is the node, as that of kubelet's own Lease: the next pod renews
    it when it is due."""
    spec = {
        "holderIdentity": context.node,
        "leaseDurationSeconds": LEASE_SECONDS,
        "renewTime": micro_time(now),
    }
    return {"spec": spec}


def build_lease(context: PodContext, now: datetime, node: Mapping[str, Any]) -> dict[str, Any]:
    """Owned by the node of the metadata `node`, not by the pod: it outlives the pod, so that a missing
    installer is seen, and goes with the node."""
    labels = {NAME_LABEL: PROGRAM}
    metadata = {"name": lease_name(context.node), "namespace": context.namespace, "labels": labels}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": metadata | (build_ownership({}, node) or {"metadata": {}})["metadata"],
        "spec": build_renewal(context, now)["spec"] | {"acquireTime": micro_time(now)},
    }


def build_ownership(lease: Mapping[str, Any], node: Mapping[str, Any]) -> dict[str, Any] | None:
    """A merge patch of the Lease of the metadata `lease` that gives it to the node of the metadata `node`, as
    kubelet's own Lease is the node's. None if it is already, or if the node is not known."""
    uid, name = node.get("uid"), node.get("name")
    owners = lease.get("ownerReferences")
    known = [owner.get("uid") for owner in owners if isinstance(owner, dict)] if owners else []
    if not isinstance(uid, str) or not uid or uid in known:
        return None
    owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}
    return {"metadata": {"ownerReferences": [owner]}}


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
