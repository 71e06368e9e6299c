"""When the guard puts kubelet on the relay, and how long it waits before it goes without."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest

from installer.rendering import unit_text
from tests.contract.guard.node import FLAG, LISTENS, NAME, SOON, Node, elapsed, uptime
from tests.lib.rules import rule


@pytest.mark.parametrize(
    ("line", "ready"),
    [
        (LISTENS, True),
        (LISTENS.replace("/var/run", "/run"), True),
        (LISTENS.replace("00010000", "00000000"), False),
        (LISTENS.replace(" /var", " @/var"), False),
        (LISTENS.replace(".sock", ".sock.old"), False),
        (LISTENS.replace("/var/run", "/tmp/run"), False),
        (LISTENS.replace(" /var", " /tmp/x /var"), False),
        (LISTENS.replace("01 4711", "01  4711"), True),
    ],
)
def test_ready_needs_the_listening_relay(node: Node, line: str, ready: bool) -> None:
    node.serve(line=line)
    node.binary.unlink()  # nothing to wait for
    node.guard("compose")
    assert node.on_relay is ready


@pytest.mark.parametrize(
    ("comm", "pid", "ready"),
    [
        ("cri-resmgr", "42", True),
        ("cri-resmgr-agen", "42\n", False),
        ("sh", "42\n", False),
        ("cri-resmgr", "43\n", False),
        ("cri-resmgr", "\n", False),
        ("cri-resmgr", "../42\n", False),
    ],
)
def test_ready_needs_the_live_process_of_the_pid_file(node: Node, comm: str, pid: str, ready: bool) -> None:
    node.serve(comm, pid=pid)
    node.binary.unlink()  # nothing to wait for
    node.guard("compose")
    assert node.on_relay is ready


@rule("R12")
def test_ready_needs_the_socket_file(node: Node) -> None:
    """Where somebody has deleted it, the proxy still listens, and nobody can connect."""
    node.serve()
    node.socket.unlink()
    node.binary.unlink()  # nothing to wait for
    node.guard("compose")
    assert not node.on_relay


@rule("R12")
def test_compose_waits_for_the_relay(dash: Node) -> None:
    later = threading.Timer(0.3, dash.serve)
    later.start()
    done = dash.guard("compose", "--v=2")
    later.join()
    assert "relay: ready, waited " in done.stdout
    assert dash.composed_value() == f"--v=2 {FLAG}"


@rule("R12")
def test_compose_gives_up_in_time_and_takes_the_old_file_away(dash: Node) -> None:
    dash.run.mkdir()
    dash.composed.write_text("ARGS=old\n")
    began = time.monotonic()
    done = dash.guard("compose", "--v=2", CRI_RESMGR_GUARD_SECONDS="1")
    assert 0.9 < elapsed(began) < SOON
    assert done.returncode == 0
    assert "base endpoint: the relay is not ready, waited " in done.stdout
    assert not dash.on_relay


@rule("R12")
def test_compose_has_what_the_start_of_the_proxy_left_of_the_budget(dash: Node) -> None:
    dash.run.mkdir()
    began = time.monotonic()
    (dash.run / "proxy-start").write_text(f"{int(uptime() * 100) - 2950}\nwaited\n")
    dash.guard("compose")
    assert 0.4 < elapsed(began) < SOON


@rule("R12")
def test_compose_does_not_wait_for_a_proxy_that_has_had_its_time(dash: Node) -> None:
    """Kubelet's start has waited for the proxy's start job, which a frozen one uses up and more."""
    dash.run.mkdir()
    (dash.run / "proxy-start").write_text(f"{int(uptime() * 100) - 3100}\n")
    began = time.monotonic()
    assert "base endpoint: the relay is not ready" in dash.guard("compose").stdout
    assert elapsed(began) < SOON


@rule("R12")
def test_compose_takes_less_time_where_the_start_of_the_proxy_was_given_up(dash: Node) -> None:
    """await-relay hangs, and kubelet's start may have waited since before the mark."""
    dash.run.mkdir()
    (dash.run / "proxy-start").write_text(f"{int(uptime() * 100) - 2000}\n")
    began = time.monotonic()
    dash.guard("compose")
    assert elapsed(began) < SOON


@rule("R12")
@pytest.mark.parametrize("start", ["99999999999999"])
def test_compose_has_the_whole_budget_otherwise(dash: Node, start: str) -> None:
    dash.run.mkdir()
    (dash.run / "proxy-start").write_text(start)
    began = time.monotonic()
    dash.guard("compose", CRI_RESMGR_GUARD_SECONDS="1")
    assert elapsed(began) > 0.9


