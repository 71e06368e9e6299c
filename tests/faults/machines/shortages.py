"""What a machine may lack: space on its disk, space in /run, a CPU."""

from __future__ import annotations

from tests.faults import Report
from tests.faults.machines.trial import attempt_each
from tests.host.node import PROXY
from tests.lib.throwaway.standins.repinning import SHARED
from tests.machine.node import NEW, OLD, REAL_CONFIGS, MachineNode

SPARE_MIB = 4  # of a disk that is full
FILL = {
    "/": f"left=$(df --output=avail -m / | tail -1); fallocate -l $((left - {SPARE_MIB}))M /filler; "
    "dd if=/dev/zero of=/filler2 bs=64k 2>/dev/null || :",
    "/run": "dd if=/dev/zero of=/run/filler bs=64k 2>/dev/null || :",
}
FREE = ("rm", "-f", "/filler", "/filler2", "/run/filler")
CPU = "/sys/devices/system/cpu/cpu1/online"
CONTAINERS = (2, 3)  # pods, in each


def run(report: Report, amount: int) -> None:
    """Each on `amount` machines."""
    trials = (
        ("the disk is full", try_full_disk),
        ("/run is full", try_full_run),
        ("a CPU is away", try_offline_cpu),
    )
    attempt_each(report, amount, trials)


def try_full(node: MachineNode, place: str) -> None:
    """An install and an upgrade are refused in words, and kubelet is well, on the endpoint that it had; with
    space again they converge."""
    for payload in (OLD, NEW):
        was_on_relay = node.on_relay()
        node.machine.run("sh", "-c", FILL[place])
        node.payload = payload
        ended = node.machine.run(*node.words("install"), check=False)
        assert ended.code in (4, 5), f"exit code {ended.code}\n{ended.out}{ended.err}"
        assert "space" in ended.err, ended.err
        node.wait_healthy()
        assert node.on_relay() is was_on_relay
        node.machine.run(*FREE)
        node.run("install")
        node.expect_good()
    node.run("remove")
    node.wait_healthy()


def try_full_disk(node: MachineNode) -> None:
    try_full(node, "/")


def try_full_run(node: MachineNode) -> None:
    """/run is a file system of its own, in memory."""
    try_full(node, "/run")


def try_offline_cpu(node: MachineNode) -> None:
    """A CPU that goes away and comes back changes nothing for us, and what containers get back is theirs when
    it is back, too."""
    node.run_containers(*CONTAINERS)
    before = node.usage()
    switch(node, "0")
    node.give(REAL_CONFIGS)
    node.run("install")
    node.expect_good()
    switch(node, "1")
    assert node.run("install").out == "nothing to do\n"
    assert {one["cpuset.cpus.effective"] for one in node.usage().values()} == {SHARED}
    switch(node, "0")
    assert node.run("install").out == "nothing to do\n"
    node.machine.run("systemctl", "restart", PROXY)
    node.run("install")  # kubelet has left a proxy that took longer than two seconds to come back
    node.expect_good()
    node.run("remove")
    switch(node, "1")
    assert node.usage() == before


def switch(node: MachineNode, online: str) -> None:
    node.machine.run("sh", "-c", f"echo {online} > {CPU}")
