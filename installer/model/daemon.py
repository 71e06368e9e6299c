"""The state of the daemon, and the ports to its loop and to a cluster. No effects, no I/O."""

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
EXCUSED_FILE = "/run/cri-resmgr-installer/excused"  # a restart would not help (DaemonState.is_excused)


class Phase(StrEnum):
    STARTING = "starting"
    WAITING = "waiting"  # for a permit to restart kubelet
    CONVERGING = "converging"  # to inputs that have changed, or to a host without us
    REPAIRING = "repairing"  # the host differs from what it should be, or a run looks into it
    CHECKING = "checking"  # nothing differs that a run would mend, and a pass is at work
    CONVERGED = "converged"
    REMOVED = "removed"
    UNWELL = "unwell"  # converged, but the relay or a unit is not healthy
    FAILED = "failed"
    REFUSED = "refused"  # the host cannot or should not be served (exit 4)
    HELD = "held"  # kubelet is held on its base endpoint
    LIMITED = "limited"  # kubelet would have to be restarted more often than allowed
    PAUSED = "paused"
    YIELDED = "yielded"  # a newer daemon has taken over


_EXCUSED = (
    *(Phase.WAITING, Phase.PAUSED, Phase.HELD),
    *(Phase.LIMITED, Phase.REFUSED, Phase.YIELDED),
)


@dataclass(frozen=True, slots=True)
class Installed:
    """What is installed, as last seen; empty if no generation is good."""

    generation: str = ""
    payload_version: str = ""
    policy: str = ""  # that is in force
    policy_source: str = ""  # whose configuration asks for it


NOTHING_INSTALLED = Installed()


@dataclass(frozen=True, slots=True)
class DaemonState:
    mode: Mode
    phase: Phase
    ready: bool
    reason: str = ""  # for people: why the node is not ready
    hold: str = ""  # why kubelet is held on its base endpoint
    last_exit: int = -1  # exit code of the last pass, or with which one would end now; -1: not known
    last_seconds: float = 0.0
    installed: Installed = Installed()
    wanted: str = ""  # the generation that is to be installed; empty if the inputs cannot be read
    serves: bool = False  # what is installed is good, and kubelet works with it, whichever generation it is
    replaced: bool = False  # another daemon acts on the host, and reports on the Node
    successor: str = ""  # what is to follow a removal: `nri` or nothing
    restarts: int = 0  # of kubelet by us, within the last hour
    # Since the process began:
    all_restarts: int = 0
    passes: int = 0
    changes: int = 0  # passes that changed something and converged
    repairs: int = 0  # passes after the first that changed something
    rollbacks: int = 0
    rescues: int = 0
    failures: int = 0

    @property
    def summary(self) -> str:
        """The phase, and why."""
        return self.phase.value + (f": {self.reason}" if self.reason else "")

    @property
    def is_excused(self) -> bool:
        """Whether the proxy's absence is no reason to restart our container: another one would wait or be
        refused in the same way."""
        return self.phase in _EXCUSED or (self.phase is Phase.FAILED and not self.installed.generation)


@dataclass(frozen=True, slots=True)
class Job:
    """A process to be started beside the main loop, and who hears of it."""

    argv: Sequence[str]
    on_line: Callable[[str], None]  # gets each line of its output
    on_end: Callable[[int], None]  # gets its exit code (128 + n after signal n), when all lines are read
    deadline: float  # seconds until SIGTERM
    grace: float  # seconds from then on until SIGKILL


class RunningChild(Protocol):
    """A process beside the main loop."""

    @property
    def is_gone(self) -> bool:
        """Whether the process no longer exists. One that counts as ended may still hang in a system call."""
        ...

    def kill(self) -> None:
        """SIGKILL, at once."""
        ...


class Loop(Protocol):
    """The part of the main loop that has timers and starts processes."""

    def after(self, seconds: float, call: Callable[[], None]) -> int:
        """Call once, in `seconds`. Return a timer for `cancel`."""
        ...

    def cancel(self, timer: int) -> None: ...

    def start(self, job: Job) -> RunningChild:
        """Raises OSError."""
        ...


class Cluster:
    """The port to a cluster, and a daemon without one: never paused, never evidence for a removal.

    Called from the daemon's loop. Every method returns at once with what is known, except `begin`,
    `removal_evidence` and `end`, which may take a few seconds. None raises."""

    def begin(self, loop: Loop, changed: Callable[[], None]) -> None:
        """Called once, before anything else. On return the permission knows of a pause, if the API server
        answers within 3 s. `changed` is called whenever the permission has changed."""

    def permission(self) -> Permission:
        """Return what may begin, by what is known now."""
        return FREE

    def update(
        self, state: DaemonState, work: PlannedWork | None, rules: FleetRules, *, busy: bool, read_node: bool
    ) -> None:
        """Called after each decision. `work` waits for a permit. What was permitted and is not wanted any
        more is given back, once the node is Ready after work that has begun. `busy`: a pass runs, or may run.
        `read_node`: a pass waits for a fresh permission."""

    def report_result(self, result: WorkResult) -> None:
        """Called when permitted work has ended, or work of a generation that others may have to know of."""

    def removal_evidence(self) -> tuple[bool, str]:
        """Return whether it is certain that this node is to be decommissioned, and why or why not."""
        return False, "the daemon does not run in a cluster"

    def end(self, *, leaves: bool = False, replaced: bool = False) -> None:
        """Report what has not been reported yet, and do nothing more. `leaves`: the node was removed because
        its pod ends, so it awaits no NRI plugin. `replaced`: a newer daemon works with its permit."""
