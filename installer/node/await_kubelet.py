"""Wait for a restarted kubelet: whether it comes up, on the right endpoint, and stays up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from installer.errors import InstallerError, StepFailedError
from installer.host.ports import Host
from installer.model import paths
from installer.model.event import Emit, Event, name_some
from installer.model.host import Health, UnitState
from installer.model.instant import parse_time
from installer.model.limits import Limits
from installer.model.plan import Plan, Step
from installer.node.adoption import find_leftovers
from installer.node.kubelet_endpoint import is_behind_shell
from installer.node.kubelet_link import read_kubelet
from installer.node.kubelet_strategy import effective
from installer.node.run import Progress

_POLL = 0.05  # seconds
_SETTLE_POLL = 0.5  # seconds
_GUARD_SAYS, _NOT_READY = "cri-resmgr-kubelet-guard: ", "the relay is not ready"  # see the script's `say`
_CALM_SECONDS, _CALM_POLL = 10.0, 0.5
_YOUNG = 60.0  # seconds: in an older pod, no image is about to arrive
_NAMES = 3  # that a message lists

Failure = Callable[[str, str], StepFailedError]
"""(unit, why) -> the error that names both."""


def failure_of(unit: str, why: str) -> StepFailedError:
    """See Failure."""
    return StepFailedError(f"{unit}: {why}")


def await_calm(host: Host, emit: Emit) -> bool:
    """Before kubelet is restarted or moved, wait until it has started what it is about to start. A call that
    is cut off leaves a container behind in the runtime, and kubelet tries to create a pod or to pull an image
    again only 10 to 15 s later. Ends after some seconds, or if the relay is silent. Returns whether the relay
    has answered last."""
    deadline, announced = host.clock.monotonic() + _CALM_SECONDS, False
    while host.clock.monotonic() < deadline:
        try:
            answers = host.cri.answers(paths.RELAY_ENDPOINT, _CALM_POLL)
            awaited = _starting(host, paths.RELAY_ENDPOINT) if answers else ()
        except InstallerError:
            return False
        if not awaited:
            return answers
        if not announced:
            message = f"waiting until kubelet has started {name_some(awaited, _NAMES)}"
            emit(Event("kubelet.waits", message, {"starting": awaited}))
        announced = True
        host.clock.sleep(_CALM_POLL)
    return True


def _starting(host: Host, endpoint: str) -> tuple[str, ...]:
    """The titles of containers that do not run yet, and of young pods without any: the image of a pod's first
    container is being pulled. In an older one the image cannot be pulled, or takes too long to be waited for.
    Raises StepFailedError."""
    begun = host.cri.unstarted(endpoint, _CALM_POLL)
    running = host.cri.containers(endpoint, _CALM_POLL) if begun else ()
    containers = [one.title for one in set(begun).difference(find_leftovers(begun, running))]
    empty, now = host.cri.empty_pods(endpoint, _CALM_POLL), parse_time(host.clock.now())
    return tuple(sorted((*containers, *(pod.title for pod in empty if abs(now - pod.created) < _YOUNG))))


def is_stopped(unit: UnitState) -> bool:
    """Whether somebody has stopped the unit, or is stopping it. While systemd stops a unit on request, the
    unit has a main process or a job. If it ends by itself, it has neither, unless it ends while it starts.
    The result `timeout` means a slow stop (TimeoutStopSec=) if the unit had come up, else a slow start."""
    late = unit.came_up and unit.result == "timeout"
    stops = unit.active_state == "deactivating" and (unit.main_pid > 0 or unit.has_job)
    ended = unit.active_state == ("failed" if late else "inactive")
    return (late or unit.result == "success") and (stops or ended)


def check_steady(before: UnitState, now: UnitState, failure: Failure) -> None:
    """Raises `failure` unless the same process is still running. It is `interfered` if somebody else has
    restarted or stopped the unit: systemd counts only its own restarts (systemd.service(5), NRestarts)."""
    stops, state = now.active_state == "deactivating", f"{now.active_state}/{now.sub_state}, {now.result}"
    if now.main_pid and now.main_pid == before.main_pid and not (stops or now.flapping):
        return
    meanwhile, starts = "", now.main_pid or now.active_state == "activating"
    crashes = now.n_restarts > before.n_restarts  # and systemd's own start of it is a job
    if is_stopped(now) and not crashes:
        meanwhile = "somebody else stopped it"
    elif starts and not (stops or now.flapping or crashes):
        meanwhile = "somebody else restarted it"
    error = failure(now.name, f"{meanwhile or 'it keeps crashing'} ({state})")
    error.interfered = bool(meanwhile)
    raise error


@dataclass(frozen=True, slots=True)
class KubeletStart:
    """The starts of kubelet by one plan."""

    plan: Plan
    host: Host
    limits: Limits
    progress: Progress

    def check_effective(self, step: Step) -> None:
        """Check that our lines are in force in the unit that systemd has loaded. Raises StepFailedError.
        Somebody's drop-in may have come meanwhile, which the next run's preflight sees."""
        kubelet, systemd = self.plan.desired.kubelet, self.host.systemd
        assert kubelet is not None
        wrong = effective(systemd.detail(step.target), systemd.unit(step.target), kubelet)
        if wrong:
            error = self.progress.failure(step.target, f"our lines have no effect: {wrong}")
            error.interfered = True
            raise error

    def wait(self, step: Step) -> None:
        """Wait until kubelet is healthy, then check that the same process stays healthy for the settle time,
        on the right endpoint. This run has moved or restarted it, or one that was cut off and that this one
        carries on. Raises StepFailedError."""
        self.progress.moved_kubelet = True
        relay, settle = self.plan.desired.kubelet is not None, self.limits.settle
        name, unit = step.target, self.host.systemd.unit(step.target)
        proxy = (self.progress.proxy or self.host.systemd.unit(paths.PROXY_UNIT)) if relay else None
        deadline = self.host.clock.monotonic() + self.limits.kubelet_start
        # Without a healthz URL, a script may not have reached its `exec` of kubelet yet.
        kubelet = self.host.processes.kubelet
        while self._is_unwell(unit) or (relay and is_behind_shell(kubelet(unit.main_pid))):
            self._check_relay(proxy)  # first: kubelet does not survive a relay that dies
            self._check_steady(unit)
            if self.host.clock.monotonic() > deadline:
                late = f"{self.limits.kubelet_start:g} s after the restart"
                raise self.progress.failure(name, f"{self.limits.healthz_url} is not ok {late}")
            self.host.clock.sleep(_POLL)
        self._check_endpoint(name, unit, proxy)
        settled = self.host.clock.monotonic() + settle
        while (left := settled - self.host.clock.monotonic()) > 0:
            self.host.clock.sleep(min(_SETTLE_POLL, left))
            self._check_relay(proxy)
            unwell = self._is_unwell(unit)
            self._check_steady(unit)  # after that question: somebody may be stopping it
            if unwell:
                raise self.progress.failure(name, f"{self.limits.healthz_url} stopped being ok")
        self._check_endpoint(name, unit, proxy)

    def _check_steady(self, unit: UnitState) -> None:
        check_steady(unit, self.host.systemd.unit(unit.name), self.progress.failure)

    def _is_unwell(self, unit: UnitState) -> bool:
        """If kubelet's health is unknown, only its process counts: it exits if its endpoint does not
        answer."""
        return self.host.healthz.ask(self.limits.healthz_url, unit.main_pid) is Health.UNWELL

    def _check_relay(self, proxy: UnitState | None) -> None:
        """R4: kubelet does not stay on a relay that dies or falls silent while kubelet settles on it."""
        if proxy is None:
            return
        answers = self.host.cri.answers(paths.RELAY_ENDPOINT)
        self._check_steady(proxy)
        if not answers:
            raise self.progress.failure(proxy.name, "the relay stopped answering under kubelet")

    def _check_endpoint(self, name: str, unit: UnitState, proxy: UnitState | None) -> None:
        now, relay = self.host.systemd.unit(name), proxy is not None
        check_steady(unit, now, self.progress.failure)
        desired = self.plan.desired.kubelet
        if desired is not None and not desired.unit.generation:
            return  # an earlier installation is back, whose relay may be in kubelet's configuration
        kubelet = read_kubelet(self.host, now)
        process, freed = kubelet.process, self.plan.rescues or not kubelet.linked
        if self.plan.desired.names_relay:
            right = kubelet.on_relay
        else:
            right = kubelet.is_at(paths.RELAY_ENDPOINT) if relay else freed and not kubelet.on_relay
        if process is None or not right:
            self._check_steady(unit)  # its process may be gone since systemd was asked
            wanted = "the relay" if relay else "its base endpoint"
            has = (process and process.flag("--container-runtime-endpoint")) or "no endpoint"
            has += f", which leads to {kubelet.target or 'nothing'}" if kubelet.linked else ""
            error = self.progress.failure(name, f"it did not start on {wanted}: its command line has {has}")
            if proxy is not None:
                self._check_steady(proxy)  # kubelet leaves a proxy that stops
                error = self._with_guards_reason(name, error)
            raise error

    def _with_guards_reason(self, name: str, error: StepFailedError) -> StepFailedError:
        """The failure with what the guard says. The relay has answered: only if the guard does not find it
        ready, or if the flag that it added got lost, may what is installed be to blame. Anything else lies
        in kubelet's unit: its environment, its sandbox."""
        self.host.journal.sync()
        unit = self.host.systemd.unit(name).identifier
        logged = self.host.journal.since(unit, self.progress.journal_from)
        said = [line.partition(_GUARD_SAYS)[2] for line in logged if _GUARD_SAYS in line]
        why = said[-1] if said else "nothing"
        blameless = not said or (why.startswith("base endpoint") and _NOT_READY not in why)
        return StepFailedError(f"{error.message}; the guard says: {why}", error.hint, blameless)
