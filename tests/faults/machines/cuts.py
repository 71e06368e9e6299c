"""R7, R12: the power of a machine is cut at random instants of a run, and the same machine boots again."""

from __future__ import annotations

import random

from tests.faults import Report
from tests.faults.machines.trial import Progress, impossible, machine
from tests.machine.machine import MachineError
from tests.machine.node import NEW, OLD, MachineNode, difference

SEED = 20
#: A run that changes something prints at most so many lines.
LINES = 30


def run(report: Report, amount: int) -> None:
    """`amount` power cuts of one machine."""
    if not impossible(report):
        with machine() as node:
            cuts = Cuts(node, amount)
        report("power cuts, each with a boot of the same machine", cuts.tried, cuts.bad)


class Cuts:
    """Installs, changes and removes, again and again; each time the power goes somewhere in the middle.
    `tried` counts: after a cut from which the machine cannot be brought back there is no other."""

    def __init__(self, node: MachineNode, amount: int) -> None:
        self._node = node
        self._before = node.manifest()
        self.tried = 0
        self.bad: list[str] = []
        progress = Progress("power cut", amount)
        for number in range(amount):
            self.tried += 1
            if not self._held(number):
                break
            progress.say(self.tried, len(self.bad))

    def _held(self, number: int) -> bool:
        """Tries one. Whether there is a machine for the next."""
        try:
            self._try(number, random.Random(f"{SEED}-{number}"))
        except (AssertionError, MachineError) as error:
            self.bad.append(f"cut {number}: {type(error).__name__}: {error}")
            try:
                self._node.machine.cut()
                self._node.machine.boot()
                self._node.run("remove")
            except (AssertionError, MachineError) as second:
                self.bad.append(f"after cut {number}: {type(second).__name__}: {second}")
                return False
        return True

    def _try(self, number: int, chance: random.Random) -> None:
        node = self._node
        node.payload = (OLD, NEW)[number % 2]
        command = "remove" if number % 5 == 4 else "install"
        node.cut_after(chance.randrange(LINES), chance.random(), command)
        node.machine.boot()
        node.wait_healthy()
        assert node.show("kubelet", "NRestarts") == "0", "kubelet did not start at its first try"
        node.run(command)
        if command == "install":
            node.expect_good()
            assert node.run("install").out == "nothing to do\n"
        else:
            assert not node.on_relay()
            left = difference(self._before, node.manifest())
            assert not left, "\n".join(left)
