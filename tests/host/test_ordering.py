"""What our units add to the order of a boot: nothing that closes a cycle. systemd breaks a cycle by leaving
out one of its units, which may be the runtime or kubelet."""

from pathlib import Path

import pytest

from tests.host.node import PROXY, Node
from tests.lib.rules import rule
from tests.lib.throwaway.furnish import write
from tests.lib.throwaway.host import ThrowawayHost
from tests.lib.throwaway.kubelet import UNIT, wait_healthy

UNITS = "/etc/systemd/system"
OLD_LINK = f"{UNITS}/multi-user.target.wants/{PROXY}"

#: As cloud-final.service: it comes after multi-user.target, which pulls it in.
LATE = {
    f"{UNITS}/late.service": "[Unit]\nAfter=multi-user.target\nDefaultDependencies=no\n"
    "[Service]\nType=oneshot\nExecStart=/bin/true\nRemainAfterExit=yes\n",
    f"{UNITS}/late.target": "[Unit]\nRequires=multi-user.target\nAfter=multi-user.target\n"
    f"Wants=late.service containerd.service {UNIT}\n",
    f"{UNITS}/containerd.service.d/late.conf": "[Unit]\nAfter=late.service\n",
}


def lay(node: Node, texts: dict[str, str]) -> None:
    for path, text in texts.items():
        write(node.path(path), text)
    node.host.systemctl("daemon-reload")


def runtime_is_not_before_kubelet(node: Node) -> None:
    runtime = node.path("/usr/lib/systemd/system/containerd.service")
    runtime.write_text(runtime.read_text().replace(f"Before={UNIT}\n", ""))


@pytest.fixture
def node(host: ThrowawayHost, tmp_path: Path) -> Node:
    return Node(host, tmp_path)


@pytest.fixture
def late(node: Node) -> Node:
    """A node whose runtime and kubelet start when multi-user.target has been reached."""
    for name in ("containerd.service", UNIT):
        node.path(f"{UNITS}/multi-user.target.wants/{name}").unlink()
    node.path(f"{UNITS}/default.target").unlink(missing_ok=True)
    node.path(f"{UNITS}/default.target").symlink_to(f"{UNITS}/late.target")
    lay(node, LATE)
    return node


def cycles(node: Node) -> list[str]:
    """What systemd itself says of the next boot, and has said of this one."""
    said = node.host.run("systemd-analyze", "verify", "default.target", check=False).stderr
    node.host.sync_journal()
    said += node.host.run("journalctl", "--no-pager", "--output=cat", "--boot", "_PID=1").stdout
    return [line for line in said.splitlines() if "ordering cycle" in line]


@rule("R12")
def test_a_runtime_that_starts_behind_multi_user_target_starts_at_each_boot(late: Node) -> None:
    assert not cycles(late)
    late.run("install")
    for _boot in range(3):
        late.host.reboot(wait=False)
        wait_healthy(late.host, 120)
        assert late.host.systemctl("is-active", "containerd", PROXY) == "active\nactive"
        assert not cycles(late)
    assert late.on_relay()
    late.expect_good()


@rule("R3", "R6", "R12")
def test_the_link_of_an_earlier_version_goes_and_nothing_restarts(late: Node) -> None:
    late.run("install")
    late.path(OLD_LINK).symlink_to(f"{UNITS}/{PROXY}")
    late.host.systemctl("daemon-reload")
    assert cycles(late), "what this is about"
    planned = late.run("plan", code=3)
    assert "multi-user" in planned.out or "starts it" in planned.out
    with late.restarts(kubelet=False, proxy=False):
        late.run("install")
    late.host.reboot(wait=False)
    wait_healthy(late.host, 120)
    assert not cycles(late)
    late.expect_good()
    late.path(OLD_LINK).symlink_to(f"{UNITS}/{PROXY}")
    late.run("remove")
    assert not late.path(OLD_LINK).is_symlink()


@rule("R12")
@pytest.mark.parametrize(
    ("texts", "named"),
    [
        pytest.param(
            {f"{UNITS}/containerd.service.d/x.conf": f"[Unit]\nAfter={UNIT}\n"}, "containerd", id="runtime"
        ),
        pytest.param(
            {f"{UNITS}/{UNIT}.d/x.conf": "[Unit]\nBefore=between.target\n"}
            | {f"{UNITS}/between.target": "[Unit]\nDefaultDependencies=no\n"}
            | {
                f"{UNITS}/containerd.service.d/x.conf": "[Unit]\nAfter=between.target\nWants=between.target\n"
            },
            "between.target",
            id="through a target",
        ),
        pytest.param(
            {f"{UNITS}/{UNIT}.d/x.conf": "[Unit]\nDefaultDependencies=no\nBefore=basic.target\n"},
            "basic.target",
            id="kubelet before everything",
        ),
    ],
)
def test_a_host_on_which_our_order_would_be_a_cycle_is_refused_and_left_alone(
    node: Node, texts: dict[str, str], named: str
) -> None:
    runtime_is_not_before_kubelet(node)
    lay(node, texts)
    assert not cycles(node), "without us all is well"
    with node.restarts(kubelet=False, proxy=False):
        refused = node.run("install", code=4)
    assert "ordering cycle" in refused.err
    assert named in refused.err
    assert not node.path(f"{UNITS}/{PROXY}").exists()


def test_an_order_that_no_boot_has_to_keep_is_no_cycle(node: Node) -> None:
    """A unit that nothing starts, or that does not exist, orders nothing."""
    runtime_is_not_before_kubelet(node)
    lay(
        node,
        {
            f"{UNITS}/never.service": f"[Unit]\nAfter={UNIT}\n[Service]\nExecStart=/bin/true\n",
            f"{UNITS}/{UNIT}.d/x.conf": "[Unit]\nBefore=absent.target\n",
            f"{UNITS}/containerd.service.d/x.conf": "[Unit]\nAfter=never.service absent.target\n"
            "Wants=absent.target\n",
        },
    )
    node.run("install")
    node.host.reboot(wait=False)
    wait_healthy(node.host, 120)
    assert not cycles(node)
    node.expect_good()


@rule("R12")
def test_a_boot_in_which_the_runtime_waits_for_kubelets_start_does_not_hang_for_ever(node: Node) -> None:
    """systemd knows no order between the two, and no cycle: a script starts kubelet."""
    runtime_is_not_before_kubelet(node)
    lay(
        node,
        {
            f"{UNITS}/script.service": "[Unit]\nBefore=containerd.service\n[Service]\nType=oneshot\n"
            f"ExecStart=/bin/systemctl start {UNIT}\n[Install]\nWantedBy=multi-user.target\n"
        },
    )
    node.host.systemctl("enable", "script.service")
    node.run("install")
    assert node.host.show(PROXY, "JobTimeoutUSec") == "5min"
    lay(node, {f"{UNITS}/{PROXY}.d/sooner.conf": "[Unit]\nJobTimeoutSec=5\n"})
    node.host.reboot(wait=False)
    wait_healthy(node.host, 120)
    node.run("install")
    node.expect_good()
