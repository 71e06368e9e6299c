"""The story: how a host comes to be as it should be, and stays as it was when that fails."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from installer.apply import Limits, Progress, apply_plan
from installer.desired import with_generation
from installer.diagnostics import capture, diagnose
from installer.errors import (
    KubeletKeptError,
    RollbackFailedError,
    RolledBackError,
    StepFailedError,
    UnservableHostError,
    failed_on_disk,
)
from installer.host.ports import Host
from installer.inputs.settings import Settings
from installer.intent import Intent, check_inputs, form_installation, form_removal
from installer.kubelet import kubelet_policies
from installer.model import paths
from installer.model.change import Changes
from installer.model.event import Emit, Event
from installer.model.facts import Facts, Probe, RunningContainer
from installer.model.finding import Finding, Severity
from installer.model.plan import Plan
from installer.model.resource import UnitState
from installer.model.state import Mode, Observation
from installer.observe import observe_facts, probe, read_hold
from installer.plan import build_plan
from installer.preflight import cached_configuration, check_change, check_host, check_places, check_removal
from installer.record.schema import RecordStatus, good_desired
from installer.record.store import RecordStore
from installer.rollback import Attempt, roll_back
from installer.verify import look_again, remaining

# Kubelet hangs on the relay while its proxy is replaced, and the node goes NotReady after ~31 s:
# what a start of the proxy may take, so that the attempt, the way back, and kubelet's move to its base
# endpoint should that fail too, fit into 30 s.
_PROXY_START_WHILE_HANGING = 11.0  # seconds


@dataclass(frozen=True, slots=True)
class Request:
    """What a person asked for. `payload` and `configs` are directories readable by this process."""

    mode: Mode
    settings: Settings
    payload: Path
    configs: Path | None = None
    retry: bool = False
    accept_pending: bool = False
    without_record: bool = False
    keep_kubelet: bool = False  # nothing that would restart kubelet is begun


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything known before the first write. `containers` are those that run now (if probed);
    `hold` is why kubelet is held on its base endpoint, empty if it is not."""

    plan: Plan
    facts: Facts
    intent: Intent
    observation: Observation
    ledger: RecordStore
    sound: bool
    hold: str = ""
    containers: tuple[RunningContainer, ...] = ()

    @property
    def remembered_failure(self) -> str:
        """Why this generation is not tried again on this host, or an empty string."""
        failure = self.ledger.record.failed.get(self.plan.desired.generation)
        return f"{failure.time}: {failure.reason}" if failure else ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a converging run ended: `changed` says whether anything was written."""

    changed: bool
    situation: Situation


def look(request: Request, host: Host) -> Situation:
    """settings + facts -> desired -> observe -> diff -> preflight -> plan. Touches nothing.

    Raises InvalidInputError, UnservableHostError.
    """
    settings, removing = request.settings, request.mode is Mode.REMOVE
    facts = observe_facts(host, settings.kubelet.unit)
    ledger = RecordStore(host.files, facts.machine_id, facts.hostname)
    if removing:
        intent = form_removal(facts, request.payload)
    else:
        intent = form_installation(settings, facts, request.payload, request.configs, ledger.record)
    if ledger.status not in (RecordStatus.OK, RecordStatus.FOREIGN):
        drop_in = paths.drop_in(settings.kubelet.drop_in_directory, settings.kubelet.unit)
        ledger.adopt(drop_in, intent.payload_digest, request.without_record)
    observation, changes = look_again(
        host, intent.desired, ledger.record, settings.kubelet.unit, settings.kubelet.healthz_url
    )
    if intent.desired.proxy is None and not removing:
        changes = Changes()  # a kubelet that cannot be served: preflight says why
    wanted = tuple(file.path for file in intent.desired.files)
    # A repair that restarts nothing needs no runtime, and is quicker without asking it.
    endpoint = intent.base_endpoint if changes.disturb or not wanted else ""
    found = probe(host, wanted, endpoint) if changes or not (wanted or removing) else None
    moved = ledger.has_moved_kubelet(observation)
    findings = _examine(request, facts, intent, ledger, changes, observation.proxy, found, moved=moved)
    hold = read_hold(host)
    plan = build_plan(
        request.mode,
        intent.desired,
        changes,
        findings,
        os.urandom(8).hex(),
        with_generation,
        kubelet_unit=settings.kubelet.unit,
        hold=bool(hold),
        reset_cache=settings.configs.reset_cached and cached_configuration(facts),
        state=ledger.state_of_ours() if removing else (),
    )
    sound = observation.kubelet_healthy and (found is None or not found.runtime_error)
    containers = found.containers if found else ()
    return Situation(plan, facts, intent, observation, ledger, sound, hold, containers)


def _examine(
    request: Request,
    facts: Facts,
    intent: Intent,
    ledger: RecordStore,
    changes: Changes,
    proxy: UnitState,
    found: Probe | None,
    *,
    moved: bool,
) -> tuple[Finding, ...]:
    """Preflight's findings; `found` is what was asked because something is to be changed, `moved` says that
    a run was cut off that had begun to move kubelet."""
    record = (*_record_findings(ledger, request.mode), *check_places(changes))
    if request.mode is Mode.REMOVE:
        record += check_removal(facts, changes)
    if intent.configs is None or intent.payload is None or request.mode is Mode.REMOVE:
        return record if changes else ()
    settings = request.settings
    findings = record + check_host(settings, facts, intent.configs, intent.payload, intent.refusals)
    if found is None:
        return findings
    return findings + check_change(
        settings,
        facts,
        found,
        intent.configs,
        intent.payload,
        kubelet_policies(facts.kubelet),
        intent.desired,
        changes,
        proxy,
        accept_pending=request.accept_pending,
        moved=moved,
    )


def _record_findings(ledger: RecordStore, mode: Mode) -> Iterable[Finding]:
    status, code = ledger.status, "record-unusable"
    if status is RecordStatus.OK or (status is RecordStatus.MISSING and mode is Mode.INSTALL):
        return
    what = f"the record ({paths.RECORD}) is {status.value}"
    if mode is Mode.REMOVE:
        yield Finding(Severity.WARN, code, f"{what}: only what is evidently ours is removed")
    elif status is RecordStatus.FUTURE:
        hint = "use the installer that wrote it, or a newer one"
        yield Finding(Severity.REFUSE, code, f"{what}: a newer installer is at work on this node", hint)
    else:
        yield Finding(Severity.WARN, code, f"{what}: it is begun anew with what is evidently ours")


def reconcile(request: Request, host: Host, emit: Emit) -> Outcome:
    """Converges the host, once, under its lock.

    Raises InvalidInputError and UnservableHostError with nothing touched, RolledBackError with
    the previous state in place, RollbackFailedError, BusyHostError, InterruptedRunError.
    """
    with host.lock():
        situation = _look_first(request, host)
        _refuse(request, situation)
        if situation.plan.steps and situation.remembered_failure and not request.retry:
            _keep_good(request, situation, host, emit)
        for finding in situation.plan.warnings:
            emit(Event("warning", finding.message, {"code": finding.code, "hint": finding.hint}))
        if not situation.plan.steps:
            _complete_record(request, situation, emit)
            _finish_removal(request, situation, emit)
            emit(_converged(situation, changed=False))
            return Outcome(False, situation)
        check_inputs(situation.intent, situation.plan.changes, host.validator)
        _carry_out(request, situation, host, emit)
        _finish_removal(request, situation, emit)
        emit(_converged(situation, changed=True))
        return Outcome(True, situation)


def _converged(situation: Situation, *, changed: bool) -> Event:
    payload = situation.intent.payload
    data = {
        "changed": changed,
        "generation": situation.plan.desired.generation,
        "payloadVersion": payload.version if payload else "",
    }
    return Event("converged", "done" if changed else "nothing to do", data)


def _look_first(request: Request, host: Host) -> Situation:
    try:
        return look(request, host)
    except OSError as error:
        failure = failed_on_disk("the host could not be read", error)
        raise UnservableHostError(failure.message, f"{failure.hint}; nothing was touched") from error


def _complete_record(request: Request, situation: Situation, emit: Emit) -> None:
    """After a run that was cut off between its last step and the record."""
    desired = situation.plan.desired
    if request.mode is Mode.INSTALL and situation.sound and situation.ledger.is_open(desired):
        _close_installed(situation, situation.observation, emit)


def _close_installed(situation: Situation, observation: Observation, emit: Emit) -> None:
    """Keeps what is installed and healthy as good. A disk that takes no record is no reason to undo it: the
    next run completes the record."""
    try:
        situation.ledger.close_installed(situation.plan.desired, observation, _payload_file(situation))
    except OSError as error:
        failure = failed_on_disk("all is in place, but the record is not complete", error)
        hint = f"{failure.hint}; the next run completes it"
        emit(Event("warning", failure.message, {"code": "record-open", "hint": hint}))


def _payload_file(situation: Situation) -> str:
    payload = situation.intent.payload
    return str(payload.source) if payload else ""


def _refuse(request: Request, situation: Situation) -> None:
    refusals = situation.plan.refusals
    if refusals:
        lines = [f"{f.message}" + (f" ({f.hint})" if f.hint else "") for f in refusals]
        raise UnservableHostError("\n".join(lines), "nothing was touched")


def _keep_good(request: Request, situation: Situation, host: Host, emit: Emit) -> NoReturn:
    """This generation is not tried again; until an input changes, what differs from the good one is mended.

    Raises RolledBackError. A kubelet that is held stays as it is.
    """
    ledger, unit = situation.ledger, request.settings.kubelet
    good = None if situation.hold else good_desired(ledger.record, host.files)
    hint = "change an input (settings, configs, payload), or run `cri-resmgr-installer install --retry`"
    if good is not None:
        hint = f"the last good generation is kept in place meanwhile: {hint}"
        _observation, changes = look_again(host, good, ledger.record, unit.unit, unit.healthz_url)
        nonce = os.urandom(8).hex()
        plan = build_plan(request.mode, good, changes, (), nonce, with_generation, kubelet_unit=unit.unit)
        if plan.steps:
            # What the payload now has is not what is put back.
            intent = replace(situation.intent, payload=None)
            _carry_out(request, replace(situation, plan=plan, intent=intent), host, emit)
    failure = situation.remembered_failure
    raise RolledBackError(
        f"this generation failed on this host and is not tried again: {failure}", hint, remembered=True
    )


def _carry_out(request: Request, situation: Situation, host: Host, emit: Emit) -> None:
    """claim -> apply -> verify -> record, or the way back."""
    plan, ledger = situation.plan, situation.ledger
    if request.keep_kubelet and plan.restarts_kubelet:
        raise KubeletKeptError("kubelet would have to restart, which may not be now", "nothing was touched")
    limits = build_limits(request.settings, hanging=situation.observation.on_relay)
    progress = Progress()
    try:
        for kept in _claim(situation):
            emit(Event("edit.kept", f"somebody's edit is kept: {kept}", {"kept": kept}))
        apply_plan(plan, host, limits, emit, progress)
        verified = _verify(request, situation, host)
    except StepFailedError as failure:
        attempt = Attempt(
            plan, progress, situation.intent.base_endpoint, situation.sound, os.urandom(8).hex()
        )
        scene = capture(plan, ledger.record, host, limits.healthz_url)
        error = roll_back(attempt, failure, host, ledger, limits, emit)
        emit(diagnose(failure.message, scene, host, plan.kubelet_unit, plan))
        raise error from failure
    if request.mode is Mode.INSTALL:
        _close_installed(situation, verified, emit)


def _claim(situation: Situation) -> tuple[str, ...]:
    try:
        return situation.ledger.claim(situation.plan, situation.observation)
    except OSError as error:
        raise failed_on_disk("what is there now could not be recorded", error) from error


def build_limits(settings: Settings, *, hanging: bool) -> Limits:
    """The deadlines of a run; shorter for the proxy while kubelet hangs on the relay (R8)."""
    proxy_start = float(settings.proxy.start_timeout_seconds)
    return Limits(
        proxy_start=min(proxy_start, _PROXY_START_WHILE_HANGING) if hanging else proxy_start,
        kubelet_start=float(settings.kubelet.start_timeout_seconds),
        settle=float(settings.kubelet.settle_seconds),
        guard=float(settings.kubelet.guard_seconds),
        healthz_url=settings.kubelet.healthz_url,
    )


def _verify(request: Request, situation: Situation, host: Host) -> Observation:
    plan, ledger = situation.plan, situation.ledger
    ledger.note_applied(plan, host.systemd.unit(paths.PROXY_UNIT).invocation_id)
    settings = request.settings.kubelet
    observation, changes = look_again(host, plan.desired, ledger.record, settings.unit, settings.healthz_url)
    left = remaining(changes)
    if left:
        message = f"the host still differs from what was just applied: {left}"
        raise StepFailedError(message, interfered=bool(changes.files))
    if situation.sound and not observation.kubelet_healthy:
        raise StepFailedError(f"{settings.unit} is not healthy")
    return observation


def _finish_removal(request: Request, situation: Situation, emit: Emit) -> None:
    """The last of us goes; what stays and why is said."""
    if request.mode is not Mode.REMOVE:
        return
    ledger = situation.ledger
    try:
        ledger.close_removed()
    except OSError as error:
        failure = failed_on_disk("all is removed but what is left of our own record", error)
        hint = f"kubelet is on its own endpoint. {failure.hint}; then `cri-resmgr-installer remove` again"
        raise RollbackFailedError(failure.message, hint) from error
    pinned = [c for c in situation.containers if c.pinned]
    for container in pinned:
        message = f"still pinned to its CPUs until it is recreated: {container.title}"
        emit(Event("pinned", message, {"id": container.id}))
    if ledger.unclaimed:
        raise UnservableHostError(
            f"the record is {ledger.status.value}, and nothing shows that these are ours:\n"
            + "\n".join(f"  {path}" for path in ledger.unclaimed),
            "everything else is removed and kubelet is on its own endpoint; "
            "`cri-resmgr-installer remove --without-record` deletes these too",
        )
