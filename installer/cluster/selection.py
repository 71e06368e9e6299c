"""Whether a pod template selects a node: nodeSelector and required node affinity. Pure.

This follows the DaemonSet controller (Kubernetes documentation, "Assigning Pods to Nodes"), without taints
and preferences. Whatever is not understood raises ValueError, so that it never counts as a no.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any


def selects(template: Mapping[str, Any], node: str, labels: Mapping[str, Any]) -> bool:
    """Whether the pods of `template` (a PodTemplateSpec) may run on a node of this name with these labels.

    Raises ValueError for anything that is not as documented.
    """
    spec = _mapping(template.get("spec"), "the pod template's spec")
    wanted = _mapping(spec.get("nodeSelector") or {}, "nodeSelector")
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    affinity = _mapping(spec.get("affinity") or {}, "affinity")
    node_affinity = _mapping(affinity.get("nodeAffinity") or {}, "nodeAffinity")
    required = node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return True
    found = _mapping(required, "the required node affinity").get("nodeSelectorTerms")
    terms = _list(found, "nodeSelectorTerms")
    if not terms:
        raise ValueError("nodeSelectorTerms is empty")
    return any(_term_matches(_mapping(term, "a term"), node, labels) for term in terms)


def _term_matches(term: Mapping[str, Any], node: str, labels: Mapping[str, Any]) -> bool:
    """Whether all of its expressions match; an empty term matches nothing."""
    unknown = set(term) - {"matchExpressions", "matchFields"}
    if unknown:
        raise ValueError(f"{sorted(unknown)} in a term is not supported")
    expressions = _list(term.get("matchExpressions") or [], "matchExpressions")
    fields = _list(term.get("matchFields") or [], "matchFields")
    if any(_mapping(entry, "a field").get("key") != "metadata.name" for entry in fields):
        raise ValueError("matchFields supports only metadata.name")
    results = [_matches(_mapping(entry, "an expression"), labels) for entry in expressions]
    results += [_matches(entry, {"metadata.name": node}) for entry in fields]
    return bool(results) and all(results)


def _matches(expression: Mapping[str, Any], labels: Mapping[str, Any]) -> bool:
    key, operator = expression.get("key"), expression.get("operator")
    values = _list(expression.get("values") or [], "values")
    if not isinstance(key, str) or not all(isinstance(value, str) for value in values):
        raise ValueError("an expression without a key, or with values that are not strings")
    if operator in ("Exists", "DoesNotExist") and not values:
        return (key in labels) is (operator == "Exists")
    if operator in ("In", "NotIn") and values:
        return (key in labels and labels[key] in values) is (operator == "In")
    if operator in ("Gt", "Lt") and len(values) == 1:
        return _compares(labels.get(key), values[0], greater=operator == "Gt")
    raise ValueError(f"an expression with operator {operator!r} and {len(values)} values")


def _compares(label: object, value: str, *, greater: bool) -> bool:
    """Compare as integers; a label that is missing or not an integer does not match."""
    bound = _number(value)
    if bound is None:
        raise ValueError(f"{value!r} is compared with a label, but is not an integer")
    number = _number(label) if isinstance(label, str) else None
    return number is not None and (number > bound if greater else number < bound)


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[+-]?[0-9]{1,19}", text) else None


def _mapping(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} is not a mapping")
    return value


def _list(value: object, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{what} is not a list")
    return value
