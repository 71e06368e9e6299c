"""Writes YAML into the templates, and reads it out of them. PyYAML does the work; this module chooses the
style."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from math import inf
from typing import Any

import yaml

from installer.errors import InstallerError
from installer.inputs.yaml_document import parse_document
from installer.rendering import render

# Strings that kubectl's YAML parser reads as a number or a boolean, and PyYAML would write without quotes:
# 1e3, 0o17, 1_000, y, n.
_AMBIGUOUS = re.compile(r"[-+.0-9].*|[yYnN]")
_OPTIONAL = ("annotations", "limits")
_ESCAPED = re.compile("[\x7f-\x9f\u2028\u2029\ufeff]")


class _Dumper(yaml.SafeDumper):
    """Written in Python, not in C: not every machine has the C library, and the bytes must be the same on
    all."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _represent(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else '"' if _AMBIGUOUS.fullmatch(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent)


def dump(value: object) -> str:
    """Return YAML for people, mappings sorted by key. ASCII only, so that no terminal or locale can change
    it."""
    return str(yaml.dump(value, Dumper=_Dumper, default_flow_style=False, width=inf))


def quote(value: object) -> str:
    """Return one line of YAML for any place in a template: JSON, with every character escaped that YAML
    does not accept or reads as the end of a line."""
    text = json.dumps(value, ensure_ascii=False, sort_keys=True)
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def dump_objects(objects: Iterable[dict[str, Any]]) -> str:
    """Return Kubernetes objects as one YAML stream, their keys in the order of the templates."""
    stream = yaml.dump_all(
        objects, Dumper=_Dumper, explicit_start=True, sort_keys=False, default_flow_style=False, width=inf
    )
    return str(stream)


def render_template(name: str, **values: object) -> list[dict[str, Any]]:
    """Render a template of templates/manifests/ to objects."""
    return parse_objects(render(f"manifests/{name}.yaml.j2", yaml=quote, **values))


def parse_objects(rendered: str) -> list[dict[str, Any]]:
    """Parse what a template has rendered, without empty optional mappings.

    Raises InstallerError where the template is wrong: a duplicate key, or not an object.
    """
    objects = []
    for text in re.split(r"^---\n", rendered, flags=re.MULTILINE):
        document = parse_document(text.encode(), "manifest")
        if document.faults or not isinstance(document.data, dict) or "kind" not in document.data:
            why = "; ".join(document.faults) or repr(text[:80])
            raise InstallerError(f"a template does not render an object: {why}", "this is a bug; report it")
        objects.append(_prune(document.data))
    return objects


def _prune(value: Any) -> Any:
    if isinstance(value, list):
        return [_prune(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {key: _prune(item) for key, item in value.items() if item != {} or key not in _OPTIONAL}
