"""What stand-ins for a Kubernetes API server share: patches, Tables, TLS, another network."""

from __future__ import annotations

import ctypes
import os
import ssl
import urllib.parse
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


def as_table(found: dict[str, Any], query: str) -> dict[str, Any]:
    """What was found as a client gets it that accepts a Table (Kubernetes' documentation, API concepts): a
    row for each object, with its metadata unless `includeObject` is None."""
    bare = dict(urllib.parse.parse_qsl(query)).get("includeObject") == "None"
    if found.get("kind") == "Status":
        return found
    rows = [
        {"cells": _cells(each), "object": None if bare else {"metadata": each["metadata"]}}
        for each in found.get("items", [found])
    ]
    named, parts = found.get("metadata", {}), ("resourceVersion", "continue")
    metadata = {key: named[key] for key in parts if key in named}
    columns = [{"name": name, "type": "string"} for name in ("Name", "Ready", "Status")]
    head = {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}
    return {**head, "columnDefinitions": columns, "rows": rows}


def _cells(given: dict[str, Any]) -> list[str]:
    """A pod has some more (printPod of k8s.io/kubernetes/pkg/printers/internalversion)."""
    status = given.get("status", {})
    containers = status.get("containerStatuses")
    if containers is None:
        return [given["metadata"]["name"]]
    ready = sum(each["ready"] and "running" in each.get("state", {}) for each in containers)
    said = {"Succeeded": "Completed"}.get(status.get("phase", ""), status.get("phase", ""))
    ends = "deletionTimestamp" in given["metadata"]
    return [given["metadata"]["name"], f"{ready}/{len(containers)}", "Terminating" if ends else said]


def merge_conditions(there: list[dict[str, Any]], patch: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As a strategic merge patch does: by type; `$patch: delete` takes one away."""
    found = {each["type"]: each for each in there}
    for each in patch:
        if each.get("$patch") == "delete":
            found.pop(each["type"], None)
        else:
            found[each["type"]] = {**found.get(each["type"], {}), **each}
    return list(found.values())


def secure(account: Path, *names: str) -> ssl.SSLContext:
    """For a server of these names. Its certificate authority is written to where `account` has it."""
    import trustme  # late: it takes long, and most have no TLS

    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.cert_pem.write_to_path(str(account / "ca.crt"))
    authority.issue_cert(*names).configure_cert(context)
    return context


def inside(network: str, make: Callable[[], T]) -> T:
    """Makes it in another network namespace, in a thread of its own: others stay where they are."""

    def enter_and_make() -> T:
        namespace = os.open(network, os.O_RDONLY)
        try:
            if ctypes.CDLL(None, use_errno=True).setns(namespace, 0) != 0:
                raise OSError(ctypes.get_errno(), f"setns {network}")
        finally:
            os.close(namespace)
        return make()

    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(enter_and_make).result()


def merge(target: Any, patch: Any) -> Any:
    """A JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged
