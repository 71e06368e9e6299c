"""How the resident is, and what it may ask of and tell a cluster. No effects, no I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from installer.model.state import Mode


class Phase(StrEnum):
    STARTING = "starting"
    WAITING = "waiting"  # its turn in the rollout has not come
    CONVERGING = "converging"  # its inputs have changed, and a pass is at work on it
    CONVERGED = "converged"
    REMOVED = "removed"
    UNWELL = "unwell"  # converged, but the relay or a unit is not as it should be
    FAILED = "failed"
    HELD = "held"  # kubelet is kept on its base endpoint
    LIMITED = "limited"  # kubelet would have to be restarted more often than allowed
    PAUSED = "paused"
    YIELDED = "yielded"  # a newer resident has taken over


@dataclass(frozen=True, slots=True)
class DaemonState:
    """`reason` is for people and says why it is not ready, or what goes on. `hold` is why kubelet is
    held on its base endpoint. `last_exit` is the exit code of the last pass (-1: none has ended),
    `generation` and `payload_version` those of the last pass that converged. `restarts` are kubelet's by
    us within the last hour; `all_restarts`, `passes`, `repairs` (passes that changed something after the
    first), `rollbacks`, `rescues` and `failures` count since the process began."""

    mode: Mode
    phase: Phase
    ready: bool
    reason: str = ""
    hold: str = ""
    last_exit: int = -1
    last_seconds: float = 0.0
    generation: str = ""
    payload_version: str = ""
    restarts: int = 0
    all_restarts: int = 0
    passes: int = 0
    repairs: int = 0
    rollbacks: int = 0
    rescues: int = 0
    failures: int = 0


class Timers(Protocol):
    """The part of the main loop that calls later."""

    def after(self, seconds: float, call: Callable[[], None]) -> int:
        """Calls once, in `seconds`; what is returned may be handed to `cancel` until then."""
        ...

    def cancel(self, timer: int) -> None: ...


class Cluster(Protocol):
    """What the API server knows. Called from the resident's loop: every method returns at once, with
    what is known by then, but for `begin`, `removal_evidence` and `end`, which may take a few seconds.
    None raises."""

    def begin(self, timers: Timers, changed: Callable[[], None]) -> None:
        """Called once, before anything is asked. On return `paused` is true to the node, if the API
        server answers within 3 s. `changed` is called whenever it becomes another."""
        ...

    def paused(self) -> bool:
        """Whether the node says that nothing may be changed."""
        ...

    def removal_evidence(self) -> tuple[bool, str]:
        """Whether it is certain that this node is no longer to be served, and why (or why not)."""
        ...

    def report(self, state: DaemonState) -> None:
        """Told at each transition, and now and then in between."""
        ...

    def end(self) -> None:
        """What has not been told yet is told, and nothing more is done."""
        ...


class NoCluster:
    """Nobody to ask: never paused from there, and never evidence to remove."""

    def begin(self, timers: Timers, changed: Callable[[], None]) -> None:
        """Nothing changes."""

    def paused(self) -> bool:
        return False

    def removal_evidence(self) -> tuple[bool, str]:
        return False, "there is no cluster to ask"

    def report(self, state: DaemonState) -> None:
        """Nobody listens."""

    def end(self) -> None:
        """Nothing is left to be told."""
