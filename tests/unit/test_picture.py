"""What the picture of a host says, on simulated nodes with the program's own engine."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from installer.daemon.decision import Action, Decision
from installer.errors import RolledBackError
from installer.inputs.load import Mandate, Request
from installer.inputs.settings import KubeletSettings, Settings
from installer.model import paths
from installer.model.event import silent
from installer.model.host import UnitState
from installer.model.names import Mode
from installer.node.picture import Picture, take_picture
from installer.node.reconcile import reconcile
from tests.faults.disks.node import KUBELET
from tests.lib.fakes import failed
from tests.lib.passes import WatchedNode
from tests.lib.rules import rule


@pytest.fixture
def watched(tmp_path: Path) -> WatchedNode:
    return WatchedNode(tmp_path)


def look(watched: WatchedNode) -> Picture:
    picture = watched.see().picture
    assert picture is not None
    return picture


def write(watched: WatchedNode, path: str, text: str) -> None:
    (watched.node.fake.root / path[1:]).write_text(text)


@rule("R2")
def test_on_a_node_that_is_as_it_should_be_nothing_is_due(watched: WatchedNode) -> None:
    picture = look(watched)
    assert picture.is_clean
    assert (picture.differs, picture.work, picture.restarts, picture.is_new) == ("", None, 0, False)
    assert picture.installed is not None
    assert picture.installed.generation
    assert picture.installed.policy == "topology-aware"
    assert picture == look(watched)


@rule("R13")
def test_it_says_what_differs_and_why(watched: WatchedNode) -> None:
    write(watched, paths.FALLBACK_CONFIG, "edited")
    picture = look(watched)
    assert picture.differs.startswith(f"{paths.FALLBACK_CONFIG}: ")
    assert (picture.due, picture.in_files, picture.is_new, picture.work) == (True, True, False, None)
    assert not picture.is_clean


def test_new_inputs_begin_a_generation_and_the_good_one_is_repaired_while_it_waits(
    watched: WatchedNode,
) -> None:
    before = look(watched)
    watched.configure(500)
    picture = look(watched)
    assert picture.work is not None
    assert (picture.work.begins, picture.work.restarts_kubelet, picture.repairs) == (True, False, False)
    assert (picture.is_new, picture.wanted == before.wanted, picture.inputs == before.inputs) == (
        True,
        False,
        False,
    )
    (watched.node.fake.root / paths.GUARD[1:]).unlink()
    assert look(watched).repairs


@pytest.mark.parametrize("text", ["policy: {Active: nonsense}\n", "[" * 200])
def test_inputs_that_are_refused_leave_the_good_generation_in_the_picture(
    watched: WatchedNode, text: str
) -> None:
    (watched.configs / "fallback.cfg").write_text(text)
    picture = look(watched)
    assert (picture.code, picture.due, picture.repairs, picture.wanted) == (2, False, False, "")
    assert "fallback.cfg" in picture.reason
    assert picture.installed is not None
    assert picture.installed.generation
    (watched.node.fake.root / paths.GUARD[1:]).unlink()
    drifted = look(watched)
    assert (drifted.code, drifted.due, drifted.repairs) == (2, True, True)
    assert paths.GUARD in drifted.differs
    assert drifted.problem != picture.problem


@rule("R14")
def test_containers_are_checked_after_a_start_of_the_proxy_though_new_inputs_are_refused(
    watched: WatchedNode,
) -> None:
    """Systemd's start may have taken weight from some. Only a run can ask the runtime."""
    (watched.configs / "fallback.cfg").write_text("policy: {Active: nonsense}\n")
    assert not look(watched).due
    watched.node.systemd.restart(paths.PROXY_UNIT, 0)
    picture = look(watched)
    assert (picture.code, picture.due, picture.repairs) == (2, True, True)
    watched.node.systemd.restart(paths.PROXY_UNIT, 0)
    assert look(watched).problem != picture.problem  # the next start does not wait for the next try
    watched.node.fake.calls.clear()
    assert watched.begin(Decision(Action.INSTALL), 3).code == 2
    assert [call for call in watched.node.fake.cri.calls if call.method == "containers"]


@rule("R14")
def test_containers_are_checked_after_a_start_of_the_proxy_though_planned_work_waits(
    watched: WatchedNode,
) -> None:
    watched.configure(500)
    assert not look(watched).unchecked
    watched.node.systemd.restart(paths.PROXY_UNIT, 0)
    picture = look(watched)
    assert picture.work
    assert picture.unchecked == watched.node.systemd.unit(paths.PROXY_UNIT).invocation_id


def test_a_host_that_is_refused_says_why(watched: WatchedNode) -> None:
    units = watched.node.systemd.units
    units[KUBELET] = replace(units[KUBELET], load_state="masked")
    picture = look(watched)
    assert (picture.code, picture.due) == (4, False)
    assert "masked" in picture.reason
    assert picture.error is not None
    assert (picture.error.kind, picture.error.data["codes"]) == ("error", ["kubelet-masked"])


@rule("R2")
@pytest.mark.parametrize("is_unsure", [True, False])
def test_a_kubelet_that_is_refused_leaves_nothing_to_compare_again_and_again(
    watched: WatchedNode, is_unsure: bool
) -> None:
    """It would have to restart. After that, pods would be compared, and nothing is in the way of that."""
    units = watched.node.systemd.units
    processes, pid = watched.node.fake.processes.processes, units[KUBELET].main_pid
    environ = {**processes[pid].environ, paths.GENERATION_VARIABLE: "another"}
    processes[pid] = replace(processes[pid], environ=environ)
    units[KUBELET] = replace(units[KUBELET], load_state="masked")
    if is_unsure:
        write(watched, paths.CONTAINERS_UNKNOWN, "")
        assert look(watched).due
        assert watched.begin(Decision(Action.INSTALL), 3).code == 4
    picture = look(watched)
    assert (picture.code, picture.due, picture.repairs) == (4, False, False)


