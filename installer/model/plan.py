"""The ordered steps that remove all changes, and what a person should know about them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from installer.model.change import Changes
from installer.model.finding import Finding, Severity
from installer.model.proxy_start import ExpectedStart
from installer.model.resource import DesiredFile, FileState, Part
from installer.model.state import Desired, Mode

JOB_SLACK = 30.0
"""Seconds that a job of systemd may take beyond what its own unit bounds."""

RELOAD = 180.0
"""Seconds that systemd may take to read its units again: as long as systemctl waits
(DAEMON_RELOAD_TIMEOUT_SEC of systemd), which is twice what a generator may take. To give up sooner gains
nothing: until it is done, systemd does nothing else, neither the reload nor the restarts of a rollback."""

PROXY_SETTLE = 2.0
"""Seconds that a started proxy has to stay up: one that crashes does so early."""


class StepKind(StrEnum):
    WRITE = "write"
    DELETE = "delete"
    RESTORE = "restore"
    MARK_PENDING = "mark-pending"  # the generation carrier says `pending-<nonce>`
    SET_HOLD = "set-hold"
    CLEAR_HOLD = "clear-hold"
    DISABLE = "disable"
    ENABLE = "enable"
    DAEMON_RELOAD = "daemon-reload"
    RESET_CACHE = "reset-cache"
    SET_ASIDE_CACHE = "set-aside-cache"
    ADOPT = "adopt"  # running containers that the proxy does not know are made known to it
    CHECK_WEIGHTS = "check-weights"  # the proxy knows them all, and none has lost CPU weight
    RESET_PINNING = "reset-pinning"  # running containers get their CPUs and weight back
    AWAIT_START = "await-start"  # of the proxy, which is under way; it is restarted if that comes to nothing
    RESTART = "restart"
    SIGNAL = "signal"
    RESTART_IF_REFUSED = "restart-if-refused"  # the proxy, if it has not taken what it was signalled for
    STOP = "stop"
    LEAVE_IF_SLOW = "leave-if-slow"  # kubelet leaves the relay if the proxy needs longer than it may hang
    AWAIT_RELAY = "await-relay"
    CHECK_EFFECTIVE = "check-effective"
    AWAIT_KUBELET = "await-kubelet"
    AWAIT_KUBELET_ON_BASE = "await-kubelet-on-base"  # while the proxy starts anew
    DELETE_STATE = "delete-state"


_IN_WORDS = {
    StepKind.SET_HOLD: "hold kubelet on its base endpoint",
    StepKind.CLEAR_HOLD: "end the hold on kubelet",
    StepKind.DAEMON_RELOAD: "daemon-reload",
    StepKind.RESET_CACHE: "stop the proxy and clear the agent's configuration in {}",
    StepKind.SET_ASIDE_CACHE: "set the torn {} aside",
    StepKind.ADOPT: "adopt running containers, if there are any that the proxy does not know",
    StepKind.CHECK_WEIGHTS: "check that the proxy knows all running containers, and none has lost CPU weight",
    StepKind.RESET_PINNING: "give running containers their CPUs and weight back",
    StepKind.AWAIT_START: "wait for the start of {}, which is under way",
    StepKind.SIGNAL: "signal {} to read force.cfg again",
    StepKind.RESTART_IF_REFUSED: "restart {} if it refuses the new force.cfg",
    StepKind.LEAVE_IF_SLOW: "take kubelet to its base endpoint if the proxy starts too slowly for it to wait",
    StepKind.AWAIT_RELAY: "wait until the relay answers",
    StepKind.CHECK_EFFECTIVE: "check that our lines in {} have effect",
    StepKind.AWAIT_KUBELET: "wait until {} is healthy and stays so",
    StepKind.AWAIT_KUBELET_ON_BASE: "wait until {} is healthy on its base endpoint",
    StepKind.DELETE_STATE: "delete cri-resmgr's own state: {}",
}


@dataclass(frozen=True, slots=True)
class Step:
    """One effect. `target` is a host path or a unit; `file` what to write there."""

    kind: StepKind
    target: str
    part: Part
    file: DesiredFile | FileState | None = None

    @property
    def describe(self) -> str:
        """The step as one line for people."""
        words = _IN_WORDS.get(self.kind)
        return words.format(self.target) if words else f"{self.kind.value.replace('-', ' ')} {self.target}"


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything `install` or `remove` would do, in order. No steps: converged.

    `strategy` and `strategy_why` are kubelet's; both are empty if none is chosen. `parts` are verified when
    the plan is done; none of them: the plan owns nothing, and its steps say themselves whether they failed.
    `resets` says of each running container that gets CPUs or weight back, or is adopted, what changes.
    `resets_all`: what the proxy's cache says of a policy that touches nobody is not believed.
    `start` is what a start of the proxy may take.
    """

    mode: Mode
    desired: Desired
    changes: Changes
    kubelet_unit: str
    steps: tuple[Step, ...] = ()
    strategy: str = ""
    strategy_why: str = ""
    findings: tuple[Finding, ...] = ()
    parts: frozenset[Part] = frozenset(Part)
    resets: tuple[str, ...] = ()
    resets_all: bool = False
    start: ExpectedStart = field(default_factory=ExpectedStart)

    @property
    def restarts_kubelet(self) -> bool:
        return self._kubelet_restarts > 0

    @property
    def _kubelet_restarts(self) -> int:
        restarts = (step for step in self.steps if step.kind is StepKind.RESTART)
        return sum(step.target == self.kubelet_unit for step in restarts)

    def most_restarts(self, *, relay_answers: bool) -> int:
        """How often it may have to restart kubelet. A start that turns out slow takes kubelet away and back;
        where the relay is silent already, that is no part of the plan, but what saves kubelet."""
        return 2 if self.leaves_if_slow and relay_answers else self._kubelet_restarts

    @property
    def rescues(self) -> bool:
        """Whether it only takes kubelet to its base endpoint: nothing that hangs is waited for."""
        return not self.parts

    @property
    def steps_aside(self) -> bool:
        """Whether kubelet waits on its base endpoint while the proxy starts, so that it hangs on nothing."""
        return any(step.kind is StepKind.AWAIT_KUBELET_ON_BASE for step in self.steps)

    @property
    def leaves_if_slow(self) -> str:
        """The runtime's endpoint if kubelet goes there should the proxy's start turn out slow, else empty."""
        return next((step.target for step in self.steps if step.kind is StepKind.LEAVE_IF_SLOW), "")

    @property
    def refusals(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity is Severity.REFUSE)

    @property
    def warnings(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity is Severity.WARN)
