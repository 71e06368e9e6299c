"""What the daemon looks at, what it keeps, what it makes of a child's words, and what it weighs."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess  # the subject of one test is a process: what it has imported
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from installer.cluster.pod_context import PodContext
from installer.daemon.assessor import Engine
from installer.daemon.configuration import (
    Command,
    Configuration,
    build_configuration,
    listen_address,
)
from installer.daemon.outcome import PassReader, result_event
from installer.daemon.poller import Poller
from installer.daemon.runtime_state import MODE_FILE, STAMPS, RuntimeState
from installer.daemon.transient import UNKNOWN_END
from installer.errors import (
    BusyHostError,
    InstallerError,
    InvalidInputError,
    KubeletKeptError,
    RolledBackError,
    SystemdError,
    UnservableHostError,
)
from installer.host.files import RootedFiles
from installer.host.real import build_host
from installer.inputs.settings import Settings
from installer.model import paths
from installer.model.event import Event
from installer.model.fleet import PlannedWork
from installer.model.hold import PAUSE_FILE
from installer.model.host import UnitDetail, UnitState
from installer.model.names import Mode
from installer.model.result import RunResult, Tally, listed
from installer.report.events import JsonReporter
from tests.lib.fakes import FakeConnections, FakeProcesses, FakeSystemd
from tests.lib.rules import rule

UNMOVED = FakeConnections(None, None, FakeProcesses())  # type: ignore[arg-type]  # of no kubelet on our link
HEAVY = ("jinja2", "grpc", "ssl", "installer.node.carry_out")
KUBELET = "kubelet.service"


def write(root: Path, path: str, text: str = "x") -> Path:
    place = root / path[1:]
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    return place


# -- assessor ------------------------------------------------------------------------------


def test_the_settings_count_though_the_host_cannot_be_assessed(tmp_path: Path, mocker: Any) -> None:
    config = tmp_path / "settings.yaml"
    config.write_text("mode: remove")
    engine = Engine(Command(tmp_path, tmp_path, None, config), build_host(tmp_path))
    mocker.patch("installer.daemon.assessor.take_picture", side_effect=SystemdError("no answer"))
    assessed = engine.assess(None)
    assert (assessed.picture.code, assessed.picture.reason) == (1, "no answer")
    assert assessed.configuration is not None
    assert assessed.configuration.mode is Mode.REMOVE


# -- runtime_state -------------------------------------------------------------------------


class Wall:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def files(tmp_path: Path) -> RootedFiles:
    root = tmp_path / "root"
    root.mkdir()
    return RootedFiles(root)


def quiet(_message: str, _hint: str) -> None:
    """Nobody is warned."""


def runtime_state(files: RootedFiles, identity: str, wall: Wall | None = None) -> RuntimeState:
    return RuntimeState(files, identity, wall or Wall(), quiet)


@rule("R10")
def test_the_last_that_comes_acts(files: RootedFiles) -> None:
    old, new = runtime_state(files, "old"), runtime_state(files, "new")
    assert old.claim(Mode.INSTALL)
    assert not old.superseded()
    assert new.claim(Mode.REMOVE)
    assert (old.superseded(), new.superseded()) == (True, False)
    assert json.loads(files.read(MODE_FILE) or b"")["mode"] == "remove"


def test_a_removal_takes_the_host_back_from_an_installation(files: RootedFiles) -> None:
    """After a boot the pods of both start at once; or one of the installation was evicted meanwhile."""
    removing, installing = runtime_state(files, "removing"), runtime_state(files, "installing")
    removing.claim(Mode.REMOVE)
    installing.claim(Mode.INSTALL)
    assert removing.superseded()
    assert not installing.insist()
    assert removing.insist()
    assert (removing.superseded(), installing.superseded()) == (False, True)
    assert not runtime_state(files, "installing").claim(Mode.INSTALL)
    again = runtime_state(files, "removing")
    assert again.claim(Mode.REMOVE)
    assert not again.superseded()


def of(installation: str, files: RootedFiles, wall: Wall) -> RuntimeState:
    return RuntimeState(files, f"pod of {installation}", wall, quiet, installation)


def lives(files: RootedFiles, started: str = "77") -> None:
    """This process, as the host's /proc would show it."""
    files.make_directory(f"/proc/{os.getpid()}")
    words = ["S", *map(str, range(18)), started, "0"]
    files.write(f"/proc/{os.getpid()}/stat", f"{os.getpid()} (a) b) {' '.join(words)}".encode(), 0o644)


