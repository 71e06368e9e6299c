"""The daemon's real loop with children that do not start, do not end, or fail."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pytest_mock import MockerFixture

from installer.daemon.fleet import LEAVE
from installer.daemon.runtime_state import MODE_FILE
from installer.errors import SystemdError, UnservableHostError
from installer.model import paths
from installer.model.daemon import Cluster, DaemonState
from installer.model.fleet import FleetRules, Permission, PlannedWork
from installer.model.hold import PAUSE_FILE
from installer.model.names import Mode
from tests.lib.own_process import Scene, refuse
from tests.lib.rules import rule

STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(100)"


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
        scene.until(lambda: bool(scene.of("pass.ended")))
        assert "`install` did not end within 1 s" in scene.of("pass.ended")[0].message
        scene.does("install", "converges(False)")
        scene.reaches("converged")

    scene.play(body)


@rule("R15")
@pytest.mark.parametrize("work", ["os.kill(os.getpid(), signal.SIGSTOP)", STUBBORN])
def test_a_rescue_does_not_wait_for_a_repair_that_hangs(scene: Scene, work: str) -> None:
    def body() -> None:
        scene.reaches("converged")
        scene.does("install", work)
        scene.drift()
        scene.until(lambda: scene.of("pass.started")[-1].data["why"] == "fallback.cfg differs")
        scene.relay = False
        scene.until(lambda: "rescue" in scene.begun())
        (stopped,) = scene.of("pass.stopped")
        assert "stopping install: kubelet hangs on a relay" in stopped.message

    scene.play(body)


@rule("R11")
def test_a_host_that_shuts_down_does_not_wait_for_a_daemon_that_follows_a_pass(
    scene: Scene, mocker: MockerFixture
) -> None:
    """The bus ends first, so nobody can see how the pass ends; and the last process ends the shutdown."""
    outliving = mocker.Mock(outlives_us=True)
    mocker.patch("installer.daemon.loop.PassStarter.start", return_value=outliving)

    def body() -> None:
        scene.until(lambda: bool(scene.of("pass.started")))
        scene.systemd.is_listening = False

    scene.play(body)
    outliving.stop.assert_not_called()
    assert not scene.of("pass.ended")


def test_a_relay_that_is_slow_to_answer_is_neither_restarted_nor_left(scene: Scene) -> None:
    """Again and again, as on a starved node."""
    scene.settings(dead_seconds=20.0)

    def body() -> None:
        scene.reaches("converged")
        scene.slow = 1.5
        scene.looks()
        scene.until(lambda: scene.late_answers >= 2)
        assert set(scene.begun()) == {"install"}
        assert scene.phase() == "converged"

    scene.play(body)


def test_a_repair_that_moves_things_is_not_stopped_for_a_rescue(scene: Scene) -> None:
    def body() -> None:
        scene.reaches("converged")
        scene.does("install", "moves(); time.sleep(8)")
        scene.relay = False
        scene.drift()
        scene.until(lambda: len(scene.of("pass.ended")) > 1)
        assert scene.of("pass.ended")[-1].data["exitCode"] == 0
        assert not scene.of("pass.stopped")

    scene.play(body)


@rule("R8")
def test_a_repair_that_has_just_begun_to_move_things_is_not_stopped_either(scene: Scene) -> None:
    """It writes its first line while the daemon, starved, still waits for the relay's answer."""
    go, moved, end = (scene.work / name for name in ("go", "moved", "end"))
    awaits = "while not pathlib.Path({!r}).exists(): time.sleep(0.01)\n"
    scene.settings(dead_seconds=2.0)  # eight, where kubelet cannot be moved
    silent: list[float] = []
    answers = scene.answers

    def starved(path: Path, seconds: float) -> bool:
        if path.readlink().name == "runtime.sock" or scene.relay:
            return answers(path, seconds)
        silent.append(time.monotonic())
        if silent[-1] - silent[0] > 0.5 and not go.exists():  # in the second look
            time.sleep(max(0.0, silent[0] + 4.5 - time.monotonic()))  # more than half of them
            go.touch()
            scene.until(moved.exists)
        return False

    scene.answers = starved  # type: ignore[method-assign]

    def body() -> None:
        scene.reaches("converged")
        work = f"moves()\npathlib.Path({str(moved)!r}).touch()\n"
        scene.does("install", awaits.format(str(go)) + work + awaits.format(str(end)) + "converges(True)")
        scene.drift()
        scene.until(lambda: len(scene.of("pass.started")) > 1)
        scene.relay = False
        scene.until(lambda: bool(silent) and silent[-1] - silent[0] > 5.0)
        scene.relay = True
        end.touch()
        scene.until(lambda: len(scene.of("pass.ended")) > 1)
        assert not scene.of("pass.stopped")
        assert scene.of("pass.ended")[-1].data["exitCode"] == 0

    scene.play(body)


