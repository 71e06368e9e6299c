"""How long a start of the proxy may take, how a snapshot sees one that is under way, and a slow runtime."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from installer.inputs.settings import ProxySettings, Settings
from installer.model import paths
from installer.model.host import ProcessState, UnitState
from installer.model.names import Mode
from installer.model.plan import Changes, Desired, Plan
from installer.model.proxy import BELIEVED, WHILE_HANGING
from installer.node.converge import build_limits
from installer.node.record import Record
from installer.node.snapshot import read_machine, refresh, take_snapshot, with_probe
from tests.lib.fakes import CONTAINERD, FakeHost
from tests.lib.rules import rule

SETTINGS = Settings(proxy=ProxySettings(start_timeout_seconds=20))


def fake(tmp_path: Path, age: float, pid_file: str = "", **unit: str) -> FakeHost:
    """A host whose proxy was started so long ago."""
    host = FakeHost(tmp_path)
    (tmp_path / "run").mkdir()
    if pid_file:
        (tmp_path / paths.PROXY_PID_FILE[1:]).write_text(pid_file)
    running = UnitState(paths.PROXY_UNIT, "loaded", "active", "running", main_pid=7)
    host.systemd.units[paths.PROXY_UNIT] = replace(running, **unit)  # type: ignore[arg-type]
    host.processes.processes[7] = ProcessState(7, (paths.BINARY,), {}, age=age)
    return host


def is_starting(host: FakeHost) -> bool:
    return take_snapshot(host.host, read_machine(host.host), SETTINGS, Record()).proxy.starting


@pytest.mark.parametrize(
    ("age", "pid_file", "starting"),
    [
        (5, "", True),
        (5, "6\n", True),  # of an earlier process
        (5, "7\n", False),  # it has served, and is silent now
        (21, "", False),  # too long for a node without containers
    ],
)
def test_a_proxy_that_has_not_served_is_starting(
    tmp_path: Path, age: float, pid_file: str, starting: bool
) -> None:
    assert is_starting(fake(tmp_path, age, pid_file)) is starting


def test_a_unit_that_systemd_is_still_starting(tmp_path: Path) -> None:
    """The guard has not seen the pid file yet."""
    assert is_starting(fake(tmp_path, 5, "7\n", active_state="activating", sub_state="start-post"))


def test_a_proxy_that_answers_has_started(tmp_path: Path) -> None:
    host = fake(tmp_path, 5)
    host.cri.sockets[paths.RELAY_ENDPOINT] = CONTAINERD
    assert not is_starting(host)


@rule("R3")
def test_a_proxy_that_begins_to_serve_while_it_is_asked_was_starting(tmp_path: Path) -> None:
    """It writes its pid file as soon as the last question has come to nothing."""
    host = fake(tmp_path, 5)

    def silent() -> str:
        (tmp_path / paths.PROXY_PID_FILE[1:]).write_text("7\n")
        return "no answer"

    host.cri.sockets[paths.RELAY_ENDPOINT] = silent
    assert is_starting(host)


@rule("R3")
@pytest.mark.parametrize(
    ("pid_file", "seconds", "healthy", "hurried", "answers"),
    [
        ("7\n", 2.5, True, False, True),
        ("7\n", 3.5, True, False, False),
        ("7\n", 2.5, False, False, False),  # kubelet fails on that relay
        ("7\n", 2.5, True, True, False),  # a rollback
        ("", 2.5, True, False, False),  # it has not served: its start is waited for instead
    ],
)
def test_a_proxy_that_has_served_may_be_slow_to_answer(
    tmp_path: Path, pid_file: str, seconds: float, healthy: bool, hurried: bool, answers: bool
) -> None:
    host = fake(tmp_path, 60, pid_file)
    kubelet = SETTINGS.kubelet.unit
    host.systemd.units[kubelet] = UnitState(kubelet, "loaded", "active", "running", main_pid=8)
    host.healthz.healthy = healthy
    host.cri.sockets[paths.RELAY_ENDPOINT], host.cri.seconds = CONTAINERD, seconds
    snapshot = take_snapshot(host.host, read_machine(host.host), SETTINGS, Record())
    if hurried:
        snapshot = refresh(snapshot, host.host, SETTINGS, Record())
    assert snapshot.proxy.relay_answers is answers


def test_many_containers_make_a_start_longer(tmp_path: Path) -> None:
    host = fake(tmp_path, 40)
    assert not is_starting(host)
    cache = tmp_path / paths.PROXY_CACHE[1:]
    cache.parent.mkdir(parents=True)
    cache.write_text(json.dumps({"Version": "1", "Containers": {f"{n}": {"ID": f"{n}"} for n in range(500)}}))
    assert is_starting(host)


@rule("R8")
def test_only_a_kubelet_that_hangs_cuts_a_start_short() -> None:
    assert build_limits(SETTINGS, WHILE_HANGING, containers=500).proxy_start == WHILE_HANGING
    assert build_limits(SETTINGS, 0, containers=500).proxy_start == 45
    assert build_limits(SETTINGS, WHILE_HANGING, containers=200).begun_start == WHILE_HANGING


# -- what the last start took ------------------------------------------------------------------

NOON = 1_700_000_000.0


def served(tmp_path: Path, seconds: float, pid: int = 7, age: float = 3600.0) -> float:
    """How a snapshot sees a start after which the relay's socket and the pid file have such times."""
    host = fake(tmp_path, age, f"{pid}\n")
    socket = tmp_path / "run/cri-resmgr/cri-resmgr.sock"
    socket.parent.mkdir()
    socket.touch()
    (tmp_path / "var").mkdir(exist_ok=True)
    (tmp_path / "var/run").symlink_to("/run")
    os.utime(socket, (NOON, NOON))
    os.utime(tmp_path / paths.PROXY_PID_FILE[1:], (NOON + seconds, NOON + seconds))
    return take_snapshot(host.host, read_machine(host.host), SETTINGS, Record()).proxy.last_start