def expect_vacant_in_a_while(waiting: RuntimeState, wall: Wall) -> None:
    """Not at once: a pod that is replaced is away for a moment."""
    wall.now += 200
    assert not waiting.is_vacant()
    wall.now += 200
    assert waiting.is_vacant()


@rule("R10")
@pytest.mark.parametrize("mode", Mode)
def test_a_daemon_of_another_installation_neither_installs_nor_removes(
    files: RootedFiles, mode: Mode
) -> None:
    """Two DaemonSets select the node. Each would undo what the other does, and `uninstall` of one would
    remove what the other serves."""
    wall = Wall()
    lives(files)
    first, second = of("kube-system/first", files, wall), of("kube-system/second", files, wall)
    assert first.claim(Mode.INSTALL)
    assert not second.claim(mode)
    assert not second.insist()
    assert (first.superseded(), second.superseded()) == (False, True)
    assert second.foreign == "kube-system/first"
    wall.now += 10_000
    assert not second.is_vacant()


def test_another_installation_whose_daemons_are_gone_for_long_is_followed(files: RootedFiles) -> None:
    """Its DaemonSet was deleted and left the node as it was. A pod that is replaced is away for a moment."""
    wall = Wall()
    lives(files)
    of("kube-system/first", files, wall).claim(Mode.INSTALL)
    second = of("kube-system/second", files, wall)
    assert not second.claim(Mode.INSTALL)
    lives(files, started="99")  # another process has its number
    expect_vacant_in_a_while(second, wall)
    # Its container starts again.
    again = of("kube-system/second", files, wall)
    assert again.claim(Mode.INSTALL)
    assert (again.superseded(), again.foreign) == (False, "")


@pytest.mark.parametrize("name", ["resmgr", "disk-removal", "removal", "a-removal-removal"])
def test_a_removal_is_of_the_installation_whose_daemon_set_it_follows(name: str) -> None:
    """Else it takes its own installation for another one, and leaves the node to it as clean."""
    installs = PodContext("host", 443, "/account", "n1", namespace="tools", daemonset=name)
    removes = replace(installs, daemonset=f"{name}-removal")
    assert installs.installation == removes.installation != ""


def test_a_newer_pod_of_the_same_installation_is_no_other_one(files: RootedFiles) -> None:
    wall = Wall()
    lives(files)
    first = of("kube-system/first", files, wall)
    first.claim(Mode.INSTALL)
    removal = RuntimeState(files, "its removal", wall, quiet, "kube-system/first")
    assert removal.claim(Mode.REMOVE)
    assert (removal.foreign, first.superseded(), first.foreign) == ("", True, "")


def test_a_removal_yields_to_a_newer_one(files: RootedFiles) -> None:
    old, new = runtime_state(files, "old"), runtime_state(files, "new")
    old.claim(Mode.REMOVE)
    new.claim(Mode.REMOVE)
    assert not old.insist()
    assert (old.superseded(), new.superseded()) == (True, False)


@rule("R10")
def test_a_removal_that_was_replaced_and_takes_the_host_back_begins_anew(files: RootedFiles) -> None:
    """The newer one has ended, and left the host to it; then an installation's pod has come. That yields to
    the removal, which does nothing more after it was replaced."""
    lives(files)
    old, new = runtime_state(files, "old"), runtime_state(files, "new")
    old.claim(Mode.REMOVE)
    new.claim(Mode.REMOVE)
    assert old.superseded()
    new.forget(everything=False)
    installing = runtime_state(files, "installing")
    assert installing.claim(Mode.INSTALL)
    assert old.insist()
    assert (installing.superseded(), installing.is_vacant(), old.is_vacant()) == (True, False, True)


