"""The table of what each key of cri-resmgr's configuration becomes (templates/nri-plugins.yaml), and its
conversions of single values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
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


class Outcome(NamedTuple):
    """What became of one value. Without a value nothing is written."""

    value: Any
    grade: Grade
    note: str = ""


class Row(NamedTuple):
    """A row of the table, its source in lower case, as cri-resmgr compares keys."""

    source: str
    targets: tuple[str, ...] = ()
    convert: Callable[[Any], Any] = lambda value: None
    grade: Grade = Grade.EXACT
    note: str = ""

    def match(self, path: tuple[str, ...]) -> tuple[str, ...] | None:
        """What the wildcards stand for; None where the path is another one."""
        tokens, found = self.source.split("/"), []
        if tokens[-1] == "**":
            tokens, path = tokens[:-1], path[: len(tokens) - 1]
        if len(tokens) != len(path):
            return None
        for token, key in zip(tokens, path, strict=True):
            if token in ("*", "#", "@"):
                found.append(key)
            elif token != key.lower():
                return None
        return tuple(found)


# Conversions: the value as it is written, or an Outcome. ValueError: cri-resmgr refuses the value as well.


def whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"must be a whole number, not {shown(value)}")
    return value


def switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, not {shown(value)}")
    return value


def text(value: Any) -> str:
    """A number too: cri-resmgr takes one where a string is meant, as YAML has no quotes."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError(f"must be a string, not {shown(value)}")
    return str(value)


def texts(value: Any) -> list[str]:
    if not isinstance(value, list):
        raise ValueError(f"must be a list, not {shown(value)}")
    return [text(each) for each in value]


def cpus(value: Any) -> Any:
    """As cri-resmgr reads it: `cpuset:0-3` or `0-3` names CPUs, `750m` or 1.5 counts them."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return f"{int(value * 1000)}m" if int(value * 1000) % 1000 else str(int(value))
    kind, colon, listed = text(value).rpartition(":")
    if kind == "cgroup" or listed.startswith("/"):
        return Outcome(None, Grade.LOST, "the CPUs of a cgroup: write them out for each node, cpuset:0-3")
    if colon and kind != "cpuset":
        raise ValueError(f"{shown(value)} is neither a quantity nor a list of CPUs")
    if colon or "-" in listed or "," in listed:
        parse_list(listed)
        return f"cpuset:{listed}"
    if not re.fullmatch(r"\d+(\.\d+)?m?", listed):
        raise ValueError(f"{shown(value)} is neither a quantity nor a list of CPUs")
    return listed


def priority(value: Any) -> str:
    names = ("high", "normal", "low", "none")
    if str(value).lower() in names:
        return str(value).lower()
    if whole(value) not in range(len(names)):
        raise ValueError(f"must be 0 to 3, not {shown(value)}")
    return names[value]


def level(value: Any) -> str:
    known = ("", "system", "package", "die", "numa", "core", "thread")
    if text(value).lower() not in known:
        raise ValueError(f"{shown(value)} is none of {', '.join(known[1:])}")
    return text(value).lower()


def pool_cpus(value: Any) -> int:
    if not re.fullmatch(r"\d+", text(value)):
        raise ValueError(f"must be a whole number of CPUs, not {shown(value)}")
    return int(value)


def instances(value: Any) -> Any:
    if re.fullmatch(r"\d+", text(value).strip()):
        return int(value)
    note = "depends on the node's CPUs: set minBalloons and maxBalloons for each group of nodes"
    return Outcome(0, Grade.LOST, note)


def most_pods(value: Any) -> Outcome:
    if whole(value) == 0:
        return Outcome(None, Grade.IDLE, "0 is no limit")
    return Outcome(None, Grade.LOST, "a balloon has no limit of pods; its CPUs and their requests are one")


def fill_order(value: Any) -> bool:
    if value not in ("Balanced", "Packed", "FirstFree"):
        raise ValueError(f"{shown(value)} is none of Balanced, Packed, FirstFree")
    return bool(value == "Balanced")


def period(value: Any) -> str:
    """cri-resmgr takes nanoseconds."""
    return text(value) if isinstance(value, str) else f"{whole(value) / 1e9:g}s"


def sampling(value: Any) -> int:
    named = {"disabled": 0.0, "production": 0.1, "testing": 1.0}
    return round(float(named.get(str(value).lower(), value)) * 1_000_000)


def debug_sources(value: Any) -> list[str]:
    """`on:a,b,off:c` as a list; a state holds until the next one (pkg/log/flags.go)."""
    found, state = [], "on"
    for entry in filter(None, map(str.strip, text(value).split(","))):
        given, colon, source = entry.rpartition(":")
        state = given if colon else state
        on = state.lower() in ("on", "enable", "enabled", "true", "1", "yes")
        found.append(source.strip() if on else f"{source.strip()}:off")
    return found


def rdt_mode(value: Any) -> bool:
    if value not in ("Full", "Discovery", "Disabled"):
        raise ValueError(f"{shown(value)} is none of Full, Discovery, Disabled")
    return bool(value != "Disabled")


def monitoring(disabled: Any) -> Outcome:
    if switch(disabled):
        return Outcome(None, Grade.EXACT, "policies of nri-plugins monitor nothing")
    return Outcome(None, Grade.LOST, "monitoring groups: the plugin resctrl-mon makes them")


def denied(value: Any) -> Outcome:
    if not value:
        return Outcome(None, Grade.IDLE, "off by default")
    return Outcome(None, Grade.LOST, "nothing forbids pods to choose their class; an admission policy can")


def jaeger_collector(value: Any) -> Outcome:
    """An address in cri-resmgr; a protocol, whose endpoint the plugin's environment names, in nri-plugins."""
    if not text(value):
        return Outcome(None, Grade.IDLE, "off by default")
    note = "OTLP in place of Jaeger's protocol; the plugin's environment names the endpoint"
    return Outcome("otlp-http", Grade.APPROXIMATE, note)