@pytest.mark.parametrize("is_new", [True, False])
def test_what_only_a_change_needs_is_looked_at_before_a_permit_is_asked_for(
    watched: WatchedNode, is_new: bool
) -> None:
    """A permit that is taken in vain keeps the rest of a fleet waiting."""
    units = watched.node.systemd.units
    run = watched.node.fake.root / "var/run"
    run.unlink()  # which systemd needs: /run
    run.mkdir()
    assert look(watched).is_clean
    if is_new:
        watched.configure(500)
    else:
        next(watched.node.fake.root.rglob(paths.DROP_IN_NAME)).unlink()
        units[KUBELET] = replace(units[KUBELET], environment=(), drop_in_paths=())
    picture = look(watched)
    assert (picture.code, picture.work) == (4, None)
    assert "/var/run" in picture.reason
    assert picture.installed is not None
    assert picture.installed.generation


@pytest.mark.parametrize("is_new", [True, False])
def test_a_repair_that_is_refused_as_well_takes_no_permit_either(watched: WatchedNode, is_new: bool) -> None:
    run = watched.node.fake.root / "var/run"
    run.unlink()
    run.mkdir()
    if is_new:
        watched.configure(500)
    next(watched.node.fake.root.rglob(paths.DROP_IN_NAME)).unlink()
    units = watched.node.systemd.units
    units[KUBELET] = replace(units[KUBELET], environment=(), drop_in_paths=())
    processes, pid = watched.node.fake.processes.processes, units[KUBELET].main_pid
    environ = {**processes[pid].environ, paths.GENERATION_VARIABLE: "another"}
    processes[pid] = replace(processes[pid], environ=environ)
    picture = look(watched)
    assert (picture.code, picture.due, picture.work) == (4, False, None)


def test_a_drop_in_that_is_gone_restarts_kubelet_and_is_planned_work(watched: WatchedNode) -> None:
    next(watched.node.fake.root.rglob(paths.DROP_IN_NAME)).unlink()
    units = watched.node.systemd.units
    units[KUBELET] = replace(units[KUBELET], environment=(), drop_in_paths=())
    picture = look(watched)
    assert picture.restarts == 1
    assert picture.work is not None
    assert picture.work.restarts_kubelet


@rule("R8")
def test_a_generation_that_failed_here_is_remembered(watched: WatchedNode) -> None:
    good = look(watched).installed
    watched.configure(500)
    job, tries = watched.node.systemd.on_job[paths.PROXY_UNIT], list[str]()

    def fail_first(method: str, unit: UnitState) -> tuple[str, UnitState]:
        tries.append(method)
        return ("failed", failed(unit)) if len(tries) == 1 else job(method, unit)

    watched.node.systemd.on_job[paths.PROXY_UNIT] = fail_first
    asked = Request(Mode.INSTALL, watched.settings, watched.payload, watched.configs)
    with pytest.raises(RolledBackError):
        reconcile(asked, watched.node.fake.host, silent)
    picture = look(watched)
    assert (picture.code, picture.remembered, picture.due, picture.installed) == (5, True, False, good)
    assert picture.wanted
    assert "is not retried" in picture.reason


def test_a_picture_says_whether_kubelet_was_held(watched: WatchedNode) -> None:
    """Also where what is wanted is refused: then it shows no repair, whatever differs."""
    (watched.configs / "fallback.cfg").write_text("policy: {Active: nonsense}\n")
    (watched.node.fake.root / paths.GUARD[1:]).unlink()
    write(watched, paths.HOLD, "ticket 4711\n")
    picture = look(watched)
    assert (picture.hold, picture.code, picture.due) == ("ticket 4711", 2, False)
    watched.configure(750)
    assert look(watched).hold == "ticket 4711"
    (watched.node.fake.root / paths.HOLD[1:]).unlink()
    assert look(watched).hold == ""


def test_a_picture_of_a_removal_is_due_while_anything_of_ours_is_there(watched: WatchedNode) -> None:
    asked = Request(Mode.REMOVE, watched.settings, watched.payload, mandate=Mandate(unattended=True))
    picture, _ = take_picture(asked, watched.node.fake.host)
    assert picture.due
    assert picture.restarts == 1
    reconcile(asked, watched.node.fake.host, silent)
    assert not take_picture(asked, watched.node.fake.host)[0].due


def test_deadlines_are_inputs_though_no_file_has_them(watched: WatchedNode) -> None:
    before = look(watched)
    watched.settings = Settings(kubelet=KubeletSettings(settle_seconds=2))
    after = look(watched)
    assert (after.is_clean, after.inputs == before.inputs) == (True, False)


@rule("R15")
def test_pictures_keep_no_descriptor(watched: WatchedNode) -> None:
    look(watched)
    before = len(os.listdir("/proc/self/fd"))
    for _picture in range(50):
        look(watched)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_runtime_directory_that_others_may_write_calls_for_a_run_which_seals_it(
    watched: WatchedNode,
) -> None:
    directory = watched.node.fake.root / paths.OUR_RUNTIME[1:]
    directory.mkdir(exist_ok=True, parents=True)
    directory.chmod(0o777)
    picture = look(watched)
    assert (picture.due, picture.code) == (True, 0)
    assert picture.differs.startswith(f"{paths.OUR_RUNTIME}: ")
    asked = Request(
        Mode.INSTALL, watched.settings, watched.payload, watched.configs, mandate=Mandate(unattended=True)
    )
    reconcile(asked, watched.node.fake.host, silent)
    assert look(watched).is_clean
