"""R7: kill -9 of the installer, before and after each of its effects and at random instants.

The effects are counted while a run makes them, so a new one is tried by itself. After each the next run has
to converge, with no forgotten and at most one needless restart, and to leave nothing of the first.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import subprocess
from dataclasses import dataclass
from functools import partial

from installer.model.names import Mode
from tests.faults import Report
from tests.faults.hosts.abreast import share_on_bench, share_out, try_abreast
from tests.faults.hosts.bench import Bench, Tried
from tests.faults.hosts.command import start_command, until_due
from tests.faults.hosts.cutoff import try_out
from tests.faults.hosts.ways import WAYS, WAYS_OF_CONTAINERS, Way
from tests.host.mortal import DieSoon, Instant, converge
from tests.host.node import Node
from tests.host.workload import UNSEEN
from tests.lib.throwaway.real import NeedsStandInError

_MORE_THAN_ANY_PLAN_HAS = 2000
_SHARE = 50  # random instants that one bench tries
_ENOUGH = 10  # that did not hold: what ends the way when all is well may never come
STEPS = 16  # most have more than that
SOON = 0.2  # seconds, in which most steps end
_SLOWLY = 180.0  # seconds, in which any command ends


@dataclass(frozen=True, slots=True)
class Killed:
    """A trial: the way's run is killed at the instant, of the real command line when `soon` is."""

    way: Way
    number: int
    instant: Instant | None = None
    soon: DieSoon | None = None
    as_command: bool = False

    def __str__(self) -> str:
        who = "the command line " if self.as_command else ""
        return f"{self.way.name}: {who}killed {self.instant or self.soon}"

    def __call__(self, node: Node) -> str:
        return try_out(node, self.way, self.number, self._cut)

    def _cut(self, node: Node) -> str:
        if self.instant:
            return converge(node, self.way.mode, self.instant)
        assert self.soon
        if self.as_command:
            return kill_command(node, self.way.mode, self.soon)
        return converge(node, self.way.mode, listen=self.soon)


def at_each_instant(bench: Bench, way: Way, stride: int = 1, first: int = 0) -> Tried:
    """Cuts the way off before and after each of its effects (or every `stride`-th instant), until it ends."""
    tried = Tried()
    node: Node | None = None
    for number in itertools.count(first, stride):
        assert number < _MORE_THAN_ANY_PLAN_HAS, f"{way.name} does not end"
        if bench.node is not node:
            node = bench.node
            way.lay_inputs(node)
        trial = Killed(way, number, Instant(number // 2 + 1, bool(number % 2), way.since))
        if bench.attempt(str(trial), trial, tried) not in ("killed", "") or len(tried.bad) == _ENOUGH:
            break
    bench.finish(tried)
    return tried


def at_random(bench: Bench, amount: int, seed: int) -> Tried:
    """Cuts ways off at random instants, a quarter of them as the real command line."""
    tried = Tried()
    for number in range(amount):
        chance = random.Random(f"{seed}-{number}")
        way = chance.choice(WAYS)
        soon = DieSoon(chance.randrange(STEPS), chance.uniform(0, SOON), way.since)
        trial = Killed(way, number, soon=soon, as_command=chance.random() < 0.25)
        way.lay_inputs(bench.node)
        try:
            bench.attempt(f"seed {seed}, number {number}: {trial}", trial, tried)
        except NeedsStandInError as error:
            tried.skipped.append(f"{way.name}: {error}")
    bench.finish(tried)
    return tried


def kill_command(node: Node, mode: Mode, soon: DieSoon) -> str:
    """Runs the real command line and kills it then; returns what `converge` would."""
    with start_command(node, mode) as process:
        try:
            said = "".join(until_due(process, soon))
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(soon.seconds)
        finally:
            process.kill()
        said += process.communicate(timeout=_SLOWLY)[0]
        if process.returncode < 0:
            return "killed"
        return {0: "changed", 5: "RolledBackError"}.get(process.returncode, said)


def run(report: Report, amount: int) -> None:
    """Every instant of every way, and `amount` random ones."""
    ways = WAYS if UNSEEN else WAYS + WAYS_OF_CONTAINERS
    every = [share_on_bench(f"killed: {way.name}", partial(at_each_instant, way=way)) for way in ways]
    try_abreast(report, every + share_out("killed at random instants", at_random, amount, _SHARE))
