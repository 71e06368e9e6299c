"""The resources on the seed, as far as a decision needs them. Their shapes are those of Gardener's API groups
extensions.gardener.cloud/v1alpha1, resources.gardener.cloud/v1alpha1 and, for the Shoot,
core.gardener.cloud/v1beta1.

What is missing or of a wrong type is read as if it were not there: an API server of another version must not
end the controller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from installer.kube.api import Resource
from installer.kube.objects import Object, mapping_at, text_at

EXTENSIONS = Resource("extensions.gardener.cloud", "v1alpha1", "extensions")
CLUSTERS = Resource("extensions.gardener.cloud", "v1alpha1", "clusters")
MANAGED_RESOURCES = Resource("resources.gardener.cloud", "v1alpha1", "managedresources")

OPERATION = "gardener.cloud/operation"
_ASKED = "gardener.cloud/timestamp"
_FORCE = "confirmation.gardener.cloud/force-deletion"
_TRUE = ("1", "t", "T", "true", "TRUE", "True")  # as Go's strconv.ParseBool, which Gardener reads it with


@dataclass(frozen=True, slots=True)
class Extension:
    """`operation` is what gardenlet asks for: reconcile, migrate, restore, or nothing; `asked` is when.
    `version` is its resource version. `class_` is shoot, seed or garden: for whose sake it is there."""

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
        found = self.status.get("observedGeneration")
        return found if isinstance(found, int) else 0


@dataclass(frozen=True, slots=True)
class Shoot:
    """`failed`: Gardener has given it up until a person retries."""

    version: str
    hibernated: bool
    deleting: bool = False
    force_deletion: bool = False
    failed: bool = False


@dataclass(frozen=True, slots=True)
class ManagedResource:
    """`conditions` are those of its present generation: type -> status and message."""

    name: str
    version: str
    deleting: bool
    keep_objects: bool
    secrets: tuple[str, ...]
    spec: Object
    conditions: Mapping[str, tuple[str, str]]

    def status_of(self, condition: str) -> str:
        return self.conditions.get(condition, ("", ""))[0]

    def message_of(self, condition: str) -> str:
        return self.conditions.get(condition, ("", ""))[1]


def parse_extension(given: Object) -> Extension:
    metadata, spec = mapping_at(given, "metadata"), mapping_at(given, "spec")
    finalizers = metadata.get("finalizers")
    return Extension(
        namespace=text_at(metadata, "namespace"),
        name=text_at(metadata, "name"),
        uid=text_at(metadata, "uid"),
        version=text_at(metadata, "resourceVersion"),
        type=text_at(spec, "type"),
        class_=text_at(spec, "class") or "shoot",
        generation=metadata["generation"] if isinstance(metadata.get("generation"), int) else 0,
        operation=text_at(metadata, "annotations", OPERATION),
        asked=text_at(metadata, "annotations", _ASKED),
        deleted=text_at(metadata, "deletionTimestamp"),
        finalizers=tuple(finalizers) if isinstance(finalizers, list) else (),
        provider_config=spec.get("providerConfig"),
        status=mapping_at(given, "status"),
    )


def parse_cluster(given: Object) -> Shoot:
    """The Shoot in a Cluster."""
    shoot = mapping_at(given, "spec", "shoot")
    metadata, status = mapping_at(shoot, "metadata"), mapping_at(shoot, "status")
    enabled = mapping_at(shoot, "spec", "hibernation").get("enabled") is True
    return Shoot(
        version=text_at(shoot, "spec", "kubernetes", "version"),
        # Between the wish and its fulfilment there are still nodes.
        hibernated=enabled and status.get("hibernated") is True,
        deleting=bool(text_at(metadata, "deletionTimestamp")),
        force_deletion=text_at(metadata, "annotations", _FORCE) in _TRUE,
        failed=text_at(status, "lastOperation", "state") == "Failed",
    )


def parse_managed_resource(given: Object) -> ManagedResource:
    metadata, spec, status = (mapping_at(given, key) for key in ("metadata", "spec", "status"))
    current = status.get("observedGeneration") == metadata.get("generation")
    listed = status.get("conditions") if current else ()
    conditions = [each for each in listed or () if isinstance(each, Mapping)]
    references = spec.get("secretRefs")
    return ManagedResource(
        name=text_at(metadata, "name"),
        version=text_at(metadata, "resourceVersion"),
        deleting=bool(text_at(metadata, "deletionTimestamp")),
        keep_objects=spec.get("keepObjects") is True,
        secrets=tuple(text_at(each, "name") for each in references or () if isinstance(each, Mapping)),
        spec=spec,
        conditions={
            text_at(each, "type"): (text_at(each, "status"), text_at(each, "message")) for each in conditions
        },
    )
