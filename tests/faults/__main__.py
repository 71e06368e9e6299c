"""`hack/faults`: tries them and prints a table of what was tried and what held."""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
import time
from collections.abc import Sequence

from tests.lib import bootstrap
from tests.lib.throwaway import real
from tests.lib.throwaway.host import NoHostError

#: Its module, how much of it is tried if nobody says, and what that counts.
SUITES = {
    "power": ("disks.power", 0, "disks of each plan that a power loss may leave, 0 for all"),
    "disk": ("disks.sick", 0, "operations of each plan at which the disk fails, 0 for all"),
    "killed": ("hosts.killed", 1_000, "random instants, beside each effect of each way"),
    "signals": ("hosts.signals", 3, "rounds of a signal at each step, and of several runs at once"),
    "reboots": ("hosts.reboots", 50, "power cuts of the host"),
    "policies": ("hosts.policies", 50, "containers that keep their CPU weight through each policy"),
    "machine-selinux": ("machines.labels", 1, "lives of a real machine, permissive and enforcing"),
    "machine-containers": ("machines.containers", 50, "containers of a real machine with cgroup v2"),
    "machine-shortages": ("machines.shortages", 1, "rounds of what a real machine may lack"),
    "machine-freezer": ("machines.freezer", 1, "rounds of units that a real machine has frozen"),
    "machine-cuts": ("machines.cuts", 30, "power cuts of a real machine"),
    "machine-copies": ("machines.copies", 200, "copies of its disk"),
    "misbehave": ("hosts.misbehave", 1, "rounds of what else a system does"),
    "soak": ("hosts.soak", 120, "minutes of drift, failures and load that a daemon goes through"),
    "lives": ("hosts.lives", 100, "random lives of a node"),
    "kubelets": ("hosts.kubelets", 2, "orders in which a node becomes each kubelet of the cases"),
    "takeovers": ("hosts.takeovers", 50, "random lives of nodes that another installer has been at"),
    "hostile": ("inputs.hostile", 10_000, "examples of each kind of input"),
    "swapped": ("disks.swapped", 2_000, "rounds of each operation"),
    "fleet-scenarios": ("fleets.at_size", 10_000, "nodes of the largest fleet to which things happen"),
    "unitfiles": ("inputs.unitfiles", 3_000, "units of kubelet that systemd also reads"),
}
_SHOWN = 5  # cases that did not hold, each with its reason
_ROW = "{:<58} {:>7} {:>7} {:>9}\n"


class Table:
    """Rows as they come; `bad` counts what did not hold."""

    def __init__(self) -> None:
        self.bad = 0
        self._began = time.monotonic()
        self._write(_ROW.format("", "tried", "held", "seconds"))

    def add(self, what: str, tried: int, bad: Sequence[str], skipped: Sequence[str] = ()) -> None:
        """A row, and below it the first cases that did not hold, and what was skipped."""
        now = time.monotonic()
        self._write(_ROW.format(what, tried, tried - len(bad), f"{now - self._began:.0f}"))
        for line in bad[:_SHOWN]:
            self._write(f"    {line}\n")
        for line in dict.fromkeys(skipped):
            self._write(f"    skipped: {line}\n")
        self.bad += len(bad)
        self._began = now

    @staticmethod
    def _write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def named(word: str) -> list[str]:
    """The suites of a name, and those of a group: what stands before their first dash."""
    return [name for name in SUITES if word in (name, name.partition("-")[0])]


def main() -> int:
    """Returns the exit code: 0 if all has held."""
    parser = argparse.ArgumentParser(prog="hack/faults", description=__doc__)
    about = "; ".join(f"{name}: {unit} (default {amount})" for name, (_, amount, unit) in SUITES.items())
    parser.add_argument(
        "names",
        metavar="NAME",
        nargs="*",
        help=f"what is tried, `machine` for all of machine-*; all, if none is named. {about}",
    )
    parser.add_argument("--amount", type=int, help="how much of each is tried")
    real.add_options(parser.add_argument, real.ON_HOSTS)
    bootstrap.add_option(parser.add_argument)
    arguments = parser.parse_args()
    bootstrap.take_option(vars(arguments))
    real.take_arguments(parser, arguments)
    names = [name for word in arguments.names or SUITES for name in named(word)]
    if unknown := [word for word in arguments.names if not named(word)]:
        parser.error(f"no faults of the name {unknown[0]}: there are {', '.join(SUITES)}")
    # As an exit, so that nothing is left behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    table = Table()
    for name in names:
        module, amount, _ = SUITES[name]
        amount = amount if arguments.amount is None else arguments.amount
        importlib.import_module(f"tests.faults.{module}").run(table.add, amount)
    return 1 if table.bad else 0


try:
    sys.exit(main())
except NoHostError as missing:
    sys.exit(f"hack/faults: {missing}")
