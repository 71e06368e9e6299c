"""Removes from the Nodes what the installer has written there. `build_patches` is pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from installer.model.daemon import Phase
from installer.model.hold import PAUSE_ANNOTATION
from installer.model.names import LAST_FAILURE, LEFT, NOT_READY_TAINT, READY_CONDITION, READY_LABEL, STATUS
from installer.operator.api import NODES, STRATEGIC, ApiError, KubeApi
from installer.operator.inventory import find_installations
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
    others = [each for each in retry(lambda: find_installations(api)) if each.instance != instance]
    nodes = retry(
        lambda: [
            (text_at(each, "metadata", "name"), build_patches(each))
            for each in api.list_objects(NODES)
            if not is_selected(each, others)
        ]
    )
    marked = {name: patches for name, patches in nodes if any(patches) and name not in left}
    for name, patches in marked.items():
        retry(partial(_clean, api, name, patches))
    return len(marked)


def mark_left(api: KubeApi, left: Mapping[str, str], retry: Retry = lambda call: call()) -> None:
    """Write on the Nodes in `left` why they were not cleaned: their kubelet may keep running on the proxy.
    Keeps what a node has last written of its generation. Raises ApiError."""
    for name, why in left.items():
        retry(partial(_mark, api, name, why))


def _mark(api: KubeApi, name: str, why: str) -> None:
    status = read_status(mapping_at(api.find(NODES, "", name), "metadata"))
    if status.get("state") not in (Phase.REMOVED, LEFT):
        text = json.dumps({**status, "state": LEFT, "reason": why}, separators=(",", ":"))
        api.merge_present(NODES, "", name, {"metadata": {"annotations": {STATUS: text}}})


def build_patches(node: Object) -> Patches:
    """Build a merge patch of the Node and a strategic one of its status; empty where nothing is ours. A
    patch of the taints has all that remain, so it is for this version of the Node only."""
    metadata: dict[str, Any] = {}
    for key, names in (("annotations", _ANNOTATIONS), ("labels", _LABELS)):
        found = mapping_at(node, "metadata", key)
        if ours := {name: None for name in names if name in found}:
            metadata[key] = ours
    patch: dict[str, Any] = {"metadata": metadata} if metadata else {}
    taints = list(items_at(node, "spec", "taints"))
    kept = [each for each in taints if each.get("key") != NOT_READY_TAINT]
    if len(kept) < len(taints):
        metadata["resourceVersion"] = text_at(node, "metadata", "resourceVersion")
        patch = {"metadata": metadata, "spec": {"taints": kept}}
    gone = {"conditions": [{"type": READY_CONDITION, "$patch": "delete"}]}
    return patch, ({"status": gone} if condition_of(node, READY_CONDITION) else {})


def _clean(api: KubeApi, name: str, patches: Patches) -> None:
    """Apply the patches. A Node that is gone is clean."""
    patch, status = patches
    for attempt in range(_TRIES):
        try:
            if attempt:
                patch, status = build_patches(api.get(NODES, "", name))
            if status:
                api.merge(NODES, "", name, status, status=True, content_type=STRATEGIC)
            if patch and status and "resourceVersion" in patch["metadata"]:
                patch, _ = build_patches(api.get(NODES, "", name))
            if patch:
                api.merge(NODES, "", name, patch)
            return
        except ApiError as error:
            if error.missing:
                return
            if not error.conflict or attempt == _TRIES - 1:
                raise
