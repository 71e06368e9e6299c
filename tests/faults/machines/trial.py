"""What the trials on a machine share. One machine at a time: emulation takes every processor it gets."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.faults import Report
from tests.machine.machine import MachineError
from tests.machine.node import MachineNode, booted
from tests.machine.parts import missing_parts


def impossible(report: Report) -> bool:
    """Whether there can be no machine here; then it says why."""
    missing = missing_parts()
    if missing:
        report(f"skipped: no machine: {', '.join(missing)}", 0, [])
    return bool(missing)


@contextmanager
def machine(options: str = "", *, selinux: bool = False) -> Iterator[MachineNode]:
    """A new one, with a disk of its own. `options` are the kernel's."""
    with (
        tempfile.TemporaryDirectory(prefix="machine-", dir="/var/tmp") as directory,
        booted(Path(directory), options, selinux=selinux) as node,
    ):
        yield node


def attempt(trial: Callable[[MachineNode], None], options: str = "", *, selinux: bool = False) -> list[str]:
    """What did not hold in a trial on a new machine."""
    try:
        with machine(options, selinux=selinux) as node:
            trial(node)
    except (AssertionError, MachineError) as error:
        return [f"{type(error).__name__}: {error}"]
    return []


def attempt_each(
    report: Report, amount: int, trials: Sequence[tuple[str, Callable[[MachineNode], None]]]
) -> None:
    """Each on `amount` new machines."""
    if impossible(report):
        return
    for what, trial in trials:
        report(what, amount, [line for _ in range(amount) for line in attempt(trial)])


class Progress:
    """On stderr, because hundreds of these take hours: a line as each ends."""

    def __init__(self, what: str, amount: int) -> None:
        self._what = what
        self._amount = amount
        self._began = time.monotonic()

    def say(self, number: int, bad: int) -> None:
        seconds = time.monotonic() - self._began
        sys.stderr.write(f"{self._what} {number} of {self._amount}, {bad} bad, after {seconds:.0f} s\n")
        sys.stderr.flush()
