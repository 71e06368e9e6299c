"""R7, R12: what a power loss leaves on the disk of a real kernel, at many instants of one run.

While a machine installs, upgrades or removes, it is stopped now and then and its disk is copied: each copy is
the disk after a power loss at that instant, without what the kernel had not written yet. It is checked with
fsck, booted as a throwaway host, which takes a second instead of a minute, and the next run is tried on it.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.faults import Report
from tests.faults.machines.trial import Progress, impossible, machine
from tests.host.command import RELAY_FLAG, Command
from tests.lib.cache import run as execute
from tests.lib.throwaway.furnish import write
from tests.lib.throwaway.host import HostError, ThrowawayHost
from tests.lib.throwaway.kubelet import UNIT, running_arguments, wait_healthy
from tests.lib.throwaway.snapshot import Entry, difference, units, walk
from tests.machine.machine import MachineError
from tests.machine.node import NEW, OLD, SETTINGS, MachineNode

SEED = 21
#: What one run says, about.
LINES = 20
#: A GiB each.
AT_ONCE = 8
#: fsck(8): clean, or errors that it may correct by itself, such as a journal to be replayed.
SOUND = (0, 1)
UP_SECONDS = 60.0
#: The distribution's are left out, for there are many of them, and what is no disk.
PLACES = ("etc", "home", "opt", "root", "run", "srv", "tmp", "usr/lib/systemd", "usr/local", "var")


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the program during which copies are taken; `payload` is what it installs."""

    verb: str
    payload: str

    def __str__(self) -> str:
        return f"{self.verb} of the {self.payload} payload"


#: In this order, again and again.
RUNS = (Run("install", OLD), Run("install", NEW), Run("remove", NEW))

Manifest = dict[str, Entry]


def run(report: Report, amount: int) -> None:
    """`amount` copies of one machine's disk."""
    if not impossible(report):
        with machine() as node:
            copies = Copies(node, amount)
        report("copies of its disk, each with fsck and a boot", copies.tried, copies.bad)


class Copies:
    """Takes and tries `amount` copies; `tried` counts them."""

    def __init__(self, node: MachineNode, amount: int) -> None:
        self._node = node
        self._scratch = node.machine.parts.disk.parent
        self._progress = Progress("copy", amount)
        self._command: Command | None = None
        self.tried = 0
        self.bad: list[str] = []
        image = self._copy("before")
        with self._booted(image) as host:
            self._before = manifest(host)
        image.unlink()
        for number in range(amount):
            one, left = RUNS[number % len(RUNS)], amount - self.tried
            if left <= 0:
                break
            self._try_run(one, random.Random(f"{SEED}-{number}"), min(AT_ONCE, left))

    # -- copies -------------------------------------------------------------

    def _try_run(self, one: Run, chance: random.Random, amount: int) -> None:
        self._node.payload = one.payload
        images = list(self._take(one, chance, amount))
        with self._node.machine.paused():
            for image in images:
                self.tried += 1
                try:
                    self._try(image, one)
                except (AssertionError, HostError, OSError, subprocess.SubprocessError) as error:
                    self.bad.append(f"{one}, copy {image.stem}: {type(error).__name__}: {error}")
                image.unlink()
                self._progress.say(self.tried, len(self.bad))

    def _take(self, one: Run, chance: random.Random, amount: int) -> Iterator[Path]:
        """Runs the program to its end, and copies the disk so many times meanwhile: each time soon after it
        has said so many lines, or has ended."""
        due = sorted(chance.randrange(LINES) for _ in range(amount))
        said = ""
        for stream, text in self._node.machine.follow(*self._node.words(one.verb)):
            ended = stream == "code"
            said += text
            while due and (ended or said.count("\n") >= due[0]):
                time.sleep(chance.random())
                yield self._copy(f"{self.tried + amount - len(due)}-after-{due.pop(0)}-lines")
            if ended and text != "0":
                raise MachineError(f"{one}, while its disk was copied: {said}")

    def _copy(self, name: str) -> Path:
        image = self._scratch / f"{name}.img"
        with self._node.machine.paused():
            execute("cp", "--sparse=always", self._node.machine.parts.disk, image)
        return image

    # -- what is tried on one -----------------------------------------------

    @contextmanager
    def _booted(self, image: Path) -> Iterator[ThrowawayHost]:
        fsck = subprocess.run(["e2fsck", "-f", "-p", image], capture_output=True, text=True, check=False)
        assert fsck.returncode in SOUND, f"the file system is damaged:\n{fsck.stdout}{fsck.stderr}"
        with ThrowawayHost(boot=False, image=image) as host:
            furnish(host.disk)
            host.boot()
            wait_healthy(host, UP_SECONDS)
            yield host

    def _try(self, image: Path, one: Run) -> None:
        with self._booted(image) as host:
            assert host.show(UNIT, "NRestarts") == "0", "kubelet did not start at its first try"
            command = self._command_for(host, one)
            say(command, one.verb)
            if one.verb == "install":
                assert say(command, "status").splitlines()[-1] == "converged and healthy"
                assert RELAY_FLAG in running_arguments(host)
            assert say(command, one.verb) == "nothing to do\n"
            say(command, "remove")
            wait_healthy(host, UP_SECONDS)
            assert RELAY_FLAG not in running_arguments(host)
            left = difference(self._before, manifest(host))
            assert not left, "\n".join(left)

    def _command_for(self, host: ThrowawayHost, one: Run) -> Command:
        """The program as the machine has it: its settings, its payloads, no configs."""
        scratch = self._scratch / "command"
        execute("rm", "-rf", scratch)
        scratch.mkdir()
        command = Command(host, scratch)
        command.set(kubelet=SETTINGS["kubelet"], proxy=SETTINGS["proxy"])
        command.payload = self._node.machine.parts.kit.with_name("kit") / one.payload
        return command


def say(command: Command, *argv: str) -> str:
    """What the program says; it has to end well."""
    ended = command(*argv)
    assert ended.code == 0, f"{' '.join(argv)}: exit code {ended.code}\n{ended.said}"
    return ended.out


def furnish(root: Path) -> None:
    """Takes from a machine's disk what only the machine has: its other disk, and the tests' port."""
    write(root / "etc/fstab", "")
    os.utime(root / "etc/fstab", (0, 0))  # the same on each copy
    (root / "etc/systemd/system/multi-user.target.wants/machine-agent.service").unlink()


def manifest(host: ThrowawayHost) -> Manifest:
    """All that a removal has to leave as it was."""
    found = units(host.systemctl)
    for place in PLACES:
        found.update(walk(host.root, host.root / place))
    return found