@rule("R13")
@pytest.mark.parametrize("passable", [True, False])
def test_a_refused_node_is_no_reason_to_restart_the_pod(scene: Scene, passable: bool) -> None:
    scene.settings(refused_is_ready=passable)
    scene.does("install", "ends(4, 'kubelet.service is masked')")

    def body() -> None:
        scene.reaches("refused")
        scene.until(scene.command.excused_file.exists)
        assert scene.command.ready_file.exists() is passable
        assert "is masked; what is installed stays. Fix the cause" in scene.of("state")[-1].message
        scene.does("install", "converges(False)")
        scene.drift()
        scene.reaches("converged")
        assert not scene.command.excused_file.exists()

    scene.play(body)


@rule("R13")
def test_a_first_installation_that_fails_is_no_reason_to_restart_the_pod(scene: Scene) -> None:
    scene.does("install", "ends(5, 'the proxy exits at once')")

    def body() -> None:
        scene.reaches("failed")
        scene.until(scene.command.excused_file.exists)
        assert not scene.command.ready_file.exists()
        scene.does("install", "converges(True)")
        scene.reaches("converged", 60)  # tried again by itself
        assert not scene.command.excused_file.exists()
        scene.does("install", "ends(5, 'the proxy exits at once')")
        scene.drift()
        scene.reaches("failed")
        assert not scene.command.excused_file.exists()  # it was there: its absence counts

    scene.play(body)


class Gone(Cluster):
    """The API server is certain that the node is no longer to be served. `told` is what was reported, `last`
    when nothing more may follow."""

    def __init__(self) -> None:
        self.told: list[DaemonState] = []
        self.ended_with = ""

    def removal_evidence(self) -> tuple[bool, str]:
        return True, "the DaemonSet is gone"

    def update(
        self, state: DaemonState, work: PlannedWork | None, rules: FleetRules, *, busy: bool, read_node: bool
    ) -> None:
        self.told.append(state)

    def end(self, *, leaves: bool = False, replaced: bool = False) -> None:
        assert leaves
        self.ended_with = self.told[-1].phase.value


