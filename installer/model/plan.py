"""What should be, what differs, and the ordered steps that remove each difference."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum

from installer.errors import UnservableHostError
from installer.model.controls import Originals
from installer.model.host import DesiredFile, FileState, HostSnapshot, Part
from installer.model.jsontext import sha256_hex
from installer.model.names import Mode
from installer.model.paths import KUBELET_ENVIRONMENT, RELAY_ENDPOINT, RELAY_NAME, same_endpoint
from installer.model.proxy import PolicyInForce, PolicySource


class Severity(StrEnum):
    REFUSE = "refuse"
    WARN = "warn"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that preflight reports."""

    severity: Severity
    code: str  # stable, for machines (`kubelet-masked`)
    message: str
    hint: str = ""


def refusal(code: str, message: str, hint: str = "") -> Finding:
    """A reason not to change this host. Nothing in it may change while the reason stays, as free space does:
    the daemon takes another text for another reason."""
    return Finding(Severity.REFUSE, code, message, hint)


def warning(code: str, message: str, hint: str = "") -> Finding:
    """What an operator should know, but does not stop a run."""
    return Finding(Severity.WARN, code, message, hint)


class UnitAction(IntEnum):
    """What a unit needs, mildest first. A harsher action includes the milder ones."""

    NOTHING = 0
    RELOAD = 1  # SIGHUP to the proxy
    MOVE = 2  # kubelet, to the relay
    RESTART = 3  # includes a first start
    STOP = 4  # removal of the proxy


class Verb(StrEnum):
    CREATE = "create"
    CHANGE = "change"
    DELETE = "delete"
    RESTORE = "restore"  # bring back the original that was there before us


@dataclass(frozen=True, slots=True)
class FileChange:
    """A file that differs."""

    path: str
    part: Part
    verb: Verb
    before: FileState
    after: DesiredFile | FileState | None  # None: it is deleted; a FileState: an original is restored
    why: str


@dataclass(frozen=True, slots=True)
class UnitChange:
    """What a unit needs, and every reason for it."""

    name: str
    part: Part
    action: UnitAction
    why: tuple[str, ...]
    daemon_reload: bool = False  # systemd has to re-read its units first
    disable: bool = False  # the links that start it by itself have to go
    kept_links: tuple[str, ...] = ()  # except these
    # The proxy: a start is in progress and has to end before the action. Kubelet: it has to become healthy.
    awaited: bool = False


@dataclass(frozen=True, slots=True)
class Changes:
    """Everything that differs. Empty means converged."""

    files: tuple[FileChange, ...] = ()
    units: tuple[UnitChange, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.files or self.units)

    @property
    def disturb(self) -> bool:
        """Whether writing files is not enough: a unit is restarted, signalled or waited for."""
        return any(change.action > UnitAction.NOTHING or change.awaited for change in self.units)

    def within(self, parts: Collection[Part]) -> Changes:
        """Only the changes of some parts."""
        files = tuple(change for change in self.files if change.part in parts)
        return Changes(files, tuple(change for change in self.units if change.part in parts))

    def with_restart(self, name: str, part: Part, why: str) -> Changes:
        """The same changes, and a restart of this unit."""
        unit = self.unit(part) or UnitChange(name, part, UnitAction.NOTHING, ())
        unit = replace(unit, action=max(unit.action, UnitAction.RESTART), why=(*unit.why, why))
        return replace(self, units=(unit, *(change for change in self.units if change.part is not part)))

    def with_wait(self, name: str, part: Part, why: str) -> Changes:
        """The same changes, which are not done before the unit is well."""
        unit = self.unit(part) or UnitChange(name, part, UnitAction.NOTHING, ())
        unit = replace(unit, awaited=True, why=(*unit.why, why))
        return replace(self, units=(*(change for change in self.units if change.part is not part), unit))

    def describe(self) -> tuple[str, ...]:
        """What differs and why, one line each."""
        files = (f"{change.path}: {change.why}" for change in self.files)
        return (*files, *(f"{change.name}: {', '.join(change.why)}" for change in self.units))

    def unit(self, part: Part) -> UnitChange | None:
        return next((change for change in self.units if change.part is part), None)

    def restarts(self, part: Part) -> bool:
        unit = self.unit(part)
        return unit is not None and unit.action is UnitAction.RESTART


_LENGTH = 16  # characters


class Strategy(StrEnum):
    """How our endpoint gets onto kubelet's command line."""

    ENVIRONMENT = "environment"
    EXEC_START = "exec-start"


@dataclass(frozen=True, slots=True)
class DesiredUnit:
    """A unit that should run from `generation`."""

    name: str
    unit_file: str
    unit_digest: str  # of our text, which systemd should have loaded
    generation: str
    # Of the file that the running unit re-reads on SIGHUP (the proxy's force.cfg), or empty.
    reload_digest: str = ""


