"""Translates cri-resmgr's configuration into that of nri-plugins, its successors: one resource for each level
that counts, and a report of what became of each value. Pure: asks nothing and applies nothing.

The report has one entry for each value of the input. A value that no row of the table names is reported as
lost, so nothing can be lost in silence.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from installer.errors import InvalidInputError
from installer.inputs.configs import find_faults, parse_extra_options
from installer.inputs.policy import Asked, unfold
from installer.inputs.yaml_document import KeyPath, parse_document
from installer.manifests.values import STATIC_CONFIGS
from installer.model.containers import format_list, parse_list
from installer.operator.balloon_types import complete_types
from installer.operator.kube_objects import mapping_at
from installer.operator.nri_table import EMPTY, Grade, find_row, is_key, load_table

API_VERSION = "config.nri/v1alpha1"
_NUMBER = re.compile(r"(?<=^spec\.balloonTypes\.)[^.]+")  # of an item in the configuration
_QOS = frozenset(("Guaranteed", "Burstable", "BestEffort"))
_CHART_PARTITION = "fullCache"
"""The partition in the charts' own values. Helm would merge it with those of a configuration."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What became of the value at `path` of a configuration. `to`: where it stands in the resource."""

    config: str
    path: KeyPath
    grade: Grade
    to: tuple[str, ...] = ()
    note: str = ""

    @property
    def line(self) -> str:
        """The entry as a line for people."""
        where = f"{self.config}: {'.'.join(self.path)}" if self.path else self.config
        to = f" -> {', '.join(self.to)}" if self.to else ""
        return f"{self.grade:<11}  {where}{to}" + (f": {self.note}" if self.note else "")


@dataclass(frozen=True, slots=True)
class Translation:
    """`resources` are sorted: the default, groups, nodes."""

    resources: tuple[dict[str, Any], ...] = ()
    report: tuple[Entry, ...] = ()

    def as_values(self) -> Translation:
        """Return the Helm values for the chart of the default's policy in place of the resources. A chart has
        no place for groups and nodes: the report has them, too."""
        specs = {each["metadata"]["name"]: copy.deepcopy(each["spec"]) for each in self.resources}
        default = specs.pop("default", None)
        if default:
            default["control"]["rdt"].setdefault("partitions", {}).setdefault(_CHART_PARTITION, None)
        note = "charts take only the default: apply --output yaml"
        left = tuple(Entry(name, (), Grade.LOST, (), note) for name in specs)
        return Translation(({"config": default},) if default else (), self.report + left)


def translate(configs: Mapping[str, str], namespace: str = "kube-system") -> Translation:
    """`configs` has texts by their keys in the values: fallback, force, EXTRA_OPTIONS, default, group.G ...
    `namespace` is that of the plugin. Raises InvalidInputError with every fault that cri-resmgr would refuse
    as well."""
    given = ((STATIC_CONFIGS.get(key, key), text.encode("utf-8", "replace")) for key, text in configs.items())
    faults = [fault for name, content in given for fault in find_faults(name, content)]
    if faults:
        raise InvalidInputError(faults, "correct the configs; nothing was printed")
    base = next((key for key in ("force", "default") if key in configs), "fallback")
    names = {key: key for key in configs if key not in STATIC_CONFIGS and base != "force"} | {base: "default"}
    resources: list[dict[str, Any]] = []
    report: list[Entry] = []
    for key in sorted(configs, key=lambda key: (names.get(key, "~"), key)):
        if key == "EXTRA_OPTIONS":
            note = "a flag of cri-resmgr that no plugin has"
            words = parse_extra_options(configs[key])
            report += [Entry(key, (word,), Grade.LOST, (), note) for word in words]
        elif key in names:
            metadata = {"name": names[key], "namespace": namespace}
            built, entries, refused = _build_resource(key, metadata, _parse(configs[key]))
            resources += built
            report += entries
            faults += refused
        else:
            note = f"on every node {base} takes precedence"
            report += [Entry(key, path, Grade.IDLE, (), note) for path, _ in leaves(_parse(configs[key]))]
    if faults:
        raise InvalidInputError(faults, "cri-resmgr refuses this too; nothing was printed")
    kinds = sorted({resource["kind"] for resource in resources})
    if len(kinds) > 1:
        note = "each is a separate plugin: give each chart a nodeSelector, so that a node gets one plugin"
        report.append(Entry(" and ".join(kinds), (), Grade.APPROXIMATE, (), note))
    if any(key.startswith("group.") for key in names):
        note = "nodes need the label config.nri/group beside cri-resource-manager.intel.com/group"
        report.append(Entry("groups", (), Grade.APPROXIMATE, (), note))
    return Translation(tuple(resources), tuple(report))


