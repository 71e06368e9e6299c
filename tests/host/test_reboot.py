"""R12: the host stands on its own. No installer runs in any of these boots."""

import time

import pytest

from tests.host.node import BINARY, GUARD, KUBELET_ENVIRONMENT, PROXY, Node
from tests.lib.rules import rule
from tests.lib.throwaway.kubelet import wait_healthy

GUARD_SECONDS = 5
_THEIR_DROP_IN = "/etc/systemd/system/kubelet.service.d/99-theirs.conf"
BOOT_SECONDS = 60  # what a boot may take besides, on a busy machine


@pytest.fixture(scope="module")
def node(booted: Node) -> Node:
    booted.command.set(kubelet={"guardSeconds": GUARD_SECONDS})
    booted.run("install")
    return booted


def boot(node: Node) -> float:
    """Boots until kubelet is healthy; returns how long its start was delayed by us, in seconds."""
    node.host.reboot(wait=False)
    wait_healthy(node.host, GUARD_SECONDS + BOOT_SECONDS)
    stamps = node.host.systemctl(
        "show", "kubelet", "--property=InactiveExitTimestampMonotonic,ActiveEnterTimestampMonotonic"
    )
    times = dict(line.split("=") for line in stamps.splitlines())
    begun, active = (int(times[f"{key}TimestampMonotonic"]) for key in ("InactiveExit", "ActiveEnter"))
    return (active - begun) / 1e6


@rule("R12")
def test_a_good_proxy_is_used_from_the_first_start_on(node: Node) -> None:
    boot(node)
    assert node.on_relay()
    assert node.host.show("kubelet", "NRestarts") == "0"
    assert "relay: ready" in node.host.journal("kubelet")
    node.expect_good()


@rule("R12")
@pytest.mark.matrix("boot with a dead proxy")
@pytest.mark.parametrize("startup", ["exit", "hang", "listen-only"])
def test_a_proxy_that_is_not_ready_in_time_is_gone_without(node: Node, startup: str) -> None:
    node.fault("cri-resmgr", f'{{"startup": "{startup}"}}')
    started = time.monotonic()
    boot(node)
    assert time.monotonic() - started < GUARD_SECONDS + BOOT_SECONDS
    assert not node.on_relay()
    assert "base endpoint: the relay is not ready" in node.host.journal("kubelet")
    node.fault("cri-resmgr", "")


@rule("R12")
@pytest.mark.matrix("boot with a dead proxy")
@pytest.mark.parametrize("path", [BINARY, GUARD, KUBELET_ENVIRONMENT])
def test_a_missing_part_of_ours_does_not_keep_kubelet_from_starting(node: Node, path: str) -> None:
    content, mode = node.path(path).read_bytes(), node.path(path).stat().st_mode
    node.path(path).unlink()
    assert boot(node) < GUARD_SECONDS - 1
    assert not node.on_relay()
    node.path(path).write_bytes(content)
    node.path(path).chmod(mode)


@rule("R12")
@pytest.mark.parametrize("theirs", ["[Service]\nExecStartPre=\n", ""], ids=["drop-in", "no guard"])
def test_a_start_that_nobody_guards_goes_without_a_dead_proxy(node: Node, theirs: str) -> None:
    """Somebody's drop-in, after ours, has emptied the list that the guard is in; or the guard is deleted."""
    node.run("install")
    node.expect_good()
    drop_in, guard = node.path(_THEIR_DROP_IN), node.path(GUARD)
    content, mode = guard.read_bytes(), guard.stat().st_mode
    node.fault("cri-resmgr", '{"startup": "exit"}')
    if theirs:
        drop_in.write_text(theirs)
        node.host.systemctl("daemon-reload")
    else:
        guard.unlink()
    node.host.systemctl("kill", "--signal=KILL", PROXY)
    node.host.systemctl("restart", "kubelet")
    wait_healthy(node.host, GUARD_SECONDS + BOOT_SECONDS)
    assert not node.on_relay()
    node.fault("cri-resmgr", "")
    drop_in.unlink(missing_ok=True)
    node.host.systemctl("daemon-reload")
    guard.write_bytes(content)
    guard.chmod(mode)


def test_the_next_install_takes_the_way_forward_again(node: Node) -> None:
    boot(node)
    node.run("install")
    node.expect_good()


@rule("R7", "R12")
def test_after_power_loss_all_is_as_it_was(node: Node) -> None:
    node.host.kill()
    node.host.boot()
    wait_healthy(node.host, GUARD_SECONDS + BOOT_SECONDS)
    node.expect_good()
    assert node.path("/run/cri-resmgr-installer/kubelet.env.used").exists()
