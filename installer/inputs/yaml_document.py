"""YAML as people write it: safe, with line numbers, and a key given twice is a fault.

Knows nothing of what the documents mean. Refuses what would end the process or never end: PyYAML overflows
its stack over deep nesting, and builds merge keys (`<<`) of merge keys without a limit. PyYAML is imported
when the first document is read, so a run without any pays nothing for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from installer.errors import InvalidInputError

if TYPE_CHECKING:
    import yaml

KeyPath = tuple[str, ...]

_DEPTH = 100  # levels; PyYAML's loader in C overflows its stack at some ten thousand
_MERGED = 100_000  # entries that `<<` brings into one mapping
_NUMBER_LENGTH = 100  # characters; Python refuses to print a number of more than 4,300 digits
# What PyYAML raises where an explicit tag (`!!int ''`) does not fit its text.
_BAD_VALUE = (ValueError, LookupError, AttributeError, TypeError, ArithmeticError, RecursionError)


class Document(NamedTuple):
    """`data` is what the text says (None if it is empty); `lines` has the line of each key and list item.

    `faults` are keys given twice, each with `name:line`.
    """

    data: object
    lines: Mapping[KeyPath, int] = MappingProxyType({})
    faults: tuple[str, ...] = ()


def parse_document(content: bytes, name: str) -> Document:
    """One document. `name` is what the faults call it.

    Raises InvalidInputError with `name:line` where it is not UTF-8, not YAML, more than one document, nested
    too deep, or has tags that only an unsafe loader would accept.
    """
    text = _decode(content, name)
    if not text.strip():
        return Document(None)
    import yaml

    loader = _loader_class()(text)
    try:
        _check_depth(yaml.parse(text, _loader_class()), name)
        node = loader.get_single_node()
        if node is None:
            return Document(None)
        walk = _Walk(name)
        walk.visit(node, ())
        data = loader.construct_document(node)
    except yaml.YAMLError as error:
        raise InvalidInputError([_complaint(error, name)]) from None
    except _BAD_VALUE as error:
        raise InvalidInputError([f"{name}: a value that does not fit its type: {error}"]) from None
    finally:
        loader.dispose()
    return Document(data, walk.lines, tuple(walk.faults))


@cache
def _loader_class() -> Any:
    import yaml

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        def flatten_mapping(self, node: yaml.MappingNode) -> None:
            super().flatten_mapping(node)
            if len(node.value) > _MERGED:
                problem = f"more than {_MERGED} entries merged into one mapping"
                raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)

    return Loader


def _check_depth(events: Iterable[yaml.Event], name: str) -> None:
    """Reads the text as a stream of events, before PyYAML builds a tree of it by recursion."""
    from yaml import CollectionEndEvent, CollectionStartEvent

    depth = 0
    for event in events:
        if isinstance(event, CollectionStartEvent):
            depth += 1
        elif isinstance(event, CollectionEndEvent):
            depth -= 1
        if depth > _DEPTH:
            mark = event.start_mark
            where = f"{name}:{mark.line + 1}" if mark else name
            raise InvalidInputError([f"{where}: nested deeper than {_DEPTH} levels"])


def _decode(content: bytes, name: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        byte = content[error.start]
        raise InvalidInputError([f"{name}:{line}: not UTF-8 text (byte 0x{byte:02x})"]) from None


def _complaint(error: yaml.YAMLError, name: str) -> str:
    """PyYAML's complaint as one line that starts with file:line."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    parts = [getattr(error, "context", None), getattr(error, "problem", None)]
    what = ", ".join(part for part in parts if part) or " ".join(str(error).split())
    where = f"{name}:{mark.line + 1}" if mark is not None else name
    return f"{where}: not YAML: {what}"


class _Walk:
    """Notes the line of each key and list item, and keys given twice in one mapping.

    Visits each node once, however often aliases refer to it, because a document may contain itself.
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
            raise InvalidInputError([f"{where}: a number of {len(node.value)} characters"])

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
                twice = f"already given in line {first[key.value]}"
                self.faults.append(f"{'.'.join(here)}: {twice} ({self._name}:{line})")
            first.setdefault(key.value, line)
            self.lines.setdefault(here, line)
            self.visit(value, here)
