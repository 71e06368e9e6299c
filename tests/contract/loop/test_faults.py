"""The daemon's real loop where files cannot be written, callbacks raise, settings break."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import threading
import time
from dataclasses import replace
from typing import Any

import pytest
from pytest_mock import MockerFixture

from installer.daemon.configuration import Configuration
from installer.daemon.runtime_state import MODE_FILE, STAMPS
from installer.errors import InvalidInputError
from installer.model import paths
from installer.model.event import Event
from installer.model.names import Mode
from tests.lib.own_process import KUBELET, Scene
from tests.lib.rules import rule


@rule("R15")
def test_runtime_state_that_cannot_be_written_is_said_once(scene: Scene) -> None:
    for path in (MODE_FILE, STAMPS):
        scene.path(path).mkdir(parents=True)
    scene.does("install", "moves(restarts=1); ends(0, changed=True, restarts=1)")

    def body() -> None:
        scene.reaches("converged")
        scene.drift()
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
    assert kinds[ended - 1 : ended + 1] == ["look", "pass.ended"]


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
    scene.does("install", "time.sleep(1); converges(False)")

    def body() -> None:
        scene.until(lambda: bool(scene.of("pass.started")))
        scene.systemd.errors["unit", KUBELET] = RuntimeError("a bug")
        scene.until(lambda: bool(scene.of("daemon.error")))
        scene.systemd.errors.clear()
        scene.until(lambda: "failed" in [state.data["phase"] for state in scene.of("state")])
        scene.reaches("converged")

    scene.play(body)


def test_new_settings_count_from_the_next_picture_on(scene: Scene) -> None:
    def body() -> None:
        scene.reaches("converged")
        scene.does("remove", "converges(True)")
        scene.settings(mode=Mode.REMOVE)
        scene.config.write_text("mode: remove")
        scene.reaches("removed")
        assert scene.begun().count("install") == 1

    scene.play(body)


def installed(scene: Scene) -> int:
    """How many passes have ended."""
    return [event.data["verb"] for event in scene.of("pass.ended")].count("install")


@rule("R4", "R15")
def test_a_daemon_that_starts_with_invalid_settings_takes_kubelet_off_a_dead_relay(
    scene: Scene, mocker: MockerFixture
) -> None:
    """The record knows kubelet's unit, and the rescue is told."""
    given = {"dead_seconds": 4.0}
    mocker.patch("installer.daemon.loop.Configuration", side_effect=lambda **k: Configuration(**(given | k)))
    scene.systemd.units["k.service"] = replace(scene.systemd.units.pop(KUBELET), name="k.service")
    scene.path(paths.RECORD).parent.mkdir(parents=True)
    drop_in = paths.drop_in(paths.USUAL_UNITS, "k.service")
    scene.path(paths.RECORD).write_text(json.dumps({"owned": {paths.GUARD: {}, drop_in: {}}}))
    scene.faults = ["mode: bad"]
    scene.does("restart-proxy", "")
    scene.does("rescue", "assert order['kubelet_unit'] == 'k.service'")

    def body() -> None:
        scene.reaches("failed")
        assert not scene.command.ready_file.exists()
        scene.relay = False
        scene.until(lambda: "rescue" in scene.begun())
        scene.until(lambda: scene.of("pass.ended")[-1].data["verb"] == "rescue")
        assert scene.of("pass.ended")[-1].data["exitCode"] == 0

    scene.play(body)
    assert any("starting with default settings: mode: bad" in event.message for event in scene.of("warning"))


@rule("R10")
def test_a_daemon_whose_settings_turn_into_those_of_a_removal_claims_the_host_for_it(scene: Scene) -> None:
    """Else it would leave its claim behind, and whoever has yielded to it would wait for ever."""
    scene.faults = ["mode: bad"]
    scene.does("remove", "ends(5, 'the disk is full')")

    def body() -> None:
        scene.reaches("failed")
        scene.settings(mode=Mode.REMOVE)
        scene.config.write_text("corrected")
        scene.until(lambda: "remove" in scene.begun())
        scene.until(lambda: json.loads(scene.path(MODE_FILE).read_text())["mode"] == "remove", 5)

    scene.play(body)
    assert not scene.path(MODE_FILE).exists()


@rule("R10")
def test_a_claim_that_somebody_deletes_comes_back(scene: Scene) -> None:
    """Else another installation would begin to act here at its next start. But a removal by hand deletes it
    with what is around it, and is left alone until it has ended."""
    scene.command = replace(scene.command, installation="ours/first")
    claim = scene.path(MODE_FILE)

    def body() -> None:
        scene.reaches("converged")
        before = claim.read_text()
        claim.unlink()
        scene.until(claim.exists, 5)
        assert claim.read_text() == before
        scene.seen = {"at_work": "remove"}
        scene.looks()
        claim.unlink()
        scene.looks()
        assert not claim.exists()
        scene.seen = {}
        scene.until(claim.exists, 10)

    scene.play(body)


