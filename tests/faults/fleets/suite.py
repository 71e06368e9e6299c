"""`hack/faults fleet`: each scenario with hundreds of nodes, some with ten thousand, and random schedules."""

from __future__ import annotations

import multiprocessing
import random

from tests.faults import Report
from tests.faults.fleets.scenarios import SCENARIOS, play, random_schedule

_SIZES = (50, 300, 800)
_LARGE = 10_000
_AT_LARGE = ("install, and rest", "bad generation", "mass drift")


def run(report: Report, amount: int) -> None:
    """So many random schedules, beside each scenario at each size."""
    for name, scenario in SCENARIOS.items():
        sizes = (*_SIZES, *((_LARGE,) if name in _AT_LARGE and amount >= 100 else ()))
        bad = [f"{size} nodes: {each}" for size in sizes for each in play(scenario, size, size)]
        report(f"a fleet: {name}", len(sizes), bad)
    with multiprocessing.get_context("spawn").Pool() as pool:
        wrong = [line for lines in pool.imap_unordered(_schedule, range(amount)) for line in lines]
    report("a fleet: random schedules of 20 to 300 nodes", amount, wrong)


def _schedule(seed: int) -> list[str]:
    size = random.Random(seed).randint(20, 300)
    return [f"schedule {seed}, {size} nodes: {each}" for each in play(random_schedule, size, seed)]
