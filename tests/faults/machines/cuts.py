"""R7, R12: the power of a machine is cut at random instants of a run, and the same machine boots again."""

from __future__ import annotations

import random

from tests.machine.machine import MachineError
from tests.machine.node import NEW, OLD, MachineNode, difference

SEED = 20
#: At most so many lines are said by a run that changes something.
LINES = 30


class Cuts:
    """Installs, changes and removes, again and again; each time the power goes somewhere in the middle."""

    def __init__(self, node: MachineNode, amount: int) -> None:
        self._node = node
        self._before = node.manifest()
        self.bad: list[str] = []
        for number in range(amount):
            try:
                self._try(number, random.Random(f"{SEED}-{number}"))
            except (AssertionError, MachineError) as error:
                self.bad.append(f"cut {number}: {type(error).__name__}: {error}")
                node.machine.cut()
                node.machine.boot()
                node.run("remove")

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
