"""What a ValidatingAdmissionPolicy says of a request.

The expressions are evaluated by cel-python, another implementation of CEL than the API server's.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest


@cache
def _environment() -> Any:
    """Its grammar takes a second: only for tests that need it."""
    return pytest.importorskip("celpy").Environment()


@cache
def _program(expression: str) -> Any:
    return _environment().program(_environment().compile(expression))


def _evaluate(expression: str, given: Mapping[str, Any]) -> Any:
    from celpy.adapter import json_to_cel

    return _program(expression).evaluate({name: json_to_cel(value) for name, value in given.items()})


def judge(spec: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """The messages of the validations that fail, for a request that the policy's rules match. `given` has the
    variables that the API server would set; those that are missing are null. Raises celpy.CELEvalError."""
    given = {"object": None, "oldObject": None, "namespaceObject": None, **given}
    if not all(_evaluate(condition["expression"], given) for condition in spec["matchConditions"]):
        return []
    variables: dict[str, Any] = {}
    for variable in spec.get("variables", ()):
        given["variables"] = variables
        variables[variable["name"]] = _evaluate(variable["expression"], given)
    given["variables"] = variables
    failed = [each for each in spec["validations"] if not _evaluate(each["expression"], given)]
    worded = [(each, each.get("messageExpression")) for each in failed]
    return [str(_evaluate(words, given)) if words else each["message"] for each, words in worded]