@rule("R10")
def test_an_installation_whose_claim_was_deleted_has_time_to_restore_it(files: RootedFiles) -> None:
    """Its pass is at work, and it lives."""
    wall = Wall()
    lives(files)
    first, second = of("kube-system/first", files, wall), of("kube-system/second", files, wall)
    first.claim(Mode.INSTALL)
    assert not second.claim(Mode.INSTALL)
    files.remove(MODE_FILE)
    assert not second.is_vacant()
    wall.now += 10
    assert not second.is_vacant()
    wall.now += 30
    assert second.is_vacant()


@rule("R10")
def test_of_two_whose_claim_was_deleted_before_the_old_one_saw_it_one_acts(files: RootedFiles) -> None:
    old, new = runtime_state(files, "old"), runtime_state(files, "new")
    old.claim(Mode.INSTALL)
    new.claim(Mode.REMOVE)
    files.remove(MODE_FILE)
    old.restore(Mode.INSTALL)
    new.restore(Mode.REMOVE)
    assert (old.superseded(), new.superseded()) == (True, False)
    for each, mode in ((old, Mode.INSTALL), (new, Mode.REMOVE)):
        each.restore(mode)
        assert (old.superseded(), new.superseded()) == (True, False)


def test_one_that_was_replaced_knows_when_nobody_acts_any_more(files: RootedFiles) -> None:
    """The removal's own pass takes the claim along for a moment."""
    wall = Wall()
    installing, removing = runtime_state(files, "installing", wall), runtime_state(files, "removing")
    installing.claim(Mode.INSTALL)
    removing.claim(Mode.REMOVE)
    assert not installing.is_vacant()
    files.remove_tree(paths.OUR_RUNTIME)
    assert not installing.is_vacant()
    removing.restore(Mode.REMOVE)
    wall.now += 60
    assert not installing.is_vacant()
    removing.forget()
    assert not installing.is_vacant()
    wall.now += 60
    assert installing.is_vacant()
    assert runtime_state(files, "installing").claim(Mode.INSTALL)


@pytest.mark.parametrize("mode", Mode)
def test_one_that_was_replaced_begins_anew_when_the_newer_one_was_killed(
    files: RootedFiles, mode: Mode
) -> None:
    """Or somebody has run it by hand for a while, beside the pod. A container that starts again is away for a
    moment."""
    wall = Wall()
    lives(files)
    old, new = of("kube-system/first", files, wall), runtime_state(files, "by hand", wall)
    old.claim(Mode.INSTALL)
    new.claim(mode)
    for _ in range(3):
        wall.now += 1000
        assert not old.is_vacant()
    lives(files, started="99")  # another process has its number
    assert not old.is_vacant()
    wall.now += 200
    assert not old.is_vacant()
    new.claim(mode)
    assert not old.is_vacant()
    lives(files, started="101")
    assert not old.is_vacant()
    expect_vacant_in_a_while(old, wall)
    again = of("kube-system/first", files, wall)
    assert again.claim(Mode.INSTALL)
    assert not again.superseded()


def test_a_removal_that_ends_unfinished_gives_the_host_back(files: RootedFiles) -> None:
    installing, removing = runtime_state(files, "installing"), runtime_state(files, "removing")
    installing.claim(Mode.INSTALL)
    installing.stamp(1)
    removing.claim(Mode.REMOVE)
    removing.forget(everything=False)
    assert installing.claim(Mode.INSTALL)
    assert installing.ages()
    installing.forget(everything=False)
    assert files.read(MODE_FILE)


def test_after_a_removal_it_leaves_nothing(files: RootedFiles) -> None:
    removing = runtime_state(files, "removing")
    removing.claim(Mode.REMOVE)
    removing.stamp(1)
    files.write(f"{paths.OUR_RUNTIME}/cluster.json", b"{}", 0o644)
    removing.forget()
    assert files.status(paths.OUR_RUNTIME) is None


def test_after_a_removal_it_leaves_what_another_daemon_or_installation_has_there(files: RootedFiles) -> None:
    removing, newer = runtime_state(files, "removing"), runtime_state(files, "newer")
    removing.claim(Mode.REMOVE)
    newer.claim(Mode.INSTALL)
    removing.forget()
    assert files.read(MODE_FILE)
    files.make_directory(paths.OUR_STATE)
    files.write(paths.RECORD, b"{}", 0o600)
    newer.forget()
    assert files.read(MODE_FILE)


