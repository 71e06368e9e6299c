"""settings + snapshot -> desired -> diff -> preflight -> plan. Pure: values in, one value out.

Nothing is asked here. What has to be asked only when something is to be changed is the snapshot's probe: the
caller sees by `needs_probe` whether it is missing, adds it, and assesses again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from installer.inputs.load import Inputs, Request
from installer.inputs.policy import policy_in_force, policy_of
from installer.model import paths
from installer.model.hold import is_of_a_run
from installer.model.host import HostSnapshot, Part, Probe
from installer.model.names import Mode
from installer.model.plan import Assessment, Changes, Desired, Finding, UnitAction, refusal, warning
from installer.model.proxy import PolicyInForce, Repinning
from installer.node.adoption import divide, find_leftovers, find_reduced
from installer.node.desired import build_desired, runtime_endpoint
from installer.node.diff import diff
from installer.node.kept import check_kept
from installer.node.kubelet_strategy import KubeletAnalysis, analyse_kubelet
from installer.node.pinning import find_resets, is_known, keeps_weight, was_cut_off
from installer.node.plan import build_plan, cache_step, refuge_of
from installer.node.preflight import check
from installer.node.record import Record, RecordStatus, leftovers_of_ours, was_moving_kubelet

_WHY_ADOPTED = "containers that it does not know are to be adopted"
WEIGHT_TAKEN = "weight-taken"  # the code of a finding
_WHY_TAKEN = "its last start has taken CPU weight from containers that it did not know"


def assess(
    inputs: Inputs,
    snapshot: HostSnapshot,
    record: Record,
    status: RecordStatus,
    nonce: str,
    installed: Desired | None = None,
    noted: tuple[Finding, ...] = (),
) -> Assessment:
    """What the run would do. `nonce` marks its pending generation; `installed` replaces the inputs."""
    request, settings = inputs.request, inputs.request.settings
    removing, kubelet = request.mode is Mode.REMOVE, analyse_kubelet(snapshot, settings)
    compared = _compare(inputs, snapshot, record, kubelet, installed)
    if kubelet.next_endpoint and compared.restarts_kubelet and installed is None and not removing:
        # Its base is another one then. Without this, the next run would move the proxy there.
        kubelet = replace(kubelet, endpoint=kubelet.next_endpoint)
        compared = _compare(inputs, snapshot, record, kubelet, installed)
    desired, runtime, changes, refuge, starting = compared
    moved = was_moving_kubelet(record, snapshot)
    findings = check(inputs, snapshot, kubelet, desired, changes, moved=moved)
    if changes or not removing:
        findings = (*noted, *_record_findings(status, request, record, snapshot, desired, changes), *findings)
    adopts = bool(runtime) and _adopting(inputs, snapshot, starting or _met_by(snapshot, changes))
    unpinned = _unpinned(inputs, snapshot, changes, starting) if runtime else ()
    adopted = _adopted(snapshot) if adopts and starting else ()
    plan = build_plan(
        request.mode,
        desired,
        changes,
        nonce=nonce,
        kubelet_unit=settings.kubelet.unit,
        findings=findings,
        hold=bool(snapshot.hold),
        ends_hold=not request.unattended or is_of_a_run(snapshot.hold),
        cache_step=cache_step(snapshot),
        leftovers=leftovers_of_ours(record, snapshot) if removing else (),
        adopt=runtime if adopts else "",
        refuge=refuge,
        reset_pinning=runtime if unpinned or (removing and settings.removal.reset_pinning) else "",
    )
    return Assessment(
        replace(plan, resets=unpinned + adopted, resets_all=was_cut_off(snapshot)),
        snapshot,
        base_endpoint=runtime,
        payload_version=inputs.payload.version if inputs.payload else "",
        remembered_failure=_remembered_failure(record, desired),
        policy=policy_in_force(snapshot),
        as_installed=installed is not None,
        unchecked=not removing and _is_unchecked(record, snapshot),
    )


class _Compared(NamedTuple):
    """What should be, where the runtime is, and what differs. `refuge`: see `refuge_of`. `starting`: the
    policy that the proxy starts with, None if it does not."""

    desired: Desired
    runtime: str
    changes: Changes
    refuge: str
    starting: PolicyInForce | None

    @property
    def restarts_kubelet(self) -> bool:
        unit = self.changes.unit(Part.KUBELET)
        return unit is not None and unit.action is UnitAction.RESTART


def _compare(
    inputs: Inputs,
    snapshot: HostSnapshot,
    record: Record,
    kubelet: KubeletAnalysis,
    installed: Desired | None,
) -> _Compared:
    settings = inputs.request.settings
    removing = inputs.request.mode is Mode.REMOVE
    runtime = kubelet.endpoint if removing else runtime_endpoint(settings, kubelet)
    desired = _desired(inputs, snapshot, kubelet) if installed is None else installed
    changes = _changes(inputs, desired, snapshot, record)
    starting = _starting_policy(desired, snapshot, changes)
    active = starting or policy_in_force(snapshot)
    refuge = refuge_of(snapshot, changes, active.name if active else "", runtime)
    return _Compared(desired, runtime, changes, refuge, starting)


def _changes(inputs: Inputs, desired: Desired, snapshot: HostSnapshot, record: Record) -> Changes:
    if desired.proxy is None and inputs.request.mode is not Mode.REMOVE:
        return Changes()  # kubelet cannot be served: preflight says why
    changes = diff(desired, snapshot, record)
    why = ""
    policy = partial(policy_of, desired, snapshot.cache)
    adopts = _reload_would_repin(inputs, snapshot, changes, policy)
    if adopts or _passes_by(inputs, snapshot, changes, policy):
        why = _WHY_ADOPTED
    if not why and desired.proxy is not None and _has_taken(inputs, snapshot):
        why = _WHY_TAKEN
    return changes.with_restart(paths.PROXY_UNIT, Part.PROXY, why) if why else changes


def _desired(inputs: Inputs, snapshot: HostSnapshot, kubelet: KubeletAnalysis) -> Desired:
    if inputs.request.mode is Mode.REMOVE or inputs.payload is None:
        return Desired()
    detail = snapshot.base.detail
    return build_desired(inputs.request.settings, inputs.configs, inputs.payload, kubelet, detail)


def _starting_policy(desired: Desired, snapshot: HostSnapshot, changes: Changes) -> PolicyInForce | None:
    """The policy that the proxy starts with; None if `changes` do not start it."""
    proxy = changes.unit(Part.PROXY)
    if proxy is None or proxy.action is not UnitAction.RESTART:
        return None
    return policy_of(desired, snapshot.cache)


def _unpinned(
    inputs: Inputs, snapshot: HostSnapshot, changes: Changes, starting: PolicyInForce | None
) -> tuple[str, ...]:
    """The running containers that get CPUs or weight back, each with what changes: when the proxy leaves, and
    when it starts with the policy none."""
    request, probe = inputs.request, snapshot.probe
    if not request.settings.removal.reset_pinning or probe is None or not changes:
        return ()
    if request.mode is Mode.INSTALL and (starting is None or starting.name != "none"):
        return ()
    everyone = was_cut_off(snapshot)
    found = find_resets(probe.containers, snapshot.cache, probe.managers, everyone=everyone)
    return tuple(reset.planned for reset in found)


def _remembered_failure(record: Record, desired: Desired) -> str:
    failure = record.failed.get(desired.generation)
    return f"{failure.time}: {failure.reason}" if failure else ""


def _adopting(inputs: Inputs, snapshot: HostSnapshot, starting: PolicyInForce | None) -> bool:
    """Whether strangers are made known to the proxy before it starts, also those that come until then. With
    one that cannot be, whom an operator has given up, nobody is."""
    settings, probe = inputs.request.settings.proxy, snapshot.probe
    if settings.existing_containers != "adopt" or probe is None or starting is None:
        return False
    return starting.repins is not Repinning.NOTHING and not divide(probe.containers, snapshot.cache)[1]


def _reload_would_repin(
    inputs: Inputs, snapshot: HostSnapshot, changes: Changes, policy: Callable[[], PolicyInForce]
) -> bool:
    """Whether the proxy is only signalled although it has to be stopped: if it refuses what it reads again it
    is restarted, and would meet strangers then."""
    proxy, containers = changes.unit(Part.PROXY), snapshot.probe.containers if snapshot.probe else ()
    if proxy is None or proxy.action is not UnitAction.RELOAD:
        return False
    return _adopting(inputs, snapshot, policy()) and bool(divide(containers, snapshot.cache)[0])


def _met_by(snapshot: HostSnapshot, changes: Changes) -> PolicyInForce | None:
    """The policy in force, if kubelet moves onto a proxy that runs on: whether a container has come past it
    meanwhile is looked at afterwards."""
    kubelet = changes.unit(Part.KUBELET)
    moves = kubelet is not None and kubelet.action is UnitAction.RESTART and not snapshot.kubelet.on_relay
    return policy_in_force(snapshot) if moves else None


def _passes_by(
    inputs: Inputs, snapshot: HostSnapshot, changes: Changes, policy: Callable[[], PolicyInForce]
) -> bool:
    """Whether kubelet would move onto a proxy that runs on beside containers that it does not know: its next
    start, whoever begins it, would take their CPUs and weight."""
    kubelet, proxy = changes.unit(Part.KUBELET), changes.unit(Part.PROXY)
    if kubelet is None or kubelet.action is not UnitAction.RESTART or snapshot.kubelet.on_relay:
        return False
    if (proxy is not None and proxy.action is UnitAction.RESTART) or snapshot.probe is None:
        return False
    return _adopting(inputs, snapshot, policy()) and bool(
        divide(snapshot.probe.containers, snapshot.cache)[0]
    )


def _has_taken(inputs: Inputs, snapshot: HostSnapshot) -> bool:
    """Whether containers have less weight than they were created with, and can get it back by a start that
    knows them."""
    policy = policy_in_force(snapshot)
    return policy is not None and _adopting(inputs, snapshot, policy) and bool(_reduced(snapshot))


def _reduced(snapshot: HostSnapshot) -> list[str]:
    return find_reduced(snapshot.probe.containers, snapshot.cache) if snapshot.probe else []


def _reduced_findings(snapshot: HostSnapshot, changes: Changes) -> Iterable[Finding]:
    """Where no start is to give it back."""
    proxy, policy = changes.unit(Part.PROXY), policy_in_force(snapshot)
    restarts = proxy is not None and proxy.action is UnitAction.RESTART
    if policy is None or policy.repins is Repinning.NOTHING or restarts:
        return
    for how in _reduced(snapshot):
        hint = "`install` with proxy.existingContainers: adopt, or with the policy none, gives it back"
        yield warning(WEIGHT_TAKEN, f"{how}: a start of the proxy has taken it", hint)


def _is_unchecked(record: Record, snapshot: HostSnapshot) -> bool:
    """Whether nobody has looked at the containers since the proxy was started, which may have taken something
    from them: systemd has started it, or a person."""
    policy, unit = policy_in_force(snapshot), snapshot.proxy.unit
    takes = policy is not None and policy.repins is not Repinning.NOTHING
    return takes and unit.running and unit.invocation_id != record.checked


def _adopted(snapshot: HostSnapshot) -> tuple[str, ...]:
    """The containers that the proxy is told of, each with why."""
    probe, cache = snapshot.probe or Probe(), snapshot.cache
    changed = [one for one in probe.containers if not keeps_weight(one, cache)]
    leftovers = find_leftovers(probe.unstarted, probe.containers)
    removed = tuple(f"remove {one.title}, which never ran: another of its name runs" for one in leftovers)
    return removed + tuple(
        f"correct {one.title}: what the proxy knows of its CPU weight is rounded"
        if is_known(one, cache)
        else f"adopt {one.title}: it keeps its CPU weight"
        for one in changed
    )


def _record_findings(
    status: RecordStatus,
    request: Request,
    record: Record,
    snapshot: HostSnapshot,
    desired: Desired,
    changes: Changes,
) -> Iterable[Finding]:
    yield from check_kept(record, snapshot, desired, changes.files)
    if request.mode is Mode.INSTALL:
        yield from _reduced_findings(snapshot, changes)
    code, mode = "record-unusable", request.mode
    if status is RecordStatus.OK or (status is RecordStatus.MISSING and mode is Mode.INSTALL):
        return
    what = f"the record ({paths.RECORD}) is {status.value}"
    if mode is Mode.REMOVE:
        removed = "every file at our paths" if request.without_record else "only files provably ours"
        yield warning(code, f"{what}: {removed} will be removed")
    elif status is RecordStatus.FUTURE:
        hint = "use the installer that wrote it, or a newer one"
        yield refusal(code, f"{what}: a newer installer works on this node", hint)
    else:
        yield warning(code, f"{what}: starting a new record with the files provably ours")


def needs_probe(assessment: Assessment) -> bool:
    """Whether the snapshot lacks what has to be asked before something is changed."""
    plan = assessment.plan
    unserved = plan.mode is Mode.INSTALL and not plan.desired.files
    return assessment.snapshot.probe is None and (bool(plan.changes) or unserved or assessment.unchecked)


def probed_endpoint(assessment: Assessment) -> str:
    """Where the runtime is to be asked; empty if it need not be: a repair that restarts nothing needs no
    runtime, and is quicker without asking it."""
    plan = assessment.plan
    asked = plan.changes.disturb or not plan.desired.files or assessment.unchecked
    return assessment.base_endpoint if asked else ""
