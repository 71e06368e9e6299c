"""R8: a generation is blamed only if nothing but it can be at fault, and only a failed run is remembered."""

from __future__ import annotations

import errno
import itertools
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from installer.errors import RolledBackError, SystemdError
from installer.host.ports import RuntimeStatus
from installer.inputs.load import Request
from installer.model import paths
from installer.model.event import Event, silent
from installer.model.host import ProcessState, UnitState
from installer.model.names import Mode
from installer.node.history import read_history
from installer.node.reconcile import inspect, reconcile
from tests.faults.disks.node import KUBELET, RUNTIME, Killed, Node, lay_node
from tests.lib.fakes import CONTAINERD, failed
from tests.lib.rules import rule
from tests.lib.slownode import SETTINGS, release


@pytest.fixture
def payload(tmp_path: Path) -> Path:
    release(tmp_path / "payload", "one")
    return tmp_path / "payload"


@pytest.fixture
def node(tmp_path: Path, payload: Path) -> Node:
    """Installed."""
    node = lay_node(tmp_path / "node")
    reconcile(Request(Mode.INSTALL, SETTINGS, payload), node.fake.host, silent)
    return node


_STARTS = {"main_pid": 0, "active_state": "activating", "sub_state": "start-pre"}
_ENDS = {"active_state": "deactivating", "result": "exit-code"}
_LATE = {"main_pid": 0, "result": "timeout"}
_STOPPED = {"active_state": "deactivating", "sub_state": "stop-post", "main_pid": 0}


def stopped(unit: UnitState) -> UnitState:
    return replace(unit, active_state="inactive", sub_state="dead", main_pid=0)


Spoil = Callable[[Node], None]


def nothing(_node: Node) -> None:
    """The environment is sound."""


def kubelet(node: Node) -> None:
    node.fake.healthz.healthy = False


def recovered(node: Node) -> None:
    node.fake.healthz.healthy = True


def runtime(node: Node) -> None:
    node.fake.cri.sockets[RUNTIME] = "no socket"


def guard(node: Node) -> None:
    node.fake.host.files.remove(paths.GUARD)


def program(node: Node) -> None:
    """The one that this run has just written."""
    node.fake.host.files.write(paths.BINARY, b"two, but not as the payload has it", 0o755)


def shortage(node: Node) -> None:
    """No descriptor is left to ask for kubelet's health, after the runtime was asked."""

    def ask() -> bool:
        node.fake.healthz.healthy = True
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def answer() -> RuntimeStatus:
        node.fake.cri.sockets[RUNTIME] = CONTAINERD
        node.fake.healthz.healthy = ask
        return CONTAINERD

    node.fake.cri.sockets[RUNTIME] = answer


def full(path: str) -> Spoil:
    def fail(method: str, where: str) -> None:
        if method == "write" and where == path:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def spoil(node: Node) -> None:
        node.fake.files.fail = fail

    return spoil


@rule("R8")
@pytest.mark.parametrize(
    ("before", "meanwhile", "afterwards", "blamed"),
    [
        (nothing, nothing, nothing, True),
        (kubelet, nothing, recovered, False),
        (nothing, runtime, nothing, False),  # it is back before the rollback
        (nothing, guard, nothing, False),
        (nothing, program, nothing, False),
        (nothing, nothing, kubelet, False),
        (nothing, nothing, runtime, False),
        (nothing, nothing, shortage, False),
        (nothing, nothing, full(paths.RECORD), False),  # what is not recorded is not reported
    ],
)
def test_a_version_is_blamed_only_where_all_else_was_sound(
    node: Node, payload: Path, before: Spoil, meanwhile: Spoil, afterwards: Spoil, blamed: bool
) -> None:
    release(payload, "two", works=False)
    start = node.systemd.on_job[paths.PROXY_UNIT]

    def fail(method: str, unit: UnitState) -> tuple[str, UnitState]:
        if b"two" in (node.read(paths.BINARY) or b""):
            meanwhile(node)
        return start(method, unit)

    def emit(event: Event) -> None:
        if event.kind == "rollback.started":
            node.fake.cri.sockets[RUNTIME] = CONTAINERD
        if (event.kind, event.data.get("step")) == ("step.done", "check-pods"):  # of the rollback
            afterwards(node)

    before(node)
    node.systemd.on_job[paths.PROXY_UNIT] = fail
    asked = Request(Mode.INSTALL, SETTINGS, payload)
    with pytest.raises(RolledBackError) as ended:
        reconcile(asked, node.fake.host, emit)
    assert ended.value.remembered is blamed
    assert bool(inspect(asked, node.fake.host).remembered_failure) is blamed


