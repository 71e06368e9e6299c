"""The daemon's real loop with real children, whose work is a few lines of Python, on a host in memory.

Each test makes one thing fail, and shows that the daemon works on.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pytest_mock import MockerFixture

from installer.daemon.configuration import Command, Configuration, print_configuration
from installer.daemon.loop import Daemon
from installer.daemon.runtime_state import MODE_FILE, STAMPS
from installer.errors import UnservableHostError
from installer.model import paths
from installer.model.daemon import Cluster, DaemonState, NoCluster
from installer.model.event import Event
from installer.model.resource import UnitState
from installer.model.state import Mode
from tests.fakes import FakeSystemd
from tests.rules import rule

SOON = 20.0
KUBELET = "kubelet.service"
OURS = (f"{paths.UNIT_VARIABLE}=digest",)

# A child: what it does for each verb is a file of that name.
CHILD = """
import json, os, pathlib, signal, sys, time
def say(kind, message="", **data):
    print(json.dumps({"kind": kind, "message": message, "data": data}), flush=True)
verb = next(word for word in sys.argv[2:] if not word.startswith("--"))
with open(sys.argv[1] + "/begun", "a") as begun:
    begun.write(verb + "\\n")
exec(pathlib.Path(sys.argv[1], verb).read_text())
"""
STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(100)"


@dataclass
class Listened(FakeSystemd):
    changed: Callable[[], None] = lambda: None
    is_listening: bool = True
    on_look: Callable[[], None] = lambda: None

    def unit(self, name: str) -> UnitState:
        if name == KUBELET:
            self.on_look()
        return super().unit(name)

    def listen(self, names: Iterable[str], changed: Callable[[], None]) -> None:
        self.changed = changed


class Scene:
    """A daemon, its children's work, and what it says."""

    def __init__(self, directory: Path) -> None:
        self.root, self.work = directory / "root", directory / "work"
        for made in (self.root / "run/dbus", self.root / "etc/cri-resmgr", self.work):
            made.mkdir(parents=True)
        for path in (paths.SYSTEM_BUS, paths.RELAY_SOCKET, paths.PROXY_ENVIRONMENT, "/run/runtime.sock"):
            self.path(path).parent.mkdir(parents=True, exist_ok=True)
            self.path(path).touch()
        self.path(paths.PROXY_ENVIRONMENT).write_text("X=--runtime-socket=/run/runtime.sock")
        command_line = self.path("/proc/7/cmdline")
        command_line.parent.mkdir(parents=True)
        command_line.write_bytes(
            b"kubelet\0--container-runtime-endpoint=%b\0" % paths.RELAY_ENDPOINT.encode()
        )
        self.config = directory / "settings.yaml"
        self.config.touch()
        self.events: list[Event] = []
        self.log: Callable[[Event], None] = self.events.append
        self.relay = True
        self.systemd = Listened()
        for name, pid in ((paths.PROXY_UNIT, 6), (KUBELET, 7)):
            self.systemd.units[name] = UnitState(
                name, "loaded", "active", "running", main_pid=pid, environment=OURS
            )
        self.command = Command(
            self.root,
            directory / "payload",
            None,
            self.config,
            directory / "probes/ready",
            "one",
            program=(sys.executable, "-S", "-c", CHILD, str(self.work)),
        )
        self.settings()
        self.does("install", "say('converged', changed=False)")
        self.does("rescue", "")

    def path(self, path: str) -> Path:
        return self.root / path[1:]

    def settings(self, **configuration: Any) -> None:
        given = replace(Configuration(), **({"dead_seconds": 4.0} | configuration))
        self.does("settings", f"print({print_configuration(given)!r})")

    def does(self, verb: str, code: str) -> None:
        (self.work / verb).write_text(code)

    def begun(self) -> list[str]:
        return (self.work / "begun").read_text().split()

    def answers(self, path: Path, _seconds: float) -> bool:
        return self.relay or path.readlink().name == "runtime.sock"

    def emit(self, event: Event) -> None:
        self.log(event)

    def of(self, kind: str) -> list[Event]:
        return [event for event in list(self.events) if event.kind == kind]

    def phase(self) -> str:
        states = self.of("state")
        return str(states[-1].data["phase"]) if states else ""

    def reaches(self, phase: str, seconds: float = SOON) -> None:
        self.until(lambda: self.phase() == phase, seconds)

    def until(self, reached: Callable[[], bool], seconds: float = SOON) -> float:
        """How long it took."""
        started = time.monotonic()
        while not reached():
            assert time.monotonic() - started < seconds, [event.message for event in self.events]
            time.sleep(0.01)
        return time.monotonic() - started

    def looks(self) -> Event:
        """Makes the daemon look now; what it says came of it."""
        before = len(self.of("looked"))
        os.kill(os.getpid(), signal.SIGHUP)
        self.until(lambda: len(self.of("looked")) > before)
        return self.of("looked")[before]

    def drift(self) -> None:
        self.path(paths.FALLBACK_CONFIG).write_text(str(time.monotonic()))

    def play(self, body: Callable[[], None], cluster: Cluster | None = None) -> None:
        """Runs the daemon until `body`, beside it, has ended."""
        daemon = Daemon(self.command, self.emit, cluster or NoCluster(), self.systemd, self.answers)

        def play() -> None:
            try:
                self.until(lambda: bool(self.of("daemon.started")))
                body()
            finally:
                os.kill(os.getpid(), signal.SIGTERM)

        with ThreadPoolExecutor(1) as pool:
            played = pool.submit(play)
            code = daemon.run()
            played.result()
        assert code == 0


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def refuse(mocker: MockerFixture, *verbs: str) -> list[str]:
    """From now on children for these verbs cannot be started, as where the pids cgroup is full."""
    real, refused = subprocess.Popen, list(verbs)

    def start(argv: tuple[str, ...], **options: Any) -> Any:
        if any(verb in argv for verb in refused):
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return real(argv, **options)

    mocker.patch("subprocess.Popen", side_effect=start)
    return refused


