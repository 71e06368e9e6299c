"""Whether a run carries out its plan, or ends with nothing touched, and why. The first reason counts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

from installer.errors import InstallerError, KubeletKeptError, RolledBackError, UnservableHostError
from installer.inputs.load import Inputs, Request, check_inputs
from installer.inputs.policy import policy_of
from installer.model import paths
from installer.model.event import Emit, Event
from installer.model.fleet import REMOVAL, AskFirst, PlannedWork
from installer.model.hold import is_operators
from installer.model.host import HostSnapshot
from installer.model.names import Mode
from installer.model.plan import Assessment, Finding, Plan, StepKind
from installer.node.desired import fleet_generation
from installer.node.record import Record, is_open, is_proven
from installer.node.run import Run

UNTOUCHED = "nothing was touched"


def check_run(inputs: Inputs, assessment: Assessment, run: Run) -> None:
    """Raises the error with which this run ends instead of carrying out its plan. Cheap reasons come first,
    then the payload's own program, and last the permit, which must not be held in vain."""
    request, plan, record = inputs.request, assessment.plan, run.store.record
    check_pause(request, assessment.snapshot)
    check_worth(inputs, assessment)
    emit_warnings(plan.warnings, run.emit)
    if plan.steps:
        check_allowed(request, assessment)
        check_inputs(inputs, plan.changes, run.host.validator, proven=is_proven(record, plan.desired))
        stop_without_permit(request, planned_work(inputs, assessment, record), run.emit)


def check_worth(inputs: Inputs, assessment: Assessment) -> None:
    """Whether the plan may be tried at all: raises UnservableHostError if it is refused, and RolledBackError
    if it failed here before."""
    plan = assessment.plan
    refuse(plan)
    if plan.steps and assessment.remembered_failure and not inputs.request.consent.retry:
        message = f"this generation failed on this host and is not retried: {assessment.remembered_failure}"
        hint = (
            "change an input (configs, payload, settings of proxy or kubelet), "
            "or run `cri-resmgr-installer install --retry`"
        )
        raise RolledBackError(message, hint, True, fleet_generation(inputs))


def refuse(plan: Plan) -> None:
    """Raises UnservableHostError if preflight refuses the plan."""
    if plan.refusals:
        lines = [f"{f.message} [{f.code}]" + (f" ({f.hint})" if f.hint else "") for f in plan.refusals]
        codes = [finding.code for finding in plan.refusals]
        raise UnservableHostError("\n".join(lines), UNTOUCHED, lines, codes)


def emit_warnings(findings: Iterable[Finding], emit: Emit) -> None:
    for finding in findings:
        emit(Event("warning", finding.message, {"code": finding.code, "hint": finding.hint}))


def check_pause(request: Request, snapshot: HostSnapshot) -> None:
    """Raises UnservableHostError on a paused node, unless a person insists."""
    if snapshot.pause and not request.consent.despite_pause:
        hint = f"someone may be working on it; --despite-pause proceeds anyway; {UNTOUCHED}"
        raise UnservableHostError(f"this node is paused: {snapshot.pause}", hint)


def is_remembered(error: InstallerError) -> bool:
    """Whether it ends a run whose generation failed here before and is not retried."""
    return isinstance(error, RolledBackError) and error.remembered


def check_allowed(request: Request, assessment: Assessment) -> None:
    """Whether this run may do to kubelet what the plan does. Raises KubeletKeptError."""
    plan, reason = assessment.plan, assessment.snapshot.hold
    ends_hold = any(step.kind is StepKind.CLEAR_HOLD for step in plan.steps)
    if request.mandate.unattended and ends_hold and is_operators(reason):
        delete = f"`rm -f {' '.join(paths.HOLDS)}`"
        hint = f"`cri-resmgr-installer install` by hand ends the hold, or {delete}; {UNTOUCHED}"
        raise KubeletKeptError(f"an operator holds kubelet on its base endpoint: {reason}", hint)
    needs = min(plan.kubelet_restarts, request.settings.kubelet.restarts_per_hour)
    if needs > request.mandate.restarts_left:
        why = "kubelet would have to restart, which the hourly limit does not allow now"
        raise KubeletKeptError(why, UNTOUCHED)


def planned_work(inputs: Inputs, assessment: Assessment, record: Record) -> PlannedWork:
    """What the plan means for a fleet: whether kubelet restarts, and whether a generation begins."""
    plan, in_force = assessment.plan, assessment.policy
    restarts = plan.restarts_kubelet
    if plan.mode is Mode.REMOVE:
        # The other nodes wait to see whether its successor serves the node.
        tells = restarts and inputs.request.settings.removal.successor == "nri"
        return PlannedWork(REMOVAL, restarts, begins=tells, soaks=tells, removes=True)
    repolicies = policy_of(plan.desired, assessment.snapshot.cache).name != (
        in_force.name if in_force else ""
    )
    upgrades = any(change.path == paths.BINARY for change in plan.changes.files)
    return PlannedWork(
        fleet_generation(inputs),
        restarts_kubelet=restarts,
        begins=is_open(record, plan.desired) or assessment.begins_policy,
        soaks=restarts or repolicies or upgrades,
    )


def repair_work(good: Assessment) -> PlannedWork:
    """What a repair of the last good generation means for a fleet."""
    return PlannedWork("good", restarts_kubelet=good.plan.restarts_kubelet)


def stop_without_permit(request: Request, work: PlannedWork, emit: Emit) -> None:
    """Report what is planned, and raise KubeletKeptError if it needs a permit."""
    mandate = request.mandate
    asks_to_begin = mandate.ask_first is AskFirst.ALL or mandate.begins not in (None, work.generation)
    if (work.restarts_kubelet and mandate.ask_first) or (work.begins and asks_to_begin):
        emit(Event("planned", "this pass has to wait for a permit", asdict(work)))
        error = KubeletKeptError("planned work waits for a permit", UNTOUCHED)
        error.planned = work
        raise error
