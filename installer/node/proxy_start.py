"""Start the proxy for a plan, and await its relay, though the start may be slow.

While kubelet hangs on the relay, all waits for the proxy together take at most one `Limits.proxy_start`. Then
kubelet leaves the relay, if it may, and the proxy gets all the time that it needs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

from installer.errors import TIMEOUT, SystemdError
from installer.host.ports import Host
from installer.model import paths
from installer.model.event import Emit, Event
from installer.model.host import Part, UnitState
from installer.model.limits import PROXY_SETTLE, Limits, answer_seconds
from installer.model.plan import Plan, Step, StepKind
from installer.node.adoption import announce_start
from installer.node.await_kubelet import check_steady
from installer.node.await_proxy import TOO_LONG, Activity, why_not_ready, why_not_started
from installer.node.relay_steps import move_step
from installer.node.run import Progress
from installer.node.unit_jobs import JobWaitsError, await_job, start_unit

_POLL = 0.05  # seconds
_SETTLE_POLL = 0.5  # seconds
_STOP_TIMEOUT = 20.0  # seconds; the unit's own TimeoutStopSec is far below


@dataclass(slots=True)
class ProxyStart:
    """The starts of the proxy by one plan. A method that does a step returns the steps that must follow it at
    once."""

    plan: Plan
    host: Host
    limits: Limits
    emit: Emit
    progress: Progress
    _deadline: float = 0.0  # of the relay, on the host's clock; 0: none is set
    _began: float | None = None  # when this plan started the proxy
    _away_since: float = 0.0  # when an adoption stopped the proxy

    def restart(self, step: Step) -> tuple[Step, ...]:
        """Start the proxy. Raises SystemdError, StepFailedError."""
        self.progress.moved_proxy = True
        # Then kubelet has been hanging all that time.
        if self.limits.hanging and 0 < self._deadline <= self.host.clock.monotonic():
            if not (leaving := self.leave()):
                raise self.progress.failure(paths.PROXY_UNIT, "the relay is not ready: it did not answer")
            return (*leaving, step)
        self.progress.journal_from = self.host.journal.cursor()
        if self.host.systemd.unit(step.target).restarts_itself:
            self.stop(step)  # else a restart by systemd would use up the announcement
        announce_start(self.host.files)
        self._began = self.host.clock.monotonic()
        seconds, self._away_since = self._time_left(max(1.0, self.limits.proxy_start - self.away)), 0.0
        try:
            start_unit(step, seconds, self.host, self.progress)
        except SystemdError as error:
            # What systemd refuses has not begun, and the old process runs on.
            late = error.name == TIMEOUT and not error.lost
            if not (late and self.host.systemd.unit(step.target).starts and (leaving := self.leave())):
                raise
            return leaving
        except JobWaitsError:
            # Kubelet does not wait on a silent relay for another unit's job. What stops may have failed.
            stops = self.host.systemd.unit(step.target).active_state == "deactivating"
            if stops or self.relay_answers() or not (leaving := self.leave()):
                raise
            return (*leaving, step)
        return ()

    def stop(self, step: Step) -> None:
        """Stop the proxy. Raises SystemdError, StepFailedError."""
        self.progress.moved_proxy = True
        job = partial(self.host.systemd.stop, step.target, _STOP_TIMEOUT)
        await_job(step, "stop", job, self.host, self.progress)
        self.host.systemd.reset_failed(step.target)

    def stop_for_adoption(self) -> None:
        """Stop the proxy. The time until its next start counts as part of that start, since kubelet may hang
        on the relay. Raises SystemdError, StepFailedError."""
        self._away_since = self.host.clock.monotonic()
        self.stop(Step(StepKind.STOP, paths.PROXY_UNIT, Part.PROXY))

    @property
    def away(self) -> float:
        """For how many seconds the proxy has been stopped for an adoption; 0 if it is not."""
        return self.host.clock.monotonic() - self._away_since if self._away_since else 0.0

    def silent_since(self, answered: float) -> None:
        """Kubelet may hang on the relay since it answered last: `answered`, on the host's clock. That time
        counts as part of the next start."""
        self._deadline = answered + self.limits.proxy_start if self.limits.hanging else 0.0

    def leave_if_slow(self, _step: Step) -> tuple[Step, ...]:
        """Wait for the relay as long as kubelet may hang on it. Raises StepFailedError if the
        proxy ends."""
        if not (self.limits.hanging and self._deadline):
            return ()  # kubelet does not hang, or the proxy has not been started
        unit = self.host.systemd.unit(paths.PROXY_UNIT)
        while not self.relay_answers():
            self.check_steady(unit)
            if self.host.clock.monotonic() >= self._deadline:
                return self.leave()
            self.host.clock.sleep(_POLL)
        return ()

    def await_start(self, step: Step) -> tuple[Step, ...]:
        """Repeat a start that takes longer than its containers explain."""
        limits = self.limits
        longest = self._time_left(limits.proxy_start) if limits.hanging else limits.begun_start
        self.progress.journal_from = self.host.journal.cursor()
        furthest = 0.0 if limits.hanging else limits.furthest
        why = why_not_started(self.host, limits.begun_start, longest, furthest)
        if not why:
            return ()
        if why == TOO_LONG and (leaving := self.leave()):
            return (*leaving, step)
        message = f"{step.target} did not finish starting; restarting it: {why}"
        self.emit(Event("warning", message, {"code": "start-failed", "hint": ""}))
        return (replace(step, kind=StepKind.RESTART),)

    def await_relay(self, step: Step) -> tuple[Step, ...]:
        """R4: the relay has to answer CRI Version and Status, and keep answering, before kubelet may use
        it. One for which kubelet has no time left is awaited again without kubelet.

        Raises StepFailedError."""
        unit = self.host.systemd.unit(paths.PROXY_UNIT)
        why, may_be_slow = self._why_not_ready(unit, step), True
        if not why:
            why, may_be_slow = self._why_not_settled(unit, step), bool(self.plan.leaves_if_slow)
        if why and may_be_slow and (leaving := self.leave()):
            return (*leaving, step)
        if why:
            look = f"`journalctl -u {paths.PROXY_UNIT} -n 50` shows what it was doing"
            hint = f"{look}; if it only needs longer, raise proxy.startTimeoutSeconds"
            raise self.progress.failure(paths.PROXY_UNIT, why, hint)
        self.progress.proxy, self._deadline, self._began = unit, 0.0, None
        return ()

    def leave(self) -> tuple[Step, ...]:
        """The steps by which kubelet leaves the relay, if it may, because a start of the proxy has used up
        its time and is still silent. The start then gets all the time that it had been denied only because
        kubelet hung on it."""
        if not self.limits.cuts_short:
            return ()
        endpoint = self.plan.leaves_if_slow
        if endpoint and not self.host.cri.answers(endpoint):  # no endpoint would be better
            endpoint, self.progress.runtime_away = "", True
        if not endpoint:
            self.progress.cut_short = True
            return ()
        message = f"the proxy has not answered for {self.limits.proxy_start:g} s: kubelet leaves the relay"
        hint = "kubelet returns to the relay once the proxy answers"
        self.emit(Event("warning", message, {"code": "slow-start", "hint": hint}))
        self.limits = replace(self.limits, hanging=False, proxy_start=self.limits.unhurried)
        self._deadline = 0.0
        self.progress.left_relay = True
        return (move_step(endpoint),)

    def relay_answers(self) -> bool:
        """Ask once, for little longer than the relay may take."""
        left = (self._deadline or math.inf) - self.host.clock.monotonic()
        return self.host.cri.answers(paths.RELAY_ENDPOINT, answer_seconds(left))

    def check_steady(self, unit: UnitState) -> None:
        """Raises StepFailedError unless the process of `unit` still runs."""
        check_steady(unit, self.host.systemd.unit(unit.name), self.progress.failure)

    def _time_left(self, bound: float) -> float:
        """How many seconds the proxy may take now: `bound`, or what is left of it if kubelet has been
        hanging on it."""
        now = self.host.clock.monotonic()
        if not (self.limits.hanging and self._deadline):
            self._deadline = now + bound
        return self._deadline - now

    def _why_not_ready(self, unit: UnitState, step: Step) -> str:
        # The start itself is part of the time that the relay may take.
        now, limits = self.host.clock.monotonic(), self.limits
        began = now if self._began is None else self._began
        deadline = self._deadline or max(began + limits.proxy_start, now + 1.0)
        furthest = 0.0 if limits.hanging else began + limits.furthest
        left = partial(Activity(unit, self.progress.journal_from, self.host).left, deadline, furthest)
        reason = why_not_ready(self.host, step.target, left, lambda: self.check_steady(unit))
        waited = self.host.clock.monotonic() - began
        return f"the relay is not ready after {waited:.0f} s: {reason}" if reason else ""

    def _why_not_settled(self, unit: UnitState, step: Step) -> str:
        # A proxy that this plan has not touched has settled already.
        settled = self.host.clock.monotonic() + (PROXY_SETTLE if step.part is Part.PROXY else 0.0)
        while (left := settled - self.host.clock.monotonic()) > 0:
            self.host.clock.sleep(min(_SETTLE_POLL, left))
            self.check_steady(unit)
        if self.relay_answers():
            return ""
        self.check_steady(unit)
        return "the relay stopped answering"