# -- children -------------------------------------------------------------------------------


@rule("R15")
def test_a_child_that_cannot_be_started_is_tried_again(scene: Scene, mocker: MockerFixture) -> None:
    refused = refuse(mocker, "install")

    def body() -> None:
        scene.reaches("failed")
        assert not scene.command.ready_file.exists()
        assert "could not be started: [Errno 11]" in scene.of("state")[-1].message
        assert len(scene.of("pass.started")) == 1
        refused.clear()
        scene.reaches("converged")
        scene.until(scene.command.ready_file.exists)
        refused.append("install")  # a drift that cannot be repaired is not ready either
        scene.drift()
        scene.reaches("failed")
        scene.until(lambda: not scene.command.ready_file.exists())
        refused.clear()
        scene.reaches("converged")

    scene.play(body)


@rule("R15")
def test_a_rescue_that_cannot_be_started_is_tried_again_soon(scene: Scene, mocker: MockerFixture) -> None:
    refused = refuse(mocker)

    def body() -> None:
        scene.reaches("converged")
        refused.append("rescue")
        scene.relay = False
        scene.until(lambda: [event.data["verb"] for event in scene.of("pass.ended")].count("rescue") > 1)
        refused.clear()
        scene.until(lambda: scene.of("pass.ended")[-1].data["exitCode"] == 0)

    scene.play(body)
    assert "rescue" in scene.begun()


def test_a_child_that_is_killed_says_by_what(scene: Scene) -> None:
    scene.does("install", "os.kill(os.getpid(), signal.SIGKILL)")

    def body() -> None:
        scene.reaches("failed")
        assert "`install`: killed by signal 9 (out of memory?)" in scene.of("state")[-1].message
        assert scene.of("pass.ended")[-1].data["exitCode"] == 137

    scene.play(body)


@rule("R15")
def test_a_child_that_hangs_is_ended_at_its_deadline(scene: Scene) -> None:
    scene.settings(converge_seconds=1.0)
    scene.does("install", STUBBORN)

    def body() -> None:
        took = scene.until(lambda: bool(scene.of("pass.ended")))
        assert 1.5 < took < 10
        assert "`install` did not end within 1 s" in scene.of("pass.ended")[0].message
        scene.does("install", "say('converged', changed=False)")
        scene.reaches("converged")

    scene.play(body)


