"""What the API server itself refuses: ValidatingAdmissionPolicies, for Kubernetes 1.30 and later. Pure.

RBAC can allow a pod to write every Node and every Lease of a namespace, or none. The first two policies hold
each pod of ours to the Node that its token names, to what is ours on it, and to that node's Lease. The last
one refuses the deletion of what the pods need to clean their nodes, until it carries an annotation: `kubectl
delete -f` of everything at once then deletes the DaemonSet, and the nodes clean themselves with the rights
that are left.

Admission policies are not asked about themselves: whoever may delete them, can delete everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from installer.manifests.values import Values
from installer.model.fleet import FLEET, FREEZE, ROLLOUT
from installer.model.node_marks import (
    LAST_FAILURE,
    NOT_READY_TAINT,
    READY_CONDITION,
    READY_LABEL,
    STATUS,
    UNINSTALLING,
)

_SHARED_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")


def rollout_namespace(values: Values) -> str:
    """Where the permits are."""
    return f"{values.name}-rollout"


def build_admission_values(values: Values, *, agent: bool, guard_deletion: bool) -> Mapping[str, Any]:
    """For the template. Namespaces that others share are never ours to keep."""
    namespaces = [values.namespace, rollout_namespace(values)]
    return {
        "account": f"system:serviceaccount:{values.namespace}:{values.name}",
        "rollout_namespace": rollout_namespace(values),
        "lease_namespaces": namespaces,
        "fleet": FLEET,
        "freeze": FREEZE,
        "rollout_label": ROLLOUT,
        "own_namespaces": _texts([name for name in namespaces if name not in _SHARED_NAMESPACES]),
        "own_labels": _texts([READY_LABEL]),
        "own_annotations": _texts([STATUS, LAST_FAILURE]),
        "condition": READY_CONDITION,
        "taint": NOT_READY_TAINT,
        "uninstalling": UNINSTALLING,
        "agent": agent,
        "guard_deletion": guard_deletion,
    }


def _texts(names: list[str]) -> str:
    """As a list of CEL. The names are those of objects, so that no quote can end one."""
    return "[" + ", ".join(f"'{name}'" for name in names) + "]"
