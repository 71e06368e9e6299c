"""The part of a run that changes the host: it asks the last questions, carries out the plan or rolls it back,
and records how that ended.

Most runs have nothing to do, so this is imported only when there is something. It is imported whole before
the first write: a change may take files away, and the rollback must not miss any of them.
"""

from __future__ import annotations

from dataclasses import asdict

from installer.errors import (
    InterruptedRunError,
    KubeletKeptError,
    RollbackFailedError,
    StepFailedError,
    UnservableHostError,
    failed_on_disk,
)
from installer.inputs.load import Inputs, Request, check_inputs
from installer.inputs.policy import policy_in_force, policy_of
from installer.model import paths
from installer.model.event import Emit, Event
from installer.model.fleet import PlannedWork
from installer.model.hold import is_operators
from installer.model.host import HostSnapshot
from installer.model.names import Mode
from installer.model.plan import Assessment, Plan, StepKind
from installer.node.converge import converge, limits_of
from installer.node.desired import fleet_generation
from installer.node.failure_report import capture, diagnose
from installer.node.history import describe_end, entry_of, note
from installer.node.preflight_proxy import differences
from installer.node.record import is_open, is_proven
from installer.node.rollback import roll_back
from installer.node.run import Progress, Run

_UNMAINTAINED = "cri-resmgr is no longer maintained upstream: bugs will not be fixed"
_SUCCESSOR = "they point to NRI plugins (https://github.com/containers/nri-plugins), which need no proxy"
_UNTOUCHED = "nothing was touched"


def check_run(inputs: Inputs, assessment: Assessment, run: Run) -> None:
    """The last and most expensive questions before the first write."""
    _check_allowed(inputs.request, assessment)
    plan = assessment.plan
    proven = is_proven(run.store.record, plan.desired)
    check_inputs(inputs, plan.changes, run.host.validator, proven=proven)
    _check_turn(inputs.request, _planned_work(inputs, assessment, run), run.emit)


def _check_allowed(request: Request, assessment: Assessment) -> None:
    """Whether this run, and not only this plan, may do that to kubelet. Raises KubeletKeptError."""
    plan, reason = assessment.plan, assessment.snapshot.hold
    ends_hold = any(step.kind is StepKind.CLEAR_HOLD for step in plan.steps)
    if request.unattended and ends_hold and is_operators(reason):
        hint = (
            f"`cri-resmgr-installer install` by hand ends the hold, or `rm {paths.HOLD}`; nothing was touched"
        )
        raise KubeletKeptError(f"an operator holds kubelet on its base endpoint: {reason}", hint)
    needs = min(_most_restarts(assessment), request.settings.kubelet.restarts_per_hour)
    if needs > request.restarts_left:
        times = f"{'would' if plan.restarts_kubelet else 'may'} have to restart{' twice' * (needs > 1)}"
        raise KubeletKeptError(f"kubelet {times}: not allowed now: hourly restart limit", _UNTOUCHED)


def _most_restarts(assessment: Assessment) -> int:
    """Of kubelet, by its plan."""
    return assessment.plan.most_restarts(relay_answers=assessment.snapshot.proxy.relay_answers)


def _planned_work(inputs: Inputs, assessment: Assessment, run: Run) -> PlannedWork:
    """What the plan means for a fleet: a kubelet that restarts, and the first of a generation."""
    plan, snapshot = assessment.plan, assessment.snapshot
    restarts = _most_restarts(assessment) > 0
    if plan.mode is Mode.REMOVE:
        return PlannedWork("removal", restarts_kubelet=restarts, removes=True)
    in_force, record = policy_in_force(snapshot), run.store.record
    repolicies = policy_of(plan.desired, snapshot.cache).name != (in_force.name if in_force else "")
    return PlannedWork(
        fleet_generation(inputs),
        restarts_kubelet=restarts,
        begins=is_open(record, plan.desired),
        soaks=plan.restarts_kubelet or repolicies,
    )


def _check_turn(request: Request, work: PlannedWork, emit: Emit) -> None:
    """Says what is planned, and raises KubeletKeptError if it has to be asked for."""
    if (work.restarts_kubelet and request.ask_first) or (work.begins and request.ask_first == "all"):
        emit(Event("planned", "this pass has to wait for the turn of this node", asdict(work)))
        raise KubeletKeptError("planned work waits for the turn of this node", _UNTOUCHED)


