"""YAML as people write it: loaded safely, with line numbers; a duplicate key is a fault.

Knows nothing of what the documents mean. Refuses input that would crash or hang the process: deep nesting
overflows PyYAML's stack, and aliases and merge keys (`<<`) expand a short text without limit. PyYAML is
imported when the first document is read, so a run without any does not pay for it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from installer.errors import InvalidInputError

if TYPE_CHECKING:
    import yaml

KeyPath = tuple[str, ...]

_DEPTH = 100  # levels; PyYAML's loader in C overflows its stack at about ten thousand
_SIZE = 4 << 20  # characters of a document, aliases expanded
_VALUES = 50_000  # values of a document, aliases expanded; a large Shoot has some thousand
_NUMBER_LENGTH = 100  # characters; Python refuses to print a number of more than 4,300 digits
# PyYAML's own patterns (YAML 1.1), without numbers of base 60: 22:00 is a time.
_INT = r"^(?:[-+]?0b[0-1_]+|[-+]?0[0-7_]+|[-+]?(?:0|[1-9][0-9_]*)|[-+]?0x[0-9a-fA-F_]+)$"
_FLOAT = r"""^(?:[-+]?(?:[0-9][0-9_]*)\.[0-9_]*(?:[eE][-+][0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?
  |[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"""
# What PyYAML raises if an explicit tag (`!!int ''`) does not fit its text.
_BAD_VALUE = (ValueError, LookupError, AttributeError, TypeError, ArithmeticError, RecursionError)


class Document(NamedTuple):
    """A parsed document."""

    data: object  # None: the text is empty
    lines: Mapping[KeyPath, int] = MappingProxyType({})  # the line of each key and list item
    faults: tuple[str, ...] = ()  # duplicate keys, each with `name:line`
    size: int = 0  # about how many characters it has when written with its aliases expanded


def parse_document(content: bytes, name: str, *, alone: bool = True) -> Document:
    """Parse one document. `name` is what its faults call it. Unless `alone`, more documents may follow, which
    are not read.

    Raises InvalidInputError with `name:line` if it is not UTF-8, not YAML, more than one document, nested too
    deep, or has tags that only an unsafe loader accepts.
    """
    text = _decode(content, name)
    if not text.strip():
        return Document(None)
    import yaml

    loader = _loader_class()(text)
    try:
        _check_events(yaml.parse(text, _loader_class()), name, alone=alone)
        node = loader.get_single_node() if alone else loader.check_node() and loader.get_node()
        if not node:
            return Document(None)
        size = _Size(name).check(node).characters
        walk = _Walk(name)
        walk.visit(node, ())
        data = loader.construct_document(node)
    except yaml.YAMLError as error:
        raise InvalidInputError([_complaint(error, name)]) from None
    except _BAD_VALUE as error:
        raise InvalidInputError([f"{name}: a value does not fit its type: {error}"]) from None
    finally:
        loader.dispose()
    return Document(data, walk.lines, tuple(walk.faults), size)


@cache
def _loader_class() -> Any:
    """A safe loader that makes values of JSON's types alone, as Kubernetes and cri-resmgr do
    (sigs.k8s.io/yaml): dates and times are text, whether `2020-01-01` or `22:00`, and a tag of another type
    is refused."""
    import yaml

    base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    loader: Any = type("Loader", (base,), {})
    text, integer, number, *others = (
        f"tag:yaml.org,2002:{each}"
        for each in ("timestamp", "int", "float", "binary", "set", "omap", "pairs")
    )
    loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in (text, integer, number)]
        for first, resolvers in base.yaml_implicit_resolvers.items()
    }
    for tag, pattern in ((integer, _INT), (number, _FLOAT)):
        loader.add_implicit_resolver(tag, re.compile(pattern, re.VERBOSE), list("-+.0123456789"))
    loader.yaml_constructors = {
        tag: construct for tag, construct in base.yaml_constructors.items() if tag not in others
    }
    loader.add_constructor(text, base.construct_scalar)
    loader.add_constructor(number, _construct_float)
    return loader


def _construct_float(loader: Any, node: yaml.Node) -> float:
    """Raises ValueError for what JSON cannot write."""
    found = float(loader.construct_yaml_float(node))
    if not math.isfinite(found):
        raise ValueError(f"{node.value} is not a number of JSON")
    return found


def _check_events(events: Iterable[yaml.Event], name: str, *, alone: bool) -> None:
    """Read the text as a stream of events before PyYAML recursively builds a tree of it."""
    from yaml import CollectionEndEvent, CollectionStartEvent, DocumentEndEvent

    depth = 0
    for number, event in enumerate(events):
        if number > 2 * _VALUES:  # a value has one event or two
            raise _too_large(name)
        if isinstance(event, CollectionStartEvent):
            depth += 1
        elif isinstance(event, CollectionEndEvent):
            depth -= 1
        elif isinstance(event, DocumentEndEvent) and not alone:
            return
        if depth > _DEPTH:
            mark = event.start_mark
            where = f"{name}:{mark.line + 1}" if mark else name
            raise InvalidInputError([f"{where}: nested deeper than {_DEPTH} levels"])


def _too_large(name: str) -> InvalidInputError:
    limits = f"{_VALUES} values or {_SIZE >> 20} MiB"
    return InvalidInputError([f"{name}: has more than {limits}, including its aliases (`*`)"])


class _Extent(NamedTuple):
    """The size of a node, aliases expanded."""

    values: int
    characters: int
    levels: int


class _Size:
    """Measures nodes. An anchor precedes its aliases, so each node is measured once, and never deeper than
    the text nests."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._known: dict[int, _Extent | None] = {}  # None: being measured

    def check(self, node: yaml.Node) -> _Extent:
        """Raises InvalidInputError if the node is too large or contains itself."""
        if id(node) in self._known:
            extent = self._known[id(node)]
            if extent is None:
                line = node.start_mark.line + 1
                raise InvalidInputError([f"{self._name}:{line}: an alias refers to a value that contains it"])
            return extent
        self._known[id(node)] = None
        values, levels = 1, 0
        characters = 2 + (len(node.value) if isinstance(node.value, str) else 0)
        for part in node.value if not isinstance(node.value, str) else ():
            for child in part if isinstance(part, tuple) else (part,):
                more = self.check(child)
                values, characters = values + more.values, characters + more.characters
                levels = max(levels, more.levels)
        if values > _VALUES or characters > _SIZE:
            raise _too_large(self._name)
        if levels >= _DEPTH:
            raise InvalidInputError([f"{self._name}: nested deeper than {_DEPTH} levels by its aliases"])
        self._known[id(node)] = _Extent(values, characters, levels + 1)
        return _Extent(values, characters, levels + 1)


def _decode(content: bytes, name: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        byte = content[error.start]
        raise InvalidInputError([f"{name}:{line}: not UTF-8 text (byte 0x{byte:02x})"]) from None


def _complaint(error: yaml.YAMLError, name: str) -> str:
    """PyYAML's complaint on one line that starts with file:line."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    parts = [getattr(error, "context", None), getattr(error, "problem", None)]
    what = ", ".join(part for part in parts if part) or " ".join(str(error).split())
    where = f"{name}:{mark.line + 1}" if mark is not None else name
    return f"{where}: not YAML: {what}"


class _Walk:
    """Collects the line of each key and list item, and the keys given twice in a mapping.

    Visits each node once, however many aliases refer to it.
    """

    def __init__(self, name: str) -> None:
        self.lines: dict[KeyPath, int] = {}
        self.faults: list[str] = []
        self._name = name
        self._seen: set[int] = set()

    def visit(self, node: yaml.Node, path: KeyPath) -> None:
        if id(node) in self._seen:
            return
        self._seen.add(id(node))
        from yaml import MappingNode, SequenceNode

        if isinstance(node, SequenceNode):
            for index, item in enumerate(node.value):
                self.lines.setdefault((*path, str(index)), item.start_mark.line + 1)
                self.visit(item, (*path, str(index)))
        elif isinstance(node, MappingNode):
            self._visit_mapping(node, path)
        elif node.tag.endswith((":int", ":float")) and len(node.value) > _NUMBER_LENGTH:
            where = f"{self._name}:{node.start_mark.line + 1}"
            raise InvalidInputError([f"{where}: number too long ({len(node.value)} characters)"])

    def _visit_mapping(self, node: yaml.MappingNode, path: KeyPath) -> None:
        from yaml import ScalarNode

        first: dict[str, int] = {}
        for key, value in node.value:
            self.visit(key, path)
            if not isinstance(key, ScalarNode):
                continue
            line = key.start_mark.line + 1
            here = (*path, key.value)
            if key.value in first:
                twice = f"already given on line {first[key.value]}"
                self.faults.append(f"{'.'.join(here)}: {twice} ({self._name}:{line})")
            first.setdefault(key.value, line)
            self.lines.setdefault(here, line)
            self.visit(value, here)
