"""What is known of every node of a fleet at one moment. No effects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from installer.model.names import Mode


class NodeHealth(StrEnum):
    """How a node does, worst first."""

    TROUBLE = "not ready"  # it says why, or kubelet says why its pod does not run
    SILENT = "silent"  # selected, and nothing is heard of it
    DIRTY = "deselected, not removed"  # no DaemonSet selects it, and it was not cleaned
    WORKING = "working"
    PAUSED = "paused"
    WELL = "well"


NEED_A_PERSON = (NodeHealth.TROUBLE, NodeHealth.SILENT, NodeHealth.DIRTY)


@dataclass(frozen=True, slots=True)
class FleetInstallation:
    """One of our DaemonSets. `instance` is the value `name`."""

    namespace: str
    name: str
    instance: str
    mode: Mode
    image: str


@dataclass(frozen=True, slots=True)
class NodeView:
    """`phase`, `generation` and `policy` (what is installed), `wanted` (the generation that is asked of it),
    `version`, `hold` and `changed` (a time) are the node's own words; empty where it says none. `outdated`:
    its pod is not of the present template, and so it cannot know yet what is asked for. `ready` is its
    pod's. `reachable`: its kubelet is heard of. `mode` is what is
    asked of it, None where no DaemonSet selects it."""

    name: str
    health: NodeHealth
    reason: str = ""
    phase: str = ""
    generation: str = ""
    wanted: str = ""
    outdated: bool = False
    policy: str = ""
    version: str = ""
    changed: str = ""
    hold: str = ""
    paused: bool = False
    ready: bool = False
    reachable: bool = True
    mode: Mode | None = None


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes for which the same is to be done."""

    health: NodeHealth
    phase: str
    reason: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Generation:
    """What nodes have learnt of one generation. Times are as the API writes them, empty for never. `failures`
    by node; `stopped` says why no other node begins it. `missing`: nodes with the label of canaries that have
    not begun yet, while the others wait for them. `current`: the DaemonSet asks for it; the others are
    history. `has` and `awaits`: how many nodes have it, and wait for a permit to begin it."""

    generation: str
    begun: str = ""
    canaries: tuple[str, ...] = ()
    succeeded: tuple[str, ...] = ()
    failures: Mapping[str, str] = field(default_factory=dict)
    passed: str = ""
    soaks_until: str = ""
    stopped: str = ""
    missing: int = 0
    current: bool = True
    has: int = 0
    awaits: int = 0


@dataclass(frozen=True, slots=True)
class Rollout:
    """`waiting` are nodes whose pod is not available, `outdated` those whose pod is still to be replaced.
    `paused` is why a person has paused it, None if it is not. `permits` has the nodes that may restart
    kubelet now, and since when, of `limit` at once. `unreadable` are breakers of what is asked for. `awaited`
    are the nodes that are not done, and why; `stuck`: none of them goes on before a person has been there."""

    daemon_set: str
    nodes: int
    waiting: int
    paused: str | None
    permits: tuple[tuple[str, str], ...]
    limit: int
    generations: tuple[Generation, ...] = ()
    unreadable: tuple[str, ...] = ()
    outdated: int = 0
    mode: Mode = Mode.INSTALL
    awaited: tuple[NodeGroup, ...] = ()
    stuck: bool = False

    @property
    def is_stopped(self) -> bool:
        """Whether planned work begins on no node, or on no other node the generation that the DaemonSet asks
        for. What became of others is history."""
        stopped = any(each.stopped for each in self.generations if each.current)
        return self.paused is not None or bool(self.unreadable) or stopped


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a change of the fleet is. So many nodes wait for a permit (`waiting`), are at work
    (`working`), or have a pod that is still to be replaced (`outdated`). `per_hour`: how many get done at the
    present pace, and `seconds_left` until all are; None where there is no pace to judge by."""

    waiting: int
    working: int
    outdated: int
    per_hour: int | None = None
    seconds_left: int | None = None


@dataclass(frozen=True, slots=True)
class Overview:
    """`others` are nodes that no DaemonSet selects and that say nothing of us. `time` is the API server's.
    `progress`: None while nothing is to be done."""

    time: str
    installations: tuple[FleetInstallation, ...]
    nodes: tuple[NodeView, ...]
    others: int = 0
    rollouts: tuple[Rollout, ...] = ()
    progress: Progress | None = None

    @property
    def counts(self) -> Mapping[NodeHealth, int]:
        found = Counter(node.health for node in self.nodes)
        return {health: found[health] for health in NodeHealth if found[health]}

    @property
    def well(self) -> bool:
        """Whether no node needs a person, and none is at work."""
        return set(self.counts) <= {NodeHealth.WELL, NodeHealth.PAUSED}


def group_nodes(nodes: Iterable[NodeView]) -> tuple[NodeGroup, ...]:
    """By what is wrong with them, the worst first, and of those the most frequent."""
    found: dict[tuple[NodeHealth, str, str], list[str]] = {}
    for node in nodes:
        reason = node.reason.replace(node.name, "NODE")
        found.setdefault((node.health, node.phase, reason), []).append(node.name)
    order = list(NodeHealth)
    groups = [NodeGroup(*key, tuple(sorted(names))) for key, names in found.items()]
    return tuple(sorted(groups, key=lambda each: (order.index(each.health), -len(each.nodes), each.reason)))