@rule("R15")
@pytest.mark.parametrize("work", ["os.kill(os.getpid(), signal.SIGSTOP)", STUBBORN])
def test_a_rescue_does_not_wait_for_a_repair_that_hangs(scene: Scene, work: str) -> None:
    def body() -> None:
        scene.reaches("converged")
        scene.does("install", work)
        scene.drift()
        scene.until(lambda: scene.of("pass.started")[-1].data["why"] == "a file has changed")
        scene.relay = False
        scene.until(lambda: "rescue" in scene.begun(), 30)
        (stopped,) = scene.of("pass.stopped")
        assert "stopping install: kubelet hangs on a relay" in stopped.message

    scene.play(body)


def test_a_repair_that_moves_things_is_not_stopped_for_a_rescue(scene: Scene) -> None:
    def body() -> None:
        scene.reaches("converged")
        scene.does("install", "say('step.done', 'restart the proxy', step='restart'); time.sleep(8)")
        scene.relay = False
        scene.drift()
        scene.until(lambda: len(scene.of("pass.ended")) > 1)
        assert scene.of("pass.ended")[-1].data["exitCode"] == 0
        assert not scene.of("pass.stopped")

    scene.play(body)


@rule("R13")
@pytest.mark.parametrize("passable", [True, False])
def test_a_refused_node_is_no_reason_to_restart_the_pod(scene: Scene, passable: bool) -> None:
    scene.settings(refused_is_ready=passable)
    scene.does("install", "say('error', 'kubelet.service is masked', exitCode=4); sys.exit(4)")

    def body() -> None:
        scene.reaches("refused")
        scene.until(scene.command.excused_file.exists)
        assert scene.command.ready_file.exists() is passable
        assert "kubelet.service is masked; nothing was touched. Put it right" in scene.of("state")[-1].message
        scene.does("install", "say('converged', changed=False)")
        scene.drift()
        scene.reaches("converged")
        assert not scene.command.excused_file.exists()

    scene.play(body)


@rule("R13")
def test_a_first_installation_that_fails_is_no_reason_to_restart_the_pod(scene: Scene) -> None:
    scene.does("install", "say('error', 'the proxy exits at once', exitCode=5); sys.exit(5)")

    def body() -> None:
        scene.reaches("failed")
        scene.until(scene.command.excused_file.exists)
        assert not scene.command.ready_file.exists()
        scene.does("install", "say('converged', changed=True, generation='g')")
        scene.reaches("converged", 60)  # tried again by itself
        assert not scene.command.excused_file.exists()
        scene.does("install", "say('error', 'the proxy exits at once', exitCode=5); sys.exit(5)")
        scene.drift()
        scene.reaches("failed")
        assert not scene.command.excused_file.exists()  # it was there: its absence counts

    scene.play(body)


class Gone(NoCluster):
    """The API server is certain that the node is no longer to be served. `told` is what was reported, `last`
    when nothing more may follow."""

    def __init__(self) -> None:
        self.told: list[DaemonState] = []
        self.ended_with = ""

    def removal_evidence(self) -> tuple[bool, str]:
        return True, "the DaemonSet is gone"

    def report(self, state: DaemonState) -> None:
        self.told.append(state)

    def end(self) -> None:
        self.ended_with = self.told[-1].phase.value


@rule("R13")
@pytest.mark.parametrize(
    ("work", "phase", "reason"),
    [
        ("say('converged', changed=True)", "removed", ""),
        ("say('error', 'the disk is full', exitCode=5); sys.exit(5)", "failed", "the disk is full"),
    ],
)
def test_how_a_removal_on_evidence_has_ended_is_the_last_word(
    scene: Scene, work: str, phase: str, reason: str
) -> None:
    scene.settings(remove_on_evidence=True)
    scene.does("remove", work)
    cluster = Gone()
    scene.play(lambda: scene.reaches("converged"), cluster)
    assert (cluster.ended_with, cluster.told[-1].reason) == (phase, reason)
    assert not scene.command.ready_file.exists()
    assert scene.path(MODE_FILE).exists() is (phase == "failed")


@rule("R13")
def test_a_pod_on_a_host_without_a_bus_says_so_and_stays(scene: Scene) -> None:
    bus = scene.path(paths.SYSTEM_BUS)
    scene.systemd.errors["unit", paths.PROXY_UNIT] = UnservableHostError("no system bus socket")
    scene.systemd.is_listening = False
    bus.unlink()

    def body() -> None:
        scene.reaches("refused")
        scene.until(scene.command.excused_file.exists)
        assert "no system bus socket; nothing was touched" in scene.of("state")[-1].message
        assert not scene.of("pass.started")
        bus.touch()
        scene.systemd.errors.clear()
        scene.reaches("converged")

    scene.play(body)


