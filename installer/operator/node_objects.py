"""Removes from the Nodes what the installer has written there. `build_patches` is pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from installer.model.daemon import Phase
from installer.model.hold import PAUSE_ANNOTATION
from installer.model.instant import plain_time
from installer.model.names import LAST_FAILURE, LEFT, NOT_READY_TAINT, READY_CONDITION, READY_LABEL, STATUS
from installer.operator.api import NODES, STRATEGIC, ApiError, KubeApi
from installer.operator.inventory import Installed, find_installations
from installer.operator.judge import is_selected, read_status
from installer.operator.kube_objects import Object, condition_of, items_at, mapping_at, text_at

_ANNOTATIONS = (STATUS, LAST_FAILURE, PAUSE_ANNOTATION)
_LABELS = (READY_LABEL,)
_TRIES = 5  # of a write, where another writer was quicker

Patches = tuple[dict[str, Any], dict[str, Any]]
"""A patch of a Node, and one of its status."""


Retry = Callable[[Callable[[], Any]], Any]
"""Returns what the call returns, which it may try again."""


def clear_node_objects(
    api: KubeApi, instance: str, left: Collection[str] = (), retry: Retry = lambda call: call()
) -> int:
    """Clean every Node that is not in `left` and that no other instance selects; return how many had any of
    our keys. Raises ApiError.

    It lists all Nodes before it writes the first one: an API server forgets the place in a list after a few
    minutes (Kubernetes API concepts, "Retrieving large results sets in chunks"), and a large fleet takes
    longer. `retry` retries a call that had no answer.
    """
    others = _find_others(api, instance, retry)
    nodes = retry(
        lambda: [
            (text_at(each, "metadata", "name"), build_patches(each))
            for each in api.list_objects(NODES)
            if not is_selected(each, others)
        ]
    )
    marked = {name: patches for name, patches in nodes if any(patches) and name not in left}
    for name, patches in marked.items():
        retry(partial(_write, api, name, build_patches, patches))
    return len(marked)


def mark_left(
    api: KubeApi, instance: str, left: Mapping[str, str], retry: Retry = lambda call: call()
) -> None:
    """Write on the Nodes in `left` that no other instance selects why they were not cleaned. Raises
    ApiError."""
    others = _find_others(api, instance, retry) if left else []
    for name, why in left.items():

        def build(node: Object, why: str = why) -> Patches:
            return ({}, {}) if is_selected(node, others) else build_marks(node, why, api.now())

        retry(partial(_write, api, name, build))


def _find_others(api: KubeApi, instance: str, retry: Retry) -> list[Installed]:
    return [each for each in retry(lambda: find_installations(api)) if each.instance != instance]


def build_marks(node: Object, why: str, now: float) -> Patches:
    """Build the patches of a Node that is given up: its kubelet may keep running on the proxy, and nobody
    watches that any more, or takes the taint off. Keep what the node has last written of its generation, and
    a pause. A node that says that it is clean gets none."""
    status, old = read_status(mapping_at(node, "metadata")), condition_of(node, READY_CONDITION)
    if status.get("state") == Phase.REMOVED:
        return {}, {}
    patch, _ = build_patches(node)
    metadata = patch.setdefault("metadata", {})
    if status.get("state") == LEFT:
        metadata.pop("annotations", None)
    else:
        text = json.dumps({**status, "state": LEFT, "reason": why}, separators=(",", ":"))
        metadata["annotations"] = {STATUS: text}
    when = {key: plain_time(now) for key in ("lastHeartbeatTime", "lastTransitionTime")}
    unknown = {"type": READY_CONDITION, "status": "Unknown", "reason": LEFT.capitalize(), "message": why}
    is_told = not old or old.get("status") == "Unknown"
    return patch if any(patch.values()) else {}, {} if is_told else {
        "status": {"conditions": [unknown | when]}
    }


def build_patches(node: Object) -> Patches:
    """Build a merge patch of the Node and a strategic one of its status; empty where nothing is ours. A
    patch of the taints has all that remain, so it is for this version of the Node only."""
    metadata: dict[str, Any] = {}
    for key, names in (("annotations", _ANNOTATIONS), ("labels", _LABELS)):
        present = mapping_at(node, "metadata", key)
        if ours := {name: None for name in names if name in present}:
            metadata[key] = ours
    patch: dict[str, Any] = {"metadata": metadata} if metadata else {}
    taints = list(items_at(node, "spec", "taints"))
    kept = [taint for taint in taints if taint.get("key") != NOT_READY_TAINT]
    if len(kept) < len(taints):
        metadata["resourceVersion"] = text_at(node, "metadata", "resourceVersion")
        patch = {"metadata": metadata, "spec": {"taints": kept}}
    gone = {"conditions": [{"type": READY_CONDITION, "$patch": "delete"}]}
    return patch, ({"status": gone} if condition_of(node, READY_CONDITION) else {})


def _write(api: KubeApi, name: str, build: Callable[[Object], Patches], first: Patches | None = None) -> None:
    """Apply the patches that `build` makes of the Node; `first` are those of a Node that was listed. A Node
    that is gone needs none."""
    for attempt in range(_TRIES):
        try:
            patch, status = first if first and not attempt else build(api.get(NODES, "", name))
            if status:
                api.merge(NODES, "", name, status, status=True, content_type=STRATEGIC)
            if patch and status and "resourceVersion" in patch["metadata"]:
                patch, _ = build(api.get(NODES, "", name))
            if patch:
                api.merge(NODES, "", name, patch)
            return
        except ApiError as error:
            if error.missing:
                return
            if not error.conflict or attempt == _TRIES - 1:
                raise
