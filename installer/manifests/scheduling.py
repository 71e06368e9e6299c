"""Selects the nodes that the pods run on, by the operator's conditions and ours, all of which must hold.

nodeSelectorTerms are alternatives, and a term without conditions matches no node (Kubernetes API reference,
NodeSelector): empty terms are dropped, and our conditions are added to each other term.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from installer.manifests.sources import Fault
from installer.manifests.values import Values

CRI_NAME_LABEL = "worker.gardener.cloud/cri-name"

_CONTROL_PLANE = ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master")
_NO_HOST = (("eks.amazonaws.com/compute-type", "fargate"), ("type", "virtual-kubelet"))
"""Labels of nodes that are no machine: no pod of ours can run there, whatever it tolerates."""
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_CONDITIONS = ("matchExpressions", "matchFields")


def affinity_faults(affinity: Mapping[str, Any]) -> Iterable[Fault]:
    """Find what prevents our conditions from being added to each term. The API server judges the rest."""
    node = affinity.get("nodeAffinity") or {}
    if not isinstance(node, dict):
        yield ("affinity", "nodeAffinity"), "must be a mapping"
        return
    required = node.get(_REQUIRED)
    if required is None:
        return
    path = ("affinity", "nodeAffinity", _REQUIRED, "nodeSelectorTerms")
    terms = required.get("nodeSelectorTerms") if isinstance(required, dict) else None
    if not isinstance(terms, list) or not all(isinstance(term, dict) for term in terms):
        yield path, "must be a list of mappings"
        return
    for index, term in enumerate(terms):
        for key, conditions in term.items():
            if key not in _CONDITIONS or not isinstance(conditions, list):
                yield (*path, str(index), str(key)), f"must be {' or '.join(_CONDITIONS)}, a list"
    if not any(any(term.values()) for term in terms):
        yield path, "matches no node: a term without conditions never does"


def build_node_selector(values: Values) -> dict[str, str]:
    """Return the payload's platform, Gardener's label on its clusters, and what the operator asks for."""
    ours = {"kubernetes.io/os": "linux", "kubernetes.io/arch": values.arch}
    gardeners = {CRI_NAME_LABEL: values.cri_name} if values.gardener else {}
    return {**gardeners, **values.node_selector, **ours}


def build_affinity(values: Values) -> dict[str, Any]:
    """Return the operator's affinity with our conditions in every required term."""
    affinity: dict[str, Any] = dict(values.affinity)
    node = dict(affinity.get("nodeAffinity") or {})
    given = (node.get(_REQUIRED) or {}).get("nodeSelectorTerms") or []
    terms = [term for term in given if any(term.values())] or [{}]
    not_control_plane = [{"key": label, "operator": "DoesNotExist"} for label in _CONTROL_PLANE]
    expressions: list[dict[str, Any]] = [] if values.control_plane else not_control_plane
    expressions += [{"key": key, "operator": "NotIn", "values": [value]} for key, value in _NO_HOST]
    alternatives = [_and(term, expressions, name) for term in terms for name in values.nodes or ("",)]
    node[_REQUIRED] = {"nodeSelectorTerms": alternatives}
    affinity["nodeAffinity"] = node
    return affinity


def _and(term: Mapping[str, Any], expressions: list[dict[str, Any]], node: str) -> dict[str, Any]:
    """Add our conditions to a term. A field condition takes only one value, so each node has a term of its
    own (validation of NodeSelectorTerm in Kubernetes)."""
    field = [{"key": "metadata.name", "operator": "In", "values": [node]}] if node else []
    parts = {
        "matchExpressions": [*(term.get("matchExpressions") or []), *expressions],
        "matchFields": [*(term.get("matchFields") or []), *field],
    }
    return {key: conditions for key, conditions in parts.items() if conditions}
