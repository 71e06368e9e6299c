"""How a host is brought to the desired state, and stays as it was if that fails. Start reading here."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

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
from installer.inputs.policy import policy_in_force
from installer.model import paths
from installer.model.event import Emit, Event, silent
from installer.model.hold import is_of_a_run
from installer.model.host import HostSnapshot
from installer.model.names import Mode
from installer.model.plan import Assessment, Changes, Desired, Finding
from installer.model.proxy import DEFAULT_FALLBACK, PolicyInForce
from installer.node.assess import WEIGHT_TAKEN, assess, needs_probe, probed_endpoint
from installer.node.decide import UNTOUCHED, check_pause, check_run, emit_warnings, is_remembered
from installer.node.desired import fleet_generation
from installer.node.header import without_header
from installer.node.kept import good_content, good_desired, lost_files
from installer.node.kubelet_strategy import place_drop_in, possible_drop_ins
from installer.node.ownership import RecordStore
from installer.node.preflight_proxy import check_placed
from installer.node.record import Record, RecordStatus, is_open, load_record, may_be_earlier, takes_over
from installer.node.run import Run
from installer.node.snapshot import read_machine, take_snapshot, with_probe

_KEPT = "the last good generation stays in place meanwhile"
_REPAIRED = "the last good generation was repaired, and nothing else was touched"


def reconcile(request: Request, host: Host, emit: Emit) -> bool:
    """Converge the host, once, under its lock. Return whether anything was changed.

    Raises InvalidInputError and UnservableHostError with nothing touched, RolledBackError with the previous
    state in place, RollbackFailedError, BusyHostError, InterruptedRunError.
    """
    with host.lock(), _explained(request, host) as asked:
        try:
            run, inputs, assessment = _assess(request, host, emit)
            asked.append(inputs)
            check_run(inputs, assessment, run)
        except (InvalidInputError, UnservableHostError, RolledBackError) as error:
            _keep_good(error, request, host, emit)
            raise
        plan, after = assessment.plan, assessment.snapshot
        if plan.steps or _is_to_be_closed(assessment, run):
            from installer.node.carry_out import carry_out  # late: most runs have nothing to do

            after = carry_out(assessment, inputs, run)
        _warn_unlabelled(run)
        _warn_unknown_health(after, emit)
        unplaced = tuple(check_placed(after))
        if plan.steps:
            emit_warnings(unplaced, emit)
        emit(_converged(assessment, after, inputs, unplaced))
        return bool(plan.steps)


def inspect(request: Request, host: Host) -> Assessment:
    """What a run would do. Touches nothing. With `request.inspect`, if payload or configs are not given, the
    host is compared with the last good generation.

    Raises InvalidInputError, UnservableHostError.
    """
    return _assess(request, host, silent)[2]


def preview(request: Request, host: Host) -> tuple[Assessment, InstallerError | None]:
    """What a run would do, with the same decisions, and the error with which it would end instead of carrying
    out its whole plan. Refusals are in the plan. Touches nothing. `host` needs a validator that works without
    the host's lock.

    Raises InvalidInputError and UnservableHostError if there is no plan to show.
    """
    run, inputs, assessment = _assess(request, host, silent)
    try:
        check_run(inputs, assessment, run)
    except InstallerError as error:
        if assessment.plan.refusals:
            return assessment, None
        if is_remembered(error):
            kept = _assess_good(request, host, silent)
            nothing = replace(assessment.plan, changes=Changes(), steps=(), resets=())
            assessment = kept[1] if kept else replace(assessment, plan=nothing, payload_version="")
            if kept:
                error.hint = f"{_KEPT}: {error.hint}"
        return assessment, error
    return assessment, None


def _assess(request: Request, host: Host, emit: Emit) -> tuple[Run, Inputs, Assessment]:
    try:
        machine = read_machine(host)
        store = RecordStore(host.files, load_record(host.files, machine.machine_id, machine.hostname))
        request = replace(request, settings=place_drop_in(request.settings, machine))
        inputs = load_inputs(request, store.record.known_digest)
        forgotten = _forgotten_configs(request, store.record, host)
        if forgotten and not request.inspect:
            raise _configs_missing(forgotten)
        installed = request.inspect and (request.payload is None or bool(forgotten))
        desired = (good_desired(store.record, host.files) or Desired()) if installed else None
        kubelet = request.settings.kubelet
        if store.status not in (RecordStatus.OK, RecordStatus.FOREIGN):
            store.reconstruct(possible_drop_ins(kubelet), inputs.payload_digest, request.without_record)
        snapshot = take_snapshot(host, machine, request.settings, store.record)
        snapshot, noted = _consider_earlier(request, host, store, snapshot)
        snapshot = store.with_damage(snapshot, give_up=request.without_record)
        nonce = os.urandom(8).hex()
        assessment = assess(inputs, snapshot, store.record, store.status, nonce, desired, noted)
        if needs_probe(assessment) and (desired is None or desired.files):
            wanted = tuple(file.path for file in assessment.plan.desired.files)
            endpoint, controls = probed_endpoint(assessment), assessment.plan.controls
            nri = request.mode is Mode.REMOVE and request.settings.removal.successor == "nri"
            snapshot = with_probe(snapshot, host, wanted, endpoint, controls, nri=nri)
            assessment = assess(inputs, snapshot, store.record, store.status, nonce, desired, noted)
    except OSError as error:
        failure = failed_on_disk("the host could not be read", error)
        raise UnservableHostError(failure.message, f"{failure.hint}; nothing was touched") from error
    left = 0.0 if request.ask_first else request.restarts_left
    return Run(host, store, request.settings, emit, request.who, request.because, left), inputs, assessment


def _consider_earlier(
    request: Request, host: Host, store: RecordStore, snapshot: HostSnapshot
) -> tuple[HostSnapshot, tuple[Finding, ...]]:
    """The snapshot with which the run continues, and the findings about another installer's work, if any."""
    if not may_be_earlier(snapshot, store.record):
        return snapshot, ()
    from installer.node.takeover import consider  # late: most nodes have none

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


