"""What one node knows of its fleet: work that needs a permit, and whether it has one. No effects.

The decisions over a whole fleet are in `installer/cluster`; the daemon at rest needs only this.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from installer.model.window import Window

FLEET = "fleet"
"""The Lease of the whole fleet, in the rollout's namespace."""
SIZE = "cri-resource-manager.intel.com/size"
"""Annotation of that Lease: how large the fleet is (FleetSize)."""
BREAKER = "cri-resource-manager.intel.com/breaker"
"""Annotation of a circuit breaker's Lease: its content."""
REMOVAL = "removal"
"""The generation of work that removes cri-resmgr."""
LONGEST_HOLD = 86_400
"""Seconds for which a permit can be held at most, whatever its Lease says."""
ROLLOUT = "cri-resource-manager.intel.com/rollout"
"""Label of each Lease there: `permit`, `fleet`, or the generation that a circuit breaker is about."""


@dataclass(frozen=True, slots=True)
class PlannedWork:
    """What a pass would have done, and must not do without a permit."""

    generation: str  # the digest of what the operator gave, the same on all nodes
    restarts_kubelet: bool = True
    begins: bool = False  # the generation was not verified on this node before
    soaks: bool = False  # kubelet restarts, or another version or policy comes: canaries are watched
    removes: bool = False  # cri-resmgr


class AskFirst(StrEnum):
    """What a run must not begin without a permit."""

    NOTHING = ""
    RESTARTS = "restarts"  # of kubelet
    ALL = "all"  # planned work: also a generation that was not verified on this host yet


NO_WORK = PlannedWork("")
"""In a result: whatever this node began last."""


@dataclass(frozen=True, slots=True)
class FleetRules:
    """The settings that all nodes of a fleet share. Shares are a number, or a percentage of the nodes."""

    concurrent_restarts: str = "1%"
    max_failures: str = "1%"
    order: str = "canary"
    soak_seconds: float = 300.0
    hold_seconds: float = 814.0  # the longest that one permitted pass may take
    pod_seconds: float = 60.0  # the longest that a permit waits for the pods of its node to be Ready again
    window: tuple[Window, ...] = ()  # in which a generation may begin on further nodes; none: always
    successor: str = ""  # the namespace of the NRI plugin that is to follow cri-resmgr; empty: none follows


DEFAULT_RULES = FleetRules()


@dataclass(frozen=True, slots=True)
class Permission:
    """What may begin now."""

    asks: bool = False  # planned work needs a permit: the pod's manifests have a rollout namespace
    granted: PlannedWork | None = None
    why: str = ""  # none is granted
    begun: PlannedWork | None = None  # permitted, perhaps to an earlier daemon; its end is not known
    paused: bool = False  # by an annotation of the Node
    fresh: bool = True  # the API server has said so recently, or would if it answered

    def allows(self, work: PlannedWork) -> bool:
        return not self.asks or self.granted == work


FREE = Permission()
"""A host outside of a fleet needs no permit."""


@dataclass(frozen=True, slots=True)
class WorkResult:
    """How permitted work has ended. `ok` is None if it touched nothing, which says nothing of the generation.
    `recalled`: by the host's record, it failed at some time, perhaps before this boot."""

    work: PlannedWork
    ok: bool | None
    why: str = ""
    recalled: bool = False


@dataclass(frozen=True, slots=True)
class PermitAnswer:
    """The fleet's answer to a question for a permit, or to the end of work."""

    granted: bool = False
    why: str = ""  # not
    detail: str = ""  # of `why`: what differs each time, which would make a node write its Node all the time
    wait: float = 0.0  # seconds until the next question; at least, if it has failed
    permit: str = ""
    version: str = ""
    pods: tuple[str, ...] = ()  # that are Ready when the permit is taken
    canary: bool = False  # the fleet waits for the result
    failed: bool = False
    denied: bool = False  # this node has no right to ask any more, or the namespace is gone
    told: bool = False  # the result stands in the circuit breaker, or need not
    released: bool = False  # the permit is no longer ours
    tripped: str = ""  # this result has tripped the circuit breaker, and why
