"""Reads what Gardener users already have as a part of our values: a Shoot, its Extension, its
providerConfig alone, a ControllerDeployment, or the values of its chart alone.

Reads `configs`, `nodeSelector` and `imageVectorOverwrite`, and in our ControllerDeployment what is below
`installer`. Drops nothing else in silence: an unknown key is a fault, and a key for the extension's own
controller a warning.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from installer.errors import InvalidInputError
from installer.inputs.reading import kind, shown, suggest
from installer.inputs.yaml_document import KeyPath
from installer.manifests.image_vector import read_vector
from installer.manifests.maintenance import read_time_window
from installer.manifests.sources import Source, parse_mapping, read_file

EXTENSION_TYPE = "cri-resmgr-extension"

_VECTOR = "imageVectorOverwrite"
_OURS = ("configs", "nodeSelector", _VECTOR)
_INSTALLER = "installer"
"""The key of our chart's values that has all values of the manifests."""
_CONTROLLERS = ("gardener", "heartbeat", "image", "priorityClassName", "replicaCount", "resources", "vpa")
"""Keys of the chart's values for the controller of the extension, not for the nodes."""
_IGNORED_KINDS = ("ControllerRegistration", "ControllerInstallation")
_READ_KINDS = "a Shoot, an Extension, a ControllerDeployment, the values of its chart, or a providerConfig"
_NO_FILE = "in the Shoot's providerConfig"
_OBJECT_KEYS = ("metadata", "spec", "data", "items")


@dataclass(frozen=True, slots=True)
class Provided:
    """`sources`: later ones override earlier ones; as in Gardener, a Shoot overrides a
    ControllerDeployment. `version` is the Shoot's Kubernetes version: major and minor number, None if it is
    not known, `window` its maintenance window as one of a rollout's."""

    sources: tuple[Source, ...] = ()
    warnings: tuple[str, ...] = ()
    from_shoot: bool = False
    version: tuple[int, int] | None = None
    window: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class _Part:
    """The configuration at `path` of a document."""

    document: Source
    path: KeyPath
    chart_values: bool = False

    @property
    def data(self) -> Any:
        return _at(self.document.data, self.path)

    def places(self, below: KeyPath) -> dict[KeyPath, str]:
        """Return the places of everything below a path of the document."""
        start = len(below)
        return {path[start:]: place for path, place in self.document.places.items() if path[:start] == below}


def load_provider_configs(
    paths: Iterable[Path], arch: object, removal: bool, documents: Iterable[Mapping[str, Any]] = ()
) -> Provided:
    """Load all files, the documents of each in its order, then `documents` of no file. `arch` is that of
    the nodes, as it was given; for a removal the extension may be disabled or gone.

    Raises InvalidInputError with every fault, each with its path and `file:line`.
    """
    reader = _Reader(removal)
    parts = [part for path in paths for part in reader.find_all(path)]
    parts += [part for data in documents for part in reader.find(Source(data)) or ()]
    parts.sort(key=lambda part: not part.chart_values)
    own = [reader.read_installer(part) for part in parts if part.chart_values]
    arch = next((source.data["arch"] for source in own if source.data.get("arch")), arch)
    sources = (*own, *(reader.read(part, str(arch or "amd64")) for part in parts))
    if reader.faults:
        raise InvalidInputError(reader.faults)
    return Provided(sources, tuple(reader.warnings), bool(reader.shoot), reader.version, reader.window)