def _configs_missing(found: list[str]) -> InvalidInputError:
    return InvalidInputError(
        [f"--configs is missing: this node was installed with configs ({', '.join(found)})"],
        "give the same directory again with --configs or, if you want the policy none, --default-configs; "
        "nothing was touched",
    )


def _is_to_be_closed(assessment: Assessment, run: Run) -> bool:
    """Whether a run that changes nothing on the host has to write its end into the record."""
    plan, snapshot = assessment.plan, assessment.snapshot
    reduced = any(finding.code == WEIGHT_TAKEN for finding in plan.findings)
    unkept = is_open(run.store.record, plan.desired) or bool(snapshot.damaged)
    unkept = unkept or (assessment.unchecked and not reduced)
    return plan.mode is Mode.REMOVE or (snapshot.sound and unkept)


def _keep_good(error: InstallerError, request: Request, host: Host, emit: Emit) -> None:
    """Repair the last good generation, which `error` does not concern: in an unattended run, and while a
    failed generation is not retried. The hint of `error` then says so.

    Raises InstallerError.
    """
    remembered = is_remembered(error)
    if request.mode is Mode.REMOVE or not (request.unattended or remembered):
        return
    found = _assess_good(request, host, emit)
    if found is None:
        return
    run, good = found
    if remembered:
        error.hint = f"{_KEPT}: {error.hint}"
    if not good.plan.steps or good.plan.refusals:
        return
    check_pause(request, good.snapshot)
    if not remembered:
        emit(Event("warning", f"refused: {error.message}", {"code": "refused", "hint": ""}))
    from installer.node.carry_out import repair

    repair(request, good, run)
    if not remembered:
        hint = error.hint.removesuffix(UNTOUCHED).removesuffix("; ")
        error.hint = f"{hint}; {_REPAIRED}" if hint else _REPAIRED


def _assess_good(request: Request, host: Host, emit: Emit) -> tuple[Run, Assessment] | None:
    """What would repair the last good generation. None if there is none, if its content is lost, or if a
    person holds kubelet."""
    asked = replace(request, payload=None, configs=None, inspect=True, take_over=False)
    run, _, good = _assess(asked, host, emit)
    record, snapshot = run.store.record, good.snapshot
    held = snapshot.hold and not is_of_a_run(snapshot.hold)
    lost = record.good is None or lost_files(record, snapshot)
    return None if held or lost else (run, good)


@contextmanager
def _explained(request: Request, host: Host) -> Iterator[list[Inputs]]:
    """Add to the error of an unattended run what is still installed, by reading the host again, and the
    generation that was asked for: that of the yielded list's last element, if it has one."""
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
    """Empty if no generation is good. Raises InstallerError and OSError."""
    machine = read_machine(host)
    store = RecordStore(host.files, load_record(host.files, machine.machine_id, machine.hostname))
    good = store.record.good
    if good is None or takes_over(store.record):
        return {}
    policy = policy_in_force(take_snapshot(host, machine, request.settings, store.record))
    return {"generation": good.generation} | _named(policy)


def _named(policy: PolicyInForce | None) -> dict[str, str]:
    return {
        "policy": policy.name if policy else "",
        "policySource": policy.source.value if policy else "",
    }


def _warn_unlabelled(run: Run) -> None:
    """A node works without labels, until its SELinux policy forbids something that lacks one."""
    unlabelled = run.host.files.unlabelled
    if unlabelled:
        more = f", and {len(unlabelled) - 1} more" if len(unlabelled) > 1 else ""
        message = f"could not set the SELinux label of {unlabelled[0]}{more}"
        hint = "on the node: `restorecon -v PATH`"
        run.emit(Event("warning", message, {"code": "selinux-label", "hint": hint, "files": unlabelled}))


def _warn_unknown_health(after: HostSnapshot, emit: Emit) -> None:
    if after.kubelet.foreign_healthz:
        message = "another process answers on kubelet's healthz: kubelet's health is unknown"
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
