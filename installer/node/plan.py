"""Order what has to be done. Pure: changes in, steps out.

Forward, the proxy comes first, and kubelet moves onto it only when it answers. Back, kubelet leaves first. A
takeover first repairs kubelet's own files, so that a reboot at any point finds a kubelet that needs no proxy.
Within each part the writes follow one law, so that a crash at any instant forgets no restart: first the
generation carrier says `pending`, then the other files, then the reload, then the carrier with its real
generation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from installer.model import paths
from installer.model.hold import is_operators
from installer.model.host import DesiredFile, FileState, HostSnapshot, Part
from installer.model.names import Mode
from installer.model.plan import (
    Changes,
    Desired,
    FileChange,
    Plan,
    Step,
    StepKind,
    UnitAction,
    UnitChange,
    Verb,
)
from installer.node.header import with_generation
from installer.node.relay_steps import (
    RETURN,
    hold_step,
    leave_steps,
    move_step,
    restart_kubelet_steps,
    restart_proxy_steps,
)


@dataclass(frozen=True, slots=True)
class Options:
    """What a plan needs besides the changes."""

    nonce: str = ""  # makes this run's pending generation unique
    hold: bool = False  # kubelet is held on its base endpoint, which ends with a move to the relay
    ends_hold: bool = False  # also if kubelet is already on the relay
    torn_cache: bool = False  # no plan, forward or back, starts the proxy on a cache that it cannot read
    leftovers: tuple[str, ...] = ()  # of cri-resmgr itself; deleted last, even if nothing else is removed
    returns: bool = False  # restore what the proxy has set in the kernel
    runtime: str = ""  # its endpoint; empty: unknown
    base: str = ""  # kubelet's, if it is to be moved there before it restarts without our part
    # The runtime's endpoint if it applies, else empty:
    resets: str = ""  # running containers get their CPUs and weight back while the proxy is stopped
    adopts: str = ""  # unknown containers are adopted before the proxy starts; the step stops it if needed
    leaves_to: str = ""  # see leaves_to
    linked: bool = False  # kubelet is on our link: the guard may let it leave
    forgets_agent: bool = False  # see Facts
    compares: bool = False  # the pods, though nothing moves: see known_pods


def order_steps(desired: Desired, changes: Changes, options: Options) -> tuple[Step, ...]:
    """The steps that remove `changes`."""
    builder = _Builder(desired, changes, options)
    if desired.proxy is None:
        leftovers = (Step(StepKind.DELETE_STATE, path, Part.PROXY) for path in options.leftovers)
        return (*builder.kubelet_back(), *builder.proxy_back(), *leftovers)
    steps = [*builder.base_repaired(), *builder.proxy_forward()]
    answered = any(step.kind is StepKind.AWAIT_RELAY for step in steps)
    steps += builder.controls()
    steps += builder.kubelet_forward(answered=answered)
    steps += builder.last_check(steps)
    steps += builder.compare_pods()
    ended = any(step.kind is StepKind.CLEAR_HOLD for step in steps)
    if options.hold and options.ends_hold and not ended:
        steps.append(Step(StepKind.CLEAR_HOLD, paths.HOLD, Part.KUBELET))
    return tuple(steps)


def build_hold_plan(snapshot: HostSnapshot, reason: str, *, leaves: bool, restarts: bool = False) -> Plan:
    """Hold kubelet on its base endpoint from its next start on; with `leaves`, from now on, and with
    `restarts` by a restart. A person's hold keeps its reason, since only that person may end it."""
    unit = snapshot.kubelet.unit.name
    steps: tuple[Step, ...] = ()
    if not is_operators(snapshot.hold):
        steps = (hold_step(reason),)
    if restarts:
        steps += restart_kubelet_steps(unit)
    elif leaves:
        steps += leave_steps(snapshot.kubelet)
    return Plan(Mode.INSTALL, Desired(), Changes(), unit, steps, parts=frozenset())


def leaves_to(snapshot: HostSnapshot, changes: Changes) -> str:
    """Where kubelet goes if a start of the proxy would keep it hanging on the relay for too long: to its base
    endpoint; empty: it stays."""
    kubelet = snapshot.kubelet
    starts = changes.unit(Part.PROXY) is not None and kubelet.moves and kubelet.on_relay
    return f"unix://{kubelet.base}" if starts else ""


def base_of(snapshot: HostSnapshot) -> str:
    """Kubelet's base endpoint if its link can take it there, and does not do so already. Empty also if the
    relay answers: then kubelet stays there until its restart."""
    kubelet = snapshot.kubelet
    moves = kubelet.moves and not (kubelet.is_at(kubelet.base) or snapshot.proxy.relay_answers)
    return f"unix://{kubelet.base}" if moves else ""