@rule("R4")
def test_a_daemon_that_ends_leaves_the_link_that_kubelet_may_live_by(files: RootedFiles) -> None:
    """The record is lost, and the daemon is refused: that is no removal."""
    link = paths.endpoint_link("/run/containerd/containerd.sock")
    files.make_directory(str(Path(link).parent))
    files.link(link, paths.RELAY_SOCKET)
    state = runtime_state(files, "one")
    state.claim(Mode.INSTALL)
    state.forget()
    assert files.state(link).target == paths.RELAY_SOCKET
    files.remove(link)
    state.forget()
    assert files.status(paths.OUR_RUNTIME) is None


def test_one_that_was_replaced_knows_it_after_its_container_is_started_again(files: RootedFiles) -> None:
    runtime_state(files, "old").claim(Mode.INSTALL)
    runtime_state(files, "new").claim(Mode.REMOVE)
    again = runtime_state(files, "old")
    assert not again.claim(Mode.INSTALL)
    assert not runtime_state(files, "new").superseded()


def test_the_same_one_started_again_acts_on(files: RootedFiles) -> None:
    runtime_state(files, "one").claim(Mode.INSTALL)
    assert runtime_state(files, "one").claim(Mode.INSTALL)


def test_a_removal_puts_back_its_mark_with_whom_it_replaced(files: RootedFiles) -> None:
    runtime_state(files, "old").claim(Mode.INSTALL)
    new = runtime_state(files, "new")
    new.claim(Mode.REMOVE)
    files.remove_tree(paths.OUR_RUNTIME)
    assert not new.superseded()
    new.restore(Mode.REMOVE)
    assert not runtime_state(files, "old").claim(Mode.INSTALL)


def test_restoring_does_not_overwrite_a_newer_one(files: RootedFiles) -> None:
    old = runtime_state(files, "old")
    old.claim(Mode.REMOVE)
    runtime_state(files, "new").claim(Mode.INSTALL)
    old.restore(Mode.REMOVE)
    assert old.superseded()


def test_stamps_outlive_the_process(files: RootedFiles) -> None:
    wall = Wall()
    runtime_state(files, "one", wall).stamp(1)
    wall.now = 200.0
    runtime_state(files, "two", wall).stamp(2)
    assert runtime_state(files, "three", wall).ages() == (100.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("text", "ages"),
    [
        ("[" * 100_000, ()),
        (f'{{"restarts": [1{"0" * 400}, -1{"0" * 400}, NaN, Infinity, "x", []]}}', (0.0, 100.0, 0.0, 0.0)),
        ("[]", ()),
    ],
)
def test_damaged_stamps_are_rather_counted_than_forgotten(
    files: RootedFiles, text: str, ages: tuple[float, ...]
) -> None:
    files.make_directory(paths.OUR_RUNTIME)
    (files.root / STAMPS[1:]).write_text(text)
    assert runtime_state(files, "one").ages() == ages


def test_restarts_are_not_forgotten_by_a_clock_that_was_set_back(files: RootedFiles) -> None:
    wall = Wall()
    wall.now = 7200.0
    runtime_state(files, "one", wall).stamp(3)
    wall.now = 3600.0
    assert runtime_state(files, "two", wall).ages() == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"restarts": 3}', '{"by": 4, "replaced": "x"}'])
def test_unreadable_marks_count_as_none(files: RootedFiles, text: str) -> None:
    for path in (MODE_FILE, "/run/cri-resmgr-installer/restarts.json"):
        write(files.root, path, text)
    assert runtime_state(files, "one").ages() == ()
    assert runtime_state(files, "one").claim(Mode.INSTALL)


# -- snapshot -------------------------------------------------------------------------


@pytest.fixture
def poller(files: RootedFiles, tmp_path: Path) -> Poller:
    for path in (paths.BINARY, paths.FALLBACK_CONFIG, "/etc/default/kubelet", "/etc/kubelet.service"):
        write(files.root, path)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/fallback.cfg").write_text("a")
    systemd = FakeSystemd()
    systemd.units[KUBELET] = UnitState(
        KUBELET, "loaded", "active", "running", main_pid=7, fragment_path="/etc/kubelet.service"
    )
    environment = (("/etc/default/kubelet", True), ("/etc/kubelet/*.env", True))
    systemd.details[KUBELET] = UnitDetail(environment_files=environment)
    return Poller(
        files, systemd, UNMOVED, Configuration(), (tmp_path / "configs",), lambda _path, _seconds: True
    )


