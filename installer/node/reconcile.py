"""How a host is brought to the desired state, and stays as it was if that fails. Start reading here."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

from installer.errors import (
    InstallerError,
    InvalidInputError,
    KubeletKeptError,
    RolledBackError,
    UnservableHostError,
)
from installer.host.ports import Host
from installer.inputs.load import Request
from installer.inputs.policy import policy_in_force
from installer.model import paths
from installer.model.event import Emit, Event
from installer.model.host import HostSnapshot
from installer.model.names import Mode
from installer.model.plan import AS_GOOD, Assessment, Changes, Finding, warning
from installer.model.result import RunResult, Tally
from installer.node.assess import AGENT_POLICY, WEIGHT_TAKEN
from installer.node.desired import fleet_generation
from installer.node.inspection import assess_good, assess_host
from installer.node.preconditions import check_run, emit_warnings, is_remembered
from installer.node.preflight import SUCCESSOR_NOT_READY
from installer.node.preflight_proxy import check_placed
from installer.node.record import HEALTH_OWED, is_open
from installer.node.run import Run
from installer.node.unattended import KEPT, keep_good


def reconcile(request: Request, host: Host, emit: Emit, tally: Tally | None = None) -> RunResult:
    """Converge the host, once, under its lock. Return what the run has done; `tally` also says it after a
    failure.

    Raises InvalidInputError and UnservableHostError with nothing touched, RolledBackError with the previous
    state in place, RollbackFailedError, BusyHostError, InterruptedRunError.
    """
    tally = tally or Tally()
    with host.lock():
        try:
            _seal_runtime_directory(host, emit)
            found = assess_host(request, host, emit, tally)
            run, inputs, assessment = found.run, found.inputs, found.assessment
            tally.result = replace(tally.result, fleet_generation=fleet_generation(inputs))
            check_run(inputs, assessment, run)
        except KubeletKeptError as error:
            with suppress(InstallerError):  # a repair that fails keeps no node from asking for its permit
                keep_good(error, request, host, emit, tally)
            raise
        except (InvalidInputError, UnservableHostError, RolledBackError) as error:
            keep_good(error, request, host, emit, tally)
            raise
        plan, after = assessment.plan, assessment.snapshot
        if assessment.as_installed:
            emit(Event("good.asked", f"{AS_GOOD}: {assessment.describe_installed}"))
        if plan.steps or is_to_be_closed(assessment, run):
            from installer.node.carry_out import carry_out  # late: most runs have nothing to do

            after = carry_out(assessment, inputs, run)
        _warn_unlabelled(run)
        warn_of_health(assessment, after, emit)
        unplaced = tuple(check_placed(after))
        if plan.steps:
            emit_warnings(unplaced, emit)
        done = replace(
            tally.result,
            code=0,
            ended=True,
            changed=bool(plan.steps),
            generation=plan.desired.generation,
            remarks=remarks_of(assessment, unplaced),
        )
        emit(_converged(done, assessment, after))
        tally.result = done
        return done


def inspect(request: Request, host: Host) -> Assessment:
    """What a run would do. Touches nothing. With `request.inspect`, if payload or configs are not given, the
    host is compared with the last good generation.

    Raises InvalidInputError, UnservableHostError.
    """
    return _beside(assess_host(request, host).assessment, host)


def preview(request: Request, host: Host) -> tuple[Assessment, InstallerError | None]:
    """What a run would do, with the same decisions, and the error with which it would end instead of carrying
    out its whole plan. Refusals are in the plan. Touches nothing. `host` needs a validator that works without
    the host's lock.

    Raises InvalidInputError and UnservableHostError if there is no plan to show.
    """
    found = assess_host(request, host)
    assessment = _beside(found.assessment, host)
    try:
        check_run(found.inputs, assessment, found.run)
    except InstallerError as error:
        if assessment.plan.refusals:
            return assessment, None
        if is_remembered(error):
            kept = assess_good(request, host)
            nothing = replace(assessment.plan, changes=Changes(), steps=(), resets=())
            assessment = kept.assessment if kept else replace(assessment, plan=nothing, payload_version="")
            if kept:
                error.hint = f"{KEPT}: {error.hint}"
        return assessment, error
    return assessment, None


def _beside(assessment: Assessment, host: Host) -> Assessment:
    """With a remark about the run that is at work on this host, if there is one."""
    holder = host.lock_holder()
    if not holder:
        return assessment
    message = f"another run is at work on this host: {holder}"
    hint = "what is shown here changes meanwhile: look again when it has ended"
    found = warning("run-at-work", message, hint)
    plan = replace(assessment.plan, findings=(found, *assessment.plan.findings))
    return replace(assessment, plan=plan)


def _seal_runtime_directory(host: Host, emit: Emit) -> None:
    """It is ours alone, and no difference of the node: an owner or mode of others is mended."""
    try:
        why = host.files.seal(paths.OUR_RUNTIME)
    except OSError as error:
        hint = f"others may write there: `umount {paths.OUR_RUNTIME}` or delete it"
        raise UnservableHostError(
            f"{paths.OUR_RUNTIME} cannot be made root's alone: {error}", hint
        ) from error
    if why:
        message = f"{paths.OUR_RUNTIME} {why}: only root may now, and what others had put there is deleted"
        emit(Event("warning", message, {"code": "directory-exposed"}))


def is_to_be_closed(assessment: Assessment, run: Run) -> bool:
    """Whether a run that changes nothing on the host has to write its end into the record."""
    plan, snapshot = assessment.plan, assessment.snapshot
    reduced = any(finding.code == WEIGHT_TAKEN for finding in plan.findings)
    lacking = snapshot.damaged & {file.digest for file in plan.desired.files}  # which can be kept again
    unkept = is_open(run.store.record, plan.desired) or bool(lacking)
    unkept = unkept or (assessment.unchecked and not reduced) or run.store.names_another_host
    unkept = unkept or run.store.has_strays or HEALTH_OWED in run.store.record.owed
    mute = bool(snapshot.probe and snapshot.probe.runtime_error)  # then nothing was checked
    return plan.mode is Mode.REMOVE or (unkept and not mute)


def _warn_unlabelled(run: Run) -> None:
    """A node works without labels, until its SELinux policy forbids something that lacks one."""
    unlabelled = run.host.files.unlabelled
    if unlabelled:
        more = f", and {len(unlabelled) - 1} more" if len(unlabelled) > 1 else ""
        message = f"could not set the SELinux label of {unlabelled[0]}{more}"
        hint = "on the node: `restorecon -v PATH`"
        run.emit(Event("warning", message, {"code": "selinux-label", "hint": hint, "files": unlabelled}))


def warn_of_health(assessment: Assessment, after: HostSnapshot, emit: Emit) -> None:
    unit = after.kubelet.unit.name
    if after.kubelet.unwell:
        changed = bool(assessment.plan.steps)
        before = ", nor was it before this run" if changed and assessment.snapshot.kubelet.unwell else ""
        message = f"{unit} is not healthy{before}"
        hint = f"`journalctl -u {unit} -n 50` says why, unless its healthz is elsewhere"
        emit(Event("warning", message, {"code": "kubelet-unhealthy", "hint": hint}))
    if after.kubelet.foreign_healthz:
        message = "another process answers on kubelet's healthz: kubelet's health is unknown"
        hint = "`cri-resmgr-installer status` says more; end that process, and kubelet takes its port back"
        emit(Event("warning", message, {"code": "healthz-foreign", "hint": hint}))


def remarks_of(assessment: Assessment, unplaced: Iterable[Finding]) -> str:
    """What a person should know of a host on which nothing differs, and what to do."""
    unready = (each for each in assessment.plan.warnings if each.code in (SUCCESSOR_NOT_READY, AGENT_POLICY))
    return "; ".join(f"{each.message}: {each.hint}" for each in (*unplaced, *unready))


def _converged(done: RunResult, assessment: Assessment, after: HostSnapshot) -> Event:
    policy = policy_in_force(after)
    data = {
        "changed": done.changed,
        "generation": done.generation,
        "payloadVersion": assessment.payload_version,
        "fleetGeneration": done.fleet_generation,
        "remarks": done.remarks,
        "policy": policy.name if policy else "",
        "policySource": policy.source.value if policy else "",
    }
    return Event("converged", "done" if done.changed else "nothing to do", data)