@rule("R13")
@pytest.mark.parametrize(
    ("work", "phase", "reason"),
    [
        ("converges(True)", "removed", ""),
        ("ends(5, 'the disk is full')", "failed", "the disk is full"),
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
@pytest.mark.parametrize("is_first", [True, False])
def test_a_removal_on_evidence_that_has_failed_says_so_whatever_the_last_picture_shows(
    scene: Scene, is_first: bool
) -> None:
    """That was of what was to be installed; and the first one may still be taken when the pod ends."""
    scene.settings(remove_on_evidence=True)
    scene.does("remove", "ends(5, 'the disk is full')")
    scene.hangs = 1.0 if is_first else 0.0
    scene.seen = {"due": False, "code": 4, "reason": "a cgroup driver that is not served"}
    cluster = Gone()
    scene.play(lambda: scene.reaches("starting" if is_first else "refused"), cluster)
    assert (cluster.ended_with, cluster.told[-1].reason) == ("failed", "the disk is full")


@rule("R13")
def test_a_removal_on_evidence_outlasts_another_run(scene: Scene) -> None:
    """A person's `install`, say, holds the host's lock when the DaemonSet is deleted."""
    scene.settings(remove_on_evidence=True)
    mark = scene.path("/another-run-has-ended")
    scene.does(
        "remove",
        f"seen = pathlib.Path({str(mark)!r})\nif not seen.exists(): seen.touch(), ends(75)\nconverges(True)",
    )
    cluster = Gone()
    scene.play(lambda: scene.reaches("converged"), cluster)
    assert scene.begun()[-2:] == ["remove", "remove"]
    assert cluster.ended_with == "removed"


class Leaving(Gone):
    """A fleet that never permits this node to leave. `then` happens while it waits."""

    def __init__(self, then: Callable[[], None]) -> None:
        super().__init__()
        self.then = then

    def permission(self) -> Permission:
        return Permission(True, None, "all permits are taken")

    def update(
        self, state: DaemonState, work: PlannedWork | None, rules: FleetRules, *, busy: bool, read_node: bool
    ) -> None:
        super().update(state, work, rules, busy=busy, read_node=read_node)
        if work == LEAVE:
            self.then()


@rule("R4")
def test_a_daemon_that_waits_to_leave_leaves_no_kubelet_on_a_dead_relay(scene: Scene) -> None:
    """From its base endpoint the removal needs no permit."""
    scene.settings(remove_on_evidence=True)
    scene.does("restart-proxy", "")
    scene.does("rescue", f"pathlib.Path({str(scene.path('/proc/7/cmdline'))!r}).write_text('kubelet')")
    scene.does("remove", "converges(True)")

    def die() -> None:
        scene.relay = False

    cluster = Leaving(die)
    scene.play(lambda: scene.reaches("converged"), cluster)
    assert scene.begun()[-2:] == ["rescue", "remove"]
    assert cluster.ended_with == "removed"


def pause(scene: Scene) -> None:
    scene.path(PAUSE_FILE).touch()


def replace_it(scene: Scene) -> None:
    claim = {"mode": "install", "by": "another pod", "replaced": ["one"]}
    scene.path(MODE_FILE).write_text(json.dumps(claim))


@pytest.mark.parametrize("happens", [pause, replace_it])
def test_a_daemon_that_waits_to_leave_yields_to_a_newer_one_and_to_a_pause(
    scene: Scene, happens: Callable[[Scene], None]
) -> None:
    scene.settings(remove_on_evidence=True)
    scene.play(lambda: scene.reaches("converged"), Leaving(lambda: happens(scene)))
    assert "remove" not in scene.begun()
    assert scene.events[-1].message == "stopped; host left unchanged"


class Ending(Cluster):
    replaced: bool | None = None

    def end(self, *, leaves: bool = False, replaced: bool = False) -> None:
        self.replaced = replaced


@pytest.mark.parametrize("comes", [True, False])
def test_a_daemon_that_ends_looks_once_more_whether_a_newer_one_has_come(scene: Scene, comes: bool) -> None:
    def body() -> None:
        scene.reaches("converged")
        if comes:
            replace_it(scene)

    cluster = Ending()
    scene.play(body, cluster)
    assert cluster.replaced is comes


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


@rule("R13")
def test_a_pod_on_a_host_without_a_bus_takes_other_settings(scene: Scene) -> None:
    """As it is told to: with `rollout.refused: ready` a rollout does not wait for such nodes."""
    scene.systemd.errors["unit", paths.PROXY_UNIT] = UnservableHostError("no system bus socket")
    scene.systemd.is_listening = False
    scene.path(paths.SYSTEM_BUS).unlink()

    def body() -> None:
        scene.reaches("refused")
        scene.settings(refused_is_ready=True)
        scene.config.write_text("rollout: {refused: ready}")
        scene.until(scene.command.ready_file.exists, 20)
        scene.settings(mode=Mode.REMOVE)
        scene.config.write_text("mode: remove")
        scene.until(lambda: scene.of("state")[-1].message.startswith("starting"), 20)
        assert "no system bus socket" in scene.of("state")[-1].message

    scene.play(body)


@rule("R13")
def test_settings_that_come_without_a_picture_begin_no_removal_on_that_of_an_installation(
    scene: Scene,
) -> None:
    """It would go by what the installation was granted, and give the reason why that was refused."""
    scene.seen = {"due": False, "code": 4, "reason": "kubelet is masked"}

    def body() -> None:
        scene.reaches("refused")
        scene.systemd.errors["unit", paths.PROXY_UNIT] = SystemdError("no bus")
        scene.systemd.is_listening = False
        scene.until(lambda: "no bus" in scene.of("state")[-1].message, 40)
        scene.settings(mode=Mode.REMOVE)
        scene.config.write_text("mode: remove")
        scene.until(lambda: scene.of("state")[-1].message.startswith("starting"), 30)
        assert "remove" not in scene.begun()

    scene.play(body)


@rule("R10")
def test_a_removal_takes_the_host_back_and_looks_once_more(scene: Scene) -> None:
    """After a boot the installation's pod may be the last that came, and has begun something."""
    scene.settings(mode=Mode.REMOVE)
    scene.does("remove", "converges(True)")
    theirs = {"mode": "install", "by": "another pod", "replaced": ["one"]}

    def body() -> None:
        scene.reaches("removed")
        scene.path(MODE_FILE).write_text(json.dumps(theirs))
        scene.until(lambda: scene.begun().count("remove") == 2)
        scene.reaches("removed")
        found = json.loads(scene.path(MODE_FILE).read_text())
        assert (found["mode"], found["by"], "another pod" in found["replaced"]) == ("remove", "one", True)

    scene.play(body)


@rule("R10")
@pytest.mark.parametrize(("mode", "phase"), [(Mode.INSTALL, "refused"), (Mode.REMOVE, "removed")])
def test_a_host_where_another_installation_acts_is_left_to_it(scene: Scene, mode: Mode, phase: str) -> None:
    scene.settings(mode=mode)
    scene.command = replace(scene.command, installation="ours/second")
    started = Path(f"/proc/{os.getpid()}/stat").read_text().rpartition(")")[2].split()[19]
    claim: dict[str, object] = {"mode": "install", "by": "their pod", "installation": "theirs/first"}
    claim |= {"pid": os.getpid(), "started": started}
    stat = scene.path(f"/proc/{os.getpid()}/stat")
    stat.parent.mkdir(parents=True, exist_ok=True)
    stat.write_bytes(Path(f"/proc/{os.getpid()}/stat").read_bytes())
    scene.path(MODE_FILE).parent.mkdir(parents=True, exist_ok=True)
    scene.path(MODE_FILE).write_text(json.dumps(claim))

    def body() -> None:
        scene.reaches(phase)
        assert "another installation, theirs/first, acts on this node" in scene.of("state")[-1].message

    scene.play(body)
    assert not scene.of("pass.started")
    assert json.loads(scene.path(MODE_FILE).read_text()) == claim


@rule("R10")
def test_a_removal_calls_no_node_clean_whose_other_installation_may_be_gone(scene: Scene) -> None:
    """Someone has deleted the DaemonSet of that one, renamed it or moved it: what it installed is there."""
    scene.settings(mode=Mode.REMOVE)
    scene.command = replace(scene.command, installation="ours/second")
    claim = {"mode": "install", "by": "their pod", "installation": "theirs/first", "pid": 1, "started": "7"}
    scene.path(MODE_FILE).parent.mkdir(parents=True, exist_ok=True)
    scene.path(MODE_FILE).write_text(json.dumps(claim))

    def body() -> None:
        scene.reaches("waiting")
        assert "theirs/first, acted on this node and may come back" in scene.of("state")[-1].message
        assert not scene.command.ready_file.exists()

    scene.play(body)
    assert not scene.of("pass.started")
