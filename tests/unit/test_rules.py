"""`hack/test` proves each rule; `hack/test --rules` lists all tests that name one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lib import rules
from tests.lib.rules import rule

TESTS = Path(__file__).parents[1]
LONG = "pytestmark = pytest.mark.long"


def marked() -> Iterator[str]:
    """The rules that decorators of tests on hosts name which `hack/test` runs, read and not run: no level
    needs root for that."""
    for path in TESTS.joinpath("host").rglob("test_*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text, str(path))) if "@rule(" in text and LONG not in text else ():
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                for decorator in node.decorator_list:
                    if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "rule":
                        yield from (ast.literal_eval(name) for name in decorator.args)


def test_each_rule_has_a_test_on_a_host_that_is_not_long() -> None:
    assert rules.titles().keys() == set(marked())


def test_the_documentation_has_every_rule() -> None:
    assert list(rules.titles()) == [f"R{number}" for number in range(1, 16)]


def test_a_rule_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(ValueError, match="R99"):
        rule("R99")
