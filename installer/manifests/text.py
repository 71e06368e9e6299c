"""YAML out: how a value is written so that nothing in it can be taken for YAML, and how what was
rendered is read again, and laid out for people, before anybody gets it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

from installer.errors import InstallerError, InvalidInputError
from installer.inputs.yaml_document import parse_document

if TYPE_CHECKING:
    import yaml

# What JSON lets stand as it is and YAML 1.2 (5.1 and 5.4) does not, or reads as a line break.
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
# Words that stand for themselves with every reader: nothing that YAML 1.1, YAML 1.2 or the parsers in
# between take for a number, a truth, a date or a mark.
_WORDS = re.compile(r"[A-Za-z/][A-Za-z0-9./_-]+(?: [A-Za-z0-9./_|-]+)*")
_NO_WORDS = frozenset(("yes", "no", "on", "off", "true", "false", "null", "nan", "inf"))
_LINES = re.compile(r"[!-~][ -~]*\n(?:(?:[ -~]*[!-~])?\n)*")
_DEPTH, _NODES = 100, 100_000  # what a document of the operator's may have, and no object has
_OPTIONAL = ("annotations", "limits")


def quote(value: object) -> str:
    """`value` as JSON in one line, which is YAML as well: any string comes back as it was.

    Mappings are sorted by key. Raises ValueError for what JSON cannot say.
    """
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, allow_nan=False, separators=(", ", ": "))
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def is_plain(value: object) -> bool:
    """Whether `quote` and every reader after it agree on the value: no dates, no keys that are no
    strings, no numbers that are none, no half characters."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_plain(key) and is_plain(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(is_plain, value))
    if isinstance(value, str):
        return "\0" not in value and not any("\ud800" <= letter <= "\udfff" for letter in value)
    if isinstance(value, float):
        return value - value == 0.0
    return value is None or isinstance(value, (bool, int))


def is_finite(value: object) -> bool:
    """Whether it can be written out: YAML's references may build what has no end, or a very late one."""
    level: list[object] = [value]
    for _ in range(_DEPTH):
        below: list[object] = []
        for item in level:
            if isinstance(item, (dict, list)):
                below += item.values() if isinstance(item, dict) else item
        if not below:
            return True
        if len(below) > _NODES:
            return False
        level = below
    return False


def dump_block(value: object, sort_keys: bool = True) -> str:
    """YAML that people read: the same value gives the same text, a text of several lines stays one.

    ASCII only, so that no terminal or locale on its way can change it.
    """
    import yaml

    text = yaml.dump(
        value,
        Dumper=_dumper(),
        sort_keys=sort_keys,
        default_flow_style=False,
        width=float("inf"),
    )
    return str(text)


@cache
def _dumper() -> type[yaml.SafeDumper]:
    """Without anchors: what is the same twice is written twice. In Python, whose bytes are everywhere
    the same; the one in C is not there on every machine."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: object) -> bool:
            return True

    Dumper.add_representer(str, _represent)
    return Dumper


def _represent(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    word = _WORDS.fullmatch(text) and text.lower() not in _NO_WORDS
    lines = _LINES.fullmatch(text) and not any(line.endswith(" ") for line in text.split("\n"))
    style = None if word else "|" if lines else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


def split_documents(text: str) -> list[str]:
    """The documents of what the templates gave. No value of them can hold a line of its own."""
    return [part for part in re.split(r"^---\n", text, flags=re.MULTILINE) if part.strip()]


def join_documents(documents: Iterable[str]) -> str:
    """One YAML stream, each document behind a separator."""
    return "".join(f"---\n{document}" for document in documents)


def tidy(document: str) -> str:
    """A rendered object as people read it, without what is empty and says nothing.

    Raises InstallerError where it is no longer the same.
    """
    found = _prune(read_object(document))
    text = dump_block(found, sort_keys=False)
    if read_object(text) != found:
        raise InstallerError(f"not the same when read again: {text[:80]!r}", "this is a bug of ours")
    return text


def _prune(value: Any) -> Any:
    if isinstance(value, list):
        return [_prune(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {key: _prune(item) for key, item in value.items() if item != {} or key not in _OPTIONAL}


def read_object(document: str) -> dict[str, Any]:
    """One rendered object as a reader gets it.

    Raises InstallerError where the templates have made something else of it: a key twice, or no object.
    """
    try:
        read = parse_document(document.encode(), "manifest")
        faults = read.faults
    except InvalidInputError as error:
        read, faults = None, error.faults
    if read is None or faults or not isinstance(read.data, dict) or not read.data.get("kind"):
        raise InstallerError(
            f"a template gave no object: {'; '.join(faults) or document[:80]!r}", "this is a bug of ours"
        )
    return read.data
