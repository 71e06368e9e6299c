"""R8, R11: SIGTERM and SIGINT while the real command line is at work, and several of them at once.

A signal ends a run between two steps; nothing is undone for it, and the next run goes on. A way back
that has begun is finished first. A second signal of the same kind ends the run at once.
"""

from __future__ import annotations

import random
import signal
import subprocess
import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from installer.model.names import Mode
from tests.faults import Report
from tests.faults.hosts.abreast import share_on_bench, try_abreast
from tests.faults.hosts.bench import Bench, Tried
from tests.faults.hosts.command import start_command, until_due
from tests.faults.hosts.cutoff import begin, expect_no_process, expect_settled
from tests.faults.hosts.killed import SOON
from tests.faults.hosts.ways import INSTALL, REMOVAL, UPGRADE, WAY_BACK, Way
from tests.host.mortal import DieSoon, converge
from tests.host.node import Node

WAYS = (INSTALL, UPGRADE, REMOVAL, WAY_BACK)
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_BOUND = 60.0  # seconds that a step of a stand-in may take on a busy machine
_MORE_THAN_ANY_PLAN_HAS = 100  # steps
_AT_ONCE = 4
_BUSY = 75


@dataclass(frozen=True, slots=True)
class Signalled:
    """A trial: the signal comes at the instant, every third time twice."""

    way: Way
    number: int
    soon: DieSoon
    signal: signal.Signals

    def __str__(self) -> str:
        return f"{self.way.name}: {self.signal.name} {self.soon}"

    def __call__(self, node: Node) -> str:
        begin(node, self.way, self.number)
        outcome = self._run(node)
        expect_no_process(node)
        self.way.mend(node, self.number)
        ended = converge(node, self.way.then)
        assert ended in ("changed", "nothing"), f"the next run: {ended}"
        expect_settled(node, self.way.then)
        return outcome

    def _run(self, node: Node) -> str:
        with start_command(node, self.way.mode) as process:
            try:
                said = "".join(until_due(process, self.soon))
                outcome = "done" if '"converged"' in said else "signalled"  # all its steps are behind it
                # The instant itself: there is nothing to wait for.
                process.wait(self.soon.seconds)
                outcome = "done"
            except subprocess.TimeoutExpired:
                for _ in range(2 if self._twice else 1):
                    process.send_signal(self.signal)
            sent = time.monotonic()
            said += process.communicate(timeout=180.0)[0]
        seconds = time.monotonic() - sent
        self._judge(process.returncode, said)
        assert seconds < _BOUND or self.way.fails, f"it took {seconds:.1f} s to end"
        return outcome

    @property
    def _twice(self) -> bool:
        return self.number % 3 == 2

    def _judge(self, code: int, said: str) -> None:
        if code == 128 + self.signal:
            assert "rollback.started" not in said, f"undone, or a way back not finished: {said}"
        elif code == -self.signal:
            # Before it listens to signals, or when it has nothing more to do.
            outside = "step.done" not in said or '"converged"' in said
            assert self._twice or outside, f"it did not heed the first one: {said}"
        else:
            assert code == (5 if self.way.fails else 0), f"exit code {code}: {said}"


def at_each_step(bench: Bench, way: Way, seed: int, stride: int = 1, first: int = 0) -> Tried:
    """Sends a signal soon after each step of the way (or every `stride`-th), until it ends by itself."""
    tried = Tried()
    for number in range(first, _MORE_THAN_ANY_PLAN_HAS, stride):
        way.lay_inputs(bench.node)
        chance = random.Random(f"{seed}-{number}")
        soon = DieSoon(number, chance.uniform(0, SOON), way.since)
        trial = Signalled(way, number, soon, _SIGNALS[number % 2])
        if bench.attempt(f"seed {seed}: {trial}", trial, tried) not in ("signalled", "") or tried.bad:
            break
    bench.finish(tried)
    return tried


def together(node: Node, modes: tuple[Mode, ...]) -> None:
    """Starts the command line several times at once: one works, and the others say who that is; who comes
    when that one has ended works as well. Raises AssertionError."""
    with ExitStack() as stack:
        processes = [stack.enter_context(start_command(node, mode)) for mode in modes]
        said = {process.pid: process.communicate(timeout=180.0)[0] for process in processes}
    codes = {process.pid: process.returncode for process in processes}
    workers = [pid for pid, code in codes.items() if code == 0]
    assert set(codes.values()) == {0, _BUSY}, f"{codes}: {said}"
    for pid in set(codes) - set(workers):
        named = any(f"pid {worker} " in said[pid] for worker in workers)
        assert named, f"who holds the lock is not said: {said[pid]}"


def several(bench: Bench, amount: int) -> Tried:
    """Several installers at once, with the same wish and with different ones."""
    tried = Tried()
    for number in range(amount):
        modes = [Mode.INSTALL] * _AT_ONCE if number % 2 else [Mode.INSTALL, Mode.REMOVE] * (_AT_ONCE // 2)

        def trial(node: Node, modes: tuple[Mode, ...] = tuple(modes)) -> str:
            REMOVAL.lay_inputs(node)
            begin(node, INSTALL, 0)
            together(node, modes)
            assert converge(node, Mode.INSTALL) in ("changed", "nothing")
            expect_settled(node, Mode.INSTALL)
            return "done"

        bench.attempt(f"{len(modes)} at once: {', '.join(modes)}", trial, tried)
    bench.finish(tried)
    return tried


def run(report: Report, amount: int) -> None:
    """A signal after each step, `amount` times with other instants, and as often several at once."""
    seed = random.randrange(1 << 32)
    shares = [
        share_on_bench(f"SIGTERM or SIGINT: {way.name}", partial(at_each_step, way=way, seed=seed + number))
        for way in WAYS
        for number in range(amount)
    ]
    shares.append(share_on_bench(f"{_AT_ONCE} installers at once", partial(several, amount=amount)))
    try_abreast(report, shares)