def carry_out(assessment: Assessment, inputs: Inputs, run: Run) -> HostSnapshot:
    """The plan, or the rollback, and what the record says of it then. Returns the host as it is then."""
    plan, after = assessment.plan, assessment.snapshot
    if plan.steps:
        after = _change(assessment, run)
        _warn_of_what_changed(assessment, run)
    if plan.mode is Mode.REMOVE:
        _finish_removal(assessment, run)
    else:
        _close_installed(plan, after, inputs, run)
    return after


def repair(request: Request, keeping: Assessment, run: Run) -> None:
    """The same for the last good generation. Raises KubeletKeptError."""
    _check_allowed(request, keeping)
    _check_turn(request, PlannedWork("good", restarts_kubelet=_most_restarts(keeping) > 0), run.emit)
    after = _change(keeping, run)
    _close_installed(keeping.plan, after, None, run)
    run.emit(Event("good.repaired", "the last good generation was repaired"))


def _change(assessment: Assessment, run: Run) -> HostSnapshot:
    """The plan, or the rollback. Returns the host as it is then."""
    plan, snapshot = assessment.plan, assessment.snapshot
    limits = limits_of(plan, snapshot, run.settings)
    progress, outcome = Progress(restarts_left=run.restarts_left), "cut off"
    try:
        after = converge(plan, snapshot, run, limits, progress, healthy=snapshot.sound)
        outcome = "done"
        return after
    except StepFailedError as failure:
        found = capture(plan, run.store.record, snapshot, run.host, run.settings)
        error = roll_back(assessment, progress, failure, limits, run)
        outcome = describe_end(error)
        run.emit(diagnose(failure.message, found, run.host, plan.kubelet_unit, plan))
        raise error from failure
    except (InterruptedRunError, KubeletKeptError) as error:
        outcome = describe_end(error)
        raise
    finally:
        if progress.touched:
            entry = entry_of(plan, run.who, run.because, outcome, assessment.payload_version)
            note(run.host.journal, entry)


def _warn_of_what_changed(assessment: Assessment, run: Run) -> None:
    """What an operator should know of a proxy between kubelet and its runtime: the state of its life, once on
    each node, and what of the runtime does not come through, each time that kubelet has moved."""
    kubelet = assessment.plan.desired.kubelet
    if kubelet is None or assessment.snapshot.kubelet.on_relay:
        return
    if run.store.record.good is None:
        run.emit(Event("warning", _UNMAINTAINED, {"code": "upstream-unmaintained", "hint": _SUCCESSOR}))
    try:
        direct = run.host.cri.status(assessment.base_endpoint)
        relayed = run.host.cri.status(paths.RELAY_ENDPOINT)
    except StepFailedError:
        return  # the next look says more
    for finding in differences(direct, relayed):
        run.emit(Event("warning", finding.message, {"code": finding.code, "hint": finding.hint}))


def _close_installed(plan: Plan, after: HostSnapshot, inputs: Inputs | None, run: Run) -> None:
    """Records the verified generation as the good one. If the disk refuses the record, the installation
    stays: the next run completes the record. `inputs` are those that were installed, None for a kept one."""
    payload = inputs.payload if inputs else None
    try:
        run.store.close_installed(plan.desired, after, str(payload.source) if payload else "")
    except OSError as error:
        failure = failed_on_disk("installed, but the record is not complete", error)
        hint = f"{failure.hint}; the next run completes it"
        run.emit(Event("warning", failure.message, {"code": "record-open", "hint": hint}))


def _finish_removal(assessment: Assessment, run: Run) -> None:
    """The last of us is deleted; what stays and why is said."""
    store, probe = run.store, assessment.snapshot.probe
    given_back = any(step.kind is StepKind.RESET_PINNING for step in assessment.plan.steps)
    kept = probe.containers if probe and not given_back else ()
    try:
        store.close_removed()
    except OSError as error:
        failure = failed_on_disk("removed, but our own record could not be deleted", error)
        hint = f"kubelet is on its base endpoint. {failure.hint}; then `cri-resmgr-installer remove` again"
        raise RollbackFailedError(failure.message, hint) from error
    for container in kept:
        if container.pinned:
            message = f"still pinned to its CPUs until it is recreated: {container.title}"
            run.emit(Event("pinned", message, {"id": container.id}))
    if store.unclaimed:
        raise UnservableHostError(
            f"the record is {store.status.value}, and nothing proves that these files are ours:\n"
            + "\n".join(f"  {path}" for path in store.unclaimed),
            "everything else was removed and kubelet is on its base endpoint; "
            "`cri-resmgr-installer remove --without-record` deletes these too",
        )
