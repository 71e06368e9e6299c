"""Which lines of some modules a certificate has not reached. A function is traced until all of it was.

An `if` without an `else` that was always entered looks reached; every other branch has a line of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

Lines = dict[str, set[int]]  # by file


class Reached:
    """What was reached below `directory` between `begin` and `end`."""

    def __init__(self, directory: Path) -> None:
        self._below = f"{directory}/"
        self._left: dict[CodeType, set[int]] = {}
        self.lines: Lines = {}

    def begin(self) -> None:
        sys.settrace(self._call)

    def end(self) -> None:
        sys.settrace(None)

    def _call(self, frame: FrameType, _event: str, _argument: object) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(self._below):
            return None
        left = self._left.get(code)
        if left is None:
            left = self._left[code] = {line for _, _, line in code.co_lines() if line}
        if not left:
            return None
        reached = self.lines.setdefault(code.co_filename, set())
        left.discard(frame.f_lineno)
        reached.add(frame.f_lineno)

        def local(inner: FrameType, _event: str, _argument: object) -> Any:
            reached.add(inner.f_lineno)
            left.discard(inner.f_lineno)
            return local

        return local


def missed(directory: Path, reached: Lines) -> Iterator[tuple[str, list[int], int]]:
    """Of each file: its name, the lines of its functions that were not reached, and how many there are."""
    for path in sorted(directory.glob("*.py")):
        every = set(_lines_of(compile(path.read_text(), str(path), "exec"), within=False))
        left = sorted(every - reached.get(str(path), set()))
        yield path.name, left, len(every)


def _lines_of(code: CodeType, *, within: bool) -> Iterator[int]:
    """Those of functions: a module's own are run when it is imported."""
    if within:
        first = code.co_firstlineno
        yield from (line for _, _, line in code.co_lines() if line and line != first)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            is_class = not constant.co_flags & 0x2  # CO_NEWLOCALS: a class body has none
            yield from _lines_of(constant, within=not is_class)


def ranges(lines: list[int]) -> str:
    """As people write them: `3-5, 9`."""
    found: list[list[int]] = []
    for line in lines:
        if found and line - found[-1][1] <= 1:
            found[-1][1] = line
        else:
            found.append([line, line])
    return ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in found)
