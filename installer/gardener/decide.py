"""Decides what to do for one Extension now. Pure; docs/architecture.md has the reasons.

An operation of gardenlet ends with `Succeeded` when everything that it asked for is written; the condition
says whether that works on the nodes. A deletion ends when the nodes are clean.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from installer.errors import InvalidInputError
from installer.gardener.managed_resource import EXTENSION_TYPE, OperatorFaultError, Renderer, Wanted
from installer.gardener.nodes import Nodes, name_nodes
from installer.gardener.resources import Extension, ManagedResource, Shoot
from installer.gardener.status import CONFIGURATION_PROBLEM, Condition, Operation, Report, build_health
from installer.gardener.sweep import Swept
from installer.model.instant import parse_time
from installer.model.names import Mode
from installer.operator.kube_objects import cut_line

FINALIZER = "extensions.gardener.cloud/cri-resmgr-extension"

_CLEANING = 1800.0  # seconds until a node that is not clean is an error; nothing is given up then
_SHOWN = 120.0  # seconds until lastError has it, all that gardenlet shows after 3 minutes
_FIRST = "The nodes are cleaned before anything else is deleted."
_WARNINGS = 20  # of a configuration
_SOON, _HEALTH, _LATER = 5.0, 60.0, 600.0
"""Seconds until the next look: while we wait, to see whether the nodes are well, and where only a person can
help."""


Ask = Callable[[Mode], Nodes | None]
"""Returns the nodes of the Shoot, judged for the installation or the removal; None while the question is
under way. Has no effect."""


@dataclass(frozen=True, slots=True)
class Situation:
    """`shoot` is None where the namespace has no Cluster; `resource` is our ManagedResource there, in the
    form of the installation or of the removal."""

    extension: Extension
    shoot: Shoot | None
    resource: ManagedResource | None
    now: float


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do, in the order of the fields. The next look is `again` seconds later, or at the next
    change."""

    ensure_finalizer: bool = False
    write: Wanted | None = None
    keep_objects: bool = False  # the deletion of the ManagedResource leaves its objects
    delete: bool = False  # the ManagedResource
    uninstall: bool = False  # delete the DaemonSet of the installation in the Shoot, which no one else does
    sweep: bool = False  # delete what is left in the Shoot; see `after_sweep`
    report: Report = field(default_factory=Report)
    remove_operation: bool = False
    remove_finalizer: bool = False
    again: float | None = None


def decide(situation: Situation, renderer: Renderer, ask: Ask) -> Decision:
    extension, shoot = situation.extension, situation.shoot
    ours = extension.type == EXTENSION_TYPE and extension.class_ == "shoot"
    if not ours or (shoot is not None and shoot.failed) or extension.operation == "wait-for-state":
        return Decision()
    if extension.operation == "migrate":
        return _migrate(situation)
    if extension.last_type == "Migrate" and extension.last_state == "Succeeded" and not extension.operation:
        return Decision(remove_finalizer=True)  # another seed has it
    if extension.deleting:
        return _delete(situation, renderer, ask)
    if shoot is None:
        return _failed(situation, _kind(extension), "The namespace has no Cluster.", _SOON)
    if _is_due(extension):
        return _reconcile(situation, shoot, renderer)
    return _look_at_health(situation, shoot, ask)


def _look_at_health(situation: Situation, shoot: Shoot, ask: Ask) -> Decision:
    resource, nodes = situation.resource, None
    if resource is not None and resource.status_of("ResourcesApplied") == "True" and not shoot.hibernated:
        nodes = ask(Mode.INSTALL)
        if nodes is None:
            return Decision(again=_HEALTH)  # the condition stays as it is
    health = build_health(resource, nodes, shoot.hibernated)
    if resource is None and not shoot.hibernated:
        what = "The ManagedResource of cri-resmgr is gone: the Shoot's next reconciliation creates it again."
        health = Condition("False", "ManagedResourceMissing", what)
    return Decision(report=Report(health=health), again=_SOON if health.status == "Progressing" else _HEALTH)


def _is_due(extension: Extension) -> bool:
    """Whether gardenlet asks for a reconciliation, often in a maintenance window. A change on the seed is
    not a reason."""
    return (
        extension.operation in ("reconcile", "restore")
        or extension.observed_generation != extension.generation
        or extension.last_state != "Succeeded"
    )


