"""Find the files of units/ and templates/, fill templates with values, and find the runbooks."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from installer.errors import InstallerError

if TYPE_CHECKING:
    from jinja2 import Environment


# Not importlib.resources: importing it takes longer than all of this takes to run.
_PACKAGE = Path(__file__).parent


@cache
def _base() -> Path:
    installed = _PACKAGE / "_assets"
    return installed if installed.is_dir() else _PACKAGE.parent


def unit_text(name: str) -> str:
    """A file of units/. Raises InstallerError if this installation is incomplete."""
    return _read("units", name)


def template_text(name: str) -> str:
    """A file of templates/, possibly in a subdirectory (`manifests/daemonset.yaml.j2`)."""
    return _read("templates", name)


def runbooks() -> str:
    """The page docs/runbooks.md."""
    return _read("docs", "runbooks.md")


@cache
def _read(kind: str, name: str) -> str:
    path = _base() / kind / name
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InstallerError(
            f"{path}: {error.strerror}", "this installation is incomplete: install it again"
        ) from error


# Rendering is strict: a missing value is an error, never an empty string.
#
# The few files of a host are `*.in` and are filled without jinja2, which would cost each run 20 ms. The
# manifests are `*.j2`.

_PLACE = re.compile(r"^@([a-z_]+)@\n|@([a-z_]+)@", re.M)


def fill(name: str, **values: object) -> str:
    """The text of a `*.in` with each `@name@` replaced. An empty value alone on its line removes the line.

    Raises KeyError for a missing value.
    """

    def filled(place: re.Match[str]) -> str:
        alone, within = place.groups()
        if within:
            return str(values[within])
        return f"{values[alone]}\n" if values[alone] else ""

    return _PLACE.sub(filled, template_text(name))


def render(name: str, **values: object) -> str:
    """The text of a `*.j2` filled with values. Raises jinja2.UndefinedError for a missing one."""
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
