"""R7, R8, R9, R12: the system misbehaves: a table of what it does and when, and of what has to come of it.

Each case is played on a real host. The run has to end in the time and with the exit code of the table, with
words that name the cause and what helps, in a state that the table names; when the cause is gone, the next
run converges. The same holds if the host reboots before the cause is gone: kubelet comes up by itself then,
unless it is kubelet that is sick, and a run ends in time whatever has outlived the boot.
"""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from tests.faults import Report
from tests.faults.hosts.abreast import Share, share_on_bench, try_abreast
from tests.faults.hosts.bench import Bench, Tried
from tests.faults.hosts.misfortunes.case import Reboot
from tests.faults.hosts.misfortunes.program import argv, clock_environment, set_clock
from tests.faults.hosts.misfortunes.stage import Stage
from tests.faults.hosts.misfortunes.table import GROUPS
from tests.host.daemon import Daemon, within
from tests.host.node import BINARY, FALLBACK, PROXY, Node
from tests.host.watched import HOLD
from tests.lib.throwaway.containers import cri_version
from tests.lib.throwaway.host import HostError
from tests.lib.throwaway.proxy import RELAY
from tests.lib.throwaway.standins.http2 import CallError

_SOON = 1.5  # seconds after a misfortune, in which most of what it leads to happens
_RESIDENT_SECONDS = 120.0
_AWAY = (30.0, 75.0)  # seconds
_BACK_SECONDS = 15.0  # of a proxy that is not helped: 7 s and 36 s


def try_case(scratch: Path, group: str, number: int, seeds: Iterable[int]) -> Tried:
    """Plays a case of the table on a host of its own, for each seed with every kind of reboot."""
    case, tried = GROUPS[group][number], Tried()
    with Stage(scratch, group) as stage:
        for seed in seeds:
            seconds = random.Random(seed).uniform(0, _SOON)
            for reboot in Reboot:
                what = f"{reboot}, {seconds:.2f} s"
                tried.count += 1
                try:
                    wrong = stage.play(case, reboot, seconds)
                except (AssertionError, HostError, OSError, subprocess.SubprocessError) as error:
                    tried.bad.append(f"{what}: {type(error).__name__}: {error}")
                    return tried  # the host is good for nothing more
                if wrong:
                    tried.bad.append(f"{what}: " + "\n".join(wrong))
    return tried


def watch_while_the_clock_is_set(bench: Bench, amount: int) -> Tried:
    """A daemon whose clock is set back and forth goes on watching: it mends files and the proxy."""
    tried = Tried()
    for _ in range(amount):
        for offset in ("-3600", "+3600"):
            bench.attempt(f"clock set to {offset} s", partial(_watch, offset=offset), tried)
    bench.finish(tried)
    return tried


def _watch(node: Node, offset: str) -> str:
    node.run("install")
    words = [*argv(clock=True), *node.command.globals(), "--output", "json", "run"]
    daemon = Daemon(node, node.scratch / "ready", clock_environment(node), words)
    try:
        daemon.settle()
        set_clock(offset)(node)
        for path in (FALLBACK, BINARY):
            node.path(path).unlink()
            within(_RESIDENT_SECONDS, node.path(path).exists)
            daemon.settle()
        node.host.systemctl("stop", PROXY)
        within(_RESIDENT_SECONDS, lambda: node.host.show(PROXY, "ActiveState") == "active")
        daemon.settle()
        assert not daemon.restarts(), "kubelet was restarted"
        assert daemon.end() == 0, daemon.said()
    finally:
        daemon.kill()
    node.expect_good()
    return "watched"


def watch_while_the_runtime_is_away(bench: Bench, amount: int, seconds: float) -> Tried:
    """kubelet polls, so the proxy tries its runtime ever more seldom; a daemon that watches knows better."""
    tried = Tried()
    for _ in range(amount):
        bench.attempt(f"away for {seconds:g} s", partial(stay_without_runtime, seconds=seconds), tried)
    bench.finish(tried)
    return tried


def stay_without_runtime(node: Node, seconds: float) -> str:
    """Says how long after the runtime's return the relay served."""
    node.run("install")
    daemon = Daemon(node, node.scratch / "ready", {})
    try:
        daemon.settle()
        with node.restarts(kubelet=False, proxy=True):
            node.host.systemctl("stop", "containerd")
            time.sleep(seconds)
            assert not is_served(node)
            assert daemon.phase() == "unwell", daemon.phase()
            node.host.systemctl("start", "containerd")
            took = within(_BACK_SECONDS, lambda: is_served(node))
            daemon.settle()
        assert not node.path(HOLD).exists()
        assert daemon.end() == 0, daemon.said()
    finally:
        daemon.kill()
    node.expect_good()
    return f"served {took:.1f} s after the runtime's return"


def is_served(node: Node) -> bool:
    """Whether the relay answers a CRI call."""
    try:
        return bool(cri_version(node.host, RELAY, timeout=0.5))
    except (OSError, CallError):
        return False


def run(report: Report, amount: int) -> None:
    """Every case of the table with every kind of reboot, `amount` times."""
    seeds = [random.randrange(1 << 32) for _ in range(amount)]
    shares = [
        Share(f"{group}: {case.name}", partial(try_case, group=group, number=number, seeds=seeds))
        for group, cases in GROUPS.items()
        for number, case in enumerate(cases)
    ]
    watch: Callable[[Bench], Tried] = partial(watch_while_the_clock_is_set, amount=amount)
    first = [share_on_bench("run: the clock is set back an hour, and forth", watch)]
    for seconds in _AWAY:
        away = partial(watch_while_the_runtime_is_away, amount=amount, seconds=seconds)
        first.append(share_on_bench(f"run: the runtime is away for {seconds:g} s", away))
    try_abreast(report, [*first, *shares])