@dataclass(frozen=True, slots=True)
class DesiredKubelet:
    """Kubelet as it should be."""

    unit: DesiredUnit
    strategy: Strategy
    why: str  # the reason for the strategy, for people
    variable: str  # ends kubelet's command line and carries our endpoint
    environment_files: tuple[str, ...]  # ours, in order; they must be the last to define the variable
    # A script or shell passes the variable on, so the unit's command line does not end with it.
    passed_on: bool = False


@dataclass(frozen=True, slots=True)
class Desired:
    """What should be there. Without files and units: a removal."""

    files: tuple[DesiredFile, ...] = ()
    proxy: DesiredUnit | None = None
    kubelet: DesiredKubelet | None = None

    @property
    def generation(self) -> str:
        """A digest of everything that is put in place, including what restarts nothing (force.cfg, the
        guard), since anything may be what fails. It is what is blamed, remembered or good. Empty without
        files."""
        lines = "".join(f"{file.path} {file.mode:o} {file.digest}\n" for file in self.files)
        return sha256_hex(lines.encode())[:_LENGTH] if lines else ""

    @property
    def names_relay(self) -> bool:
        """Whether kubelet gets the relay itself as its endpoint, and no link: by an earlier version of
        ours."""
        contents = (file.content for file in self.files if file.path == KUBELET_ENVIRONMENT)
        return any(isinstance(content, bytes) and RELAY_NAME.encode() in content for content in contents)


class StepKind(StrEnum):
    WRITE = "write"
    DELETE = "delete"
    RESTORE = "restore"
    MARK_PENDING = "mark-pending"  # the generation carrier says `pending-<nonce>`
    SET_HOLD = "set-hold"
    CLEAR_HOLD = "clear-hold"
    DISABLE = "disable"
    DAEMON_RELOAD = "daemon-reload"
    SET_ASIDE_CACHE = "set-aside-cache"
    FORGET_AGENT = "forget-agent"  # delete the agent's configuration from the proxy's cache
    ADOPT = "adopt"  # make running containers known to the proxy
    CHECK_WEIGHTS = "check-weights"  # the proxy knows all of them, and none has lost CPU weight
    CHECK_PODS = "check-pods"  # the proxy knows all of them, else it starts again
    RESET_PINNING = "reset-pinning"  # give running containers their CPUs and weight back
    RETURN_CONTROLS = "return-controls"  # restore the other kernel settings that the proxy changed
    AWAIT_START = "await-start"  # of a proxy that is starting; it is restarted if the start fails
    RESTART = "restart"
    MOVE = "move"  # kubelet, by its link
    SIGNAL = "signal"
    RESTART_IF_REFUSED = "restart-if-refused"  # the proxy, if it did not take up the new force.cfg
    STOP = "stop"
    RETURN = "return"  # kubelet, to the relay, if it has left
    LEAVE_IF_SLOW = "leave-if-slow"  # kubelet leaves the relay while the proxy starts slowly
    AWAIT_RELAY = "await-relay"
    CHECK_EFFECTIVE = "check-effective"
    AWAIT_KUBELET = "await-kubelet"
    DELETE_STATE = "delete-state"


_IN_WORDS = {
    StepKind.MARK_PENDING: "note in {} that a restart is due",
    StepKind.SET_HOLD: "hold kubelet on its base endpoint",
    StepKind.CLEAR_HOLD: "end the hold on kubelet",
    StepKind.DAEMON_RELOAD: "daemon-reload",
    StepKind.SET_ASIDE_CACHE: "move the torn {} aside",
    StepKind.FORGET_AGENT: "delete the configuration of the agent, which is switched off, from {}",
    StepKind.ADOPT: "adopt running containers that the proxy does not know, if there are any",
    StepKind.CHECK_WEIGHTS: "check that the proxy knows all running containers, and none has lost CPU weight",
    StepKind.CHECK_PODS: "check that the proxy knows all pods, and restart it if not",
    StepKind.RESET_PINNING: "restore CPUs and CPU weight of running containers",
    StepKind.RETURN_CONTROLS: "restore what cri-resmgr has set in the kernel",
    StepKind.AWAIT_START: "wait for {}, which is starting",
    StepKind.SIGNAL: "signal {} to read force.cfg again",
    StepKind.RESTART_IF_REFUSED: "restart {} if it refuses the new force.cfg",
    StepKind.MOVE: "move kubelet to {}",
    StepKind.RETURN: "move kubelet back to the relay if it has left",
    StepKind.LEAVE_IF_SLOW: "move kubelet to its base endpoint if the proxy starts slowly",
    StepKind.AWAIT_RELAY: "wait until the relay answers",
    StepKind.CHECK_EFFECTIVE: "check that our lines in {} take effect",
    StepKind.AWAIT_KUBELET: "wait until {} is healthy and stays healthy",
    StepKind.DELETE_STATE: "delete cri-resmgr's own state: {}",
}