def test_the_same_twice_is_the_same(poller: Poller) -> None:
    assert poller.look() == poller.look()


def test_the_runtime_is_asked_only_while_the_relay_is_silent(files: RootedFiles) -> None:
    asked: list[str] = []

    def answers(path: Path, _seconds: float) -> bool:
        asked.append(path.readlink().name)
        return asked[-1] == "containerd.sock"

    for socket in (paths.RELAY_SOCKET, "/run/containerd.sock"):
        write(files.root, socket)
    write(files.root, paths.PROXY_ENVIRONMENT, 'RUNTIME_OPTIONS="--runtime-socket=/run/containerd.sock -x"')
    seen = Poller(files, FakeSystemd(), UNMOVED, Configuration(), (), answers).look()
    assert (seen.relay, seen.runtime) == (False, True)
    assert asked == ["cri-resmgr.sock", "containerd.sock"]


@pytest.mark.parametrize(
    ("usual", "last", "said"),
    [
        (3.24, 5.0, "the relay does not answer in time (its last answer took 3.2 s)"),
        (3.24, 0.001, "the relay does not answer"),  # it hangs up, or is not there
        (0.004, 5.0, "the relay does not answer"),  # it hangs
    ],
)
def test_a_relay_that_has_become_too_slow_is_told_from_a_dead_one(
    files: RootedFiles, usual: float, last: float, said: str
) -> None:
    now, durations = [0.0], [usual, last]

    def answers(path: Path, _seconds: float) -> bool:
        if path.readlink().name == "containerd.sock":
            return True
        now[0] += durations.pop(0)
        return bool(durations)

    for socket in (paths.RELAY_SOCKET, "/run/containerd.sock"):
        write(files.root, socket)
    write(files.root, paths.PROXY_ENVIRONMENT, 'RUNTIME_OPTIONS="--runtime-socket=/run/containerd.sock -x"')
    poller = Poller(files, FakeSystemd(), UNMOVED, Configuration(), (), answers, lambda: now[0])
    assert poller.heartbeat(5.0).answered_in == pytest.approx(usual)
    running = UnitState(paths.PROXY_UNIT, active_state="active", sub_state="running", main_pid=6)
    seen = replace(poller.look(5.0), proxy=running, kubelet=running)
    assert not seen.relay
    assert seen.answered_in == pytest.approx(usual)
    assert seen.complaint(2.0) == said


def test_a_shortage_of_descriptors_is_not_a_silent_relay(files: RootedFiles) -> None:
    """Kubelet would be taken off a relay that works."""

    def answers(_path: Path, _seconds: float) -> bool:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    write(files.root, paths.RELAY_SOCKET)
    with pytest.raises(OSError, match="Too many open files"):
        Poller(files, FakeSystemd(), UNMOVED, Configuration(), (), answers).look()


@rule("R4")
def test_a_runtime_whose_endpoint_is_lost_is_not_called_dead(files: RootedFiles) -> None:
    """Nothing would take kubelet off a dead relay."""
    poller = Poller(files, FakeSystemd(), UNMOVED, Configuration(), (), lambda _path, _seconds: False)
    assert poller.look().runtime
    write(files.root, paths.PROXY_ENVIRONMENT, 'RUNTIME_OPTIONS="--runtime-socket=/run/containerd.sock"')
    assert not poller.look().runtime
    edited = files.root / paths.PROXY_ENVIRONMENT[1:]
    for byte in (b"\xff", b"\0"):
        edited.write_bytes(b"RUNTIME_OPTIONS=--runtime-socket=/run/" + byte + b".sock\n")
        assert not poller.look().runtime


def test_pause_and_hold_are_seen(poller: Poller, files: RootedFiles) -> None:
    assert (poller.look().paused, poller.look().hold) == (False, "")
    write(files.root, PAUSE_FILE, "")
    write(files.root, paths.HOLD, "because\nof this\n")
    assert (poller.look().paused, poller.look().hold) == (True, "because")
    write(files.root, paths.HOLD, "")
    assert poller.look().hold == "no reason given"


