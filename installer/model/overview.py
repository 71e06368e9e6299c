"""The nouns of a fleet: every node at one moment, and its rollouts. No effects."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from installer.model.names import Mode


class NodeHealth(StrEnum):
    """The health of a node, worst first."""

    TROUBLE = "not ready"  # it reports why, or others report why its pod does not run
    SILENT = "silent"  # selected, and not heard from
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
    """One node. It reports itself: `phase`, `generation` and `policy` (what is installed), `wanted` (the
    generation that it should have), `version`, `hold` and `changed` (a time); they are empty where it
    reports none. `outdated`: no pod of the present template has reported from it, so `wanted` may be
    history. `ready`: its pod is. `reachable`: its kubelet is not silent. `mode`: what the DaemonSets want of
    it, None where none selects it, and `instance` is theirs."""

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
    instance: str = ""


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes that need the same action."""

    health: NodeHealth
    phase: str
    reason: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Generation:
    """One generation, and how it did. Times are as the API writes them, empty for never. `failures` are by
    node; `stopped`: why no other node starts it. `passed`: when the canaries were through. `missing`: how
    many nodes with the label of canaries have not started yet, while the others wait for them. `current`:
    the DaemonSet wants it; the others are history. `has` and `awaits`: how many nodes have it, and wait for
    a permit to start it."""

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
class WindowView:
    """Whether a window is open in which a generation may begin, and until when that stays so: a time as the
    API writes it, empty if it never changes. `fault`: why nobody knows."""

    open: bool
    until: str = ""
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Rollout:
    """The rollout of one DaemonSet. `waiting`: how many nodes have no available pod; `outdated`: how many
    pods are still to be replaced; `unreported`: none of the new ones has said what is wanted. `paused`: why a
    person has paused it, None if it is not paused. `permits`: the nodes that may restart kubelet now, and
    since when, of `limit` at once. `unreadable`: circuit breakers of wanted generations that cannot be
    parsed. `void`: permits that no node works with, or can have taken by the rules, and why; `blocked`: these
    are all that there may be. `fault`: why its Leases cannot be read. `awaited`: the nodes that are not done,
    and why; `stuck`: none of them continues before a person has fixed one. `window`: None if there is
    none."""

    daemon_set: str
    nodes: int
    waiting: int
    paused: str | None
    permits: tuple[tuple[str, str], ...]
    limit: int
    generations: tuple[Generation, ...] = ()
    unreadable: tuple[str, ...] = ()
    void: Mapping[str, str] = field(default_factory=dict)
    blocked: bool = False
    fault: str = ""
    outdated: int = 0
    unreported: bool = False
    window: WindowView | None = None
    mode: Mode = Mode.INSTALL
    awaited: tuple[NodeGroup, ...] = ()
    stuck: bool = False

    @property
    def is_stopped(self) -> bool:
        """Whether no node starts planned work, or no other node starts the wanted generation. Other
        generations are history."""
        stopped = any(each.stopped for each in self.generations if each.current)
        return self.paused is not None or bool(self.unreadable) or stopped or self.blocked


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a change: how many nodes wait for a permit (`waiting`), are at work (`working`), or
    have a pod that is still to be replaced (`outdated`). `per_hour`: how many finish at the present pace,
    and `seconds_left` until all have; None where no pace is known."""

    waiting: int
    working: int
    outdated: int
    per_hour: int | None = None
    seconds_left: int | None = None


@dataclass(frozen=True, slots=True)
class Overview:
    """A fleet at one moment. `others`: how many nodes no DaemonSet selects, and have none of our annotations;
    or another installation does. `time` is the API server's. `progress`: None while there is nothing to
    do. `unproven`: what nobody can tell from an installation, in a sentence; empty if nothing is."""

    time: str
    installations: tuple[FleetInstallation, ...]
    nodes: tuple[NodeView, ...]
    others: int = 0
    rollouts: tuple[Rollout, ...] = ()
    progress: Progress | None = None
    unproven: str = ""

    @property
    def counts(self) -> Mapping[NodeHealth, int]:
        found = Counter(node.health for node in self.nodes)
        return {health: found[health] for health in NodeHealth if found[health]}

    @property
    def well(self) -> bool:
        """Whether no node needs a person, none is at work or will be, and no rollout and no installation is
        unknown."""
        known = not self.unproven and not any(each.fault for each in self.rollouts)
        at_rest = self.progress is None and known
        return at_rest and set(self.counts) <= {NodeHealth.WELL, NodeHealth.PAUSED}


def _without_name(reason: str, name: str) -> str:
    """Return the reason without the name of its node, where that stands as a word: names of Kubernetes'
    objects have letters, digits, dots and dashes."""
    return re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-]|\.\w)", "NODE", reason)


def group_nodes(nodes: Iterable[NodeView]) -> tuple[NodeGroup, ...]:
    """Group nodes by what is wrong with them, the worst first, and of those the most frequent."""
    names_by_key: dict[tuple[NodeHealth, str, str], list[str]] = {}
    for node in nodes:
        reason = _without_name(node.reason, node.name)
        names_by_key.setdefault((node.health, node.phase, reason), []).append(node.name)
    order = list(NodeHealth)
    groups = [NodeGroup(*key, tuple(sorted(names))) for key, names in names_by_key.items()]
    return tuple(
        sorted(groups, key=lambda group: (order.index(group.health), -len(group.nodes), group.reason))
    )