def jaeger_agent(value: Any) -> Outcome:
    found = jaeger_collector(value)
    return found._replace(value="otlp-grpc") if found.value else found


def khz(value: Any) -> str:
    return str(whole(value))


def group(value: Any) -> dict[str, Any]:
    """A mapping without keys, whose name says something."""
    return {}


@dataclass(frozen=True, slots=True)
class Table:
    """As templates/nri-plugins.yaml explains it. Rows, and what is written of each of `balloonTypes` where
    nothing is said, are by the policy, or else by its kind."""

    kinds: dict[str, str]
    active: dict[str, tuple[Grade, str]]
    rows: dict[str, tuple[Row, ...]]
    defaults: dict[str, dict[str, Any]]
    types: dict[str, dict[str, Any]]


@cache
def load_table() -> Table:
    data: Any = parse_document(template_text("nri-plugins.yaml").encode(), "nri-plugins.yaml").data
    active = {policy: (Grade(grade), ", ".join(note)) for policy, (grade, *note) in data["active"].items()}
    rows = {name: tuple(_rows(lines)) for name, lines in data["rows"].items()}
    return Table(data["kinds"], active, rows, data["defaults"], data["types"])


def _rows(lines: str) -> Iterator[Row]:
    for line in lines.splitlines():
        source, targets, how, note = ([each.strip() for each in line.split("|")] + [""])[:4]
        nothing = how in list(Grade)
        grade = Grade(how) if nothing else Grade.APPROXIMATE if note else Grade.EXACT
        convert = Row._field_defaults["convert"] if nothing else globals()[how]
        for each, to in _alternatives(source, targets):
            yield Row(each.lower(), tuple(to.split()), convert, grade, note)


def _alternatives(source: str, target: str) -> Iterator[tuple[str, str]]:
    found = re.search(r"\{([^}]*)\}", source)
    if found is None:
        yield source, target
        return
    for each in found[1].split(","):
        yield from _alternatives(source.replace(found[0], each, 1), target.replace("{}", each, 1))


CHART_PARTITION = "fullCache"
"""The partition that the charts' own values have, which Helm would merge with those of a configuration."""