@dataclass(slots=True)
class _Reader:
    removal: bool
    faults: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    shoot: str = ""  # the place of the Shoot, once one is found
    version: tuple[int, int] | None = None
    window: Mapping[str, str] | None = None

    def find_all(self, path: Path) -> list[_Part]:
        found: list[_Part] = []
        before, anything = len(self.faults), False
        try:
            texts = list(_split(read_file(path)))
        except InvalidInputError as error:
            self.faults += error.faults
            return []
        for text in texts:
            try:
                document = parse_mapping(text, str(path))
            except InvalidInputError as error:
                self.faults += error.faults
                continue
            parts = self.find(document)
            anything = anything or parts is not None
            found += parts or []
        if not anything and len(self.faults) == before:
            self.faults.append(f"{path}: has no providerConfig; expected {_READ_KINDS}")
        return found

    def find(self, document: Source) -> list[_Part] | None:
        """Return the parts of a document; None if it is one that says nothing about the nodes."""
        data, name = document.data, document.data.get("kind")
        if not data or name in _IGNORED_KINDS:
            return None
        if name == "Shoot":
            return self._find_in_shoot(document)
        operators = str(data.get("apiVersion")).startswith("operator.gardener.cloud/")
        if name == "Extension" and not operators:
            return self._find_in_entry(document, ("spec",))
        if name in ("ControllerDeployment", "Extension"):
            paths: list[KeyPath] = [("helm", "values"), ("providerConfig", "values")]
            paths = [("spec", "deployment", "extension", "values")] if operators else paths
            there = [path for path in paths if _at(data, path) is not None]
            return [_Part(document, path, chart_values=True) for path in there]
        if name is not None and any(key in data for key in _OBJECT_KEYS):
            self._fault(document, ("kind",), f"{shown(name)} is not read here; expected {_READ_KINDS}")
            return []
        if "providerConfig" in data or "type" in data:
            return self._find_in_entry(document, ())
        chart_values = any(key in data for key in (_VECTOR, _INSTALLER, *_CONTROLLERS))
        return [_Part(document, (), chart_values)]

    def _find_in_shoot(self, document: Source) -> list[_Part]:
        if self.shoot:
            what = f"a second Shoot, after the one in {self.shoot}: render the two clusters separately"
            self._fault(document, ("kind",), what)
            return []
        self.shoot = document.place(("kind",)) or "the API server"
        version = _at(document.data, ("spec", "kubernetes", "version"))
        match = re.match(r"(\d{1,3})\.(\d{1,3})\.\d", str(version)[:20])
        self.window = read_time_window(_at(document.data, ("spec", "maintenance", "timeWindow")))
        self.version = (int(match[1]), int(match[2])) if match else None
        path = ("spec", "extensions")
        entries = _at(document.data, path)
        if entries is not None and not isinstance(entries, list):
            self._fault(document, path, f"must be a list, not {kind(entries)}")
            return []
        types = [entry.get("type") if isinstance(entry, Mapping) else None for entry in entries or []]
        ours = [index for index, name in enumerate(types) if name == EXTENSION_TYPE]
        if not ours and not self.removal:
            self._fault(document, path, f"has no entry of type {EXTENSION_TYPE}; add one")
        for index in ours[1:]:
            what = f"a second entry for this extension, after spec.extensions.{ours[0]}; keep one of them"
            self._fault(document, (*path, str(index)), what)
        return self._find_in_entry(document, (*path, str(ours[0]))) if len(ours) == 1 else []

    def _find_in_entry(self, document: Source, path: KeyPath) -> list[_Part]:
        """Read an entry of a Shoot's extensions, or the spec of an Extension: type, disabled,
        providerConfig."""
        entry = _at(document.data, path) or {}
        if not isinstance(entry, Mapping):
            self._fault(document, path, f"must be a mapping, not {kind(entry)}")
            return []
        name, disabled = entry.get("type", EXTENSION_TYPE), entry.get("disabled")
        if name != EXTENSION_TYPE:
            self._fault(document, (*path, "type"), f"must be {EXTENSION_TYPE}, not {shown(name)}")
        if not isinstance(disabled, (bool, type(None))):
            what = f"must be true or false, not {shown(disabled)}"
            self._fault(document, (*path, "disabled"), what)
        elif disabled and not self.removal:
            what = (
                "the extension is disabled, so there is nothing to install; --mode remove renders its removal"
            )
            self._fault(document, (*path, "disabled"), what)
        return [_Part(document, (*path, "providerConfig"))]

    def read_installer(self, part: _Part) -> Source:
        """Return the values of the manifests in our chart's values; other charts have none."""
        path = (*part.path, _INSTALLER)
        data = _at(part.document.data, path)
        if not isinstance(data, (Mapping, type(None))):
            self._fault(part.document, path, f"must be a mapping, not {kind(data)}")
        return Source(dict(data), part.places(path)) if isinstance(data, Mapping) else Source({})

    def read(self, part: _Part, arch: str) -> Source:
        data, document = part.data, part.document
        if data is None:  # an extension that is only enabled
            return Source({})
        if not isinstance(data, Mapping):
            self._fault(document, part.path, f"must be a mapping, not {kind(data)}")
            return Source({})
        self._check_keys(part, data)
        places = part.places(part.path)
        values = {key: data[key] for key in ("configs", "nodeSelector") if data.get(key) is not None}
        if not document.places:
            # Otherwise a fault would be located in the file that this one overrides.
            places = {(key, inner): _NO_FILE for key, value in values.items() for inner in _keys(value)}
            places |= {(key,): _NO_FILE for key in values}
        if data.get(_VECTOR) is not None:
            images = read_vector(data[_VECTOR], arch)
            for path, fault in images.faults:
                self._fault(document, (*part.path, _VECTOR, *path), fault)
            for path, fault in images.warnings:
                self._warn(document, (*part.path, _VECTOR, *path), fault)
            if images.references:
                values["images"] = images.references
                places["images",] = document.place((*part.path, _VECTOR))
        return Source(values, places)

    def _check_keys(self, part: _Part, data: Mapping[Any, Any]) -> None:
        known = (*_OURS, _INSTALLER, *_CONTROLLERS) if part.chart_values else (*_OURS, "apiVersion", "kind")
        for key in data:
            if key not in known:
                what = f"unknown key; {suggest(str(key), known if part.chart_values else _OURS)}"
                self._fault(part.document, (*part.path, str(key)), what)
        for key in _CONTROLLERS if part.chart_values else ():
            if data.get(key) is not None:
                what = "configures the extension's controller and is ignored here"
                self._warn(part.document, (*part.path, key), what)

    def _fault(self, document: Source, path: KeyPath, what: str) -> None:
        self.faults.append(document.fault(path, what))

    def _warn(self, document: Source, path: KeyPath, what: str) -> None:
        self.warnings.append(document.fault(path, what))


def _split(content: bytes) -> Iterable[bytes]:
    """Yield the documents of a stream, each after as many empty lines as there were lines before it."""
    lines = 0
    for part in re.split(rb"(?m)^---(?=[ \t\r\n]|\Z)", content):
        yield b"\n" * lines + part
        lines += part.count(b"\n")


def _keys(value: object) -> Iterable[str]:
    return map(str, value) if isinstance(value, Mapping) else ()


def _at(data: Any, path: KeyPath) -> Any:
    for key in path:
        if isinstance(data, list):
            data = {str(index): item for index, item in enumerate(data)}
        data = data.get(key) if isinstance(data, Mapping) else None
    return data
