"""The freezer of cgroup v2, which stops whole units: R12 where no installer is alive."""

from __future__ import annotations

from tests.faults import Report
from tests.faults.machines.trial import attempt_each
from tests.host.node import PROXY
from tests.machine.node import HEALTHY, MachineNode

TIMEOUT = 60  # seconds; without a bound of its own the start job would last as long as TimeoutStartSec says
FREEZE = f"echo {{}} > /sys/fs/cgroup/system.slice/{PROXY}/cgroup.freeze"
FAULT = "/etc/standin-cri-resmgr.json"
STARTING = (
    f'until [ "$(systemctl show --value --property=SubState {PROXY})" = start-post ]; do sleep 0.1; done'
)
LEFT = 'until journalctl --unit=kubelet --grep="2 in a row" --quiet; do sleep 0.5; done'


def run(report: Report, amount: int) -> None:
    """Each on `amount` machines."""
    trials = (
        ("a proxy frozen with its whole unit while it starts, cgroup v2", try_frozen_start),
        ("a proxy frozen after it had served, cgroup v2", try_frozen_relay),
    )
    attempt_each(report, amount, trials)


def try_frozen_start(node: MachineNode) -> None:
    """A proxy that is frozen with its whole unit while it starts, the guard's own wait too: kubelet starts on
    its base endpoint, and waits for the bound of the proxy's start job, not for its processes."""
    node.settings = "prompt.yaml"
    node.run("install")
    node.expect_good()
    node.machine.run("sh", "-c", f'echo \'{{"startup": "listen-only"}}\' > {FAULT}')
    node.machine.run("systemctl", "restart", "--no-block", PROXY)
    node.machine.run("timeout", "60", "sh", "-c", STARTING)
    node.machine.run("sh", "-c", FREEZE.format(1))
    began = float(node.machine.run("cat", "/proc/uptime").out.split()[0])
    node.machine.run("systemctl", "restart", "kubelet")
    node.wait_healthy()
    assert not node.on_relay()
    waited = int(node.show("kubelet", "ExecMainStartTimestampMonotonic")) / 1e6 - began
    assert waited < TIMEOUT, f"kubelet has started {waited:.1f} s after it was asked to"
    journal = node.machine.run("journalctl", "--no-pager", f"--unit={PROXY}").out
    assert f"{PROXY}/start timed out" in journal, journal
    _recover(node)


def try_frozen_relay(node: MachineNode) -> None:
    """A proxy that is frozen after it had served: kubelet leaves it by itself."""
    node.settings = "prompt.yaml"
    node.run("install")
    node.machine.run("sh", "-c", FREEZE.format(1))
    node.machine.run("systemctl", "kill", "--signal=KILL", "kubelet")
    ended = node.machine.run("timeout", "240", "sh", "-c", f"{LEFT}; {HEALTHY}", check=False)
    assert ended.code == 0, node.machine.run("journalctl", "--no-pager", "--unit=kubelet").out
    assert not node.on_relay()
    _recover(node)


def _recover(node: MachineNode) -> None:
    node.machine.run("sh", "-c", f"{FREEZE.format(0)} 2>/dev/null; rm -f {FAULT}")
    node.machine.run("systemctl", "restart", "--no-block", PROXY)
    node.run("install")
    node.expect_good()
    node.run("remove")
    node.wait_healthy()
