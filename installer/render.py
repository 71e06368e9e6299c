"""Renders templates/: strict, so that a missing value is an error and never an empty string.

The few files of a host are `*.in`, filled without jinja2, whose import and compiling takes 20 ms of each run.
The manifests are `*.j2`.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from installer.assets import template_text

if TYPE_CHECKING:
    from jinja2 import Environment

_PLACE = re.compile(r"^@([a-z_]+)@\n|@([a-z_]+)@", re.M)


def fill(name: str, **values: object) -> str:
    """The text of a `*.in` with each `@name@` replaced; an empty value alone in its line removes the line.

    Raises KeyError for a missing value.
    """

    def filled(place: re.Match[str]) -> str:
        alone, within = place.groups()
        if within:
            return str(values[within])
        return f"{values[alone]}\n" if values[alone] else ""

    return _PLACE.sub(filled, template_text(name))


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
