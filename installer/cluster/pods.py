"""Which pods of a node are Ready, by the API server, and which of them are Ready again. Pure.

A restart of kubelet up to 1.34 makes each pod with a readiness probe not Ready until its next probe (KEP-4781
ended that). So the permit stays with the node until the pods that were Ready are Ready again: the next node
may have the second replica.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from installer.cluster.kubeapi import ONLY_METADATA, condition_of
from installer.model.jsontext import items_at, mapping_at, text_at

_STEADY = 35  # the first minor version of Kubernetes whose kubelet keeps its pods Ready
_MOST = 1000  # pods of a node
_KEY = 8  # characters of a UID that are remembered: enough to tell the pods of one node apart
_OVER = ("Completed", "Succeeded")


@dataclass(frozen=True, slots=True)
class _Pod:
    key: str
    name: str
    ready: bool
    over: bool  # it ends, or has ended


def flips_pods(node: Mapping[str, Any]) -> bool:
    """Whether a restart of the kubelet of this Node makes its pods not Ready for a while."""
    found = re.match(r"v?1\.(\d+)", text_at(node, "status", "nodeInfo", "kubeletVersion"))
    return found is not None and int(found[1]) < _STEADY


def pods_path(node: str) -> str:
    """From the API server's cache. A pod has 10 KB, its line with its metadata 2 KB."""
    query = {"fieldSelector": f"spec.nodeName={node}", "resourceVersion": "0"}
    return f"/api/v1/pods?{urlencode(query)}&{ONLY_METADATA}"


def find_ready(pods: Mapping[str, Any], own: str) -> tuple[str, ...]:
    """Return the keys of the pods that are Ready, without our `own`."""
    return tuple(pod.key for pod in _read(pods) if pod.ready and pod.name != own)[:_MOST]


def find_unready(pods: Mapping[str, Any], keys: Collection[str]) -> tuple[str, ...]:
    """Return the names of those pods that are not Ready and still there."""
    return tuple(pod.name for pod in _read(pods) if pod.key in keys and not (pod.ready or pod.over))


def _read(pods: Mapping[str, Any]) -> Iterator[_Pod]:
    """Read a Table, or a list of a server that makes none. Whether all containers of a pod are Ready stands
    in a cell, as 1/1 (printPod of k8s.io/kubernetes/pkg/printers/internalversion)."""
    names = [text_at(each, "name") for each in items_at(pods, "columnDefinitions")]
    for row in items_at(pods, "rows"):
        cells = row.get("cells")
        texts = dict(zip(names, map(str, cells if isinstance(cells, list) else ()), strict=False))
        some, _, all_of_them = texts.get("Ready", "").partition("/")
        yield _build(mapping_at(row, "object"), some == all_of_them != "0", texts.get("Status", ""))
    for pod in items_at(pods, "items"):
        is_ready = condition_of(pod, "Ready").get("status") == "True"
        yield _build(pod, is_ready, text_at(pod, "status", "phase"))


def _build(pod: Mapping[str, Any], is_ready: bool, status: str) -> _Pod:
    metadata = mapping_at(pod, "metadata")
    key = text_at(metadata, "uid")[:_KEY]
    name = f"{text_at(metadata, 'namespace')}/{text_at(metadata, 'name')}"
    over = bool(text_at(metadata, "deletionTimestamp")) or status in _OVER
    return _Pod(key, name, is_ready and bool(key), over)