def edit(node: Node) -> None:
    node.fake.files.write(paths.FALLBACK_CONFIG, b"edited\n", 0o644)


@rule("R8", "R13")
@pytest.mark.parametrize(
    ("spoil", "why", "blamed"),
    [
        (edit, f"still differs from what was applied: {paths.FALLBACK_CONFIG}", False),
        (kubelet, "healthy", True),
    ],
)
def test_a_version_whose_steps_all_succeed_is_verified(
    node: Node, payload: Path, spoil: Spoil, why: str, blamed: bool
) -> None:
    """Another program may have written our file meanwhile, or kubelet may not bear the new proxy."""
    release(payload, "two")
    start = node.systemd.on_job[paths.PROXY_UNIT]

    def work(method: str, unit: UnitState) -> tuple[str, UnitState]:
        node.fake.healthz.healthy = True
        if b"two" in (node.read(paths.BINARY) or b""):
            spoil(node)
        return start(method, unit)

    node.systemd.on_job[paths.PROXY_UNIT] = work
    with pytest.raises(RolledBackError, match=why) as ended:
        reconcile(Request(Mode.INSTALL, SETTINGS, payload), node.fake.host, silent)
    assert ended.value.remembered is blamed
    assert node.read(paths.FALLBACK_CONFIG) != b"edited\n"


@rule("R8")
@pytest.mark.parametrize(
    "lost", [SystemdError("the bus is lost", lost=True), OSError(errno.EMFILE, os.strerror(errno.EMFILE))]
)
def test_nor_where_the_bus_is_lost_when_what_differs_has_to_be_explained(
    node: Node, payload: Path, lost: Exception
) -> None:
    """The proxy is gone, and nobody can say whether somebody has stopped it."""
    release(payload, "two")
    right, asked = node.systemd.unit, 0

    def unit(name: str) -> UnitState:
        nonlocal asked
        asked += name == paths.PROXY_UNIT
        if name == paths.PROXY_UNIT and asked == 3:  # the snapshot asks twice
            raise lost
        found = right(name)
        return replace(found, main_pid=0) if name == paths.PROXY_UNIT and asked < 3 else found

    def emit(event: Event) -> None:
        if (event.kind, event.data.get("step")) == ("step.done", "await-relay"):
            node.systemd.unit = unit  # type: ignore[method-assign]

    with pytest.raises(RolledBackError, match="still differs from what was applied") as ended:
        reconcile(Request(Mode.INSTALL, SETTINGS, payload), node.fake.host, emit)
    assert asked >= 3
    assert not ended.value.remembered


