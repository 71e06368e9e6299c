"""Renders the objects that a Shoot's namespace on the seed should have: Secret and ManagedResource, for the
installation or for the removal, as `manifests` renders them.

Both have the same ManagedResource. When it changes from the one to the other, gardener-resource-manager
deletes what only the first had, so no pod of the installation can come back to a node that the removal has
cleaned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from installer.errors import InvalidInputError
from installer.gardener.resources import Extension, Shoot, parse_extension
from installer.manifests import ManifestOptions, render_objects
from installer.manifests.sources import parse_mapping, read_file
from installer.model.names import Mode
from installer.operator.kube_objects import mapping_at

EXTENSION_TYPE = "cri-resmgr-extension"

_NOBODY = parse_extension({})


class OperatorFaultError(InvalidInputError):
    """The values for every Shoot are invalid: the owner of a Shoot cannot correct them."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """`resource` is the ManagedResource, `secret` what it refers to. `warnings` are about the input."""

    resource: Mapping[str, Any]
    secret: Mapping[str, Any]
    warnings: tuple[str, ...]

    @property
    def name(self) -> str:
        return str(self.resource["metadata"]["name"])

    @property
    def secret_name(self) -> str:
        return str(self.secret["metadata"]["name"])


@dataclass(frozen=True, slots=True)
class Renderer:
    """`values` is our values file, `deployment` has the values of the ControllerDeployment's chart; both
    are for every Shoot."""

    values: Path | None = None
    deployment: tuple[Path, ...] = ()

    def check(self) -> tuple[str, tuple[str, ...]]:
        """Return the name of the ManagedResource of every Shoot, and the faults and warnings of the values
        for all of them. Raises InvalidInputError where no node could be cleaned with these values."""
        anywhere = Shoot(version="", hibernated=False)
        wanted = self.render(_NOBODY, anywhere, Mode.REMOVE)
        try:
            return wanted.name, self.render(_NOBODY, anywhere, Mode.INSTALL).warnings
        except InvalidInputError as error:
            return wanted.name, error.faults

    def render(self, extension: Extension, shoot: Shoot, mode: Mode) -> Wanted:
        """Render the ManagedResource. A removal reads nothing but the images: the configuration may be
        broken, and it also has to clean the nodes that an earlier `nodeSelector` chose. On other nodes it
        does nothing.

        Raises InvalidInputError with every fault of the values and of the providerConfig, and
        OperatorFaultError if the owner can correct none of them.
        """
        try:
            return self._render(extension, shoot, mode)
        except InvalidInputError as error:
            if extension is _NOBODY:
                raise
            try:
                self._render(_NOBODY, shoot, mode)
            except InvalidInputError as of_all:
                if set(error.faults) <= set(of_all.faults):
                    raise OperatorFaultError(error.faults, error.hint) from None
            raise

    def _render(self, extension: Extension, shoot: Shoot, mode: Mode) -> Wanted:
        """Raises InvalidInputError."""
        install = mode is Mode.INSTALL
        if install and extension.excess:
            raise InvalidInputError([f"providerConfig: {extension.excess}"])
        entry: dict[str, object] = {"type": EXTENSION_TYPE}
        if install:
            entry["providerConfig"] = extension.provider_config
        begin, end = shoot.maintenance
        window = {"timeWindow": {"begin": begin, "end": end}}
        spec = {"kubernetes": {"version": shoot.version}, "extensions": [entry], "maintenance": window}
        document = {"kind": "Shoot", "spec": spec}
        warnings: list[str] = []
        options = ManifestOptions(
            values=self.values,
            provider_configs=self.deployment if install else (),
            mode=mode.value,
            managed_resource=True,
            documents=(document,) if install else (*map(_images_of, self.deployment), document),
        )
        try:
            secret, resource = render_objects(options, warnings.append)
        except InvalidInputError as error:
            raise InvalidInputError([_placed(each) for each in error.faults], error.hint) from None
        resource["metadata"]["name"] = str(resource["metadata"]["name"]).removesuffix("-removal")
        for each in (secret, resource):
            each["metadata"]["namespace"] = extension.namespace
        return Wanted(resource, secret, tuple(_placed(each) for each in warnings))


def _images_of(deployment: Path) -> Mapping[str, Any]:
    """Reduce a ControllerDeployment to its images. Raises InvalidInputError."""
    data = parse_mapping(read_file(deployment), str(deployment)).data
    values = mapping_at(data, "providerConfig", "values") or mapping_at(data, "helm", "values") or data
    vector = {key: values[key] for key in ("imageVectorOverwrite",) if values.get(key) is not None}
    return {"kind": "ControllerDeployment", "providerConfig": {"values": vector}}


def _placed(fault: str) -> str:
    """Drop the index: the entry may have another one in the owner's list."""
    return fault.replace("spec.extensions.0.providerConfig", "providerConfig")
