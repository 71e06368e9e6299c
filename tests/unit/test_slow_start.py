"""How long a start of the proxy may take, how a snapshot sees one that is under way, and a slow runtime."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from installer.converge import build_limits
from installer.inputs.settings import ProxySettings, Settings
from installer.model import paths
from installer.model.proxy_start import WHILE_HANGING, longest_start
from installer.model.resource import ProcessState, UnitState
from installer.record.schema import Record
from installer.snapshot import read_machine, take_snapshot, with_probe
from tests.fakes import CONTAINERD, FakeHost
from tests.rules import rule

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


def test_many_containers_make_a_start_longer(tmp_path: Path) -> None:
    host = fake(tmp_path, 40)
    assert not is_starting(host)
    cache = tmp_path / paths.PROXY_CACHE[1:]
    cache.parent.mkdir(parents=True)
    cache.write_text(json.dumps({"Containers": {f"{n}": {"ID": f"{n}"} for n in range(500)}}))
    assert is_starting(host)


@rule("R8")
def test_only_a_kubelet_that_hangs_cuts_a_start_short() -> None:
    assert build_limits(SETTINGS, hanging=True, containers=500).proxy_start == WHILE_HANGING
    assert build_limits(SETTINGS, hanging=False, containers=500).proxy_start == 45
    assert longest_start(200, "topology-aware") <= WHILE_HANGING < longest_start(201, "topology-aware")
    assert longest_start(500, "none") < WHILE_HANGING


@pytest.mark.parametrize(("seconds", "ready"), [(9.0, True), (11.0, False)])
def test_a_runtime_that_is_slow_to_say_how_it_is(tmp_path: Path, seconds: float, ready: bool) -> None:
    host = fake(tmp_path, 5)
    host.cri.sockets["unix:///run/r.sock"], host.cri.seconds = CONTAINERD, seconds
    snapshot = take_snapshot(host.host, read_machine(host.host), SETTINGS, Record())
    probe = with_probe(snapshot, host.host, (), "unix:///run/r.sock").probe
    assert probe
    assert (not probe.runtime_error) is ready
