"""The state of the daemon, and what it may ask of and tell a cluster. No effects, no I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from installer.model.fleet import FREE, FleetRules, Permission, PlannedWork, WorkResult
from installer.model.names import Mode

# In the daemon's own file system, for the probes of its container: the age of the first two counts.
READY_FILE = "/run/cri-resmgr-installer/ready"
ALIVE_FILE = "/run/cri-resmgr-installer/alive"
EXCUSED_FILE = "/run/cri-resmgr-installer/excused"  # a restart would not help (DaemonState.stands_back)


class Phase(StrEnum):
    STARTING = "starting"
    WAITING = "waiting"  # for a permit to restart kubelet
    CONVERGING = "converging"  # to inputs that have changed, or to a host without us
    REPAIRING = "repairing"  # the host differs from what was converged, or may: a pass looks into it
    CHECKING = "checking"  # nothing that is seen has changed, and a pass looks at everything again
    CONVERGED = "converged"
    REMOVED = "removed"
    UNWELL = "unwell"  # converged, but the relay or a unit is not healthy
    FAILED = "failed"
    REFUSED = "refused"  # the host cannot or should not be served (exit 4)
    HELD = "held"  # kubelet is held on its base endpoint
    LIMITED = "limited"  # kubelet would have to be restarted more often than allowed
    PAUSED = "paused"
    YIELDED = "yielded"  # a newer daemon has taken over


_STANDS_BACK = (
    *(Phase.WAITING, Phase.PAUSED, Phase.HELD),
    *(Phase.LIMITED, Phase.REFUSED, Phase.YIELDED),
)


@dataclass(frozen=True, slots=True)
class Installed:
    """What a pass found or left installed, and the policy in force, because `policy_source` asked for it.
    Empty where no generation is good."""

    generation: str = ""
    payload_version: str = ""
    policy: str = ""
    policy_source: str = ""


@dataclass(frozen=True, slots=True)
class DaemonState:
    """`reason` is for people and says why the node is not ready. `hold` is why kubelet is held on its base
    endpoint. `last_exit` is the exit code of the last pass (-1: none has ended). What is `installed`, by the
    last pass, and what is wanted are two things. `wanted` is the generation that the fleet is asked
    for, empty where the inputs cannot be read. `serves`: what is installed is good, and kubelet works with
    it, whichever generation that is. `successor`: what is to follow a removal, `nri` or nothing. `restarts`
    are our restarts of kubelet within the last hour; `all_restarts`, `passes`, `changes` (passes that changed
    something and converged), `repairs` (those that changed something after the first), `rollbacks`, `rescues`
    and `failures` count since the process began."""

    mode: Mode
    phase: Phase
    ready: bool
    reason: str = ""
    hold: str = ""
    last_exit: int = -1
    last_seconds: float = 0.0
    installed: Installed = Installed()
    wanted: str = ""
    serves: bool = False
    successor: str = ""
    restarts: int = 0
    all_restarts: int = 0
    passes: int = 0
    changes: int = 0
    repairs: int = 0
    rollbacks: int = 0
    rescues: int = 0
    failures: int = 0

    @property
    def word(self) -> str:
        """The phase, and why."""
        return self.phase.value + (f": {self.reason}" if self.reason else "")

    @property
    def stands_back(self) -> bool:
        """Whether the proxy's absence is not a reason to restart our container: another one would wait or be
        refused in the same way. What is waited for, or wrong, stands in `reason`."""
        return self.phase in _STANDS_BACK or (self.phase is Phase.FAILED and not self.installed.generation)


class RunningChild(Protocol):
    """A process beside the main loop."""

    def kill(self) -> None:
        """SIGKILL, at once."""
        ...


class Loop(Protocol):
    """The part of the main loop that calls later and starts processes."""

    def after(self, seconds: float, call: Callable[[], None]) -> int:
        """Calls once, in `seconds`; what is returned may be handed to `cancel` until then."""
        ...

    def cancel(self, timer: int) -> None: ...

    def start(
        self,
        argv: Sequence[str],
        on_line: Callable[[str], None],
        on_end: Callable[[int], None],
        deadline: float,
        grace: float,
    ) -> RunningChild:
        """Starts a process that has `deadline` seconds, and `grace` more after SIGTERM. `on_end` gets its
        exit code. Raises OSError."""
        ...


class Cluster(Protocol):
    """What the API server knows. Called from the daemon's loop: every method returns at once, with what is
    known by then, but for `begin`, `removal_evidence` and `end`, which may take a few seconds. None
    raises."""

    def begin(self, loop: Loop, changed: Callable[[], None]) -> None:
        """Called once, before anything is asked. On return the permission tells of a pause, if the API
        server answers within 3 s. `changed` is called whenever the permission has changed."""
        ...

    def permission(self) -> Permission:
        """By what is known now."""
        ...

    def saw(
        self, state: DaemonState, work: PlannedWork | None, rules: FleetRules, *, busy: bool, looks: bool
    ) -> None:
        """Called after each decision. `work` waits for a permit; what was permitted and is not wanted any
        more is given back, once work that has begun has left the node Ready. `busy`: a pass runs, or may run.
        `looks`: a pass waits for a permission that is fresh."""
        ...

    def ended(self, result: WorkResult) -> None:
        """How work that was permitted has ended, or work of a generation that others may have to know of."""
        ...

    def removal_evidence(self) -> tuple[bool, str]:
        """Whether it is certain that this node is no longer to be served, and why (or why not)."""
        ...

    def end(self) -> None:
        """Tells what has not been told yet, and does nothing more."""
        ...


class NoCluster:
    """No cluster: never paused by it, and never evidence to remove."""

    def begin(self, loop: Loop, changed: Callable[[], None]) -> None:
        """Nothing changes."""

    def permission(self) -> Permission:
        return FREE

    def saw(
        self, state: DaemonState, work: PlannedWork | None, rules: FleetRules, *, busy: bool, looks: bool
    ) -> None:
        """No API server to tell or to ask."""

    def ended(self, result: WorkResult) -> None:
        """No API server to tell."""

    def removal_evidence(self) -> tuple[bool, str]:
        return False, "the daemon does not run in a cluster"

    def end(self) -> None:
        """Nothing is left to tell."""
