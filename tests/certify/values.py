"""Values that a certificate branches on: copied, told apart and renamed, whatever classes they are of.

A state is a graph of the program's own objects. Frozen values are shared between states, all other objects
are copied. Time is no part of a state: `NOW` is the present in each of them, and where time passes, all times
move into the past.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import lru_cache, partial
from hashlib import blake2b
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from installer.model.instant import micro_time, parse_time, plain_time

NOW = 16_750_000.0  # of the monotonic clock. So large that a number near it can only be a time
EPOCH = 1_700_000_000.0  # the same instant, of the epoch
HORIZON = 4_000.0  # seconds. Whatever is longer ago, is so long ago
_NEAR = 200_000.0
_STAMP = re.compile(r"\b20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z")
_NUMBER = re.compile(r"\b(?:16[67]\d{5}|1[67]\d{8})\.\d+")

Text = Callable[[str], str]
Time = Callable[[float, str], float]
_SAME = (int, bool, type(None), FunctionType, BuiltinFunctionType, type)


@lru_cache(None)
def _shape(kind: Any) -> tuple[str, ...] | None:
    """The fields of a frozen dataclass; None for any other class."""
    if is_dataclass(kind) and getattr(kind, "__dataclass_params__").frozen:  # noqa: B009
        return tuple(each.name for each in fields(kind))
    return None


class Copier:
    """Copies a graph. `text` and `time` change its texts and times on the way; `shared` is not copied."""

    def __init__(
        self, text: Text | None = None, time: Time | None = None, shared: tuple[Any, ...] = ()
    ) -> None:
        self._text, self._time = text, time
        self._memo: dict[int, Any] = {id(each): each for each in shared}
        self._plain = text is None and time is None

    def __call__(self, value: Any, name: str = "") -> Any:
        kind: Any = type(value)
        if kind is str:
            return value if self._text is None else self._text(value)
        if kind is float:
            return value if self._time is None else self._time(value, name)
        if kind in _SAME or isinstance(value, Enum):
            return value
        if kind is bytes:
            return value if self._text is None else self._text(value.decode()).encode()
        shape = _shape(kind)
        if shape is not None:
            return value if self._plain else self._frozen(value, kind, shape)
        if kind is tuple or kind is frozenset:
            if self._plain and kind is frozenset:
                return value
            found = [self(each, name) for each in value]
            same = all(new is old for new, old in zip(found, value, strict=True))
            return value if same else kind(found)
        if id(value) in self._memo:
            return self._memo[id(value)]
        return self._object(value, kind, name)

    def _frozen(self, value: Any, kind: type, shape: tuple[str, ...]) -> Any:
        changed = False
        found = {}
        for each in shape:
            old = getattr(value, each)
            found[each] = new = self(old, each)
            changed = changed or new is not old
        if not changed:
            return value
        copy: Any = object.__new__(kind)
        for each, new in found.items():
            object.__setattr__(copy, each, new)
        return copy

    def _object(self, value: Any, kind: type, name: str) -> Any:
        if kind is list:
            return [self(each, name) for each in value]
        if kind is dict:
            return {self(key): self(each, name or str(key)) for key, each in value.items()}
        if kind is set:
            return {self(each, name) for each in value}
        if kind is MethodType:
            return MethodType(value.__func__, self(value.__self__))
        if kind is partial:
            return partial(self(value.func), *(self(each) for each in value.args))
        copy: Any = object.__new__(kind)
        self._memo[id(value)] = copy
        for each, old in vars(value).items():
            copy.__dict__[each] = self(old, each)
        return copy


class Describer:
    """Writes a graph as a text: two graphs with the same text behave alike. `left_out` are attributes that
    nothing depends on, by the names of class and attribute; `shared` is the same in all states."""

    def __init__(self, left_out: frozenset[tuple[str, str]], shared: frozenset[type]) -> None:
        self._left_out, self._shared = left_out, shared

    def __call__(self, value: Any) -> str:
        parts: list[str] = []
        self._write(value, parts.append, {})
        return "".join(parts)

    def _write(self, value: Any, put: Callable[[str], None], seen: dict[int, int]) -> None:
        kind: Any = type(value)
        if kind is str or kind is float or kind is int or kind is bool or value is None or kind is bytes:
            put(repr(value))
        elif isinstance(value, Enum):
            put(str(value.value))
        elif kind in self._shared or kind is FunctionType or kind is BuiltinFunctionType:
            put("*")
        elif (shape := _shape(kind)) is not None:
            put(kind.__name__)
            self._items(kind.__name__, ((each, getattr(value, each)) for each in shape), put, seen)
        elif kind is tuple or kind is list:
            put("(")
            for each in value:
                self._write(each, put, seen)
                put(",")
            put(")")
        elif kind is dict:
            items = sorted((repr(key), each) for key, each in value.items())
            self._items("", items, put, seen)
        elif kind is set or kind is frozenset:
            put(repr(sorted(map(repr, value))))
        elif kind is MethodType:
            put(f"{value.__func__.__name__}@")
            self._write(value.__self__, put, seen)
        elif kind is partial:
            self._write((value.func, value.args), put, seen)
        elif id(value) in seen:
            put(f"#{seen[id(value)]}")
        else:
            seen[id(value)] = len(seen)
            put(kind.__name__)
            self._items(kind.__name__, sorted(vars(value).items()), put, seen)

    def _items(self, kind: str, items: Any, put: Callable[[str], None], seen: dict[int, int]) -> None:
        put("{")
        for name, each in items:
            if (kind, name) not in self._left_out:
                put(f"{name}=")
                self._write(each, put, seen)
                put(",")
        put("}")


def digest(text: str) -> bytes:
    """Of 128 bits: two of a billion texts have the same one by a chance of 1 to 10^20."""
    return blake2b(text.encode(), digest_size=16).digest()


def is_time(value: float) -> bool:
    return abs(value - NOW) < _NEAR or abs(value - EPOCH) < _NEAR


def passing(seconds: float, horizons: dict[str, float]) -> tuple[Text, Time]:
    """How texts and times change when so many seconds pass. `horizons`: of fields by their names, after how
    many seconds it does not matter any more how long ago it was."""

    def time(value: float, name: str) -> float:
        if not is_time(value):
            return value
        now = NOW if value < EPOCH / 2 else EPOCH
        return max(value - seconds, now - horizons.get(name, HORIZON))

    def text(value: str) -> str:
        if "Z" in value:
            value = _STAMP.sub(lambda found: move_stamp(found[0], seconds, HORIZON), value)
        if "." in value:
            value = _NUMBER.sub(lambda found: repr(time(float(found[0]), "")), value)
        return value

    return text, time


def move_stamp(stamp: str, seconds: float, horizon: float = _NEAR) -> str:
    """A time of an API object, so many seconds earlier."""
    found = parse_time(stamp)
    if abs(found - EPOCH) >= _NEAR:
        return stamp
    write = micro_time if "." in stamp else plain_time
    seconds = min(seconds, max(0.0, found - EPOCH + horizon))
    return write(found - seconds)
