"""What a real API server refuses of the objects that our programs write, as far as a mistake of ours could
lead there (seen on Kubernetes 1.36; tests/contract/kubeserver runs on both).
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LONGEST = 253
_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
_LABEL, _ANNOTATIONS = 63, 256 << 10  # characters of a name or a value; bytes of all of an object
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
#: Definitions of what our programs write.
_KINDS = {
    ("", "nodes"): "io.k8s.api.core.v1.Node",
    ("", "events"): "io.k8s.api.core.v1.Event",
    ("", "secrets"): "io.k8s.api.core.v1.Secret",
    ("", "configmaps"): "io.k8s.api.core.v1.ConfigMap",
    ("apps", "daemonsets"): "io.k8s.api.apps.v1.DaemonSet",
    ("coordination.k8s.io", "leases"): "io.k8s.api.coordination.v1.Lease",
    ("events.k8s.io", "events"): "io.k8s.api.events.v1.Event",
}
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


def tidy(plural: str, body: dict[str, Any]) -> None:
    """As it is kept: without what is empty, with what is usual."""
    metadata = body["metadata"]
    if plural == "secrets":
        body.setdefault("type", "Opaque")
    for key in _EMPTY:
        if not metadata.get(key, True):
            del metadata[key]


def check_fields(method: str, plural: str, group: str, body: dict[str, Any], how: str) -> None:
    """Takes out what a kind does not have, `$patch` apart. Raises InvalidError, if that is asked for."""
    name = _KINDS.get((group, plural))
    strange = list(_prune(schemas()[name], body, "")) if name else []
    if strange and how == "Strict":
        code, reason = (422, "Invalid") if method == "PATCH" else (400, "BadRequest")
        said = ", ".join(f'unknown field "{each}"' for each in strange)
        raise InvalidError(code, reason, f"strict decoding error: {said}")


@cache
def schemas() -> dict[str, Any]:
    """Of the newest Kubernetes that kubernetes-validate knows."""
    package = pytest.importorskip("kubernetes_validate")
    version = package.utils.latest_version()
    directory = Path(package.__file__).parent / "kubernetes-json-schema" / f"v{version}-local"
    found: dict[str, Any] = json.loads((directory / "_definitions.json").read_text())["$defs"]
    return found


def _prune(schema: Mapping[str, Any], value: Any, path: str) -> Iterator[str]:
    """What was taken out."""
    if "$ref" in schema:
        schema = schemas()[schema["$ref"].rpartition("/")[2]]
    if isinstance(value, list):
        for at, each in enumerate(value):
            yield from _prune(schema.get("items", {}), each, f"{path}[{at}]")
    if not isinstance(value, dict):
        return
    known = schema.get("properties")
    for key in list(value):
        where = f"{path}.{key}".removeprefix(".")
        if known is None:
            yield from _prune(schema.get("additionalProperties") or {}, value[key], where)
        elif key in known:
            yield from _prune(known[key], value[key], where)
        elif key != "$patch":
            del value[key]
            yield where


def validate(plural: str, group: str, body: Mapping[str, Any], old: Mapping[str, Any] | None = None) -> None:
    """`old`: as it was. Raises InvalidError."""
    name = body["metadata"]["name"]
    if group not in _LOOSE and (len(name) > _LONGEST or not _NAME.fullmatch(name)):
        raise InvalidError(422, "Invalid", f"metadata.name: Invalid value: {name}")
    for code, what in (*_faults_of_metadata(body["metadata"]), *_faults_of_change(body, old)):
        raise InvalidError(
            code, "Invalid" if code == 422 else "BadRequest", f"metadata.{what}: Invalid value"
        )
    if (plural, group) == ("nodes", ""):
        for what in _faults_of_node(body):
            raise InvalidError(422, "Invalid", f"{what}: Invalid value")
    if (plural, group) == ("daemonsets", "apps") and not _selects_its_pods(body, old):
        raise InvalidError(422, "Invalid", "spec.selector: Invalid value")
    if (plural, group) == ("secrets", "") and not all(map(_is_base64, (body.get("data") or {}).values())):
        raise InvalidError(400, "BadRequest", "data: illegal base64 data")
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


def _faults_of_metadata(metadata: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    """Code and field of each: first what is not of the right kind."""
    for part in ("labels", "annotations"):
        found = metadata.get(part) or {}
        if not isinstance(found, dict) or not all(isinstance(each, str) for each in found.values()):
            yield 400, part
            return
        if not all(map(_is_qualified, found)):
            yield 422, part
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    if not all(len(each) <= _LABEL and _VALUE.fullmatch(each) for each in labels.values()):
        yield 422, "labels"
    if sum(len(key.encode()) + len(text.encode()) for key, text in annotations.items()) > _ANNOTATIONS:
        yield 422, "annotations"
    if not all(map(_is_qualified, metadata.get("finalizers") or ())):
        yield 422, "finalizers"
    for owner in metadata.get("ownerReferences") or ():
        if not all(owner.get(key) for key in ("apiVersion", "kind", "name", "uid")):
            yield 422, "ownerReferences"


def _faults_of_change(body: Mapping[str, Any], old: Mapping[str, Any] | None) -> Iterator[tuple[int, str]]:
    """What is on its way out is held by nobody else any more."""
    if old is not None and old["metadata"].get("deletionTimestamp"):
        before, now = (set(each["metadata"].get("finalizers") or ()) for each in (old, body))
        if now - before:
            yield 422, "finalizers"


def _faults_of_node(body: Mapping[str, Any]) -> Iterator[str]:
    for taint in body.get("spec", {}).get("taints") or ():
        if not _is_qualified(taint.get("key") or "") or taint.get("effect") not in _EFFECTS:
            yield "spec.taints"
    for condition in body.get("status", {}).get("conditions") or ():
        for key in ("lastHeartbeatTime", "lastTransitionTime"):
            if not _is_time(condition.get(key)):
                yield f"status.conditions.{key}"


def _selects_its_pods(body: Mapping[str, Any], old: Mapping[str, Any] | None) -> bool:
    """For ever the same ones."""
    spec = body.get("spec", {})
    wanted: dict[str, str] = spec.get("selector", {}).get("matchLabels", {})
    labels: dict[str, str] = spec.get("template", {}).get("metadata", {}).get("labels", {})
    same = old is None or old.get("spec", {}).get("selector") == spec.get("selector")
    return bool(same and wanted.items() <= labels.items())


def _is_qualified(key: str) -> bool:
    prefix, slash, name = key.rpartition("/")
    well = not slash or (len(prefix) <= _LONGEST and _NAME.fullmatch(prefix))
    return bool(well and len(name) <= _LABEL and name and _VALUE.fullmatch(name))


def _is_base64(text: str) -> bool:
    try:
        return bool(base64.b64decode(text, validate=True)) or not text
    except ValueError:
        return False


def _is_time(text: str | None) -> bool:
    try:
        return bool(datetime.fromisoformat(text or "2026-01-01T00:00:00Z"))
    except ValueError:
        return False


def _faults_of_lease(spec: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    """Code and field of each: first what is not of the right kind."""
    for field in ("leaseDurationSeconds", "leaseTransitions"):
        if not isinstance(spec.get(field, 1), int | None):
            yield 400, field
    for field in ("renewTime", "acquireTime"):
        if not _is_time(spec.get(field)):
            yield 400, field
    seconds, transitions = spec.get("leaseDurationSeconds"), spec.get("leaseTransitions")
    if seconds is not None and seconds <= 0:
        yield 422, "leaseDurationSeconds"
    if transitions is not None and transitions < 0:
        yield 422, "leaseTransitions"