@rule("R10")
def test_a_daemon_that_was_replaced_during_its_pass_claims_nothing_after_it(scene: Scene) -> None:
    """Else it would wait for itself for ever: the removal that came after it has ended by then."""
    claim = scene.path(MODE_FILE)

    def body() -> None:
        scene.reaches("converged")
        scene.does("install", "signal.signal(signal.SIGTERM, lambda *_: None)\ntime.sleep(3)")
        scene.drift()
        scene.until(lambda: len(scene.of("pass.started")) > 1)
        claim.write_text(json.dumps({"mode": "remove", "by": "another pod", "replaced": ["one"]}))
        scene.until(lambda: bool(scene.of("pass.stopped")))
        claim.unlink()
        scene.reaches("yielded")
        assert not claim.exists()

    scene.play(body)


@rule("R13")
def test_pages_are_served_once_the_settings_are_corrected(scene: Scene) -> None:
    scene.faults = ["mode: bad"]

    def body() -> None:
        scene.reaches("failed")
        assert not scene.of("pages.served")
        scene.settings(listen="127.0.0.1:0")
        scene.config.write_text("corrected")
        scene.until(lambda: bool(scene.of("pages.served")), 10)

    scene.play(body)


@rule("R13", "R15")
def test_a_name_server_that_does_not_answer_delays_nothing(scene: Scene, mocker: MockerFixture) -> None:
    answers, find = threading.Event(), socket.getaddrinfo

    def look_up(_host: str, *args: Any, **kwargs: Any) -> Any:
        answers.wait()
        return find("127.0.0.1", *args, **kwargs)

    mocker.patch("socket.getaddrinfo", look_up)
    scene.settings(dead_seconds=1.0, listen="here.example:0")

    def body() -> None:
        try:
            scene.reaches("converged")
            scene.relay = False
            scene.until(lambda: "rescue" in scene.begun(), 30)
            assert not scene.of("pages.served")
        finally:
            answers.set()
        scene.until(lambda: bool(scene.of("pages.served")))

    scene.play(body)


@rule("R13")
def test_pages_are_not_served_where_the_settings_no_longer_say(scene: Scene, mocker: MockerFixture) -> None:
    """They have changed while the host's name was looked up."""
    answers, find = threading.Event(), socket.getaddrinfo

    def look_up(host: str, *args: Any, **kwargs: Any) -> Any:
        if host == "before.example":
            answers.wait()
        return find("127.0.0.1", *args, **kwargs)

    mocker.patch("socket.getaddrinfo", look_up)
    scene.settings(listen="before.example:0")

    def body() -> None:
        try:
            scene.reaches("converged")
            taken = scene.taken
            scene.settings(listen="now.example:0")
            scene.config.write_text("changed")
            scene.until(lambda: scene.taken > taken)
            scene.looks()
        finally:
            answers.set()
        scene.until(lambda: bool(scene.of("pages.served")))
        assert [event.message.rpartition(" ")[2] for event in scene.of("pages.served")] == ["now.example:0"]

    scene.play(body)


def test_outside_a_pod_invalid_settings_end_the_daemon(scene: Scene) -> None:
    scene.command = replace(scene.command, identity="")
    scene.faults = ["mode: bad"]
    with pytest.raises(InvalidInputError, match="mode: bad"):
        scene.play(lambda: None)


@rule("R4", "R15")
def test_an_assessment_that_hangs_delays_neither_the_probes_nor_a_rescue_and_does_not_pile_up(
    scene: Scene, mocker: MockerFixture
) -> None:
    """A mount hangs among the inputs."""
    mocker.patch("installer.daemon.assessor._DEADLINE", 2.0)

    def body() -> None:
        scene.reaches("converged")
        scene.does("restart-proxy", "")
        scene.hangs = 30.0
        scene.until(lambda: not scene.under_way)
        for _change in range(5):
            scene.drift()
            time.sleep(0.2)
        alive = scene.command.alive_file.stat().st_mtime
        scene.reaches("failed")
        assert "the host could not be assessed within 2 s" in scene.of("state")[-1].message
        assert scene.under_way == 1
        scene.until(lambda: scene.command.alive_file.stat().st_mtime > alive + 3)
        scene.relay = False
        scene.until(lambda: "restart-proxy" in scene.begun(), 20)
        assert scene.under_way == 1
        scene.hangs, scene.relay = 0.0, True
        scene.until(lambda: not scene.under_way, 60)
        scene.reaches("converged")

    scene.play(body)


@pytest.mark.parametrize("mode", Mode)
def test_the_files_of_the_probes_stay_young(scene: Scene, mode: Mode) -> None:
    scene.settings(mode=mode)
    scene.does("remove", "converges(False)")

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
