"""Expressions of CEL as the API server takes them: compiled with the types that it declares, then evaluated.

The checker and the evaluator are CEL's own in C++ (cel-expr-python). Kubernetes adds a rule that these do
not have (k8s.io/apiserver/pkg/cel/environment: HomogeneousAggregateLiterals): what is in a list or a map that
an expression spells out is of one and the same type, and a dynamic value is of no other type. That is looked
up in the checked expression (syntax.proto and checked.proto of github.com/google/cel-spec).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from installer.host.protobuf import Fields, decode, integer, last_bytes, message, messages, text

_ID, _IDENTIFIER, _SELECT, _CALL, _LIST, _MAP, _COMPREHENSION = 2, 4, 5, 6, 7, 8, 9


class CelError(Exception):
    """An expression that the API server would not take, or whose evaluation fails."""


@dataclass(frozen=True)
class Program:
    """`type`: of what it amounts to. `paths`: the fields that it reads, such as `object.spec.taints`."""

    expression: Any
    type: Any
    paths: frozenset[str]

    def evaluate(self, given: Mapping[str, Any]) -> Any:
        """`given` by the declared names. Raises CelError."""
        found = self.expression.eval(data=dict(given))
        if found.type() in (types().ERROR, types().UNKNOWN):
            raise CelError(str(found))
        return found.plain_value()


def types() -> Any:
    """STRING, DYN, Map(...) and so on. The library has 14 MB: only for tests that need it."""
    return pytest.importorskip("cel_expr_python.cel").Type


def compile_expression(expression: str, declared: Mapping[str, Any]) -> Program:
    """`declared` has the type of each name; one with dots is the field of a value. Raises CelError."""
    environment = pytest.importorskip("cel_expr_python.cel").NewEnv(variables=dict(declared))
    try:
        found = environment.compile(expression)
    except RuntimeError as error:
        raise CelError(str(error)) from None
    checked = message(decode(found.serialize()), 2)  # of google.protobuf.Any
    kinds = {integer(each, 1): last_bytes(each, 2) for each in messages(checked, 3)}
    dynamic = frozenset(name for name, kind in declared.items() if kind == types().DYN)
    root, paths = message(checked, 4), set[str]()
    for node in _walk(root):
        for parts in _spelled_out(node):
            if (
                len({b"dyn" if _is_dynamic(part, dynamic) else kinds[integer(part, _ID)] for part in parts})
                > 1
            ):
                raise CelError(f"what is spelled out has different types: {expression}")
        paths.add(_path(node))
    kind = types().DYN if _is_dynamic(root, dynamic) else found.return_type()
    return Program(found, kind, frozenset(paths - {""}))


def _is_dynamic(node: Fields, names: frozenset[str]) -> bool:
    """A part of a dynamic value is dynamic, and so is a choice between that and something else. The checker
    in C++ says so less often than the one in Go: it takes a part to be what it is used as."""
    if _IDENTIFIER in node:
        return _path(node) in names
    if _SELECT in node:
        selected = message(node, _SELECT)
        return not integer(selected, 3) and (_path(node) in names or _is_dynamic(message(selected, 1), names))
    call = message(node, _CALL)
    arguments = messages(call, 3)
    parts = {"_[_]": arguments[:1], "_?_:_": arguments[1:]}.get(text(call, 2), [])
    return text(call, 2) == "dyn" or any(_is_dynamic(each, names) for each in parts)


def _walk(node: Fields) -> Iterator[Fields]:
    yield node
    for child in _children(node):
        yield from _walk(child)


def _children(node: Fields) -> Iterator[Fields]:
    numbers = {_SELECT: (1,), _CALL: (1, 3), _LIST: (1,), _COMPREHENSION: (2, 4, 5, 6, 7)}
    for kind, found in numbers.items():
        for number in found:
            yield from messages(message(node, kind), number)
    for entry in messages(message(node, _MAP), 2):
        yield message(entry, 3)
        yield message(entry, 4)


def _spelled_out(node: Fields) -> tuple[list[Fields], ...]:
    """The elements of a list; the keys and the values of a map."""
    entries = messages(message(node, _MAP), 2)
    keys, values = ([message(entry, number) for entry in entries] for number in (3, 4))
    return messages(message(node, _LIST), 1), keys, values


def _path(node: Fields) -> str:
    """Of a field of a field of a name; empty for anything else."""
    if _IDENTIFIER in node:
        return text(message(node, _IDENTIFIER), 1)
    selected = message(node, _SELECT)
    owner = _path(message(selected, 1)) if selected else ""
    return f"{owner}.{text(selected, 2)}" if owner else ""
