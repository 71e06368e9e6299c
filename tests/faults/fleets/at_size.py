"""`hack/faults fleet-scenarios`: each scenario with hundreds of nodes, some with ten thousand."""

from __future__ import annotations

import multiprocessing

from tests.faults import Report
from tests.faults.fleets.scenarios import SCENARIOS, play

_SIZES = (50, 300, 800)
_LARGE = 10_000
_AT_LARGE = ("install, and rest", "bad generation", "mass drift")


def run(report: Report, amount: int) -> None:
    """With fleets of so many nodes at most."""
    trials = [(name, size) for size in _SIZES for name in SCENARIOS]
    trials += [(name, _LARGE) for name in _AT_LARGE]
    trials = [trial for trial in trials if trial[1] <= amount]
    bad: dict[str, list[str]] = {name: [] for name in SCENARIOS}
    left = [name for name, _ in trials]
    with multiprocessing.get_context("spawn").Pool() as pool:
        large_first = sorted(trials, key=lambda trial: -trial[1])
        for name, line in pool.imap_unordered(_play, large_first):
            bad[name] += [line] if line else []
            left.remove(name)
            if name not in left:
                report(f"a fleet: {name}", [each for each, _ in trials].count(name), bad[name])


def _play(trial: tuple[str, int]) -> tuple[str, str]:
    name, size = trial
    wrong = play(SCENARIOS[name], size, size)
    return name, f"{size} nodes: {'; '.join(wrong)}" if wrong else ""
