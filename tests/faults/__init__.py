"""Faults that are tried by the thousand. `hack/faults` tries them all; `hack/test` as many as fit.

Each module has `run(report, amount)`, which tries its faults and tells `report` of each kind what was
tried, how often, and a line for each case that did not hold.
"""

from collections.abc import Sequence
from typing import Protocol


class Report(Protocol):
    """`skipped` has a line for each thing that could not be tried here."""

    def __call__(self, what: str, tried: int, bad: Sequence[str], skipped: Sequence[str] = ()) -> None: ...