@rule("R8")
@pytest.mark.parametrize(
    ("job", "settling", "why", "blamed"),
    [
        ("canceled", {}, "the job ended as 'canceled'", False),
        ("done", {"main_pid": 9}, "somebody else restarted it", False),
        ("done", {"main_pid": 9, "n_restarts": 1}, "it keeps crashing", True),
        ("done", {"main_pid": 0, "active_state": "inactive", "sub_state": "dead"}, "else stopped it", False),
        ("done", {"active_state": "deactivating", "sub_state": "stop-sigterm"}, "else stopped it", False),
        ("done", {**_STOPPED, "has_job": True}, "else stopped it", False),
        ("done", _STOPPED, "it keeps crashing", True),
        ("done", {**_STOPPED, "has_job": True, "n_restarts": 1}, "it keeps crashing", True),
        ("done", {**_LATE, "active_state": "deactivating", "has_job": True}, "else stopped it", False),
        ("done", {**_LATE, "active_state": "failed"}, "else stopped it", False),
        ("done", {**_LATE, "active_state": "failed", "n_restarts": 1}, "it keeps crashing", True),
        ("done", {**_LATE, "active_state": "failed", "came_up": False}, "it keeps crashing", True),
        ("done", {**_LATE, "sub_state": "auto-restart"}, "it keeps crashing", True),
        ("done", {**_STARTS}, "else restarted it", False),
        ("done", {**_STARTS, "n_restarts": 1}, "it keeps crashing", True),
        ("done", {**_ENDS, "sub_state": "stop-sigterm"}, "it keeps crashing", True),
        ("done", {**_ENDS, "sub_state": "stop-post", "main_pid": 0}, "it keeps crashing", True),
        ("done", {"main_pid": 0, "active_state": "failed", "result": "signal"}, "it keeps crashing", True),
        ("done", {"main_pid": 0, "sub_state": "auto-restart", "result": "signal"}, "it keeps crashing", True),
    ],
)
def test_a_version_is_not_blamed_for_what_somebody_else_does_to_its_unit(
    node: Node, payload: Path, job: str, settling: dict[str, Any], why: str, blamed: bool
) -> None:
    release(payload, "two")
    start = node.systemd.on_job[paths.PROXY_UNIT]

    def settle(_time: float) -> None:
        node.fake.clock.on_sleep = lambda _time: None
        node.systemd.units[paths.PROXY_UNIT] = replace(node.systemd.unit(paths.PROXY_UNIT), **settling)

    def begin(method: str, unit: UnitState) -> tuple[str, UnitState]:
        result, unit = start(method, unit)
        if method != "restart" or b"two" not in (node.read(paths.BINARY) or b""):
            return result, unit
        node.fake.clock.on_sleep = settle
        return job, unit

    node.systemd.on_job[paths.PROXY_UNIT] = begin
    with pytest.raises(RolledBackError, match=why) as ended:
        reconcile(Request(Mode.INSTALL, SETTINGS, payload), node.fake.host, silent)
    assert ended.value.remembered is blamed


@rule("R8")
@pytest.mark.parametrize(
    ("unit", "moves"), [(KUBELET, True), (paths.PROXY_UNIT, True), (paths.PROXY_UNIT, False)]
)
def test_nor_for_the_silence_of_what_somebody_else_is_stopping(
    node: Node, payload: Path, unit: str, moves: bool
) -> None:
    """It is stopped after its unit was looked at, and before it is asked for its health."""
    if moves:
        reconcile(Request(Mode.REMOVE, SETTINGS, None), node.fake.host, silent)
    release(payload, "two")
    clock, fake = node.fake.clock, node.fake

    def stop() -> None:
        clock.on_sleep = lambda _time: None
        state = replace(node.systemd.unit(unit), active_state="deactivating", sub_state="stop-sigterm")
        node.systemd.units[unit] = state

    def asked(answer: Callable[[], Any], silence: Any) -> Callable[[], Any]:
        def ask() -> Any:
            if clock.time < last:
                return answer()
            stop()
            return silence

        return ask

    last, step = math.inf, "await-kubelet" if moves else "await-relay"
    fake.healthz.healthy = asked(node.kubelet_healthy, False) if unit == KUBELET else node.kubelet_healthy
    if unit != KUBELET:
        fake.cri.sockets[paths.RELAY_ENDPOINT] = asked(lambda: CONTAINERD, "no answer")

    def emit(event: Event) -> None:
        nonlocal last, step
        if event.kind == "rollback.started":
            last, step = math.inf, ""
        if (event.kind, event.data.get("step")) == ("step.started", step):
            last = clock.time + 0.5

    with pytest.raises(RolledBackError, match="somebody else stopped it") as ended:
        reconcile(Request(Mode.INSTALL, SETTINGS, payload), fake.host, emit)
    assert not ended.value.remembered


