"""Probes: they ask the right thing, and never end what is still within its deadlines."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from installer.daemon.configuration import Command, Configuration, build_configuration
from installer.daemon.decision import Action, bounds_of
from installer.daemon.policy import Policy
from installer.daemon.poller import PollSnapshot
from installer.daemon.probe_files import ProbeFiles
from installer.inputs.deadlines import build_deadlines
from installer.inputs.settings import KubeletSettings, ProxySettings, Settings
from installer.manifests.probes import FRESH, build_min_ready, build_probes
from installer.model.daemon import ALIVE_FILE, EXCUSED_FILE, READY_FILE
from installer.model.fleet import Permission, PlannedWork
from installer.model.result import RunResult
from tests.lib.policy_bench import BARE, NEW, Bench
from tests.lib.rules import rule

SLOW = Settings(
    proxy=ProxySettings(start_timeout_seconds=500, dead_seconds=900),
    kubelet=KubeletSettings(start_timeout_seconds=700, settle_seconds=100, guard_seconds=200),
)
HURRIED = Settings(
    proxy=ProxySettings(start_timeout_seconds=1),
    kubelet=KubeletSettings(start_timeout_seconds=1, settle_seconds=1, guard_seconds=3),
)


def patience(probe: dict[str, Any]) -> int:
    """Seconds until kubelet acts on a probe that never succeeds."""
    return int(probe["periodSeconds"]) * int(probe["failureThreshold"])


def longest_pass(settings: Settings) -> int:
    proxy, kubelet = settings.proxy, settings.kubelet
    start = proxy.start_timeout_seconds + kubelet.guard_seconds + kubelet.start_timeout_seconds
    return start + kubelet.settle_seconds + 30


@pytest.mark.parametrize("settings", [Settings(), SLOW], ids=["default", "slow"])
def test_thresholds_exceed_the_deadlines(settings: Settings) -> None:
    probes = build_probes(settings)
    assert patience(probes["livenessProbe"]) > longest_pass(settings)
    assert patience(probes["livenessProbe"]) > settings.proxy.dead_seconds
    assert patience(probes["startupProbe"]) > longest_pass(settings)
    assert patience(probes["livenessProbe"]) > build_deadlines(settings).absent
    assert patience(probes["startupProbe"]) > build_deadlines(settings).start


@pytest.mark.parametrize("settings", [Settings(), SLOW, HURRIED], ids=["default", "slow", "hurried"])
def test_no_deadline_ends_a_move_that_waits_for_calls_in_flight(settings: Settings) -> None:
    """A container may take 30 s to stop. A pass moves kubelet away from the proxy and back."""
    configuration = build_configuration(settings)
    assert bounds_of(Action.HOLD, configuration)[0] >= 40
    assert bounds_of(Action.INSTALL, configuration)[0] >= settings.proxy.start_timeout_seconds + 2 * 40


def test_every_probe_has_a_deadline_of_its_own() -> None:
    for probe in build_probes(Settings()).values():
        assert probe["timeoutSeconds"] > 1


def test_a_removal_is_ready_when_removed_and_never_killed() -> None:
    assert list(build_probes(Settings(mode="remove"))) == ["readinessProbe"]


@rule("R13")
@pytest.mark.parametrize("mode", ["install", "remove"])
@pytest.mark.parametrize("kubelet", [KubeletSettings(), KubeletSettings(settle_seconds=100)])
def test_a_pod_counts_as_ready_only_after_the_pass_that_restarts_kubelet(
    mode: Literal["install", "remove"], kubelet: KubeletSettings
) -> None:
    """Until kubelet has settled and the probe was asked once more, a Ready may be that of a kubelet that has
    not asked yet."""
    settings = Settings(mode=mode, kubelet=kubelet)
    period = build_probes(settings)["readinessProbe"]["periodSeconds"]
    assert build_min_ready(settings) >= kubelet.settle_seconds + period


class Liveness:
    """The probe's own words, in a container that is a directory: chroot is a program that says what it
    was asked for and ends as told."""

    def __init__(self, directory: Path) -> None:
        self.alive = directory / "alive"
        self.alive.touch()
        self.host = directory / "host"
        self.excused = directory / "excused"
        self._said = directory / "said"
        self._programs = directory / "bin"
        self._programs.mkdir()

    def run(self, status: int, probe: str = "livenessProbe") -> tuple[int, str]:
        chroot = self._programs / "chroot"
        chroot.write_text(f'#!/bin/sh\necho "$*" >"{self._said}"\nexit {status}\n')
        chroot.chmod(0o755)
        shell, option, script = build_probes(Settings())[probe]["exec"]["command"]
        script = script.replace(ALIVE_FILE, str(self.alive))
        script = script.replace("/host", str(self.host)).replace(EXCUSED_FILE, str(self.excused))
        environment = {"PATH": f"{self._programs}:/usr/bin:/bin"}
        probe_command = [shell, option, script]
        # A pipe wakes as soon as the probe ends; without one, Python polls for the end.
        done = subprocess.run(probe_command, env=environment, timeout=20, check=False, capture_output=True)
        return done.returncode, self._said.read_text() if self._said.exists() else ""

    def unready(self) -> str:
        """What kubelet says of a pod that is not ready: all that the probe has written."""
        shell, option, script = build_probes(Settings())["readinessProbe"]["exec"]["command"]
        script = script.replace(ALIVE_FILE, str(self.alive))
        script = script.replace(READY_FILE, str(self.alive.with_name("ready")))
        probe = [shell, option, script]
        done = subprocess.run(probe, timeout=20, check=False, text=True, capture_output=True)
        assert done.returncode == 1
        return done.stdout + done.stderr


@pytest.fixture
def liveness(tmp_path: Path) -> Liveness:
    return Liveness(tmp_path)


@pytest.mark.parametrize("status", [0, 3, 4])
def test_alive_is_what_systemctl_status_says(liveness: Liveness, status: int) -> None:
    asked = f"{liveness.host} systemctl status -n0 cri-resource-manager.service\n"
    assert liveness.run(status) == (status, asked)


def test_alive_while_kubelet_is_held(liveness: Liveness) -> None:
    hold = liveness.host / "var/lib/cri-resmgr-installer/hold"
    hold.parent.mkdir(parents=True)
    hold.touch()
    assert liveness.run(3) == (0, "")


def age(file: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(file, (then, then))


@rule("R13")
@pytest.mark.parametrize("excused", [False, True])
def test_a_daemon_that_hangs_is_not_alive_whatever_else_is_so(liveness: Liveness, excused: bool) -> None:
    if excused:
        liveness.excused.touch()
    age(liveness.alive, FRESH - 10)
    assert liveness.run(0)[0] == 0
    age(liveness.alive, FRESH + 10)
    assert liveness.run(0)[0] == 1
    liveness.alive.unlink()
    assert liveness.run(0)[0] == 1


@rule("R13")
@pytest.mark.parametrize("mode", ["install", "remove"])
def test_ready_is_what_a_daemon_that_works_says(tmp_path: Path, mode: Literal["install", "remove"]) -> None:
    shell, option, script = build_probes(Settings(mode=mode))["readinessProbe"]["exec"]["command"]
    ready = tmp_path / "ready"

    def run() -> int:
        probe = [shell, option, script.replace(READY_FILE, str(ready))]
        return subprocess.run(probe, timeout=20, check=False, capture_output=True).returncode

    assert run() == 1
    ready.touch()
    assert run() == 0
    age(ready, FRESH - 10)
    assert run() == 0
    age(ready, FRESH + 10)
    assert run() == 1


def test_run_leaves_its_files_where_the_probes_look() -> None:
    command = Command(Path("/host"), Path("/payload"), None, None)
    files = (command.ready_file, command.alive_file, command.excused_file)
    assert tuple(map(str, files)) == (READY_FILE, ALIVE_FILE, EXCUSED_FILE)


def test_alive_while_the_node_is_paused_or_refused(liveness: Liveness) -> None:
    liveness.excused.touch()
    assert liveness.run(3) == (0, "")


class Kubelet:
    """Kubelet's prober of one container on a simulated clock: the startup probe until it succeeds once, then
    the liveness probe (Kubernetes documentation, "Liveness, Readiness, and Startup Probes"). `kills` are the
    times at which it would have restarted the container."""

    def __init__(self, liveness: Liveness) -> None:
        self._liveness, self._probes = liveness, build_probes(Settings())
        self._name, self._failures, self._next = "startupProbe", 0, 0.0
        self.kills = list[float]()

    def at(self, now: float, status: int) -> None:
        if now < self._next:
            return
        probe = self._probes[self._name]
        self._next = now + probe["periodSeconds"]
        if self._liveness.run(status, self._name)[0] == 0:
            self._name, self._failures = "livenessProbe", 0
            return
        self._failures += 1
        if self._failures >= probe["failureThreshold"]:
            self._name, self._failures = "startupProbe", 0
            self.kills.append(now)


WORK = PlannedWork("one", begins=True)
NO_UNIT, INACTIVE = 4, 3  # systemctl's exit codes for a unit that is not there, and for one that does not run


@rule("R13")
@pytest.mark.parametrize(
    ("seen", "first", "status"),
    [
        (
            replace(
                BARE,
                picture=replace(NEW, work=WORK),
                permission=Permission(True, None, "others first"),
            ),
            None,
            NO_UNIT,
        ),
        (replace(BARE, superseded=True), None, INACTIVE),
        (replace(BARE, paused=True), None, NO_UNIT),
        (replace(BARE, hold="a person looks"), None, INACTIVE),
        (BARE, RunResult(4, reason="kubelet.service is masked"), NO_UNIT),
        (BARE, RunResult(5, remembered=True, rolled_back=True, reason="it exits at once"), NO_UNIT),
        (replace(BARE, picture=replace(NEW, restarts=1)), None, INACTIVE),
    ],
    ids=["waits for a permit", "has yielded", "is paused", "is held", "is refused", "failed", "is limited"],
)
def test_a_pod_that_waits_longer_than_any_probe_is_patient_is_not_restarted(
    liveness: Liveness, seen: PollSnapshot, first: RunResult | None, status: int
) -> None:
    """The container's own files, asked by the probes' own words, while the daemon's own policy waits."""
    limited = seen.picture is not None and seen.picture.restarts > 0
    settings = Configuration(restarts_per_hour=0 if limited else 3)
    bench, kubelet = Bench(Policy(settings, lambda: 0.5, 1000.0)), Kubelet(liveness)
    names = (liveness.alive.with_name("ready"), liveness.alive, liveness.excused)
    command = Command(Path("/host"), Path("/payload"), None, None, names[0])
    assert (command.alive_file, command.excused_file) == names[1:]
    files = ProbeFiles(command, pytest.fail)
    longest = max(patience(build_probes(Settings())[name]) for name in ("startupProbe", "livenessProbe"))
    for _second in range(0, longest + 60, 5):
        if bench.look(seen, after=5.0):
            assert first is not None
            bench.end(first, took=0.0)
        state = bench.policy.state
        files.show(state, alive=True)
        kubelet.at(bench.now, status)
    assert not kubelet.kills
    assert liveness.unready() == f"{bench.policy.state.summary}\n"
    assert ": " in bench.policy.state.summary


@rule("R13")
def test_a_proxy_that_does_not_run_though_it_is_said_to_is_a_reason_to_restart_the_pod(
    liveness: Liveness,
) -> None:
    kubelet = Kubelet(liveness)
    for second in range(0, patience(build_probes(Settings())["startupProbe"]) + 60, 5):
        kubelet.at(float(second), INACTIVE)
    assert kubelet.kills
