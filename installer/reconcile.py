"""The story: how a host comes to be as desired, and stays as it was if that fails."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import NoReturn

from installer.apply import Progress
from installer.assess import assess, needs_probe, probed_endpoint
from installer.converge import Run, converge, limits_of
from installer.diagnostics import capture, diagnose
from installer.diff import diff
from installer.errors import (
    InstallerError,
    InterruptedRunError,
    InvalidInputError,
    KubeletKeptError,
    RollbackFailedError,
    RolledBackError,
    StepFailedError,
    UnservableHostError,
    failed_on_disk,
)
from installer.header import without_header
from installer.history import describe_end, entry_of, note
from installer.host.ports import Host
from installer.inputs.configs import DEFAULT_FALLBACK
from installer.inputs.load import Inputs, Request, check_inputs, load_inputs
from installer.inputs.policy import policy_in_force, policy_of
from installer.model import paths
from installer.model.assessment import Assessment
from installer.model.change import Changes
from installer.model.event import Emit, Event, silent
from installer.model.finding import Finding
from installer.model.fleet import PlannedWork
from installer.model.hold import is_of_a_run, is_operators
from installer.model.plan import Plan, StepKind
from installer.model.snapshot import HostSnapshot
from installer.model.state import Desired, Mode
from installer.plan import build_plan, step_aside
from installer.preflight.compatibility import differences
from installer.record.schema import (
    Record,
    RecordStatus,
    good_content,
    good_desired,
    is_open,
    is_proven,
    load_record,
)
from installer.record.store import RecordStore
from installer.rollback import roll_back
from installer.snapshot import read_machine, take_snapshot, with_probe
from installer.takeover import may_be_earlier

_UNMAINTAINED = "cri-resmgr is not maintained any more by its authors: nobody corrects its faults"
_SUCCESSOR = "they point to NRI plugins (https://github.com/containers/nri-plugins), which need no proxy"
_UNTOUCHED = "nothing was touched"
_REPAIRED = "the last good generation was repaired, and nothing else was touched"


def reconcile(request: Request, host: Host, emit: Emit) -> bool:
    """Converges the host, once, under its lock. Says whether anything was changed.

    Raises InvalidInputError and UnservableHostError with nothing touched, RolledBackError with
    the previous state in place, RollbackFailedError, BusyHostError, InterruptedRunError.
    """
    with host.lock():
        with _good_repaired(request, host, emit):
            run, inputs, assessment = _look(request, host, emit)
            plan, remembered = assessment.plan, _is_remembered(request, assessment)
            _check_pause(request, assessment.snapshot)
            _refuse(plan)
            if not remembered:
                _warn(plan, emit)
            if plan.steps and not remembered:
                _check_run(inputs, assessment, run)
        if remembered:
            _keep_good(request, assessment, run)
        after = assessment.snapshot
        if plan.steps:
            after = _carry_out(assessment, run)
            _warn_of_what_changed(assessment, run)
        if request.mode is Mode.REMOVE:
            _finish_removal(assessment, run)
        elif plan.steps or (assessment.snapshot.sound and is_open(run.store.record, plan.desired)):
            _close_installed(plan, after, inputs, run)
        _warn_unlabelled(run)
        emit(_converged(assessment, after, inputs))
        return bool(plan.steps)


def look(request: Request, host: Host) -> Assessment:
    """What a run would do. Touches nothing. With `request.inspect` the host is compared with the last good
    generation where payload or configs are not given.

    Raises InvalidInputError, UnservableHostError.
    """
    return _look(request, host, silent)[2]


def rehearse(request: Request, host: Host) -> tuple[Assessment, InstallerError | None]:
    """What a run would do, decided as it would decide, and the error that it would end with instead of doing
    all of its plan; refusals are in the plan. Touches nothing. `host` needs a validator that works without
    the host's lock.

    Raises InvalidInputError, UnservableHostError where there is no plan to show.
    """
    run, inputs, assessment = _look(request, host, silent)
    try:
        _check_pause(request, assessment.snapshot)
        if assessment.plan.refusals or not assessment.plan.steps:
            return assessment, None
        if _is_remembered(request, assessment):
            keeping, error = _not_tried_again(assessment, run)
            return keeping, error
        _check_run(inputs, assessment, run)
    except InstallerError as error:
        return assessment, error
    return assessment, None


def _look(request: Request, host: Host, emit: Emit) -> tuple[Run, Inputs, Assessment]:
    try:
        machine = read_machine(host)
        store = RecordStore(host.files, load_record(host.files, machine.machine_id, machine.hostname))
        inputs = load_inputs(request, store.record.known_digest)
        forgotten = _forgotten_configs(request, store.record, host)
        if forgotten and not request.inspect:
            raise _forgot(forgotten)
        installed = request.inspect and (request.payload is None or bool(forgotten))
        desired = (good_desired(store.record, host.files) or Desired()) if installed else None
        kubelet = request.settings.kubelet
        if store.status not in (RecordStatus.OK, RecordStatus.FOREIGN):
            drop_in = paths.drop_in(kubelet.drop_in_directory, kubelet.unit)
            store.adopt(drop_in, inputs.payload_digest, request.without_record)
        snapshot = take_snapshot(host, machine, request.settings, store.record)
        snapshot, noted = _consider_earlier(request, host, store, snapshot)
        nonce = os.urandom(8).hex()
        assessment = assess(inputs, snapshot, store.record, store.status, nonce, desired, noted)
        if needs_probe(assessment) and (desired is None or desired.files):
            wanted = tuple(file.path for file in assessment.plan.desired.files)
            snapshot = with_probe(snapshot, host, wanted, probed_endpoint(assessment))
            assessment = assess(inputs, snapshot, store.record, store.status, nonce, desired, noted)
    except OSError as error:
        failure = failed_on_disk("the host could not be read", error)
        raise UnservableHostError(failure.message, f"{failure.hint}; nothing was touched") from error
    return Run(host, store, request.settings, emit, request.who, request.because), inputs, assessment


def _consider_earlier(
    request: Request, host: Host, store: RecordStore, snapshot: HostSnapshot
) -> tuple[HostSnapshot, tuple[Finding, ...]]:
    """The snapshot that the run continues with, and what is to be said of another installer's work, if
    any."""
    if not may_be_earlier(snapshot, store.record):
        return snapshot, ()
    from installer.takeover.consider import consider  # late: on most nodes there is nothing

    def look(record: Record) -> HostSnapshot:
        return take_snapshot(host, snapshot.machine, request.settings, record)

    return consider(host.files, request, store, snapshot, look)


def _forgotten_configs(request: Request, record: Record, host: Host) -> list[str]:
    """The configs that this node was installed with, if none are given now: the policy would become none."""
    if request.configs is not None or request.default_configs or request.mode is Mode.REMOVE:
        return []
    kept = {path: good_content(record, host.files, path) for path in paths.CONFIG_FILES}
    fallback = kept[paths.FALLBACK_CONFIG]
    if fallback is not None and without_header(fallback) == DEFAULT_FALLBACK:
        kept[paths.FALLBACK_CONFIG] = None
    return [path for path, content in kept.items() if content is not None]


def _forgot(found: list[str]) -> InvalidInputError:
    return InvalidInputError(
        [f"--configs is missing: this node was installed with configs ({', '.join(found)})"],
        "give the same directory again with --configs, or, if the policy none is what you want, "
        "--default-configs; nothing was touched",
    )


def _check_pause(request: Request, snapshot: HostSnapshot) -> None:
    """Raises UnservableHostError where nobody but a person who says so may change anything."""
    if snapshot.pause and not request.despite_pause:
        hint = "a person may be at work there; --despite-pause acts all the same; nothing was touched"
        raise UnservableHostError(f"this node is paused: {snapshot.pause}", hint)


def _warn(plan: Plan, emit: Emit) -> None:
    for finding in plan.warnings:
        emit(Event("warning", finding.message, {"code": finding.code, "hint": finding.hint}))


def _refuse(plan: Plan) -> None:
    if plan.refusals:
        lines = [f"{f.message}" + (f" ({f.hint})" if f.hint else "") for f in plan.refusals]
        raise UnservableHostError("\n".join(lines), _UNTOUCHED, lines)


def _check_allowed(request: Request, assessment: Assessment) -> None:
    """Whether this run, and not only this plan, may do that to kubelet. Raises KubeletKeptError."""
    plan, reason = assessment.plan, assessment.snapshot.hold
    ends_hold = any(step.kind is StepKind.CLEAR_HOLD for step in plan.steps)
    if request.unattended and ends_hold and is_operators(reason):
        hint = (
            f"`cri-resmgr-installer install` by hand ends the hold, or `rm {paths.HOLD}`; nothing was touched"
        )
        raise KubeletKeptError(f"an operator holds kubelet on its base endpoint: {reason}", hint)
    if request.keep_kubelet and plan.restarts_kubelet:
        message = "kubelet would have to restart: not allowed now: hourly restart limit reached"
        raise KubeletKeptError(message, "nothing was touched")


def _check_run(inputs: Inputs, assessment: Assessment, run: Run) -> None:
    """The last and most expensive questions before the first write."""
    _check_allowed(inputs.request, assessment)
    plan = assessment.plan
    proven = is_proven(run.store.record, plan.desired)
    check_inputs(inputs, plan.changes, run.host.validator, proven=proven)
    if inputs.request.ask_first:
        _check_turn(_planned_work(inputs, assessment, run), run.emit)


def _planned_work(inputs: Inputs, assessment: Assessment, run: Run) -> PlannedWork:
    """What the plan means for a fleet: a kubelet that restarts, and the first of a generation."""
    plan, snapshot = assessment.plan, assessment.snapshot
    if plan.mode is Mode.REMOVE:
        return PlannedWork("removal", restarts_kubelet=plan.restarts_kubelet, removes=True)
    in_force, record = policy_in_force(snapshot), run.store.record
    repolicies = policy_of(plan.desired, snapshot.cache) != (in_force.name if in_force else "")
    return PlannedWork(
        inputs.fleet_generation,
        restarts_kubelet=plan.restarts_kubelet,
        begins=is_open(record, plan.desired) or not is_proven(record, plan.desired),
        soaks=plan.restarts_kubelet or repolicies,
    )


def _check_turn(work: PlannedWork, emit: Emit) -> None:
    """Says what is planned, and raises KubeletKeptError if it has to be asked for."""
    if work.restarts_kubelet or work.begins:
        emit(Event("planned", "this pass has to wait for the turn of this node", asdict(work)))
        raise KubeletKeptError("planned work waits for the turn of this node", _UNTOUCHED)


def _carry_out(assessment: Assessment, run: Run) -> HostSnapshot:
    """The plan, or the rollback. Returns the host as it is then."""
    plan, snapshot = assessment.plan, assessment.snapshot
    limits = limits_of(plan, snapshot, run.settings)
    progress, outcome = Progress(), "cut off"
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
    except InterruptedRunError as error:
        outcome = describe_end(error)
        raise
    finally:
        if progress.touched:
            entry = entry_of(plan, run.who, run.because, outcome, assessment.payload_version)
            note(run.host.journal, entry)


def _is_remembered(request: Request, assessment: Assessment) -> bool:
    """Whether this generation failed here before, and is not to be tried again."""
    return bool(assessment.plan.steps and assessment.remembered_failure and not request.retry)


def _as_good(assessment: Assessment, run: Run) -> Assessment | None:
    """What repairs the last good generation on the host of `assessment`; None if there is none, or if
    a person holds kubelet: it stays as it is."""
    snapshot, record = assessment.snapshot, run.store.record
    held = snapshot.hold and not is_of_a_run(snapshot.hold)
    good = None if held else good_desired(record, run.host.files)
    if good is None:
        return None
    unit = assessment.plan.kubelet_unit
    changes = diff(good, snapshot, record)
    policy = policy_of(good, snapshot.cache)
    changes, aside = step_aside(snapshot, changes, unit, policy, assessment.base_endpoint)
    plan = build_plan(
        assessment.plan.mode,
        good,
        changes,
        nonce=os.urandom(8).hex(),
        kubelet_unit=unit,
        hold=bool(snapshot.hold),
        ends_hold=True,
        step_aside=aside,
    )
    return replace(assessment, plan=plan, payload_version="")


def _not_tried_again(assessment: Assessment, run: Run) -> tuple[Assessment, RolledBackError]:
    """What is done instead: until an input changes, the good generation is repaired."""
    hint = "change an input (settings, configs, payload), or run `cri-resmgr-installer install --retry`"
    keeping = _as_good(assessment, run)
    if keeping is not None:
        hint = f"the last good generation is kept in place meanwhile: {hint}"
    else:
        plan, unit = assessment.plan, assessment.plan.kubelet_unit
        nothing = build_plan(plan.mode, Desired(), Changes(), nonce="", kubelet_unit=unit)
        keeping = replace(assessment, plan=nothing, payload_version="")
    message = f"this generation failed on this host and is not tried again: {assessment.remembered_failure}"
    return keeping, RolledBackError(message, hint, remembered=True)


def _keep_good(request: Request, assessment: Assessment, run: Run) -> NoReturn:
    """Raises RolledBackError."""
    keeping, error = _not_tried_again(assessment, run)
    _repair(request, keeping, run)
    raise error


def _repair(request: Request, keeping: Assessment, run: Run) -> bool:
    """Carries out what `_as_good` has found. Says whether that was anything."""
    if not keeping.plan.steps:
        return False
    _check_allowed(request, keeping)
    if request.ask_first:
        work = PlannedWork("good", restarts_kubelet=keeping.plan.restarts_kubelet)
        _check_turn(work, run.emit)
    after = _carry_out(keeping, run)
    _close_installed(keeping.plan, after, None, run)
    run.emit(Event("good.repaired", "the last good generation was repaired"))
    return True


@contextmanager
def _good_repaired(request: Request, host: Host, emit: Emit) -> Iterator[None]:
    """Nobody watches an unattended run: where it is refused what it was given, it first repairs the last good
    generation, which that does not concern."""
    try:
        yield
    except (InvalidInputError, UnservableHostError, RolledBackError) as error:
        installs = request.unattended and request.mode is Mode.INSTALL
        if installs and _repair_despite(error, request, host, emit):
            told = error.hint.removesuffix(_UNTOUCHED).removesuffix("; ")
            error.hint = f"{told}; {_REPAIRED}" if told else _REPAIRED
        raise


def _repair_despite(error: InstallerError, request: Request, host: Host, emit: Emit) -> bool:
    """Repairs the last good generation without what is refused, unless that generation is refused, too. Says
    whether anything was changed."""
    run, _, assessment = _look(replace(request, payload=None, configs=None, inspect=True), host, emit)
    keeping = _as_good(assessment, run)
    if keeping is None or not keeping.plan.steps or assessment.plan.refusals:
        return False
    _check_pause(request, assessment.snapshot)
    emit(Event("warning", f"refused: {error.message}", {"code": "refused", "hint": ""}))
    return _repair(request, keeping, run)


def _close_installed(plan: Plan, after: HostSnapshot, inputs: Inputs | None, run: Run) -> None:
    """Keeps what is installed and healthy as good. A disk that takes no record is no reason to undo it: the
    next run completes the record. `inputs` are those that were installed, None for a kept generation."""
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


def _warn_unlabelled(run: Run) -> None:
    """A node works without labels, until its policy forbids what it has no label for."""
    unlabelled = run.host.files.unlabelled
    if unlabelled:
        more = f", and {len(unlabelled) - 1} more" if len(unlabelled) > 1 else ""
        message = f"could not set the SELinux label of {unlabelled[0]}{more}"
        hint = "on the node: `restorecon -v PATH`"
        run.emit(Event("warning", message, {"code": "selinux-label", "hint": hint, "files": unlabelled}))


def _converged(assessment: Assessment, after: HostSnapshot, inputs: Inputs) -> Event:
    changed, policy = bool(assessment.plan.steps), policy_in_force(after)
    data = {
        "changed": changed,
        "generation": assessment.plan.desired.generation,
        "payloadVersion": assessment.payload_version,
        "fleetGeneration": inputs.fleet_generation,
        "policy": policy.name if policy else "",
        "policySource": policy.source.value if policy else "",
    }
    return Event("converged", "done" if changed else "nothing to do", data)
