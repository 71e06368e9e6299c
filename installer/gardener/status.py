"""Builds what Gardener reads of an Extension: lastOperation, lastError, observedGeneration, conditions and
providerStatus, as a merge patch of its status. The patch is empty where nothing is new: gardenlet waits for
changes, and a patch without any would wake every watcher.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from installer.gardener.nodes import Nodes, name_nodes
from installer.gardener.resources import Extension, ManagedResource
from installer.model.instant import parse_time, plain_time
from installer.operator.kube_objects import Object, items_at, text_at

SYSTEM_COMPONENTS = "SystemComponentsHealthy"
CONFIGURATION_PROBLEM = "ERR_CONFIGURATION_PROBLEM"
"""Gardener's error code for what only the Shoot's owner can correct: gardenlet does not retry, and the
Shoot is Failed until a person sets `gardener.cloud/operation=retry`."""
_TEXT = 4000  # characters of a description or a message


@dataclass(frozen=True, slots=True)
class Operation:
    """`kind` is Create, Reconcile, Delete, Migrate or Restore; `state` Processing, Succeeded or Error.
    `done` is the progress in percent. `late`: reported as an error although it continues."""

    kind: str
    state: str
    done: int
    description: str
    codes: tuple[str, ...] = ()
    late: bool = False


@dataclass(frozen=True, slots=True)
class Condition:
    """`status` is True, False, Progressing or Unknown. `codes` are Gardener's, of a problem."""

    status: str
    reason: str
    message: str
    codes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """What to write. Without `operation`, the last one stays. `observed`: this generation is done."""

    operation: Operation | None = None
    observed: bool = False
    health: Condition | None = None
    provider_status: Mapping[str, Any] = field(default_factory=dict)


def build_health(installed: ManagedResource | None, nodes: Nodes | None, hibernated: bool) -> Condition:
    """Judge by the conditions of gardener-resource-manager, and by the pods in the Shoot, which say more;
    without `nodes` by the first alone."""
    if hibernated:
        return Condition("True", "Hibernated", "The Shoot is hibernated: there are no nodes.")
    if installed is not None and installed.failure:
        return Condition("False", "ApplyFailed", installed.failure)
    if installed is None or not installed.conditions:
        return Condition("Progressing", "NotYetApplied", "The objects are about to be applied in the Shoot.")
    asked = nodes is not None and not nodes.unknown
    for name in ("ResourcesApplied",) if asked else ("ResourcesApplied", "ResourcesHealthy"):
        if installed.status_of(name) != "True":
            status = "False" if installed.status_of(name) == "False" else "Progressing"
            return Condition(
                status, f"No{name}", installed.message_of(name) or f"{name} has not been reported yet."
            )
    if nodes is not None and asked:
        return _build_node_health(nodes)
    if installed.status_of("ResourcesProgressing") == "True":
        return Condition("Progressing", "RollingOut", installed.message_of("ResourcesProgressing"))
    return Condition("True", "Healthy", "cri-resmgr is installed on every selected node.")


def _build_node_health(nodes: Nodes) -> Condition:
    unwell = [*nodes.left, *nodes.silent]
    if unwell:
        nouns = "node" if nodes.count == 1 else "nodes"
        verb = "is" if len(unwell) == 1 else "are"
        message = f"{len(unwell)} of {nodes.count} {nouns} {verb} not well: {name_nodes(unwell)}."
        return Condition("False", "NodesNotWell", message)
    if nodes.pending:
        return Condition("Progressing", "RollingOut", nodes.pending)
    what = "cri-resmgr is installed on every selected node."
    return Condition("True", "Healthy", what if nodes.count else "No node is selected.")


def build_patch(extension: Extension, report: Report, now: float) -> dict[str, Any]:
    """Build the merge patch of the status (RFC 7386): None deletes a key."""
    status, time = extension.status, plain_time(now)
    patch: dict[str, Any] = {}
    if report.operation is not None:
        patch |= _operation(status, report.operation, time, report.observed and _is_awaited(extension))
    if report.observed and extension.observed_generation != extension.generation:
        patch["observedGeneration"] = extension.generation
    if report.health is not None:
        conditions = _conditions(status, report.health, time)
        if conditions != status.get("conditions"):
            patch["conditions"] = conditions
    if report.provider_status and status.get("providerStatus") != dict(report.provider_status):
        # A merge would keep keys that are no longer there.
        old = status.get("providerStatus")
        gone = dict.fromkeys(old, None) if isinstance(old, Mapping) else {}
        patch["providerStatus"] = {**gone, **report.provider_status}
    return patch


def _operation(status: Mapping[str, Any], operation: Operation, time: str, awaited: bool) -> dict[str, Any]:
    last = {
        "type": operation.kind,
        "state": operation.state,
        "progress": operation.done,
        "description": _cut(operation.description),
    }
    failed = operation.state == "Error" or operation.late
    error = {"description": last["description"], "codes": list(operation.codes)} if failed else None
    if not awaited and _same(status.get("lastOperation"), last) and _same(status.get("lastError"), error):
        return {}
    return {
        "lastOperation": {**last, "lastUpdateTime": time},
        "lastError": {**error, "lastUpdateTime": time} if error else None,
    }


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT else text[: _TEXT - 3] + "..."


def _is_awaited(extension: Extension) -> bool:
    """Whether the status has to get a new time: gardenlet waits for one that is later than its request."""
    updated = text_at(extension.status, "lastOperation", "lastUpdateTime")
    return bool(extension.operation) and parse_time(updated) <= parse_time(extension.asked)


def _same(old: object, wanted: Mapping[str, Any] | None) -> bool:
    """Whether both are the same, apart from the time."""
    if wanted is None or not isinstance(old, Mapping):
        return old is None and wanted is None
    return {key: value for key, value in old.items() if key != "lastUpdateTime"} == dict(wanted)


def _conditions(status: Object, health: Condition, time: str) -> Sequence[Object]:
    """Return all of them, because a patch replaces the whole list. Those of others stay as they are."""
    listed = list(items_at(status, "conditions"))
    old = next((each for each in listed if each.get("type") == SYSTEM_COMPONENTS), None)
    wanted: dict[str, Any] = {
        "type": SYSTEM_COMPONENTS,
        "status": health.status,
        "reason": health.reason,
        "message": _cut(health.message),
    }
    if health.codes:
        wanted["codes"] = list(health.codes)
    times = ("lastTransitionTime", "lastUpdateTime")
    if old is not None and {key: value for key, value in old.items() if key not in times} == wanted:
        return listed
    since = old.get("lastTransitionTime", time) if old and old.get("status") == health.status else time
    new = {**wanted, "lastTransitionTime": since, "lastUpdateTime": time}
    return [new if each is old else each for each in listed] if old is not None else [*listed, new]
