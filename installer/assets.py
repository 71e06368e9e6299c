"""Finds units/ and templates/: package data of an installed wheel, or beside the package in a checkout."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from installer.errors import InstallerError

# Not importlib.resources: it takes longer to import than everything here takes to run.
_PACKAGE = Path(__file__).parent


@cache
def _base() -> Path:
    installed = _PACKAGE / "_assets"
    return installed if installed.is_dir() else _PACKAGE.parent


def unit_text(name: str) -> str:
    """A file of units/. Raises InstallerError if this installation is incomplete."""
    return _read("units", name)


def template_text(name: str) -> str:
    """A file of templates/, below which it may lie in a directory (`manifests/daemonset.yaml.j2`)."""
    return _read("templates", name)


@cache
def _read(kind: str, name: str) -> str:
    path = _base() / kind / name
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InstallerError(
            f"{path}: {error.strerror}", "this installation is incomplete: install it again"
        ) from error
