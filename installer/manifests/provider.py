"""What Gardener users have already written for this: a Shoot's extension, its providerConfig, or a
ControllerDeployment's values, as a part of our values.

Read are `configs`, `nodeSelector` and `imageVectorOverwrite`. A Shoot and a bare providerConfig have
no other keys; a ControllerDeployment's values are those of a chart, of which the rest is not ours.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from installer.errors import InvalidInputError
from installer.inputs.wording import shown
from installer.inputs.yaml_document import Document, KeyPath, parse_document
from installer.manifests.text import is_finite

EXTENSION_TYPE = "cri-resmgr"
INSTALLER_IMAGES = (
    "cri-resmgr-installer",
    "gardener-extension-cri-resmgr-installation",
    "gardener-extension-cri-resmgr-installation-and-removal",
)
AGENT_IMAGES = ("cri-resmgr-agent", "intel-cri-resmgr-agent", "gardener-extension-cri-resmgr-agent")
OTHER_IMAGES = ("gardener-extension-cri-resmgr",)
"""Names in an image vector: ours, the agent's, and what is nothing of ours (the extension itself)."""

_OURS = ("configs", "nodeSelector", "imageVectorOverwrite")
_SKIPPED = ("ControllerRegistration", "ControllerInstallation")


@dataclass(frozen=True, slots=True)
class Source:
    """A part of the values, and where (`file:line`) each of its keys comes from."""

    data: Mapping[str, Any]
    places: Mapping[KeyPath, str] = field(default_factory=dict)


def parse_provider_config(content: bytes, name: str) -> list[Source]:
    """Each document of the file that says something for us, in its order.

    Raises InvalidInputError with every fault, each with its path and `name:line`.
    """
    faults: list[str] = []
    found: list[Source] = []
    for text in _documents(content):
        try:
            document = parse_document(text, name)
        except InvalidInputError as error:
            faults += error.faults
            continue
        faults += document.faults
        found += _sources(document, name, faults)
    if not found and not faults:
        faults.append(f"{name}: has no providerConfig, no Shoot with one, and no ControllerDeployment")
    if faults:
        raise InvalidInputError(faults, f"correct {name}; nothing was written")
    return found


def _documents(content: bytes) -> Iterable[bytes]:
    """The documents of a stream, each behind as many empty lines as there were lines before it."""
    lines = 0
    for part in re.split(rb"(?m)^---(?=[ \t\r\n]|\Z)", content):
        yield b"\n" * lines + part
        lines += part.count(b"\n")


def _sources(document: Document, name: str, faults: list[str]) -> Iterable[Source]:
    data = document.data
    if data is None:
        return
    if not isinstance(data, dict):
        faults.append(f"{name}: must be a mapping, not a {type(data).__name__}")
        return
    kind = data.get("kind")
    if kind in _SKIPPED:
        return
    if not is_finite(data):
        faults.append(f"{name}: refers to itself, or to parts of it far too often")
        return
    for path in _places(data, kind, name, faults):
        part = _at(data, path)
        reader = _Reader(document, name, path, faults)
        # An extension that is only switched on has nothing to say.
        yield reader.read({} if part is None else part, strict=kind != "ControllerDeployment")


def _places(data: Mapping[str, Any], kind: object, name: str, faults: list[str]) -> list[KeyPath]:
    """Where the providerConfigs are in the document."""
    if kind == "Shoot":
        spec = data.get("spec")
        extensions = spec.get("extensions") if isinstance(spec, dict) else None
        found: list[KeyPath] = [
            ("spec", "extensions", str(index), "providerConfig")
            for index, extension in enumerate(extensions if isinstance(extensions, list) else [])
            if isinstance(extension, dict) and extension.get("type") == EXTENSION_TYPE
        ]
        if not found:
            faults.append(f"spec.extensions: has none of type {EXTENSION_TYPE} ({name})")
        return found
    if kind == "ControllerDeployment":
        candidates: list[KeyPath] = [("providerConfig", "values"), ("helm", "values")]
        return [path for path in candidates if _at(data, path) is not None] or candidates[:1]
    return [()]