def _kind(extension: Extension) -> str:
    """Return the type of the operation, as Gardener's ComputeOperationType does."""
    if extension.operation == "restore":
        return "Restore"
    unfinished = extension.last_state != "Succeeded"
    if not extension.last_type or (extension.last_type == "Create" and unfinished):
        return "Create"
    return extension.last_type if extension.last_type == "Restore" and unfinished else "Reconcile"


def _reconcile(situation: Situation, shoot: Shoot, renderer: Renderer) -> Decision:
    """Leave what was applied earlier as it is where the new configuration is invalid."""
    extension, kind = situation.extension, _kind(situation.extension)
    if situation.resource is not None and situation.resource.deleting:
        message = "An earlier ManagedResource of cri-resmgr is still being deleted."
        return Decision(report=Report(operation=Operation(kind, "Processing", 10, message)), again=_SOON)
    try:
        wanted = renderer.render(extension, shoot, Mode.INSTALL)
    except OperatorFaultError as error:
        # Every Shoot shows it, and only the operators of the landscape can correct it.
        message = "The extension's ControllerDeployment is invalid; the nodes keep what they have: "
        return _failed(situation, kind, message + "; ".join(error.faults), _LATER)
    except InvalidInputError as error:
        message = "The configuration is invalid; the nodes keep what they have: " + "; ".join(error.faults)
        return _failed(situation, kind, message, _LATER, CONFIGURATION_PROBLEM)
    unchanged = situation.resource is not None and situation.resource.secrets == (wanted.secret_name,)
    health = build_health(situation.resource if unchanged else None, None, shoot.hibernated)
    return Decision(
        ensure_finalizer=True,
        write=wanted,
        report=Report(
            operation=Operation(kind, "Succeeded", 100, "The ManagedResource of cri-resmgr is written."),
            observed=True,
            # This does not ask whether the nodes are well: the condition stays.
            health=None if unchanged else health,
            provider_status={
                "managedResource": wanted.name,
                "secret": wanted.secret_name,
                "warnings": [cut_line(text, 500) for text in wanted.warnings[:_WARNINGS]],
            },
        ),
        remove_operation=True,
        again=_SOON,
    )


def _failed(situation: Situation, kind: str, what: str, again: float, *codes: str) -> Decision:
    extension = situation.extension
    health = Condition("False", "ConfigurationWrong", what, codes) if codes else None
    return Decision(
        # What an earlier seed has left in the Shoot is to be cleaned, too.
        ensure_finalizer=not extension.deleting and (situation.resource is not None or kind == "Restore"),
        report=Report(operation=Operation(kind, "Error", 50, what, codes), observed=True, health=health),
        remove_operation=bool(extension.operation),
        again=again,
    )


def refused(situation: Situation, decision: Decision, why: str) -> Decision:
    """Return what to report where the seed refuses what was decided to be written."""
    operation = decision.report.operation
    kind = operation.kind if operation is not None else _kind(situation.extension)
    return _failed(situation, kind, f"The seed refuses the ManagedResource or its Secret: {why}", _LATER)


def _migrate(situation: Situation) -> Decision:
    """Delete the ManagedResource from this seed; leave everything in the Shoot to the next one."""
    resource = situation.resource
    if resource is not None:
        what = "The ManagedResource is deleted from this seed; the nodes keep what they have."
        return Decision(
            keep_objects=not resource.keep_objects,
            # Not before keepObjects is known to be written: else the nodes would be cleaned.
            delete=resource.keep_objects and not resource.deleting,
            report=Report(operation=Operation("Migrate", "Processing", 50, what)),
            again=_SOON,
        )
    what = "This seed has no objects of the Shoot left; the nodes keep what they have."
    return Decision(
        report=Report(operation=Operation("Migrate", "Succeeded", 100, what), observed=True),
        remove_operation=True,
        remove_finalizer=True,
    )


