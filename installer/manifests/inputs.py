"""Everything the manifests are made from, brought together and checked: the values file, what
Gardener users have, the command line; later ones override earlier, key by key.

Nothing bad gets as far as a node: the settings and configs inside are checked as a node would.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from installer.errors import InvalidInputError
from installer.inputs.file import read_input
from installer.inputs.settings import Settings
from installer.inputs.wording import kind, reword, shown, suggest
from installer.inputs.yaml_document import KeyPath, parse_document
from installer.manifests import embedded
from installer.manifests.provider import Source, parse_provider_config
from installer.manifests.text import is_finite
from installer.manifests.values import Values

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_OUR_KEYS = ("app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/component")


@dataclass(frozen=True, slots=True)
class Request:
    """The command line: None or empty where nothing was said. `images` has `NAME=REFERENCE` or, for
    the installer's, the reference alone."""

    values: Path | None = None
    provider_configs: tuple[Path, ...] = ()
    mode: str | None = None
    profile: str | None = None
    nodes: str | None = None
    agent: bool | None = None
    images: tuple[str, ...] = ()
    managed_resource: bool = False


@dataclass(frozen=True, slots=True)
class Inputs:
    """Checked. `settings` are those that the pods get, with the mode of these manifests;
    `settings_given` the same as keys of the settings file, without what nobody has set."""

    values: Values
    settings: Settings
    settings_given: Mapping[str, Any]
    managed_resource: bool


def load_inputs(request: Request) -> Inputs:
    """Raises InvalidInputError with every fault of every file, each with its path and place."""
    faults: list[str] = []
    merged = _merge(_sources(request, faults))
    data = dict(merged.data)
    given = _effective_settings(data.get("settings"), request)
    where = _Where(merged.places)
    settings, settings_faults = embedded.check_settings(given)
    faults += where.all(settings_faults)
    faults += where.all(embedded.config_faults(data.get("configs")))
    faults += where.all(_together(data))
    values = _validate(data, where, faults)
    if faults or values is None or settings is None:
        raise InvalidInputError(list(dict.fromkeys(faults)), "correct the values; nothing was written")
    return Inputs(values, settings, given, request.managed_resource)


def _sources(request: Request, faults: list[str]) -> Iterable[Source]:
    """From the weakest to the strongest."""
    if request.managed_resource:
        yield Source({"gardener": True})
    if request.values is not None:
        try:
            yield _parse_values(read_input(request.values), str(request.values), faults)
        except InvalidInputError as error:
            faults += error.faults
    for path in request.provider_configs:
        try:
            yield from parse_provider_config(read_input(path), str(path))
        except InvalidInputError as error:
            faults += error.faults
        yield Source({"gardener": True})
    yield _from_command_line(request, faults)


def _parse_values(content: bytes, name: str, faults: list[str]) -> Source:
    document = parse_document(content, name)
    faults += document.faults
    data = {} if document.data is None else document.data
    if not isinstance(data, dict):
        raise InvalidInputError([f"{name}: must be a mapping of values, not {kind(data)}"])
    if not is_finite(data):
        raise InvalidInputError([f"{name}: refers to itself, or to parts of it far too often"])
    present = {str(key): value for key, value in data.items() if value is not None}
    return Source(present, {path: f"{name}:{line}" for path, line in document.lines.items()})


def _from_command_line(request: Request, faults: list[str]) -> Source:
    data: dict[str, Any] = {}
    if request.profile is not None:
        data["profile"] = request.profile
    if request.nodes is not None:
        data["nodes"] = [name.strip() for name in request.nodes.split(",") if name.strip()]
        if not data["nodes"]:
            faults.append("--nodes: names no node")
    if request.agent is not None:
        data["agent"] = {"enabled": request.agent}
    images: dict[str, str] = {}
    for word in request.images:
        name, equals, reference = word.partition("=")
        if equals and name not in ("installer", "agent"):
            faults.append(f"--image {word}: must be installer=REFERENCE, agent=REFERENCE or a reference")
        else:
            images[name if equals else "installer"] = reference if equals else word
    if images:
        data["images"] = images
    return Source(data, {(key,): "command line" for key in data})