@dataclass(frozen=True, slots=True)
class Step:
    """One effect."""

    kind: StepKind
    target: str  # a host path or a unit
    part: Part
    file: DesiredFile | FileState | None = None  # what to write there

    @property
    def describe(self) -> str:
        """The step in one line for people."""
        words = _IN_WORDS.get(self.kind)
        return words.format(self.target) if words else f"{self.kind.value.replace('-', ' ')} {self.target}"


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything `install` or `remove` would do, in order. No steps: converged."""

    mode: Mode
    desired: Desired
    changes: Changes
    kubelet_unit: str
    steps: tuple[Step, ...] = ()
    findings: tuple[Finding, ...] = ()
    # Verified when the plan is done. None: the plan owns nothing, and its steps report their own failures.
    parts: frozenset[Part] = frozenset(Part)
    # What changes for each running container that gets CPUs or weight back, or is adopted.
    resets: tuple[str, ...] = ()
    # Do not trust what the proxy's cache says about a policy that touches no container.
    resets_all: bool = False
    # The runtime's endpoint if unknown containers are adopted before the proxy starts, else empty.
    adopts: str = ""
    # A start of the proxy would take something from unknown containers, which may not be adopted.
    harms: bool = False
    # Kubelet may make something beside the proxy until its restart: not if it is on the relay before, too.
    moves_kubelet: bool = True
    # Originals of the kernel settings that the proxy changed and that are to be restored.
    controls: Originals = field(default_factory=dict)

    @property
    def strategy(self) -> str:
        """Of kubelet; empty if none is chosen."""
        return self.desired.kubelet.strategy.value if self.desired.kubelet else ""

    @property
    def strategy_why(self) -> str:
        return self.desired.kubelet.why if self.desired.kubelet else ""

    @property
    def restarts_kubelet(self) -> bool:
        return self.kubelet_restarts > 0

    @property
    def takes_kubelet(self) -> bool:
        """Whether it restarts kubelet, or moves it to the relay."""
        moves = (step for step in self.steps if step.kind is StepKind.MOVE)
        return self.restarts_kubelet or any(same_endpoint(step.target, RELAY_ENDPOINT) for step in moves)

    @property
    def kubelet_restarts(self) -> int:
        restarts = (step for step in self.steps if step.kind is StepKind.RESTART)
        return sum(step.target == self.kubelet_unit for step in restarts)

    @property
    def awaits_kubelet(self) -> bool:
        """Whether a run that was cut off has left kubelet ill."""
        unit = self.changes.unit(Part.KUBELET)
        return unit is not None and unit.awaited

    @property
    def exit_code(self) -> int:
        """Of the verb `plan`."""
        if self.refusals:
            return UnservableHostError.exit_code
        return 3 if self.steps else 0

    @property
    def rescues(self) -> bool:
        """Whether it only moves kubelet to its base endpoint. Then nothing that hangs is waited for."""
        return not self.parts

    @property
    def leaves_if_slow(self) -> str:
        """Kubelet's base endpoint if it moves there should the proxy start slowly, else empty."""
        return next((step.target for step in self.steps if step.kind is StepKind.LEAVE_IF_SLOW), "")

    @property
    def refusals(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity is Severity.REFUSE)

    @property
    def warnings(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity is Severity.WARN)


AS_GOOD = "no --payload was given, so this is about the last good generation"


def describe_generation(generation: str, version: str) -> str:
    """Return the line that names a generation and its cri-resmgr."""
    return f"cri-resmgr {version}, generation {generation}" if version else f"generation {generation}"


@dataclass(frozen=True, slots=True)
class Assessment:
    """What a run would do, and what it rests on."""

    plan: Plan
    snapshot: HostSnapshot
    base_endpoint: str = ""  # where to ask the runtime; empty if unknown
    payload_version: str = ""  # as the payload names itself
    installed: str = ""  # the good generation; empty if there is none, or it is another installer's work
    installed_version: str = ""  # of its cri-resmgr, as its payload named itself
    asked: Mapping[str, str] = field(default_factory=dict)  # the options of the last run by hand
    remembered_failure: str = ""  # why this generation is not retried on this host; empty if it may be tried
    policy: PolicyInForce | None = None  # the one in force; None while no proxy runs
    # Payload or configs were not given, so the host was compared with what was installed.
    as_installed: bool = False
    unchecked: bool = False  # someone else started the proxy, and no run has checked the containers since
    # Files of ours that are there, although no installation has ended: it was cut off, or its record is lost.
    unfinished: tuple[str, ...] = ()

    @property
    def describe_installed(self) -> str:
        """Return the good generation and its cri-resmgr, for people; empty if there is none."""
        return describe_generation(self.installed, self.installed_version) if self.installed else ""

    @property
    def begins_policy(self) -> bool:
        """Whether the plan activates another policy because the agent asks for it."""
        asks = self.policy is not None and self.policy.source is PolicySource.AGENT and self.policy.pending
        return bool(asks) and self.plan.changes.restarts(Part.PROXY)
