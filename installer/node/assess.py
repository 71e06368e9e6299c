"""settings + snapshot -> desired -> diff -> preflight -> plan. Pure: values in, one value out.

Nothing is read here. Facts that matter only if something is to be changed are the snapshot's probe.
`needs_probe` tells the caller whether it is missing; the caller then adds it and assesses again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from installer.inputs.load import Inputs
from installer.model import paths
from installer.model.hold import is_of_a_run
from installer.model.host import ABSENT, HostSnapshot, Part
from installer.model.names import Mode
from installer.model.plan import Assessment, Changes, Desired, Finding, Plan, UnitAction, refusal, warning
from installer.model.proxy import PolicyInForce, PolicySource, Repinning
from installer.node.adoption import describe_adoption, find_reduced
from installer.node.controls import due_controls
from installer.node.desired import build_desired, runtime_endpoint, settings_digest
from installer.node.diff import diff
from installer.node.facts import Facts
from installer.node.kept import check_kept
from installer.node.known_pods import why_unknown
from installer.node.kubelet_strategy import KubeletAnalysis, analyse_kubelet
from installer.node.pinning import find_resets, was_cut_off
from installer.node.plan import Options, base_of, leaves_to, order_steps
from installer.node.preflight import check
from installer.node.record import (
    HEALTH_OWED,
    RELOAD_OWED,
    Failure,
    Record,
    RecordStatus,
    leftovers_of_ours,
    takes_over,
    was_moving_kubelet,
)

_WHY_ADOPTED = "containers that it does not know have to be adopted"
_WHY_AWAITED = "it has not become healthy since a run that was cut off"
WEIGHT_TAKEN = "weight-taken"  # the code of a finding
AGENT_POLICY = "agent-policy"  # the same
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
    removing = inputs.request.mode is Mode.REMOVE
    facts = _compare(inputs, snapshot, record, analyse_kubelet(snapshot, inputs.request.settings), installed)
    moved_on = facts.kubelet.next_endpoint
    if moved_on and facts.restarts_kubelet and installed is None and not removing:
        # After the restart its base endpoint is another one. Else the next run would have to move the proxy.
        facts = _compare(inputs, snapshot, record, replace(facts.kubelet, endpoint=moved_on), installed)
    findings = check(facts)
    if facts.changes or not removing:
        findings = (*noted, *_record_findings(facts, record, status), *findings)
    failed = _failed_before(facts, record)
    return Assessment(
        replace(_plan(facts, record, nonce), findings=findings),
        snapshot,
        base_endpoint=facts.runtime,
        payload_version=inputs.payload.version if inputs.payload else record.payload_version,
        installed="" if record.good is None or takes_over(record) else record.good.generation,
        installed_version=record.payload_version,
        asked=record.asked,
        remembered_failure=f"{failed.time}: {failed.reason}" if failed else "",
        policy=facts.in_force,
        as_installed=installed is not None,
        unchecked=not removing and _is_unchecked(facts, record),
        unfinished=_unfinished(snapshot, record) if installed is not None and not installed.files else (),
    )


def _unfinished(snapshot: HostSnapshot, record: Record) -> tuple[str, ...]:
    """The files of ours that are there."""
    return tuple(
        path
        for path, claim in sorted(record.claims.items())
        if (state := snapshot.files.get(path, ABSENT)).exists and state != claim.before
    )


def _failed_before(facts: Facts, record: Record) -> Failure | None:
    """The failure of this generation on this host with these settings: deadlines are in no file."""
    failed = record.failed.get(facts.desired.generation)
    if failed is None or not failed.made_with or settings_digest(facts.settings) in failed.made_with:
        return failed
    return None


def _compare(
    inputs: Inputs,
    snapshot: HostSnapshot,
    record: Record,
    kubelet: KubeletAnalysis,
    installed: Desired | None,
) -> Facts:
    """What should be, and what differs."""
    removing, proxy = inputs.request.mode is Mode.REMOVE, snapshot.proxy.process
    runtime = kubelet.endpoint if removing else runtime_endpoint(inputs.request.settings, kubelet)
    if removing and not runtime and proxy is not None:  # of a kubelet that does not run it may be unknown
        runtime = proxy.flag("--runtime-socket") or ""
    desired = installed or Desired()
    if installed is None and inputs.payload is not None and not removing:
        settings, detail = inputs.request.settings, snapshot.base.detail
        desired = build_desired(settings, inputs.configs, inputs.payload, kubelet, detail)
    moved = was_moving_kubelet(record, snapshot)
    rewrote = RELOAD_OWED in record.owed
    facts = Facts(inputs, snapshot, kubelet, desired, Changes(), runtime, moved, rewrote)
    if desired.proxy is None and not removing:
        return facts  # preflight says why kubelet cannot be served
    facts = replace(facts, changes=diff(desired, snapshot, record))
    why = _why_restarted(facts) if desired.proxy else ""
    changes = facts.changes.with_restart(paths.PROXY_UNIT, Part.PROXY, why) if why else facts.changes
    if HEALTH_OWED in record.owed and snapshot.kubelet.unwell and desired.kubelet is not None:
        changes = changes.with_wait(inputs.request.settings.kubelet.unit, Part.KUBELET, _WHY_AWAITED)
    return replace(facts, changes=changes)


def _plan(facts: Facts, record: Record, nonce: str) -> Plan:
    request, snapshot, changes = facts.inputs.request, facts.snapshot, facts.changes
    removing, runtime = request.mode is Mode.REMOVE, facts.runtime
    starting = facts.asked if changes.restarts(Part.PROXY) else None
    # When kubelet has moved onto a running proxy, or has left one that is starting, containers that the proxy
    # did not see start are checked.
    proxy = changes.unit(Part.PROXY)
    meets = facts.meets_unknown or bool(proxy and proxy.awaited)
    met = starting or (facts.in_force if meets else None)
    adopts = bool(runtime) and facts.adopts(met)
    adopted = describe_adoption(facts.probe, snapshot.cache) if adopts and starting else ()
    unpinned = _unpinned(facts, starting) if runtime else ()
    policy = starting or facts.in_force
    controls = due_controls(record.controls, facts.desired, snapshot)
    harms = _takes(policy) and not adopts
    compared = snapshot.kubelet.on_relay and snapshot.unknown_pods == () and not harms
    looked_at = snapshot.probe is not None and not snapshot.probe.returns
    options = Options(
        nonce,
        hold=bool(snapshot.hold),
        ends_hold=not request.mandate.unattended or is_of_a_run(snapshot.hold),
        torn_cache=snapshot.cache.torn,
        leftovers=leftovers_of_ours(record, snapshot) if removing else (),
        resets=runtime if unpinned or (removing and request.settings.removal.reset_pinning) else "",
        adopts=runtime if adopts else "",
        leaves_to=leaves_to(snapshot, changes),
        linked=snapshot.kubelet.linked,
        base=base_of(snapshot),
        returns=bool(controls) and not looked_at,
        runtime=runtime,
        forgets_agent=facts.forgets_agent,
        compares=snapshot.may_be_unknown and compared,
    )
    return Plan(
        request.mode,
        facts.desired,
        changes,
        request.settings.kubelet.unit,
        order_steps(facts.desired, changes, options),
        resets=(*unpinned, *adopted, *facts.probe.returns),
        resets_all=was_cut_off(snapshot),
        adopts=options.adopts,
        harms=harms,
        moves_kubelet=not snapshot.kubelet.on_relay,
        controls=controls,
    )


def _unpinned(facts: Facts, starting: PolicyInForce | None) -> tuple[str, ...]:
    """The running containers that get CPUs or weight back, each with what changes: when the proxy is removed,
    and when it starts with the policy none."""
    request, snapshot, probe = facts.inputs.request, facts.snapshot, facts.probe
    if not request.settings.removal.reset_pinning or not facts.changes:
        return ()
    if request.mode is Mode.INSTALL and (starting is None or starting.name != "none"):
        return ()
    everyone = was_cut_off(snapshot)
    found = find_resets(probe.containers, snapshot.cache, probe.managers, everyone=everyone)
    return tuple(reset.planned for reset in found)


def _why_restarted(facts: Facts) -> str:
    """Why the proxy has to stop although nothing of it differs; empty if it need not.

    It may meet unknown containers although this run does not start it. A proxy that is only signalled is
    restarted if it refuses what it re-reads. And the next start, by anyone, of a proxy that kubelet moves
    onto would take CPUs and weight from containers that it does not know. In a pod that it does not know, no
    container can be created.
    """
    proxy = facts.changes.unit(Part.PROXY)
    action = proxy.action if proxy else UnitAction.NOTHING
    may_meet = action is UnitAction.RELOAD or (facts.meets_unknown and action is UnitAction.NOTHING)
    if may_meet and facts.adopts(facts.asked) and facts.unknown[0]:
        return _WHY_ADOPTED
    if action is not UnitAction.RESTART and _refused_pods(facts) and _may_start_again(facts):
        return why_unknown(_refused_pods(facts))
    if action is not UnitAction.RESTART and _may_start_again(facts) and (why := _why_agent(facts)):
        return why
    return _WHY_TAKEN if facts.adopts(facts.in_force) and _reduced(facts) else ""


def _why_agent(facts: Facts) -> str:
    """Why the agent's configuration, which takes effect in full only when the proxy starts, needs a start."""
    now = facts.in_force
    if now is None or now.source is not PolicySource.AGENT:
        return ""
    if facts.forgets_agent:
        return "its agent is switched off, but the agent's last configuration is in force"
    wants = now.pending and not facts.agent_faults
    return f"its agent asks for the policy {now.pending}, and {now.name} is in force" if wants else ""


