"""Carry out a plan's steps: the only stage that changes the host.

`converge` has recorded ownership before. A step that does not have its effect raises StepFailedError and
leaves the rollback to the caller. A signal ends the run between two steps. After a crash inside a step, the
next run recovers.
"""

from __future__ import annotations

import math
import posixpath
import signal
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from installer.errors import (
    NO_SUCH_UNIT,
    InstallerError,
    InterruptedRunError,
    KubeletKeptError,
    StepFailedError,
    SystemdError,
    failed_on_disk,
)
from installer.host.ports import Host
from installer.model import paths
from installer.model.event import KUBELET_RESTART, Emit, Event
from installer.model.host import Part, RunningContainer, UnitState
from installer.model.limits import JOB_SLACK, PROXY_SETTLE, RELOAD, Limits, answer_seconds
from installer.model.plan import Plan, Step, StepKind
from installer.model.result import Tally
from installer.node.adoption import (
    adopt,
    announce_start,
    bring_back,
    find_lost,
    forget_agent,
    forget_old,
    raise_low,
    set_aside_cache,
)
from installer.node.await_kubelet import KubeletStart, await_calm, check_steady, failure_of
from installer.node.await_proxy import (
    TOO_LONG,
    Activity,
    why_not_ready,
    why_not_started,
    why_not_taken,
)
from installer.node.controls import return_controls
from installer.node.file_steps import clear_hold, restore, write, write_hold
from installer.node.known_pods import announce_kubelet, can_save, find_unknown, why_unknown
from installer.node.kubelet_link import forget_unknown, is_there, move, read_kubelet
from installer.node.links import disable
from installer.node.pinning import give_back
from installer.node.relay_steps import (
    RETURN,
    check_restart,
    check_way_back,
    move_step,
    restart_kubelet_steps,
    restart_proxy_steps,
)
from installer.node.run import Progress

_POLL = 0.05  # seconds
_SETTLE_POLL = 0.5  # seconds
_JOBS = (StepKind.RESTART, StepKind.STOP)
_ADOPTIONS = 3  # in a row, of containers created meanwhile
_AGAIN = 2  # starts of the proxy because it does not know a pod
_STOP_TIMEOUT = 20.0  # seconds; the unit's own TimeoutStopSec is far below


def apply_plan(
    plan: Plan, host: Host, limits: Limits, emit: Emit, progress: Progress, tally: Tally | None = None
) -> None:
    """Carry out every step in order.

    Raises StepFailedError that names what failed (the journal of `progress.failed_unit` tells more), and
    InterruptedRunError and KubeletKeptError between two steps.
    """
    worker = _Worker(plan, host, limits, emit, progress, tally or Tally())
    try:
        worker.run()
    except StepFailedError:
        worker.forget_adopted()
        raise


