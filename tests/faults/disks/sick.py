"""A disk that fails at any operation: full, read-only from there on, or with an I/O error.

Each plan is carried out on a disk that fails at one operation, for all of them. The run must say what
and what helps, may not blame the version for it, and leaves a kubelet that is well; when the disk is
good again the next run converges, and a removal gives back what was there before us.
"""

from __future__ import annotations

import errno
import io
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from installer.errors import InstallerError, RollbackFailedError, RolledBackError
from installer.host.disk import Kernel
from installer.inputs.load import Consent, Request
from installer.inputs.settings import KubeletSettings, Settings
from installer.model.event import silent
from installer.model.names import Mode
from installer.node.reconcile import reconcile
from tests.faults import Report
from tests.faults.disks.crash import Tree, read_tree
from tests.faults.disks.node import Node
from tests.faults.disks.power import PLANS, Bench, Crash, Inputs, Plan, Recorded

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer


@dataclass(frozen=True, slots=True)
class Sickness:
    """What a disk does from some operation on: the error it gives, whether only where something is to be
    added (or at every change), and whether it goes on so."""

    name: str
    number: int
    only_growth: bool = False
    lasts: bool = True


SICKNESSES = (
    Sickness("full", errno.ENOSPC, only_growth=True),
    Sickness("full for a moment", errno.ENOSPC, only_growth=True, lasts=False),
    Sickness("over quota", errno.EDQUOT, only_growth=True),
    Sickness("read-only", errno.EROFS),
    Sickness("with an I/O error", errno.EIO, lasts=False),
)


class SickKernel(Kernel):
    """Works until operation number `first`; `count` says how many there were. /run is another file system."""

    def __init__(self, sickness: Sickness, first: int) -> None:
        self._sickness = sickness
        self._first = first
        self.count = 0

    def heal(self) -> None:
        self._first = 0

    def check(self, place: str | int, *, grows: bool = False) -> None:
        """Raises OSError if the operation that begins now is one that fails."""
        if self._sickness.only_growth and not grows:
            return
        if "/run/" in os.path.realpath(f"/proc/self/fd/{place}" if isinstance(place, int) else place):
            return
        self.count += 1
        late = self.count >= self._first if self._sickness.lasts else self.count == self._first
        if self._first and late:
            number = self._sickness.number
            raise OSError(number, os.strerror(number), *([place] if isinstance(place, str) else []))

    def create(self, place: str) -> BinaryIO:
        self.check(place, grows=True)
        with super().create(place) as file:
            descriptor = os.dup(file.fileno())
        return io.BufferedWriter(_Checked(descriptor, place, self))

    def chmod(self, place: str | int, mode: int) -> None:
        self.check(place)
        super().chmod(place, mode)

    def rename(self, old: str, new: str) -> None:
        self.check(new)
        super().rename(old, new)

    def symlink(self, target: str, place: str) -> None:
        self.check(place, grows=True)
        super().symlink(target, place)

    def mkdir(self, place: str, mode: int) -> None:
        self.check(place, grows=True)
        super().mkdir(place, mode)

    def unlink(self, place: str, directory: int | None = None) -> None:
        self.check(place)
        super().unlink(place, directory)

    def rmdir(self, place: str, directory: int | None = None) -> None:
        self.check(place)
        super().rmdir(place, directory)

    def sync(self, descriptor: int) -> None:
        # Of a file system that is read-only nothing is left to be synced.
        if self._sickness.number != errno.EROFS:
            self.check(descriptor)


class _Checked(io.FileIO):
    """A file whose writes may fail."""

    def __init__(self, descriptor: int, place: str, kernel: SickKernel) -> None:
        super().__init__(descriptor, "wb")
        self._place = place
        self._kernel = kernel

    def write(self, data: Buffer, /) -> int:
        self._kernel.check(self._place, grows=True)
        return super().write(data) or 0


@dataclass(frozen=True, slots=True)
class Left:
    """How a run on a sick disk ended, and what it left."""

    error: Exception | None
    tree: Tree
    well: bool


