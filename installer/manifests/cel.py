"""Pieces of CEL expressions for admission policies, as Kubernetes has it since 1.30 (its documentation,
"Validating Admission Policy"). Pure.

Objects are read as dynamic values, so that their fields can be walked through and compared whatever they are.
Where a list or a map is spelled out, all in it has one type: Kubernetes compiles nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable


def text(value: str) -> str:
    """A text. Those of ours are names of objects and of their fields: no quote can end one."""
    return f"'{value}'"


def texts(values: Iterable[str]) -> str:
    """A list of texts."""
    return "[" + ", ".join(map(text, values)) + "]"


def old(name: str) -> str:
    """The variable that has what `name` was before: `oldName`."""
    return f"old{name[0].upper()}{name[1:]}"


def part(owner: str, path: str, missing: str = "{}") -> str:
    """A field of a field of `owner`; `missing`, if it is not there."""
    steps = path.split(".")
    there = " && ".join(f"has({owner}.{'.'.join(steps[: end + 1])})" for end in range(len(steps)))
    return f"{there} ? dyn({owner}.{path}) : dyn({missing})"


def same(name: str, but: str) -> str:
    """Whether the map of this variable is as it was, but for keys of the list `but`."""
    new, before = f"variables.{name}", f"variables.{old(name)}"
    return (
        f"{new}.all(key, key in {but} || (key in {before} && {new}[key] == {before}[key]))"
        f" && {before}.all(key, key in {but} || key in {new})"
    )
