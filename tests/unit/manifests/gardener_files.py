"""What Gardener users have: files, and the messages about them."""

from __future__ import annotations

from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from installer.errors import InvalidInputError
from installer.manifests import ManifestOptions, render_objects
from tests.unit.manifests.rendering import IMAGE, objects, the

SHOOT = "kind: Shoot\nspec:\n  extensions:\n    - type: {type}\n      {rest}\n"
NONE = "spec.extensions: has no entry of type cri-resmgr-extension"
READ = "a Shoot, an Extension, a ControllerDeployment, the values of its chart, or a providerConfig"


class Given:
    """Files of Gardener users, and the messages about them: faults without the directory, warnings."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.warnings: list[str] = []

    def render(self, *texts: str, image: str = IMAGE, **options: Any) -> list[dict[str, Any]]:
        files = [self._directory / f"{name}.yaml" for name in "abc"[: len(texts)]]
        for file, text in zip(files, texts, strict=True):
            file.write_text(text)
        given = ManifestOptions(
            provider_configs=tuple(files), **{"images": (image,) if image else (), **options}
        )
        return render_objects(given, lambda said: self.warnings.append(self._short(said)))

    def faults(self, *texts: str, **options: Any) -> list[str]:
        with pytest.raises(InvalidInputError) as caught:
            self.render(*texts, **options)
        return [self._short(fault) for fault in caught.value.faults]

    def _short(self, said: str) -> str:
        return said.replace(f"{self._directory}/", "")


def managed(outer: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What is in the Secret of a ManagedResource."""
    return objects(b64decode(the(outer, "Secret")["data"]["objects.yaml"]).decode())
