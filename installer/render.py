"""Renders templates/: strict, so that a missing value is an error and never an empty string.

The few files of a host are `*.in`, filled without jinja2, whose import and compiling takes 20 ms of each run.
The manifests are `*.j2`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

from installer.assets import template_text

if TYPE_CHECKING:
    from jinja2 import Environment

_PLACE = re.compile(r"@([a-z_]+)@")


def fill(name: str, **values: object) -> str:
    """The text of a `*.in` with each `@name@` replaced; an empty value alone in its line removes the line.

    Raises KeyError for a missing value.
    """
    lines = template_text(name).splitlines(keepends=True)
    return "".join(_filled(line, values) for line in lines)


def _filled(line: str, values: Mapping[str, object]) -> str:
    alone = _PLACE.fullmatch(line.rstrip("\n"))
    if alone and not values[alone[1]]:
        return ""
    return _PLACE.sub(lambda place: str(values[place[1]]), line)


def render(name: str, **values: object) -> str:
    """The text of a `*.j2` with its values. Raises jinja2.UndefinedError for a missing one."""
    return _environment().get_template(name).render(values)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    return Environment(
        loader=FunctionLoader(template_text),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        autoescape=False,  # YAML is not HTML
    )
