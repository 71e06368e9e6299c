"""Faults that are tried by the thousand. `hack/faults` tries them all; `hack/test` as many as fit.

Each module has `run(report, amount)`, which tries its faults and tells `report` of each kind what was
tried, how often, and a line for each case that did not hold.
"""

from collections.abc import Callable, Sequence

Report = Callable[[str, int, Sequence[str]], None]
