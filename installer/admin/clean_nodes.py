"""What stands on the Nodes because of us, and how it is taken off. `build_patches` is pure."""

from __future__ import annotations

from typing import Any, Protocol

from installer.admin.find import PAGE, Lists
from installer.kube.api import NODES, STRATEGIC, ApiError, PatchApi
from installer.kube.objects import Object, condition_of, items_at, mapping_at, text_at
from installer.model.node_marks import LAST_FAILURE, NOT_READY_TAINT, READY_CONDITION, READY_LABEL, STATUS
from installer.model.pause import PAUSE_ANNOTATION

_ANNOTATIONS = (STATUS, LAST_FAILURE, PAUSE_ANNOTATION)
_LABELS = (READY_LABEL,)
_TRIES = 5  # of a write that another one was quicker than


class NodesApi(Lists, PatchApi, Protocol):
    """See KubeClient."""


def clean_nodes(api: NodesApi) -> int:
    """Takes it off every Node; returns how many had any of it. Raises ApiError."""
    count = 0
    for page in api.list_pages(NODES, "", "", PAGE):
        for node in page.items:
            count += _clean(api, node)
    return count


def build_patches(node: Object) -> tuple[dict[str, Any], dict[str, Any]]:
    """A merge patch of the Node and a strategic one of its status; empty where nothing is ours. What of
    taints stays is given whole, so it is for this version of the Node only."""
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


def _clean(api: NodesApi, node: Object) -> bool:
    name, had = text_at(node, "metadata", "name"), False
    for attempt in range(_TRIES):
        patch, status = build_patches(node)
        had = had or bool(patch or status)
        try:
            if status:
                api.merge(NODES, "", name, status, status=True, content_type=STRATEGIC)
            if patch:
                if "resourceVersion" in patch["metadata"] and status:
                    node = api.get(NODES, "", name)
                    patch, _ = build_patches(node)
                api.merge(NODES, "", name, patch)
            return had
        except ApiError as error:
            if error.missing:
                return had
            if not error.conflict or attempt == _TRIES - 1:
                raise
            node = api.get(NODES, "", name)
    return had
