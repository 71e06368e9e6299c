"""Carries out a decision by requests. Their order lets another replica continue if this one is killed
between two of them: what cleans up is created before what it cleans, and the finalizer is removed last.

Each write of an Extension or a ManagedResource has the version that was decided on. If another writer was
quicker, it conflicts, and the controller decides again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from installer.gardener.decide import FINALIZER, Decision, Situation
from installer.gardener.managed_resource import Wanted
from installer.gardener.resources import EXTENSIONS, MANAGED_RESOURCES, OPERATION, Extension
from installer.gardener.status import build_patch
from installer.model.event import truncate
from installer.model.instant import micro_time
from installer.operator.api import EVENTS, SECRETS, ApiError, KubeApi
from installer.operator.kube_objects import text_at

_PROGRAM = "cri-resmgr-installer"
_NOTE = 1024  # bytes, of an Event (Kubernetes API reference, events.k8s.io/v1)


def write_decision(api: KubeApi, situation: Situation, decision: Decision, instance: str) -> None:
    """`instance` is who acts, for the Events. Raises ApiError."""
    extension, resource = situation.extension, situation.resource
    version = extension.version

    def patch(body: Mapping[str, Any], status: bool = False) -> None:
        nonlocal version
        metadata = {**body.get("metadata", {}), "resourceVersion": version}
        patched = api.merge(
            EXTENSIONS, extension.namespace, extension.name, {**body, "metadata": metadata}, status
        )
        version = text_at(patched, "metadata", "resourceVersion")

    finalizers = list(extension.finalizers)
    if decision.ensure_finalizer and FINALIZER not in finalizers:
        finalizers.append(FINALIZER)
        patch({"metadata": {"finalizers": finalizers}})
    if decision.write is not None:
        _write(api, situation, decision.write)
    if decision.keep_objects and resource is not None:
        body = {"metadata": {"resourceVersion": resource.version}, "spec": {"keepObjects": True}}
        api.merge(MANAGED_RESOURCES, extension.namespace, resource.name, body)
    if decision.delete and resource is not None:
        api.delete(MANAGED_RESOURCES, extension.namespace, resource.name)
    status = build_patch(extension, decision.report, situation.now)
    if status:
        patch({"status": status}, status=True)
        if status.get("lastOperation"):
            event = build_event(extension, status["lastOperation"], situation.now, instance)
            with contextlib.suppress(ApiError):  # nothing depends on it: one that is refused is lost
                api.create(EVENTS, extension.namespace, event)
    if decision.remove_operation and extension.operation:
        patch({"metadata": {"annotations": {OPERATION: None}}})
    if decision.remove_finalizer and FINALIZER in finalizers:
        patch({"metadata": {"finalizers": [name for name in finalizers if name != FINALIZER]}})


def _write(api: KubeApi, situation: Situation, wanted: Wanted) -> None:
    """Write both. The Secret is immutable and named by its content: an existing one is the right one."""
    namespace, resource = situation.extension.namespace, situation.resource
    api.create_absent(SECRETS, namespace, wanted.secret)  # a person may have deleted it
    spec = wanted.resource["spec"].items()  # the API server may have added defaults to it
    if resource is not None and all(resource.spec.get(key) == value for key, value in spec):
        return
    if resource is None:
        api.create(MANAGED_RESOURCES, namespace, wanted.resource)
        return
    metadata = wanted.resource["metadata"]
    body = {
        "metadata": {
            "resourceVersion": resource.version,
            "labels": metadata["labels"],
            "annotations": metadata["annotations"],
        },
        # A merge keeps what is no longer wanted.
        "spec": {**dict.fromkeys(resource.spec), **wanted.resource["spec"]},
    }
    api.merge(MANAGED_RESOURCES, namespace, resource.name, body)


def build_event(
    extension: Extension, operation: Mapping[str, Any], now: float, instance: str
) -> dict[str, Any]:
    """Build an Event for a new state or error of an operation."""
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"generateName": f"{_PROGRAM}-", "namespace": extension.namespace},
        "eventTime": micro_time(now),
        "regarding": {
            "apiVersion": "extensions.gardener.cloud/v1alpha1",
            "kind": "Extension",
            "namespace": extension.namespace,
            "name": extension.name,
            "uid": extension.uid,
        },
        "reason": f"{operation['type']}{operation['state']}",
        "action": operation["type"],
        "note": truncate(operation["description"], _NOTE),
        "type": "Warning" if operation["state"] == "Error" else "Normal",
        "reportingController": _PROGRAM,
        "reportingInstance": instance[:128],
    }
