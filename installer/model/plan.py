"""What should be, what differs, and the ordered steps that remove each difference."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum

from installer.errors import UnservableHostError
from installer.model.controls import Originals
from installer.model.host import DesiredFile, FileState, HostSnapshot, Part
from installer.model.jsontext import sha256_hex
from installer.model.names import Mode
from installer.model.proxy import PolicyInForce


class Severity(StrEnum):
    REFUSE = "refuse"
    WARN = "warn"


@dataclass(frozen=True, slots=True)
class Finding:
    """`code` is stable and for machines (`kubelet-masked`); the rest is for people."""

    severity: Severity
    code: str
    message: str
    hint: str = ""


def refusal(code: str, message: str, hint: str = "") -> Finding:
    """A reason not to serve this host."""
    return Finding(Severity.REFUSE, code, message, hint)


def warning(code: str, message: str, hint: str = "") -> Finding:
    """What an operator should know, and what does not stop a run."""
    return Finding(Severity.WARN, code, message, hint)


class UnitAction(IntEnum):
    """What a unit needs, mildest first: a harsher one includes the milder."""

    NOTHING = 0
    RELOAD = 1  # SIGHUP to the proxy
    RESTART = 2  # includes a first start
    STOP = 3  # removal of the proxy


class Verb(StrEnum):
    CREATE = "create"
    CHANGE = "change"
    DELETE = "delete"
    RESTORE = "restore"  # the original that was there before us comes back


@dataclass(frozen=True, slots=True)
class FileChange:
    """One file that differs. `after` is None for a deletion, a FileState for an original."""

    path: str
    part: Part
    verb: Verb
    before: FileState
    after: DesiredFile | FileState | None
    why: str


@dataclass(frozen=True, slots=True)
class UnitChange:
    """What a unit needs and every reason for it. `daemon_reload`: systemd has to re-read first. `awaited`:
    its start is under way and has to come to its end before the action."""

    name: str
    part: Part
    action: UnitAction
    why: tuple[str, ...]
    daemon_reload: bool = False
    enable: bool = False
    disable: bool = False
    awaited: bool = False


@dataclass(frozen=True, slots=True)
class Changes:
    """Everything that differs; empty means converged."""

    files: tuple[FileChange, ...] = ()
    units: tuple[UnitChange, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.files or self.units)

    @property
    def disturb(self) -> bool:
        """Whether a unit is to be restarted, signalled or waited for: not all is done by writing."""
        return any(change.action > UnitAction.NOTHING or change.awaited for change in self.units)

    def within(self, parts: Collection[Part]) -> Changes:
        """Those of some parts only."""
        files = tuple(change for change in self.files if change.part in parts)
        return Changes(files, tuple(change for change in self.units if change.part in parts))

    def with_restart(self, name: str, part: Part, why: str) -> Changes:
        """The same, and this unit restarts."""
        unit = self.unit(part) or UnitChange(name, part, UnitAction.NOTHING, ())
        unit = replace(unit, action=max(unit.action, UnitAction.RESTART), why=(*unit.why, why))
        return replace(self, units=(unit, *(change for change in self.units if change.part is not part)))

    def describe(self) -> tuple[str, ...]:
        """What differs and why, a line each."""
        files = (f"{change.path}: {change.why}" for change in self.files)
        return (*files, *(f"{change.name}: {', '.join(change.why)}" for change in self.units))

    def unit(self, part: Part) -> UnitChange | None:
        return next((change for change in self.units if change.part is part), None)

    def restarts(self, part: Part) -> bool:
        unit = self.unit(part)
        return unit is not None and unit.action is UnitAction.RESTART


_LENGTH = 16  # characters


class Strategy(StrEnum):
    """How kubelet's command line gets our endpoint."""

    ENVIRONMENT = "environment"
    EXEC_START = "exec-start"


@dataclass(frozen=True, slots=True)
class DesiredUnit:
    """A unit that should run from `generation`, with our text of `unit_digest` loaded.

    `reload_digest` is the digest of a file that the running unit re-reads on
    SIGHUP (the proxy's force.cfg), or empty.
    """

    name: str
    unit_file: str
    unit_digest: str
    generation: str
    reload_digest: str = ""


@dataclass(frozen=True, slots=True)
class DesiredKubelet:
    """Kubelet as it should be: `variable` ends its command line and brings our endpoint.

    `why` is the reason for the strategy, for people. `environment_files` are
    ours, in order, and must be the last to define the variable. `passed_on`: a script
    or a shell hands the variable on, so it does not end the command line of the unit.
    """

    unit: DesiredUnit
    strategy: Strategy
    why: str
    variable: str
    environment_files: tuple[str, ...]
    passed_on: bool = False


