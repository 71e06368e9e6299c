"""YAML as people write it: safe, with line numbers, and a key given twice is a fault.

Knows nothing of what the documents mean. PyYAML is imported when the first
document is read: a run without any pays nothing for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from installer.errors import InvalidInputError

if TYPE_CHECKING:
    import yaml

KeyPath = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """`data` is what the text says (None if it is empty); `lines` has the line of each key.

    `faults` are keys that stand there twice, each with `name:line`.
    """

    data: object
    lines: Mapping[KeyPath, int] = field(default_factory=dict)
    faults: tuple[str, ...] = ()


def parse_document(content: bytes, name: str) -> Document:
    """One document. `name` is what the faults call it.

    Raises InvalidInputError with `name:line` where it is not UTF-8, not YAML, more
    than one document, or has tags that only an unsafe loader would accept.
    """
    text = _decode(content, name)
    if not text.strip():
        return Document(None)
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return Document(None)
        walk = _Walk(name)
        walk.visit(node, ())
        data = loader.construct_document(node)
    except yaml.YAMLError as error:
        raise InvalidInputError([_complaint(error, name)]) from None
    except (ValueError, RecursionError) as error:
        raise InvalidInputError([f"{name}: not YAML that can be read: {error}"]) from None
    finally:
        loader.dispose()
    return Document(data, walk.lines, tuple(walk.faults))


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
    """Notes where each key is, and which keys of one mapping are the same.

    Each node is visited once, however often it is referred to, so that neither a
    recursive document nor one that multiplies itself takes long.
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
                self.visit(item, (*path, str(index)))
        elif isinstance(node, MappingNode):
            self._visit_mapping(node, path)

    def _visit_mapping(self, node: yaml.MappingNode, path: KeyPath) -> None:
        from yaml import ScalarNode

        first: dict[str, int] = {}
        for key, value in node.value:
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
