"""Removes what a ManagedResource leaves in a Shoot: what its pods needed to decide whether they have to
clean up, what they wrote, and our marks on the Nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

from installer.gardener.nodes import SILENCE, Node, describe_silence, name_nodes
from installer.model.names import Mode, our_selector
from installer.operator.api import DAEMON_SETS, NODES, PODS, KubeApi
from installer.operator.homes import namespace_of
from installer.operator.inventory import (
    DEFINITIONS,
    NAMESPACES,
    Owned,
    delete_owned,
    find_adjustments,
    find_installations,
    take_inventory,
)
from installer.operator.kube_objects import silent_since, text_at
from installer.operator.node_objects import clear_node_objects


@dataclass(frozen=True, slots=True)
class Swept:
    """`waits`: why nothing has been deleted yet. `left`: what remains, and why. `installed`: a DaemonSet of
    the installation is there, so the nodes are to be cleaned first."""

    waits: str = ""
    left: str = ""
    installed: bool = False


def sweep(api: KubeApi, instance: str, now: float) -> Swept:
    """Delete everything of the instance, if none of its pods runs any more. A pod on a node that is off
    asks, when the node comes back, whether it has to clean up: as long as there is one, everything stays.
    People's Adjustments stay, with their definition. May be repeated after any part of it. Raises
    ApiError."""
    if any(each.mode is Mode.INSTALL for each in find_installations(api, instance=instance)):
        return Swept(installed=True)
    owned = take_inventory(api, instance)
    if sets := [each.path for each in owned if each.resource == DAEMON_SETS]:
        return Swept(left=f"{', '.join(sets)}, and everything that its pods need")
    ending, silent = _find_pods(api, instance, now)
    if ending:
        return Swept(waits=f"Nodes are clean; waiting for {name_nodes(ending)}.")
    if silent:
        return Swept(
            left=f"everything that the pods on {name_nodes(silent)} need, because they have not ended"
        )
    has_definition = any(each.resource == DEFINITIONS for each in owned)
    adjustments = find_adjustments(api) if has_definition else ()
    clear_node_objects(api, instance)
    delete_owned(api, [each for each in owned if not _holds(each, adjustments)])
    few = "1 Adjustment" if len(adjustments) == 1 else f"{len(adjustments)} Adjustments"
    return Swept(left=f"{few} of users, with the CustomResourceDefinition" if adjustments else "")


def _holds(owned: Owned, adjustments: tuple[str, ...]) -> bool:
    """Whether people's Adjustments, of which these are the namespaces, would go with it."""
    if owned.resource == DEFINITIONS:
        return bool(adjustments)
    return owned.resource == NAMESPACES and owned.name in adjustments


def _find_pods(api: KubeApi, instance: str, now: float) -> tuple[list[Node], list[Node]]:
    """Return the nodes with pods that are awaited, and those that are not. Raises ApiError."""
    ending, silent = list[Node](), list[Node]()
    pods = api.list_objects(PODS, our_selector(instance), namespace_of(api, instance))
    for name in sorted({text_at(pod, "spec", "nodeName") for pod in pods}):
        since = silent_since(api.find(NODES, "", name))  # of a Node that is gone, the pods go as well
        if since is not None and now - since > SILENCE:
            silent.append(Node(name, describe_silence(since)))
        else:
            ending.append(Node(name, "its pod is terminating"))
    return ending, silent
