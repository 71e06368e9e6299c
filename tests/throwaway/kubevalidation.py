"""What a real API server refuses of the objects that our programs write, as far as a mistake of ours could
lead there (seen on Kubernetes 1.36; tests/contract/test_kubeserver.py runs on both).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LONGEST = 253
#: The names of these may be any part of a path.
_LOOSE = ("rbac.authorization.k8s.io",)
#: Parts of the metadata that are left out where there is nothing in them.
_EMPTY = ("labels", "annotations", "finalizers", "ownerReferences")
#: Parts of the metadata that no client writes.
SERVERS = (
    "name",
    "namespace",
    "uid",
    "creationTimestamp",
    "generation",
    "deletionTimestamp",
    "resourceVersion",
)


class InvalidError(ValueError):
    """With the code and the reason of the answer."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason = code, reason


def tidy(body: dict[str, Any]) -> None:
    metadata = body["metadata"]
    for key in _EMPTY:
        if not metadata.get(key, True):
            del metadata[key]


def validate(plural: str, group: str, body: Mapping[str, Any]) -> None:
    """Raises InvalidError."""
    name = body["metadata"]["name"]
    if group not in _LOOSE and (len(name) > _LONGEST or not _NAME.fullmatch(name)):
        raise InvalidError(422, "Invalid", f"metadata.name: Invalid value: {name}")
    if plural == "leases":
        for code, what in _faults_of_lease(body.get("spec") or {}):
            raise InvalidError(
                code, "Invalid" if code == 422 else "BadRequest", f"spec.{what}: Invalid value"
            )
    if (plural, group) == ("events", ""):
        involved = body.get("involvedObject", {}).get("namespace") or "default"
        if involved != body["metadata"].get("namespace"):
            raise InvalidError(422, "Invalid", "involvedObject.namespace: Invalid value: does not match")


def validate_replacement(plural: str, body: Mapping[str, Any]) -> None:
    """Raises InvalidError where somebody replaces a version that he does not name."""
    if plural == "leases" and not body["metadata"].get("resourceVersion"):
        raise InvalidError(422, "Invalid", "metadata.resourceVersion: must be specified for an update")


def _faults_of_lease(spec: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    """Code and field of each: first what is not of the right kind."""
    for field in ("leaseDurationSeconds", "leaseTransitions"):
        if not isinstance(spec.get(field, 1), int | None):
            yield 400, field
    for field in ("renewTime", "acquireTime"):
        try:
            datetime.fromisoformat(str(spec.get(field) or "2026-01-01T00:00:00Z"))
        except ValueError:
            yield 400, field
    seconds, transitions = spec.get("leaseDurationSeconds"), spec.get("leaseTransitions")
    if seconds is not None and seconds <= 0:
        yield 422, "leaseDurationSeconds"
    if transitions is not None and transitions < 0:
        yield 422, "leaseTransitions"
