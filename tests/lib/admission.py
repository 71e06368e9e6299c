"""What a ValidatingAdmissionPolicy says of a request, and whether an API server takes the policy at all.

As k8s.io/apiserver/pkg/admission/plugin/policy/validating has it: objects are dynamic values, the request is
not, a variable has the type of its expression and is known to those after it. kube-controller-manager looks
at the types of objects afterwards, and warns in the policy's status: `unknown_fields`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from tests.lib.cel import CelError, Program, compile_expression, types
from tests.lib.throwaway.kubevalidation import schemas

_OBJECTS = ("object", "oldObject", "namespaceObject")
_API = "io.k8s.api"
_SCHEMAS = {"nodes": f"{_API}.core.v1.Node", "leases": f"{_API}.coordination.v1.Lease"}


@cache
def _request_types() -> dict[str, Any]:
    """Of AdmissionRequest, what our expressions read (admission/v1 of k8s.io/api)."""
    kind = types()
    texts = ("operation", "namespace", "name", "userInfo.username", "resource.group", "resource.resource")
    # The library takes no `has` of a name that is declared with dots: what is extra has no type here.
    return {**{f"request.{name}": kind.STRING for name in texts}, "request.userInfo": kind.DYN}


@cache
def _compiled(text: str) -> tuple[dict[str, Program], ...]:
    """Conditions, variables by their names, validations, messages: each by its expression."""
    spec = json.loads(text)
    objects = dict.fromkeys(_OBJECTS, types().DYN)
    declared = objects | _request_types()
    conditions = {
        each["expression"]: compile_expression(each["expression"], declared)
        for each in spec["matchConditions"]
    }
    variables = dict[str, Program]()
    for each in spec.get("variables", ()):
        found = compile_expression(each["expression"], declared)
        variables[each["name"]] = found
        declared[f"variables.{each['name']}"] = found.type
    worded = [
        each[key]
        for each in spec["validations"]
        for key in ("expression", "messageExpression")
        if key in each
    ]
    rest = {each: compile_expression(each, declared) for each in worded}
    return conditions, variables, rest


def compile_policy(spec: Mapping[str, Any]) -> None:
    """Raises CelError for an expression that the API server refuses."""
    conditions, _, validations = _compiled(json.dumps(spec))
    for program in (*conditions.values(), *(validations[each["expression"]] for each in spec["validations"])):
        if program.type != types().BOOL:
            raise CelError(f"not a bool: {program.type}")


def unknown_fields(spec: Mapping[str, Any]) -> list[str]:
    """Fields of objects that an expression reads and a matched kind does not have."""
    programs = [each for part in _compiled(json.dumps(spec)) for each in part.values()]
    paths = sorted(
        {path for each in programs for path in each.paths if path.split(".")[0] in ("object", "oldObject")}
    )
    resources = [
        name.partition("/")[0]
        for rule in spec["matchConstraints"]["resourceRules"]
        for name in rule["resources"]
    ]
    kinds = [schemas()[_SCHEMAS[each]] for each in dict.fromkeys(resources) if each in _SCHEMAS]
    return [path for path in paths for kind in kinds if not _has(kind, path.split(".")[1:])]


def _has(schema: Mapping[str, Any], steps: list[str]) -> bool:
    if "$ref" in schema:
        return _has(schemas()[schema["$ref"].rpartition("/")[2]], steps)
    if "allOf" in schema:
        return any(_has(each, steps) for each in schema["allOf"])
    if not steps:
        # A quantity may be a text or a number: CEL has no type for it, and so its owner has no such field.
        return (
            "oneOf" not in schema and _has(schema.get("additionalProperties", {}), steps[:0])
            if schema
            else True
        )
    found = schema.get("properties", {}).get(steps[0], schema.get("additionalProperties"))
    return isinstance(found, dict) and _has(found, steps[1:])


def _named(request: Mapping[str, Any], prefix: str = "request") -> Iterator[tuple[str, Any]]:
    for key, value in request.items():
        yield f"{prefix}.{key}", value
        if isinstance(value, dict) and key != "extra":
            yield from _named(value, f"{prefix}.{key}")


def judge(spec: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """The messages of the validations that fail, for a request that the policy's rules match. `given` has the
    variables that the API server would set; objects that are missing are null. Raises CelError."""
    conditions, variables, programs = _compiled(json.dumps(spec))
    known = dict.fromkeys(_OBJECTS) | {key: given[key] for key in _OBJECTS if key in given}
    known |= {key: value for key, value in _named(given["request"]) if key in _request_types()}
    if not all(each.evaluate(known) for each in conditions.values()):
        return []
    for name, program in variables.items():
        with contextlib.suppress(CelError):  # it fails where it is used: a variable is evaluated late
            known[f"variables.{name}"] = program.evaluate(known)
    failed = [each for each in spec["validations"] if not programs[each["expression"]].evaluate(known)]
    worded = [(each, each.get("messageExpression")) for each in failed]
    return [str(programs[words].evaluate(known)) if words else each["message"] for each, words in worded]
