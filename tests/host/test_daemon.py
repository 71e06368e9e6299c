"""`run`, from outside, on a real host: what it repairs and how fast, what it leaves alone, how it ends."""

import json
import os
import signal
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.host.daemon import SOON, Daemon, within
from tests.host.node import BINARY, DROP_IN, FALLBACK, GUARD, KUBELET_ENVIRONMENT, OURS, PROXY, Node
from tests.rules import rule
from tests.throwaway.host import HostError, ThrowawayHost
from tests.throwaway.kubelet import UNIT, wait_healthy
from tests.throwaway.snapshot import difference, files

HOLD = "/var/lib/cri-resmgr-installer/hold"
MODE_FILE = "/run/cri-resmgr-installer/mode.json"
STAMPS = "/run/cri-resmgr-installer/restarts.json"


# As the command line builds it, with a cluster that answers what the first argument says.
WITH_CLUSTER = """
import sys
from pathlib import Path
from installer.model.daemon import NoCluster
from installer.report.events import build_reporter
from installer.daemon.configuration import Command
from installer.daemon.loop import Daemon

class Cluster(NoCluster):
    def removal_evidence(self):
        return sys.argv[1] == "gone", f"the DaemonSet is {sys.argv[1]}"

host_root, payload, configs, config, ready = map(Path, sys.argv[2:])
command = Command(host_root, payload, configs, config, ready, "one", 2.0)
sys.exit(Daemon(command, build_reporter("json", sys.stdout), Cluster()).run())
"""


def start(node: Node, scratch: Path, name: str = "one", cluster: str = "", good: int = 2) -> Daemon:
    """The pod `name`; `cluster` is what WITH_CLUSTER is told, `good` the seconds that make a relay good."""
    ready_file = scratch / f"ready-{name}"
    inputs = node.command.globals()[1::2]
    argv = [sys.executable, "-c", WITH_CLUSTER, cluster, *inputs, str(ready_file)] if cluster else []
    pod = {"CRI_RESMGR_INSTALLER_GOOD_SECONDS": str(good), "CRI_RESMGR_INSTALLER_POD_UID": name}
    return Daemon(node, ready_file, pod, argv)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with ThrowawayHost() as host:
        node = Node(host, tmp_path_factory.mktemp("node"))
        yield node


@pytest.fixture(autouse=True)
def lent(node: Node) -> Iterator[None]:
    """Each test begins with settings of its own and no memory of restarts."""
    node.path(STAMPS).unlink(missing_ok=True)
    node.path(MODE_FILE).unlink(missing_ok=True)
    settings(node)
    yield
    node.path("/etc/cri-resmgr/pause").unlink(missing_ok=True)
    node.host.systemctl("unmask", PROXY)
    node.fault("cri-resmgr", "")


def settings(node: Node, **sections: Any) -> None:
    sections["kubelet"] = {"restartsPerHour": 50, **sections.get("kubelet", {})}
    sections.setdefault("proxy", {"deadSeconds": 4})
    node.command.set(**sections)


@contextmanager
def daemon(
    node: Node, tmp_path: Path, name: str = "one", cluster: str = "", good: int = 2
) -> Iterator[Daemon]:
    running = start(node, tmp_path, name, cluster, good)
    try:
        yield running
    except BaseException as error:
        error.add_note(running.said())
        raise
    finally:
        if running.process.poll() is None:
            running.end()


def test_it_installs_is_small_and_leaves_all_in_place_when_it_ends(node: Node, tmp_path: Path) -> None:
    with daemon(node, tmp_path) as running:
        running.settle()
        assert running.restarts() == 1
        assert running.rss() < 30_000
        within(60, lambda: running.switches_per_second() < 3)  # as soon as systemd's signals have ebbed away
        before, state = node.invocations(), files(node.host)
        assert running.end() == 0
        assert not running.ready_file.exists()
    assert node.invocations() == before
    assert not difference(state, files(node.host))
    node.expect_good()
    with daemon(node, tmp_path) as running:
        running.settle()
        assert [data["changed"] for data in running.ended()] == [False]
    assert node.invocations() == before


@rule("R3")
@pytest.mark.parametrize("path", [DROP_IN, FALLBACK, GUARD, KUBELET_ENVIRONMENT])
def test_drift_is_repaired_within_half_a_second_without_a_restart(
    node: Node, tmp_path: Path, path: str
) -> None:
    node.run("install")
    with daemon(node, tmp_path) as running, node.restarts(kubelet=False, proxy=False):
        running.settle()
        right = node.path(path).read_bytes()
        node.path(path).unlink()
        within(SOON, lambda: node.path(path).exists() and node.path(path).read_bytes() == right)
        running.settle()


def test_a_whole_directory_that_goes_comes_back_and_is_watched_again(node: Node, tmp_path: Path) -> None:
    node.run("install")
    with daemon(node, tmp_path) as running, node.restarts(kubelet=False, proxy=False):
        running.settle()
        for _again in range(2):
            node.host.run("mv", "/etc/cri-resmgr", "/etc/elsewhere")
            within(SOON, lambda: node.path(FALLBACK).exists() and node.path(KUBELET_ENVIRONMENT).exists())
            node.host.run("rm", "-r", "/etc/elsewhere")
            running.settle()


def test_a_configmap_that_swaps_its_link_is_converged(node: Node, tmp_path: Path) -> None:
    configs = node.command.configs
    for name, text in (("..1", "policy:\n  Active: none\n"), ("..2", "policy:\n  Active: podpools\n")):
        (configs / name).mkdir()
        (configs / name / "fallback.cfg").write_text(text)
    (configs / "fallback.cfg").unlink(missing_ok=True)
    (configs / "..data").symlink_to("..1")
    (configs / "fallback.cfg").symlink_to("..data/fallback.cfg")
    with daemon(node, tmp_path) as running:
        running.settle()
        with node.restarts(kubelet=False, proxy=True):
            (configs / "..data_tmp").symlink_to("..2")
            (configs / "..data_tmp").rename(configs / "..data")
            within(SOON, lambda: b"podpools" in node.path(FALLBACK).read_bytes())
            running.settle()
        assert running.phase() == "converged"
    (configs / "fallback.cfg").unlink()


def test_a_wiped_drop_in_directory_and_a_restart_cost_one_restart_more(node: Node, tmp_path: Path) -> None:
    node.run("install")
    with daemon(node, tmp_path) as running:
        running.settle()
        node.host.run(
            "sh", "-c", f"rm -r {Path(DROP_IN).parent}; systemctl daemon-reload; systemctl restart kubelet"
        )
        within(SOON, lambda: node.path(DROP_IN).exists() and on_relay(node))
        running.settle()
        assert running.restarts() <= 1
        node.expect_good()


def on_relay(node: Node) -> bool:
    try:
        return node.host.show(UNIT, "ActiveState") == "active" and node.on_relay()
    except (HostError, OSError):  # between two processes
        return False


def off_relay(node: Node) -> bool:
    try:
        return node.host.show(UNIT, "ActiveState") == "active" and not node.on_relay()
    except (HostError, OSError):
        return False


def test_a_killed_proxy_is_systemds_to_restart(node: Node, tmp_path: Path) -> None:
    node.run("install")
    with daemon(node, tmp_path) as running, node.restarts(kubelet=False, proxy=True):
        running.settle()
        node.host.systemctl("kill", "--signal=KILL", PROXY)
        within(SOON, lambda: len(running.ended()) > 1)
        running.settle()
        assert not any(data["changed"] for data in running.ended())
        assert not node.path(HOLD).exists()


def test_a_silent_proxy_is_restarted_once_first(node: Node, tmp_path: Path) -> None:
    node.run("install")
    with daemon(node, tmp_path) as running, node.restarts(kubelet=False, proxy=True):
        running.settle()
        node.host.systemctl("kill", "--signal=STOP", PROXY)
        within(SOON, lambda: "restart-proxy" in [data["verb"] for data in running.ended()])
        running.ready()
        assert "rescue" not in [data["verb"] for data in running.ended()]


@rule("R4", "R13")
def test_a_proxy_that_does_not_find_its_runtime_again_is_restarted(node: Node, tmp_path: Path) -> None:
    """While the runtime is away nothing would be better, and nobody says that all is well."""
    node.run("install")
    node.fault("cri-resmgr", '{"backoffSeconds": 60}')
    node.host.systemctl("restart", PROXY)
    with daemon(node, tmp_path) as running:
        running.settle()
        with node.restarts(kubelet=False, proxy=False):
            node.host.systemctl("stop", "containerd")
            running.reach("unwell")
            assert "nor does the runtime" in running.messages("state")[-1]
            within(SOON, lambda: not running.ready_file.exists())
            status = node.run("status", code=3).out
            assert "relay: does not answer" in status
            time.sleep(6)  # longer than deadSeconds
            assert not running.looks()["running"]
        with node.restarts(kubelet=False, proxy=True):
            node.host.systemctl("start", "containerd")
            within(SOON, lambda: "restart-proxy" in [data["verb"] for data in running.ended()])
            running.ready()
        assert not node.path(HOLD).exists()


@rule("R4")
def test_kubelet_leaves_a_dead_proxy_and_comes_back_when_it_is_good(node: Node, tmp_path: Path) -> None:
    node.run("install")
    with daemon(node, tmp_path) as running:
        running.settle()
        node.fault("cri-resmgr", '{"startup": "exit"}')
        node.host.systemctl("kill", "--signal=KILL", PROXY)
        took = within(SOON, lambda: off_relay(node))
        assert took >= 4, "systemd was not given its chance"
        wait_healthy(node.host)
        within(SOON, lambda: running.phase() == "held")
        assert not running.ready_file.exists()
        assert "run: " in node.path(HOLD).read_text()
        within(SOON, lambda: running.restarts() == 1)
        node.fault("cri-resmgr", "")
        within(30, lambda: on_relay(node))
        running.settle()
        assert running.restarts() == 2
        assert not node.path(HOLD).exists()


@rule("R4", "R12")
@pytest.mark.parametrize("whole", [False, True], ids=["hangs", "frozen as a whole"])
def test_with_the_default_times_kubelet_is_back_30_s_after_the_last_answer(
    node: Node, tmp_path: Path, whole: bool
) -> None:
    """A proxy that hangs at each start; and one that is frozen with the guard's own part, so that systemd
    takes its start for going on."""
    settings(node, proxy={})
    node.run("install")
    with daemon(node, tmp_path) as running:
        running.settle()
        node.fault("cri-resmgr", '{"startup": "listen-only"}')
        over = threading.Event()

        def freeze() -> None:
            while whole and not over.wait(0.05):
                if node.host.show(PROXY, "SubState") == "start-post":
                    node.host.systemctl("kill", "--signal=STOP", "--kill-whom=all", PROXY, check=False)

        freezer = threading.Thread(target=freeze)
        freezer.start()
        node.host.systemctl("kill", "--signal=STOP", PROXY)
        last_answer = uptime(node)
        try:
            within(2 * SOON, lambda: off_relay(node))
            wait_healthy(node.host)
        finally:
            over.set()
            freezer.join()
        started = int(node.host.show(UNIT, "ActiveEnterTimestampMonotonic")) / 1e6
        assert started - last_answer < 30
        assert [data["verb"] for data in running.ended()].count("restart-proxy") == 1
        node.fault("cri-resmgr", "")
    node.host.systemctl("kill", "--signal=KILL", PROXY, check=False)
    node.run("install")


def uptime(node: Node) -> float:
    return float(node.path("/proc/uptime").read_text().split()[0])


