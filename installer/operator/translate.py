"""Translates cri-resmgr's configuration into that of nri-plugins, its successors: one resource for each level
that counts, and a report of what became of each value. Pure: asks nothing and applies nothing.

The report has one entry for each value of the input. A value that no row of the table names is reported as
lost, so nothing can be lost in silence.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from installer.errors import InvalidInputError
from installer.inputs.configs import find_faults, parse_extra_options
from installer.inputs.policy import Asked, unfold
from installer.inputs.yaml_document import KeyPath, parse_document
from installer.manifests.values import STATIC_CONFIGS
from installer.operator.kube_objects import mapping_at
from installer.operator.nri_table import EMPTY, Grade, Row, find_row, load_table

API_VERSION = "config.nri/v1alpha1"
_NAMESPACE = "kube-system"  # of the plugins, by their charts
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
    def lost(self) -> bool:
        return self.grade is Grade.LOST

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

    def as_values(self) -> tuple[dict[str, Any], Translation]:
        """Return Helm values for the chart of the default's policy. The report of the second value also has
        the groups and nodes, for which a chart has no place."""
        values, entries = dict[str, Any](), list(self.report)
        for name, resource in ((each["metadata"]["name"], each) for each in self.resources):
            if name == "default":
                values = {"config": copy.deepcopy(resource["spec"])}
                rdt = values["config"]["control"]["rdt"]
                rdt.setdefault("partitions", {}).setdefault(_CHART_PARTITION, None)
            else:
                note = "charts take only the default: apply --output yaml"
                entries.append(Entry(name, (), Grade.LOST, (), note))
        return values, replace(self, report=tuple(entries))


def translate(configs: Mapping[str, str]) -> Translation:
    """`configs` has texts by their keys in the values: fallback, force, EXTRA_OPTIONS, default, group.G ...

    Raises InvalidInputError with every fault that cri-resmgr would refuse as well.
    """
    faults: list[str] = []
    for key, content in configs.items():
        faults += find_faults(STATIC_CONFIGS.get(key, key), content.encode("utf-8", "replace"))
    if faults:
        raise InvalidInputError(faults, "correct the configs; nothing was printed")
    base = next((each for each in ("force", "default") if each in configs), "fallback")
    names = {key: key for key in configs if key not in STATIC_CONFIGS and base != "force"} | {base: "default"}
    resources: list[dict[str, Any]] = []
    report: list[Entry] = []
    for key in sorted(configs, key=lambda key: (names.get(key, "~"), key)):
        if key == "EXTRA_OPTIONS":
            note = "a flag of cri-resmgr that no plugin has"
            words = parse_extra_options(configs[key])
            report += [Entry(key, (word,), Grade.LOST, (), note) for word in words]
        elif key in names:
            config = _Config(key, _parse(configs[key]), report, faults)
            resources += config.build_resource(names[key])
        else:
            note = f"on every node {base} takes precedence"
            report += [Entry(key, path, Grade.IDLE, (), note) for path, _ in leaves(_parse(configs[key]))]
    if faults:
        raise InvalidInputError(faults, "cri-resmgr refuses this too; nothing was printed")
    kinds = sorted({each["kind"] for each in resources})
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


@dataclass(slots=True)
class _Config:
    """One configuration as a whole: cri-resmgr merges none."""

    name: str
    data: dict[str, Any]
    report: list[Entry]  # of all configurations
    faults: list[str]  # the same
    values: dict[KeyPath, Any] = field(default_factory=dict)  # of the resource's spec

    def build_resource(self, name: str) -> Iterator[dict[str, Any]]:
        """Yield the resource, if the policy has one."""
        table, active = load_table(), Asked.of(self.data).policy
        kind = table.kinds.get(active)
        rdt_off = mapping_at(self.data, "rdt", "options").get("mode") in ("Discovery", "Disabled")
        rows = table.rows_of(active, rdt_off=rdt_off)
        for path, value in leaves(self.data):
            known = ("policy", "section", *path[2:]) if path[:2] == ("policy", active) else path
            try:
                self.report.append(self._convert(path, value, *find_row(rows, known, value)))
            except ValueError as error:
                self.faults.append(f"{self.name}: {'.'.join(path)}: {error}")
        if kind is None:
            return
        self._complete(active)
        spec = copy.deepcopy(table.defaults[kind])
        for (*parents, key), value in self.values.items():
            place = spec
            for each in parents:
                place = place.setdefault(each, {})
            place[key] = value
        # The items of these lists are in mappings until here, by number and by name.
        types, classes = spec.get("balloonTypes", {}), spec.get("cpuClasses", {})
        for number, each in types.items():
            if not each.get("name"):
                self.faults.append(f"{self.name}: policy.{active}: item {number} has no Name")
        if kind == "BalloonsPolicy":
            spec["balloonTypes"] = [table.types[active] | each for each in types.values()]
        if classes:
            spec["cpuClasses"] = [{"name": each, **limits} for each, limits in classes.items()]
        metadata = {"name": name, "namespace": _NAMESPACE}
        yield {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}

    def _complete(self, active: str) -> None:
        """Add what a value means beyond the key that it becomes, and what cri-resmgr misses."""
        if not mapping_at(self.data, "policy", "ReservedResources"):
            self.faults.append(f"{self.name}: policy.ReservedResources.CPU: {active} needs it, such as 750m")
        if mapping_at(self.data, "rdt") and "mode" not in mapping_at(self.data, "rdt", "options"):
            self.values["control", "rdt", "enable"] = True  # cri-resmgr's default is the mode Full
        if mapping_at(self.data, "blockio", "Classes"):
            self.values["control", "blockio"] = {"enable": True, "usePodQoSAsDefaultClass": True}

    def _convert(self, path: KeyPath, value: Any, row: Row, places: tuple[KeyPath, ...]) -> Entry:
        """Write the value into the spec. Return what became of it. Raises ValueError for what cri-resmgr
        refuses."""
        grade, note = row.grade, row.note
        try:
            written = dict.fromkeys(places, row.convert(value))
        except ValueError:
            if value not in EMPTY:
                raise
            written = {}
        if value in EMPTY and not written:
            grade, note = Grade.IDLE, "empty"
        if self.values.keys() & written.keys():
            grade, written, note = Grade.LOST, {}, "another key has set this already"
        self.values |= written
        return Entry(self.name, path, grade, tuple(".".join(("spec", *place)) for place in written), note)
