"""Reads the resources on the seed, as far as a decision needs them. Their shapes are those of Gardener's
API groups extensions.gardener.cloud/v1alpha1, resources.gardener.cloud/v1alpha1 and, for the Shoot,
core.gardener.cloud/v1beta1.

A value of a wrong type is read as a missing one: an API server of another version must not end the
controller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from installer.operator.api import Resource
from installer.operator.kube_objects import Object, cut_line, items_at, mapping_at, number_at, text_at

EXTENSIONS = Resource("extensions.gardener.cloud", "v1alpha1", "extensions")
CLUSTERS = Resource("extensions.gardener.cloud", "v1alpha1", "clusters")
MANAGED_RESOURCES = Resource("resources.gardener.cloud", "v1alpha1", "managedresources")

OPERATION = "gardener.cloud/operation"
_ASKED = "gardener.cloud/timestamp"
_FORCE = "confirmation.gardener.cloud/force-deletion"
_MESSAGE = 1000  # characters
_SIZE, _VALUES, _LEVELS = 256 << 10, 10_000, 20  # bytes, values and levels of a providerConfig
_WINDOW = ("spec", "maintenance", "timeWindow")
_TRUE = ("1", "t", "T", "true", "TRUE", "True")  # as Go's strconv.ParseBool, which Gardener reads it with


@dataclass(frozen=True, slots=True)
class Extension:
    """`operation` is what gardenlet asks for: reconcile, migrate, restore, or nothing; `asked` is when.
    `version` is the resource version. `class_` is shoot, seed or garden: whom it serves. `excess`: why its
    providerConfig is not kept, empty if it is."""

    namespace: str
    name: str
    uid: str
    version: str
    type: str
    class_: str
    generation: int
    operation: str
    asked: str
    deleted: str
    finalizers: tuple[str, ...]
    provider_config: object
    status: Object
    excess: str = ""

    @property
    def deleting(self) -> bool:
        return bool(self.deleted)

    @property
    def last_type(self) -> str:
        return text_at(self.status, "lastOperation", "type")

    @property
    def last_state(self) -> str:
        return text_at(self.status, "lastOperation", "state")

    @property
    def observed_generation(self) -> int:
        return number_at(self.status, "observedGeneration")


@dataclass(frozen=True, slots=True)
class Shoot:
    """`failed`: Gardener has given it up until a person retries. `maintenance`: begin and end of its window,
    as it writes them."""

    version: str
    hibernated: bool
    deleting: bool = False
    force_deletion: bool = False
    failed: bool = False
    maintenance: tuple[str, str] = ("", "")


@dataclass(frozen=True, slots=True)
class ManagedResource:
    """`conditions` are those of its present generation: type -> status and message. `failure`: why the last
    attempt to apply or delete its objects failed, whatever the generation; empty if it did not."""

    name: str
    version: str
    deleting: bool
    keep_objects: bool
    secrets: tuple[str, ...]
    spec: Object
    conditions: Mapping[str, tuple[str, str]]
    failure: str = ""

    def status_of(self, condition: str) -> str:
        return self.conditions.get(condition, ("", ""))[0]

    def message_of(self, condition: str) -> str:
        return self.conditions.get(condition, ("", ""))[1]


def parse_extension(given: Object) -> Extension:
    metadata, spec = mapping_at(given, "metadata"), mapping_at(given, "spec")
    finalizers = metadata.get("finalizers")
    config = spec.get("providerConfig")
    excess = _excess(config)
    return Extension(
        namespace=text_at(metadata, "namespace"),
        name=text_at(metadata, "name"),
        uid=text_at(metadata, "uid"),
        version=text_at(metadata, "resourceVersion"),
        type=text_at(spec, "type"),
        class_=text_at(spec, "class") or "shoot",
        generation=number_at(metadata, "generation"),
        operation=text_at(metadata, "annotations", OPERATION),
        asked=text_at(metadata, "annotations", _ASKED),
        deleted=text_at(metadata, "deletionTimestamp"),
        finalizers=tuple(finalizers) if isinstance(finalizers, list) else (),
        provider_config=None if excess else config,
        status=mapping_at(given, "status"),
        excess=excess,
    )


def _excess(config: object) -> str:
    """Return why it is larger than one Shoot's may be, because all Shoots share this process; empty if it is
    not."""
    level, values, size = [config], 0, 0
    for _ in range(_LEVELS):
        below: list[object] = []
        for each in level:
            values += 1
            if isinstance(each, str):
                size += len(each.encode("utf-8", "replace"))
            elif isinstance(each, Mapping):
                below += each.keys()
                below += each.values()
            elif isinstance(each, list):
                below += each
        if size > _SIZE:
            return f"is larger than {_SIZE >> 10} KiB"
        if values + len(below) > _VALUES:
            return f"has more than {_VALUES} values"
        level = below
    return f"is nested deeper than {_LEVELS} levels" if level else ""


def parse_cluster(given: Object) -> Shoot:
    """Read the Shoot in a Cluster."""
    shoot = mapping_at(given, "spec", "shoot")
    metadata, status = mapping_at(shoot, "metadata"), mapping_at(shoot, "status")
    enabled = mapping_at(shoot, "spec", "hibernation").get("enabled") is True
    return Shoot(
        version=text_at(shoot, "spec", "kubernetes", "version"),
        # Until the hibernation is complete, there are still nodes.
        hibernated=enabled and status.get("hibernated") is True,
        deleting=bool(text_at(metadata, "deletionTimestamp")),
        force_deletion=text_at(metadata, "annotations", _FORCE) in _TRUE,
        failed=text_at(status, "lastOperation", "state") == "Failed",
        maintenance=(text_at(shoot, *_WINDOW, "begin"), text_at(shoot, *_WINDOW, "end")),
    )


def parse_managed_resource(given: Object) -> ManagedResource:
    metadata, spec, status = (mapping_at(given, key) for key in ("metadata", "spec", "status"))
    current = status.get("observedGeneration") == metadata.get("generation")
    conditions = tuple(items_at(status, "conditions"))
    return ManagedResource(
        name=text_at(metadata, "name"),
        version=text_at(metadata, "resourceVersion"),
        deleting=bool(text_at(metadata, "deletionTimestamp")),
        keep_objects=spec.get("keepObjects") is True,
        secrets=tuple(text_at(each, "name") for each in items_at(spec, "secretRefs")),
        spec=spec,
        conditions={
            text_at(each, "type"): (text_at(each, "status"), _message(each)) for each in conditions if current
        },
        failure=next((_message(each) for each in conditions if _is_failure(each)), ""),
    )


def _is_failure(condition: Object) -> bool:
    """gardener-resource-manager writes the generation that it has observed only on success. While it
    retries, the condition is Progressing with the reason of the failure, and False before and after
    (pkg/resourcemanager/controller/managedresource/reconciler.go of gardener/gardener). gardenlet reads it
    without comparing the generation."""
    tried = condition.get("status") == "False" or condition.get("reason") in ("ApplyFailed", "DeletionFailed")
    return condition.get("type") == "ResourcesApplied" and tried


def _message(condition: Object) -> str:
    """Cut it: the server may quote another one, which belongs to the Shoot's owner."""
    said = text_at(condition, "message") or text_at(condition, "reason")
    return cut_line(said, _MESSAGE)
