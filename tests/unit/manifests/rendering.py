"""Manifests rendered from the cases and from values."""

from __future__ import annotations

import difflib
from base64 import b64decode
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from installer.errors import InvalidInputError
from installer.manifests import ManifestOptions, render_manifests, render_objects
from tests.lib import yamltext

CASES = Path(__file__).parents[2] / "cases" / "manifests"
NAMES = sorted(path.name for path in CASES.iterdir())
WHOLE = ("minimal", "full")
TEMPLATES = Path(__file__).parents[3] / "templates" / "manifests"
IMAGE = "registry.example.org/cri-resmgr-installer:0.1.0"


def options_of(case: str) -> ManifestOptions:
    """values.yaml and options.yaml (fields of ManifestOptions) of a case; both may be missing."""
    directory = CASES / case
    options = directory / "options.yaml"
    given = yamltext.load(options.read_text()) if options.exists() else {}
    configs = tuple(directory / name for name in given.pop("provider_configs", ()))
    values = directory / "values.yaml"
    return ManifestOptions(values=values if values.exists() else None, provider_configs=configs, **given)


@cache
def rendered(case: str) -> str:
    return render_manifests(options_of(case))


def objects(text: str) -> list[dict[str, Any]]:
    return list(yamltext.load_all(text))


def applied(case: str) -> str:
    """What comes to the API server of the nodes: of a ManagedResource, what its Secret contains."""
    for each in objects(rendered(case)):
        if each["kind"] == "Secret":
            return b64decode(each["data"]["objects.yaml"]).decode()
    return rendered(case)


def expected(case: str) -> tuple[Path, str]:
    """The file of a case, and its expected content: everything, or what differs from the minimal one, as a
    unified diff without numbers of lines, which any change of the minimal case would move."""
    if case in WHOLE:
        return CASES / case / "expected.yaml", rendered(case)
    before, after = rendered("minimal").splitlines(), applied(case).splitlines()
    lines = difflib.unified_diff(before, after, "minimal", case, n=2, lineterm="")
    text = "".join(f"{'@@' if line.startswith('@@') else line}\n" for line in lines)
    return CASES / case / "expected.diff", text


def the(found: list[dict[str, Any]], kind: str, name: str = "") -> dict[str, Any]:
    """The only object of a kind, or of a kind and a name."""
    matching = [each for each in found if each["kind"] == kind and name in ("", each["metadata"]["name"])]
    assert len(matching) == 1, f"{len(matching)} of {kind} {name}"
    return matching[0]


def pod_of(daemonset: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = daemonset["spec"]["template"]["spec"]
    return spec


class Maker:
    """Renders from values that are written to a file first."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "values.yaml"

    def __call__(self, values: dict[str, Any], **options: Any) -> list[dict[str, Any]]:
        """The objects, without a way through text and back: that is most of the time."""
        return render_objects(self._options(values, options), lambda _: None)

    def text(self, values: dict[str, Any], **options: Any) -> str:
        return render_manifests(self._options(values, options))

    def _options(self, values: dict[str, Any], options: dict[str, Any]) -> ManifestOptions:
        self._file.write_text(yaml.safe_dump({"images": {"installer": IMAGE}, **values}, allow_unicode=True))
        return ManifestOptions(values=self._file, **options)

    def faults(self, values: str, **options: Any) -> list[str]:
        self._file.write_text(values)
        with pytest.raises(InvalidInputError) as caught:
            render_manifests(ManifestOptions(values=self._file, **options))
        return [fault.replace(str(self._file), "values.yaml") for fault in caught.value.faults]
