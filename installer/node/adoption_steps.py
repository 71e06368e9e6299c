"""What a plan does so that the proxy knows each container and pod, as often as it has to be done.

While the proxy is started, kubelet may create some beside it. `adoption` and `known_pods` find them.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace

from installer.errors import InstallerError, StepFailedError
from installer.host.ports import Host
from installer.model import paths
from installer.model.event import Emit, Event
from installer.model.host import Part, RunningContainer
from installer.model.plan import Plan, Step, StepKind
from installer.node.adoption import adopt, bring_back, find_lost, forget_old, raise_low
from installer.node.known_pods import can_save, find_unknown, why_unknown
from installer.node.kubelet_link import forget_unknown
from installer.node.proxy_start import ProxyStart
from installer.node.relay_steps import RETURN, restart_proxy_steps
from installer.node.run import Progress, warn
from installer.node.unit_jobs import JobWaitsError

_ADOPTIONS = 3  # in a row, of containers created meanwhile
_AGAIN = 2  # starts of the proxy because it does not know a pod


@dataclass(slots=True)
class Adoption:
    """The adoptions of one plan. A method that does a step returns the steps that must follow it at once."""

    plan: Plan
    host: Host
    emit: Emit
    progress: Progress
    proxy: ProxyStart
    _adopted: bool = False  # the cache may be ours
    _before: dict[str, RunningContainer] = field(default_factory=dict)  # ran before the start, by ID
    _raised: set[str] = field(default_factory=set)  # containers that had too little weight before this plan
    _late: int = 0  # adoptions in a row of containers created meanwhile
    _again: int = 0  # starts of the proxy because it did not know a pod

    def adopt(self, step: Step) -> tuple[Step, ...]:
        """Like a start, it may be slow with many containers. Raises StepFailedError, InstallerError and
        OSError."""
        seconds = self.proxy.limits.proxy_start / 2
        try:
            running = adopt(self.host, step.target, self._stop_proxy, seconds, self.emit)
        except StepFailedError as error:
            stayed = isinstance(error, JobWaitsError) and self.proxy.relay_answers()
            if stayed or self.proxy.away < seconds or not (leaving := self.proxy.leave()):
                raise
            return (*leaving, step)
        self._before = {container.id: container for container in running} | self._before
        return ()

    def _stop_proxy(self) -> None:
        self._adopted = True  # from now on we may have written the cache
        self.proxy.stop_for_adoption()

    def check_weights(self, step: Step) -> tuple[Step, ...]:
        """Containers created while the proxy started are adopted at once. One that the proxy merely does not
        know waits until kubelet has moved, since more may be created until then. Raises StepFailedError,
        InstallerError and OSError."""
        settled = self.progress.moved_kubelet or not self.plan.takes_kubelet
        losses = find_lost(self.host, step.target, self._before, unknown_too=settled)
        low = [loss for loss in losses if loss.was_low and loss.container.id not in self._raised]
        self._raised |= {loss.container.id for loss in low}
        raise_low(self.host, step.target, low, self.emit)
        lost = [loss for loss in losses if not loss.was_low]
        if not lost:
            self._late = 0
            forget_old(self.host.files)
            return ()
        self._late += 1
        if self._late == _ADOPTIONS:
            message = f"new containers keep being created outside the proxy: {lost[0].how}"
            raise StepFailedError(message, "run the same command again", True)
        return (replace(step, kind=StepKind.ADOPT), *self._start_again(), step)

    def check_pods(self, step: Step) -> tuple[Step, ...]:
        """What cannot be told or mended now is no reason to undo what was done: the next run tries again."""
        files, plan = self.host.files, self.plan
        try:
            unknown = find_unknown(self.host, step.target)
        except (InstallerError, OSError) as error:
            message = f"the proxy's pods could not be compared with the runtime's: {error}"
            warn(self.emit, "pods-unknown", message)
            return ()
        if not unknown:
            if not plan.harms:  # else a container may be unknown
                forget_unknown(self.host, plan.kubelet_unit)
            return ()
        why = f"{paths.PROXY_UNIT}: {why_unknown(unknown)}"
        if plan.harms or self._again == _AGAIN or not can_save(files):
            warn(self.emit, "pods-unknown", why)
            return ()
        self._again += 1
        self.emit(Event("pods.unknown", f"{why}: restarting it", {"pods": unknown}))
        adopt = (Step(StepKind.ADOPT, plan.adopts, Part.PROXY),) if plan.adopts else ()
        check = (Step(StepKind.CHECK_WEIGHTS, plan.adopts, Part.PROXY),) if plan.adopts else ()
        return (*adopt, *self._start_again(), *check, step)

    def _start_again(self) -> tuple[Step, ...]:
        """Kubelet may be on the relay by now."""
        return (*restart_proxy_steps(self.plan.leaves_if_slow), RETURN)

    def forget(self) -> None:
        """Leave the cache as cri-resmgr itself has written it: the rollback must not start on ours."""
        if self._adopted:
            with suppress(InstallerError, OSError):
                bring_back(self.host)
