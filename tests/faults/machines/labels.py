"""SELinux, permissive and enforcing: what we write has the label that policy says, what was there before us
gets its own back, and the kernel denies nothing because of us."""

from __future__ import annotations

import re

from tests.faults import Report
from tests.faults.machines.trial import attempt, impossible
from tests.host.node import DROP_IN, FALLBACK, GUARD, KUBELET_ENVIRONMENT, OURS, PROXY_ENVIRONMENT, STATE
from tests.lib.cache import BuildError
from tests.lib.tree import tree
from tests.machine.node import NEW, MachineNode, difference

#: The kernel is not to leave out any denial, however many there are at a time.
SELINUX = "security=selinux enforcing={} sysctl.kernel.printk_ratelimit=0"
THEIR_LABEL = "system_u:object_r:tmp_t:s0"
OUR_DIRECTORIES = ("/opt/intel", STATE, "/etc/cri-resmgr", "/etc/systemd/system/kubelet.service.d")
#: Everything since the boot, by the kernel and its audit log, including what permissive mode would deny.
DENIED = "journalctl --boot --output=cat | grep 'avc: *denied' || :"
#: What of a denial tells one kind from another: the rest are pids and inodes.
KIND = re.compile(r"(?:\{ [^}]*\}|\b(?:comm|name|path|scontext|tcontext|tclass)=\S+)")


def run(report: Report, amount: int) -> None:
    """`amount` lives of a node in each mode."""
    if impossible(report):
        return
    try:
        tree(selinux=True)
    except BuildError as error:
        report(f"skipped: SELinux: its packages cannot be had: {str(error).strip().splitlines()[-1]}", 0, [])
        return
    for enforcing, mode in enumerate(("permissive", "enforcing")):
        options = SELINUX.format(enforcing)
        bad = [line for _ in range(amount) for line in attempt(try_labels, options, selinux=True)]
        report(f"SELinux {mode}: labels, denials, removal", amount, bad)


def try_labels(node: MachineNode) -> None:
    """A life of a node: install, drift, upgrade, power cut, removal; raises AssertionError."""
    machine = node.machine
    enforcing = machine.run("cat", "/sys/fs/selinux/enforce").out
    assert f"enforcing={enforcing} " in machine.options
    machine.run("sh", "-c", f"echo theirs > {PROXY_ENVIRONMENT}; chcon {THEIR_LABEL} {PROXY_ENVIRONMENT}")
    before = node.manifest()
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "restart", "kubelet")
    node.wait_healthy()
    known = denials(node)

    node.run("install")
    expect_labels(node, known)
    machine.run("rm", GUARD, FALLBACK, DROP_IN)
    node.run("install")
    expect_labels(node, known)
    node.payload = NEW
    node.run("install")
    expect_labels(node, known)
    machine.cut()
    machine.boot()
    node.wait_healthy()
    expect_labels(node, known)
    node.run("remove")
    left = difference(before, node.manifest())
    assert not left, "\n".join(left)
    expect_none_denied(node, known)


def expect_labels(node: MachineNode, known: set[str]) -> None:
    """The node is good, all that is ours has the label of the host's own policy, and nothing is denied but
    what is `known` of a machine without us."""
    node.expect_good()
    wrong = node.machine.run("restorecon", "-nvr", *OURS, *OUR_DIRECTORIES).out
    assert not wrong, f"not as policy says:\n{wrong}"
    labels = node.machine.run("stat", "--format=%C", GUARD, KUBELET_ENVIRONMENT, DROP_IN).out.split()
    assert [label.split(":")[2] for label in labels] == ["bin_t", "etc_t", "systemd_unit_t"], labels
    expect_none_denied(node, known)


def denials(node: MachineNode) -> set[str]:
    """Each kind of denial since the boot."""
    found = node.machine.run("sh", "-c", DENIED).out
    return {" ".join(KIND.findall(line)) for line in found.splitlines()}


def expect_none_denied(node: MachineNode, known: set[str]) -> None:
    """None but those of a machine without us."""
    new = sorted(denials(node) - known)
    assert not new, "denied:\n" + "\n".join(new)
