"""One talk with the API server: what the daemon wants of it, and what it has heard.

Each is one JSON text on its way to and from a process that soon ends (`child.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from installer.cluster.decommission import Decommission
from installer.cluster.node_word import Statement
from installer.cluster.pod_context import PodContext
from installer.model.fleet import DEFAULT_RULES, FleetAnswer, FleetRules, PlannedWork, WorkResult

TALK_SECONDS = 10.0

Result = tuple[str, str]
"""ok, denied or failed; and why."""


@dataclass(frozen=True, slots=True)
class End:
    """`result` is to be told, and `permit`, which was taken with this resourceVersion (`version`), to be
    given back. `knows_none`: by what the node remembers, it holds none; what has its name is given back.
    `successor_seconds`: for how long an NRI plugin is still waited for, before the removal counts as failed;
    None where none is."""

    result: WorkResult | None = None
    permit: str = ""
    version: str = ""
    knows_none: bool = False
    successor_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Talk:
    """`seconds` is the deadline of all of it. `look`: read the Node, unless an answer shows it;
    `is_first`: no memory of the API server's may be old. `say` is what the Node is to say, `said` what it
    says already, empty if that is not known. Of a fleet: whether work may `begin` on the node with this
    `uid`, and maybe the label of canaries, or how it has come to its `end`. `evidence`: whether the node is
    to be left."""

    context: PodContext
    seconds: float = TALK_SECONDS
    look: bool = False
    is_first: bool = False
    say: Statement | None = None
    said: Mapping[str, Any] = field(default_factory=dict)
    events: tuple[Mapping[str, Any], ...] = ()
    uid: str = ""
    canary: bool = False
    rules: FleetRules = DEFAULT_RULES
    begin: PlannedWork | None = None
    end: End | None = None
    evidence: bool = False

    @property
    def is_of_node(self) -> bool:
        """Whether it is about the Node, and not only about a permit."""
        return bool(self.look or self.say or self.events)


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """Of the Node. `hidden`: the API server says that we may not see it, or that there is none."""

    uid: str = ""
    hidden: bool = False
    canary: bool = False
    ready: bool = False
    paused: bool | None = None  # not known


@dataclass(frozen=True, slots=True)
class Heard:
    """`parts` has the result of each part, `node` what was seen, `said` what the Node says of us then (None
    if it was not seen), `sent` how many of the events are done with. For `wait` seconds the server wants to
    be left alone. `permit` answers `begin` or `end`."""

    parts: Mapping[str, Result]
    node: NodeFacts | None = None
    said: Mapping[str, Any] | None = None
    sent: int = 0
    wait: float = 0.0
    permit: FleetAnswer | None = None
    evidence: Decommission | None = None
