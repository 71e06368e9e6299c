"""The daemon's real loop and its pictures: when they count, and when there is another one."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
from pytest_mock import MockerFixture

from installer.model import paths
from installer.model.hold import PAUSE_FILE
from installer.model.names import Mode
from tests.lib.hung_mount import hung_mount
from tests.lib.own_process import KUBELET, Scene, SceneEngine
from tests.lib.rules import rule


@rule("R13", "R15")
def test_a_picture_that_takes_longer_than_a_heartbeat_counts(scene: Scene) -> None:
    """A look that finds nothing new is no reason to take it again."""

    def body() -> None:
        scene.reaches("converged")
        scene.path("/proc/7/cmdline").write_bytes(b"kubelet\0")  # the relay's silence calls for nothing
        scene.relay = False
        scene.reaches("unwell")
        scene.looks()
        scene.hangs, taken = 2.5, scene.taken
        scene.seen = {"due": True, "differs": "it was started anew"}
        scene.systemd.units[KUBELET] = replace(scene.systemd.units[KUBELET], invocation_id="another")
        scene.until(lambda: len(scene.of("pass.started")) > 1)
        assert scene.taken == taken + 1

    scene.play(body)


@rule("R13")
def test_what_changes_while_a_picture_is_taken_calls_for_another_one(scene: Scene) -> None:
    def body() -> None:
        scene.reaches("converged")
        scene.hangs, taken = 2.0, scene.taken
        scene.systemd.changed()
        scene.until(lambda: scene.taken > taken)
        scene.relay = False  # which nobody tells
        scene.reaches("unwell")
        scene.until(lambda: scene.taken > taken + 1, 10)

    scene.play(body)


@rule("R13")
def test_a_hold_that_ends_calls_for_another_picture(scene: Scene) -> None:
    """Here it is a link, and nobody tells that what it leads to is gone."""
    hold, reason = scene.path(paths.HOLD), scene.path("/srv/reason")
    for path in (hold, reason):
        path.parent.mkdir(parents=True)
    reason.write_text("ticket 4711")

    def body() -> None:
        scene.reaches("converged")
        scene.path("/proc/7/cmdline").write_bytes(b"kubelet\0")
        scene.relay = False  # so that each heartbeat looks at the hold
        scene.seen = {"code": 5, "reason": "it failed here", "hold": "ticket 4711"}
        hold.symlink_to("/srv/reason")
        scene.reaches("held")
        for _picture in range(3):  # the next one comes after 15 s or more
            scene.looks()
        scene.seen = {}
        reason.unlink()
        scene.reaches("unwell", 8)

    scene.play(body)


@rule("R13")
def test_a_picture_that_was_begun_while_a_child_was_at_work_does_not_count(scene: Scene) -> None:
    def body() -> None:
        scene.reaches("converged")
        scene.does("install", "time.sleep(1); ends(1, 'no')")
        scene.hangs = 2.0
        scene.drift()
        while len(scene.of("pass.started")) < 2:  # somebody never rests: the third picture counts
            scene.systemd.changed()
            time.sleep(0.1)
        scene.until(lambda: len(scene.of("pass.ended")) == 2)
        taken = scene.taken  # the last one was asked for before the child had begun, and has not come
        scene.until(lambda: scene.taken == taken + 1, 4)

    scene.play(body)


@rule("R13", "R15")
def test_an_assessment_that_hangs_is_reported_though_a_child_was_at_work(
    scene: Scene, mocker: MockerFixture
) -> None:
    mocker.patch("installer.daemon.assessor._DEADLINE", 4.0)
    scene.settings(dead_seconds=1.0)

    def body() -> None:
        scene.reaches("converged")
        scene.does("restart-proxy", "time.sleep(5)")
        scene.hangs = 30.0
        scene.systemd.changed()
        scene.relay = False
        scene.until(lambda: "restart-proxy" in scene.begun())  # until after the deadline
        scene.until(lambda: "restart-proxy" in [event.data.get("verb") for event in scene.of("pass.ended")])
        scene.relay = True
        scene.reaches("failed", 15)
        assert "the host could not be assessed" in scene.of("state")[-1].message

    scene.play(body)


@rule("R13")
def test_a_daemon_that_stood_still_takes_another_picture(scene: Scene) -> None:
    """The kernel keeps only so many events for a process that does not read them."""
    freezes = f"kill -STOP {os.getpid()}; sleep 4; kill -CONT {os.getpid()}"

    def body() -> None:
        scene.reaches("converged")
        scene.path("/proc/7/cmdline").write_bytes(b"kubelet\0")  # the relay's silence calls for nothing
        scene.relay = False  # so that each heartbeat comes after a second
        scene.until(lambda: "restart-proxy" in [event.data.get("verb") for event in scene.of("pass.ended")])
        scene.looks()
        taken = scene.taken
        subprocess.run(["/bin/sh", "-c", freezes], check=True)
        scene.until(lambda: scene.taken > taken, 15)

    scene.play(body)


@rule("R13")
def test_a_daemon_that_has_removed_and_stood_still_takes_another_picture(scene: Scene) -> None:
    """It waits for longer than for its timer, which only shows that it lives."""
    freezes = f"kill -STOP {os.getpid()}; sleep 9; kill -CONT {os.getpid()}"
    scene.settings(mode=Mode.REMOVE)
    scene.does("remove", "converges(False)")

    def body() -> None:
        scene.reaches("removed")
        for _picture in range(3):
            scene.looks()
        taken = scene.taken
        subprocess.run(["/bin/sh", "-c", freezes], check=True)
        scene.until(lambda: scene.taken > taken, 15)

    scene.play(body)


@rule("R13", "R15")
def test_a_cache_of_cri_resmgrs_on_a_mount_that_hangs_delays_no_rescue(scene: Scene) -> None:
    scene.settings(dead_seconds=1.0)

    def body() -> None:
        scene.reaches("converged")
        try:
            with hung_mount(scene.path(paths.PROXY_CACHE).parent):
                scene.relay = False
                scene.until(lambda: "rescue" in scene.begun(), 30)
        except OSError as error:
            pytest.skip(f"this machine mounts nothing: {error}")

    scene.play(body)


@rule("R13", "R15")
@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_mount_that_hangs_does_not_delay_a_rescue(scene: Scene, tmp_path: Path, is_deleted: bool) -> None:
    """The configs may be on a share whose server is gone. What is to be watched there is looked for anew with
    each picture, and whether it is still there if another watched directory is gone."""
    configs = tmp_path / "share/configs"
    configs.mkdir(parents=True)
    scene.command = replace(scene.command, configs=configs)
    scene.settings(dead_seconds=1.0)

    def body() -> None:
        scene.reaches("converged")
        try:
            with hung_mount(configs.parent):
                taken = scene.taken
                scene.drift()
                scene.until(lambda: scene.taken > taken)
                if is_deleted:
                    shutil.rmtree(scene.path(paths.FALLBACK_CONFIG).parent)
                scene.relay = False
                scene.until(lambda: "rescue" in scene.begun(), 30)
        except OSError as error:
            pytest.skip(f"this machine mounts nothing: {error}")

    scene.play(body)


@rule("R15")
def test_nor_does_it_where_the_kernel_has_no_watch_left(
    scene: Scene, tmp_path: Path, mocker: MockerFixture
) -> None:
    """Whether it has any is looked at again and again then."""
    mocker.patch("installer.daemon.watch._kernel_watches", return_value=0)
    scene.command = replace(scene.command, configs=tmp_path / "share/configs")
    (tmp_path / "share/configs").mkdir(parents=True)
    scene.settings(dead_seconds=1.0)

    def body() -> None:
        scene.reaches("converged")
        try:
            with hung_mount(tmp_path / "share"):
                scene.relay = False
                scene.until(lambda: "rescue" in scene.begun(), 30)
        except OSError as error:
            pytest.skip(f"this machine mounts nothing: {error}")

    scene.play(body)


@rule("R15")
def test_a_pause_file_is_seen_though_each_assessment_fails(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        scene.taken += 1
        raise RuntimeError("a bug")

    monkeypatch.setattr(SceneEngine, "assess", fail)
    pause = scene.path(PAUSE_FILE)
    pause.parent.mkdir(parents=True, exist_ok=True)

    def body() -> None:
        scene.until(lambda: scene.taken == 3)  # from now on the next one comes after 7 s or more
        scene.reaches("failed")
        pause.touch()
        scene.reaches("paused", 4)

    scene.play(body)


@rule("R13")
def test_why_no_run_begins_is_logged_once_with_what_to_do(scene: Scene) -> None:
    """A run would have said it, with each fault and its hint; but none begins."""

    def body() -> None:
        scene.reaches("converged")
        scene.faults = ["mode: bad", "proxy: bad"]
        scene.config.write_text("other")
        scene.reaches("failed")
        for _picture in range(2):
            scene.looks()
        (said,) = scene.of("error")
        assert (said.message, said.data["exitCode"]) == ("mode: bad\nproxy: bad", 2)
        assert said.data["faults"] == scene.faults

    scene.play(body)