class _Builder:
    def __init__(self, desired: Desired, changes: Changes, options: Options) -> None:
        self._desired = desired
        self._changes = changes
        self._options = options

    def _files(self, part: Part) -> tuple[FileChange, ...]:
        return tuple(change for change in self._changes.files if change.part is part)

    def base_repaired(self) -> Iterable[Step]:
        """In a takeover: kubelet's own files without the relay. From then on a start of kubelet, also at
        boot, needs no proxy. The reload before the proxy's restart applies it to the loaded unit as well: a
        `Requires=` in it would restart kubelet with the proxy."""
        yield from map(_file_step, filter(_repairs_base, self._files(Part.KUBELET)))

    def proxy_forward(self) -> Iterable[Step]:
        unit = self._changes.unit(Part.PROXY)
        if unit is not None and unit.disable:
            yield Step(StepKind.DISABLE, unit.name, Part.PROXY)
        restarts = self._changes.restarts(Part.PROXY)
        yield from self._forward(Part.PROXY, unit, tuple(self._while_stopped()) if restarts else ())
        if unit is None:
            return
        if unit.awaited:
            yield Step(StepKind.AWAIT_START, unit.name, Part.PROXY)
        if unit.action is UnitAction.RELOAD:
            yield Step(StepKind.SIGNAL, unit.name, Part.PROXY)
            yield Step(StepKind.RESTART_IF_REFUSED, unit.name, Part.PROXY)
        if unit.action or unit.awaited:
            start = restart_proxy_steps(self._options.leaves_to)
            yield from start if restarts else start[1:]
            if self._options.adopts:
                yield Step(StepKind.CHECK_WEIGHTS, self._options.adopts, Part.PROXY)

    def _while_stopped(self) -> Iterable[Step]:
        """What is done to the cache and to containers before the proxy starts."""
        if self._options.torn_cache:
            yield Step(StepKind.SET_ASIDE_CACHE, paths.PROXY_CACHE, Part.PROXY)
        if self._options.resets or self._options.forgets_agent:
            yield Step(StepKind.STOP, paths.PROXY_UNIT, Part.PROXY)
        yield from self._give_back()
        if self._options.forgets_agent:
            yield Step(StepKind.FORGET_AGENT, paths.PROXY_CACHE, Part.PROXY)
        if self._options.adopts:
            yield Step(StepKind.ADOPT, self._options.adopts, Part.PROXY)

    def kubelet_forward(self, *, answered: bool) -> Iterable[Step]:
        """`answered`: the plan has just seen the relay answer. Otherwise it has to answer before kubelet
        moves (R4)."""
        unit = self._changes.unit(Part.KUBELET)
        yield from self._forward(Part.KUBELET, unit)
        if unit is not None and unit.action in (UnitAction.MOVE, UnitAction.RESTART):
            if not answered:
                yield Step(StepKind.AWAIT_RELAY, paths.RELAY_ENDPOINT, Part.KUBELET)
            if self._options.hold:
                yield Step(StepKind.CLEAR_HOLD, paths.HOLD, Part.KUBELET)
            moves = unit.action is UnitAction.MOVE
            yield from (move_step(paths.RELAY_ENDPOINT),) if moves else restart_kubelet_steps(unit.name)
        elif answered and self._options.linked:
            yield RETURN
        if unit is not None and unit.awaited and unit.action is not UnitAction.RESTART:
            yield Step(StepKind.AWAIT_KUBELET, unit.name, Part.KUBELET)

    def last_check(self, steps: list[Step]) -> Iterable[Step]:
        """Containers created while kubelet was still on its base endpoint are unknown to a proxy that started
        before."""
        moves = any(step.kind in (StepKind.AWAIT_KUBELET, StepKind.MOVE) for step in steps)
        if moves and self._options.adopts:
            yield Step(StepKind.CHECK_WEIGHTS, self._options.adopts, Part.PROXY)

    def compare_pods(self) -> Iterable[Step]:
        """Last, when kubelet is on the relay. A pod is also unknown if kubelet was about to make it when the
        proxy was restarted, or made it when it had left one that is starting."""
        kubelet, runtime = self._desired.kubelet, self._options.runtime
        served, unit = kubelet is not None and kubelet.unit.generation != "", self._changes.unit(Part.KUBELET)
        proxy = self._changes.unit(Part.PROXY)
        starts = self._changes.restarts(Part.PROXY) or bool(proxy and proxy.awaited)
        starts = starts or bool(unit and unit.action)
        if served and runtime and (starts or self._options.compares):
            yield Step(StepKind.CHECK_PODS, runtime, Part.PROXY)

    def _forward(
        self, part: Part, unit: UnitChange | None, before_start: tuple[Step, ...] = ()
    ) -> Iterable[Step]:
        """The write law, in the order of its lines (docs/architecture.md). If the run ends during
        `before_start`, a start by anyone else has another generation, and the next run redoes it."""
        changed = [change for change in self._files(part) if not _repairs_base(change)]
        others = [change for change in changed if not _carries(change)]
        owed = self._changes.restarts(part) and bool(changed)  # else nothing has to be told from before
        carriers = [file for file in self._desired.files if file.part is part and file.generation_carrier]
        # 1. The carriers say that a restart is due.
        for carrier in carriers if owed and others else ():
            yield Step(StepKind.MARK_PENDING, carrier.path, part, self._as_pending(carrier))
        # 2. All other files.
        yield from map(_file_step, others if owed else (*others, *filter(_carries, changed)))
        # 3. The daemon-reload.
        if unit is not None and unit.daemon_reload:
            yield Step(StepKind.DAEMON_RELOAD, "", part)
            if part is Part.KUBELET:
                yield Step(StepKind.CHECK_EFFECTIVE, unit.name, part)
        yield from before_start
        # 4. The carriers' real digest: the last write before the restart.
        for carrier in carriers if owed else ():
            yield Step(StepKind.WRITE, carrier.path, part, carrier)

    def _as_pending(self, carrier: DesiredFile) -> DesiredFile:
        assert isinstance(carrier.content, bytes)
        return carrier.with_content(with_generation(carrier.content, f"{paths.PENDING}{self._options.nonce}"))

    def kubelet_back(self) -> Iterable[Step]:
        unit, proxy = self._changes.unit(Part.KUBELET), self._changes.unit(Part.PROXY)
        files = self._files(Part.KUBELET)
        disable = proxy is not None and proxy.disable
        if disable:  # before the reload: else kubelet's restart would start the proxy
            yield Step(StepKind.DISABLE, paths.PROXY_UNIT, Part.PROXY)
        if self._options.base:
            yield move_step(self._options.base)
        # Delete the drop-in before what it names, so that no start in between finds half of it. While kubelet
        # may be on the relay, the guard has to find its settings: else it stays on a proxy that ends.
        restarts = self._changes.restarts(Part.KUBELET)
        late = [each for each in files if restarts and each.path == paths.KUBELET_ENVIRONMENT]
        early = [each for each in files if each not in late]
        for change in sorted(early, key=lambda c: not c.path.endswith(paths.DROP_IN_NAME)):
            yield _file_step(change)
        if unit is not None and (unit.daemon_reload or disable):
            yield Step(StepKind.DAEMON_RELOAD, "", Part.KUBELET)
        if unit is not None and restarts:
            yield from restart_kubelet_steps(unit.name)
        yield from map(_file_step, late)

    def proxy_back(self) -> Iterable[Step]:
        unit = self._changes.unit(Part.PROXY)
        files = self._files(Part.PROXY)
        # Kubelet's restart may have started the proxy, by a link in /run or a drop-in of somebody else.
        started = self._changes.restarts(Part.KUBELET)
        if unit is not None and (unit.action is UnitAction.STOP or started):
            yield Step(StepKind.STOP, unit.name, Part.PROXY)
        if unit is not None or files:
            yield from self._give_back()
            yield from self.controls()
        for change in files:
            yield _file_step(change)
        if unit is not None:
            yield Step(StepKind.DAEMON_RELOAD, "", Part.PROXY)

    def controls(self) -> Iterable[Step]:
        if self._options.returns:
            yield Step(StepKind.RETURN_CONTROLS, self._options.runtime, Part.PROXY)

    def _give_back(self) -> Iterable[Step]:
        """While the proxy is stopped: otherwise it would overwrite all of it."""
        if self._options.resets:
            yield Step(StepKind.RESET_PINNING, self._options.resets, Part.PROXY)


def _repairs_base(change: FileChange) -> bool:
    """Whether a takeover restores the runtime's endpoint in kubelet's own file."""
    ours = change.path == paths.KUBELET_ENVIRONMENT or change.path.endswith(f"/{paths.DROP_IN_NAME}")
    return change.part is Part.KUBELET and change.verb is Verb.RESTORE and not ours


def _carries(change: FileChange) -> bool:
    return isinstance(change.after, DesiredFile) and change.after.generation_carrier


def _file_step(change: FileChange) -> Step:
    after = change.after
    if isinstance(after, DesiredFile):
        return Step(StepKind.WRITE, change.path, change.part, after)
    if isinstance(after, FileState) and change.verb is Verb.RESTORE:
        return Step(StepKind.RESTORE, change.path, change.part, after)
    return Step(StepKind.DELETE, change.path, change.part)
