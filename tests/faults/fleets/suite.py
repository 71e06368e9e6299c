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
    trials = [(name, size) for size in _SIZES for name in SCENARIOS]
    trials += [(name, _LARGE) for name in _AT_LARGE if amount >= 100]
    with multiprocessing.get_context("spawn").Pool() as pool:
        large_first = sorted(trials, key=lambda trial: -trial[1])
        told = pool.imap_unordered(_scenario, large_first)
        schedules = pool.imap_unordered(_schedule, range(amount))
        bad: dict[str, list[str]] = {name: [] for name in SCENARIOS}
        left = [name for name, _ in trials]
        for name, lines in told:
            bad[name] += lines
            left.remove(name)
            if name not in left:
                report(f"a fleet: {name}", [each for each, _ in trials].count(name), bad[name])
        wrong = [line for lines in schedules for line in lines]
    report("a fleet: random schedules of 20 to 300 nodes", amount, wrong)


def _scenario(trial: tuple[str, int]) -> tuple[str, list[str]]:
    name, size = trial
    return name, [f"{size} nodes: {each}" for each in play(SCENARIOS[name], size, size)]


def _schedule(seed: int) -> list[str]:
    size = random.Random(seed).randint(20, 300)
    return [f"schedule {seed}, {size} nodes: {each}" for each in play(random_schedule, size, seed)]
