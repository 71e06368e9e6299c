"""The objects that a Shoot's namespace on the seed should have: Secret and ManagedResource, for the
installation or for the removal. Rendered as the verb `manifests` does it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from installer.extension.objects import Extension, Shoot
from installer.manifests import ManifestOptions, render_objects
from installer.model.state import Mode

EXTENSION_TYPE = "cri-resmgr-extension"


@dataclass(frozen=True, slots=True)
class Wanted:
    """`resource` is the ManagedResource, `secret` what it refers to. `warnings` are about the input."""

    resource: Mapping[str, Any]
    secret: Mapping[str, Any]
    warnings: tuple[str, ...]

    @property
    def secret_name(self) -> str:
        return str(self.secret["metadata"]["name"])


@dataclass(frozen=True, slots=True)
class Renderer:
    """`values` is our values file, `deployment` the values of the ControllerDeployment's chart; both hold for
    every Shoot."""

    values: Path | None = None
    deployment: Path | None = None

    def render(self, extension: Extension, shoot: Shoot, mode: Mode) -> Wanted:
        """A removal does not ask what the Shoot's owner has configured: that may be broken, and the nodes
        that an earlier `nodeSelector` chose are to be cleaned, too. On a node without us it does nothing.

        Raises InvalidInputError with every fault of the values and of the providerConfig.
        """
        entry: dict[str, object] = {"type": EXTENSION_TYPE}
        if mode is Mode.INSTALL:
            entry["providerConfig"] = extension.provider_config
        document = {
            "kind": "Shoot",
            "spec": {"kubernetes": {"version": shoot.version}, "extensions": [entry]},
        }
        warnings: list[str] = []
        options = ManifestOptions(
            values=self.values,
            provider_configs=(self.deployment,) if self.deployment else (),
            mode=mode.value,
            managed_resource=True,
            documents=(document,),
        )
        secret, resource = render_objects(options, warnings.append)
        for each in (secret, resource):
            each["metadata"]["namespace"] = extension.namespace
        return Wanted(resource, secret, tuple(warnings))
