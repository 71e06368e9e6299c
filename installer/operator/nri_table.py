"""The table of what each key of cri-resmgr's configuration, and each of its annotations, becomes
(templates/nri-plugins.yaml), and the conversions of single values that it names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from functools import cache, partial
from itertools import product
from typing import Annotated, Any, NamedTuple

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    StrictBool,
    StrictInt,
    TypeAdapter,
    ValidationError,
)

from installer.inputs.reading import reword, shown
from installer.inputs.yaml_document import KeyPath, parse_document
from installer.model.containers import parse_list
from installer.rendering import template_text

EMPTY: tuple[Any, ...] = (None, {}, [])
_CHOICE = re.compile(r"\{([^}]*)\}")


class Grade(StrEnum):
    EXACT = "exact"
    APPROXIMATE = "approximate"
    LOST = "lost"
    IDLE = "no effect"  # cri-resmgr itself does nothing with it here


class Row(NamedTuple):
    """A row of the table. A path is one text here, its keys joined by NUL. `convert` raises ValueError for
    what cri-resmgr refuses."""

    source: re.Pattern[str]
    values: re.Pattern[str]
    targets: tuple[str, ...]  # `%s`: what a wildcard of the source stands for
    convert: Callable[[Any], Any]
    grade: Grade
    note: str


def find_row(rows: Iterable[Row], path: KeyPath, value: Any) -> tuple[Row, tuple[KeyPath, ...]]:
    """Return the first row that is for the value, and where the value goes. The last row must match all."""
    for row in rows:
        match = row.source.fullmatch("\0".join(path)) if row.values.fullmatch(str(value)) else None
        if match is not None:
            return row, tuple(tuple((target % match.groups()).split("\0")) for target in row.targets)
    raise LookupError(path)


def is_key(path: KeyPath, value: Any) -> bool:
    """Whether cri-resmgr has a key for the value in its sections. A section may be empty."""
    where, keys = ".".join((*path, "")), load_table()["keys"]
    return any(where.startswith(each) or (value in EMPTY and each.startswith(where)) for each in keys)


@cache
def load_table() -> Mapping[str, Any]:
    """Return templates/nri-plugins.yaml, its rows as tuples of Row."""
    table: Any = parse_document(template_text("nri-plugins.yaml").encode(), "nri-plugins.yaml").data
    named = (_number, _refused, _cpus, _period, _sampling, _debug_sources)
    conversions: dict[str, Callable[[Any], Any]] = {each.__name__.removeprefix("_"): each for each in named}
    conversions |= {name: partial(_typed, kind) for name, kind in _TYPES.items()}
    conversions |= {name: partial(_choose, choices) for name, choices in table["choices"].items()}
    table["keys"] = {f"{where}.{each}." for where, keys in table["keys"].items() for each in keys.split()}
    return {**table, "rows": {name: tuple(_rows(text, conversions)) for name, text in table["rows"].items()}}


def _rows(lines: str, conversions: Mapping[str, Callable[[Any], Any]]) -> Iterator[Row]:
    for line in lines.splitlines():
        source, targets, verdict, note = ([cell.strip() for cell in line.split("|")] + [""])[:4]
        grade = next((member for member in Grade if verdict.startswith(member)), None)
        how = verdict.removeprefix(grade or "").strip()
        graded = grade or (Grade.APPROXIMATE if note else Grade.EXACT)
        source, limited, values = source.partition("~")
        limit = re.compile(values if limited else ".*", re.IGNORECASE | re.DOTALL)
        choices = [choice.split(",") for choice in _CHOICE.findall(source)]
        for chosen in product(*choices):
            path = _compile(_CHOICE.sub("{}", source).format(*chosen))
            places = targets.format(*chosen).replace("/", "\0").replace("*", "%s").split()
            yield Row(path, limit, tuple(places), conversions[how], graded, note)


def _compile(source: str) -> re.Pattern[str]:
    """Ignore the case of keys, as cri-resmgr does."""
    text = re.escape(source).replace("/", "\0").replace("\0\\*\\*", "(?:\0.*)?").replace("\\*", "([^\0]*)")
    return re.compile(text, re.IGNORECASE | re.DOTALL)


# Conversions return what is written. They raise ValueError for a value that cri-resmgr refuses as well.


def _choose(choices: Mapping[str, Any], value: Any) -> Any:
    found = choices.get(str(value), choices.get(str(value).lower(), choices.get("*")))
    if found is None or value in EMPTY:
        raise ValueError(f"{shown(value)} is not one of {', '.join(filter(None, choices))}")
    return found


_PRIORITIES = ("high", "normal", "low", "none")
_BOOLEANS: Mapping[object, object] = {each: each for each in (True, False, "true", "false")}
_TYPES: Mapping[str, Any] = {
    "whole": StrictInt,
    "khz": Annotated[StrictInt, AfterValidator(str)],
    "switch": StrictBool,
    "switch_or_null": Annotated[StrictBool, BeforeValidator(lambda value: value is not None and value)],
    "true_or_false": Annotated[StrictBool | str | None, AfterValidator(_BOOLEANS.get)],
    "priority": Annotated[StrictInt, AfterValidator(lambda value: _PRIORITIES[min(max(value, 0), 3)])],
    "text": str,
    # The number of CPUs of all instances of a pool, which balloon_types.py divides among them.
    "cpus_of_all": Annotated[str, AfterValidator(lambda value: value.strip().lower().rstrip("cpus "))],
    "texts": list[str],
    "mapping": Annotated[dict[str, Any], BeforeValidator(lambda value: value or {})],
    "": Any,
}
_NUMBERS_ARE_TEXT = ConfigDict(coerce_numbers_to_str=True)
"""YAML has no quotes, and cri-resmgr takes a number where a string is meant."""


def _typed(kind: Any, value: Any) -> Any:
    try:
        return TypeAdapter(kind, config=_NUMBERS_ARE_TEXT).validate_python(value)
    except ValidationError as error:
        fault = error.errors()[0]
        raise ValueError(f"{reword(fault['msg'])}, not {shown(fault['input'])}") from None


def _number(value: Any) -> int:
    if not re.fullmatch(r"0*[1-9]\d*", _typed(str, value).strip()):
        raise ValueError(f"must be a whole number, and at least 1, not {shown(value)}")
    return int(value)


def _cpus(value: Any) -> str:
    """Read it as cri-resmgr does: `cpuset:0-3` or `0-3` names CPUs, `750m` or 1.5 counts them."""
    if type(value) is float:
        return f"{int(value * 1000)}m" if int(value * 1000) % 1000 else str(int(value))
    kind, colon, listed = _typed(str, value).rpartition(":")
    if listed and (kind == "cpuset" or (not colon and ("-" in listed[1:] or "," in listed))):
        parse_list(listed)
        return f"cpuset:{listed}"
    if colon or not re.fullmatch(r"\+?(\d+\.?\d*|\.\d+)([num]|e\d+)?", listed):
        raise ValueError(f"{shown(value)} is neither a quantity nor a list of CPUs")
    return str(value)


def _refused(value: Any) -> None:
    raise ValueError(f"cri-resmgr does not start with {shown(value)}")


def _period(value: Any) -> str:
    """Take nanoseconds, and nothing else, as cri-resmgr does."""
    return f"{_typed(StrictInt, value) / 1e9:g}s"


def _sampling(value: Any) -> int:
    return round(float(_typed(str, value)) * 1_000_000)


def _debug_sources(value: Any) -> list[str]:
    """Return `on:a,b,off:c` as a list. A state holds until the next one (pkg/log/flags.go)."""
    found, state = [], "on"
    for entry in filter(None, map(str.strip, _typed(str, value).split(","))):
        given, colon, source = entry.rpartition(":")
        state = given if colon else state
        on = state.lower() in ("on", "enable", "enabled", "true", "1", "yes")
        found.append(source.strip() if on else f"{source.strip()}:off")
    return found
