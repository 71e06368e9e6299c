"""What one node knows of the fleet: work that has to be asked for, and whether it is permitted. No effects.

The decisions over a whole fleet are in `installer/fleet`; the daemon at rest needs only this.
"""

from __future__ import annotations

from dataclasses import dataclass

FLEET = "fleet"
"""The Lease of the whole fleet, in the rollout's namespace."""
SIZE = "cri-resource-manager.intel.com/size"
"""Annotation of that Lease: how large the fleet is (FleetSize)."""
BREAKER = "cri-resource-manager.intel.com/breaker"
"""Annotation of a breaker's Lease: what it says."""
REMOVAL = "removal"
"""The generation of work that takes cri-resmgr away."""
LONGEST_HOLD = 86_400
"""Seconds for which a permit can be held at most, whatever its Lease says."""
ROLLOUT = "cri-resource-manager.intel.com/rollout"
"""Label of each Lease there: `permit`, `fleet`, or the generation that a breaker is about."""


@dataclass(frozen=True, slots=True)
class PlannedWork:
    """What a pass would have done and may not do unasked.

    `generation` is the digest of what the operator gave, the same on all nodes. `begins`: it was not verified
    on this node before. `soaks`: it restarts kubelet or changes the policy, so that canaries are watched for
    a while. `removes`: cri-resmgr is taken away.
    """

    generation: str
    restarts_kubelet: bool = True
    begins: bool = False
    soaks: bool = False
    removes: bool = False


NO_WORK = PlannedWork("")
"""In a result: whatever this node has begun last."""


@dataclass(frozen=True, slots=True)
class FleetRules:
    """The settings that all nodes of a fleet share. Shares are a number, or a percentage of the nodes.
    `hold_seconds`: the longest that one permitted pass may take. `successor`: the namespace of the resources
    of the NRI plugin that is to follow cri-resmgr, empty where none is."""

    concurrent_restarts: str = "1%"
    max_failures: str = "1%"
    order: str = "canary"
    soak_seconds: float = 300.0
    hold_seconds: float = 814.0
    successor: str = ""


DEFAULT_RULES = FleetRules()


@dataclass(frozen=True, slots=True)
class Permission:
    """What may begin now. `asks`: planned work has to be asked for (a pod whose manifests have a rollout
    namespace). `granted` is the work that may begin, `why` why none may. `begun` is permitted work that has
    begun, by what an earlier daemon remembers too, and whose end is not known. `paused`: the node says that
    nothing may be changed, `fresh`: the API server has said so a moment ago, or would if it answered."""

    asks: bool = False
    granted: PlannedWork | None = None
    why: str = ""
    begun: PlannedWork | None = None
    paused: bool = False
    fresh: bool = True

    def allows(self, work: PlannedWork) -> bool:
        return not self.asks or self.granted == work


FREE = Permission()
"""A host outside of a fleet needs no permit."""


@dataclass(frozen=True, slots=True)
class WorkResult:
    """How permitted work has ended. `ok` is None where it touched nothing, which says nothing
    of the generation."""

    work: PlannedWork
    ok: bool | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class FleetAnswer:
    """What came of it. `granted`, or `why` not, and after how many seconds to ask again (where `failed`, at
    the earliest). `detail` adds what differs from one question to the next: a node that said it of
    itself would write its Node all the time. `canary`: the fleet waits for the result. `told`: the result
    stands in the breaker, or need not. `released`: the permit is no longer ours. `powerless`: the API
    server says that this node no longer has the right to ask, or nowhere.
    `tripped`: this result has tripped the breaker, and why."""

    granted: bool = False
    why: str = ""
    detail: str = ""
    wait: float = 0.0
    permit: str = ""
    version: str = ""
    canary: bool = False
    failed: bool = False
    powerless: bool = False
    told: bool = False
    released: bool = False
    tripped: str = ""
