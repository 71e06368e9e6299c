"""R12, R7: the power goes at a random instant of a run, and the host is booted again from the same disk.

With no installer alive kubelet has to come up, within its time and at its first try, and whatever run comes
afterwards has to converge. What the disk itself loses is tried in power.py: here it keeps everything.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.faults import Report
from tests.faults.hosts.abreast import share_out, try_abreast
from tests.faults.hosts.bench import Bench, Tried
from tests.faults.hosts.cutoff import UP_SECONDS, begin, expect_settled, expect_up
from tests.faults.hosts.killed import SOON, STEPS
from tests.faults.hosts.ways import WAYS, Way
from tests.host.mortal import DieSoon, converge
from tests.host.node import Node

_SHARE = 10  # power cuts that one bench tries
#: Those in which kubelet starts on either endpoint: on which one it cannot, no guard could know.
_WAYS = tuple(way for way in WAYS if way.kubelet_works)


@dataclass(frozen=True, slots=True)
class PowerCut:
    """A trial: run and host die together, and the host is booted `boots` times before the next run."""

    way: Way
    number: int
    soon: DieSoon
    boots: int

    def __str__(self) -> str:
        return f"{self.way.name}: power cut {self.soon}, booted {self.boots} times"

    def __call__(self, node: Node) -> str:
        way = self.way
        way.lay_inputs(node)
        begin(node, way, self.number)
        outcome = converge(node, way.mode, listen=self.soon)
        relay = set()
        for _ in range(self.boots):
            node.host.kill()
            node.host.boot(wait=False)
            relay.add(expect_up(node, UP_SECONDS, crashes=way.fails))
        assert way.fails or len(relay) == 1, "the second boot has ended on another endpoint"
        way.mend(node, self.number)
        ended = converge(node, way.then)
        assert ended in ("changed", "nothing"), f"the next run: {ended}"
        expect_settled(node, way.then)
        return outcome


def at_random(bench: Bench, amount: int, seed: int) -> Tried:
    """Cuts the power at random instants of random ways."""
    tried = Tried()
    for number in range(amount):
        chance = random.Random(f"{seed}-{number}")
        way = chance.choice(_WAYS)
        soon = DieSoon(chance.randrange(STEPS), chance.uniform(0, SOON), way.since)
        trial = PowerCut(way, number, soon, chance.choice((1, 1, 2)))
        bench.attempt(f"seed {seed}, number {number}: {trial}", trial, tried)
    bench.finish(tried)
    return tried


def run(report: Report, amount: int) -> None:
    """`amount` power cuts."""
    try_abreast(report, share_out("power cut at random instants, booted again", at_random, amount, _SHARE))
