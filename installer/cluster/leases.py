"""Names and forms of what a fleet keeps in the API. Pure.

All of it is Leases in one namespace, so that one LIST returns everything: the permits, the circuit breaker of
each generation, and one Lease of the whole fleet. A label tells them apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import urlencode

from installer.cluster.pod_context import PROGRAM
from installer.model.fleet import FLEET, LONGEST_HOLD, ROLLOUT
from installer.model.instant import CLOCKS_DIFFER, micro_time, parse_time
from installer.model.jsontext import mapping_at, number_at, text_at
from installer.model.names import NAME_LABEL

PREFIX = "cri-resource-manager.intel.com"
RING = f"{PREFIX}/ring"
"""Label of a node; with the value `canary` it goes first."""
CANARY = "canary"

_PERMIT, _PERMIT_LABEL = "permit-", "permit"  # how the names begin, and the value of ROLLOUT
MOST_PERMITS = 1000  # each question reads all of them, 1 KB each, and they are never deleted
_PAGE = 250  # Leases of an answer
_RELEASED_SECONDS = 1  # a Lease's duration has to be above 0


@dataclass(frozen=True, slots=True)
class Holder:
    """A node as the holder of a permit: another node of the same name has another UID."""

    node: str
    uid: str

    @property
    def identity(self) -> str:
        return f"{self.node}/{self.uid}"


@dataclass(frozen=True, slots=True)
class Permit:
    """A Lease that permits one restart of kubelet. Times are of the epoch.

    Whoever takes over another node's permit lets its own term begin when the other's is over, and no term is
    moved back (admission.yaml.j2). So a permit whose term is still to come is another node's until then."""

    name: str
    holder: str = ""  # empty while it is free
    taken: float = 0.0
    begins: float = 0.0  # its term
    expires: float = 0.0
    version: str = ""  # the resourceVersion that it was read with; empty: it does not exist yet

    @property
    def index(self) -> int:
        return int(self.name.removeprefix(_PERMIT))

    def is_held(self, now: float) -> bool:
        """Whether a node may be at work with it."""
        at_work = self.is_ahead(now) or (bool(self.holder) and now < self.expires)
        return at_work and not self.is_lost(now)

    def is_ahead(self, now: float) -> bool:
        """Whether its term is still to come: until then it is another node's than its holder's."""
        return self.begins > now + CLOCKS_DIFFER

    def is_lost(self, now: float) -> bool:
        """Whether its term begins so late that no node can be at work with it, and none can take it."""
        return self.begins > now + CLOCKS_DIFFER + LONGEST_HOLD

    @property
    def node(self) -> str:
        return self.holder.rpartition("/")[0]


def permit_name(index: int) -> str:
    return f"{_PERMIT}{index}"


def breaker_name(generation: str) -> str:
    return f"breaker-{generation}"


def leases_path(namespace: str) -> str:
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"


def rollout_query(generation: str, more: str = "") -> str:
    """Return the query of a LIST of what a node has to know before it begins this generation, without the
    circuit breakers of others, which stay for ever. A page of it may be as large as the answer of a whole
    LIST; `more` continues it."""
    query = {"labelSelector": f"{ROLLOUT} in ({FLEET},{_PERMIT_LABEL},{generation})", "limit": str(_PAGE)}
    return "?" + urlencode(query | ({"continue": more} if more else {}))


def share_of(text: str, nodes: int) -> int:
    """Return a number, or a percentage of so many nodes rounded down; at least 1."""
    if text.endswith("%"):
        return max(1, nodes * int(text[:-1]) // 100)
    return max(1, int(text))


def permits_of(concurrent_restarts: str, nodes: int) -> int:
    """Return how many nodes may restart kubelet at once."""
    return min(MOST_PERMITS, share_of(concurrent_restarts, nodes))


def read_permits(leases: object) -> tuple[Permit, ...]:
    """Read the items of a LeaseList, without the other Leases."""
    found = (_read_permit(lease) for lease in (leases if isinstance(leases, list) else ()))
    return tuple(permit for permit in found if permit is not None)


def _read_permit(lease: object) -> Permit | None:
    name, spec = text_at(lease, "metadata", "name"), mapping_at(lease, "spec")
    if not name.startswith(_PERMIT) or not name.removeprefix(_PERMIT).isdecimal():
        return None
    begins = _seconds_of(str(spec.get("renewTime")))
    return Permit(
        name,
        str(spec.get("holderIdentity") or ""),
        _seconds_of(str(spec.get("acquireTime"))),
        begins,
        begins + min(LONGEST_HOLD, max(0, number_at(spec, "leaseDurationSeconds"))),
        text_at(lease, "metadata", "resourceVersion"),
    )


# Cached, because a simulation of many nodes in one process reads many permits many times.
_seconds_of = lru_cache(1024)(parse_time)


def build_lease(
    name: str, namespace: str, label: str, version: str = "", annotations: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Build a Lease of the rollout. `version` is the resourceVersion that it rests on, empty for a new
    one."""
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": namespace,
        "labels": {NAME_LABEL: PROGRAM, ROLLOUT: label},
    }
    metadata |= {"resourceVersion": version} if version else {}
    metadata |= {"annotations": dict(annotations)} if annotations else {}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata}


def build_permit(permit: Permit, namespace: str, holder: str, now: float, seconds: float) -> dict[str, Any]:
    """Build the Lease with another holder. For a holder that has it already it is renewed."""
    renews = holder == permit.holder
    begins = max(now, permit.begins, permit.expires if permit.holder and not renews else 0.0)
    spec: dict[str, Any] = {
        "holderIdentity": holder,
        "leaseDurationSeconds": round(seconds),
        "renewTime": micro_time(begins),
        "acquireTime": micro_time(permit.taken if renews else now),
    }
    return build_lease(permit.name, namespace, _PERMIT_LABEL, permit.version) | {"spec": spec}


def build_release(version: str) -> dict[str, Any]:
    """Build a merge patch that takes the holder off the Lease with this resourceVersion."""
    spec = {"holderIdentity": None, "leaseDurationSeconds": _RELEASED_SECONDS}
    return {"metadata": {"resourceVersion": version}, "spec": spec}
