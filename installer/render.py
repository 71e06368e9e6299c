"""Renders templates/: strict, so that a missing value is an error and never an empty string.

Imports jinja2 only when something is rendered: its import is among the slowest.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from installer.assets import template_text
from installer.systemd_syntax.environment_file import quote

if TYPE_CHECKING:
    from jinja2 import Environment


def render(name: str, **values: object) -> str:
    """The template with its values. Raises jinja2.UndefinedError for a missing one.

    `{{ value | quoted }}` is the right side of an EnvironmentFile's assignment.
    """
    return _environment().get_template(name).render(values)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        loader=FunctionLoader(template_text),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        autoescape=False,  # nothing here is HTML; what needs escaping has a filter
    )
    environment.filters["quoted"] = quote
    return environment
