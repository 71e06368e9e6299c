"""`hack/faults fleet-schedules`: whatever may happen to a fleet, in any order."""

from __future__ import annotations

import multiprocessing
import random

from tests.faults import Report
from tests.faults.fleets.scenarios import play, random_schedule

_ROW = 100


def run(report: Report, amount: int) -> None:
    """So many random schedules, a row for each hundred: all of them take an hour of two cores."""
    with multiprocessing.get_context("spawn").Pool() as pool:
        for first in range(0, amount, _ROW):
            seeds = range(first, min(first + _ROW, amount))
            bad = [line for line in pool.imap_unordered(_play, seeds) if line]
            report(f"a fleet of 20 to 300 nodes: schedules from {first} on", len(seeds), bad)


def _play(seed: int) -> str:
    size = random.Random(seed).randint(20, 300)
    wrong = play(random_schedule, size, seed)
    return f"schedule {seed}, {size} nodes: {'; '.join(wrong)}" if wrong else ""
