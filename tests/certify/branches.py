"""Which branches of the code under certificate were reached, by coverage.py."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Self

import coverage

Ways = Mapping[str, Collection[tuple[int, int]]]  # by file, from line to line


class Branches:
    """While it is entered, it notes the branches of these modules; nothing if there are none."""

    def __init__(self, modules: Iterable[ModuleType]) -> None:
        self._files = [str(module.__file__) for module in modules]
        self._coverage = coverage.Coverage(
            data_file=None, config_file=False, branch=True, include=self._files, messages=False
        )

    def __enter__(self) -> Self:
        if self._files:
            self._coverage.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _where: TracebackType | None
    ) -> None:
        if self._files:
            self._coverage.stop()

    def ways(self) -> Ways:
        """What was noted so far, for the process that adds it up."""
        data = self._coverage.get_data()
        return {file: data.arcs(file) or [] for file in data.measured_files()} if self._files else {}

    def add(self, ways: Ways) -> None:
        """What another process has noted."""
        self._coverage.get_data().add_arcs(ways)

    def figures(self) -> tuple[int, int]:
        """How many branches were reached, and how many there are."""
        found = [each["summary"] for each in self._report().values()]
        return sum(each["covered_branches"] for each in found), sum(each["num_branches"] for each in found)

    def missed(self) -> Iterator[str]:
        """Each branch that was not taken, and each function that was not called, as texts that stay the same
        when other lines change."""
        for name, says in sorted(self._report().items()):
            path = Path(name)
            lines = path.read_text().splitlines()
            for function, part in says["functions"].items():
                if not function:  # the module's own lines, which are run when it is imported
                    continue
                where = f"{path.stem}.{function}"
                if not part["executed_lines"]:
                    if part["missing_lines"]:  # else it has nothing but a docstring
                        yield f"{where}: not called"
                    continue
                yield from (f"{where}: {each}" for each in _branches(part, lines))

    def _report(self) -> dict[str, Any]:
        if not self._files:
            return {}
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            self._coverage.json_report(
                morfs=self._files, outfile=file.name
            )  # also those that nothing has run
            found: dict[str, Any] = json.load(file)["files"]
        return found


def _branches(part: dict[str, Any], lines: list[str]) -> Iterator[str]:
    """Of one function. A line that no branch leads to is named by itself: a handler of an error."""
    targets = {to for _, to in part["missing_branches"]}
    for start, to in part["missing_branches"]:
        if start not in part["missing_lines"]:
            yield f"{lines[start - 1].strip()} -> {lines[to - 1].strip() if to > 0 else 'end'}"
    before = 0
    for line in part["missing_lines"]:
        if line not in targets and before not in part["missing_lines"]:
            yield lines[line - 1].strip()
        before = line
