"""The objects that a Shoot's namespace on the seed should have: Secret and ManagedResource, for the
installation or for the removal. Rendered as the verb `manifests` does it.

Both forms have the same ManagedResource: where it turns from one to the other, what only the first had is
deleted from the Shoot, and no pod of it can come back to a node that the other has cleaned.
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
    """The values that hold for every Shoot are wrong: nothing that its owner could correct."""


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
    """`values` is our values file, `deployment` has the values of the ControllerDeployment's chart; both hold
    for every Shoot."""

    values: Path | None = None
    deployment: tuple[Path, ...] = ()

    def check(self) -> tuple[str, tuple[str, ...]]:
        """The name of the ManagedResource of every Shoot, and what is wrong or odd in what holds for all of
        them, as long as nodes can be cleaned with it.

        Raises InvalidInputError where they could not.
        """
        anywhere = Shoot(version="", hibernated=False)
        wanted = self.render(_NOBODY, anywhere, Mode.REMOVE)
        try:
            return wanted.name, self.render(_NOBODY, anywhere, Mode.INSTALL).warnings
        except InvalidInputError as error:
            return wanted.name, error.faults

    def render(self, extension: Extension, shoot: Shoot, mode: Mode) -> Wanted:
        """A removal asks for nothing but the images: the configuration may be broken, and the nodes that an
        earlier `nodeSelector` chose are to be cleaned, too. On a node without us it does nothing.

        Raises InvalidInputError with every fault of the values and of the providerConfig, and
        OperatorFaultError if none of them is the owner's.
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
        document = {
            "kind": "Shoot",
            "spec": {"kubernetes": {"version": shoot.version}, "extensions": [entry]},
        }
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
    """A ControllerDeployment without all else that holds for the nodes. Raises InvalidInputError."""
    data = parse_mapping(read_file(deployment), str(deployment)).data
    values = mapping_at(data, "providerConfig", "values") or mapping_at(data, "helm", "values") or data
    vector = {key: values[key] for key in ("imageVectorOverwrite",) if values.get(key) is not None}
    return {"kind": "ControllerDeployment", "providerConfig": {"values": vector}}


def _placed(said: str) -> str:
    """The entry may have another index in the owner's list than in ours."""
    return said.replace("spec.extensions.0.providerConfig", "providerConfig")
