"""R2, R3: what somebody else has changed is mended with the mildest action.

Edits and deletions of each file are in test_path.py, a changed base of kubelet in test_kubelets.py.
"""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from installer.model.names import Mode
from tests.host.command import untouched
from tests.host.daemon import SOON, Daemon, within
from tests.host.mortal import DieAfter, converge
from tests.host.node import DROP_IN, FALLBACK, OURS, PROXY, PROXY_ENVIRONMENT, PROXY_UNIT, STATE, Node
from tests.host.product import put_right
from tests.lib.rules import rule
from tests.lib.throwaway.kubelet import UNIT, running_arguments, wait_healthy
from tests.lib.throwaway.proxy import ready, until

FORCE = "/etc/cri-resmgr/force.cfg"


@pytest.fixture(scope="module")
def node(booted: Node) -> Iterator[Node]:
    booted.run("install")
    yield booted
    put_right(booted)
    booted.run("remove")
    booted.expect_untraced(allowed=STATE)


@rule("R3")
@pytest.mark.parametrize("path", OURS)
def test_owner_and_mode_are_mended_without_a_restart(node: Node, path: str) -> None:
    right = node.path(path).stat()
    node.path(path).chmod(0o606)
    os.chown(node.path(path), 1, 2)
    with node.restarts(kubelet=False, proxy=False):
        node.run("install")
    found = node.path(path).stat()
    assert (found.st_mode, found.st_uid, found.st_gid) == (right.st_mode, 0, 0)
    node.expect_good()


def test_a_link_in_a_files_place_gives_way_and_what_it_led_to_is_left_alone(node: Node) -> None:
    theirs = node.path("/srv/theirs.cfg")
    theirs.write_text("somebody else's\n")
    right = node.path(FALLBACK).read_bytes()
    node.path(FALLBACK).unlink()
    node.path(FALLBACK).symlink_to("/srv/theirs.cfg")
    node.run("install")
    assert not node.path(FALLBACK).is_symlink()
    assert node.path(FALLBACK).read_bytes() == right
    assert theirs.read_text() == "somebody else's\n"
    theirs.unlink()
    node.expect_good()


def test_a_directory_in_a_files_place_is_refused_and_untouched(node: Node) -> None:
    right = node.path(FALLBACK).read_bytes()
    node.path(FALLBACK).unlink()
    node.path(FALLBACK).mkdir()
    (node.path(FALLBACK) / "theirs").touch()
    with untouched(node.host):
        assert FALLBACK in node.run("install", code=4).err
    (node.path(FALLBACK) / "theirs").unlink()
    node.path(FALLBACK).rmdir()
    node.path(FALLBACK).write_bytes(right)
    assert node.run("install").out == "nothing to do\n"


def test_an_edit_of_the_proxys_unit_that_is_live_costs_the_proxy_a_restart(node: Node) -> None:
    text = node.path(PROXY_UNIT).read_text()
    node.path(PROXY_UNIT).write_text(text.replace("OOMScoreAdjust=-999", "OOMScoreAdjust=0"))
    node.host.systemctl("daemon-reload")
    node.host.systemctl("restart", PROXY)
    assert node.host.show(PROXY, "OOMScoreAdjust") == "0"
    with node.restarts(kubelet=False, proxy=True):
        node.run("install")
    assert node.path(PROXY_UNIT).read_text() == text
    assert node.host.show(PROXY, "OOMScoreAdjust") == "-999"
    node.expect_good()


@rule("R7")
def test_an_older_time_stamp_does_not_hide_that_systemd_has_another_text_loaded(node: Node) -> None:
    """NeedDaemonReload says no then; systemd's own copy of our digest does not lie."""
    right, status = node.path(PROXY_UNIT).read_text(), node.path(PROXY_UNIT).stat()
    mark = "Environment=CRI_RESMGR_INSTALLER_UNIT="
    assert mark in right
    node.path(PROXY_UNIT).write_text(right.replace(mark, f"{mark}edited-"))
    node.host.systemctl("daemon-reload")
    node.path(PROXY_UNIT).write_text(right)
    os.utime(node.path(PROXY_UNIT), (status.st_atime - 1000, status.st_mtime - 1000))
    with node.restarts(kubelet=False, proxy=False):
        assert "daemon-reload" in node.run("install").out
    assert "CRI_RESMGR_INSTALLER_UNIT=edited" not in node.host.show(PROXY, "Environment")
    assert node.run("install").out == "nothing to do\n"
    node.expect_good()


def test_a_wiped_drop_in_directory_costs_no_restart_while_kubelet_still_runs_on_the_relay(node: Node) -> None:
    node.host.run("rm", "-r", str(Path(DROP_IN).parent))
    node.host.systemctl("daemon-reload")
    with node.restarts(kubelet=False, proxy=False):
        node.run("install")
    node.host.systemctl("restart", UNIT)
    wait_healthy(node.host)
    node.expect_good()


@rule("R3")
@pytest.mark.parametrize("unit", ["multi-user.target", UNIT])
def test_a_unit_that_somebody_has_enabled_is_disabled_and_not_restarted(node: Node, unit: str) -> None:
    """With the directory that `systemctl` makes for kubelet's; the removal at the end leaves none."""
    node.host.systemctl("add-wants", unit, PROXY)
    assert "something else than kubelet's unit starts it" in node.run("plan", code=3).out
    with node.restarts(kubelet=False, proxy=False):
        node.run("install")
    node.expect_good()


def test_a_kubelet_that_somebody_restarted_onto_its_own_endpoint_moves_back(node: Node) -> None:
    """The proxy was away for longer than the guard waits: nothing but the process differs."""
    node.command.set(kubelet={"guardSeconds": 3})
    node.run("install")
    node.host.systemctl("stop", PROXY)
    binary = node.path("/opt/intel/bin/cri-resmgr")
    binary.rename(binary.with_name("away"))
    node.host.systemctl("restart", UNIT)
    binary.with_name("away").rename(binary)
    assert not node.on_relay()
    with node.restarts(kubelet=False, proxy=True):
        node.run("install")
    node.expect_good()
    node.command.set()
    with node.restarts(kubelet=False, proxy=False):
        node.run("install")


def test_a_killed_proxy_is_back_before_anybody_has_to_do_something(node: Node) -> None:
    killed = node.host.show(PROXY, "MainPID")
    node.host.run("kill", "-9", killed)

    def is_back() -> bool:
        """In one question: between two, the killed one may end, and be running without a process."""
        shown = node.host.systemctl("show", "--property=SubState,MainPID", PROXY).split()
        state = dict(line.split("=") for line in shown)
        return state["SubState"] == "running" and state["MainPID"] != killed and ready(node.host)

    until(is_back)
    node.put_back()
    node.expect_good()


def test_the_daemons_log_tells_what_has_happened_to_the_proxy(node: Node, tmp_path: Path) -> None:
    """From the host's journal, whoever was there to see it."""
    node.host.run("kill", "-9", node.host.show(PROXY, "MainPID"))
    until(lambda: ready(node.host))
    daemon = Daemon(node, tmp_path / "ready", {})
    try:
        within(SOON, lambda: f"{PROXY}: Failed with result 'signal'." in daemon.messages("proxy.log"))
        daemon.settle()
        assert daemon.end() == 0
    finally:
        daemon.kill()


@rule("R3")
def test_a_proxy_that_is_slow_to_answer_is_not_restarted(node: Node) -> None:
    pid = node.host.show(PROXY, "MainPID")
    node.host.run("kill", "-STOP", pid)
    later = threading.Timer(2.0, node.host.run, ("kill", "-CONT", pid))
    later.start()
    try:
        with node.restarts(kubelet=False, proxy=False):
            assert node.run("install").out == "nothing to do\n"
    finally:
        later.join()
    node.expect_good()