@rule("R4")
@pytest.mark.parametrize("broken", [paths.HOLD, PAUSE_FILE])
def test_a_hold_or_pause_on_a_broken_disk_does_not_blind_the_daemon(
    poller: Poller, files: RootedFiles, mocker: Any, broken: str
) -> None:
    status = files.status

    def look(path: str, *, follow: bool = False) -> os.stat_result | None:
        if path == broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return status(path, follow=follow)

    mocker.patch.object(files, "status", look)
    seen = poller.look()
    assert (seen.blind, seen.hold, seen.paused) == ("", "", False)


def test_kubelets_own_command_line_says_whether_it_is_on_the_relay(
    poller: Poller, files: RootedFiles
) -> None:
    write(files.root, "/proc/7/cmdline", f"kubelet\0--container-runtime-endpoint={paths.RELAY_ENDPOINT}\0")
    assert poller.look().on_relay
    write(files.root, "/proc/7/cmdline", "kubelet\0--config=/var/lib/kubelet/config.yaml\0")
    assert not poller.look().on_relay


def test_a_host_without_a_bus_is_looked_at_all_the_same(files: RootedFiles) -> None:
    class NoBus(FakeSystemd):
        def unit(self, name: str) -> UnitState:
            raise UnservableHostError("no bus")

    assert (
        Poller(files, NoBus(), UNMOVED, Configuration(), (), lambda _path, _seconds: False).look().blind
        == "no bus"
    )


def test_the_whole_way_to_each_file_is_watched(poller: Poller, tmp_path: Path) -> None:
    places = ("/etc/default/kubelet", "/etc/kubelet.conf.d/")
    names = {spot.directory: spot.names for spot in poller.watch_specs(places)}
    assert "kubelet" in names["/etc/default"]
    assert names["/etc/kubelet.conf.d"] == frozenset()
    assert {"fallback.cfg", "pause"} <= names["/etc/cri-resmgr"]
    assert "cri-resmgr" in names["/etc"]  # should the directory be moved away
    for directory in ("/etc/systemd/system", "/etc/systemd/system.control"):
        assert "kubelet.service.d" in names[directory]  # it may come
        assert names[f"{directory}/kubelet.service.d"] == frozenset()  # anything
    assert names[str(tmp_path / "configs")] == frozenset()
    assert "/" not in names


# -- a child -----------------------------------------------------------------------


class Passed:
    """A pass and the daemon that follows it: what the one says comes to the other as lines."""

    def __init__(self) -> None:
        self.said: list[Event] = []
        self.moves = 0
        self.reader = PassReader(self.said.append, self._moved)
        self.tally = Tally(lambda result: self.write(result_event(result)))

    def _moved(self) -> None:
        self.moves += 1

    def write(self, event: Event) -> None:
        written = io.StringIO()
        JsonReporter(written)(event)
        self.reader.line(written.getvalue())

    def ends(self, error: InstallerError) -> RunResult:
        self.tally.note(self.tally.result.failed(error))
        return self.reader.end(error.exit_code)


@pytest.fixture
def passed() -> Passed:
    return Passed()


def test_the_events_of_a_pass_are_passed_on_and_its_result_is_what_it_states(passed: Passed) -> None:
    passed.write(Event("step.done", "restart", {"step": "restart"}))
    passed.tally.count()
    passed.tally.count(restarts=1)
    passed.reader.line("a traceback\n")
    assert passed.moves == 2
    passed.write(Event("converged", "done", {"changed": True}))
    passed.tally.note(replace(passed.tally.result, code=0, ended=True, changed=True, fleet_generation="f"))
    result = passed.reader.end(0)
    assert (result.restarts, result.changed, result.fleet_generation) == (1, True, "f")
    assert [event.kind for event in passed.said] == ["step.done", "child.output", "converged"]


def test_a_pass_that_finds_nothing_to_do_says_nothing(passed: Passed) -> None:
    passed.write(Event("converged", "nothing to do", {"changed": False}))
    passed.tally.note(replace(passed.tally.result, code=0, ended=True))
    assert (passed.reader.end(0).changed, passed.said, passed.moves) == (False, [], 0)


