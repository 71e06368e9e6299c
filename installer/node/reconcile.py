"""The story: how a host comes to be as desired, and stays as it was if that fails."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import NoReturn

from installer.errors import (
    InstallerError,
    InterruptedRunError,
    InvalidInputError,
    RolledBackError,
    UnservableHostError,
    failed_on_disk,
)
from installer.host.ports import Host
from installer.inputs.load import Inputs, Request, load_inputs
from installer.inputs.policy import policy_in_force, policy_of
from installer.model import paths
from installer.model.event import Emit, Event, silent
from installer.model.hold import is_of_a_run
from installer.model.host import HostSnapshot
from installer.model.names import Mode
from installer.model.plan import Assessment, Changes, Desired, Finding, Plan
from installer.model.proxy import DEFAULT_FALLBACK, PolicyInForce
from installer.node.assess import WEIGHT_TAKEN, assess, needs_probe, probed_endpoint
from installer.node.desired import fleet_generation
from installer.node.diff import diff
from installer.node.earlier import may_be_earlier
from installer.node.header import without_header
from installer.node.kept import good_content, good_desired, lost_files
from installer.node.kubelet_strategy import place_drop_in, possible_drop_ins
from installer.node.ownership import RecordStore
from installer.node.plan import build_plan, cache_step, refuge_of
from installer.node.preflight_proxy import check_placed
from installer.node.record import Record, RecordStatus, is_earlier, is_open, load_record
from installer.node.run import Run
from installer.node.snapshot import read_machine, take_snapshot, with_probe

_UNTOUCHED = "nothing was touched"
_REPAIRED = "the last good generation was repaired, and nothing else was touched"


def reconcile(request: Request, host: Host, emit: Emit) -> bool:
    """Converges the host, once, under its lock. Says whether anything was changed.

    Raises InvalidInputError and UnservableHostError with nothing touched, RolledBackError with
    the previous state in place, RollbackFailedError, BusyHostError, InterruptedRunError.
    """
    with host.lock(), _explained(request, host) as asked:
        with _good_repaired(request, host, emit):
            run, inputs, assessment = _look(request, host, emit)
            asked.append(inputs)
            plan, remembered = assessment.plan, _is_remembered(request, assessment)
            _check_pause(request, assessment.snapshot)
            _refuse(plan)
            if not remembered:
                _say(plan.warnings, emit)
            if plan.steps and not remembered:
                from installer.node.carry_out import check_run  # late: most runs have nothing to do

                check_run(inputs, assessment, run)
        if remembered:
            _keep_good(request, assessment, run, inputs)
        after = assessment.snapshot
        if plan.steps or _is_to_be_closed(assessment, run):
            from installer.node.carry_out import carry_out

            after = carry_out(assessment, inputs, run)
        _warn_unlabelled(run)
        _warn_unknown_health(after, emit)
        unplaced = tuple(check_placed(after))
        if plan.steps:
            _say(unplaced, emit)
        emit(_converged(assessment, after, inputs, unplaced))
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
            keeping, error = _not_tried_again(assessment, run, inputs)
            return keeping, error
        from installer.node.carry_out import check_run  # late: most runs have nothing to do

        check_run(inputs, assessment, run)
    except InstallerError as error:
        return assessment, error
    return assessment, None


def _look(request: Request, host: Host, emit: Emit) -> tuple[Run, Inputs, Assessment]:
    try:
        machine = read_machine(host)
        store = RecordStore(host.files, load_record(host.files, machine.machine_id, machine.hostname))
        request = replace(request, settings=place_drop_in(request.settings, machine))
        inputs = load_inputs(request, store.record.known_digest)
        forgotten = _forgotten_configs(request, store.record, host)
        if forgotten and not request.inspect:
            raise _forgot(forgotten)
        installed = request.inspect and (request.payload is None or bool(forgotten))
        desired = (good_desired(store.record, host.files) or Desired()) if installed else None
        kubelet = request.settings.kubelet
        if store.status not in (RecordStatus.OK, RecordStatus.FOREIGN):
            store.adopt(possible_drop_ins(kubelet), inputs.payload_digest, request.without_record)
        snapshot = take_snapshot(host, machine, request.settings, store.record)
        snapshot, noted = _consider_earlier(request, host, store, snapshot)
        snapshot = store.with_damage(snapshot, give_up=request.without_record)
        nonce = os.urandom(8).hex()
        assessment = assess(inputs, snapshot, store.record, store.status, nonce, desired, noted)
        if needs_probe(assessment) and (desired is None or desired.files):
            wanted = tuple(file.path for file in assessment.plan.desired.files)
            snapshot = with_probe(snapshot, host, wanted, probed_endpoint(assessment))
            assessment = assess(inputs, snapshot, store.record, store.status, nonce, desired, noted)
    except OSError as error:
        failure = failed_on_disk("the host could not be read", error)
        raise UnservableHostError(failure.message, f"{failure.hint}; nothing was touched") from error
    left = 0.0 if request.ask_first else request.restarts_left
    return Run(host, store, request.settings, emit, request.who, request.because, left), inputs, assessment


def _consider_earlier(
    request: Request, host: Host, store: RecordStore, snapshot: HostSnapshot
) -> tuple[HostSnapshot, tuple[Finding, ...]]:
    """The snapshot that the run continues with, and what is to be said of another installer's work, if
    any."""
    if not may_be_earlier(snapshot, store.record):
        return snapshot, ()
    from installer.node.takeover import consider  # late: on most nodes there is nothing

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
        hint = "somebody may be working on it; --despite-pause proceeds anyway; nothing was touched"
        raise UnservableHostError(f"this node is paused: {snapshot.pause}", hint)


def _say(warnings: Iterable[Finding], emit: Emit) -> None:
    for finding in warnings:
        emit(Event("warning", finding.message, {"code": finding.code, "hint": finding.hint}))


def _refuse(plan: Plan) -> None:
    if plan.refusals:
        lines = [f"{f.message}" + (f" ({f.hint})" if f.hint else "") for f in plan.refusals]
        raise UnservableHostError("\n".join(lines), _UNTOUCHED, lines)


def _is_to_be_closed(assessment: Assessment, run: Run) -> bool:
    """Whether a run that changes nothing on the host has to write in the record how it ended."""
    plan, snapshot = assessment.plan, assessment.snapshot
    reduced = any(finding.code == WEIGHT_TAKEN for finding in plan.findings)
    unkept = is_open(run.store.record, plan.desired) or bool(snapshot.damaged)
    unkept = unkept or (assessment.unchecked and not reduced)
    return plan.mode is Mode.REMOVE or (snapshot.sound and unkept)


def _is_remembered(request: Request, assessment: Assessment) -> bool:
    """Whether this generation failed here before, and is not to be tried again."""
    return bool(assessment.plan.steps and assessment.remembered_failure and not request.retry)


def _as_good(assessment: Assessment, run: Run) -> Assessment | None:
    """What repairs the last good generation on the host of `assessment`; None if there is none, if its
    content is lost, or if a person holds kubelet: it stays as it is."""
    snapshot, record = assessment.snapshot, run.store.record
    held = snapshot.hold and not is_of_a_run(snapshot.hold)
    good = None if held else good_desired(record, run.host.files)
    if good is None or lost_files(record, snapshot):
        return None
    unit = assessment.plan.kubelet_unit
    changes = diff(good, snapshot, record)
    plan = build_plan(
        assessment.plan.mode,
        good,
        changes,
        nonce=os.urandom(8).hex(),
        kubelet_unit=unit,
        hold=bool(snapshot.hold),
        ends_hold=True,
        refuge=refuge_of(snapshot, changes, policy_of(good, snapshot.cache).name, assessment.base_endpoint),
        cache_step=cache_step(snapshot),
    )
    return replace(assessment, plan=plan, payload_version="")


def _not_tried_again(assessment: Assessment, run: Run, inputs: Inputs) -> tuple[Assessment, RolledBackError]:
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
    return keeping, RolledBackError(message, hint, True, fleet_generation(inputs))


def _keep_good(request: Request, assessment: Assessment, run: Run, inputs: Inputs) -> NoReturn:
    """Raises RolledBackError."""
    keeping, error = _not_tried_again(assessment, run, inputs)
    _repair(request, keeping, run)
    raise error


def _repair(request: Request, keeping: Assessment, run: Run) -> bool:
    """Carries out what `_as_good` has found. Says whether that was anything."""
    if not keeping.plan.steps:
        return False
    from installer.node.carry_out import repair

    repair(request, keeping, run)
    return True


@contextmanager
def _explained(request: Request, host: Host) -> Iterator[list[Inputs]]:
    """The error that an unattended run ends with says what is installed all the same, as a look then shows
    it, and which generation was asked for: that of the last element, if there is one."""
    asked = list[Inputs]()
    try:
        yield asked
    except InstallerError as error:
        if request.unattended and not isinstance(error, InterruptedRunError):
            error.fleet_generation = fleet_generation(asked[-1]) if asked else ""
            with suppress(InstallerError, OSError):
                error.installed = _installed(request, host)
        raise


def _installed(request: Request, host: Host) -> dict[str, str]:
    """Empty where nothing of ours is good. Raises InstallerError and OSError."""
    machine = read_machine(host)
    store = RecordStore(host.files, load_record(host.files, machine.machine_id, machine.hostname))
    good = store.record.good
    if good is None or is_earlier(store.record):
        return {}
    policy = policy_in_force(take_snapshot(host, machine, request.settings, store.record))
    return {"generation": good.generation} | _named(policy)


def _named(policy: PolicyInForce | None) -> dict[str, str]:
    return {
        "policy": policy.name if policy else "",
        "policySource": policy.source.value if policy else "",
    }


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


def _warn_unlabelled(run: Run) -> None:
    """A node works without labels, until its policy forbids what it has no label for."""
    unlabelled = run.host.files.unlabelled
    if unlabelled:
        more = f", and {len(unlabelled) - 1} more" if len(unlabelled) > 1 else ""
        message = f"could not set the SELinux label of {unlabelled[0]}{more}"
        hint = "on the node: `restorecon -v PATH`"
        run.emit(Event("warning", message, {"code": "selinux-label", "hint": hint, "files": unlabelled}))


def _warn_unknown_health(after: HostSnapshot, emit: Emit) -> None:
    if after.kubelet.foreign_healthz:
        message = "another process answers on kubelet's healthz: whether kubelet is healthy is unknown"
        hint = "`cri-resmgr-installer status` says more; end that process, and kubelet takes its port back"
        emit(Event("warning", message, {"code": "healthz-foreign", "hint": hint}))


def _converged(
    assessment: Assessment, after: HostSnapshot, inputs: Inputs, unplaced: Iterable[Finding]
) -> Event:
    changed = bool(assessment.plan.steps)
    data = {
        "changed": changed,
        "generation": assessment.plan.desired.generation,
        "payloadVersion": assessment.payload_version,
        "fleetGeneration": fleet_generation(inputs),
        "unplaced": "; ".join(f"{each.message}: {each.hint}" for each in unplaced),
        **_named(policy_in_force(after)),
    }
    return Event("converged", "done" if changed else "nothing to do", data)
