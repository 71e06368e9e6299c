"""What the tests of this directory ask with."""

from __future__ import annotations

import itertools
import time
from typing import Any

from tests.lib.throwaway.controlplane import Answer, Caller

LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
NODES = "/api/v1/nodes"
SECONDS = 120.0  # until a controller has seen it, on a machine that has much else to do
Object = dict[str, Any]
_numbers = itertools.count()


def number() -> int:
    """Another one each time, for names."""
    return next(_numbers)


def new_lease(**metadata: Any) -> Object:
    named = {"name": f"lease-{number()}", **metadata}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": named, "spec": {}}


def path_of(found: Object) -> str:
    where = LEASES if found["kind"] == "Lease" else NODES
    return f"{where}/{found['metadata']['name']}"


def refused(answer: Answer, code: int, reason: str) -> bool:
    return (answer.code, answer.body.get("reason"), answer.body.get("kind")) == (code, reason, "Status")


def await_gone(admin: Caller, path: str) -> None:
    """Until a controller has taken it away."""
    end = time.monotonic() + SECONDS
    while (answer := admin.call("GET", path)).code != 404:
        assert time.monotonic() < end, answer
        time.sleep(0.1)