def test_while_paused_nothing_is_changed(node: Node, tmp_path: Path) -> None:
    with daemon(node, tmp_path) as running:
        running.settle()
        node.path("/etc/cri-resmgr/pause").touch()
        within(SOON, lambda: running.phase() == "paused")
        assert running.excused_file.exists()
        with node.restarts(kubelet=False, proxy=False):
            node.path(GUARD).unlink()
            within(SOON, lambda: running.ended()[-1]["verb"] == "plan")
            running.rests()
            assert not node.path(GUARD).exists()
        assert any("1 to create" in str(event["message"]) for event in running.events)
        for verb in ("install", "remove"):
            refused = node.run(verb, code=4)
            assert "this node is paused: /etc/cri-resmgr/pause exists" in refused.err
        assert "this node is paused" in node.run("plan", code=4).said
        assert "this node is paused" in node.run("status", code=3).out
        assert not node.path(GUARD).exists()
        with node.restarts(kubelet=False, proxy=False):
            node.run("install", "--despite-pause")
            assert node.path(GUARD).exists()
            within(SOON, lambda: running.ready_file.exists() and running.phase() == "paused")
            node.path(GUARD).unlink()
        node.path("/etc/cri-resmgr/pause").unlink()
        within(SOON, node.path(GUARD).exists)
        running.settle()
        assert not running.excused_file.exists()


@rule("R13")
def test_a_node_that_is_refused_is_served_as_soon_as_it_can_be(node: Node, tmp_path: Path) -> None:
    node.run("remove")
    node.host.systemctl("mask", PROXY)
    with node.restarts(kubelet=False, proxy=False), daemon(node, tmp_path) as running:
        running.reach("refused")
        within(SOON, running.excused_file.exists)
        assert not running.ready_file.exists()
        assert "systemctl unmask" in running.messages("state")[-1]
        assert not node.path(BINARY).exists()
    settings(node, rollout={"refused": "ready"})
    with daemon(node, tmp_path) as running:
        running.reach("refused")
        running.ready()
        node.host.systemctl("unmask", PROXY)
        running.settle()
        assert not running.excused_file.exists()
    node.expect_good()


def test_kubelet_is_not_restarted_more_often_than_allowed(node: Node, tmp_path: Path) -> None:
    node.run("install")
    settings(node, kubelet={"restartsPerHour": 2})
    with daemon(node, tmp_path) as running:
        running.settle()
        for number in (1, 2, 3):
            node.host.run(
                "sh",
                "-c",
                f"rm -rf {Path(DROP_IN).parent}; systemctl daemon-reload; systemctl restart kubelet",
            )
            if number < 3:
                within(15, lambda: on_relay(node))
                running.settle()
        within(SOON, lambda: off_relay(node))
        wait_healthy(node.host)
        running.reach("held")
        running.rests()
        assert running.restarts() == 2
        assert not running.ready_file.exists()
    node.run("install")


def test_a_run_that_may_not_restart_kubelet_repairs_all_else(node: Node) -> None:
    node.run("install")
    node.path(GUARD).unlink()
    node.fallback("policy:\n  Active: none\nlogger:\n  Debug: other\n")
    with node.restarts(kubelet=False, proxy=True):
        node.run("install", "--keep-kubelet")
    assert node.path(GUARD).exists()
    node.path(DROP_IN).unlink()
    node.host.run("sh", "-c", "systemctl daemon-reload; systemctl restart kubelet")
    before = files(node.host)
    with node.restarts(kubelet=False, proxy=False):
        assert "kubelet would have to restart" in node.run("install", "--keep-kubelet", code=3).err
    assert not difference(before, files(node.host))
    node.run("install")


@rule("R15")
def test_a_failed_pass_neither_ends_it_nor_spins(node: Node, tmp_path: Path) -> None:
    with daemon(node, tmp_path) as running:
        running.settle()
        node.fallback("policy:\n  Active: nonsense\n")
        within(SOON, lambda: running.ended()[-1]["exitCode"] == 2)
        node.path(GUARD).write_bytes(node.path(GUARD).read_bytes() + b"\n# drift\n")
        running.rests()
        assert running.phase() == "failed"
        assert not running.ready_file.exists()
        node.fallback("policy:\n  Active: none\n")
        running.settle()
        assert running.phase() == "converged"


@rule("R8")
def test_a_broken_upgrade_is_rolled_back_and_tried_once(node: Node, tmp_path: Path) -> None:
    node.run("install")
    with daemon(node, tmp_path) as running:
        running.settle()
        node.upgrade(fault="hang")
        within(40, lambda: running.ended()[-1]["exitCode"] == 5)
        running.rests()
        assert running.restarts() == 0
        node.upgrade(version="v0.9.2")
        running.settle()
        assert running.phase() == "converged"
    node.expect_good()


