"""Carries out a plan's steps: the only stage that changes the host.

Ownership is recorded before (see `converge`). A step without its effect raises StepFailedError and leaves
undoing to the caller; a signal ends the run between two steps. From a crash in a step, the next run recovers.
"""

from __future__ import annotations

import math
import posixpath
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from installer.errors import (
    InstallerError,
    InterruptedRunError,
    StepFailedError,
    SystemdError,
    failed_on_disk,
)
from installer.host.ports import Host
from installer.model import paths
from installer.model.event import KUBELET_RESTART, Emit, Event
from installer.model.host import (
    DesiredFile,
    FileState,
    HostPath,
    Kind,
    Part,
    RunningContainer,
    UnitState,
)
from installer.model.limits import Limits, answer_seconds
from installer.model.plan import JOB_SLACK, PROXY_SETTLE, RELOAD, Plan, Step, StepKind
from installer.node.adoption import (
    adopt,
    announce_start,
    bring_back,
    check_lost,
    find_lost,
    forget_old,
    set_aside_cache,
)
from installer.node.controls import return_controls
from installer.node.kept import object_path
from installer.node.kubelet_start import KubeletStart, await_calm, check_steady
from installer.node.off_relay import check_way_back, come_back, leave_relay, start_proxy
from installer.node.pinning import give_back
from installer.node.proxy_start import (
    TOO_LONG,
    AtWork,
    Gap,
    Patience,
    why_not_ready,
    why_not_started,
    why_not_taken,
)
from installer.node.run import Progress

_POLL = 0.05  # seconds
_SETTLE_POLL = 0.5  # seconds
_JOBS = (StepKind.RESTART, StepKind.STOP)
_ADOPTIONS = 3  # in a row, of containers that come meanwhile
_STOP_TIMEOUT = 20.0  # seconds; the unit's own TimeoutStopSec is far below


def apply_plan(plan: Plan, host: Host, limits: Limits, emit: Emit, progress: Progress) -> None:
    """Carries out every step in order.

    Raises StepFailedError naming what failed (`progress.failed_unit` is the unit whose journal tells more),
    InterruptedRunError and KubeletKeptError between two steps.
    """
    worker = _Worker(plan, host, limits, emit, progress)
    try:
        worker.run()
    except StepFailedError:
        worker.forget_adopted()
        raise