class _Worker:
    def __init__(
        self, plan: Plan, host: Host, limits: Limits, emit: Emit, progress: Progress, tally: Tally
    ) -> None:
        self._plan = plan
        self._steps = plan.steps  # the remaining ones
        self._emit, self._tally = emit, tally
        self._host = host
        self._limits = limits
        self._progress = progress
        self._relay_deadline = 0.0
        self._start_began: float | None = None  # when this plan started the proxy
        self._adopted = False
        self._runtime_away = False  # when kubelet was to go there
        self._again = 0  # starts of the proxy because it did not know a pod
        self._raised: set[str] = set()  # containers that had too little weight before this plan
        self._late = 0  # adoptions in a row of containers created meanwhile
        self._before: dict[str, RunningContainer] = {}  # what ran before the proxy started, by ID
        self._proxy_away = 0.0  # when an adoption stopped the proxy
        self._signalled = (UnitState(paths.PROXY_UNIT), "")  # as before the signal, and the journal's end
        self._verbs: dict[StepKind, Callable[[Step], Iterable[Step] | None]] = {
            StepKind.WRITE: partial(write, host.files),
            StepKind.MARK_PENDING: partial(write, host.files),
            StepKind.DELETE: lambda step: host.files.remove(step.target),
            StepKind.RESTORE: partial(restore, host.files),
            StepKind.SET_HOLD: partial(write_hold, plan, host.files, emit),
            StepKind.CLEAR_HOLD: lambda _step: clear_hold(host.files),
            StepKind.DISABLE: partial(disable, host, plan),
            StepKind.DAEMON_RELOAD: lambda _step: host.systemd.daemon_reload(RELOAD),
            StepKind.RESET_PINNING: self._reset_pinning,
            StepKind.RETURN_CONTROLS: lambda step: return_controls(host, plan.controls, step.target, emit),
            StepKind.SET_ASIDE_CACHE: lambda _step: emit(set_aside_cache(host.files)),
            StepKind.FORGET_AGENT: lambda _step: forget_agent(host.files),
            StepKind.ADOPT: self._adopt,
            StepKind.CHECK_WEIGHTS: self._check_weights,
            StepKind.CHECK_PODS: self._check_pods,
            StepKind.AWAIT_START: self._await_start,
            StepKind.RESTART: self._restart,
            StepKind.SIGNAL: self._signal,
            StepKind.RESTART_IF_REFUSED: self._restart_if_refused,
            StepKind.STOP: self._stop,
            StepKind.MOVE: self._move,
            StepKind.RETURN: self._return,
            StepKind.LEAVE_IF_SLOW: self._leave_if_slow,
            StepKind.AWAIT_RELAY: self._await_relay,
            StepKind.CHECK_EFFECTIVE: lambda step: self._kubelet().check_effective(step),
            StepKind.AWAIT_KUBELET: self._await_kubelet,
            StepKind.DELETE_STATE: lambda step: host.files.remove_tree(step.target),
        }

    def run(self) -> None:
        """Carry out every step. A step may return steps that must follow it at once."""
        while self._steps:
            self._host.clock.check()
            unit, progress = self._plan.kubelet_unit, self._progress
            check_way_back(self._steps, unit, progress.restarts_left, progress.held)
            step, self._steps = self._steps[0], self._steps[1:]
            self._steps = (*self._carry_out(step), *self._steps)

    def _carry_out(self, step: Step) -> Iterable[Step]:
        """Do one step and report it."""
        clock, kind = self._host.clock, step.kind.value
        started = clock.monotonic()
        self._emit(Event("step.started", step.describe, {"step": kind}))
        following = self._do(step)
        seconds = round(clock.monotonic() - started, 3)
        self._emit(Event("step.done", step.describe, {"step": kind, "seconds": seconds}))
        self._tally.count()
        return following

    def _do(self, step: Step) -> Iterable[Step]:
        self._progress.touched.add(step.part)
        try:
            return self._verbs[step.kind](step) or ()
        except SystemdError as error:
            self._progress.failed_unit = step.target if step.target.endswith(".service") else ""
            # What was installed is not to blame for more than a job, nor for a unit that others require.
            blameless = error.lost or step.kind not in _JOBS or error.name == NO_SUCH_UNIT
            raise StepFailedError(_message(step, error), error.hint, blameless) from error
        except (StepFailedError, InterruptedRunError, KubeletKeptError):
            raise
        except InstallerError as error:
            # A symlink that appears in the path, a source that changes while it is copied, a lost bus.
            raise StepFailedError(_message(step, error), error.hint, True) from error
        except OSError as error:
            raise failed_on_disk(step.describe, error) from error
        except Exception as error:  # must not leave the node half changed either
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{posixpath.basename(place.filename)}:{place.lineno}"
            bug = f"{type(error).__name__}: {error} ({where}; this is a bug, please report it)"
            raise StepFailedError(f"{step.describe}: {bug}") from error

    def _adopt(self, step: Step) -> tuple[Step, ...]:
        clock, seconds = self._host.clock, self._limits.proxy_start / 2
        try:
            running = adopt(self._host, step.target, self._stop_for_adoption, seconds, self._emit)
        except StepFailedError:  # like a start, it may be slow with many containers
            away = clock.monotonic() - (self._proxy_away or clock.monotonic())
            leaving = self._leave() if away >= seconds else ()
            if not leaving:
                raise
            return (*leaving, step)
        self._before = {container.id: container for container in running} | self._before
        return ()

    def _stop_for_adoption(self) -> None:
        self._proxy_away = self._host.clock.monotonic()
        self._adopted = True  # from now on we may have written the cache
        self._stop(Step(StepKind.STOP, paths.PROXY_UNIT, Part.PROXY))

    def _check_weights(self, step: Step) -> tuple[Step, ...]:
        """Containers created while the proxy started are adopted at once. One that the proxy merely does not
        know waits until kubelet has moved, since more may be created until then."""
        settled = self._progress.moved_kubelet or not self._plan.takes_kubelet
        losses = find_lost(self._host, step.target, self._before, unknown_too=settled)
        low = [loss for loss in losses if loss.was_low and loss.container.id not in self._raised]
        self._raised |= {loss.container.id for loss in low}
        raise_low(self._host, step.target, low, self._emit)
        lost = [loss for loss in losses if not loss.was_low]
        if not lost:
            self._late = 0
            forget_old(self._host.files)
            return ()
        self._late += 1
        if self._late == _ADOPTIONS:
            message = f"new containers keep being created outside the proxy: {lost[0].how}"
            raise StepFailedError(message, "run the same command again", True)
        return (replace(step, kind=StepKind.ADOPT), *self._start_again(), step)

    def _check_pods(self, step: Step) -> tuple[Step, ...]:
        """What cannot be told or mended now is no reason to undo what was done: the next run tries again."""
        files, plan = self._host.files, self._plan
        try:
            unknown = find_unknown(self._host, step.target)
        except (InstallerError, OSError) as error:
            self._warn("pods-unknown", f"the proxy's pods could not be compared with the runtime's: {error}")
            return ()
        if not unknown:
            if not plan.harms:  # else a container may be unknown
                forget_unknown(self._host, plan.kubelet_unit)
            return ()
        why = f"{paths.PROXY_UNIT}: {why_unknown(unknown)}"
        if plan.harms or self._again == _AGAIN or not can_save(files):
            self._warn("pods-unknown", why)
            return ()
        self._again += 1
        self._emit(Event("pods.unknown", f"{why}: restarting it", {"pods": unknown}))
        adopt = (Step(StepKind.ADOPT, plan.adopts, Part.PROXY),) if plan.adopts else ()
        check = (Step(StepKind.CHECK_WEIGHTS, plan.adopts, Part.PROXY),) if plan.adopts else ()
        return (*adopt, *self._start_again(), *check, step)

    def _start_again(self) -> tuple[Step, ...]:
        """Kubelet may be on the relay by now."""
        return (*restart_proxy_steps(self._plan.leaves_if_slow), RETURN)

    def _warn(self, code: str, message: str) -> None:
        hint = "`cri-resmgr-installer install` tries again"
        self._emit(Event("warning", message, {"code": code, "hint": hint}))

    def forget_adopted(self) -> None:
        """Leave the cache as cri-resmgr itself has written it: the rollback must not start on ours."""
        if self._adopted:
            with suppress(InstallerError, OSError):
                bring_back(self._host)

    def _reset_pinning(self, step: Step) -> None:
        forget_old(self._host.files)  # of an interrupted adoption
        give_back(self._host, step.target, self._emit, everyone=self._plan.resets_all)

    def _restart(self, step: Step) -> tuple[Step, ...]:
        if step.part is Part.PROXY:
            return self._restart_proxy(step)
        progress, at_once = self._progress, self._plan.rescues
        if not at_once:
            self._await_calm(to_relay=self._plan.desired.kubelet is not None)
            progress.journal_from = self._host.journal.cursor()
        if self._plan.desired.kubelet is not None:
            announce_kubelet(self._host.files, moves=self._plan.moves_kubelet)
        progress.moved_kubelet = True
        progress.restarts_left -= 1
        self._emit(Event(KUBELET_RESTART, f"restarting {step.target}"))
        self._tally.count(restarts=1)
        self._start(step, self._limits.guard + self._limits.kubelet_start + JOB_SLACK, at_once=at_once)
        return ()

    def _await_calm(self, *, to_relay: bool) -> None:
        """R4: a relay that has fallen silent meanwhile gets no kubelet."""
        calm = await_calm(self._host, self._emit)
        if to_relay and not (calm or self._relay_answers()):
            if self._progress.proxy is not None:
                self._check_steady(self._progress.proxy)
            raise self._failure(paths.PROXY_UNIT, "the relay stopped answering")

    def _move(self, step: Step) -> tuple[Step, ...]:
        """Kubelet goes on living, and its streams with it."""
        progress, to_relay = self._progress, paths.same_endpoint(step.target, paths.RELAY_ENDPOINT)
        if to_relay:
            self._await_calm(to_relay=True)
            self._host.files.remove_tree(paths.RELAY_FAILURES)  # the relay has answered
        progress.moved_kubelet = True
        try:
            move(self._host, self._plan.kubelet_unit, step.target)
        except (InstallerError, OSError) as error:
            if to_relay and progress.proxy is not None and isinstance(error, StepFailedError):
                self._check_steady(progress.proxy)  # which then is the cause
            if not self._plan.rescues or isinstance(error, InterruptedRunError):
                raise
            # /run takes no link: then the guard does not use one either.
            self._warn("kubelet-not-moved", f"kubelet could not be moved, and is restarted: {error}")
            return restart_kubelet_steps(self._plan.kubelet_unit)
        if to_relay and progress.proxy is not None:
            self._check_steady(progress.proxy)
        self._emit(Event("kubelet.moved", f"kubelet has moved to {step.target}", {"endpoint": step.target}))
        return ()

    def _return(self, step: Step) -> tuple[Step, ...]:
        """The guard or this run may have let it leave while the proxy was down."""
        kubelet = read_kubelet(self._host, self._host.systemd.unit(self._plan.kubelet_unit))
        if not kubelet.linked or is_there(kubelet, step.target):
            return ()
        if kubelet.moves:
            return (move_step(step.target),)
        check_restart(self._progress.restarts_left)
        return restart_kubelet_steps(kubelet.unit.name)

    def _restart_proxy(self, step: Step) -> tuple[Step, ...]:
        self._progress.moved_proxy = True
        now, seconds = self._host.clock.monotonic(), self._limits.proxy_start
        if self._limits.hanging and 0 < self._relay_deadline <= now:  # kubelet has hung all that time
            if not (leaving := self._leave()):
                raise self._failure(paths.PROXY_UNIT, "the relay is not ready: it did not answer")
            return (*leaving, step)
        self._progress.journal_from = self._host.journal.cursor()
        if self._host.systemd.unit(step.target).restarts_itself:
            self._stop(step)  # else a restart by systemd would use up the announcement
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
        return following

    def _start(self, step: Step, seconds: float, *, at_once: bool = False) -> None:
        """Raises SystemdError, StepFailedError."""
        self._host.systemd.reset_failed(step.target)
        self._await_job(
            step, "start", lambda: self._host.systemd.restart(step.target, seconds, at_once=at_once)
        )

    def _await_job(self, step: Step, verb: str, job: Callable[[], str]) -> None:
        """Run a job of systemd to its end. A unit that is still stopping at the deadline says nothing about
        what was to be started. A canceled job means that somebody else stopped or started the unit.

        Raises SystemdError, StepFailedError."""
        try:
            result = job()
        except SystemdError as error:
            if error.lost or self._host.systemd.unit(step.target).active_state != "deactivating":
                raise
            raise StepFailedError(
                f"{_message(step, error)}: it is still stopping",
                f"`systemctl show -p TimeoutStopUSec {step.target}` shows the limit: shorten it, "
                "or raise startTimeoutSeconds in the settings",
                interfered=True,
            ) from error
        if result != "done":
            failure = self._failure(step.target, f"systemd could not {verb} it: the job ended as '{result}'")
            failure.interfered = result in ("canceled", "dependency")  # ours depend on none
            raise failure

    def _time_left(self, bound: float) -> float:
        """How long the proxy may take now: `bound`, or what is left of it if kubelet has been hanging on
        it."""
        now = self._host.clock.monotonic()
        if not (self._limits.hanging and self._relay_deadline):
            self._relay_deadline = now + bound
        return self._relay_deadline - now

    def _leave(self) -> tuple[Step, ...]:
        """The steps by which kubelet leaves the relay, if it may, because a start of the proxy has used up
        its time and is still silent. The start then gets all the time that it had been denied only because
        kubelet hung on it."""
        if not self._limits.cuts_short:
            return ()
        endpoint = self._plan.leaves_if_slow
        if endpoint and not self._host.cri.answers(endpoint):  # no endpoint would be better
            endpoint, self._runtime_away = "", True
        if not endpoint:
            self._progress.cut_short = True
            return ()
        message = f"the proxy has not answered for {self._limits.proxy_start:g} s: kubelet leaves the relay"
        hint = "kubelet returns to the relay once the proxy answers"
        self._emit(Event("warning", message, {"code": "slow-start", "hint": hint}))
        self._limits = replace(self._limits, hanging=False, proxy_start=self._limits.unhurried)
        self._relay_deadline = 0.0
        self._progress.left_relay = True
        return (move_step(endpoint),)

    def _leave_if_slow(self, _step: Step) -> tuple[Step, ...]:
        """Wait for the relay as long as kubelet may hang on it."""
        if not (self._limits.hanging and self._relay_deadline):
            return ()  # kubelet does not hang, or the proxy has not been started
        unit = self._host.systemd.unit(paths.PROXY_UNIT)
        while not self._relay_answers():
            self._check_steady(unit)
            if self._host.clock.monotonic() >= self._relay_deadline:
                return self._leave()
            self._host.clock.sleep(_POLL)
        return ()

    def _await_start(self, step: Step) -> tuple[Step, ...]:
        """Repeat a start that takes longer than its containers explain."""
        limits = self._limits
        longest = self._time_left(limits.proxy_start) if limits.hanging else limits.begun_start
        self._progress.journal_from = self._host.journal.cursor()
        furthest = 0.0 if limits.hanging else limits.furthest
        why = why_not_started(self._host, limits.begun_start, longest, furthest)
        if not why:
            return ()
        if why == TOO_LONG and (leaving := self._leave()):
            return (*leaving, step)
        message = f"{step.target} did not finish starting; restarting it: {why}"
        self._emit(Event("warning", message, {"code": "start-failed", "hint": ""}))
        return (replace(step, kind=StepKind.RESTART),)

    def _signal(self, step: Step) -> None:
        self._signalled = (self._host.systemd.unit(step.target), self._host.journal.cursor())
        self._host.systemd.kill(step.target, signal.SIGHUP)

    def _restart_if_refused(self, step: Step) -> tuple[Step, ...]:
        """Only the proxy's journal tells whether it has taken up the new force.cfg."""
        limits, hangs = self._limits, self._limits.hanging
        silence = limits.proxy_start / 2 if hangs else math.inf
        why, answered = why_not_taken(*self._signalled, self._host, limits.begun_start, silence)
        if not why:
            return ()
        self._relay_deadline = answered + limits.proxy_start if hangs else 0.0
        message = f"cri-resmgr did not take up the new force.cfg; restarting it: {why}"
        self._emit(Event("warning", message, {"code": "force-refused", "hint": ""}))
        return (replace(step, kind=StepKind.RESTART),)

    def _stop(self, step: Step) -> None:
        self._progress.moved_proxy = True
        self._await_job(step, "stop", lambda: self._host.systemd.stop(step.target, _STOP_TIMEOUT))
        self._host.systemd.reset_failed(step.target)

    def _failure(self, unit: str, why: str, hint: str = "") -> StepFailedError:
        self._progress.failed_unit = unit
        found = failure_of(unit, why)
        return StepFailedError(found.message, hint or found.hint, found.interfered or self._runtime_away)

    def _check_steady(self, unit: UnitState) -> None:
        check_steady(unit, self._host.systemd.unit(unit.name), self._failure)

    def _await_relay(self, step: Step) -> tuple[Step, ...]:
        """R4: the relay has to answer CRI Version and Status, and keep answering, before kubelet may use
        it. One for which kubelet has no time left is awaited again without kubelet."""
        unit = self._host.systemd.unit(paths.PROXY_UNIT)
        why, may_be_slow = self._why_not_ready(unit, step), True
        if not why:
            why, may_be_slow = self._why_not_settled(unit, step), bool(self._plan.leaves_if_slow)
        if why and may_be_slow and (leaving := self._leave()):
            return (*leaving, step)
        if why:
            look = f"`journalctl -u {paths.PROXY_UNIT} -n 50` shows what it was doing"
            hint = f"{look}; if it only needs longer, raise proxy.startTimeoutSeconds"
            raise self._failure(paths.PROXY_UNIT, why, hint)
        self._progress.proxy, self._relay_deadline, self._start_began = unit, 0.0, None
        return ()

    def _why_not_settled(self, unit: UnitState, step: Step) -> str:
        # A proxy that this plan has not touched has settled already.
        settle = PROXY_SETTLE if step.part is Part.PROXY else 0.0
        settled = self._host.clock.monotonic() + settle
        while (left := settled - self._host.clock.monotonic()) > 0:
            self._host.clock.sleep(min(_SETTLE_POLL, left))
            self._check_steady(unit)
        if self._relay_answers():
            return ""
        self._check_steady(unit)
        return "the relay stopped answering"

    def _relay_answers(self) -> bool:
        """Ask once, for little longer than the relay may take."""
        left = (self._relay_deadline or math.inf) - self._host.clock.monotonic()
        return self._host.cri.answers(paths.RELAY_ENDPOINT, answer_seconds(left))

    def _why_not_ready(self, unit: UnitState, step: Step) -> str:
        # The start itself is part of the time that the relay may take.
        now, limits = self._host.clock.monotonic(), self._limits
        began = now if self._start_began is None else self._start_began
        deadline = self._relay_deadline or max(began + limits.proxy_start, now + 1.0)
        furthest = 0.0 if limits.hanging else began + limits.furthest
        activity = Activity(unit, self._progress.journal_from, self._host)
        left = partial(activity.left, deadline, furthest)
        reason = why_not_ready(self._host, step.target, left, lambda: self._check_steady(unit))
        waited = self._host.clock.monotonic() - began
        return f"the relay is not ready after {waited:.0f} s: {reason}" if reason else ""

    def _await_kubelet(self, step: Step) -> None:
        """This run has moved or restarted it, or one that was cut off and that this one carries on."""
        self._progress.moved_kubelet = True
        self._kubelet().wait(step)

    def _kubelet(self) -> KubeletStart:
        proxy, start = self._progress.proxy, self._progress.journal_from
        return KubeletStart(self._plan, self._host, self._limits, self._failure, proxy, start)


def _message(step: Step, error: InstallerError) -> str:
    """Name the step, unless the error does: those of systemd's calls say what was called."""
    return error.message if step.describe in error.message else f"{step.describe}: {error.message}"