def test_a_killed_pass_has_said_what_it_did_until_then(passed: Passed) -> None:
    passed.tally.count(restarts=1)
    passed.tally.count(rolls_back=True)
    result = passed.reader.end(137, "killed")
    assert (result.code, result.restarts, result.rolled_back) == (137, 1, True)
    assert (result.reason, result.ended) == ("killed", True)


@pytest.mark.parametrize("error", [RolledBackError("no", remembered=True), KubeletKeptError("not now")])
def test_where_systemd_does_not_know_the_exit_code_the_pass_does(
    passed: Passed, error: InstallerError
) -> None:
    passed.ends(error)
    assert passed.reader.end(UNKNOWN_END).code == error.exit_code


@pytest.mark.parametrize("told", ['{"code": "five"}', "[" * 5000, "", '{"changed": true}'])
def test_a_line_that_is_no_result_changes_none(passed: Passed, told: str) -> None:
    passed.tally.count(restarts=1)
    passed.reader.line(json.dumps({"kind": "pass.outcome", "message": "", "data": {"outcome": told}}))
    assert passed.reader.end(0).restarts == 1
    assert passed.said[-1].kind == "child.output"


def test_a_failure_says_why_and_whether_it_is_remembered(passed: Passed) -> None:
    passed.tally.count(restarts=1)
    result = passed.ends(RolledBackError("it is broken", "look", remembered=True, fleet_generation="one"))
    assert (result.remembered, result.reason, result.restarts) == (True, "it is broken", 1)
    assert result.fleet_generation == "one"


@rule("R13")
def test_every_fault_is_told(passed: Passed) -> None:
    result = passed.ends(InvalidInputError(["a.cfg: no\n  at all", "b.cfg: no"]))
    assert result.reason == "a.cfg: no at all; b.cfg: no"


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["a", "b", "c"], "a; b; c"),
        (["a" * 20, "b" * 20, "c" * 20], f"{'a' * 20}; {'b' * 20} (and 1 more)"),
        (["ü" * 40, "b"], f"{'ü' * 23}... (and 1 more)"),
        ([], ""),
    ],
)
def test_faults_are_told_as_far_as_there_is_room_and_the_rest_is_counted(texts: list[str], said: str) -> None:
    assert listed(texts, 50) == said


@pytest.mark.parametrize(
    "error",
    [InvalidInputError(["no"]), KubeletKeptError("no"), UnservableHostError("no"), BusyHostError("no")],
)
def test_a_pass_that_was_kept_from_it_would_restart_kubelet(passed: Passed, error: InstallerError) -> None:
    assert passed.ends(error).would_restart == (error.exit_code == 3)


@pytest.mark.parametrize("restarts", [True, False])
def test_a_pass_that_waits_for_a_permit_says_for_which_work(passed: Passed, restarts: bool) -> None:
    waits = KubeletKeptError("waits")
    waits.planned = PlannedWork("one", restarts_kubelet=restarts, begins=True)
    result = passed.ends(waits)
    assert (result.planned, result.would_restart) == (waits.planned, restarts)


# -- configuration and weight ----------------------------------------------------------------


def test_the_configuration_is_that_of_the_settings() -> None:
    assert build_configuration(Settings()) == Configuration()


def test_at_rest_no_heavy_library_is_loaded() -> None:
    ours = "installer.cli, installer.cluster.client, installer.daemon.loop, installer.report.events"
    code = f"import sys, {ours}; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
        env=dict(os.environ),
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("listen", "node", "address"),
    [
        ("", "10.0.0.7", ""),
        (":9464", "10.0.0.7", "10.0.0.7:9464"),
        (":9464", "fd00::7", "[fd00::7]:9464"),
        (":9464", "", "127.0.0.1:9464"),
        ("0.0.0.0:9464", "10.0.0.7", "0.0.0.0:9464"),
        ("[::]:9464", "10.0.0.7", "[::]:9464"),
    ],
)
def test_pages_are_on_every_address_only_where_that_is_asked_for(
    listen: str, node: str, address: str
) -> None:
    assert listen_address(listen, node) == address
