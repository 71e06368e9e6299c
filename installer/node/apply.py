"""Carries out a plan's steps: the only stage that changes the host.

Ownership is recorded before (see `converge`); a step that does not
have its effect raises StepFailedError and leaves undoing to the caller. A
signal ends the run between two steps. A crash in the middle of any step leaves
a host from which the next run's diff derives the rest.
"""

from __future__ import annotations

import math
import posixpath
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

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
from installer.node.adoption import adopt, announce_start, bring_back, check_lost, find_lost, forget_old
from installer.node.kept import object_path
from installer.node.kubelet_start import KubeletStart, await_calm, check_steady
from installer.node.off_relay import check_way_back, come_back, leave_relay
from installer.node.pinning import restore_and_tell
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
_JOBS = frozenset(map(StepKind, ("restart", "restart-if-refused", "await-start", "stop")))
_ADOPTIONS = 3  # in a row, of containers that come meanwhile
_STOP_TIMEOUT = 20.0  # seconds; the unit's own TimeoutStopSec is far below


def apply_plan(plan: Plan, host: Host, limits: Limits, emit: Emit, progress: Progress) -> None:
    """Carries out every step in order.

    Raises StepFailedError naming what failed (`progress.failed_unit` is the unit
    whose journal tells more), InterruptedRunError and KubeletKeptError between two steps.
    """
    worker = _Worker(plan, host, limits, emit, progress)
    if plan.parts and plan.desired.proxy is None:
        worker.gap.close()
    try:
        steps = plan.steps
        while steps:
            if not worker.gap.is_open:
                host.clock.check()
            check_way_back(steps, plan.kubelet_unit, progress.restarts_left)
            had_left = progress.left_relay
            worker.carry_out(steps[0])
            steps = steps[1:]
            if progress.left_relay and not had_left:
                steps = come_back(steps, plan.kubelet_unit)
    except StepFailedError:
        worker.forget_adopted()
        raise


