"""The resources on the seed, as far as a decision needs them. Their shapes are those of Gardener's API groups
extensions.gardener.cloud/v1alpha1, resources.gardener.cloud/v1alpha1 and, for the Shoot,
core.gardener.cloud/v1beta1.

What is missing or of a wrong type is read as if it were not there: an API server of another version must not
end the controller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

Object = Mapping[str, Any]

OPERATION = "gardener.cloud/operation"
_FORCE = "confirmation.gardener.cloud/force-deletion"
_TRUE = ("1", "t", "T", "true", "TRUE", "True")  # as Go's strconv.ParseBool, which Gardener reads it with


@dataclass(frozen=True, slots=True)
class Extension:
    """`operation` is what gardenlet asks for: reconcile, migrate, restore, or nothing."""

    namespace: str
    name: str
    type: str
    generation: int
    operation: str
    deleting: bool
    finalizers: tuple[str, ...]
    provider_config: object
    status: Object

    @property
    def last_type(self) -> str:
        return _text(self.status, "lastOperation", "type")

    @property
    def last_state(self) -> str:
        return _text(self.status, "lastOperation", "state")

    @property
    def observed_generation(self) -> int:
        found = self.status.get("observedGeneration")
        return found if isinstance(found, int) else 0


@dataclass(frozen=True, slots=True)
class Shoot:
    """`failed`: Gardener has given it up until somebody retries."""

    version: str
    hibernated: bool
    deleting: bool
    force_deletion: bool
    failed: bool


@dataclass(frozen=True, slots=True)
class ManagedResource:
    """`conditions` are those of its present generation: type -> status and message."""

    name: str
    created: datetime
    deleting: bool
    keep_objects: bool
    secrets: tuple[str, ...]
    conditions: Mapping[str, tuple[str, str]]

    def status_of(self, condition: str) -> str:
        return self.conditions.get(condition, ("", ""))[0]

    def message_of(self, condition: str) -> str:
        return self.conditions.get(condition, ("", ""))[1]


def parse_extension(given: Object) -> Extension:
    metadata, spec = _mapping(given, "metadata"), _mapping(given, "spec")
    finalizers = metadata.get("finalizers")
    return Extension(
        namespace=_text(metadata, "namespace"),
        name=_text(metadata, "name"),
        type=_text(spec, "type"),
        generation=metadata["generation"] if isinstance(metadata.get("generation"), int) else 0,
        operation=_text(metadata, "annotations", OPERATION),
        deleting=bool(_text(metadata, "deletionTimestamp")),
        finalizers=tuple(finalizers) if isinstance(finalizers, list) else (),
        provider_config=spec.get("providerConfig"),
        status=_mapping(given, "status"),
    )


def parse_cluster(given: Object) -> Shoot:
    """The Shoot in a Cluster."""
    shoot = _mapping(given, "spec", "shoot")
    metadata, status = _mapping(shoot, "metadata"), _mapping(shoot, "status")
    enabled = _mapping(shoot, "spec", "hibernation").get("enabled") is True
    return Shoot(
        version=_text(shoot, "spec", "kubernetes", "version"),
        # Between the wish and its fulfilment there are still nodes.
        hibernated=enabled and status.get("hibernated") is True,
        deleting=bool(_text(metadata, "deletionTimestamp")),
        force_deletion=_text(metadata, "annotations", _FORCE) in _TRUE,
        failed=_text(status, "lastOperation", "state") == "Failed",
    )


def parse_managed_resource(given: Object) -> ManagedResource:
    metadata, spec, status = (_mapping(given, key) for key in ("metadata", "spec", "status"))
    current = status.get("observedGeneration") == metadata.get("generation")
    listed = status.get("conditions") if current else ()
    conditions = [each for each in listed or () if isinstance(each, Mapping)]
    references = spec.get("secretRefs")
    return ManagedResource(
        name=_text(metadata, "name"),
        created=_time(_text(metadata, "creationTimestamp")),
        deleting=bool(_text(metadata, "deletionTimestamp")),
        keep_objects=spec.get("keepObjects") is True,
        secrets=tuple(_text(each, "name") for each in references or () if isinstance(each, Mapping)),
        conditions={
            _text(each, "type"): (_text(each, "status"), _text(each, "message")) for each in conditions
        },
    )


def _time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return datetime.fromtimestamp(0, UTC)


def _mapping(given: Object, *path: str) -> Object:
    found: Any = given
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _text(given: Object, *path: str) -> str:
    found = _mapping(given, *path[:-1]).get(path[-1])
    return found if isinstance(found, str) else ""