@rule("R12")
@pytest.mark.parametrize("place", ["var/lib/cri-resmgr-installer/hold", "run/cri-resmgr-installer/hold"])
def test_compose_goes_without_at_once_on_hold(node: Node, place: str) -> None:
    """The second place is for a disk that takes no file any more."""
    node.serve()
    (node.root / place).parent.mkdir(parents=True, exist_ok=True)
    (node.root / place).write_text("paused by the operator\nmore\n")
    began = time.monotonic()
    done = node.guard("compose", "--v=2")
    assert elapsed(began) < SOON
    assert done.stdout == f"{NAME}: base endpoint: held: paused by the operator\n"
    assert done.returncode == 0
    assert not node.on_relay


def test_a_hold_without_a_line_end_or_a_reason_holds(node: Node) -> None:
    node.serve()
    for content in ("", "one line without an end"):
        node.hold.write_text(content)
        assert f"held: {content or 'no reason given'}" in node.guard("compose").stdout


@rule("R12")
@pytest.mark.parametrize("name", ["hold", "relay-failures"])
def test_what_is_no_file_delays_no_kubelet(node: Node, name: str) -> None:
    """Who opens a FIFO waits for its other end."""
    node.serve()
    node.run.mkdir(parents=True)
    os.mkfifo(node.run / name)
    began = time.monotonic()
    done = node.guard("compose")
    assert elapsed(began) < SOON
    assert done.returncode == 0
    assert node.on_relay is (name != "hold")


@rule("R12")
def test_compose_does_not_wait_for_what_is_not_there(node: Node) -> None:
    node.binary.unlink()
    began = time.monotonic()
    done = node.guard("compose")
    assert elapsed(began) < SOON
    assert "cri-resmgr is not installed" in done.stdout


@pytest.mark.parametrize("seconds", ["", "-1", "015", "x", "1000000"])
def test_a_deadline_that_is_none_is_said(node: Node, seconds: str) -> None:
    node.serve()
    done = node.guard("compose", CRI_RESMGR_GUARD_SECONDS=seconds)
    assert "using 15" in done.stdout
    assert node.on_relay


@rule("R12")
def test_compose_that_cannot_write_leaves_nothing(node: Node) -> None:
    node.serve()
    node.run.write_text("a file in the way")
    assert node.guard("reset").returncode == 0
    done = node.guard("compose", complains=True)
    assert done.returncode == 1
    assert "base endpoint" in done.stdout


def test_reset_removes_what_was_composed(node: Node) -> None:
    assert node.guard("reset").returncode == 0
    node.run.mkdir()
    for used in (False, True):
        node.composed.write_text("ARGS=old\n")
        if used:
            assert node.guard("retire").returncode == 0
        assert node.guard("reset").returncode == 0
        assert list(node.run.iterdir()) == []


@rule("R12")
def test_what_was_composed_is_for_one_start(node: Node) -> None:
    assert node.guard("retire").returncode == 0
    node.serve()
    node.guard("compose")
    assert node.guard("retire").returncode == 0
    assert not node.on_relay
    assert sorted(path.name for path in node.run.iterdir()) == ["endpoint", "kubelet.env.used", "relay-start"]


def test_unknown_verb(node: Node) -> None:
    assert node.guard("").returncode == 2


def test_another_root_has_to_say_that_it_is_one(node: Node) -> None:
    """So that a stray variable in a node's environment leads nowhere."""
    (node.root / ".cri-resmgr-guard-test-root").unlink()
    node.run.mkdir()
    node.composed.write_text("ARGS=old\n")
    if Path("/run/cri-resmgr-installer").exists():
        pytest.skip("this machine is a node")
    assert node.guard("reset").returncode == 0
    assert node.composed.exists()


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="needs shellcheck")
def test_shellcheck(tmp_path: Path) -> None:
    script = tmp_path / NAME
    script.write_text(unit_text(NAME))
    done = subprocess.run(["shellcheck", str(script)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")


@rule("R14")
def test_r14_kubelet_stays_off_a_relay_whose_proxy_may_not_know_its_pods(node: Node) -> None:
    """Only the installer can tell whether it does, and announces its start."""
    node.serve()
    assert "relay: ready" in node.guard("compose").stdout
    node.hold.write_text("held\n")
    assert "base endpoint: held: held" in node.guard("compose").stdout
    node.hold.unlink()
    for _again in range(2):
        done = node.guard("compose")
        assert "base endpoint: there may be pods that the proxy does not know" in done.stdout
        assert not node.on_relay
    (node.run / "kubelet-start-ours").touch()
    assert "relay: ready" in node.guard("compose").stdout
    assert "base endpoint" in node.guard("compose").stdout, "one start was announced"
    (node.run / "containers-unknown").unlink()
    assert "relay: ready" in node.guard("compose").stdout


@rule("R14")
def test_r14_an_announced_start_that_cannot_use_the_relay_is_over(node: Node) -> None:
    node.run.mkdir(exist_ok=True)
    (node.run / "kubelet-start-ours").touch()
    assert "base endpoint" in node.guard("compose", CRI_RESMGR_GUARD_SECONDS="1").stdout
    node.serve()
    assert "base endpoint: there may be pods" in node.guard("compose").stdout
