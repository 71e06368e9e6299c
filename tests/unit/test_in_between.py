"""What is said of a node in the middle of something: a run that was cut off or is at work, a sick kubelet."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from installer.errors import InterruptedRunError
from installer.inputs.load import Request
from installer.inputs.settings import KubeletSettings, Settings
from installer.model import paths
from installer.model.event import Event, silent
from installer.model.history import History
from installer.model.names import Mode
from installer.node.reconcile import inspect, preview, reconcile
from installer.node.rescue import hold_kubelet
from installer.report.history import print_history
from installer.report.planned import render_plan
from installer.report.status import print_status
from tests.faults.disks.node import KUBELET, Node, lay_node
from tests.lib.rules import rule
from tests.lib.slownode import release

SETTINGS = Settings(kubelet=KubeletSettings(settle_seconds=1))
COMMAND = "pid 42 on node-1: cri-resmgr-installer install"


@pytest.fixture
def payload(tmp_path: Path) -> Path:
    release(tmp_path / "payload", "one")
    return tmp_path / "payload"


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return lay_node(tmp_path / "node")


def install(node: Node, payload: Path) -> list[Event]:
    said: list[Event] = []
    reconcile(Request(Mode.INSTALL, SETTINGS, payload), node.fake.host, said.append)
    return said


def status(node: Node, payload: Path | None = None, output: str = "text") -> str:
    stream = io.StringIO()
    seen = inspect(Request(Mode.INSTALL, SETTINGS, payload, inspect=True), node.fake.host)
    assert print_status(seen, output, stream) == 3
    return stream.getvalue()


def cut_off(node: Node, payload: Path) -> None:
    """By Ctrl-C, when the proxy runs and before kubelet moves."""

    def emit(event: Event) -> None:
        if node.proxy_runs:
            raise InterruptedRunError(2)

    with pytest.raises(InterruptedRunError):
        reconcile(Request(Mode.INSTALL, SETTINGS, payload), node.fake.host, emit)


@rule("R13")
@pytest.mark.parametrize("lost", [False, True])
def test_the_files_of_an_installation_that_was_cut_off_are_named(
    node: Node, payload: Path, lost: bool
) -> None:
    cut_off(node, payload)
    if lost:
        node.fake.files.remove(paths.RECORD)
    said = status(node)
    there = [path for path in (paths.GUARD, paths.PROXY_UNIT_FILE) if node.read(path) is not None]
    assert len(there) == 2
    assert all(f"\n    {path}\n" in said for path in there)
    assert "expected none" not in said
    assert "0 correct" not in said
    assert said.splitlines()[-1].startswith("an installation was begun here and has not ended")
    node.fake.lock.holder = COMMAND
    assert status(node).splitlines()[-1] == "an installation is being carried out here now"
    node.fake.lock.holder = ""
    document: dict[str, Any] = json.loads(status(node, output="json"))
    assert set(there) <= set(document["unfinished"])
    install(node, payload)
    seen = inspect(Request(Mode.INSTALL, SETTINGS, None, inspect=True), node.fake.host)
    assert not seen.unfinished


def test_what_an_installation_that_was_cut_off_has_only_claimed_is_not_there_yet(
    node: Node, payload: Path
) -> None:
    """What others have at our paths is theirs until it is replaced."""

    def fail(_method: str, path: str) -> None:
        if path == paths.GUARD:
            raise InterruptedRunError(2)

    node.fake.files.fail = fail
    with pytest.raises(InterruptedRunError):
        install(node, payload)
    node.fake.files.fail = lambda _method, _path: None
    assert f"    {paths.FALLBACK_CONFIG}\n" not in status(node)


def test_a_signal_during_the_last_look_ends_a_run_whose_work_the_next_one_closes(
    node: Node, payload: Path
) -> None:
    asked = Request(Mode.INSTALL, SETTINGS, payload)
    last = preview(asked, node.fake.host)[0].plan.steps[-1].kind

    def interrupt() -> bool:
        raise InterruptedRunError(15)

    def emit(event: Event) -> None:
        if (event.kind, event.data.get("step")) == ("step.done", last.value):
            node.fake.healthz.healthy = interrupt

    with pytest.raises(InterruptedRunError):
        reconcile(asked, node.fake.host, emit)
    node.fake.healthz.healthy = node.kubelet_healthy
    kubelet = node.process(KUBELET)
    install(node, payload)
    assert node.process(KUBELET) == kubelet
    assert not inspect(Request(Mode.INSTALL, SETTINGS, None, inspect=True), node.fake.host).unfinished


@rule("R13")
@pytest.mark.parametrize("given", [False, True])
def test_a_node_whose_kubelet_was_reset_is_compared_with_what_is_installed(
    node: Node, payload: Path, given: bool
) -> None:
    """`kubeadm reset` stops kubelet, and deletes what configures it."""
    install(node, payload)
    files = len(inspect(Request(Mode.INSTALL, SETTINGS, payload), node.fake.host).plan.desired.files)
    node.systemd.stop(KUBELET, 1.0)
    for path in ("/etc/systemd/system/kubelet.service", f"/etc/systemd/system/{KUBELET}.d/10-kubeadm.conf"):
        (node.fake.root / path[1:]).unlink()
    said = status(node, payload if given else None)
    assert f"files: {files} correct, 0 different" in said
    assert "expected none" not in said
    assert "no installation was completed here" not in said
    assert "refused: kubelet-" in said.splitlines()[-1]


def test_a_run_that_is_at_work_is_mentioned(node: Node, payload: Path) -> None:
    install(node, payload)
    seen = inspect(Request(Mode.INSTALL, SETTINGS, payload, inspect=True), node.fake.host)
    assert not [each for each in seen.plan.findings if each.code == "run-at-work"]
    node.fake.lock.holder = COMMAND
    stream = io.StringIO()
    seen = inspect(Request(Mode.INSTALL, SETTINGS, payload, inspect=True), node.fake.host)
    assert print_status(seen, "text", stream) == 0
    assert f"another run is at work on this host: {COMMAND}" in stream.getvalue()
    print_history(History((), at_work=COMMAND), "text", stream)
    assert stream.getvalue().splitlines()[-1] == f"at work now: {COMMAND}"
    shown, error = preview(Request(Mode.INSTALL, SETTINGS, payload), node.fake.host)
    assert error is None
    assert f"another run is at work on this host: {COMMAND}" in render_plan(shown.plan)


@rule("R13")
def test_an_installation_with_nothing_to_do_says_that_kubelet_is_sick(node: Node, payload: Path) -> None:
    install(node, payload)
    node.fake.healthz.healthy = False
    said = install(node, payload)
    (warning,) = (event for event in said if event.kind == "warning")
    assert warning.message == f"{KUBELET} is not healthy"
    assert warning.data["code"] == "kubelet-unhealthy"
    assert f"journalctl -u {KUBELET}" in str(warning.data["hint"])
    assert said[-1].message == "nothing to do"


@pytest.mark.parametrize("now", [True, False])
@pytest.mark.parametrize("movable", [True, False])
def test_a_hold_is_reported_as_what_it_does(node: Node, payload: Path, now: bool, movable: bool) -> None:
    install(node, payload)
    node.fake.connections.permitted = movable
    hold_kubelet(SETTINGS, node.fake.host, silent, "broken CPU map", restart=now)
    said = status(node, payload)
    assert ("on its base endpoint from its next start on: " in said) is not (now or movable)
    assert "kubelet is held on its base endpoint" in said


def test_a_hold_that_a_signal_ends_while_kubelet_leaves_has_not_failed(node: Node, payload: Path) -> None:
    """Calls in flight may take half a minute."""
    install(node, payload)

    def end(_seconds: float) -> None:
        raise InterruptedRunError(15)

    node.fake.clock.on_sleep = end
    with pytest.raises(InterruptedRunError):
        hold_kubelet(SETTINGS, node.fake.host, silent, "broken CPU map", restart=False)
    assert not node.on_relay


def test_what_is_installed_is_named_without_a_payload(node: Node, payload: Path) -> None:
    """As in the history, of which the journal may have dropped everything."""

    (payload / "VERSION").write_text("v0.9.2\n")
    install(node, payload)
    node.fake.journal.written.clear()
    stream = io.StringIO()
    seen = inspect(Request(Mode.INSTALL, SETTINGS, None, inspect=True), node.fake.host)
    assert print_status(seen, "text", stream) == 0
    given = inspect(Request(Mode.INSTALL, SETTINGS, payload, inspect=True), node.fake.host)
    named = f"installed: cri-resmgr v0.9.2, generation {given.plan.desired.generation}\n"
    assert named in stream.getvalue()


@pytest.mark.parametrize("moved", [False, True])
def test_a_removal_leads_out_of_an_installation_that_was_cut_off_though_kubelet_is_ill_since(
    node: Node, payload: Path, moved: bool
) -> None:
    if moved:
        install(node, payload)
        release(payload, "two")

    def emit(event: Event) -> None:
        if event.kind == "step.done" and event.message == f"restart {paths.PROXY_UNIT}":
            raise InterruptedRunError(2)

    with pytest.raises(InterruptedRunError):
        reconcile(Request(Mode.INSTALL, SETTINGS, payload), node.fake.host, emit)
    node.fake.healthz.healthy = False
    kubelet = node.process(KUBELET)
    assert kubelet is not None
    node.fake.processes.processes[kubelet.pid] = replace(kubelet, age=3600.0)
    assert reconcile(Request(Mode.REMOVE, SETTINGS, payload), node.fake.host, silent)
    assert not node.on_relay
    assert node.read(paths.GUARD) is None


def test_a_removal_with_nothing_to_do_says_so_as_well(node: Node, payload: Path) -> None:
    node.fake.healthz.healthy = False
    said: list[Event] = []
    reconcile(Request(Mode.REMOVE, SETTINGS, payload), node.fake.host, said.append)
    assert [event.message for event in said] == [f"{KUBELET} is not healthy", "nothing to do"]


@rule("R2")
def test_a_link_that_is_lost_under_a_connected_kubelet_is_mended_by_one_run(
    node: Node, payload: Path
) -> None:
    """Kubelet's calls went through the proxy all the time, so there is nothing to make known."""
    (payload / "configs").mkdir()
    (payload / "configs/fallback.cfg").write_text("policy:\n  Active: topology-aware\n")
    request = Request(Mode.INSTALL, SETTINGS, payload, payload / "configs")
    reconcile(request, node.fake.host, silent)
    kubelet = node.process(KUBELET)
    assert kubelet is not None
    node.fake.files.remove(kubelet.link)
    assert reconcile(request, node.fake.host, silent).changed
    assert node.on_relay
    assert not reconcile(request, node.fake.host, silent).changed