def die_between_write_and_signal(node: Node) -> None:
    """Mends an edited and re-read force.cfg, and dies before the proxy hears of it."""
    node.path(FORCE).write_text("policy:\n  Active: none\nlogger:\n  Debug: somebody\n")
    node.host.systemctl("kill", f"--signal={signal.SIGHUP.value}", "--kill-whom=main", PROXY)
    assert converge(node, Mode.INSTALL, listen=DieAfter(f"write {FORCE}")) == "killed"


@rule("R3")
def test_r3_the_content_of_a_force_config_is_only_signalled_and_the_proxy_has_noticed(node: Node) -> None:
    force = node.command.configs / "force.cfg"
    force.write_text("policy:\n  Active: none\n")
    node.run("install")
    proxy = node.invocations()[1]
    for number, text in enumerate(("resource-manager", "policy"), start=1):
        force.write_text(f"policy:\n  Active: none\nlogger:\n  Debug: {text}\n")
        with node.restarts(kubelet=False, proxy=False):
            node.run("install")
        assert node.host.journal(PROXY).count("reloading forced configuration") == number
    node.path(FORCE).write_text("policy:\n  Active: none\nlogger:\n  Debug: somebody\n")
    node.host.systemctl("kill", f"--signal={signal.SIGHUP.value}", "--kill-whom=main", PROXY)
    with node.restarts(kubelet=False, proxy=False):
        node.run("install")
    assert node.host.journal(PROXY).count("reloading forced configuration") == 4
    assert node.invocations()[1] == proxy
    die_between_write_and_signal(node)
    with node.restarts(kubelet=False, proxy=False):
        node.run("install")
    assert node.host.journal(PROXY).count("reloading forced configuration") == 6
    force.write_text("policy:\n  Active: topology-aware\n  ReservedResources:\n    CPU: 750m\n")
    with node.restarts(kubelet=False, proxy=True):
        node.run("install")
    force.unlink()
    node.run("install")
    node.expect_good()


@rule("R3")
def test_r3_new_flags_of_kubelet_by_somebody_else_live_beside_ours_with_nothing_to_mend(node: Node) -> None:
    base = node.path("/etc/default/kubelet")
    theirs, status = base.read_text(), base.stat()
    base.write_text('KUBELET_EXTRA_ARGS="--max-pods=57"\n')
    node.host.systemctl("restart", UNIT)
    with node.restarts(kubelet=False, proxy=False):
        assert node.run("install").out == "nothing to do\n"
    assert "--max-pods=57" in running_arguments(node.host)
    base.write_text(theirs)
    os.utime(base, ns=(status.st_atime_ns, status.st_mtime_ns))
    node.host.systemctl("restart", UNIT)
    wait_healthy(node.host)
    node.expect_good()


@rule("R2")
def test_r2_the_runtimes_socket_that_kubelet_restarts_with_is_the_proxys_at_once(node: Node) -> None:
    """Its own flags name another one since its last start, and what we are asked for restarts it."""
    flags = node.path("/var/lib/kubelet/kubeadm-flags.env")
    before, written, other = flags.read_text(), flags.stat().st_mtime_ns, "/run/other.sock"
    node.path(other).symlink_to("/run/containerd/containerd.sock")
    flags.write_text(before.replace("/run/containerd/containerd.sock", other))
    assert flags.read_text() != before
    node.command.set(kubelet={"strategy": "exec-start"})
    with node.restarts(kubelet=True, proxy=True):
        node.run("install")
    assert f"--runtime-socket={other}" in node.path(PROXY_ENVIRONMENT).read_text()
    node.expect_good()
    assert node.run("install").out == "nothing to do\n"
    flags.write_text(before)
    node.command.set()
    with node.restarts(kubelet=True, proxy=True):
        node.run("install")
    assert node.run("install").out == "nothing to do\n"
    node.path(other).unlink()
    os.utime(flags, ns=(written, written))
    node.expect_good()