# -- what cannot be written -------------------------------------------------------------------


@rule("R15")
def test_runtime_state_that_cannot_be_written_is_said_once(scene: Scene) -> None:
    for path in (MODE_FILE, STAMPS):
        scene.path(path).mkdir(parents=True)
    restart = f"say('step.done', 'restart {KUBELET}', step='restart')\n"
    scene.does("install", restart + "say('converged', changed=True)")

    def body() -> None:
        scene.until(lambda: len(scene.of("pass.ended")) > 1)
        scene.reaches("converged")
        scene.until(scene.command.ready_file.exists)

    scene.play(body)
    warned = [event.message for event in scene.of("warning")]
    assert len([message for message in warned if STAMPS in message]) == 1
    assert len([message for message in warned if MODE_FILE in message]) == 1
    assert sum(int(str(event.data["kubeletRestarts"])) for event in scene.of("pass.ended")) > 1


def test_the_claim_of_a_daemon_that_is_gone_does_not_bind_one_that_cannot_write(scene: Scene) -> None:
    claim = scene.path(MODE_FILE)
    claim.parent.mkdir()
    claim.write_text(json.dumps({"mode": "install", "by": "an earlier pod", "replaced": []}))
    mounted = subprocess.run(["mount", "--bind", "-o", "ro", claim, claim], check=False)
    if mounted.returncode:
        pytest.skip("needs to mount")
    try:  # a mount point: no rename replaces it
        scene.play(lambda: scene.reaches("converged"))
    finally:
        subprocess.run(["umount", claim], check=True)
    assert any(MODE_FILE in event.message for event in scene.of("warning"))


@rule("R15")
def test_probe_files_that_cannot_be_written_end_nothing(scene: Scene) -> None:
    scene.command.ready_file.mkdir(parents=True)
    scene.command.alive_file.parent.mkdir(exist_ok=True)

    def body() -> None:
        scene.reaches("converged")
        scene.drift()
        scene.until(lambda: len(scene.of("pass.ended")) > 1)

    scene.play(body)
    assert len([event for event in scene.of("warning") if "probes" in event.message]) == 1


@rule("R15")
def test_a_log_that_takes_nothing_ends_nothing(scene: Scene) -> None:
    lost: list[str] = []

    def take_nothing(event: Event) -> None:
        lost.append(event.kind)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def body() -> None:
        scene.reaches("converged")
        scene.log = take_nothing
        scene.drift()
        scene.until(lambda: "pass.ended" in lost)
        scene.log = scene.events.append
        scene.drift()
        scene.until(lambda: len(scene.of("pass.ended")) > 1)
        scene.until(lambda: scene.phase() == "converged")

    scene.play(body)


# -- what a callback raises ----------------------------------------------------------------------


@rule("R15")
def test_a_look_that_fails_is_logged_once_and_there_is_a_next_one(scene: Scene) -> None:
    def body() -> None:
        scene.reaches("converged")
        scene.systemd.errors["unit", KUBELET] = RuntimeError("a bug")
        scene.systemd.changed()
        scene.until(lambda: bool(scene.of("daemon.error")))
        (error,) = scene.of("daemon.error")
        assert "RuntimeError: a bug" in error.message
        assert "in look" in str(error.data["trace"])
        alive = scene.command.alive_file.stat().st_mtime
        looks: list[float] = []
        scene.systemd.on_look = lambda: looks.append(time.monotonic())
        scene.until(lambda: len(looks) > 1)
        assert scene.command.alive_file.stat().st_mtime == alive, "what fails must not look alive"
        assert len(scene.of("daemon.error")) == 1
        del scene.systemd.errors["unit", KUBELET]
        scene.until(lambda: scene.command.alive_file.stat().st_mtime > alive)
        scene.drift()
        scene.until(lambda: len(scene.of("pass.ended")) > 1)

    scene.play(body)


