"""The NRI plugin that follows cri-resmgr on a node, by what its custom resources say. Pure.

A plugin of nri-plugins reads one resource of its kind, in its own namespace: that of the node before that of
the node's group before the default. It writes the result into `status.nodes` (pkg/agent of nri-plugins). Its
pod's readiness says nothing: the pod has no probes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from installer.model.jsontext import mapping_at

_API = "/apis/config.nri/v1alpha1/namespaces"
_PLURALS = ("topologyawarepolicies", "balloonspolicies")
_GROUP = "config.nri/group"
_WHY = 300  # characters of what a plugin says

Object = Mapping[str, Any]


def resource_paths(namespace: str, node: Object) -> Iterator[tuple[str, ...]]:
    """Yield for each kind of plugin where its resource for this Node may be; the first that exists counts."""
    metadata = mapping_at(node, "metadata")
    group = mapping_at(metadata, "labels").get(_GROUP)
    names = (f"node.{metadata.get('name')}", *([f"group.{group}"] if group else []), "default")
    for plural in _PLURALS:
        yield tuple(f"{_API}/{namespace}/{plural}/{name}" for name in names)


def judge(resources: Sequence[Object], node: str) -> tuple[str, bool]:
    """Return why no plugin serves the node by these resources, empty if one does; and whether one has
    tried."""
    reasons = list[str]()
    for each in resources:
        metadata, status = mapping_at(each, "metadata"), mapping_at(each, "status", "nodes", node)
        if status.get("generation") != metadata.get("generation"):
            continue
        if status.get("status") == "Success":
            return "", True
        name = f"{each.get('kind')} {metadata.get('namespace')}/{metadata.get('name')}"
        reasons.append(f"{name}: {str(status.get('errors') or status.get('status'))[:_WHY]}")
    return "; ".join(reasons) or "no NRI plugin reports yet that it serves this node", bool(reasons)
