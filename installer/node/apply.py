"""Carry out a plan's steps: the only stage that changes the host.

`converge` has recorded ownership before. A step that does not have its effect raises StepFailedError and
leaves the rollback to the caller. A signal ends the run between two steps. After a crash inside a step, the
next run recovers.
"""

from __future__ import annotations

import posixpath
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial

from installer.errors import (
    DESTRUCTIVE,
    NO_SUCH_UNIT,
    UNIT_MASKED,
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
from installer.model.host import Part
from installer.model.limits import JOB_SLACK, RELOAD, Limits
from installer.model.plan import Plan, Step, StepKind
from installer.model.result import Tally
from installer.node.adoption import forget_agent, forget_old, set_aside_cache
from installer.node.adoption_steps import Adoption
from installer.node.await_kubelet import KubeletStart, await_calm
from installer.node.controls import return_controls
from installer.node.file_steps import clear_hold, restore, write, write_hold
from installer.node.known_pods import announce_kubelet
from installer.node.kubelet_link import is_there, move, read_kubelet
from installer.node.links import disable
from installer.node.pinning import give_back
from installer.node.proxy_signal import ProxySignal
from installer.node.proxy_start import ProxyStart
from installer.node.relay_steps import check_restart, check_way_back, move_step, restart_kubelet_steps
from installer.node.run import Progress, warn
from installer.node.unit_jobs import message_of, start_unit

_JOBS = (StepKind.RESTART, StepKind.STOP)
# Errors with which systemd refuses a job, and which say nothing about what was installed: a unit is missing
# that others require, a unit is masked, the host shuts down.
_OTHERS_DOING = (NO_SUCH_UNIT, UNIT_MASKED, DESTRUCTIVE)


def apply_plan(
    plan: Plan, host: Host, limits: Limits, emit: Emit, progress: Progress, tally: Tally | None = None
) -> None:
    """Carry out every step in order.

    Raises StepFailedError that names what failed (the journal of `progress.failed_unit` tells more), and
    InterruptedRunError and KubeletKeptError between two steps.
    """
    _Worker(plan, host, limits, emit, progress, tally or Tally()).run()


class _Worker:
    def __init__(
        self, plan: Plan, host: Host, limits: Limits, emit: Emit, progress: Progress, tally: Tally
    ) -> None:
        self._plan, self._host, self._limits, self._emit = plan, host, limits, emit
        self._progress, self._tally = progress, tally
        self._proxy = proxy = ProxyStart(plan, host, limits, emit, progress)
        self._adoption = adoption = Adoption(plan, host, emit, progress, proxy)
        signal, kubelet = ProxySignal(proxy), KubeletStart(plan, host, limits, progress)
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
            StepKind.ADOPT: adoption.adopt,
            StepKind.CHECK_WEIGHTS: adoption.check_weights,
            StepKind.CHECK_PODS: adoption.check_pods,
            StepKind.AWAIT_START: proxy.await_start,
            StepKind.RESTART: self._restart,
            StepKind.SIGNAL: signal.send,
            StepKind.RESTART_IF_REFUSED: signal.restart_if_refused,
            StepKind.STOP: proxy.stop,
            StepKind.MOVE: self._move,
            StepKind.RETURN: self._return,
            StepKind.LEAVE_IF_SLOW: proxy.leave_if_slow,
            StepKind.AWAIT_RELAY: proxy.await_relay,
            StepKind.CHECK_EFFECTIVE: kubelet.check_effective,
            StepKind.AWAIT_KUBELET: kubelet.wait,
            StepKind.DELETE_STATE: lambda step: host.files.remove_tree(step.target),
        }

    def run(self) -> None:
        """Carry out and report every step. A step may return steps that must follow it at once."""
        steps, clock, progress = self._plan.steps, self._host.clock, self._progress
        try:
            while steps:
                clock.check()
                check_way_back(steps, self._plan.kubelet_unit, progress.restarts_left, progress.held)
                step, started = steps[0], clock.monotonic()
                data = {"step": step.kind.value}
                self._emit(Event("step.started", step.describe, data))
                steps = (*self._do(step), *steps[1:])
                seconds = round(clock.monotonic() - started, 3)
                self._emit(Event("step.done", step.describe, {**data, "seconds": seconds}))
                self._tally.count()
        except StepFailedError:
            self._adoption.forget()
            self._withdraw_starts()
            raise

    def _withdraw_starts(self) -> None:
        """An announced start may never have begun. The guard must not take a later one for it."""
        for path in (paths.PROXY_START_OURS, paths.KUBELET_START_OURS):
            with suppress(InstallerError, OSError):
                self._host.files.remove(path)

    def _do(self, step: Step) -> Iterable[Step]:
        self._progress.touched.add(step.part)
        try:
            return self._verbs[step.kind](step) or ()
        except SystemdError as error:
            self._progress.failed_unit = step.target if step.target.endswith(".service") else ""
            # What was installed is not to blame for more than a job.
            blameless = error.lost or step.kind not in _JOBS or error.name in _OTHERS_DOING
            raise StepFailedError(message_of(step, error), error.hint, blameless) from error
        except (StepFailedError, InterruptedRunError, KubeletKeptError):
            raise
        except InstallerError as error:
            # A symlink that appears in the path, a source that changes while it is copied, a lost bus.
            raise StepFailedError(message_of(step, error), error.hint, True) from error
        except OSError as error:
            raise failed_on_disk(step.describe, error) from error
        except Exception as error:  # must not leave the node half changed either
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{posixpath.basename(place.filename)}:{place.lineno}"
            bug = f"{type(error).__name__}: {error} ({where}; this is a bug, please report it)"
            raise StepFailedError(f"{step.describe}: {bug}") from error

    def _reset_pinning(self, step: Step) -> None:
        forget_old(self._host.files)  # of an interrupted adoption
        give_back(self._host, step.target, self._emit, everyone=self._plan.resets_all)

    def _restart(self, step: Step) -> tuple[Step, ...]:
        if step.part is Part.PROXY:
            return self._proxy.restart(step)
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
        seconds = self._limits.guard + self._limits.kubelet_start + JOB_SLACK
        start_unit(step, seconds, self._host, progress, at_once=at_once)
        return ()

    def _await_calm(self, *, to_relay: bool) -> None:
        """R4: a relay that has fallen silent meanwhile gets no kubelet."""
        calm = await_calm(self._host, self._emit)
        if to_relay and not (calm or self._proxy.relay_answers()):
            if self._progress.proxy is not None:
                self._proxy.check_steady(self._progress.proxy)
            raise self._progress.failure(paths.PROXY_UNIT, "the relay stopped answering")

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
                self._proxy.check_steady(progress.proxy)  # which then is the cause
            if not self._plan.rescues or isinstance(error, InterruptedRunError):
                raise
            # /run takes no link: then the guard does not use one either.
            warn(self._emit, "kubelet-not-moved", f"kubelet could not be moved, and is restarted: {error}")
            return restart_kubelet_steps(self._plan.kubelet_unit)
        if to_relay and progress.proxy is not None:
            self._proxy.check_steady(progress.proxy)
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