def _agent_findings(facts: Facts) -> Iterable[Finding]:
    """A policy that the agent asks for and that no start of this plan activates."""
    now = facts.in_force
    asks = now is not None and now.source is PolicySource.AGENT and now.pending
    if now is None or not asks or facts.changes.restarts(Part.PROXY):
        return
    why = next(iter(facts.agent_faults), "a start would take CPUs or weight from containers")
    message = f"the agent asks for the policy {now.pending}, but {now.name} stays in force: {why}"
    yield warning(AGENT_POLICY, message, "correct the agent's ConfigMap")


def _refused_pods(facts: Facts) -> tuple[str, ...]:
    """The pods in which kubelet cannot create a container because the proxy does not know them."""
    served = facts.snapshot.kubelet.on_relay or facts.moves_kubelet
    return (facts.snapshot.unknown_pods or ()) if served else ()


def _may_start_again(facts: Facts) -> bool:
    """Whether a start of the proxy takes nothing from containers. Until they are read: whether it need
    not."""
    unread = facts.snapshot.probe is None and facts.settings.proxy.existing_containers == "adopt"
    return not _takes(facts.asked) or facts.adopts(facts.asked) or unread


def _pods_findings(facts: Facts) -> Iterable[Finding]:
    """Unknown pods that no start of this plan makes known."""
    if _refused_pods(facts) and not facts.changes.restarts(Part.PROXY):
        hint = "`install` with proxy.existingContainers: adopt, or with the policy none, makes them known"
        yield warning("pods-unknown", f"{paths.PROXY_UNIT}: {why_unknown(_refused_pods(facts))}", hint)


def _reduced(facts: Facts) -> list[str]:
    return find_reduced(facts.probe.containers, facts.snapshot.cache)


def _reduced_findings(facts: Facts) -> Iterable[Finding]:
    """Lost weight that no start of this plan returns."""
    if not _takes(facts.in_force) or facts.changes.restarts(Part.PROXY):
        return
    for how in _reduced(facts):
        hint = "`install` with proxy.existingContainers: adopt, or with the policy none, gives it back"
        yield warning(WEIGHT_TAKEN, f"{how}: a start of the proxy has taken it", hint)


def _takes(policy: PolicyInForce | None) -> bool:
    return policy is not None and policy.repins is not Repinning.NOTHING


def _is_unchecked(facts: Facts, record: Record) -> bool:
    """Whether systemd or a person has started the proxy, which may have taken weight from containers, or may
    not know some, and no run has checked them since."""
    unit, snapshot = facts.snapshot.proxy.unit, facts.snapshot
    unknown = snapshot.may_be_unknown and snapshot.kubelet.on_relay
    return _takes(facts.in_force) and unit.running and (unit.invocation_id != record.checked or unknown)


def _record_findings(facts: Facts, record: Record, status: RecordStatus) -> Iterable[Finding]:
    request = facts.inputs.request
    yield from check_kept(record, facts.snapshot, facts.desired, facts.changes.files)
    if request.mode is Mode.INSTALL:
        yield from _reduced_findings(facts)
        yield from _pods_findings(facts)
        yield from _agent_findings(facts)
    code, mode = "record-unusable", request.mode
    silent = (RecordStatus.OK, RecordStatus.RENAMED)
    if status in silent or (status is RecordStatus.MISSING and mode is Mode.INSTALL):
        return
    what = f"the record ({paths.RECORD}) is {status.value}"
    if mode is Mode.REMOVE:
        removed = "every file at our paths" if request.consent.without_record else "only files provably ours"
        yield warning(code, f"{what}: {removed} will be removed")
    elif status is RecordStatus.FUTURE:
        hint = "use the installer that wrote it, or a newer one"
        yield refusal(code, f"{what}: a newer installer works on this node", hint)
    else:
        yield warning(code, f"{what}: starting a new record with the files provably ours")


def needs_probe(assessment: Assessment) -> bool:
    """Whether the snapshot lacks the facts that are needed before something is changed."""
    plan = assessment.plan
    unserved = plan.mode is Mode.INSTALL and not plan.desired.files
    return assessment.snapshot.probe is None and (bool(plan.changes) or unserved or assessment.unchecked)


def may_start_units(assessment: Assessment) -> bool:
    """Whether what a start needs is to be looked at. A repair that restarts nothing does not wait for it."""
    plan = assessment.plan
    return plan.changes.disturb or not plan.desired.files or assessment.unchecked
