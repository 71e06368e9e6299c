"""Merges and checks everything that the manifests are made from: the values file, the files of Gardener
users, the command line. Later ones override earlier ones, key by key.

Checks the settings and configs in them as each node would.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from installer.errors import InvalidInputError
from installer.inputs.configs import find_faults
from installer.inputs.reading import reword, shown, suggest
from installer.inputs.settings import Settings, parse_settings
from installer.inputs.yaml_document import parse_document
from installer.manifests.provider import Provided, load_provider_configs
from installer.manifests.scheduling import affinity_faults
from installer.manifests.sources import Fault, Source, parse_mapping, read_file
from installer.manifests.text import dump
from installer.manifests.values import STATIC_CONFIGS, Values, is_config_key
from installer.model.jsontext import mapping_at
from installer.model.names import COMPONENT_LABEL, INSTANCE_LABEL, NAME_LABEL

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_SIZE = 1 << 20  # characters of all configs: the most that an API server accepts of one object
_POLICIES_SINCE = (1, 30)  # Kubernetes documentation, "Validating Admission Policy"
_OUR_KEYS = (NAME_LABEL, INSTANCE_LABEL, COMPONENT_LABEL)
_OF_THE_CHART: dict[tuple[int | str, ...], str] = {
    ("hooks",): "only the chart has it; leave it out here",
    ("monitoring",): "only the chart has it; leave it out here, and use --monitoring",
}


@dataclass(frozen=True, slots=True)
class ManifestOptions:
    """The command line; None or empty for an option that is not given. `images` has `NAME=REFERENCE` or,
    for the installer's, the reference alone. `documents`: what a file of `provider_configs` may contain.
    Only `render_registration` reads `registers_for` and `chart_ref`."""

    values: Path | None = None
    provider_configs: tuple[Path, ...] = ()
    mode: str | None = None
    profile: str | None = None
    nodes: str | None = None
    agent: bool | None = None
    images: tuple[str, ...] = ()
    managed_resource: bool = False
    monitoring: bool = False
    documents: tuple[Mapping[str, Any], ...] = ()
    registers_for: str = "garden"
    chart_ref: str = ""


@dataclass(frozen=True, slots=True)
class ManifestInputs:
    """The checked inputs. `settings` are those of the pods, with the mode of these manifests;
    `settings_given` are the same as keys of the settings file, without defaults."""

    values: Values
    settings: Settings
    settings_given: Mapping[str, Any]
    managed_resource: bool
    monitoring: bool = False


def metrics_port(settings: Settings) -> int:
    """Return the port where others can scrape the pods; 0 if there is none."""
    host, _, port = settings.status.listen.rpartition(":")
    unreachable = host in ("localhost", "[::1]") or host.startswith("127.")
    return 0 if unreachable or not port else int(port)


def load_inputs(options: ManifestOptions, warn: Callable[[str], None]) -> ManifestInputs:
    """Calls `warn` with each warning, also when it ends with an error.

    Raises InvalidInputError: with the faults of files and options that cannot be read, else with every
    fault of the values, each with its path, file and line.
    """
    own, provided = _load_files(options)
    for warning in provided.warnings:
        warn(warning)
    files = (own, *provided.sources)
    merged = _merge(
        [_gardener_defaults(options, files, provided.version), *files, _read_command_line(options)]
    )
    agent = mapping_at(merged.data, "agent").get("enabled") is True
    given = _complete_settings(merged.data.get("settings"), options, provided.window, agent=agent)
    settings, faults = _check_settings(given)
    faults += _config_faults(merged.data.get("configs"))
    faults += _combined_faults(merged.data, given)
    if provided.from_shoot and mapping_at(merged.data, "managedResource").get("class") == "seed":
        what = "seed installs on the nodes of the seed, but the configuration is that of a Shoot"
        faults.append((("managedResource", "class"), what))
    if options.monitoring and settings is not None and not metrics_port(settings):
        what = 'must be an address that Prometheus reaches, for --monitoring, such as ":9464"'
        faults.append((("settings", "status", "listen"), what))
    values, more_faults = _validate(merged.data)
    if faults or more_faults or values is None or settings is None:
        said = dict.fromkeys(merged.fault(path, what) for path, what in (*faults, *more_faults))
        raise InvalidInputError(list(said), "correct the values; nothing was written")
    return ManifestInputs(values, settings, given, options.managed_resource, options.monitoring)


def _load_files(options: ManifestOptions) -> tuple[Source, Provided]:
    """Read the values file, and what Gardener users have. Raises InvalidInputError with the faults of
    both."""
    own, provided, faults = Source({}), Provided(), list[str]()
    try:
        if options.values is not None:
            own = parse_mapping(read_file(options.values), str(options.values))
    except InvalidInputError as error:
        faults += error.faults
    mode = options.mode or mapping_at(own.data, "settings").get("mode")
    try:
        arch, removal = own.data.get("arch"), mode == "remove"
        provided = load_provider_configs(options.provider_configs, arch, removal, options.documents)
    except InvalidInputError as error:
        faults += error.faults
    if faults:
        raise InvalidInputError(faults, "correct the input; nothing was written")
    return own, provided


def _gardener_defaults(
    options: ManifestOptions, files: Iterable[Source], version: tuple[int, int] | None
) -> Source:
    """Return the values that differ with Gardener. The original extension always brought its agent; here it
    comes with the configs that it reads. People have their Adjustments in kube-system. A Shoot whose
    `version` has no admission policies would refuse a ManagedResource with them."""
    given = bool(options.provider_configs or options.documents)
    if not (options.managed_resource or given):
        return Source({})
    dynamic = given and any(_dynamic(file.data) for file in files)
    old = {"admissionPolicies": False} if version is not None and version < _POLICIES_SINCE else {}
    return Source({"gardener": True, "agent": {"enabled": dynamic, "namespace": "kube-system"}, **old})


def _dynamic(data: Mapping[str, Any]) -> list[str]:
    """Return the keys of `configs` that only cri-resmgr-agent delivers to the nodes."""
    return [key for key in mapping_at(data, "configs") if key not in STATIC_CONFIGS]


def _read_command_line(options: ManifestOptions) -> Source:
    data: dict[str, Any] = {}
    if options.profile is not None:
        data["profile"] = options.profile
    if options.nodes is not None:
        # An empty list must not become all nodes: "" is refused.
        data["nodes"] = [name.strip() for name in options.nodes.split(",") if name.strip()] or [""]
    if options.agent is not None:
        data["agent"] = {"enabled": options.agent}
    if options.images:
        words = (word.rpartition("=") for word in options.images)
        data["images"] = {name or "installer": reference for name, _, reference in words}
    return Source(data, {(key,): "command line" for key in data})


def _merge(sources: Iterable[Source]) -> Source:
    """Merge mappings of the first level by key; any other value replaces the earlier one."""
    data: dict[str, Any] = {}
    places: dict[tuple[str, ...], str] = {}
    for source in sources:
        for key, value in source.data.items():
            old = data.get(key)
            data[key] = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
        places.update(source.places)
    places.pop((), None)
    return Source(data, places)


def _complete_settings(
    given: object, options: ManifestOptions, window: Mapping[str, str] | None, *, agent: bool
) -> Any:
    """Return the settings as the operator wrote them, with the mode of the command line. Unless the
    operator says otherwise, with a ManagedResource the pods clean up when they end, because Gardener
    uninstalls by deleting the objects; planned work waits for the `window` of a Shoot; and an `agent` that
    comes with the manifests shares no directory with the relay."""
    if not (given is None or isinstance(given, Mapping)):
        return given
    settings = {key: value for key, value in (given or {}).items() if value is not None}
    if options.mode is not None:
        settings["mode"] = options.mode
    removal = settings.get("removal", {})
    if options.managed_resource and settings.get("mode") != "remove" and isinstance(removal, dict):
        settings["removal"] = {"onTermination": "auto", **removal}
    rollout = settings.get("rollout", {})
    if window and settings.get("mode") != "remove" and isinstance(rollout, dict):
        settings["rollout"] = {"window": dict(window), **rollout}
    proxy = settings.get("proxy", {})
    if agent and isinstance(proxy, dict) and proxy.get("agent") != "disabled":
        settings["proxy"] = {"agentSockets": "own", **proxy}
    return {"apiVersion": "cri-resmgr-installer/v1", "mode": "install", **settings}


def _validate(data: object) -> tuple[Values | None, list[Fault]]:
    try:
        return Values.model_validate(data), []
    except ValidationError as error:
        return None, [
            (tuple(str(part) for part in detail["loc"] if part != "[key]"), _sentence(detail))
            for detail in error.errors(include_url=False, include_context=False)
        ]


def _sentence(detail: ErrorDetails) -> str:
    """Say what is wrong in an operator's words; the types are those of pydantic-core's error list."""
    value, kind = detail["input"], detail["type"]
    if kind == "extra_forbidden":
        return _OF_THE_CHART.get(detail["loc"]) or f"unknown key; {_suggest_key(detail['loc'])}"
    if kind == "missing" or value is None:
        return "has no value; leave the key out for its default"
    if kind in ("model_type", "dict_type"):
        return f"must be a mapping, not {shown(value)}"
    message = reword(detail["msg"])
    return message if isinstance(value, (dict, list)) else f"{message}, not {shown(value)}"


def _suggest_key(loc: tuple[int | str, ...]) -> str:
    model: Any = Values
    for part in loc[:-1]:
        fields = {field.alias or name: field for name, field in model.model_fields.items()}
        model = fields[str(part)].annotation
    return suggest(str(loc[-1]), [field.alias or name for name, field in model.model_fields.items()])


def _combined_faults(data: Mapping[str, Any], settings: object) -> Iterable[Fault]:
    """Find what is wrong only together with another value. Values of a wrong type are reported elsewhere."""
    removal = isinstance(settings, Mapping) and settings.get("mode") == "remove"
    if not removal and mapping_at(data, "agent").get("enabled", False) is False:
        for key in _dynamic(data):
            if is_config_key(str(key)):
                what = "reaches the nodes only through cri-resmgr-agent: set agent.enabled or give --agent"
                yield ("configs", str(key)), what
    if not mapping_at(data, "images").get("installer"):
        yield ("images", "installer"), "must be given, here or as --image: the image to run"
    selector = mapping_at(data, "nodeSelector")
    for key, wanted in (("kubernetes.io/os", "linux"), ("kubernetes.io/arch", data.get("arch", "amd64"))):
        if selector.get(key, wanted) != wanted:
            yield ("nodeSelector", key), f"must be {wanted}, or left out: the payload runs only there"
    for key in mapping_at(data, "labels"):
        if key in _OUR_KEYS:
            yield ("labels", key), "is the installer's own; leave it out"
    yield from affinity_faults(mapping_at(data, "affinity"))
    proxy = mapping_at(data, "settings", "proxy")
    if mapping_at(data, "agent").get("enabled") is True and proxy.get("agent") == "disabled":
        yield ("agent", "enabled"), "must not be true while settings.proxy.agent is disabled"
    if mapping_at(data, "agent").get("enabled") is True and data.get("name") == "cri-resmgr-agent":
        yield ("name",), "must not be the name of the agent's objects, which are beside the others"
    if data.get("namespace") == f"{data.get('name', Values().name)}-rollout":
        yield ("namespace",), "must not be that of the permits, which has Roles of the same name"


def _check_settings(given: object) -> tuple[Settings | None, list[Fault]]:
    """Return the settings as a node will read them from its text, or everything that it would refuse."""
    try:
        return parse_settings(dump(given).encode(), "settings"), []
    except InvalidInputError as error:
        return None, [_locate(fault) for fault in error.faults]


def _locate(fault: str) -> Fault:
    """Turn `proxy.agent: what (settings:3)` into a path in the values. The line is of no file, and
    dropped."""
    path, _, what = re.sub(r" \(settings:\d+\)$", "", fault).partition(": ")
    return ("settings", *(path.split(".") if path != "settings" else ())), what


def _config_faults(configs: object) -> Iterable[Fault]:
    """Find what cri-resmgr would refuse in any of the texts. Values of a wrong type are reported
    elsewhere."""
    if isinstance(configs, Mapping) and sum(map(_size_of, configs.values())) > _SIZE:
        yield ("configs",), f"have more than {_SIZE >> 20} MiB together, including their YAML aliases (`*`)"
        return
    for key, text in configs.items() if isinstance(configs, Mapping) else ():
        if isinstance(text, str) and isinstance(key, str) and is_config_key(key):
            name = STATIC_CONFIGS["EXTRA_OPTIONS"] if key == "EXTRA_OPTIONS" else key
            for fault in find_faults(name, text.encode("utf-8", "replace")):
                # `name:3: what`: the line in the text; the one in the values file is added to it.
                what = fault.removeprefix(f"{name}:").lstrip()
                yield ("configs", key), f"line {what}" if re.match(r"\d+: ", what) else what


def _size_of(text: object) -> int:
    """Return the characters of a text with its aliases expanded; without an alias it cannot grow."""
    if not isinstance(text, str):
        return 0
    try:
        return max(len(text), parse_document(text.encode("utf-8", "replace"), "").size if "*" in text else 0)
    except InvalidInputError:
        return len(text)  # the fault is reported elsewhere, with its place
