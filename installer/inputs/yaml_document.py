"""YAML as people write it: safe, with line numbers, and a key given twice is a fault.

Knows nothing of what the documents mean. What could only be meant to do harm is
refused: PyYAML ends the process (a full stack) or takes for ever over some texts.
PyYAML is imported when the first document is read: a run without any pays nothing
for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

from installer.errors import InvalidInputError

if TYPE_CHECKING:
    import yaml

KeyPath = tuple[str, ...]

_DEPTH = 100  # levels; PyYAML's loader in C overflows its stack at some ten thousand
_MERGED = 100_000  # entries of a mapping with all that `<<` brings into it
_NUMBER_LENGTH = 100  # characters; from 4,300 digits on, Python cannot even print a number
_TAG = "tag:yaml.org,2002:"


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
    than one document, nested too deep, or has tags that only an unsafe loader would
    accept.
    """
    text = _decode(content, name)
    if not text.strip():
        return Document(None)
    import yaml

    kind = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    loader = kind(text)
    try:
        _check_depth(yaml.parse(text, kind), name)
        node = loader.get_single_node()
        if node is None:
            return Document(None)
        walk = _Walk(name, loader.resolve)
        walk.visit(node, ())
        data = loader.construct_document(node)
    except yaml.YAMLError as error:
        raise InvalidInputError([_complaint(error, name)]) from None
    except (ValueError, RecursionError) as error:
        raise InvalidInputError([f"{name}: not YAML that can be read: {error}"]) from None
    finally:
        loader.dispose()
    return Document(data, walk.lines, tuple(walk.faults))


def _check_depth(events: Iterable[yaml.Event], name: str) -> None:
    """Goes through the text as a stream, before anything is built of it, which would recurse."""
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
    """Notes where each key is, and which keys of one mapping are the same.

    Each node is visited once, however often it is referred to, so that neither a
    recursive document nor one that multiplies itself takes long. Raises
    InvalidInputError for what must not be built.
    """

    def __init__(self, name: str, resolve: Callable[..., object]) -> None:
        self.lines: dict[KeyPath, int] = {}
        self.faults: list[str] = []
        self._name = name
        self._resolve = resolve
        self._seen: set[int] = set()
        self._entries: dict[int, int] = {}

    def visit(self, node: yaml.Node, path: KeyPath) -> None:
        if id(node) in self._seen:
            return
        self._seen.add(id(node))
        from yaml import MappingNode, ScalarNode, SequenceNode

        if isinstance(node, SequenceNode):
            for index, item in enumerate(node.value):
                self.visit(item, (*path, str(index)))
        elif isinstance(node, MappingNode):
            self._visit_mapping(node, path)
        elif isinstance(node, ScalarNode):
            self._check_scalar(node)

    def _visit_mapping(self, node: yaml.MappingNode, path: KeyPath) -> None:
        from yaml import ScalarNode

        if node.tag not in (f"{_TAG}map", f"{_TAG}set"):
            self._refuse(node, f"a mapping is no {node.tag[:40]!r}")
        if self._count(node) > _MERGED:
            self._refuse(node, f"more than {_MERGED} entries merged into one mapping")
        first: dict[str, int] = {}
        for key, value in node.value:
            if not isinstance(key, ScalarNode):
                self.visit(key, path)
                continue
            self._check_scalar(key)
            line = key.start_mark.line + 1
            here = (*path, key.value)
            if key.value in first:
                twice = f"already given in line {first[key.value]}"
                self.faults.append(f"{'.'.join(here)}: {twice} ({self._name}:{line})")
            first.setdefault(key.value, line)
            self.lines.setdefault(here, line)
            self.visit(value, here)

    def _check_scalar(self, node: yaml.ScalarNode) -> None:
        """PyYAML takes a tag's word for it that the text is a number, a date ..., and so it is: a long
        number costs more than its length, and the rest end in whatever error comes first."""
        from yaml import ScalarNode

        kind = node.tag.removeprefix(_TAG)
        if kind in ("int", "float") and len(node.value) > _NUMBER_LENGTH:
            self._refuse(node, f"a number of {len(node.value)} characters")
        if kind in ("int", "float", "bool", "timestamp"):
            looks = self._resolve(ScalarNode, node.value, (True, False))
            if looks != node.tag:
                self._refuse(node, f"{node.value[:40]!r} is no !!{kind}")

    def _count(self, node: yaml.MappingNode) -> int:
        """How many entries the mapping has with those that `<<` brings; one of itself brings none."""
        from yaml import MappingNode, SequenceNode

        if id(node) not in self._entries:
            self._entries[id(node)] = len(node.value)
            for key, value in node.value:
                if key.tag == f"{_TAG}merge":
                    sources = value.value if isinstance(value, SequenceNode) else [value]
                    counts = [self._count(source) for source in sources if isinstance(source, MappingNode)]
                    self._entries[id(node)] += sum(counts)
        return self._entries[id(node)]

    def _refuse(self, node: yaml.Node, why: str) -> NoReturn:
        raise InvalidInputError([f"{self._name}:{node.start_mark.line + 1}: {why}"])