class _Worker:
    def __init__(self, plan: Plan, host: Host, limits: Limits, emit: Emit, progress: Progress) -> None:
        self._plan = plan
        self._emit = emit
        self._host = host
        self._limits = limits
        self._progress = progress
        self.gap = Gap(host.systemd, emit)
        self._relay_deadline = 0.0
        self._start_began: float | None = None  # of the proxy, by this plan
        self._leaving = False  # kubelet leaves the relay just now
        self._adopted = False
        self._before: dict[str, RunningContainer] = {}  # what ran before the proxy started, by ID
        self._proxy_away = 0.0  # when an adoption has stopped it
        self._proxy: UnitState | None = None  # as it was when its relay had answered
        self._signalled = (UnitState(paths.PROXY_UNIT), "")  # as it was, and where its journal ended
        self._verbs: dict[StepKind, Callable[[Step], None]] = {
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
            StepKind.SET_ASIDE_CACHE: self._set_aside_cache,
            StepKind.ADOPT: self._adopt,
            StepKind.CHECK_WEIGHTS: self._check_weights,
            StepKind.AWAIT_START: self._await_start,
            StepKind.RESTART: self._restart,
            StepKind.SIGNAL: self._signal,
            StepKind.RESTART_IF_REFUSED: self._restart_if_refused,
            StepKind.STOP: self._stop,
            StepKind.LEAVE_IF_SLOW: lambda _step: self._leave_if_slow(),
            StepKind.AWAIT_RELAY: self._await_relay,
            StepKind.CHECK_EFFECTIVE: lambda step: self._kubelet().check_effective(step),
            StepKind.AWAIT_KUBELET: lambda step: self._kubelet().wait(step),
            StepKind.AWAIT_KUBELET_ON_BASE: lambda step: self._kubelet().wait(step),
            StepKind.DELETE_STATE: lambda step: host.files.remove_tree(step.target),
        }

    def carry_out(self, step: Step) -> None:
        """Does one step, and says so."""
        clock, kind = self._host.clock, step.kind.value
        started = clock.monotonic()
        self._emit(Event("step.started", step.describe, {"step": kind}))
        self._do(step)
        seconds = round(clock.monotonic() - started, 3)
        self._emit(Event("step.done", step.describe, {"step": kind, "seconds": seconds}))

    def _do(self, step: Step) -> None:
        self._progress.touched.add(step.part)
        try:
            self._verbs[step.kind](step)
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
        try:
            self._host.files.make_directory(paths.OUR_STATE, 0o700)
            self._host.files.write(step.target, file.content, file.mode)
        except OSError as error:
            if not (self._plan.rescues and self._plan.restarts_kubelet):
                raise
            failure = failed_on_disk("the hold could not be written", error)
            self._emit(Event("warning", failure.message, {"code": "hold-unwritten", "hint": failure.hint}))
            try:
                self._host.files.make_directory(paths.OUR_RUNTIME)
                self._host.files.write(paths.HOLDS[1], file.content, file.mode)
            except (InstallerError, OSError):
                return
        self._emit(Event("hold.set", f"kubelet is held on its base endpoint: {reason}", {"reason": reason}))

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

    def _adopt(self, step: Step) -> None:
        limits, clock = self._limits, self._host.clock
        try:
            adoption = adopt(self._host, step.target, self._stop_for_adoption, limits.proxy_start / 2)
        except StepFailedError:  # it may be slow to see many containers, as a start is
            away = clock.monotonic() - (self._proxy_away or clock.monotonic())
            if away < limits.proxy_start / 2 or not self._is_given_more_time():
                raise
            limits = self._limits
            adoption = adopt(self._host, step.target, self._stop_for_adoption, limits.proxy_start / 2)
        self._before = {container.id: container for container in adoption.containers} | self._before
        for event in adoption.events():
            self._emit(event)

    def _stop_for_adoption(self) -> None:
        """From here on the cache may be ours."""
        self._proxy_away = self._host.clock.monotonic()
        self._adopted = True
        self._stop(Step(StepKind.STOP, paths.PROXY_UNIT, Part.PROXY))

    def _check_weights(self, step: Step) -> None:
        """Containers that have come while the proxy started are adopted at once. One that only is not known
        to it waits until kubelet has moved: until then more of them may come."""
        settled = self._progress.moved_kubelet or not self._plan.restarts_kubelet
        for left in reversed(range(_ADOPTIONS)):
            lost = find_lost(self._host, step.target, self._before, unknown_too=settled)
            check_lost(lost)
            if not lost:
                return forget_old(self._host.files, all_known=settled)
            if not left:
                break
            self._adopt(step)
            self._restart(Step(StepKind.RESTART, paths.PROXY_UNIT, Part.PROXY))
            self._leave_if_slow()
            self._await_relay(Step(StepKind.AWAIT_RELAY, paths.RELAY_ENDPOINT, Part.PROXY))
        message = f"new containers keep being created outside the proxy: {lost[0].how}"
        raise StepFailedError(message, "run again", True)

    def forget_adopted(self) -> None:
        """The cache is as cri-resmgr itself has left it: what comes next may not start on ours."""
        if self._adopted:
            with suppress(InstallerError, OSError):
                bring_back(self._host)

    def _reset_pinning(self, step: Step) -> None:
        forget_old(self._host.files)  # of an adoption that was cut off
        restore_and_tell(self._host, step.target, self._emit, everyone=self._plan.resets_all)

    def _set_aside_cache(self, step: Step) -> None:
        """One that no start can read. It is kept, because nobody else has what it says."""
        files, kept = self._host.files, paths.TORN_CACHE
        files.write(kept, HostPath(step.target), 0o600)
        files.remove(step.target)
        message = f"the cache of cri-resmgr was torn: restarting the proxy; the cache is kept as {kept}"
        self._emit(Event("cache.kept", message, {"kept": kept}))

    def _restart(self, step: Step) -> None:
        kubelet = step.part is Part.KUBELET
        bound = self._limits.guard + self._limits.kubelet_start if kubelet else self._limits.proxy_start
        self._progress.journal_from = self._host.journal.cursor()
        at_once = self._plan.rescues or self._leaving
        if kubelet:
            if not at_once:
                await_calm(self._host, self._emit)
            self._progress.moved_kubelet = True
            self._progress.restarts_left -= 1
            self._host.files.remove(paths.RELAY_FAILURES)  # the relay has answered: the guard counts anew
            self._emit(Event(KUBELET_RESTART, f"{step.target} is restarted now"))
        else:
            self._progress.moved_proxy = True
            if self._host.systemd.unit(step.target).restarts_itself:
                self._stop(step)  # else a start of systemd's own takes what is announced now
            announce_start(self._host.files)
            self._start_began = now = self._host.clock.monotonic()
            away = now - self._proxy_away if self._proxy_away else 0.0
            bound, self._proxy_away = self._proxy_bound(max(1.0, bound - away)), 0.0
        try:
            self._host.systemd.reset_failed(step.target)
            slack = JOB_SLACK if kubelet else 0.0
            result = self._host.systemd.restart(step.target, bound + slack, at_once=at_once)
            if not kubelet:
                self.gap.close()
        except SystemdError as error:
            if not (kubelet or error.lost) and self._is_under_way() and self._is_given_more_time():
                self.gap.close()
                return
            self._progress.failed_unit = step.target
            self._check_stopped(step, error)
            raise
        if result != "done":
            raise self._failure(step.target, f"systemd could not start it: the job ended as '{result}'")

    def _proxy_bound(self, bound: float) -> float:
        """How long the proxy may take now. Raises StepFailedError if kubelet has hung for all of it."""
        now = self._host.clock.monotonic()
        if not (self._limits.hanging and self._relay_deadline):
            self._relay_deadline = now + bound
        if self._relay_deadline <= now and not self._is_given_more_time():
            raise self._failure(paths.PROXY_UNIT, "the relay is not ready: it did not answer")
        return self._relay_deadline - self._host.clock.monotonic()

    def _is_under_way(self) -> bool:
        """Whether the proxy lives, and is only slow, when its start job has taken too long."""
        unit = self._host.systemd.unit(paths.PROXY_UNIT)
        return unit.main_pid > 0 and unit.active_state in ("activating", "active") and not unit.flapping

    def _is_given_more_time(self) -> bool:
        """A start of the proxy has used up its time, and is silent: it gets all the time that it may need if
        it had less only because kubelet hangs on it, and kubelet may leave."""
        if not self._limits.cuts_short:
            return False
        refuge = self._plan.leaves_if_slow
        if not refuge or not self._host.cri.answers(refuge):  # there is none while the runtime is away
            self._progress.cut_short = True
            return False
        message = f"the proxy has not answered for {self._limits.proxy_start:g} s: kubelet leaves the relay"
        hint = "kubelet returns to the relay once the proxy answers"
        self._emit(Event("warning", message, {"code": "slow-start", "hint": hint}))
        limits, journal = self._limits, self._progress.journal_from
        self._limits = replace(limits, hanging=False, proxy_start=limits.unhurried)
        self._progress.left_relay = self._leaving = True
        for step in leave_relay(self._plan.kubelet_unit):
            self.carry_out(step)
        self._leaving, self._progress.journal_from = False, journal
        self.gap.kubelet_has_left()
        now = self._host.clock.monotonic()
        began = now if self._start_began is None else self._start_began
        self._relay_deadline = max(began + limits.unhurried, now + 1.0)
        return True

    def _leave_if_slow(self) -> None:
        """Waits for the relay as long as kubelet may hang on it."""
        if not (self._plan.leaves_if_slow and self._limits.hanging and self._relay_deadline):
            return  # kubelet does not hang, or the proxy has not been started
        unit = self._host.systemd.unit(paths.PROXY_UNIT)
        while not self._relay_answers():
            check_steady(unit, self._host.systemd.unit(unit.name), self._failure)
            if self._host.clock.monotonic() >= self._relay_deadline:
                self._is_given_more_time()
                return
            self._host.clock.sleep(_POLL)

    def _await_start(self, step: Step) -> None:
        """A start that takes longer than its containers call for is repeated."""
        limits = self._limits
        longest = self._proxy_bound(limits.proxy_start) if limits.hanging else limits.begun_start
        self._progress.journal_from = self._host.journal.cursor()
        furthest = 0.0 if limits.hanging else limits.furthest
        why = why_not_started(self._host, limits.begun_start, longest, furthest)
        if why == TOO_LONG and self._is_given_more_time():
            why = why_not_started(self._host, limits.begun_start, limits.begun_start, limits.furthest)
            self._relay_deadline = 0.0
        if why:
            message = f"{step.target} did not finish starting, restarting it: {why}"
            self._emit(Event("warning", message, {"code": "start-failed", "hint": ""}))
            self._restart(step)

    def _signal(self, step: Step) -> None:
        self._signalled = (self._host.systemd.unit(step.target), self._host.journal.cursor())
        self._host.systemd.kill(step.target, signal.SIGHUP)

    def _restart_if_refused(self, step: Step) -> None:
        """Nothing but its journal says whether it has taken the new force.cfg."""
        limits, hangs = self._limits, self._limits.hanging
        silence = limits.proxy_start / 2 if hangs else math.inf
        why, answered = why_not_taken(*self._signalled, self._host, limits.begun_start, silence)
        if why:
            self._relay_deadline = answered + limits.proxy_start if hangs else 0.0
            message = f"cri-resmgr has not taken the new force.cfg, and is restarted: {why}"
            self._emit(Event("warning", message, {"code": "force-refused", "hint": ""}))
            self._restart(step)

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
            self.gap.open(kubelet_hangs=self._limits.hanging)
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
        self._proxy, self._relay_deadline = unit, 0.0

    def _relay_answers(self) -> bool:
        """Asks once, and not for much longer than the relay may take."""
        left = (self._relay_deadline or math.inf) - self._host.clock.monotonic()
        return self._host.cri.answers(paths.RELAY_ENDPOINT, answer_seconds(left))

    def _await_status(self, step: Step) -> UnitState:
        # The start itself is part of the time that the relay may take.
        now, limits = self._host.clock.monotonic(), self._limits
        deadline = self._relay_deadline or now + limits.proxy_start
        furthest = 0.0 if limits.hanging else (self._start_began or now) + limits.furthest
        unit = self._host.systemd.unit(paths.PROXY_UNIT)
        work = AtWork(unit, self._progress.journal_from, self._host)
        patience = Patience(work, deadline, furthest, self._host)
        reason = why_not_ready(
            self._host, step.target, patience, lambda now: check_steady(unit, now, self._failure)
        )
        if not reason:
            return unit
        self._progress.cut_short = self._limits.cuts_short
        raise self._failure(paths.PROXY_UNIT, f"the relay is not ready: {reason}")

    def _kubelet(self) -> KubeletStart:
        return KubeletStart(self._plan, self._host, self._limits, self._failure, self._proxy)
