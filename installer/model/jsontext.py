"""JSON whose every fault is a ValueError, and sha256 without OpenSSL."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType, UnionType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

_T = TypeVar("_T")
_MANY = 2**31  # Kubernetes counts in 32 bits; a number of four thousand digits is not a count
_type_hints = cache(get_type_hints)  # a type's hints are strings, which cost a compilation each


def parse_json(text: str | bytes) -> Any:
    """Raises ValueError, also for text that nests too deep for Python."""
    import json  # late: most runs read none

    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None


def parse_object(text: str | bytes) -> Mapping[str, Any]:
    """Return the object that the text is, empty for any other text."""
    try:
        return mapping_at(parse_json(text))
    except ValueError:
        return {}


def mapping_at(given: object, *path: str) -> Mapping[str, Any]:
    """Return the object at this path of parsed JSON, empty if there is none."""
    found: Any = given
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def text_at(given: object, *path: str) -> str:
    """Return the text at this path of parsed JSON, empty if there is none."""
    found = mapping_at(given, *path[:-1]).get(path[-1])
    return found if isinstance(found, str) else ""


def number_at(given: object, *path: str) -> int:
    """Return the whole number at this path of parsed JSON, 0 if there is none."""
    found = mapping_at(given, *path[:-1]).get(path[-1])
    return max(-_MANY, min(_MANY, found)) if isinstance(found, int) else 0


def items_at(given: object, *path: str) -> Iterator[Mapping[str, Any]]:
    """Yield the objects of the list at this path of parsed JSON; none if there is no list."""
    items = mapping_at(given, *path[:-1]).get(path[-1])
    yield from (item for item in items if isinstance(item, Mapping)) if isinstance(items, list) else ()


def to_json(value: Any) -> str:
    """Write JSON on one line; a dataclass becomes an object of its fields. Raises TypeError for other
    types."""
    import json

    return json.dumps(value, default=_fields_of)


def _fields_of(value: Any) -> dict[str, Any]:
    """Without the deep copies that `dataclasses.asdict` makes."""
    return {each.name: getattr(value, each.name) for each in fields(value)}


def from_json(kind: type[_T], text: str | bytes) -> _T:
    """Read a dataclass that `to_json` has written, ignoring unknown fields. Raises ValueError."""
    found: _T = _decode(kind, parse_json(text))
    return found


def _decode(kind: Any, value: Any) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in (Any, object):
        return value
    if origin is UnionType:  # with None
        return None if value is None else _decode(arguments[0], value)
    if isinstance(kind, type) and is_dataclass(kind):
        known = _type_hints(kind)
        try:
            return kind(
                **{name: _decode(known[name], given) for name, given in value.items() if name in known}
            )
        except (TypeError, AttributeError) as error:
            raise ValueError(f"not a {kind}: {error}") from None
    if origin is tuple and isinstance(value, list):
        kinds = arguments[:1] * len(value) if arguments[-1] is ... else arguments
        return tuple(_decode(kind_of_item, item) for kind_of_item, item in zip(kinds, value, strict=True))
    if origin is Mapping and isinstance(value, dict):
        return {name: _decode(arguments[1], item) for name, item in value.items()}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    if kind is float and type(value) in (int, float):
        if not abs(value) <= sys.float_info.max:
            raise ValueError(f"{value} is not a finite number")
        return float(value)
    if type(value) is not kind:
        raise ValueError(f"{value!r} is not of type {kind}")
    return value


def to_camel(value: Any) -> Any:
    """For machines: a dataclass becomes a mapping with camelCase keys, an enum member its value."""
    if is_dataclass(value):
        return {camel(each.name): to_camel(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_camel(each) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_camel(each) for each in value]
    return value.value if isinstance(value, Enum) else value


def camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


# The sha256 of small contents, without OpenSSL.
#
# hashlib loads OpenSSL, which costs 3.4 MB of memory: more than the daemon's own code. Python also has a
# built-in sha256, which the module random uses. It is nine times slower (0.6 s for 40 MB), so large files are
# hashed with hashlib.

_OWN_HASHES = (("_md5",), ("_sha1",), ("_sha2", "_sha256"), ("_sha2", "_sha512"), ("_sha3",), ("_blake2",))


def spare_openssl() -> None:
    """Let hashlib use Python's own hashes from now on. It keeps OpenSSL where Python is built without one of
    them (`--with-builtin-hashlib-hashes`, as Fedora's and RHEL's with BLAKE2 alone)."""
    if all(any(find_spec(name) for name in names) for names in _OWN_HASHES):
        sys.modules["_hashlib"] = cast(ModuleType, None)  # to import it fails (importlib, "The module cache")


def sha256_hex(content: bytes) -> str:
    """The digest as 64 hexadecimal digits."""
    digest: str = _SHA256(content).hexdigest()
    return digest


def _find_sha256() -> Callable[[bytes], Any]:
    for name in ("_sha2", "_sha256"):  # CPython 3.12 and later; up to 3.11
        try:
            found: Callable[[bytes], Any] = import_module(name).sha256
            return found
        except ImportError:
            continue
    import hashlib  # any other Python

    return hashlib.sha256


_SHA256 = _find_sha256()