@rule("R10")
def test_removal_and_installation_that_overlap_do_not_fight(node: Node, tmp_path: Path) -> None:
    with daemon(node, tmp_path, "installation") as installation:
        installation.settle()
        settings(node, mode="remove")
        remove = tmp_path / "remove.yaml"
        remove.write_text(node.command.config.read_text())
        settings(node)
        installation.settle()
        node.command.config, kept = remove, node.command.config
        with daemon(node, tmp_path, "removal") as removal:
            node.command.config = kept
            removal.reach("removed")
            assert removal.ready_file.exists()
            within(SOON, lambda: installation.phase() == "yielded")
            installation.rests()
            assert not any(node.path(path).exists() for path in OURS)
            assert not node.on_relay()
            assert json.loads(node.path(MODE_FILE).read_text())["mode"] == "remove"
            installation.end()
            # The container of the old pod is started again: still replaced.
            with daemon(node, tmp_path, "installation") as again:
                within(SOON, lambda: again.phase() == "yielded")
            node.path("/etc/default/cri-resource-manager").write_text("somebody else's\n")
            removal.rests()
            assert removal.ready_file.exists()
            node.path("/etc/default/cri-resource-manager").unlink()
            with daemon(node, tmp_path, "newer") as newer:
                newer.settle()
                removal.reach("yielded")
                assert node.path(BINARY).exists()
                assert removal.end() == 0
                newer.settle()


def test_a_persons_hold_is_ended_by_a_person(node: Node, tmp_path: Path) -> None:
    node.run("install")
    with daemon(node, tmp_path) as running, node.restarts(kubelet=False, proxy=False):
        running.settle()
        node.path(HOLD).write_text("broken CPU map\n")
        running.reach("held")
    node.host.systemctl("restart", UNIT)  # which is when a hold takes effect
    node.path(GUARD).unlink()
    with daemon(node, tmp_path, "the next pod", good=0) as running, node.restarts(kubelet=False, proxy=False):
        running.reach("held")
        node.fallback("policy:\n  Active: none\nlogger:\n  Debug: held\n")
        running.rests()
        assert not running.of("pass.started")
        assert node.path(HOLD).read_text() == "broken CPU map\n"
    with daemon(node, tmp_path, "one more") as running:
        running.reach("held")
        node.run("install")
        running.settle()
    node.expect_good()


def test_where_no_process_can_be_started_it_waits_and_says_so(node: Node, tmp_path: Path) -> None:
    node.run("install")
    with daemon(node, tmp_path) as running, node.restarts(kubelet=False, proxy=False):
        running.settle()
        with no_more_processes(running.process.pid):
            node.path(GUARD).unlink()
            running.reach("failed")
            assert not running.ready_file.exists()
            assert "could not be started" in running.messages("state")[-1]
        within(SOON, node.path(GUARD).exists)
        running.settle()


@contextmanager
def no_more_processes(pid: int) -> Iterator[None]:
    """The pids cgroup of this process is full."""
    old = Path("/sys/fs/cgroup/pids")
    group = (old if old.is_dir() else Path("/sys/fs/cgroup")) / f"cri-resmgr-installer-test-{pid}"
    home = (group.parent / "cgroup.procs").open("w")
    group.mkdir()
    try:
        (group / "cgroup.procs").write_text(str(pid))
        (group / "pids.max").write_text((group / "pids.current").read_text())
        yield
    finally:
        with home:
            home.write(str(pid))
        group.rmdir()


def test_a_repair_that_hangs_does_not_keep_kubelet_on_a_dead_relay(node: Node, tmp_path: Path) -> None:
    node.run("install")
    with daemon(node, tmp_path) as running:
        running.settle()
        node.path(GUARD).unlink()
        child = running.child("install")
        os.kill(child, signal.SIGSTOP)
        node.fault("cri-resmgr", '{"startup": "exit"}')
        node.host.systemctl("kill", "--signal=KILL", PROXY)
        within(SOON, lambda: off_relay(node))
        assert running.messages("pass.stopped")
        wait_healthy(node.host)
        node.fault("cri-resmgr", "")
        within(SOON, lambda: on_relay(node))
        running.settle()


