"""The rules of docs/architecture.md, and the marker of a test that proves one: `@rule("R4")`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

_ARCHITECTURE = Path(__file__).parents[2] / "docs/architecture.md"


@cache
def titles() -> dict[str, str]:
    """Each rule and what it is called, in the order of the documentation."""
    return dict(re.findall(r"(?m)^- \*\*(R\d+)\. (.+?)\.\*\*", _ARCHITECTURE.read_text()))


def rule(*names: str) -> pytest.MarkDecorator:
    """Says which rules a test proves. Raises ValueError for a name that is not a rule's."""
    if unknown := [name for name in names if name not in titles()]:
        raise ValueError(f"docs/architecture.md has no rule {', '.join(unknown)}")
    return pytest.mark.rule(*names)


def render(tests: Iterable[pytest.Item]) -> str:
    """Each rule with its tests, each test once, whatever its parameters."""
    found: dict[str, list[str]] = {name: [] for name in titles()}
    for test in tests:
        for marker in test.iter_markers("rule"):
            for name in marker.args:
                found[name].append(test.nodeid.partition("[")[0])
    lines = []
    for name, title in titles().items():
        lines += ["", f"{name}  {title}"]
        lines += [f"    {test}" for test in dict.fromkeys(found[name])] or ["    no test yet"]
    return "\n".join(lines[1:]) + "\n"
