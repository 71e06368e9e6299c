"""`hack/faults machine`: one machine at a time, for emulation takes all the processor that it gets."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.cache import BuildError
from tests.faults import Report
from tests.faults.machines.containers import EACH, try_containers
from tests.faults.machines.copies import Copies
from tests.faults.machines.cuts import Cuts
from tests.faults.machines.freezer import try_frozen_relay, try_frozen_start
from tests.faults.machines.labels import SELINUX, try_labels
from tests.faults.machines.shortages import try_full_disk, try_full_run, try_offline_cpu
from tests.machine.machine import MachineError
from tests.machine.node import MachineNode, booted
from tests.machine.parts import missing_parts
from tests.tree import tree

COPIES = 7  # of the disk, for each power cut
CONTAINERS = 50  # at most
PLAIN = (
    ("the disk is full", try_full_disk),
    ("/run is full", try_full_run),
    ("a CPU is away", try_offline_cpu),
    ("a proxy frozen with its whole unit while it starts, cgroup v2", try_frozen_start),
    ("a proxy frozen after it had served, cgroup v2", try_frozen_relay),
)
MODES = (("SELinux permissive", 0), ("SELinux enforcing", 1))


def run(report: Report, amount: int) -> None:
    """`amount` power cuts, COPIES times as many copies of its disk, and one of each other thing."""
    missing = missing_parts()
    if missing:
        report(f"skipped: no machine: {', '.join(missing)}", 0, [])
        return
    with _scratch() as scratch, booted(scratch) as node:
        report("power cuts, each with a boot of the same machine", amount, Cuts(node, amount).bad)
    with _scratch() as scratch, booted(scratch) as node:
        copies = Copies(node, scratch, COPIES * amount)
        report("copies of its disk, each with fsck and a boot", copies.tried, copies.bad)
    containers = min(CONTAINERS, max(EACH, EACH * (amount * 2 // EACH)))
    trial = partial(try_containers, amount=containers)
    report(f"{containers} containers with cgroup v2", 1, _attempt(trial))
    for what, attempt in PLAIN:
        report(what, 1, _attempt(attempt))
    if missing_selinux := _missing_selinux():
        report(f"skipped: SELinux: {missing_selinux}", 0, [])
        return
    for what, enforcing in MODES:
        bad = _attempt(try_labels, SELINUX.format(enforcing), selinux=True)
        report(f"{what}: labels, denials, removal", 1, bad)


@contextmanager
def _scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="machine-", dir="/var/tmp") as directory:
        yield Path(directory)


def _attempt(trial: Callable[[MachineNode], None], options: str = "", *, selinux: bool = False) -> list[str]:
    """What did not hold in a trial on a new machine."""
    try:
        with _scratch() as scratch, booted(scratch, options, selinux=selinux) as node:
            trial(node)
    except (AssertionError, MachineError) as error:
        return [f"{type(error).__name__}: {error}"]
    return []


def _missing_selinux() -> str:
    """Why there is no system with SELinux; empty if there is one."""
    try:
        tree(selinux=True)
    except BuildError as error:
        return f"its packages cannot be had: {str(error).strip().splitlines()[-1]}"
    return ""
