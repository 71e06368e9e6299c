"""On which nodes the pods run: the operator's conditions and ours, so that all of them hold.

nodeSelectorTerms are alternatives, and a term without conditions matches nothing (Kubernetes API
reference, NodeSelector): ours go into each term, and an empty one is left out before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from installer.manifests.values import Values

CRI_NAME_LABEL = "worker.gardener.cloud/cri-name"

_CONTROL_PLANE = ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master")
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def build_node_selector(values: Values) -> dict[str, str]:
    """The payload's platform, Gardener's label where it counts, and what the operator asks for."""
    ours = {"kubernetes.io/os": "linux", "kubernetes.io/arch": values.arch}
    gardeners = {CRI_NAME_LABEL: values.cri_name} if values.gardener else {}
    return {**gardeners, **values.node_selector, **ours}


def build_affinity(values: Values) -> dict[str, Any]:
    """The operator's affinity with our conditions in every required term; empty if there are none."""
    affinity: dict[str, Any] = dict(values.affinity)
    node = dict(affinity.get("nodeAffinity") or {})
    given = (node.get(_REQUIRED) or {}).get("nodeSelectorTerms") or []
    terms = [term for term in given if any(term.values())] or [{}]
    expressions = [] if values.control_plane else _without(_CONTROL_PLANE)
    alternatives = [_and(term, expressions, name) for term in terms for name in values.nodes or ("",)]
    if any(alternatives):
        node[_REQUIRED] = {"nodeSelectorTerms": alternatives}
    if node:
        affinity["nodeAffinity"] = node
    return affinity


def _without(labels: tuple[str, ...]) -> list[dict[str, Any]]:
    return [{"key": label, "operator": "DoesNotExist"} for label in labels]


def _and(term: Mapping[str, Any], expressions: list[dict[str, Any]], node: str) -> dict[str, Any]:
    """A field condition takes one value only, so each node has a term of its own (validation of
    NodeSelectorTerm in Kubernetes)."""
    field = [{"key": "metadata.name", "operator": "In", "values": [node]}] if node else []
    parts = {
        "matchExpressions": [*(term.get("matchExpressions") or []), *expressions],
        "matchFields": [*(term.get("matchFields") or []), *field],
    }
    return {key: conditions for key, conditions in parts.items() if conditions}
