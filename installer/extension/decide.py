"""What is to be done for one Extension now. Pure; docs/architecture.md has the reasons.

An operation of gardenlet's ends with `Succeeded` when everything that it asked for is written; whether it
works on the nodes is the condition's to say. A deletion ends when the nodes are clean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

from installer.errors import InvalidInputError
from installer.extension.desired import EXTENSION_TYPE, Wanted
from installer.extension.objects import Extension, ManagedResource, Shoot
from installer.extension.status import CONFIGURATION_PROBLEM, Operation, Report, build_health
from installer.model.state import Mode

FINALIZER = "extensions.gardener.cloud/cri-resmgr-extension"

_CLEANING = timedelta(minutes=30)  # until a node that is not clean is an error; nothing is given up then
_SOON, _LATER = 5.0, 600.0  # seconds until the next look: while we wait, and at what only people can correct


class Render(Protocol):
    """See Renderer.render."""

    def render(self, extension: Extension, shoot: Shoot, mode: Mode) -> Wanted: ...


@dataclass(frozen=True, slots=True)
class Situation:
    """`shoot` is None where the namespace has no Cluster. `nodes_left` are those that a removal has not
    cleaned, as far as that is known."""

    extension: Extension
    shoot: Shoot | None
    installation: ManagedResource | None
    removal: ManagedResource | None
    now: datetime
    nodes_left: tuple[str, ...] = ()

    @property
    def resources(self) -> tuple[ManagedResource, ...]:
        return tuple(each for each in (self.installation, self.removal) if each is not None)


@dataclass(frozen=True, slots=True)
class Decision:
    """To be done in the order of the fields. `again` seconds later it is looked at again, else at the next
    change."""

    ensure_finalizer: bool = False
    write: tuple[Wanted, ...] = ()
    keep_objects: tuple[str, ...] = ()  # ManagedResources whose deletion is to leave their objects
    delete: tuple[str, ...] = ()  # ManagedResources
    report: Report = field(default_factory=Report)
    remove_operation: bool = False
    remove_finalizer: bool = False
    again: float | None = None


def decide(situation: Situation, renderer: Render) -> Decision:
    extension, shoot = situation.extension, situation.shoot
    if extension.type != EXTENSION_TYPE or (shoot is not None and shoot.failed):
        return Decision()
    if extension.operation == "migrate":
        return _migrate(situation)
    if extension.last_type == "Migrate" and extension.last_state == "Succeeded" and not extension.operation:
        return Decision()  # another seed has it
    if extension.deleting:
        return _delete(situation, renderer)
    if shoot is None:
        return _failed(situation, _kind(extension), "The namespace has no Cluster.", _SOON)
    if _is_due(extension):
        return _reconcile(situation, shoot, renderer)
    health = build_health(situation.installation, shoot.hibernated)
    return Decision(report=Report(health=health), again=_SOON if health.status == "Progressing" else None)


def _is_due(extension: Extension) -> bool:
    """Not what has changed on the seed meanwhile: gardenlet says when, often in a maintenance window."""
    return (
        extension.operation in ("reconcile", "restore")
        or extension.observed_generation != extension.generation
        or extension.last_state != "Succeeded"
    )


def _kind(extension: Extension) -> str:
    """The type of the operation, as Gardener's ComputeOperationType has it."""
    if extension.operation == "restore":
        return "Restore"
    unfinished = extension.last_state != "Succeeded"
    if not extension.last_type or (extension.last_type == "Create" and unfinished):
        return "Create"
    return extension.last_type if extension.last_type == "Restore" and unfinished else "Reconcile"


def _reconcile(situation: Situation, shoot: Shoot, renderer: Render) -> Decision:
    """What was applied earlier stays as it is where the new configuration is wrong."""
    extension, kind = situation.extension, _kind(situation.extension)
    try:
        wanted = renderer.render(extension, shoot, Mode.INSTALL)
    except InvalidInputError as error:
        what = "The configuration is wrong, and the nodes keep what they have: " + "; ".join(error.faults)
        return _failed(situation, kind, what, _LATER, CONFIGURATION_PROBLEM)
    unchanged = situation.installation is not None and situation.installation.secrets == (wanted.secret_name,)
    health = build_health(situation.installation if unchanged else None, shoot.hibernated)
    return Decision(
        ensure_finalizer=True,
        write=(wanted,),
        # What is left of a removal that was given up would take the nodes apart again.
        delete=(situation.removal.name,) if situation.removal else (),
        report=Report(
            operation=Operation(kind, "Succeeded", 100, "The ManagedResource of cri-resmgr is written."),
            observed=True,
            health=health,
            provider_status=_provider_status(wanted),
        ),
        remove_operation=True,
        again=_SOON if health.status == "Progressing" else None,
    )


