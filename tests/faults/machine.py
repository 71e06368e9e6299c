"""R6, R7, R12 on a real machine: its power is cut and it boots again, SELinux is on, its disk is full, a CPU
is away. One machine at a time: emulation takes all the processor that it gets.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.faults import Report
from tests.host.node import DROP_IN, GUARD, KUBELET_ENVIRONMENT, OURS, PROXY, PROXY_ENVIRONMENT, STATE
from tests.machine.machine import MachineError
from tests.machine.node import NEW, OLD, MachineNode, booted, difference
from tests.machine.parts import missing_parts

SEED = 20
#: At most so many lines are said by a run that changes something.
LINES = 30
SELINUX = "security=selinux enforcing={}"
#: What was denied since the boot to something of ours, or at something of ours, by its name.
DENIED = "journalctl --dmesg --output=cat | grep 'avc: *denied' | grep cri-res || :"
THEIR_LABEL = "system_u:object_r:tmp_t:s0"
SPARE_MIB = 4  # of a disk that is full


def run(report: Report, amount: int) -> None:
    """`hack/faults machine`: `amount` power cuts, and one of each other thing."""
    missing = missing_parts()
    if missing:
        report(f"skipped: no machine: {', '.join(missing)}", 0, [])
        return
    with _scratch() as scratch, booted(scratch) as node:
        cuts = Cuts(node, amount)
        report("power cuts, each with a boot of the same machine", amount, cuts.bad)
    for what, options, trial in (
        ("SELinux permissive: labels, denials, removal", SELINUX.format(0), _labels),
        ("SELinux enforcing: labels, denials, removal", SELINUX.format(1), _labels),
        ("the disk is full", "", _full_disk),
        ("a CPU is away", "", _offline_cpu),
    ):
        report(what, 1, _attempt(what, options, trial))


@contextmanager
def _scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="machine-", dir="/var/tmp") as directory:
        yield Path(directory)


def _attempt(what: str, options: str, trial: Callable[[MachineNode], None]) -> list[str]:
    """What did not hold in a trial on a new machine."""
    try:
        with _scratch() as scratch, booted(scratch, options, selinux="selinux" in options) as node:
            trial(node)
    except (AssertionError, MachineError) as error:
        return [f"{what}: {type(error).__name__}: {error}"]
    return []


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


def _labels(node: MachineNode) -> None:
    """What we write has the label that policy says, an original the one that it had; nobody is denied."""
    enforcing = node.machine.run("cat", "/sys/fs/selinux/enforce").out
    assert node.machine.options.endswith(f"enforcing={enforcing}")
    node.machine.run(
        "sh", "-c", f"echo theirs > {PROXY_ENVIRONMENT}; chcon {THEIR_LABEL} {PROXY_ENVIRONMENT}"
    )
    before = node.manifest()
    node.run("install")
    node.expect_good()
    _expect_none_denied(node)
    places = (*OURS, "/opt/intel", STATE, "/etc/cri-resmgr", "/etc/systemd/system/kubelet.service.d")
    wrong = node.machine.run("restorecon", "-nvr", *places).out
    assert not wrong, f"not as policy says:\n{wrong}"
    labels = node.machine.run("stat", "--format=%C", GUARD, KUBELET_ENVIRONMENT, DROP_IN).out.split()
    assert [label.split(":")[2] for label in labels] == ["bin_t", "etc_t", "systemd_unit_t"], labels
    node.machine.cut()
    node.machine.boot()
    node.wait_healthy()
    node.expect_good()
    node.run("remove")
    left = difference(before, node.manifest())
    assert not left, "\n".join(left)
    _expect_none_denied(node)


def _expect_none_denied(node: MachineNode) -> None:
    denied = node.machine.run("sh", "-c", DENIED).out
    assert not denied, f"denied:\n{denied}"


def _full_disk(node: MachineNode) -> None:
    """An install is refused in words, and kubelet is well; with space again it converges."""
    fill = f"left=$(df --output=avail -m / | tail -1); fallocate -l $((left - {SPARE_MIB}))M /filler; "
    fill += "dd if=/dev/zero of=/filler2 bs=64k 2>/dev/null || :"
    node.machine.run("sh", "-c", fill)
    ended = node.machine.run(*node.words("install"), check=False)
    assert ended.code in (4, 5), f"exit code {ended.code}\n{ended.out}{ended.err}"
    assert "space" in ended.err, ended.err
    node.wait_healthy()
    assert not node.on_relay()
    node.machine.run("rm", "-f", "/filler", "/filler2")
    node.run("install")
    node.expect_good()


def _offline_cpu(node: MachineNode) -> None:
    """A CPU that goes away and comes back changes nothing."""
    switch = "/sys/devices/system/cpu/cpu1/online"
    node.machine.run("sh", "-c", f"echo 0 > {switch}")
    node.run("install")
    node.expect_good()
    node.machine.run("sh", "-c", f"echo 1 > {switch}")
    assert node.run("install").out == "nothing to do\n"
    node.machine.run("sh", "-c", f"echo 0 > {switch}")
    node.machine.run("systemctl", "restart", PROXY)
    node.expect_good()
