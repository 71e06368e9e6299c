"""Renders a chart as far as ours goes: the part of Go's templates and of sprig that it uses, and an error for
anything else. Helm itself is not needed."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shlex
import tarfile
from typing import Any

import yaml

_ACTION = re.compile(r"(?:\s*\{\{-|\{\{) *(.+?) *\}\}")


def render_chart(packed: bytes, values: dict[str, Any], namespace: str) -> list[dict[str, Any]]:
    """All objects. `values` are merged into those of the chart, as Helm does it."""
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as archive:
        files = {
            each.name.partition("/")[2]: extracted.read().decode()
            for each in archive
            if (extracted := archive.extractfile(each)) is not None
        }
    assert yaml.safe_load(files["Chart.yaml"])["version"]
    scope = {
        "Values": merge(yaml.safe_load(files["values.yaml"]), values),
        "Release": {"Namespace": namespace},
    }
    objects: list[dict[str, Any]] = []
    for name, text in sorted(files.items()):
        if name.startswith("templates/"):
            objects += [each for each in yaml.safe_load_all(_render(text, scope)) if each]
    return objects


def merge(old: Any, new: Any) -> Any:
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    return {**old, **{key: merge(old.get(key), value) for key, value in new.items()}}


def _render(text: str, scope: dict[str, Any]) -> str:
    out: list[str] = []
    shown = [True]
    position = 0
    for found in _ACTION.finditer(text):
        if all(shown):
            out.append(text[position : found.start()])
        position = found.end()
        word, _, rest = found[1].partition(" ")
        if word == "if":
            shown.append(all(shown) and bool(_evaluate(rest, scope)))
        elif word == "else" and not rest:
            shown[-1] = not shown[-1]
        elif word == "end" and not rest:
            shown.pop()
        elif all(shown):
            value = _evaluate(found[1], scope)
            assert isinstance(value, (str, int)), f"{found[1]}: {value!r} has no text in a template"
            out.append(str(value))
    assert shown == [True]
    return "".join([*out, text[position:]])


def _evaluate(expression: str, scope: dict[str, Any]) -> Any:
    value: Any = None
    for number, part in enumerate(expression.split(" | ")):
        function, *words = shlex.split(part)
        arguments = [_look_up(word, scope) for word in words] + ([value] if number else [])
        if function == "toJson":
            (value,) = (json.dumps(each, sort_keys=True) for each in arguments)
        elif function == "sha256sum":
            (value,) = (hashlib.sha256(each.encode()).hexdigest() for each in arguments)
        elif function == "toString":
            (value,) = (str(each) for each in arguments)
        elif function == "hasPrefix":
            prefix, value = arguments
            assert isinstance(value, str), f"{value!r}: wrong type for value; expected string"
            value = value.startswith(prefix)
        else:
            assert not arguments, f"{part}: not a function that is known here"
            value = _look_up(function, scope)
    return value


def _look_up(word: str, scope: dict[str, Any]) -> Any:
    if not word.startswith("."):
        return word
    found: Any = scope
    for step in word[1:].split("."):
        assert found is not None, f"{word}: nil pointer evaluating interface {{}}.{step}"
        found = found[step]
    return found
