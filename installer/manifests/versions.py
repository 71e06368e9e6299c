"""Whether a Kubernetes version fits a constraint such as `>= 1.27, < 1.31`, `~1.29` or `1.2x.x || ^1.31.4`.

The notation is that of image vectors: github.com/Masterminds/semver, which Gardener reads them with. A part
of a version that is missing or `x` stands for every value.
"""

from __future__ import annotations

import re
from math import inf

_Bound = tuple[float, ...]

_LOWEST: _Bound = (0, 0, 0)
_HIGHEST: _Bound = (inf,)
_PLACE = r"(\d{1,9}|[xX*])"
_REST = r"(?:[-+][0-9A-Za-z.+-]+)?"  # a pre-release or a build; Kubernetes versions are compared without it
_VERSION = re.compile(rf"v?{_PLACE}(?:\.{_PLACE})?(?:\.{_PLACE})?{_REST}")
_CONDITION = re.compile(rf"(=|!=|>=|=>|<=|=<|>|<|~>|~|\^)?({_VERSION.pattern})")


def fits(version: str, constraint: str) -> bool:
    """Raises ValueError, with what is wrong, where one of them cannot be read."""
    numbers = _parse(version)
    if len(numbers) != len(_LOWEST):
        raise ValueError(f"not a full version: {version!r}")
    # All are read, also those behind one that decides: a constraint is right or wrong for all versions.
    alternatives = [_fits_all(numbers, conditions) for conditions in constraint.split("||")]
    return any(alternatives)


def _fits_all(numbers: _Bound, conditions: str) -> bool:
    text = re.sub(r"(\S+)\s+-\s+(\S+)", r">=\1 <=\2", conditions)
    text = re.sub(r"([=<>!~^])\s+", r"\1", text)
    fitting = [_fits(numbers, word) for word in re.split(r"[,\s]+", text.strip())]
    return all(fitting)


def _fits(numbers: _Bound, condition: str) -> bool:
    match = _CONDITION.fullmatch(condition)
    if match is None:
        raise ValueError(f"not a condition on a version: {condition!r}")
    operator, given = match[1] or "=", _parse(match[2])
    low, high = (*given, *_LOWEST[len(given) :]), _next(given, len(given))
    match operator:
        case "=":
            return low <= numbers < high
        case "!=":
            return not low <= numbers < high
        case ">":
            return numbers >= high
        case ">=" | "=>":
            return numbers >= low
        case "<":
            return numbers < low
        case "<=" | "=<":
            return numbers < high
        case "~" | "~>":
            return low <= numbers < _next(given, 2)
        case _:  # ^: up to the next change of the first part that is not 0
            first = next((index for index, part in enumerate(given) if part), len(given) - 1)
            return low <= numbers < _next(given, first + 1)


def _parse(version: str) -> _Bound:
    """The parts that are given, without those behind an `x`."""
    match = _VERSION.fullmatch(version.strip())
    if match is None:
        raise ValueError(f"not a version: {version!r}")
    numbers: list[int] = []
    for part in match.groups():
        if part is None or not part.isdecimal():
            break
        numbers.append(int(part))
    return tuple(numbers)


def _next(given: _Bound, places: int) -> _Bound:
    """The first version that differs from `given` in its first `places` parts, and is higher."""
    kept = given[:places]
    return (*kept[:-1], kept[-1] + 1) if kept else _HIGHEST
