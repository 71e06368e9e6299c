"""One sync with the API server: the daemon's request, and the reply.

Each is one JSON text on its way to and from a short-lived process (`sync_child.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from installer.cluster.decommission import Decommission
from installer.cluster.node_status import NodeStatus
from installer.cluster.pod_context import PodContext
from installer.model.fleet import DEFAULT_RULES, FleetRules, PermitAnswer, PlannedWork, WorkResult

SYNC_SECONDS = 10.0

Result = tuple[str, str]
"""ok, denied or failed; and why."""
OK: Result = ("ok", "")


@dataclass(frozen=True, slots=True)
class NodeFacts:
    uid: str = ""  # without it there is nothing to ask for
    hidden: bool = False  # the API server denies us the Node, or has none
    canary: bool = False  # it has the label
    ready: bool = False
    paused: bool | None = None  # None: not known
    joined: float = 0.0  # when it was created
    flips: bool = False  # a restart of its kubelet makes its pods not Ready for a while


UNREAD = NodeFacts()


@dataclass(frozen=True, slots=True)
class WorkEnd:
    """How work has ended, if the fleet has to know, and the permit to give back, if any."""

    result: WorkResult | None = None
    permit: str = ""
    version: str = ""  # the resourceVersion that the permit was taken with
    knows_none: bool = False  # the node knows of no permit of its own: whatever has its name is given back
    successor_seconds: float | None = None  # until a removal without a serving NRI plugin counts as failed


@dataclass(frozen=True, slots=True)
class SyncRequest:
    context: PodContext
    seconds: float = SYNC_SECONDS  # the deadline of all of it
    read_node: bool = False  # unless another answer shows the Node
    is_first: bool = False  # the Node must not come from a cache
    status: NodeStatus | None = None  # that the Node is to have
    known: Mapping[str, Any] = field(default_factory=dict)  # what it says of us already; empty: not known
    events: tuple[Mapping[str, Any], ...] = ()
    node: NodeFacts = UNREAD  # as last read
    rules: FleetRules = DEFAULT_RULES
    begin: PlannedWork | None = None  # ask for a permit
    notes_pods: bool = False  # with the permit: which pods are Ready?
    awaited: tuple[str, ...] = ()  # pods that were (`pods.py`): are they Ready again, as the Node is?
    end: WorkEnd | None = None
    evidence: bool = False  # is this node to be decommissioned?

    @property
    def concerns_node(self) -> bool:
        """Whether it is about the Node, and not only about a permit."""
        return bool(self.read_node or self.status or self.events)


@dataclass(frozen=True, slots=True)
class SyncReply:
    parts: Mapping[str, Result]  # the result of each part
    node: NodeFacts | None = None
    known: Mapping[str, Any] | None = None  # what the Node says of us now; None: it was not read
    sent: int = 0  # so many of the events are done with
    wait: float = 0.0  # seconds for which the server wants no request
    permit: PermitAnswer | None = None  # for `begin` or `end`
    evidence: Decommission | None = None
    unready: tuple[str, ...] | None = None  # of the awaited pods; None: not known
