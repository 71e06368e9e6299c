"""R8: the last word of a run that failed: three lines, each with what a person needs next."""

from __future__ import annotations

import errno
import os
from dataclasses import replace

import pytest

from installer.errors import StepFailedError, failed_on_disk
from installer.model import paths
from installer.model.host import UnitState
from installer.model.plan import Desired
from installer.node.failure_report import RollbackReport, failed_twice, rolled_back
from tests.lib.rules import rule
from tests.lib.snapshots import but, snapshot

CONTAINERD = "unix:///run/containerd/containerd.sock"
DROP_IN = paths.drop_in("/etc/systemd/system", "kubelet.service")
FAILURE = StepFailedError("the relay did not answer")
DOWN = snapshot(
    {},
    UnitState(paths.PROXY_UNIT, "loaded", "active", "running"),
    UnitState("kubelet.service", "loaded", "activating", "auto-restart", result="exit-code"),
)
WELL = but(DOWN, kubelet_healthy=True)
FOREIGN = replace(DOWN, kubelet=replace(DOWN.kubelet, foreign_healthz=True))
AFTER = RollbackReport(CONTAINERD, "kubelet.service", snapshot=DOWN)


def lines(after: RollbackReport, second: Exception = FAILURE) -> list[str]:
    error = failed_twice(FAILURE, second, after, "")
    assert error.exit_code == 6
    found = error.hint.splitlines()
    assert len(found) == 3
    return found


@rule("R8")
@pytest.mark.parametrize(
    ("after", "now", "typed"),
    [
        (
            replace(AFTER, runtime="no socket", drop_ins=(DROP_IN,), left=(DROP_IN,)),
            ("does not answer (no socket)", "kubelet.service is NOT running", f"not as before: {DROP_IN}"),
            f"systemctl restart containerd.service && rm -f {DROP_IN} && systemctl daemon-reload && "
            "systemctl reset-failed kubelet.service && systemctl restart kubelet.service",
        ),
        (
            replace(AFTER, endpoint="unix:///var/run/crio/crio.sock", runtime="no socket", snapshot=WELL),
            ("crio.sock does not answer", "kubelet.service is healthy on its base endpoint"),
            "systemctl restart crio.service",
        ),
        (
            replace(AFTER, snapshot=replace(WELL, hold="why")),
            ("is healthy on its base endpoint and held there", "every file is as before"),
            f"journalctl -u {paths.PROXY_UNIT} -n 50",
        ),
        (
            replace(AFTER, snapshot=FOREIGN),
            ("kubelet.service runs on its base endpoint, and another process answers on its healthz",),
            f"journalctl -u {paths.PROXY_UNIT} -n 50",
        ),
        (
            replace(AFTER, snapshot=None, unreadable="nobody answers"),
            ("nothing else could be read", "nobody answers"),
            "systemctl restart dbus.service",
        ),
    ],
    ids=["no runtime", "crio", "held", "foreign healthz", "no bus"],
)
def test_exit_6_says_what_is_what_to_type_and_how_to_go_on(
    after: RollbackReport, now: tuple[str, ...], typed: str
) -> None:
    first, by_hand, then = lines(after)
    assert all(words in first for words in now)
    assert by_hand == f"by hand, on the node: `{typed}`"
    assert "install --retry" in then
    assert "remove" in then


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO, errno.EPERM, errno.EDQUOT])
def test_a_failure_of_the_disk_is_named_with_what_helps(number: int) -> None:
    failure = failed_on_disk("write /etc/x", OSError(number, os.strerror(number), "/etc/x"))
    assert failure.interfered
    assert os.strerror(number) in failure.message
    error = rolled_back(failure, Desired(), blamed=False, journal="")
    assert failure.hint in error.hint
    assert failure.hint in lines(replace(AFTER, snapshot=WELL), failure)[1]