class Ward(Bench):
    """Runs plans on sick disks. Everything is below one directory."""

    def count(self, recorded: Recorded, sickness: Sickness) -> int:
        """How many operations of the plan may fail."""
        kernel = SickKernel(sickness, 0)
        self._lay(recorded.start)
        self._try(Node(self._root, kernel), recorded.plan.now, take_over=recorded.plan.earlier)
        return kernel.count

    def judge(self, recorded: Recorded, sickness: Sickness, first: int) -> str:
        """What was wrong with a run whose disk fails from operation `first` on; empty if nothing."""
        self._lay(recorded.start)
        kernel = SickKernel(sickness, 0)
        node = Node(self._root, kernel)
        kernel = node.fake.files._kernel = SickKernel(sickness, first)
        error = self._try(node, recorded.plan.now, take_over=recorded.plan.earlier)
        wrong = self._said(error, recorded, sickness)
        if not wrong and not node.kubelet_healthy():
            wrong = "kubelet is not healthy"
        tree = read_tree(self._root, ("/run",))
        if not wrong:
            kernel.heal()
            wrong = self._goes_on(node, recorded)
        if not wrong:
            wrong = self.try_out(recorded, Crash(0, tree))
        return wrong and f"{wrong} (after {_words(error)})"

    def _said(self, error: Exception | None, recorded: Recorded, sickness: Sickness) -> str:
        if error is None:
            return ""
        if not isinstance(error, InstallerError):
            return f"{type(error).__name__} came out"
        if recorded.plan.fails and isinstance(error, RolledBackError) and error.remembered:
            return ""
        if not isinstance(error, (RolledBackError, RollbackFailedError)):
            return "the exit is neither 5 nor 6"
        if os.strerror(sickness.number) not in error.message:
            return "the message does not name the cause"
        said = error.hint + error.message
        if not error.hint or ("disk" not in said and "file system" not in said):
            return "no word of what helps"
        return "it was blamed" if isinstance(error, RolledBackError) and error.remembered else ""

    def _goes_on(self, node: Node, recorded: Recorded) -> str:
        """The same node without a reboot, with a disk that is good again."""
        ended = self._run(node, recorded.plan.now, recorded.plan)
        if recorded.plan.fails != (ended == "rolled back"):
            return f"the next run, on the same boot: {ended}"
        if not node.kubelet_healthy():
            return "kubelet is not healthy after the next run, on the same boot"
        if not recorded.plan.fails and node.on_relay is not recorded.on_relay:
            return "the next run, on the same boot, leaves kubelet on the wrong endpoint"
        return ""

    def _try(self, node: Node, inputs: Inputs | None, *, take_over: bool) -> Exception | None:
        mode = Mode.REMOVE if inputs is None else Mode.INSTALL
        payload, configs = self._inputs(inputs or Inputs())
        settings = Settings(kubelet=KubeletSettings(settle_seconds=1))
        try:
            request = Request(mode, settings, payload, configs, consent=Consent(take_over=take_over))
            reconcile(request, node.fake.host, silent)
        except Exception as error:  # whatever it is, it is what we look for
            return error
        return None


def _words(error: Exception | None) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0] if error else "a run that ended well"


def find_bad(
    ward: Ward, plan: Plan, sickness: Sickness, first: int = 1, amount: int = 0
) -> Iterator[tuple[int, str]]:
    """(number of the operation, what was wrong or nothing) for each operation of the plan from `first` on,
    or for `amount` of them, evenly."""
    recorded = ward.record(plan)
    count = ward.count(recorded, sickness)
    for number in range(first, count + 1, max(1, count // amount) if amount else 1):
        try:
            yield number, ward.judge(recorded, sickness, number)
        except Exception as error:  # whatever it is, it is what we look for
            yield number, f"{type(error).__name__}: {error}"


def run(report: Report, amount: int) -> None:
    """Every operation of every plan with every sickness; about `amount` of each, if that is less."""
    with tempfile.TemporaryDirectory(prefix="disk-") as directory:
        ward = Ward(Path(directory))
        for plan in PLANS:
            for sickness in SICKNESSES:
                tried = list(find_bad(ward, plan, sickness, amount=amount))
                bad = [f"{plan.name}, {sickness.name} at operation {n}: {why}" for n, why in tried if why]
                report(f"{plan.name} on a disk that is {sickness.name}", len(tried), bad)
