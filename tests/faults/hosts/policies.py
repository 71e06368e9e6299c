"""R14: containers that were there first, through every policy, an upgrade, removals and installations."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.faults import Report
from tests.faults.hosts.bench import Bench, Tried
from tests.host.command import REAL_POLICY
from tests.host.node import Node
from tests.host.workload import POLICIES, UNSEEN, Workload, but_cpus, start

_NONE = "policy:\n  Active: none\n"
_RESERVED = "  ReservedResources:\n    CPU: 750m\n"
_PODS_OF = 5  # containers

#: By name, with whether they leave everybody's CPUs.
_ALL = {
    **{name: (text, False) for name, text in POLICIES.items()},
    "podpools": (f"policy:\n  Active: podpools\n{_RESERVED}", False),
    "memtier": (f"policy:\n  Active: memtier\n{_RESERVED}", False),
    "none": (_NONE, True),
    "topology-aware without pinning": (f"{REAL_POLICY}  topology-aware:\n    PinCPU: false\n", True),
}


def live(node: Node, workload: Workload, first: str) -> Iterator[str]:
    """From a first installation with a policy over all others to removals. Yields what was tried. Raises
    AssertionError."""
    before, pids = workload.usage, workload.pids

    def expect(free: bool, what: str) -> str:
        usage = workload.usage
        now = (usage, before) if free else (but_cpus(usage), but_cpus(before))
        assert now[0] == now[1], what
        assert workload.pids == pids, what
        return what

    for name in (first, *(name for name in _ALL if name != first), first):
        text, free = _ALL[name]
        node.fallback(text)
        node.run("install")
        assert node.run("install").out == "nothing to do\n"
        # A policy that pins nobody gives nothing back that another has pinned; none does.
        yield expect(free and name == "none", f"{first} first, then {name}")
    node.upgrade(version="v0.9.4")
    node.run("install")
    yield expect(False, f"{first}: an upgrade")
    for again in ("", " again"):
        node.run("remove")
        yield expect(True, f"{first}: removed{again}")
        node.run("install")
        yield expect(False, f"{first}: installed{again}")
    node.run("remove")
    yield expect(True, f"{first}: removed at last")


def run(report: Report, amount: int) -> None:
    """A life for each policy to begin with, `amount` containers in each."""
    for first in [name for name, (_, free) in _ALL.items() if not free]:
        with tempfile.TemporaryDirectory(prefix="policies-") as scratch, Bench(Path(scratch)) as bench:
            tried = Tried(skipped=[UNSEEN] if UNSEEN else [])
            if not UNSEEN:
                bench.attempt(first, _lived(first, amount, tried), tried)
                tried.count -= 1
        report(f"policies: {first} first, {amount} containers", tried.count, tried.bad, tried.skipped)


def _lived(first: str, amount: int, tried: Tried) -> Callable[[Node], str]:
    def life(node: Node) -> str:
        workload = start(node, pods=-(-amount // _PODS_OF), each=_PODS_OF)
        for _what in live(node, workload, first):
            tried.count += 1
        node.expect_untraced()
        return first

    return life