def _delete(situation: Situation, renderer: Renderer, ask: Ask) -> Decision:
    """Clean the nodes first, and only then delete what could clean them."""
    extension, shoot, resource = situation.extension, situation.shoot, situation.resource
    if FINALIZER not in extension.finalizers:
        return Decision()
    if shoot is None or shoot.force_deletion:
        return _deleted(situation, "Force-deleted; nodes were not cleaned.")
    if resource is None:
        reachable = not (shoot.hibernated or shoot.deleting)
        return replace(_deleted(situation, "No object of cri-resmgr is left."), sweep=reachable)
    # Without nodes, or where all of them are about to be destroyed, nothing is cleaned.
    if shoot.hibernated or shoot.deleting or resource.deleting:
        return _delete_resource(resource, "The ManagedResource of cri-resmgr is deleted.")
    wanted = _render_removal(situation, shoot, renderer)
    if isinstance(wanted, Decision):
        return wanted
    if resource.secrets != (wanted.secret_name,):
        return _cleaning(situation, _FIRST, wanted)
    if resource.failure:
        what = f"The removal cannot be applied in the Shoot: {resource.failure}"
        return _cleaning(situation, what, failed=True)
    nodes = ask(Mode.REMOVE)
    if nodes is None:
        return Decision(again=_SOON)
    applied = resource.status_of("ResourcesApplied") == "True"
    if not nodes.done:
        # gardener-resource-manager does not know what a failed installation has left.
        left = [*nodes.left, *nodes.silent]
        what = f"Not yet clean: {name_nodes(left)}." if left else nodes.unknown or nodes.pending
        return replace(_cleaning(situation, what), uninstall=applied and nodes.installed)
    if not applied:
        what = resource.message_of("ResourcesApplied") or "The removal is being applied."
        return _cleaning(situation, what)
    clean = nodes.count - len(nodes.given_up)
    what = "One node is clean." if clean == 1 else f"{clean} nodes are clean."
    what += f" Left as they are: {name_nodes(nodes.given_up)}." if nodes.given_up else ""
    return _delete_resource(resource, what)


def _render_removal(situation: Situation, shoot: Shoot, renderer: Renderer) -> Wanted | Decision:
    """Return what to decide where it cannot be rendered."""
    try:
        return renderer.render(situation.extension, shoot, Mode.REMOVE)
    except InvalidInputError as error:  # in the values for all Shoots: a removal reads no owner's
        what = "The nodes cannot be cleaned: " + "; ".join(error.faults)
        return _failed(situation, "Delete", what, _LATER)


def _cleaning(situation: Situation, what: str, write: Wanted | None = None, failed: bool = False) -> Decision:
    since = situation.now - parse_time(situation.extension.deleted)
    late = write is None and since > _CLEANING
    shown = write is None and (failed or since > _SHOWN)
    operation = Operation("Delete", "Error" if late else "Processing", 50 if late else 20, what, late=shown)
    health = Condition("False" if late or failed else "Progressing", "Removing", what)
    return Decision(write=write, report=Report(operation=operation, health=health), again=_SOON)


def _delete_resource(resource: ManagedResource, what: str) -> Decision:
    """Leave the condition as it is until nothing is left."""
    if resource.deleting:
        return Decision(again=_SOON)
    return Decision(
        delete=True,
        report=Report(operation=Operation("Delete", "Processing", 80, what)),
        again=_SOON,
    )


def after_sweep(
    situation: Situation, decision: Decision, swept: Swept | None, renderer: Renderer
) -> Decision:
    """Return what remains of a decision after the sweep of the Shoot. `swept` is None while that is under
    way. An installation there without its ManagedResource (left by an earlier seed, or by a person) is
    removed first."""
    if swept is None:
        return Decision(again=_SOON)
    if swept.installed and situation.shoot is not None:
        wanted = _render_removal(situation, situation.shoot, renderer)
        return wanted if isinstance(wanted, Decision) else _cleaning(situation, _FIRST, wanted)
    if swept.waits:
        return _cleaning(situation, swept.waits)
    return _deleted(situation, f"Left in the Shoot: {swept.left}.") if swept.left else decision


def _deleted(situation: Situation, what: str) -> Decision:
    resource = situation.resource
    return Decision(
        delete=resource is not None and not resource.deleting,
        report=Report(operation=Operation("Delete", "Succeeded", 100, what), observed=True),
        remove_operation=bool(situation.extension.operation),
        remove_finalizer=True,
    )