def _merge(sources: Iterable[Source]) -> Source:
    """Mappings of the first level are merged by key; anything else is replaced."""
    data: dict[str, Any] = {}
    places: dict[KeyPath, str] = {}
    for source in sources:
        for key, value in source.data.items():
            old = data.get(key)
            data[key] = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
            places.update(source.places)
    return Source(data, places)


def _effective_settings(given: object, request: Request) -> Any:
    """As the operator wrote them, with the mode of the command line, and, where Gardener deletes the
    objects, the removal that this means, unless the operator has said otherwise."""
    if not (given is None or isinstance(given, Mapping)):
        return given
    settings = {key: value for key, value in (given or {}).items() if value is not None}
    if request.mode is not None:
        settings["mode"] = request.mode
    removal = settings.get("removal", {})
    if request.managed_resource and settings.get("mode") != "remove" and isinstance(removal, dict):
        settings["removal"] = {"onTermination": "auto", **removal}
    return {"apiVersion": "cri-resmgr-installer/v1", "mode": "install", **settings}


class _Where:
    """Puts the place behind a fault that begins with its path."""

    def __init__(self, places: Mapping[KeyPath, str]) -> None:
        self._places = places

    def say(self, path: KeyPath, what: str) -> str:
        place, rest = "", path
        while rest and not place:
            place, rest = self._places.get(rest, ""), rest[:-1]
        return f"{'.'.join(path)}: {what}" + (f" ({place})" if place else "")

    def all(self, faults: Iterable[tuple[KeyPath, str]]) -> list[str]:
        return [self.say(path, what) for path, what in faults]


def _validate(data: object, where: _Where, faults: list[str]) -> Values | None:
    """The values, or None and every fault."""
    try:
        return Values.model_validate(data)
    except ValidationError as error:
        for detail in error.errors(include_url=False, include_context=False):
            path = tuple(str(part) for part in detail["loc"] if part != "[key]")
            faults += (where.say(path, line) for line in _sentences(detail))
        return None


def _sentences(detail: ErrorDetails) -> list[str]:
    """What is wrong in an operator's words; the types are those of pydantic-core's error list."""
    value, kind = detail["input"], detail["type"]
    if kind == "extra_forbidden":
        return [f"unknown key; {_suggest(detail['loc'])}"]
    if kind == "missing" or value is None:
        return ["has no value; leave the key out for its default"]
    if kind == "model_type":
        return [f"must be a mapping, not {shown(value)}"]
    message = reword(detail["msg"])
    lines = message.split("\n")
    return [f"{message}, not {shown(value)}"] if isinstance(value, (str, int, float)) else lines


def _suggest(loc: tuple[int | str, ...]) -> str:
    here: Any = Values
    for part in loc[:-1]:
        fields = {field.alias or name: field for name, field in here.model_fields.items()}
        here = fields[str(part)].annotation
    known = [field.alias or name for name, field in here.model_fields.items()]
    return suggest(str(loc[-1]), known)


def _together(data: Mapping[str, Any]) -> Iterable[tuple[KeyPath, str]]:
    """What is wrong only because of something else. What is not of the right form is left to others."""
    if not _mapping(data, "images").get("installer"):
        yield ("images", "installer"), "must be given, here or as --image: the image to run"
    selector = _mapping(data, "nodeSelector")
    for key, wanted in (("kubernetes.io/os", "linux"), ("kubernetes.io/arch", data.get("arch", "amd64"))):
        if selector.get(key, wanted) != wanted:
            yield ("nodeSelector", key), f"must be {wanted}, or left out: the payload runs nowhere else"
    for key in _mapping(data, "labels"):
        if key in _OUR_KEYS:
            yield ("labels", key), "is the installer's own; leave it out"
    yield from embedded.affinity_faults(_mapping(data, "affinity"))
    proxy = _mapping(_mapping(data, "settings"), "proxy")
    if _mapping(data, "agent").get("enabled") is True and proxy.get("agent") == "disabled":
        yield ("agent", "enabled"), "must not be true while settings.proxy.agent is disabled"


def _mapping(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = data.get(key)
    return found if isinstance(found, dict) else {}
