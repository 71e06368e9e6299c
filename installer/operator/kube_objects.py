"""Reads objects of an API server: plain JSON whose shape is not trusted. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from installer.cluster.kubeapi import condition_of as condition_of
from installer.model.instant import parse_time
from installer.model.jsontext import items_at as items_at
from installer.model.jsontext import mapping_at as mapping_at
from installer.model.jsontext import number_at as number_at
from installer.model.jsontext import text_at as text_at

Object = Mapping[str, Any]


def is_ready_pod(pod: Object) -> bool:
    """Whether it is Ready, and not being deleted."""
    ready = text_at(condition_of(pod, "Ready"), "status") == "True"
    return ready and not text_at(pod, "metadata", "deletionTimestamp")


def is_observed(daemon_set: Object) -> bool:
    """Whether its controller has seen its present template."""
    observed = number_at(daemon_set, "status", "observedGeneration")
    return bool(observed) and observed == number_at(daemon_set, "metadata", "generation")


def is_rolled_out(daemon_set: Object, missing: int = 0) -> bool:
    """Whether each node that it selects has an available pod of its present template, except `missing`
    nodes."""
    wanted = number_at(daemon_set, "status", "desiredNumberScheduled") - missing
    done = ("updatedNumberScheduled", "numberReady", "numberAvailable")
    counts = [number_at(daemon_set, "status", key) for key in done]
    return is_observed(daemon_set) and all(count >= wanted for count in counts)


def silent_since(node: Object) -> float | None:
    """Return since when its kubelet has been silent, None if it is not. A node that is only not Ready still
    runs pods."""
    ready = condition_of(node, "Ready")
    return parse_time(ready.get("lastTransitionTime")) if ready.get("status") == "Unknown" else None


_TERMS = ("spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")


def node_of(pod: Object) -> str:
    """Return the node of a DaemonSet's pod: where it runs, else the one that the controller has created it
    for (ReplaceDaemonSetPodNodeNameNodeAffinity of k8s.io/kubernetes/pkg/controller/daemon/util)."""
    if name := text_at(pod, "spec", "nodeName"):
        return name
    terms = items_at(pod, *_TERMS, "nodeSelectorTerms")
    values = (each.get("values") for term in terms for each in items_at(term, "matchFields"))
    return next((str(each[0]) for each in values if isinstance(each, list) and each), "")


def complaint_of(pod: Object) -> str:
    """Return why a pod cannot run, as the scheduler or kubelet says; empty if nothing is known to be
    wrong."""
    scheduled = condition_of(pod, "PodScheduled")
    if scheduled.get("reason") == "Unschedulable":
        return cut_line(f"Unschedulable: {text_at(scheduled, 'message')}")
    for each in items_at(pod, "status", "containerStatuses"):
        waiting = mapping_at(each, "state", "waiting")
        if waiting and text_at(waiting, "reason") not in ("ContainerCreating", "PodInitializing"):
            return cut_line(f"{text_at(waiting, 'reason')}: {text_at(waiting, 'message')}".rstrip(": "))
        ended = mapping_at(each, "lastState", "terminated")
        if ended and ended.get("exitCode") not in (0, None):
            return cut_line(f"its pod ended with exit code {ended['exitCode']}")
    return ""


def cut_line(text: str, limit: int = 300) -> str:
    """Return one line of at most `limit` printable characters: text from another cluster must not control the
    terminal or the log of its reader."""
    line = " ".join(text[: 4 * limit].split())
    shown = "".join(each if each.isprintable() else "?" for each in line)
    return shown if len(shown) <= limit and len(text) <= 4 * limit else shown[: limit - 3] + "..."