def test_what_is_seen_when_a_child_ends_is_what_is_decided_on(scene: Scene) -> None:
    scene.systemd.on_look = lambda: scene.events.append(Event("look", ""))
    scene.play(lambda: scene.reaches("converged"))
    kinds = [event.kind for event in scene.events]
    ended = kinds.index("pass.ended")
    assert kinds[ended - 1 : ended + 2] == ["look", "pass.ended", "state"]


def test_it_looks_when_it_is_asked_to_and_says_what_comes_of_it(scene: Scene) -> None:
    def body() -> None:
        scene.reaches("converged")
        looked = scene.looks()
        assert looked.message.startswith("converged: nothing to do for ")
        assert float(str(looked.data["seconds"])) > 60
        scene.does("install", "time.sleep(100)")
        scene.drift()
        assert scene.looks().message.endswith(": install is running")

    scene.play(body)


@rule("R15")
def test_a_look_that_fails_when_a_child_ends_leaves_no_policy_waiting(scene: Scene) -> None:
    scene.does("install", "time.sleep(1); say('converged', changed=False)")

    def body() -> None:
        scene.until(lambda: bool(scene.of("pass.started")))
        scene.systemd.errors["unit", KUBELET] = RuntimeError("a bug")
        scene.until(lambda: bool(scene.of("daemon.error")))
        scene.systemd.errors.clear()
        scene.reaches("failed")
        scene.reaches("converged")

    scene.play(body)


# -- settings ----------------------------------------------------------------------------------


def test_settings_are_read_again_beside_the_loop(scene: Scene) -> None:
    def body() -> None:
        scene.reaches("converged")
        new = print_configuration(replace(Configuration(), mode=Mode.REMOVE))
        scene.does("settings", f"time.sleep(3); print({new!r})")
        scene.does("remove", "say('converged', changed=True)")
        scene.config.write_text("mode: remove")
        scene.until(lambda: scene.begun().count("settings") > 1)
        scene.path(paths.HOLD).parent.mkdir(parents=True)
        scene.path(paths.HOLD).write_text("by hand\n")
        assert scene.until(lambda: scene.phase() == "held") < 2.0
        scene.reaches("removed")
        assert scene.begun().count("install") == 1, "no pass with settings that are not known yet"

    scene.play(body)


@rule("R15")
def test_settings_that_cannot_be_read_now_are_read_later(scene: Scene, mocker: MockerFixture) -> None:
    refused = refuse(mocker)

    def body() -> None:
        scene.reaches("converged")
        refused.append("settings")
        scene.settings(restarts_per_hour=9)
        scene.config.write_text("other")
        scene.until(lambda: any("the old settings stay" in event.message for event in scene.of("warning")))
        scene.until(lambda: len(scene.of("pass.ended")) > 1)
        refused.clear()
        scene.until(lambda: scene.begun().count("settings") > 1)

    scene.play(body)


def test_a_child_that_cannot_tell_the_settings_is_not_asked_all_the_time(scene: Scene) -> None:
    def body() -> None:
        scene.reaches("converged")
        scene.does("settings", "os.kill(os.getpid(), signal.SIGKILL)")
        scene.config.write_text("other")
        scene.until(lambda: any("the old settings stay" in event.message for event in scene.of("warning")))
        scene.until(lambda: len(scene.of("pass.ended")) > 1)  # with the old ones
        assert scene.looks().data["running"] == ""
        assert scene.begun().count("settings") == 2
        scene.settings()
        scene.until(lambda: scene.begun().count("settings") == 3)

    scene.play(body)


# -- the probes' files ---------------------------------------------------------------------------


@pytest.mark.parametrize("mode", Mode)
def test_the_files_of_the_probes_stay_young(scene: Scene, mode: Mode) -> None:
    scene.settings(mode=mode)
    scene.does("remove", "say('converged', changed=False)")

    def body() -> None:
        scene.until(scene.command.ready_file.exists)
        files = (scene.command.ready_file, scene.command.alive_file)
        before = [file.stat().st_mtime for file in files]
        scene.until(lambda: all(f.stat().st_mtime > b + 3 for f, b in zip(files, before, strict=True)))

    scene.play(body)
    assert not list(scene.command.ready_file.parent.iterdir())


def test_at_rest_it_hardly_runs(scene: Scene) -> None:
    def body() -> None:
        scene.reaches("converged")
        time.sleep(3)
        spent = time.process_time()
        time.sleep(6)
        assert time.process_time() - spent < 0.3

    scene.play(body)
