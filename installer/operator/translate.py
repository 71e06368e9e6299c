"""cri-resmgr's configuration as that of nri-plugins, which follow it: a resource for each level that counts,
and what became of each value. Pure: nothing is asked and nothing is applied.

Each value of the input is one entry of the report. What no row of `nri_table.py` names is reported as lost,
so nothing can be lost in silence.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from installer.errors import InvalidInputError
from installer.inputs.configs import find_faults, parse_extra_options
from installer.inputs.policy import Asked, unfold
from installer.inputs.yaml_document import KeyPath, parse_document
from installer.manifests.values import STATIC_CONFIGS
from installer.operator.nri_table import CHART_PARTITION, Grade, Outcome, Row, load_table, rdt_mode

API_VERSION = "config.nri/v1alpha1"
_NAMESPACE = "kube-system"  # of the plugins, by their charts
_UNKNOWN = "unknown key: neither cri-resmgr nor nri-plugins read it"
_EMPTY: tuple[Any, ...] = ({}, [], None)


@dataclass(frozen=True, slots=True)
class Entry:
    """What became of the value at `path` of a configuration. `targets` are paths in the resource's spec."""

    config: str
    path: KeyPath
    grade: Grade
    targets: tuple[str, ...] = ()
    note: str = ""

    @property
    def line(self) -> str:
        """For people."""
        where = f"{self.config}: {'.'.join(self.path)}" if self.path else self.config
        to = f" -> {', '.join(self.targets)}" if self.targets else ""
        return f"{self.grade:<11}  {where}{to}" + (f": {self.note}" if self.note else "")


@dataclass(frozen=True, slots=True)
class Translation:
    """`resources` is sorted: the default, groups, nodes."""

    resources: tuple[dict[str, Any], ...] = ()
    report: tuple[Entry, ...] = ()

    @property
    def lost(self) -> int:
        return sum(entry.grade is Grade.LOST for entry in self.report)

    def as_values(self) -> tuple[dict[str, Any], Translation]:
        """Values for the chart of the default's policy, which has no place for groups and nodes, and the same
        with these in the report."""
        entries = [
            Entry(
                each["metadata"]["name"],
                (),
                Grade.LOST,
                (),
                "charts take the default alone: apply --output yaml",
            )
            for each in self.resources
            if each["metadata"]["name"] != "default"
        ]
        found = [each for each in self.resources if each["metadata"]["name"] == "default"]
        spec = copy.deepcopy(found[0]["spec"]) if found else {}
        partitions = spec.get("control", {}).get("rdt", {}).setdefault("partitions", {}) if spec else {}
        if spec and CHART_PARTITION not in partitions:
            partitions[CHART_PARTITION] = None
        return {"config": spec} if spec else {}, Translation(self.resources, (*self.report, *entries))


def translate(configs: Mapping[str, str]) -> Translation:
    """`configs` as the manifests' values have them: fallback, force, EXTRA_OPTIONS, default, group.G, node.N.

    Raises InvalidInputError with every fault that cri-resmgr would refuse as well.
    """
    faults: list[str] = []
    for key, content in configs.items():
        faults += find_faults(STATIC_CONFIGS.get(key, key), content.encode("utf-8", "replace"))
    if faults:
        raise InvalidInputError(faults, "correct the configs; nothing was printed")
    levels = {key: text for key, text in configs.items() if key not in STATIC_CONFIGS}
    base = "force" if "force" in configs else "default" if "default" in levels else "fallback"
    counts = {base: "default"} if base in configs else {}
    if base != "force":
        counts |= {key: key for key in sorted(levels)}
    resources: list[dict[str, Any]] = []
    report = list(_options(configs.get("EXTRA_OPTIONS")))
    for key in sorted(configs, key=lambda key: (counts.get(key, "~"), key)):
        if key == "EXTRA_OPTIONS":
            continue
        one = _One(key, _data(configs[key]))
        if key in counts:
            resources += one.resource(counts[key])
            faults += one.faults
        else:
            one.leave(f"{base} counts on every node instead")
        report += one.report
    if faults:
        raise InvalidInputError(faults, "cri-resmgr refuses this as well; nothing was printed")
    kinds = sorted({each["kind"] for each in resources})
    if len(kinds) > 1:
        note = "each of them is a plugin of its own: give each chart a nodeSelector, one plugin for a node"
        report.append(Entry(" and ".join(kinds), (), Grade.APPROXIMATE, (), note))
    if any(key.startswith("group.") for key in counts):
        note = "nodes need the label config.nri/group beside cri-resource-manager.intel.com/group"
        report.append(Entry("groups", (), Grade.APPROXIMATE, (), note))
    return Translation(tuple(resources), tuple(report))


def _data(content: str) -> dict[str, Any]:
    data = unfold(parse_document(content.encode("utf-8", "replace"), "").data)
    return {key: unfold(value) if isinstance(value, dict) else value for key, value in data.items()}


def _options(content: str | None) -> Iterator[Entry]:
    for word in parse_extra_options(content) if content is not None else ():
        yield Entry("EXTRA_OPTIONS", (word,), Grade.LOST, (), "a flag of cri-resmgr; no plugin has it")