def test_without_room_for_its_own_state_it_settles_all_the_same(node: Node, tmp_path: Path) -> None:
    node.run("install")
    node.host.run("mkdir", "-p", Path(MODE_FILE).parent.as_posix())
    node.host.run("mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", Path(MODE_FILE).parent.as_posix())
    try:
        node.host.run("sh", "-c", f"head -c 4096 /dev/zero >{Path(MODE_FILE).parent}/full")
        with daemon(node, tmp_path) as running:
            running.settle()
            assert [message for message in running.messages("warning") if "No space left" in message]
    finally:
        node.host.run("umount", Path(MODE_FILE).parent.as_posix())


@rule("R13")
def test_its_pages_tell_how_the_host_is(node: Node, tmp_path: Path) -> None:
    node.run("install")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        settings(node, status={"listen": listen})
        running = start(node, tmp_path)
        within(SOON, lambda: bool(running.of("warning")))
    try:
        running.settle()
        within(SOON, lambda: bool(running.of("pages.served")))
        assert page(listen, "/healthz")[0] == page(listen, "/readyz")[0] == 200
        node.path(HOLD).write_text("somebody's reason\n")
        within(SOON, lambda: page(listen, "/readyz")[0] == 503)
        assert json.loads(page(listen, "/readyz")[1])["hold"] == "somebody's reason"
        assert "cri_resmgr_installer_hold 1\n" in page(listen, "/metrics")[1]
        assert page(listen, "/healthz")[0] == 200
    finally:
        node.path(HOLD).unlink(missing_ok=True)
        running.end()


def page(listen: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{listen}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@rule("R15")
def test_a_lost_bus_is_found_again(node: Node, tmp_path: Path) -> None:
    node.run("install")
    with daemon(node, tmp_path) as running:
        running.settle()
        node.host.systemctl("restart", "dbus.service")
        node.host.systemctl("stop", PROXY)
        within(SOON, lambda: node.host.systemctl("is-active", PROXY, check=False) == "active")
        running.settle()
        passes = len(running.ended())
        node.host.systemctl("restart", UNIT)  # which nothing but a signal of systemd's tells
        within(SOON, lambda: len(running.ended()) > passes)
        running.settle()


@rule("R11")
def test_a_signal_in_the_middle_of_a_pass_ends_it_between_two_steps(node: Node, tmp_path: Path) -> None:
    node.run("install")
    with daemon(node, tmp_path) as running:
        running.settle()
        node.upgrade(version="v0.9.3")
        within(SOON, lambda: any(data["step"] == "restart" for data in running.of("step.done")))
        started = time.monotonic()
        assert running.end() == 0
        assert time.monotonic() - started < 10
    with daemon(node, tmp_path) as running:
        running.settle()
    node.expect_good()


@pytest.mark.parametrize("evidence", ["there", "gone"])
def test_a_signal_removes_only_on_evidence(node: Node, tmp_path: Path, evidence: str) -> None:
    settings(node, removal={"onTermination": "auto"})
    node.run("install")
    with daemon(node, tmp_path, cluster=evidence) as running:
        running.settle()
        assert running.end() == 0
        assert running.of("removal.evidence") == [{"certain": evidence == "gone"}]
    if evidence == "gone":
        node.expect_untraced(allowed="/var/lib/cri-resmgr-installer")
    else:
        node.expect_good()


def test_the_first_restart_of_a_fleet_waits_its_turn(node: Node, tmp_path: Path) -> None:
    node.run("remove")
    settings(node, rollout={"spreadSeconds": 80_000})
    with daemon(node, tmp_path) as running, node.restarts(kubelet=False, proxy=False):
        within(SOON, lambda: running.phase() == "waiting")
        running.rests()
        assert not running.ended()
        assert not node.path(BINARY).exists()
