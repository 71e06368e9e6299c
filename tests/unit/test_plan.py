"""The order of steps: the write law, the proxy before kubelet, and backwards."""

from __future__ import annotations

from dataclasses import replace

from installer.model import paths
from installer.model.host import DesiredFile, HostSnapshot, Part, UnitState
from installer.model.names import Mode
from installer.model.plan import Desired, Plan, StepKind
from installer.node.diff import diff
from installer.node.plan import Options, order_steps
from installer.node.record import Record
from tests.lib.converged import CONVERGED, DESIRED, DROP_IN, RECORD, process
from tests.lib.rules import rule
from tests.lib.snapshots import but

BARE = but(
    CONVERGED,
    files={},
    proxy=UnitState(paths.PROXY_UNIT),
    proxy_process=None,
    kubelet=replace(CONVERGED.kubelet.unit, environment=()),
    kubelet_process=process(""),
    relay_answers=False,
    on_relay=False,
)


STATE = ("/var/lib/cri-resmgr", "/run/cri-resmgr")


def plan(
    seen: HostSnapshot,
    record: Record,
    desired: Desired = DESIRED,
    hold: bool = False,
    leftovers: tuple[str, ...] = (),
) -> Plan:
    changes = diff(desired, seen, record)
    steps = order_steps(desired, changes, Options("0a1b", hold=hold, leftovers=leftovers))
    mode = Mode.INSTALL if desired.proxy else Mode.REMOVE
    return Plan(mode, desired, changes, "kubelet.service", steps)


def story(found: Plan) -> list[tuple[StepKind, str]]:
    return [(step.kind, step.target) for step in found.steps]


@rule("R7")
def test_a_first_install_follows_the_write_law_in_both_parts() -> None:
    assert story(plan(BARE, Record())) == [
        (StepKind.MARK_PENDING, paths.PROXY_ENVIRONMENT),
        (StepKind.WRITE, paths.PROXY_UNIT_FILE),
        (StepKind.WRITE, paths.FALLBACK_CONFIG),
        (StepKind.WRITE, paths.GUARD),
        (StepKind.DAEMON_RELOAD, ""),
        (StepKind.WRITE, paths.PROXY_ENVIRONMENT),
        (StepKind.RESTART, paths.PROXY_UNIT),
        (StepKind.AWAIT_RELAY, paths.RELAY_ENDPOINT),
        (StepKind.MARK_PENDING, paths.KUBELET_ENVIRONMENT),
        (StepKind.WRITE, DROP_IN),
        (StepKind.DAEMON_RELOAD, ""),
        (StepKind.CHECK_EFFECTIVE, "kubelet.service"),
        (StepKind.WRITE, paths.KUBELET_ENVIRONMENT),
        (StepKind.RESTART, "kubelet.service"),
        (StepKind.AWAIT_KUBELET, "kubelet.service"),
    ]


@rule("R7")
def test_the_pending_carrier_differs_from_run_to_run() -> None:
    step = next(s for s in plan(BARE, Record()).steps if s.kind is StepKind.MARK_PENDING)
    assert isinstance(step.file, DesiredFile)
    assert isinstance(step.file.content, bytes)
    assert step.file.content.endswith(b"pending-0a1b\n")


@rule("R2")
def test_r2_no_changes_no_steps() -> None:
    assert plan(CONVERGED, RECORD).steps == ()


def test_removal_moves_kubelet_before_the_proxy_stops() -> None:
    steps = story(plan(CONVERGED, RECORD, Desired(), leftovers=STATE))
    kinds = [kind for kind, _target in steps]
    assert steps[0] == (StepKind.DELETE, DROP_IN)
    assert steps.index((StepKind.AWAIT_KUBELET, "kubelet.service")) < kinds.index(StepKind.STOP)
    assert kinds.index(StepKind.STOP) < steps.index((StepKind.DELETE, paths.PROXY_UNIT_FILE))
    assert steps[-2:] == [(StepKind.DELETE_STATE, path) for path in STATE]


@rule("R7")
def test_r7_a_removal_that_was_cut_off_late_still_takes_the_proxys_state() -> None:
    bare = story(plan(BARE, Record(), Desired(), leftovers=STATE))
    assert bare == [(StepKind.DELETE_STATE, path) for path in STATE]


def test_a_hold_ends_just_before_kubelet_moves() -> None:
    base = but(CONVERGED, on_relay=False)
    kinds = [kind for kind, _target in story(plan(base, RECORD, hold=True))]
    assert kinds == [
        StepKind.AWAIT_RELAY,
        StepKind.CLEAR_HOLD,
        StepKind.RESTART,
        StepKind.AWAIT_KUBELET,
    ]


@rule("R3")
def test_proxy_steps_only_when_only_the_proxy_changed() -> None:
    found = plan(but(CONVERGED, proxy_process=process("old")), RECORD)
    assert {step.part for step in found.steps} == {Part.PROXY}