def leaves(data: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Each value with its path. A list of plain values is one of them, and so is what is empty."""
    if isinstance(data, dict) and data:
        for key, value in data.items():
            yield from leaves(value, (*path, str(key)))
    elif isinstance(data, list) and any(isinstance(each, dict) for each in data):
        for index, value in enumerate(data):
            yield from leaves(value, (*path, str(index)))
    elif path:
        yield path, data


class _Named(str):
    """The name of an item, in place of its number in the list."""


@dataclass(slots=True)
class _One:
    """One configuration, whole: cri-resmgr merges none."""

    name: str
    data: dict[str, Any]
    report: list[Entry] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def leave(self, why: str) -> None:
        """It counts nowhere."""
        self.report += (Entry(self.name, path, Grade.IDLE, (), why) for path, _ in leaves(self.data))

    def resource(self, name: str) -> Iterator[dict[str, Any]]:
        """The resource, if the policy has one."""
        active = Asked.of(self.data).policy
        kind, spec = load_table().kinds.get(active), dict[Any, Any]()
        rows = tuple(self._rows(active, kind))
        for path, value in leaves(self.data):
            try:
                self.report.append(self._translate(path, value, rows, active, spec))
            except (ValueError, TypeError) as error:
                self.faults.append(f"{self.name}: {'.'.join(path)}: {error}")
        if kind is None:
            return
        self._complete(spec, active)
        types, metadata = _listed(spec.pop("balloonTypes", {})), {"name": name, "namespace": _NAMESPACE}
        spec = _merged(load_table().defaults[kind], _listed(spec))
        if types:
            spec["balloonTypes"] = [load_table().types[active] | each for each in types]
        yield {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}

    def _rows(self, active: str, kind: str | None) -> Iterator[Row]:
        """Those that are in force, the first ones first."""
        table = load_table()
        grade, note = table.active.get(active, (Grade.EXACT, ""))
        yield Row("policy/active", grade=grade, note=note or f"the resource's kind, {kind}")
        if kind is None:
            if grade is Grade.IDLE:
                note = "cri-resmgr does this without a policy; a plugin needs one"
                yield from (Row(f"{each}/**", grade=Grade.LOST, note=note) for each in ("rdt", "blockio"))
            yield Row("**", grade=grade, note=f"the policy {active} has no plugin")
            return
        mode = self._section("rdt", "options").get("mode")
        if mode in ("Discovery", "Disabled"):
            yield Row("rdt/options/mode", ("control/rdt/enable",), rdt_mode)
            yield Row("rdt/**", grade=Grade.IDLE, note=f"rdt.options.mode is {mode}")
        yield from table.rows.get(active, table.rows.get(kind, ()))
        for other in table.kinds.keys() | table.active.keys():
            if other != active:
                yield Row(f"policy/{other}/**", grade=Grade.IDLE, note=f"the policy is {active}")
        yield from table.rows["common"]

    def _translate(
        self, path: KeyPath, value: Any, rows: tuple[Row, ...], active: str, spec: dict[Any, Any]
    ) -> Entry:
        """Writes the value into `spec`, and says what became of it. Raises ValueError."""
        known = ("policy", "section", *path[2:]) if path[:2] == ("policy", active) else path
        for row in rows:
            matched = row.match(known)
            if matched is None:
                continue
            if value is None:
                break
            try:
                found = row.convert(value)
            except (ValueError, TypeError):
                if value in _EMPTY:
                    break
                raise
            outcome = found if isinstance(found, Outcome) else Outcome(found, row.grade, row.note)
            if outcome.value is None:
                return Entry(self.name, path, outcome.grade, (), outcome.note)
            places = [_place(target, matched) for target in row.targets]
            if [place for place in places if not _put(spec, place, outcome.value)]:
                return Entry(self.name, path, Grade.LOST, (), "another key has set this already")
            written = tuple(".".join(map(str, ("spec", *place))) for place in places)
            return Entry(self.name, path, outcome.grade, written, outcome.note)
        if value in _EMPTY:
            return Entry(self.name, path, Grade.IDLE, (), "empty")
        return Entry(self.name, path, Grade.LOST, (), _UNKNOWN)

    def _complete(self, spec: dict[Any, Any], active: str) -> None:
        """What a value means beyond the key that it becomes."""
        if not any(entry.path[:2] == ("policy", "ReservedResources") for entry in self.report):
            self.faults.append(f"{self.name}: policy.ReservedResources.CPU: {active} needs it, such as 750m")
        for number, each in spec.get("balloonTypes", {}).items():
            if not each.get("name"):
                self.faults.append(f"{self.name}: policy.{active}: item {number} has no Name")
        rdt = self._section("rdt")
        if rdt and "mode" not in self._section("rdt", "options"):
            _put(spec, ("control", "rdt", "enable"), True)  # cri-resmgr's mode is Full unless it is told
        if self._section("blockio", "Classes"):
            _put(spec, ("control", "blockio"), {"enable": True, "usePodQoSAsDefaultClass": True})

    def _section(self, *path: str) -> dict[str, Any]:
        found: Any = self.data
        for key in path:
            found = found.get(key) if isinstance(found, dict) else None
        return found if isinstance(found, dict) else {}


def _place(target: str, matched: Iterable[str]) -> tuple[Any, ...]:
    found = iter(matched)
    into: dict[str, Any] = {"*": str, "#": int, "@": _Named}
    return tuple(into[token](next(found)) if token in into else token for token in target.split("/"))


def _put(spec: dict[Any, Any], place: tuple[Any, ...], value: Any) -> bool:
    """False if something is there already, which stays."""
    for key in place[:-1]:
        spec = spec.setdefault(key, {})
    if place[-1] in spec:
        return False
    spec[place[-1]] = value
    return True


def _listed(value: Any) -> Any:
    """With numbered and named items as lists."""
    if not isinstance(value, dict):
        return value
    found = {key: _listed(each) for key, each in value.items()}
    if found and all(isinstance(key, int) for key in found):
        return [found[key] for key in sorted(found)]
    if found and all(isinstance(key, _Named) for key in found):
        return [{"name": str(key), **each} for key, each in found.items()]
    return found


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    found = copy.deepcopy(dict(below))
    for key, value in above.items():
        old = found.get(key)
        found[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return found