def test_how_long_the_last_start_took_is_read_from_what_it_left(tmp_path: Path) -> None:
    assert served(tmp_path, 45.0) == 45.0


@pytest.mark.parametrize(
    ("seconds", "pid", "age"),
    [
        (45.0, 6, 3600.0),  # the pid file of an earlier process
        (45.0, 7, 44.0),  # it is not as old as that: the clock was set while it started
        (-1.0, 7, 3600.0),
        (BELIEVED + 1, 7, 3600.0),  # the pid file was written again
    ],
)
def test_what_cannot_be_so_tells_nothing(tmp_path: Path, seconds: float, pid: int, age: float) -> None:
    assert served(tmp_path, seconds, pid, age) == 0.0


def test_a_proxy_without_a_relay_socket_tells_nothing(tmp_path: Path) -> None:
    host = fake(tmp_path, 60, "7\n")
    assert take_snapshot(host.host, read_machine(host.host), SETTINGS, Record()).proxy.last_start == 0.0


def test_a_relay_socket_that_is_a_link_out_of_the_host_root_tells_nothing(tmp_path: Path) -> None:
    host = fake(tmp_path, 60, "7\n")
    (tmp_path / "var").mkdir(exist_ok=True)
    (tmp_path / "var/run").symlink_to("/run")
    (tmp_path / "run/cri-resmgr").mkdir()
    (tmp_path / "run/cri-resmgr/cri-resmgr.sock").symlink_to("../../../../x")
    assert take_snapshot(host.host, read_machine(host.host), SETTINGS, Record()).proxy.last_start == 0.0


@rule("R9")
def test_a_start_gets_the_time_that_this_node_was_seen_to_need() -> None:
    assert build_limits(SETTINGS, 0, containers=50).proxy_start == 22.5
    limits = build_limits(SETTINGS, WHILE_HANGING, containers=50, seen=45)
    assert (limits.proxy_start, limits.unhurried, limits.furthest) == (WHILE_HANGING, 65, 195)
    assert build_limits(SETTINGS, 0, containers=500).furthest == 135


@pytest.mark.parametrize(("seconds", "ready"), [(9.0, True), (11.0, False)])
def test_a_runtime_that_is_slow_to_say_how_it_is(tmp_path: Path, seconds: float, ready: bool) -> None:
    host = fake(tmp_path, 5)
    host.cri.sockets["unix:///run/r.sock"], host.cri.seconds = CONTAINERD, seconds
    snapshot = take_snapshot(host.host, read_machine(host.host), SETTINGS, Record())
    plan = Plan(Mode.INSTALL, Desired(), Changes(), "kubelet.service")
    probe = with_probe(snapshot, host.host, plan, "unix:///run/r.sock", starts=True).probe
    assert probe
    assert (not probe.runtime_error) is ready