@rule("R8")
@pytest.mark.parametrize(("crashes", "why"), [(0, "somebody else restarted it"), (1, "it keeps crashing")])
def test_nor_for_a_kubelet_that_somebody_else_has_just_restarted(
    node: Node, payload: Path, crashes: int, why: str
) -> None:
    """The version needs no restart of kubelet, which is starting when all is verified."""
    release(payload, "two")
    step = "await-relay"

    def emit(event: Event) -> None:
        nonlocal step
        if event.kind == "rollback.started":
            node.fake.healthz.healthy = True
        if (event.kind, event.data.get("step")) == ("step.done", step):
            step, node.fake.healthz.healthy = "", False
            unit = node.systemd.started(node.systemd.unit(KUBELET))
            process = node.process(KUBELET)
            assert process is not None
            node.fake.processes.processes[unit.main_pid] = process
            node.systemd.units[KUBELET] = replace(unit, n_restarts=crashes)

    with pytest.raises(RolledBackError, match=f"{KUBELET}: {why}") as ended:
        reconcile(Request(Mode.INSTALL, SETTINGS, payload), node.fake.host, emit)
    assert ended.value.remembered is bool(crashes)


def let_kubelet_restart(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next version has to, and the guard says that kubelet starts on the relay."""
    process, unit = node.process(KUBELET), node.systemd.unit(KUBELET)
    assert process is not None
    older = {**process.environ, "CRI_RESMGR_INSTALLER_GENERATION": "older"}
    node.fake.processes.processes[unit.main_pid] = replace(process, environ=older)
    monkeypatch.setattr(node.fake.journal, "since", lambda *_given: ("cri-resmgr-kubelet-guard: relay",))


@rule("R8")
def test_nor_for_a_kubelet_that_somebody_else_restarts_while_its_endpoint_is_read(
    node: Node, payload: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """systemd still shows the process that is gone when its command line is asked for."""
    release(payload, "two")
    let_kubelet_restart(node, monkeypatch)
    right, asked = node.fake.processes.kubelet, 0

    def gone(pid: int) -> ProcessState | None:
        nonlocal asked
        asked += 1
        found = right(pid)
        if asked != 2 or found is None:  # the first time, whether it is still a script
            return found
        now = node.systemd.started(node.systemd.unit(KUBELET))
        node.systemd.units[KUBELET] = now
        node.fake.processes.processes[now.main_pid] = replace(found, pid=now.main_pid)
        return None

    def emit(event: Event) -> None:
        if (event.kind, event.data.get("step")) == ("step.started", "await-kubelet") and not asked:
            monkeypatch.setattr(node.fake.processes, "kubelet", gone)

    with pytest.raises(RolledBackError, match="somebody else restarted it") as ended:
        reconcile(Request(Mode.INSTALL, SETTINGS, payload), node.fake.host, emit)
    assert not ended.value.remembered


@rule("R8")
@pytest.mark.parametrize(
    ("end", "why", "blamed"),
    [(stopped, "somebody else stopped it", False), (failed, "it keeps crashing", True)],
)
def test_nor_for_a_kubelet_that_leaves_a_proxy_that_somebody_else_stops(
    node: Node,
    payload: Path,
    monkeypatch: pytest.MonkeyPatch,
    end: Callable[[UnitState], UnitState],
    why: str,
    blamed: bool,
) -> None:
    """Kubelet is well, for the guard has let it leave. So nothing has asked for the proxy."""
    release(payload, "two")
    let_kubelet_restart(node, monkeypatch)
    step = "await-kubelet"

    def emit(event: Event) -> None:
        nonlocal step
        if (event.kind, event.data.get("step")) == ("step.started", step):
            step = ""
            node.systemd.units[paths.PROXY_UNIT] = end(node.systemd.unit(paths.PROXY_UNIT))
            node.systemd.leave()

    with pytest.raises(RolledBackError, match=f"{paths.PROXY_UNIT}: {why}") as ended:
        reconcile(Request(Mode.INSTALL, SETTINGS, payload), node.fake.host, emit)
    assert ended.value.remembered is blamed


@rule("R8")
@pytest.mark.parametrize("stopped", [True, False])
def test_nor_for_a_proxy_that_somebody_else_stops_before_all_is_verified(
    node: Node, payload: Path, stopped: bool
) -> None:
    release(payload, "two")
    step = "await-relay"

    def emit(event: Event) -> None:
        nonlocal step
        if (event.kind, event.data.get("step")) == ("step.done", step):
            step, unit = "", node.systemd.unit(paths.PROXY_UNIT)
            node.systemd.units[unit.name] = failed(unit)
            if stopped:
                node.systemd.units[unit.name] = unit
                node.systemd.stop(unit.name, 0)

    with pytest.raises(
        RolledBackError, match=r"still differs from what was applied|somebody else stopped it"
    ) as ended:
        reconcile(Request(Mode.INSTALL, SETTINGS, payload), node.fake.host, emit)
    assert ended.value.remembered is not stopped


@rule("R8")
@pytest.mark.parametrize("step", ["adopt", "check-weights"])
def test_nor_for_a_runtime_that_is_away_for_one_call(
    node: Node, payload: Path, tmp_path: Path, step: str
) -> None:
    """It answers again when the rollback asks it."""
    (tmp_path / "configs").mkdir()
    places = "policy:\n  Active: topology-aware\n  ReservedResources:\n    CPU: 750m\n"
    (tmp_path / "configs/fallback.cfg").write_text(places)

    def runtime() -> RuntimeStatus | str:
        node.fake.cri.sockets[RUNTIME] = CONTAINERD
        return "no socket"

    def emit(event: Event) -> None:
        if (event.kind, event.data.get("step")) == ("step.started", step):
            node.fake.cri.sockets[RUNTIME] = runtime

    with pytest.raises(RolledBackError, match="no socket") as ended:
        reconcile(Request(Mode.INSTALL, SETTINGS, payload, tmp_path / "configs"), node.fake.host, emit)
    assert not ended.value.remembered


@rule("R8")
def test_a_full_disk_is_no_fault_of_what_was_to_be_written(node: Node, payload: Path) -> None:
    release(payload, "two")
    full(paths.BINARY)(node)
    with pytest.raises(RolledBackError, match="No space left") as ended:
        reconcile(Request(Mode.INSTALL, SETTINGS, payload), node.fake.host, silent)
    assert not ended.value.remembered


@rule("R2", "R8")
def test_where_nothing_can_be_claimed_nothing_is_touched_and_nothing_has_to_come_back(
    node: Node, payload: Path
) -> None:
    before = read_history(node.fake.journal, 20).entries
    node.fake.systemd.calls.clear()
    release(payload, "two")
    full(paths.RECORD)(node)
    with pytest.raises(RolledBackError, match="the record could not be written"):
        reconcile(Request(Mode.INSTALL, SETTINGS, payload), node.fake.host, silent)
    assert read_history(node.fake.journal, 20).entries == before
    assert not {"restart", "stop", "daemon_reload"} & {call.method for call in node.fake.systemd.calls}


@rule("R8")
def test_a_removal_that_has_failed_is_tried_again(node: Node, payload: Path) -> None:
    remove, start = Request(Mode.REMOVE, SETTINGS, payload), node.systemd.on_job[KUBELET]
    node.systemd.on_job[KUBELET] = lambda _method, unit: ("failed", unit)
    with pytest.raises(RolledBackError):
        reconcile(remove, node.fake.host, silent)
    node.systemd.on_job[KUBELET] = start
    assert reconcile(remove, node.fake.host, silent).changed
    assert not node.on_relay


@rule("R7")
def test_what_a_killed_rollback_had_begun_to_write_is_gone_when_the_generation_is_blamed(
    node: Node, payload: Path
) -> None:
    """No later run of it would come to that place."""
    begun = node.fake.root / f"{paths.PROXY_STATE[0]}/.cache{paths.TEMPORARY}"[1:]
    begun.parent.mkdir(parents=True, exist_ok=True)
    begun.touch()
    release(payload, "two", works=False)
    with pytest.raises(RolledBackError) as ended:
        reconcile(Request(Mode.INSTALL, SETTINGS, payload), node.fake.host, silent)
    assert ended.value.remembered
    assert not begun.exists()


@rule("R13")
def test_the_last_fatal_line_of_what_failed_is_in_the_message(node: Node, payload: Path) -> None:
    release(payload, "two", works=False)
    start = node.systemd.on_job[paths.PROXY_UNIT]

    def fail(method: str, unit: UnitState) -> tuple[str, UnitState]:
        if b"two" in (node.read(paths.BINARY) or b""):
            node.fake.journal.say(paths.PROXY_UNIT, "F: cannot open the device")
        return start(method, unit)

    node.systemd.on_job[paths.PROXY_UNIT] = fail
    with pytest.raises(RolledBackError) as ended:
        reconcile(Request(Mode.INSTALL, SETTINGS, payload), node.fake.host, silent)
    assert "cannot open the device" in ended.value.message.splitlines()[0]


@rule("R8")
@pytest.mark.parametrize(
    ("line", "blamed"),
    [
        (f"{paths.PROXY_UNIT}: Main process exited, code=exited, status=216/GROUP", False),
        (f"{paths.PROXY_UNIT}: Control process exited, code=exited, status=226/NAMESPACE", False),
        (f"{paths.PROXY_UNIT}: Main process exited, code=exited, status=203/EXEC", True),
        (f"{paths.PROXY_UNIT}: Main process exited, code=exited, status=2/INVALIDARGUMENT", True),
        ("I: [ http ] GET /config: status=200/OK", True),  # the program's own words
    ],
)
def test_only_systemds_word_that_a_unit_could_not_be_set_up_spares_the_generation(
    node: Node, payload: Path, line: str, blamed: bool
) -> None:
    release(payload, "two", works=False)
    start = node.systemd.on_job[paths.PROXY_UNIT]

    def fail(method: str, unit: UnitState) -> tuple[str, UnitState]:
        if b"two" in (node.read(paths.BINARY) or b""):
            node.fake.journal.say(paths.PROXY_UNIT, line)
        return start(method, unit)

    node.systemd.on_job[paths.PROXY_UNIT] = fail
    with pytest.raises(RolledBackError) as ended:
        reconcile(Request(Mode.INSTALL, SETTINGS, payload), node.fake.host, silent)
    assert ended.value.remembered is blamed
    assert ("could not set up" in ended.value.message) is not blamed


@rule("R13")
def test_the_journal_of_the_start_that_failed_is_shown_and_no_earlier_one(node: Node, payload: Path) -> None:
    release(payload, "two", works=False)
    for number in range(40):
        node.fake.journal.say(paths.PROXY_UNIT, f"I: earlier {number}")
    start = node.systemd.on_job[paths.PROXY_UNIT]

    def fail(method: str, unit: UnitState) -> tuple[str, UnitState]:
        if b"two" in (node.read(paths.BINARY) or b""):
            node.fake.journal.say(paths.PROXY_UNIT, "F: this one")
        return start(method, unit)

    node.systemd.on_job[paths.PROXY_UNIT] = fail
    with pytest.raises(RolledBackError) as ended:
        reconcile(Request(Mode.INSTALL, SETTINGS, payload), node.fake.host, silent)
    assert "earlier" not in ended.value.message
    assert ended.value.message.count("F: this one") == 2  # as the cause, and in the journal


def test_if_that_start_has_logged_nothing_what_was_logged_before_is_shown(node: Node, payload: Path) -> None:
    release(payload, "two", works=False)
    node.fake.journal.say(paths.PROXY_UNIT, "I: earlier")
    with pytest.raises(RolledBackError, match="I: earlier"):
        reconcile(Request(Mode.INSTALL, SETTINGS, payload), node.fake.host, silent)


def test_a_relay_that_is_not_ready_is_named_with_the_time_it_had_and_what_helps(
    node: Node, payload: Path
) -> None:
    release(payload, "two")

    def relay() -> RuntimeStatus | str:
        return "Deadline Exceeded" if b"two" in (node.read(paths.BINARY) or b"") else CONTAINERD

    node.fake.cri.sockets[paths.RELAY_ENDPOINT] = relay
    with pytest.raises(
        RolledBackError, match=r"the relay is not ready after 20 s: .*Deadline Exceeded"
    ) as ended:
        reconcile(Request(Mode.INSTALL, SETTINGS, payload), node.fake.host, silent)
    assert "proxy.startTimeoutSeconds" in ended.value.hint
    assert f"journalctl -u {paths.PROXY_UNIT}" in ended.value.hint


@rule("R8")
@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("proxy", "start_timeout_seconds", 90),
        ("proxy", "dead_seconds", 90),
        ("proxy", "existing_containers", "refuse"),
        ("kubelet", "start_timeout_seconds", 90),
        ("kubelet", "settle_seconds", 2),
        ("kubelet", "healthz_url", "http://127.0.0.1:10249/healthz"),
        ("kubelet", "guard_seconds", 20),
    ],
)
def test_a_failure_is_remembered_with_all_that_the_attempt_was_made_with(
    node: Node, payload: Path, section: str, key: str, value: object
) -> None:
    """Also with what no file of ours says. Each attempt that failed is remembered, not only the last."""
    release(payload, "two", works=False)
    changed = getattr(SETTINGS, section).model_copy(update={key: value})
    settings = (SETTINGS, SETTINGS.model_copy(update={section: changed}))
    for each in settings:
        asked = Request(Mode.INSTALL, each, payload)
        assert not inspect(asked, node.fake.host).remembered_failure
        with pytest.raises(RolledBackError, match="fail") as ended:
            reconcile(asked, node.fake.host, silent)
        assert "and is not retried" not in ended.value.message
    for each in settings:
        with pytest.raises(RolledBackError, match="and is not retried"):
            reconcile(Request(Mode.INSTALL, each, payload), node.fake.host, silent)


def test_what_no_attempt_is_made_with_retries_nothing(node: Node, payload: Path) -> None:
    release(payload, "two", works=False)
    with pytest.raises(RolledBackError):
        reconcile(Request(Mode.INSTALL, SETTINGS, payload), node.fake.host, silent)
    status = SETTINGS.status.model_copy(update={"listen": ":9464"})
    asked = Request(Mode.INSTALL, SETTINGS.model_copy(update={"status": status}), payload)
    assert inspect(asked, node.fake.host).remembered_failure


@rule("R7", "R8")
def test_a_run_that_is_killed_while_it_closes_the_record_does_not_forget_what_it_blames(
    tmp_path: Path, payload: Path
) -> None:
    release(payload, "two", works=False)
    asked = Request(Mode.INSTALL, SETTINGS, payload)
    for last in itertools.count():
        node = lay_node(tmp_path / f"node-{last}")
        closes = itertools.count()

        def fail(_method: str, _path: str, last: int = last, closes: Iterator[int] = closes) -> None:
            if next(closes) == last:
                raise Killed

        def emit(event: Event, node: Node = node, fail: Callable[[str, str], None] = fail) -> None:
            if event.kind == "rollback.started":
                node.fake.files.fail = fail

        try:
            reconcile(asked, node.fake.host, emit)
        except Killed:
            assert node.read(paths.RECORD) is not None
        except RolledBackError:
            break
    assert inspect(asked, node.fake.host).remembered_failure
    assert last > 10
