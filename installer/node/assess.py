"""settings + snapshot -> desired -> diff -> preflight -> plan. Pure: values in, one value out.

Nothing is asked here. What has to be asked only when something is to be changed is the snapshot's probe: the
caller sees by `needs_probe` whether it is missing, adds it, and assesses again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from installer.inputs.load import Inputs, Request
from installer.inputs.policy import policy_in_force, policy_of
from installer.model import paths
from installer.model.hold import is_of_a_run
from installer.model.host import HostSnapshot, Part, Probe
from installer.model.names import Mode
from installer.model.plan import Assessment, Changes, Desired, Finding, Plan, UnitAction, refusal, warning
from installer.model.proxy import PolicyInForce, Repinning
from installer.node.adoption import divide, find_leftovers, find_reduced
from installer.node.desired import build_desired, runtime_endpoint
from installer.node.diff import diff
from installer.node.kept import check_kept
from installer.node.kubelet_strategy import KubeletAnalysis, analyse_kubelet
from installer.node.pinning import find_resets, is_known, keeps_weight, was_cut_off
from installer.node.plan import Ways, order_steps, refuge_of
from installer.node.preflight import Facts, check
from installer.node.record import Record, RecordStatus, leftovers_of_ours, was_moving_kubelet

_WHY_ADOPTED = "containers that it does not know are to be adopted"
WEIGHT_TAKEN = "weight-taken"  # the code of a finding
_WHY_TAKEN = "its last start took CPU weight from containers that it did not know"


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
    desired, runtime, changes = _compare(inputs, snapshot, record, kubelet, installed)
    if kubelet.next_endpoint and changes.restarts(Part.KUBELET) and installed is None and not removing:
        # Its base is another one then. Without this, the next run would move the proxy there.
        kubelet = replace(kubelet, endpoint=kubelet.next_endpoint)
        desired, runtime, changes = _compare(inputs, snapshot, record, kubelet, installed)
    moved = was_moving_kubelet(record, snapshot)
    findings = check(Facts(inputs, snapshot, kubelet, desired, changes, moved))
    if changes or not removing:
        findings = (*noted, *_record_findings(status, request, record, snapshot, desired, changes), *findings)
    in_force = policy_in_force(snapshot)
    plan = _plan(inputs, snapshot, record, desired, changes, runtime, nonce)
    return Assessment(
        replace(plan, findings=findings),
        snapshot,
        base_endpoint=runtime,
        payload_version=inputs.payload.version if inputs.payload else "",
        remembered_failure=_remembered_failure(record, desired),
        policy=in_force,
        as_installed=installed is not None,
        unchecked=not removing and _is_unchecked(record, snapshot, in_force),
    )


def _plan(
    inputs: Inputs,
    snapshot: HostSnapshot,
    record: Record,
    desired: Desired,
    changes: Changes,
    runtime: str,
    nonce: str,
) -> Plan:
    request, removing = inputs.request, inputs.request.mode is Mode.REMOVE
    in_force = policy_in_force(snapshot)
    starting = policy_of(desired, snapshot.cache) if changes.restarts(Part.PROXY) else None
    # Who has come past a proxy that runs on is looked at when kubelet has moved onto it.
    met = starting or (in_force if _moves(snapshot, changes) else None)
    adopts = bool(runtime) and _adopting(inputs, snapshot, met)
    unpinned = _unpinned(inputs, snapshot, changes, starting) if runtime else ()
    policy = starting or in_force
    ways = Ways(
        nonce,
        hold=bool(snapshot.hold),
        ends_hold=not request.unattended or is_of_a_run(snapshot.hold),
        torn_cache=snapshot.cache.torn,
        leftovers=leftovers_of_ours(record, snapshot) if removing else (),
        resets=runtime if unpinned or (removing and request.settings.removal.reset_pinning) else "",
        adopts=runtime if adopts else "",
        refuge=refuge_of(snapshot, changes, policy.name if policy else "", runtime),
    )
    return Plan(
        request.mode,
        desired,
        changes,
        request.settings.kubelet.unit,
        order_steps(desired, changes, ways),
        resets=unpinned + (_adopted(snapshot) if adopts and starting else ()),
        resets_all=was_cut_off(snapshot),
    )


def _compare(
    inputs: Inputs,
    snapshot: HostSnapshot,
    record: Record,
    kubelet: KubeletAnalysis,
    installed: Desired | None,
) -> tuple[Desired, str, Changes]:
    """What should be, where the runtime is, and what differs."""
    removing = inputs.request.mode is Mode.REMOVE
    runtime = kubelet.endpoint if removing else runtime_endpoint(inputs.request.settings, kubelet)
    desired = _desired(inputs, snapshot, kubelet) if installed is None else installed
    if desired.proxy is None and not removing:
        return desired, runtime, Changes()  # kubelet cannot be served: preflight says why
    changes = diff(desired, snapshot, record)
    why = _why_restarted(inputs, snapshot, desired, changes) if desired.proxy else ""
    return desired, runtime, changes.with_restart(paths.PROXY_UNIT, Part.PROXY, why) if why else changes


def _desired(inputs: Inputs, snapshot: HostSnapshot, kubelet: KubeletAnalysis) -> Desired:
    if inputs.request.mode is Mode.REMOVE or inputs.payload is None:
        return Desired()
    detail = snapshot.base.detail
    return build_desired(inputs.request.settings, inputs.configs, inputs.payload, kubelet, detail)


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


def _adopting(inputs: Inputs, snapshot: HostSnapshot, policy: PolicyInForce | None) -> bool:
    """Whether strangers are made known to the proxy before it starts with `policy`, also those that come
    until then. With one that cannot be, whom an operator has given up, nobody is."""
    probe = snapshot.probe
    if inputs.request.settings.proxy.existing_containers != "adopt" or probe is None or policy is None:
        return False
    return policy.repins is not Repinning.NOTHING and not divide(probe.containers, snapshot.cache)[1]


def _why_restarted(inputs: Inputs, snapshot: HostSnapshot, desired: Desired, changes: Changes) -> str:
    """Why the proxy is stopped although nothing of it differs, empty if it is not.

    It may meet strangers without a start of ours: one that is only signalled is restarted if it refuses what
    it reads again; and the next start of one that kubelet moves onto, whoever begins it, would take the CPUs
    and the weight of those that it does not know."""
    proxy = changes.unit(Part.PROXY)
    action = proxy.action if proxy else UnitAction.NOTHING
    may_meet = action is UnitAction.RELOAD or (_moves(snapshot, changes) and action is UnitAction.NOTHING)
    if may_meet and _adopting(inputs, snapshot, policy_of(desired, snapshot.cache)):
        probe = snapshot.probe or Probe()
        if divide(probe.containers, snapshot.cache)[0]:
            return _WHY_ADOPTED
    if _adopting(inputs, snapshot, policy_in_force(snapshot)) and _reduced(snapshot):
        return _WHY_TAKEN
    return ""


def _moves(snapshot: HostSnapshot, changes: Changes) -> bool:
    """Whether kubelet moves onto the relay."""
    return changes.restarts(Part.KUBELET) and not snapshot.kubelet.on_relay


def _reduced(snapshot: HostSnapshot) -> list[str]:
    return find_reduced(snapshot.probe.containers, snapshot.cache) if snapshot.probe else []


def _reduced_findings(snapshot: HostSnapshot, changes: Changes) -> Iterable[Finding]:
    """Where no start is to give it back."""
    policy = policy_in_force(snapshot)
    if policy is None or policy.repins is Repinning.NOTHING or changes.restarts(Part.PROXY):
        return
    for how in _reduced(snapshot):
        hint = "`install` with proxy.existingContainers: adopt, or with the policy none, gives it back"
        yield warning(WEIGHT_TAKEN, f"{how}: a start of the proxy has taken it", hint)


def _is_unchecked(record: Record, snapshot: HostSnapshot, policy: PolicyInForce | None) -> bool:
    """Whether nobody has looked at the containers since the proxy was started, which may have taken something
    from them: systemd has started it, or a person."""
    unit = snapshot.proxy.unit
    takes = policy is not None and policy.repins is not Repinning.NOTHING
    return takes and unit.running and unit.invocation_id != record.checked


def _adopted(snapshot: HostSnapshot) -> tuple[str, ...]:
    """The containers that the proxy is told of, each with why."""
    probe, cache = snapshot.probe or Probe(), snapshot.cache
    changed = [one for one in probe.containers if not keeps_weight(one, cache)]
    leftovers = find_leftovers(probe.unstarted, probe.containers)
    removed = tuple(
        f"remove {one.title}, which never ran: another container of that name runs" for one in leftovers
    )
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
        yield refusal(code, f"{what}: a newer installer manages this node", hint)
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