def _at(data: object, path: KeyPath) -> Any:
    for key in path:
        data = data[int(key)] if isinstance(data, list) else _get(data, key)
    return data


def _get(data: object, key: str) -> Any:
    return data.get(key) if isinstance(data, dict) else None


class _Reader:
    """One providerConfig below `prefix` of a document; what is wrong goes to `faults`."""

    def __init__(self, document: Document, name: str, prefix: KeyPath, faults: list[str]) -> None:
        self._document, self._name, self._prefix, self._faults = document, name, prefix, faults

    def read(self, part: object, strict: bool) -> Source:
        if not isinstance(part, dict):
            self._blame((), f"must be a mapping, not a {type(part).__name__}")
            return Source({})
        if strict:
            for key in part:
                if key not in (*_OURS, "apiVersion", "kind"):
                    self._blame((str(key),), f"unknown key; known are {', '.join(_OURS)}")
        data: dict[str, Any] = {}
        places: dict[KeyPath, str] = {}
        for key in ("configs", "nodeSelector"):
            found = part.get(key)
            if isinstance(found, dict):
                data[key] = found
                places.update({(key, str(item)): self._place((key, str(item))) for item in found})
            elif found is not None:
                self._blame((key,), f"must be a mapping, not a {type(found).__name__}")
        images = self._images(part.get("imageVectorOverwrite"))
        if images:
            data["images"] = images
            places.update({("images", key): self._place(("imageVectorOverwrite",)) for key in images})
        return Source(data, places)

    def _images(self, overwrite: object) -> dict[str, str]:
        """The vector stands there as a mapping or, as Gardener's own chart takes it, as YAML in a text."""
        where = ("imageVectorOverwrite",)
        if isinstance(overwrite, str):
            try:
                overwrite = parse_document(overwrite.encode("utf-8", "replace"), ".".join(where)).data
            except InvalidInputError as error:
                self._blame(where, "; ".join(error.faults))
                return {}
        if overwrite is None:
            return {}
        entries = overwrite.get("images") if isinstance(overwrite, dict) else None
        if not isinstance(entries, list):
            self._blame(where, "must be a mapping with a list named images")
            return {}
        found: dict[str, str] = {}
        for index, entry in enumerate(entries):
            here = (*where, "images", str(index))
            name = entry.get("name") if isinstance(entry, dict) else None
            key = _image_key(name)
            if key:
                reference = _reference(entry)
                if reference:
                    found[key] = reference
                else:
                    self._blame(here, "needs repository and tag, or ref")
            elif name not in OTHER_IMAGES:
                known = ", ".join((*INSTALLER_IMAGES, *AGENT_IMAGES, *OTHER_IMAGES))
                self._blame(here, f"unknown name {shown(name)}; known are {known}")
        return found

    def _blame(self, path: KeyPath, what: str) -> None:
        whole = (*self._prefix, *path)
        self._faults.append(f"{'.'.join(whole) or self._name}: {what} ({self._place(path)})")

    def _place(self, path: KeyPath) -> str:
        whole = (*self._prefix, *path)
        while whole and whole not in self._document.lines:
            whole = whole[:-1]
        line = self._document.lines.get(whole)
        return f"{self._name}:{line}" if line else self._name


def _image_key(name: object) -> str:
    if name in INSTALLER_IMAGES:
        return "installer"
    return "agent" if name in AGENT_IMAGES else ""


def _reference(entry: Mapping[str, Any]) -> str:
    """A full reference from an entry of a vector; empty where it has none."""
    if isinstance(entry.get("ref"), str):
        return str(entry["ref"])
    repository, tag = entry.get("repository"), entry.get("tag")
    if not isinstance(repository, str) or not isinstance(tag, (str, int, float, type(None))):
        return ""
    if tag is None:
        return repository if "@" in repository or ":" in repository.rpartition("/")[2] else ""
    return f"{repository}{'@' if str(tag).startswith('sha256:') else ':'}{tag}"
