"""The table of what each key of cri-resmgr's configuration becomes (templates/nri-plugins.yaml), and the
conversions of single values that it names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, partial
from typing import Any, NamedTuple

from installer.inputs.reading import shown
from installer.inputs.yaml_document import parse_document
from installer.model.containers import parse_list
from installer.rendering import template_text


class Grade(StrEnum):
    EXACT = "exact"
    APPROXIMATE = "approximate"
    LOST = "lost"
    IDLE = "no effect"  # cri-resmgr itself does nothing with it here


class Row(NamedTuple):
    """A row of the table. `source` is in lower case, as cri-resmgr compares keys. `values`: the regular
    expression of the values that the row is for. `convert` raises ValueError for what cri-resmgr refuses."""

    source: str
    values: str
    targets: tuple[str, ...]
    convert: Callable[[Any], Any]
    grade: Grade
    note: str

    def match(self, path: tuple[str, ...], value: Any) -> tuple[str, ...] | None:
        """Return what the wildcards stand for, or None where the row is not for this value."""
        tokens, found = self.source.split("/"), []
        if tokens[-1] == "**":
            tokens, path = tokens[:-1], path[: len(tokens) - 1]
        if len(tokens) != len(path) or not re.fullmatch(self.values, str(value).lower(), re.DOTALL):
            return None
        for token, key in zip(tokens, path, strict=True):
            if token in ("*", "#", "@"):
                found.append(key)
            elif token != key.lower():
                return None
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Table:
    """See templates/nri-plugins.yaml. `defaults` are by kind, `types` (of balloons) by policy."""

    kinds: Mapping[str, str]
    rows: Mapping[str, tuple[Row, ...]]
    defaults: Mapping[str, dict[str, Any]]
    types: Mapping[str, dict[str, Any]]

    def rows_of(self, policy: str, *, rdt_off: bool) -> tuple[Row, ...]:
        """Return the rows for a configuration with this active policy, the first ones first. `rdt_off`: its
        RDT mode leaves the classes alone."""
        kind = self.kinds.get(policy)
        if kind is None:
            return self.rows.get(policy, ()) + self.rows["no resource"]
        rdt = self.rows["rdt off"] if rdt_off else ()
        return rdt + self.rows.get(policy, ()) + self.rows[kind] + self.rows["common"]


@cache
def load_table() -> Table:
    data: Any = parse_document(template_text("nri-plugins.yaml").encode(), "nri-plugins.yaml").data
    conversions = {name: partial(_choose, choices) for name, choices in data["choices"].items()}
    rows = {name: tuple(_rows(lines, conversions | _CONVERSIONS)) for name, lines in data["rows"].items()}
    return Table(data["kinds"], rows, data["defaults"], data["types"])


def _rows(lines: str, conversions: Mapping[str, Callable[[Any], Any]]) -> Iterator[Row]:
    for line in lines.splitlines():
        source, targets, what, note = ([each.strip() for each in line.split("|")] + [""])[:4]
        grade = next((each for each in Grade if what.startswith(each)), None)
        how = what.removeprefix(grade or "").strip()
        constant = not how or how.startswith("= ")
        convert = partial(_constant, how[2:]) if constant else conversions[how]
        source, limited, values = source.partition("~")
        for each, to in _alternatives(source, targets):
            graded = grade or (Grade.APPROXIMATE if note else Grade.EXACT)
            yield Row(each.lower(), values if limited else ".*", tuple(to.split()), convert, graded, note)


def _alternatives(source: str, target: str) -> Iterator[tuple[str, str]]:
    found = re.search(r"\{([^}]*)\}", source)
    if found is None:
        yield source, target
        return
    for each in found[1].split(","):
        yield from _alternatives(source.replace(found[0], each, 1), target.replace("{}", each, 1))


# Conversions return what is written. They raise ValueError for a value that cri-resmgr refuses as well.


def _constant(text: str, _value: Any) -> Any:
    return {} if text == "{}" else int(text) if text.isdecimal() else text


def _choose(choices: Mapping[str, Any], value: Any) -> Any:
    found = choices.get(str(value), choices.get(str(value).lower()))
    if found is None:
        raise ValueError(f"{shown(value)} is not one of {', '.join(filter(None, choices))}")
    return found


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"must be a whole number, not {shown(value)}")
    return value


def _switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, not {shown(value)}")
    return value


def _text(value: Any) -> str:
    """Take a number as well: YAML has no quotes, and cri-resmgr takes one where a string is meant."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError(f"must be a string, not {shown(value)}")
    return str(value)


def _texts(value: Any) -> list[str]:
    if not isinstance(value, list):
        raise ValueError(f"must be a list, not {shown(value)}")
    return [_text(each) for each in value]


def _number(value: Any) -> int:
    if not re.fullmatch(r"\d+", _text(value).strip()):
        raise ValueError(f"must be a whole number of CPUs, not {shown(value)}")
    return int(value)


def _cpus(value: Any) -> str:
    """Read it as cri-resmgr does: `cpuset:0-3` or `0-3` names CPUs, `750m` or 1.5 counts them."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return f"{int(value * 1000)}m" if int(value * 1000) % 1000 else str(int(value))
    kind, colon, listed = _text(value).rpartition(":")
    if kind == "cpuset" or (not colon and ("-" in listed or "," in listed)):
        parse_list(listed)
        return f"cpuset:{listed}"
    if colon or not re.fullmatch(r"\d+(\.\d+)?m?", listed):
        raise ValueError(f"{shown(value)} is neither a quantity nor a list of CPUs")
    return listed


def _period(value: Any) -> str:
    """Take nanoseconds as well, as cri-resmgr does."""
    return _text(value) if isinstance(value, str) else f"{_whole(value) / 1e9:g}s"


def _sampling(value: Any) -> int:
    named = {"disabled": 0.0, "production": 0.1, "testing": 1.0}
    return round(float(named.get(str(value).lower(), value)) * 1_000_000)


def _debug_sources(value: Any) -> list[str]:
    """Return `on:a,b,off:c` as a list. A state holds until the next one (pkg/log/flags.go)."""
    found, state = [], "on"
    for entry in filter(None, map(str.strip, _text(value).split(","))):
        given, colon, source = entry.rpartition(":")
        state = given if colon else state
        on = state.lower() in ("on", "enable", "enabled", "true", "1", "yes")
        found.append(source.strip() if on else f"{source.strip()}:off")
    return found


def _khz(value: Any) -> str:
    return str(_whole(value))


_CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    each.__name__.removeprefix("_"): each
    for each in (_whole, _switch, _text, _texts, _number, _cpus, _period, _sampling, _debug_sources, _khz)
}
