"""Whether it is certain that a node is to be decommissioned. Pure.

Removing the proxy from a node by mistake restarts its kubelet, on all nodes at once if the mistake is the API
server's. So only an explicit statement of an API server counts; any doubt keeps the node as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from installer.cluster.kubeapi import Answer
from installer.cluster.pod_context import PodContext
from installer.cluster.selection import selects
from installer.model.jsontext import mapping_at


@dataclass(frozen=True, slots=True)
class Decommission:
    """Whether the node is certain to be decommissioned."""

    certain: bool
    why: str  # for people: what was found, or what was missing


def decide(context: PodContext, daemonset: Answer, node: Answer) -> Decommission:
    """Judge what the API says of our DaemonSet and of our node.

    A DaemonSet of our name with another UID has replaced ours, and is judged like ours: its pod is about to
    come.
    """
    name = f"DaemonSet {context.namespace}/{context.daemonset}"
    if not context.namespace or not context.daemonset:
        return Decommission(False, "the name or namespace of our DaemonSet is not known")
    if daemonset.code == 404:
        return _judge_absence(context, name, daemonset)
    if not daemonset.ok:
        return Decommission(False, f"{name} could not be read: {daemonset.failure}")
    metadata = daemonset.metadata
    if not _is(daemonset, "DaemonSet", context.daemonset) or metadata.get("namespace") != context.namespace:
        return Decommission(False, f"the API server returned a different object than {name}")
    if metadata.get("deletionTimestamp"):
        return Decommission(True, f"{name} is being deleted, since {metadata['deletionTimestamp']}")
    return _judge_selection(context, name, daemonset, node)


def _judge_absence(context: PodContext, name: str, answer: Answer) -> Decommission:
    """Judge whether a 404 is the API server's own statement on our DaemonSet: `details` names the object that
    is missing (Kubernetes API reference, meta/v1 StatusDetails). A server that lacks the namespace or the API
    also answers 404. And the name has to be right: it comes from the pod's own name."""
    details = mapping_at(answer.body, "details")
    missing = (details.get("group"), details.get("kind"), details.get("name"))
    status = (answer.body.get("kind"), answer.body.get("reason"))
    if status != ("Status", "NotFound") or missing != ("apps", "daemonsets", context.daemonset):
        return Decommission(False, f"the 404 does not come from an API server that knows {name}")
    if not context.is_of_daemonset:
        return Decommission(
            False,
            f"{name} does not exist, and pod {context.pod} is not one of its pods: the name may be wrong",
        )
    return Decommission(True, f"{name} is gone")


def _judge_selection(context: PodContext, name: str, daemonset: Answer, node: Answer) -> Decommission:
    """Judge whether a DaemonSet that exists still selects this node."""
    if not node.ok:
        return Decommission(False, f"{name} exists; node {context.node} could not be read: {node.failure}")
    if not _is(node, "Node", context.node):
        return Decommission(
            False, f"{name} exists; the API server returned a different object than node {context.node}"
        )
    labels = mapping_at(node.metadata, "labels")
    if not labels:  # kubelet sets some, so the answer is incomplete
        return Decommission(False, f"{name} exists; node {context.node} was returned without labels")
    try:
        template = mapping_at(daemonset.body, "spec", "template")
        if not template:
            raise ValueError("no pod template")
        wanted = selects(template, context.node, labels)
    except ValueError as error:
        return Decommission(False, f"{name} exists; its node selection cannot be parsed: {error}")
    if wanted:
        return Decommission(False, f"{name} exists and selects this node")
    return Decommission(True, f"{name} no longer selects node {context.node}")


def _is(answer: Answer, kind: str, name: str) -> bool:
    return answer.body.get("kind") == kind and answer.metadata.get("name") == name
