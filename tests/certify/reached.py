"""Which lines of the code under certificate were reached."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any, Self


class Reached:
    """While it is entered, it notes the lines of these modules. What runs at import does not count."""

    def __init__(self, modules: Iterable[ModuleType]) -> None:
        self._lines: dict[str, set[int]] = {str(module.__file__): set() for module in modules}

    def __enter__(self) -> Self:
        if self._lines:
            sys.settrace(self._call)
        return self

    def __exit__(self, *_error: object) -> None:
        sys.settrace(None)

    def _call(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        found = self._lines.get(frame.f_code.co_filename)
        if found is None:
            return None

        def line(frame: FrameType, _event: str, _argument: Any) -> Any:
            found.add(frame.f_lineno)
            return line

        return line

    def missed(self) -> Iterator[str]:
        """A line for each module: how much of it was reached, and which lines were not."""
        for name, found in self._lines.items():
            path = Path(name)
            text = path.read_text()
            lines = set(_lines_of_functions(compile(text, name, "exec")))
            left = sorted(lines - found)
            reached = f"{len(lines) - len(left)} of {len(lines)} lines"
            yield f"{path.parent.name}/{path.name}: {reached}; not {left}"


def _lines_of_functions(code: CodeType) -> Iterator[int]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            if each.co_flags & 0x2:  # CO_NEWLOCALS: a function, and no class body
                yield from (line for _, _, line in each.co_lines() if line and line != each.co_firstlineno)
            yield from _lines_of_functions(each)
