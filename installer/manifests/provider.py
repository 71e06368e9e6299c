"""What Gardener users already have for this: a Shoot's extension, its providerConfig, or the values of a
ControllerDeployment, read as a part of our values.

Reads `configs`, `nodeSelector` and `imageVectorOverwrite`. A Shoot and a bare providerConfig may have no
other keys; a ControllerDeployment has the values of a whole chart, and the rest of them is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from installer.errors import InvalidInputError
from installer.inputs.wording import kind, shown
from installer.inputs.yaml_document import KeyPath
from installer.manifests.sources import Fault, Source, parse_mapping, read_file

EXTENSION_TYPE = "cri-resmgr"
IMAGES = {
    "cri-resmgr-installer": "installer",
    "gardener-extension-cri-resmgr-installation": "installer",
    "gardener-extension-cri-resmgr-installation-and-removal": "installer",
    "cri-resmgr-agent": "agent",
    "intel-cri-resmgr-agent": "agent",
    "gardener-extension-cri-resmgr-agent": "agent",
    "gardener-extension-cri-resmgr": "",
}
"""Name in an image vector -> key of `images` in our values; empty for the extension itself."""

_VECTOR = "imageVectorOverwrite"
_OURS = ("configs", "nodeSelector", _VECTOR)
_IGNORED_KINDS = ("ControllerRegistration", "ControllerInstallation")


def load_provider_config(path: Path) -> list[Source]:
    """The values in each document of the file, in its order.

    Raises InvalidInputError with every fault, each with its path and `file:line`.
    """
    faults: list[str] = []
    found: list[Source] = []
    for text in _split(read_file(path)):
        try:
            document = parse_mapping(text, str(path))
        except InvalidInputError as error:
            faults += error.faults
            continue
        found += [_read(document, prefix, faults) for prefix in _find(document, faults)]
    if not found and not faults:
        faults.append(f"{path}: has no providerConfig, no Shoot with one, and no ControllerDeployment")
    if faults:
        raise InvalidInputError(faults)
    return found


def _split(content: bytes) -> Iterable[bytes]:
    """The documents of a stream, each after as many empty lines as there were lines before it."""
    lines = 0
    for part in re.split(rb"(?m)^---(?=[ \t\r\n]|\Z)", content):
        yield b"\n" * lines + part
        lines += part.count(b"\n")


def _find(document: Source, faults: list[str]) -> list[KeyPath]:
    """The paths of the providerConfigs in a document."""
    found: list[KeyPath]
    name = document.data.get("kind")
    if name == "Shoot":
        extensions = _at(document.data, ("spec", "extensions"))
        found = [
            ("spec", "extensions", str(index), "providerConfig")
            for index, extension in enumerate(extensions if isinstance(extensions, list) else [])
            if isinstance(extension, dict) and extension.get("type") == EXTENSION_TYPE
        ]
        if not found:
            faults.append(document.fault(("spec", "extensions"), f"has none of type {EXTENSION_TYPE}"))
        return found
    if name == "ControllerDeployment":
        found = [("providerConfig", "values"), ("helm", "values")]
        return [path for path in found if _at(document.data, path) is not None] or found[:1]
    return [()] if document.data and name not in _IGNORED_KINDS else []


def _at(data: Any, path: KeyPath) -> Any:
    for key in path:
        if isinstance(data, list):
            data = {str(index): item for index, item in enumerate(data)}
        data = data.get(key) if isinstance(data, Mapping) else None
    return data


def _read(document: Source, prefix: KeyPath, faults: list[str]) -> Source:
    part = _at(document.data, prefix)
    if part is None:  # an extension that is only switched on
        return Source({})
    if not isinstance(part, Mapping):
        faults.append(document.fault(prefix, f"must be a mapping, not {kind(part)}"))
        return Source({})
    if document.data.get("kind") != "ControllerDeployment":
        unknown = [str(key) for key in part if key not in (*_OURS, "apiVersion", "kind")]
        what = f"unknown key; known are {', '.join(_OURS)}"
        faults += [document.fault((*prefix, key), what) for key in unknown]
    images, image_faults = _read_vector(part.get(_VECTOR))
    faults += [document.fault((*prefix, *path), what) for path, what in image_faults]
    start = len(prefix)
    places = {path[start:]: place for path, place in document.places.items() if path[:start] == prefix}
    data = {key: part[key] for key in ("configs", "nodeSelector") if part.get(key) is not None}
    if images:
        data["images"] = images
        places["images",] = document.place((*prefix, _VECTOR))
    return Source(data, places)


def _read_vector(vector: object) -> tuple[dict[str, str], list[Fault]]:
    """The images of a vector: a mapping or, as Gardener's own chart takes it, a string with YAML in it."""
    found: dict[str, str] = {}
    faults: list[Fault] = []
    if vector is None:
        return found, faults
    if isinstance(vector, str):
        try:
            vector = parse_mapping(vector.encode("utf-8", "replace"), _VECTOR).data
        except InvalidInputError as error:
            return found, [((_VECTOR,), "; ".join(error.faults))]
    entries = vector.get("images") if isinstance(vector, Mapping) else None
    if not isinstance(entries, list):
        return found, [((_VECTOR,), "must be a mapping with a list named images")]
    for index, entry in enumerate(entries):
        here = (_VECTOR, "images", str(index))
        name = entry.get("name") if isinstance(entry, Mapping) else None
        if not isinstance(name, str) or name not in IMAGES:
            faults.append((here, f"unknown name {shown(name)}; known are {', '.join(IMAGES)}"))
        elif IMAGES[name]:
            found[IMAGES[name]] = _reference(entry)
            if not found[IMAGES[name]]:
                faults.append((here, "needs repository and tag, or ref"))
    return found, faults


def _reference(entry: Mapping[str, Any]) -> str:
    """The full reference of a vector's entry; empty if it has none."""
    if isinstance(entry.get("ref"), str):
        return str(entry["ref"])
    repository, tag = entry.get("repository"), entry.get("tag")
    if not isinstance(repository, str) or not isinstance(tag, (str, int, float, type(None))):
        return ""
    if tag is None:
        return repository if "@" in repository or ":" in repository.rpartition("/")[2] else ""
    return f"{repository}{'@' if str(tag).startswith('sha256:') else ':'}{tag}"
