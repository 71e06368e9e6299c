"""A decision becomes requests, in the order that lets whoever is killed between two of them be followed by
another one: what cleans up is created before what it cleans, and the finalizer goes last.

Each write of an Extension or a ManagedResource says which version it is about. If another writer was quicker,
it conflicts, and the controller looks again.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from installer.gardener.decide import FINALIZER, Decision, Situation
from installer.gardener.desired import Wanted
from installer.gardener.resources import EXTENSIONS, MANAGED_RESOURCES, OPERATION
from installer.gardener.status import build_patch
from installer.model.instant import micro_time
from installer.operator.api import EVENTS, SECRETS, ApiError, KubeApi
from installer.operator.kube_objects import Object, text_at

_PROGRAM = "cri-resmgr-installer"
_NOTE = 1024  # bytes, of an Event (Kubernetes API reference, events.k8s.io/v1)


def carry_out(api: KubeApi, situation: Situation, decision: Decision, instance: str) -> None:
    """`instance` is who acts, for the events. Raises ApiError."""
    extension, resource = situation.extension, situation.resource
    version = extension.version

    def patch(body: Mapping[str, Any], status: bool = False) -> None:
        nonlocal version
        metadata = {**body.get("metadata", {}), "resourceVersion": version}
        found = api.merge(
            EXTENSIONS, extension.namespace, extension.name, {**body, "metadata": metadata}, status
        )
        version = text_at(found, "metadata", "resourceVersion")

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
        _tell(api, situation, status, instance)
    if decision.remove_operation and extension.operation:
        patch({"metadata": {"annotations": {OPERATION: None}}})
    if decision.remove_finalizer and FINALIZER in finalizers:
        patch({"metadata": {"finalizers": [each for each in finalizers if each != FINALIZER]}})


def _write(api: KubeApi, situation: Situation, wanted: Wanted) -> None:
    """The Secret is immutable and named by its content: one that is there already is the right one."""
    namespace, resource = situation.extension.namespace, situation.resource
    if resource is not None and resource.secrets == (wanted.secret_name,) and _is_same(resource.spec, wanted):
        return
    api.create_absent(SECRETS, namespace, wanted.secret)
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


def _is_same(spec: Object, wanted: Wanted) -> bool:
    """Whether it says all that is wanted; the API server may have added defaults."""
    return all(spec.get(key) == value for key, value in wanted.resource["spec"].items())


def _tell(api: KubeApi, situation: Situation, status: Mapping[str, Any], instance: str) -> None:
    """An Event for each new state or error of an operation. Nothing depends on it: one that the API server
    does not take is lost."""
    operation = status.get("lastOperation")
    if not operation:
        return
    extension, bad = situation.extension, operation["state"] == "Error"
    event = build_event(
        extension.namespace,
        {
            "apiVersion": "extensions.gardener.cloud/v1alpha1",
            "kind": "Extension",
            "namespace": extension.namespace,
            "name": extension.name,
            "uid": extension.uid,
        },
        (f"{operation['type']}{operation['state']}", operation["type"]),
        operation["description"],
        bad,
        situation.now,
        instance,
    )
    try:
        api.create(EVENTS, extension.namespace, event)
    except ApiError:
        return


def build_event(
    namespace: str,
    regarding: Mapping[str, str],
    reason: tuple[str, str],
    note: str,
    warning: bool,
    now: datetime,
    instance: str,
) -> dict[str, Any]:
    """Of events.k8s.io/v1. `reason` is the reason and what was done."""
    raw = note.encode()
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"generateName": f"{_PROGRAM}-", "namespace": namespace},
        "eventTime": micro_time(now),
        "regarding": dict(regarding),
        "reason": reason[0],
        "action": reason[1],
        "note": note if len(raw) <= _NOTE else raw[: _NOTE - 3].decode("utf-8", "ignore") + "...",
        "type": "Warning" if warning else "Normal",
        "reportingController": _PROGRAM,
        "reportingInstance": instance[:128],
    }
