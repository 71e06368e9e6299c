"""The part of a run that changes the host: carry out the plan or roll it back, and record how it ended.

Most runs have nothing to do, so this is imported only if there is something. It is imported whole before the
first write: a change may delete the program's own files, and the rollback needs all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from installer.errors import (
    InterruptedRunError,
    KubeletKeptError,
    RollbackFailedError,
    StepFailedError,
    UnservableHostError,
    failed_on_disk,
)
from installer.inputs.load import Inputs, Request
from installer.inputs.payload import Payload
from installer.model.event import Event
from installer.model.host import HostSnapshot
from installer.model.names import Mode
from installer.model.plan import Assessment, Plan, StepKind
from installer.node.converge import converge, emit_kept, limits_of
from installer.node.failure_report import capture, diagnose
from installer.node.history import describe_end, entry_of, write_entry
from installer.node.ownership import RecordStore
from installer.node.preconditions import check_allowed, repair_work, stop_without_permit
from installer.node.record import RecordStatus, takes_over
from installer.node.rollback import roll_back
from installer.node.run import Progress, Run

_UNMAINTAINED = "cri-resmgr is no longer maintained upstream: bugs will not be fixed"
_SUCCESSOR = "they point to NRI plugins (https://github.com/containers/nri-plugins), which need no proxy"


def carry_out(assessment: Assessment, inputs: Inputs, run: Run) -> HostSnapshot:
    """Carry out the plan, or roll it back, and update the record. Return the host as it is then."""
    plan, after = assessment.plan, assessment.snapshot
    if plan.steps:
        after = _converge_or_roll_back(assessment, inputs.request, run)
        _warn_unmaintained(assessment, run)
    if plan.mode is Mode.REMOVE:
        _finish_removal(assessment, run, inputs.request)
    else:
        _close_installed(plan, after, run, inputs.payload)
    return after


def repair(request: Request, keeping: Assessment, run: Run) -> None:
    """The same for the last good generation. Raises KubeletKeptError."""
    check_allowed(request, keeping)
    stop_without_permit(request, repair_work(keeping), run.emit)
    after = _converge_or_roll_back(keeping, request, run)
    _close_installed(keeping.plan, after, run)
    run.emit(Event("good.repaired", "the last good generation was repaired"))
    run.tally.result = replace(run.tally.result, changed=True)


def _converge_or_roll_back(assessment: Assessment, request: Request, run: Run) -> HostSnapshot:
    """Converge to the plan of `assessment`. If a step fails, roll it back, and raise the error that reports
    that. Return the host as it is then."""
    plan, snapshot, mandate = assessment.plan, assessment.snapshot, request.mandate
    limits = limits_of(plan, snapshot, run.settings)
    progress = Progress(restarts_left=0.0 if mandate.ask_first else mandate.restarts_left)
    outcome = "cut off"
    try:
        # A removal leads out whatever is owed.
        healthy = snapshot.sound or (run.store.began_sound and plan.desired.kubelet is not None)
        after = converge(plan, snapshot, run, limits, progress, healthy=healthy)
        outcome = "done"
        return after
    except StepFailedError as failure:
        found = capture(plan, snapshot, run)
        error = roll_back(assessment, progress, failure, limits, run)
        outcome = describe_end(error)
        run.emit(diagnose(failure.message, found, run.host, plan.kubelet_unit, plan))
        raise error from failure
    except (InterruptedRunError, KubeletKeptError) as error:
        outcome = describe_end(error)
        raise
    finally:
        if progress.touched:
            entry = entry_of(plan, mandate.who, mandate.because, outcome, assessment.payload_version)
            write_entry(run.host.journal, entry)


def _warn_unmaintained(assessment: Assessment, run: Run) -> None:
    """Warn once per node, when kubelet has moved onto the proxy for the first time."""
    moved = assessment.plan.desired.kubelet is not None and not assessment.snapshot.kubelet.on_relay
    if moved and (run.store.record.good is None or takes_over(run.store.record)):
        run.emit(Event("warning", _UNMAINTAINED, {"code": "upstream-unmaintained", "hint": _SUCCESSOR}))


def _close_installed(plan: Plan, after: HostSnapshot, run: Run, payload: Payload | None = None) -> None:
    """Record the verified generation as the good one. If the disk refuses the record, the installation stays,
    and the next run completes the record. `payload`: where its program came from."""
    source, version = (str(payload.source), payload.version) if payload else ("", None)
    try:
        emit_kept(run.store.close_installed(plan.desired, after, source, version), run)
    except OSError as error:
        failure = failed_on_disk("installed, but the record is not complete", error)
        hint = f"{failure.hint}; the next run completes it"
        run.emit(Event("warning", failure.message, {"code": "record-open", "hint": hint}))


def _finish_removal(assessment: Assessment, run: Run, request: Request) -> None:
    """Delete the last of our files, and report what stays and why."""
    store, probe = run.store, assessment.snapshot.probe
    given_back = any(step.kind is StepKind.RESET_PINNING for step in assessment.plan.steps)
    kept = probe.containers if probe and not given_back else ()
    try:
        emit_kept(store.close_removed(), run)
    except OSError as error:
        failure = failed_on_disk("removed, but our own record could not be deleted", error)
        hint = f"kubelet is on its base endpoint. {failure.hint}; then `cri-resmgr-installer remove` again"
        raise RollbackFailedError(failure.message, hint) from error
    for container in kept:
        if container.pinned:
            message = f"still pinned to its CPUs until it is recreated: {container.title}"
            run.emit(Event("pinned", message, {"id": container.id}))
    kept_aside = store.set_aside() if assessment.plan.steps else ()
    if kept_aside:
        message = f"what other people had at our paths stays in {', '.join(kept_aside)}"
        hint = "look at it, and delete it when nobody needs it"
        run.emit(Event("warning", message, {"code": "edits-left", "hint": hint}))
    left = store.there_still()
    if left or (store.originals_aside and not request.consent.without_record):
        raise _left_behind(store, left)


def _left_behind(store: RecordStore, left: Sequence[str]) -> UnservableHostError:
    """`left`: what nothing proves to be ours."""
    status = store.status.value if store.status is not RecordStatus.OK else "newer than the installation"
    message, hint = (
        f"the record is {status}",
        "everything else was removed and kubelet is on its base endpoint",
    )
    if left:
        message += ", and nothing proves that these files are ours:" + "".join(f"\n  {path}" for path in left)
        hint += "; `cri-resmgr-installer remove --without-record` deletes these too"
    if store.originals_aside:
        kept = "".join(f"\n  {path}" for path in store.originals_aside)
        message += f"\noriginals of our paths could not be put back, and are kept:{kept}"
    return UnservableHostError(message, hint)