def _provider_status(wanted: Wanted) -> Mapping[str, object]:
    resource = wanted.resource["metadata"]["name"]
    return {"managedResource": resource, "secret": wanted.secret_name, "warnings": list(wanted.warnings)}


def _failed(situation: Situation, kind: str, what: str, again: float, *codes: str) -> Decision:
    extension = situation.extension
    return Decision(
        ensure_finalizer=not extension.deleting and situation.installation is not None,
        report=Report(operation=Operation(kind, "Error", 50, what, codes), observed=True),
        remove_operation=bool(extension.operation),
        again=again,
    )


def _migrate(situation: Situation) -> Decision:
    """The ManagedResources go from this seed, and everything in the Shoot stays as it is for the next one."""
    resources = situation.resources
    if resources:
        what = "The ManagedResource goes from this seed; the nodes keep what they have."
        return Decision(
            keep_objects=tuple(each.name for each in resources if not each.keep_objects),
            # Not before the other is known to be written: else the nodes would be cleaned.
            delete=tuple(each.name for each in resources if each.keep_objects and not each.deleting),
            report=Report(operation=Operation("Migrate", "Processing", 50, what)),
            again=_SOON,
        )
    what = "This seed has nothing of the Shoot any more; the nodes keep what they have."
    return Decision(
        report=Report(operation=Operation("Migrate", "Succeeded", 100, what), observed=True),
        remove_operation=True,
        remove_finalizer=True,
    )


def _delete(situation: Situation, renderer: Render) -> Decision:
    """The nodes are cleaned first, and only then goes what could clean them."""
    extension, shoot = situation.extension, situation.shoot
    if FINALIZER not in extension.finalizers:
        return Decision()
    if shoot is None or shoot.force_deletion:
        return _deleted(situation, "Deleted by force: the nodes are as they are.")
    if not situation.resources:
        return _deleted(situation, "Nothing of cri-resmgr is left.")
    # Without nodes, or where all of them are about to be destroyed, nothing is cleaned.
    if shoot.hibernated or shoot.deleting or any(each.deleting for each in situation.resources):
        return _delete_resources(situation)
    try:
        wanted = renderer.render(extension, shoot, Mode.REMOVE)
    except InvalidInputError as error:
        what = "The nodes cannot be cleaned: " + "; ".join(error.faults)
        return _failed(situation, "Delete", what, _LATER, CONFIGURATION_PROBLEM)
    removal = situation.removal
    if removal is None or removal.secrets != (wanted.secret_name,):
        return _cleaning(situation, "The nodes are cleaned before anything else goes.", wanted)
    states = [removal.status_of(f"Resources{name}") for name in ("Applied", "Healthy", "Progressing")]
    if states == ["True", "True", "False"] and not situation.nodes_left:
        return _delete_resources(situation)
    return _cleaning(situation, _what_is_awaited(situation, removal))


def _what_is_awaited(situation: Situation, removal: ManagedResource) -> str:
    left = situation.nodes_left
    if left:
        more = f" and {len(left) - 5} more" if len(left) > 5 else ""
        return f"Not yet clean: {', '.join(left[:5])}{more}."
    for name, good in (("Applied", "True"), ("Healthy", "True"), ("Progressing", "False")):
        if removal.status_of(f"Resources{name}") != good and removal.message_of(f"Resources{name}"):
            return f"The nodes are being cleaned: {removal.message_of(f'Resources{name}')}"
    return "The nodes are being cleaned."


def _cleaning(situation: Situation, what: str, *write: Wanted) -> Decision:
    removal = situation.removal
    late = not write and removal is not None and situation.now - removal.created > _CLEANING
    operation = Operation("Delete", "Error" if late else "Processing", 50 if late else 20, what)
    return Decision(write=write, report=Report(operation=operation), again=_SOON)


def _delete_resources(situation: Situation) -> Decision:
    what = "The ManagedResources of cri-resmgr are deleted."
    return Decision(
        delete=tuple(each.name for each in situation.resources if not each.deleting),
        report=Report(operation=Operation("Delete", "Processing", 80, what)),
        again=_SOON,
    )


def _deleted(situation: Situation, what: str) -> Decision:
    return Decision(
        delete=tuple(each.name for each in situation.resources if not each.deleting),
        report=Report(operation=Operation("Delete", "Succeeded", 100, what), observed=True),
        remove_operation=bool(situation.extension.operation),
        remove_finalizer=True,
    )