def _parse(content: str) -> dict[str, Any]:
    data = unfold(parse_document(content.encode("utf-8", "replace"), "").data)
    return {key: unfold(value) if isinstance(value, dict) else value for key, value in data.items()}


def leaves(data: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Yield each value with its path. A list of plain values is one value; so is an empty list or mapping."""
    if isinstance(data, dict) and data:
        for key, value in data.items():
            yield from leaves(value, (*path, str(key)))
    elif isinstance(data, list) and any(isinstance(each, dict) for each in data):
        for index, value in enumerate(data):
            yield from leaves(value, (*path, str(index)))
    elif path:
        yield path, data


def _build_resource(
    config: str, metadata: dict[str, str], data: dict[str, Any]
) -> tuple[list[dict[str, Any]], list[Entry], list[str]]:
    """Return the resource, if the policy has one, the report, and what cri-resmgr refuses. `config` is the
    whole configuration of a node: cri-resmgr merges none."""
    table, active = load_table(), Asked.of(data).policy
    kind = table["kinds"].get(active, "no resource")
    values, report, faults = _translate_values(config, data, active, kind)
    if kind not in table["defaults"]:
        return [], report, faults
    if not mapping_at(data, "policy", "ReservedResources"):
        faults.append(f"{config}: policy.ReservedResources.CPU: {active} needs it, such as 750m")
    report += _control_classes(config, data, values)
    spec = copy.deepcopy(table["defaults"][kind] | table["policies"].get(active, {}))
    for (*parents, key), value in values.items():
        place = spec
        for parent in parents:
            place = place.setdefault(parent, {})
        place[key] = value
    # The items of these lists are in mappings until here, by number and by name.
    types, classes = spec.get("balloonTypes", {}), spec.get("cpuClasses", {})
    unnamed = [number for number, item in types.items() if not item.get("name")]
    faults += [f"{config}: policy.{active}: item {number} has no Name" for number in unnamed]
    faults += [] if faults else [f"{config}: policy.{fault}" for fault in _limit_reserved(kind, spec)]
    if kind == "BalloonsPolicy" and not faults:
        places, impossible = complete_types(active, spec, _find_packed(active, data))
        faults += [f"{config}: policy.{active}: {fault}" for fault in impossible]
        if len({type_["name"] for type_ in spec["balloonTypes"]}) < len(spec["balloonTypes"]):
            report.append(Entry(f"{config}: types", (), Grade.LOST, (), table["notes"]["twice"]))
        if any(type_["name"] == "default" and type_["maxCPUs"] for type_ in spec["balloonTypes"]):
            report.append(Entry(f"{config}: default", (), Grade.APPROXIMATE, (), table["notes"]["default"]))
        to = [
            tuple(_NUMBER.sub(lambda match: str(places[match[0]]), to) for to in entry.to) for entry in report
        ]
        report = [replace(each, to=renumbered) for each, renumbered in zip(report, to, strict=True)]
    if classes:
        spec["cpuClasses"] = [{"name": name, **limits} for name, limits in classes.items()]
    return [{"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}], report, faults


def _control_classes(config: str, data: dict[str, Any], values: dict[KeyPath, Any]) -> list[Entry]:
    """Set what `rdt` and `blockio` mean beyond their keys, and report what of that is different."""
    notes = load_table()["notes"]
    mode = _rdt_mode(data)
    keys = [path for path, _ in leaves(data)]
    rdt = {path[2:5:2] for path in keys if _like(path, "rdt", "partitions", "", "classes", "")}
    blockio = {path[2] for path in keys if _like(path, "blockio", "classes", "")}
    full = mode == "Full" and any(_like(path, "rdt", "partitions", "") for path in keys)
    values["control", "rdt", "enable"] = full or mode == "Discovery"
    values["control", "blockio", "enable"] = bool(blockio)
    for partition, name in rdt if full else ():  # a class without a word has its partition's share
        place = ("control", "rdt", "partitions", partition, "classes", name)
        if not any(path[: len(place)] == place for path in values):
            values[place] = {}
    said = {"resctrl": Grade.APPROXIMATE} if full or mode == "Discovery" else {}
    said |= {"discovery": Grade.LOST} if mode == "Discovery" else {}
    entries = [Entry(f"{config}: rdt", (), grade, (), notes[key]) for key, grade in said.items()]
    # With it, every container has its QoS class for a class, and a runtime refuses one that does not exist.
    for kind, classes in {"rdt": {name for _, name in rdt if full}, "blockio": blockio}.items():
        pods, missing = (", ".join(sorted(names)) for names in (_QOS & classes, _QOS - classes))
        values["control", kind, "usePodQoSAsDefaultClass"] = not missing
        if pods and missing:
            note = notes["classes"].format(pods=pods, missing=missing)
            entries.append(Entry(f"{config}: {kind}", (), Grade.LOST, (), note))
    return entries


def _rdt_mode(data: dict[str, Any]) -> Any:
    return next((value for path, value in leaves(data) if _like(path, "rdt", "options", "mode")), "Full")


def _find_packed(active: str, data: dict[str, Any]) -> set[str]:
    """Return the numbers of the pools of which the first one takes all pods."""
    pools = [each for each in leaves(data) if _like(each[0], "policy", active, "pools", "", "")]
    packed = {path[3] for path, value in pools if value == "Packed"}
    return packed - {path[3] for path, value in pools if value and path[4].lower() == "maxpods"}


def _limit_reserved(kind: str, spec: dict[str, Any]) -> Iterator[str]:
    """Reserve only available CPUs, as cri-resmgr does for balloons and podpools. Yield what it refuses."""
    cpus = [str(spec.get(key, {}).get("cpu", "")) for key in ("reservedResources", "availableResources")]
    if all(each.startswith("cpuset:") for each in cpus):
        reserved, available = (parse_list(each.removeprefix("cpuset:")) for each in cpus)
        spec["reservedResources"]["cpu"] = f"cpuset:{format_list(reserved & available)}"
        if not reserved & available or (kind == "TopologyAwarePolicy" and reserved - available):
            yield "ReservedResources has CPUs that AvailableResources has not"


def _like(path: KeyPath, *keys: str) -> bool:
    """Whether the path begins with these keys, in any case; an empty one is any key."""
    return len(path) >= len(keys) and all(
        key in ("", each.lower()) for key, each in zip(keys, path, strict=False)
    )


def _translate_values(
    config: str, data: dict[str, Any], active: str, kind: str
) -> tuple[dict[KeyPath, Any], list[Entry], list[str]]:
    """Return what to write into the spec, the report, and what cri-resmgr refuses."""
    sections = (active, kind, "rdt off" if _rdt_mode(data) != "Full" else "", "common")
    rows = [row for each in sections for row in load_table()["rows"].get(each, ())]
    values, report, faults = dict[KeyPath, Any](), list[Entry](), list[str]()
    for path, value in leaves(data):
        if not is_key(path, value):
            faults.append(f"{config}: {'.'.join(path)}: cri-resmgr knows no such key")
            continue
        known = ("policy", "section", *path[2:]) if path[:2] == ("policy", active) else path
        row, places = find_row(rows, known, value)
        grade, written, note = row.grade, dict[KeyPath, Any](), row.note
        try:
            written = dict.fromkeys(places, row.convert(value))
        except (ValueError, OverflowError) as error:  # of an infinite number
            if value not in EMPTY:
                faults.append(f"{config}: {'.'.join(path)}: {error}")
                continue
        if value in EMPTY and not written:
            grade, note = Grade.IDLE, "empty"
        elif values.keys() & written.keys():
            grade, written, note = Grade.LOST, {}, "another key has set this already"
        values |= written
        to = tuple(".".join(("spec", *place)) for place in written)
        report.append(Entry(config, path, grade, to, note))
    return values, report, faults