class _Worker:
    def __init__(self, plan: Plan, host: Host, limits: Limits, emit: Emit, progress: Progress) -> None:
        self._plan = plan
        self._steps = plan.steps  # that are left
        self._emit = emit
        self._host = host
        self._limits = limits
        self._progress = progress
        self._gap = Gap(host.systemd, emit)
        self._relay_deadline = 0.0
        self._start_began: float | None = None  # of the proxy, by this plan
        self._leaving = False  # from the decision that kubelet leaves the relay until it has
        self._adopted = False
        self._late = 0  # adoptions in a row of containers that came meanwhile
        self._before: dict[str, RunningContainer] = {}  # what ran before the proxy started, by ID
        self._proxy_away = 0.0  # when an adoption has stopped it
        self._proxy: UnitState | None = None  # as it was when its relay had answered
        self._signalled = (UnitState(paths.PROXY_UNIT), "")  # as it was, and where its journal ended
        self._verbs: dict[StepKind, Callable[[Step], Iterable[Step] | None]] = {
            StepKind.WRITE: self._write,
            StepKind.MARK_PENDING: self._write,
            StepKind.DELETE: lambda step: host.files.remove(step.target),
            StepKind.RESTORE: self._restore,
            StepKind.SET_HOLD: self._set_hold,
            StepKind.CLEAR_HOLD: self._clear_hold,
            StepKind.DISABLE: lambda step: self._link(self._disable, step),
            StepKind.ENABLE: lambda step: self._link(host.systemd.enable, step),
            StepKind.DAEMON_RELOAD: lambda _step: host.systemd.daemon_reload(RELOAD),
            StepKind.RESET_PINNING: self._reset_pinning,
            StepKind.RETURN_CONTROLS: lambda step: return_controls(host, plan.controls, step.target, emit),
            StepKind.SET_ASIDE_CACHE: lambda _step: emit(set_aside_cache(host.files)),
            StepKind.ADOPT: self._adopt,
            StepKind.CHECK_WEIGHTS: self._check_weights,
            StepKind.AWAIT_START: self._await_start,
            StepKind.RESTART: self._restart,
            StepKind.SIGNAL: self._signal,
            StepKind.RESTART_IF_REFUSED: self._restart_if_refused,
            StepKind.STOP: self._stop,
            StepKind.LEAVE_IF_SLOW: self._leave_if_slow,
            StepKind.AWAIT_RELAY: self._await_relay,
            StepKind.CHECK_EFFECTIVE: lambda step: self._kubelet().check_effective(step),
            StepKind.AWAIT_KUBELET: lambda step: self._kubelet().wait(step),
            StepKind.AWAIT_KUBELET_ON_BASE: lambda step: self._kubelet().wait(step),
            StepKind.DELETE_STATE: lambda step: host.files.remove_tree(step.target),
        }

    def run(self) -> None:
        """Carries out every step. One may answer with steps that must follow it at once."""
        unit = self._plan.kubelet_unit
        if self._plan.parts and self._plan.desired.proxy is None:
            self._gap.close()
        while self._steps:
            if not (self._gap.is_open or self._leaving):
                self._host.clock.check()
            check_way_back(self._steps, unit, self._progress.restarts_left)
            step, self._steps = self._steps[0], self._steps[1:]
            self._steps = (*self._carry_out(step), *self._steps)

    def _carry_out(self, step: Step) -> Iterable[Step]:
        """Does one step, and says so."""
        clock, kind = self._host.clock, step.kind.value
        started = clock.monotonic()
        self._emit(Event("step.started", step.describe, {"step": kind}))
        following = self._do(step)
        seconds = round(clock.monotonic() - started, 3)
        self._emit(Event("step.done", step.describe, {"step": kind, "seconds": seconds}))
        return following

    def _do(self, step: Step) -> Iterable[Step]:
        self._progress.touched.add(step.part)
        try:
            return self._verbs[step.kind](step) or ()
        except SystemdError as error:
            self._progress.failed_unit = step.target if step.target.endswith(".service") else ""
            # Whatever systemd refuses, except a job, is not the fault of what was installed.
            blameless = error.lost or step.kind not in _JOBS
            raise StepFailedError(f"{step.describe}: {error.message}", error.hint, blameless) from error
        except (StepFailedError, InterruptedRunError):
            raise
        except InstallerError as error:
            # A symlink that appears in the path meanwhile, a source that changes while it is copied, a lost
            # bus.
            raise StepFailedError(f"{step.describe}: {error.message}", error.hint, True) from error
        except OSError as error:
            raise failed_on_disk(step.describe, error) from error

    def _write(self, step: Step) -> None:
        file = step.file
        assert isinstance(file, DesiredFile)
        self._host.files.write(file.path, file.content, file.mode, digest=file.digest)

    def _clear_hold(self, _step: Step) -> None:
        for path in paths.HOLDS:
            self._host.files.remove(path)

    def _set_hold(self, step: Step) -> None:
        """A disk that takes no hold must not keep kubelet on a dead relay: /run does, or else the guard."""
        file = step.file
        assert isinstance(file, DesiredFile)
        assert isinstance(file.content, bytes)
        reason = file.content.decode("utf-8", "replace").strip()
        done = Event("hold.set", f"kubelet is held on its base endpoint: {reason}", {"reason": reason})
        try:
            self._host.files.make_directory(paths.OUR_STATE, 0o700)
            self._host.files.write(step.target, file.content, file.mode)
        except OSError as error:
            if not (self._plan.rescues and self._plan.restarts_kubelet):
                raise
            failure = failed_on_disk("the hold could not be written", error)
            self._emit(Event("warning", failure.message, {"code": "hold-unwritten", "hint": failure.hint}))
            with suppress(InstallerError, OSError):
                self._host.files.make_directory(paths.OUR_RUNTIME)
                self._host.files.write(paths.HOLDS[1], file.content, file.mode)
                self._emit(done)
        else:
            self._emit(done)

    def _restore(self, step: Step) -> None:
        original = step.file
        assert isinstance(original, FileState)
        files = self._host.files
        if original.kind is Kind.SYMLINK:
            files.make_directory(posixpath.dirname(step.target))  # systemd deletes one that it has emptied
            files.link(step.target, original.target, original.uid, original.gid)
        else:
            kept = HostPath(object_path(original.digest))
            owner = (original.uid, original.gid)
            files.write(step.target, kept, original.mode, *owner, original.digest, original.attributes)

    def _link(self, change: Callable[[str], None], step: Step) -> None:
        """Enables or disables, durably: systemd 252 syncs nothing (seen with strace), and nobody would own a
        link that comes back with a power loss after a removal."""
        change(step.target)
        files = self._host.files
        for directory in (paths.LINKS, *(f"{paths.LINKS}/{name}" for name in files.list(paths.LINKS))):
            if files.state(directory).kind is Kind.DIRECTORY:
                files.sync(directory)

    def _disable(self, name: str) -> None:
        """Also if systemd leaves the link, because the unit is masked."""
        self._host.systemd.disable(name)
        self._host.files.remove(paths.PROXY_WANTED)

    def _adopt(self, step: Step) -> tuple[Step, ...]:
        clock, seconds = self._host.clock, self._limits.proxy_start / 2
        try:
            adoption = adopt(self._host, step.target, self._stop_for_adoption, seconds)
        except StepFailedError:  # it may be slow to see many containers, as a start is
            away = clock.monotonic() - (self._proxy_away or clock.monotonic())
            leaving = self._leave() if away >= seconds else ()
            if not leaving:
                raise
            return (*leaving, step)
        self._before = {container.id: container for container in adoption.containers} | self._before
        for event in adoption.events():
            self._emit(event)
        return ()

    def _stop_for_adoption(self) -> None:
        self._proxy_away = self._host.clock.monotonic()
        self._adopted = True  # from here on the cache may be ours
        self._stop(Step(StepKind.STOP, paths.PROXY_UNIT, Part.PROXY))

    def _check_weights(self, step: Step) -> tuple[Step, ...]:
        """Containers that have come while the proxy started are adopted at once. One that only is not known
        to it waits until kubelet has moved: until then more of them may come."""
        settled = self._progress.moved_kubelet or not self._plan.restarts_kubelet
        lost = find_lost(self._host, step.target, self._before, unknown_too=settled)
        check_lost(lost)
        if not lost:
            self._late = 0
            forget_old(self._host.files, all_known=settled)
            return ()
        self._late += 1
        if self._late == _ADOPTIONS:
            message = f"new containers keep being created outside the proxy: {lost[0].how}"
            raise StepFailedError(message, "run again", True)
        return (replace(step, kind=StepKind.ADOPT), *start_proxy(self._plan.leaves_if_slow), step)

    def forget_adopted(self) -> None:
        """The cache is as cri-resmgr itself has left it: what comes next may not start on ours."""
        if self._adopted:
            with suppress(InstallerError, OSError):
                bring_back(self._host)

    def _reset_pinning(self, step: Step) -> None:
        forget_old(self._host.files)  # of an adoption that was cut off
        give_back(self._host, step.target, self._emit, everyone=self._plan.resets_all)

    def _restart(self, step: Step) -> tuple[Step, ...]:
        if step.part is Part.PROXY:
            return self._restart_proxy(step)
        progress, at_once = self._progress, self._plan.rescues or self._leaving
        if not at_once:
            await_calm(self._host, self._emit)
            progress.journal_from = self._host.journal.cursor()
        progress.moved_kubelet = True
        progress.restarts_left -= 1
        self._host.files.remove(paths.RELAY_FAILURES)  # the relay has answered: the guard counts anew
        self._emit(Event(KUBELET_RESTART, f"{step.target} is restarted now"))
        self._start(step, self._limits.guard + self._limits.kubelet_start + JOB_SLACK, at_once=at_once)
        if self._leaving:
            self._leaving = False
            self._gap.kubelet_has_left()
        return ()

    def _restart_proxy(self, step: Step) -> tuple[Step, ...]:
        self._progress.moved_proxy = True
        now, seconds = self._host.clock.monotonic(), self._limits.proxy_start
        if self._limits.hanging and 0 < self._relay_deadline <= now:  # kubelet has hung for all of it
            if not (leaving := self._leave()):
                raise self._failure(paths.PROXY_UNIT, "the relay is not ready: it did not answer")
            return (*leaving, step)
        self._progress.journal_from = self._host.journal.cursor()
        if self._host.systemd.unit(step.target).restarts_itself:
            self._stop(step)  # else a start of systemd's own takes what is announced now
        announce_start(self._host.files)
        self._start_began = now = self._host.clock.monotonic()
        away = now - self._proxy_away if self._proxy_away else 0.0
        seconds, self._proxy_away = self._time_left(max(1.0, seconds - away)), 0.0
        following: tuple[Step, ...] = ()
        try:
            self._start(step, seconds)
        except SystemdError as error:
            slow = not error.lost and self._host.systemd.unit(step.target).starts
            if not (slow and (following := self._leave())):
                raise
        self._gap.close()
        return following

    def _start(self, step: Step, seconds: float, *, at_once: bool = False) -> None:
        """Raises SystemdError, StepFailedError."""
        self._host.systemd.reset_failed(step.target)
        try:
            result = self._host.systemd.restart(step.target, seconds, at_once=at_once)
        except SystemdError as error:
            self._check_stopped(step, error)
            raise
        if result != "done":
            raise self._failure(step.target, f"systemd could not start it: the job ended as '{result}'")

    def _time_left(self, bound: float) -> float:
        """How long the proxy may take now: `bound`, or what is left of it, if kubelet hangs on it since."""
        now = self._host.clock.monotonic()
        if not (self._limits.hanging and self._relay_deadline):
            self._relay_deadline = now + bound
        return self._relay_deadline - now

    def _leave(self) -> tuple[Step, ...]:
        """A start of the proxy has used up its time, and is silent. It gets all the time that it may need if
        it had less only because kubelet hangs on it, and kubelet may leave: by these steps. Else none."""
        if not self._limits.cuts_short:
            return ()
        refuge = self._plan.leaves_if_slow
        if not refuge or not self._host.cri.answers(refuge):  # there is none while the runtime is away
            self._progress.cut_short = True
            return ()
        message = f"the proxy has not answered for {self._limits.proxy_start:g} s: kubelet leaves the relay"
        hint = "kubelet returns to the relay once the proxy answers"
        self._emit(Event("warning", message, {"code": "slow-start", "hint": hint}))
        self._limits = replace(self._limits, hanging=False, proxy_start=self._limits.unhurried)
        self._relay_deadline = 0.0
        self._progress.left_relay = self._leaving = True
        self._steps = come_back(self._steps, self._plan.kubelet_unit)
        return leave_relay(self._plan.kubelet_unit)

    def _leave_if_slow(self, _step: Step) -> tuple[Step, ...]:
        """Waits for the relay as long as kubelet may hang on it."""
        if not (self._limits.hanging and self._relay_deadline):
            return ()  # kubelet does not hang, or the proxy has not been started
        unit = self._host.systemd.unit(paths.PROXY_UNIT)
        while not self._relay_answers():
            check_steady(unit, self._host.systemd.unit(unit.name), self._failure)
            if self._host.clock.monotonic() >= self._relay_deadline:
                return self._leave()
            self._host.clock.sleep(_POLL)
        return ()

    def _await_start(self, step: Step) -> tuple[Step, ...]:
        """A start that takes longer than its containers call for is repeated."""
        limits = self._limits
        longest = self._time_left(limits.proxy_start) if limits.hanging else limits.begun_start
        self._progress.journal_from = self._host.journal.cursor()
        furthest = 0.0 if limits.hanging else limits.furthest
        why = why_not_started(self._host, limits.begun_start, longest, furthest)
        if not why:
            return ()
        if why == TOO_LONG and (leaving := self._leave()):
            return (*leaving, step)
        message = f"{step.target} did not finish starting, restarting it: {why}"
        self._emit(Event("warning", message, {"code": "start-failed", "hint": ""}))
        return (replace(step, kind=StepKind.RESTART),)

    def _signal(self, step: Step) -> None:
        self._signalled = (self._host.systemd.unit(step.target), self._host.journal.cursor())
        self._host.systemd.kill(step.target, signal.SIGHUP)

    def _restart_if_refused(self, step: Step) -> tuple[Step, ...]:
        """Nothing but its journal says whether it has taken the new force.cfg."""
        limits, hangs = self._limits, self._limits.hanging
        silence = limits.proxy_start / 2 if hangs else math.inf
        why, answered = why_not_taken(*self._signalled, self._host, limits.begun_start, silence)
        if not why:
            return ()
        self._relay_deadline = answered + limits.proxy_start if hangs else 0.0
        message = f"cri-resmgr did not take up the new force.cfg; restarting it: {why}"
        self._emit(Event("warning", message, {"code": "force-refused", "hint": ""}))
        return (replace(step, kind=StepKind.RESTART),)

    def _check_stopped(self, step: Step, error: SystemdError) -> None:
        """A unit that is still stopping at the deadline says nothing about what was to be started."""
        if not error.lost and self._host.systemd.unit(step.target).active_state == "deactivating":
            raise StepFailedError(
                f"{step.describe}: {error.message}: it is still stopping",
                f"`systemctl show -p TimeoutStopUSec {step.target}` says how long that may take: shorten it, "
                "or give settings' startTimeoutSeconds more",
                interfered=True,
            ) from error

    def _stop(self, step: Step) -> None:
        self._progress.moved_proxy = True
        if self._plan.desired.proxy is not None:
            self._gap.open(kubelet_hangs=self._limits.hanging)
        result = self._host.systemd.stop(step.target, _STOP_TIMEOUT)
        if result != "done":
            raise self._failure(step.target, f"systemd could not stop it: the job ended as '{result}'")
        self._host.systemd.reset_failed(step.target)

    def _failure(self, unit: str, why: str) -> StepFailedError:
        self._progress.failed_unit = unit
        return StepFailedError(f"{unit}: {why}")

    def _await_relay(self, step: Step) -> None:
        """R4: the relay has to answer CRI Version and Status, and keep answering, before kubelet may use
        it."""
        unit = self._await_status(step)
        # A proxy that this plan has not touched has lasted already.
        settle = PROXY_SETTLE if step.part is Part.PROXY else 0.0
        settled = self._host.clock.monotonic() + settle
        while (left := settled - self._host.clock.monotonic()) > 0:
            self._host.clock.sleep(min(_SETTLE_POLL, left))
            check_steady(unit, self._host.systemd.unit(unit.name), self._failure)
        if not self._relay_answers():
            raise self._failure(paths.PROXY_UNIT, "the relay stopped answering")
        self._proxy, self._relay_deadline, self._start_began = unit, 0.0, None

    def _relay_answers(self) -> bool:
        """Asks once, and not for much longer than the relay may take."""
        left = (self._relay_deadline or math.inf) - self._host.clock.monotonic()
        return self._host.cri.answers(paths.RELAY_ENDPOINT, answer_seconds(left))

    def _await_status(self, step: Step) -> UnitState:
        # The start itself is part of the time that the relay may take.
        now, limits = self._host.clock.monotonic(), self._limits
        began = now if self._start_began is None else self._start_began
        deadline = self._relay_deadline or max(began + limits.proxy_start, now + 1.0)
        furthest = 0.0 if limits.hanging else began + limits.furthest
        host, unit = self._host, self._host.systemd.unit(paths.PROXY_UNIT)
        patience = Patience(AtWork(unit, self._progress.journal_from, host), deadline, furthest, host)
        steady = partial(check_steady, unit, failure=self._failure)
        if not (reason := why_not_ready(host, step.target, patience, steady)):
            return unit
        self._progress.cut_short = self._limits.cuts_short
        raise self._failure(paths.PROXY_UNIT, f"the relay is not ready: {reason}")

    def _kubelet(self) -> KubeletStart:
        return KubeletStart(self._plan, self._host, self._limits, self._failure, self._proxy)