@dataclass(frozen=True, slots=True)
class Desired:
    """What should be there. Both units None and no files: a removal."""

    files: tuple[DesiredFile, ...] = ()
    proxy: DesiredUnit | None = None
    kubelet: DesiredKubelet | None = None

    @property
    def generation(self) -> str:
        """The whole generation, which is blamed, remembered or good: a digest of everything that is put in
        place, also of what restarts nothing (force.cfg, the guard): each can be what fails. Empty for no
        files."""
        lines = "".join(f"{file.path} {file.mode:o} {file.digest}\n" for file in self.files)
        return sha256_hex(lines.encode())[:_LENGTH] if lines else ""


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
    SET_ASIDE_CACHE = "set-aside-cache"
    ADOPT = "adopt"  # running containers that the proxy does not know are made known to it
    CHECK_WEIGHTS = "check-weights"  # the proxy knows them all, and none has lost CPU weight
    RESET_PINNING = "reset-pinning"  # running containers get their CPUs and weight back
    RETURN_CONTROLS = "return-controls"  # what the proxy has set in the kernel beside that
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
    StepKind.SET_ASIDE_CACHE: "set the torn {} aside",
    StepKind.ADOPT: "adopt running containers, if there are any that the proxy does not know",
    StepKind.CHECK_WEIGHTS: "check that the proxy knows all running containers, and none has lost CPU weight",
    StepKind.RESET_PINNING: "restore CPUs and CPU weight of running containers",
    StepKind.RETURN_CONTROLS: "bring back what cri-resmgr has set in the kernel",
    StepKind.AWAIT_START: "wait for the start of {}, which is under way",
    StepKind.SIGNAL: "signal {} to read force.cfg again",
    StepKind.RESTART_IF_REFUSED: "restart {} if it refuses the new force.cfg",
    StepKind.LEAVE_IF_SLOW: "move kubelet to its base endpoint if the proxy starts slowly",
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

    `parts` are verified when
    the plan is done; none of them: the plan owns nothing, and its steps say themselves whether they failed.
    `resets` says of each running container that gets CPUs or weight back, or is adopted, what changes.
    `resets_all`: what the proxy's cache says of a policy that touches no container is not believed.
    `controls` are the originals of what the proxy has set in the kernel and what is to come back.
    """

    mode: Mode
    desired: Desired
    changes: Changes
    kubelet_unit: str
    steps: tuple[Step, ...] = ()
    findings: tuple[Finding, ...] = ()
    parts: frozenset[Part] = frozenset(Part)
    resets: tuple[str, ...] = ()
    resets_all: bool = False
    controls: Originals = field(default_factory=dict)

    @property
    def strategy(self) -> str:
        """Kubelet's; empty if none is chosen."""
        return self.desired.kubelet.strategy.value if self.desired.kubelet else ""

    @property
    def strategy_why(self) -> str:
        return self.desired.kubelet.why if self.desired.kubelet else ""

    @property
    def restarts_kubelet(self) -> bool:
        return self.kubelet_restarts > 0

    @property
    def kubelet_restarts(self) -> int:
        restarts = (step for step in self.steps if step.kind is StepKind.RESTART)
        return sum(step.target == self.kubelet_unit for step in restarts)

    @property
    def exit_code(self) -> int:
        """Of the verb `plan`."""
        if self.refusals:
            return UnservableHostError.exit_code
        return 3 if self.steps else 0

    @property
    def rescues(self) -> bool:
        """Whether it only takes kubelet to its base endpoint: nothing that hangs is waited for."""
        return not self.parts

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


@dataclass(frozen=True, slots=True)
class Assessment:
    """`base_endpoint` is where the runtime is asked, empty if it is not known. `payload_version` is what the
    payload calls itself. `remembered_failure` is why this generation is not tried again on this host, empty
    if it may be tried. `policy` is the one in force, None while no proxy runs.
    `as_installed`: the host was compared with what was installed, as payload or configs were not given.
    `unchecked`: no run has looked at the containers since the proxy's start, which was not ours."""

    plan: Plan
    snapshot: HostSnapshot
    base_endpoint: str = ""
    payload_version: str = ""
    remembered_failure: str = ""
    policy: PolicyInForce | None = None
    as_installed: bool = False
    unchecked: bool = False

    @property
    def most_restarts(self) -> int:
        """How often the plan may have to restart kubelet. A start that turns out slow takes kubelet away and
        back; where the relay is silent already, that is no part of the plan, but what saves kubelet."""
        slow = self.plan.leaves_if_slow and self.snapshot.proxy.relay_answers
        return 2 if slow else self.plan.kubelet_restarts
