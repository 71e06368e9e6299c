"""The way back after a plan failed: to the last good generation, or to what was there before us.

The same path with another desired state. Only the parts that the failed plan
touched are moved; kubelet besides, if the good proxy does not come back: then
it is held on its base endpoint, so that the node lives.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from installer.apply import Limits, Progress, apply_plan
from installer.desired import with_generation
from installer.errors import (
    InstallerError,
    InterruptedRunError,
    RollbackFailedError,
    RolledBackError,
    StepFailedError,
)
from installer.host.ports import Clock, Host
from installer.ledger import Ledger
from installer.model import paths
from installer.model.change import Changes
from installer.model.event import Emit, Event
from installer.model.plan import Plan, Step, StepKind
from installer.model.resource import Part
from installer.model.state import Desired
from installer.plan import build_plan
from installer.record import good_desired
from installer.verify import look_again, remaining

_JOURNAL_LINES = 30


@dataclass(frozen=True, slots=True)
class Attempt:
    """The plan that failed, and whether the environment was sound when it began."""

    plan: Plan
    progress: Progress
    base_endpoint: str
    sound_before: bool
    nonce: str


class _Unstoppable:
    """A clock whose waits no signal ends: a way back that stops half-way is worse than a late one."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.now = clock.now
        self.monotonic = clock.monotonic

    def sleep(self, seconds: float) -> None:
        try:
            self._clock.sleep(seconds)
        except InterruptedRunError:
            time.sleep(seconds)

    def check(self) -> None:
        """Nothing asks this run to end."""


def roll_back(
    attempt: Attempt,
    failure: StepFailedError,
    host: Host,
    ledger: Ledger,
    limits: Limits,
    emit: Emit,
) -> InstallerError:
    """Undoes what the attempt did and returns the error that tells the story (exit 5 or 6)."""
    host = replace(host, clock=_Unstoppable(host.clock))
    unit = attempt.progress.failed_unit
    journal = host.journal.tail(unit, _JOURNAL_LINES) if unit else ()
    emit(Event("rollback.started", f"failed: {failure.message}; going back", {"reason": failure.message}))
    target = good_desired(ledger.record, host.files) or Desired()
    try:
        _converge_back(attempt, target, host, ledger, limits, emit)
    except (InstallerError, OSError) as second:
        if not _runtime_ready(attempt, host):
            # All is written as it was; a proxy without its runtime waits, and systemd tries again.
            return _runtime_away(failure, second, unit, journal)
        rescued = _rescue_kubelet(attempt, host, ledger, limits, emit)
        return _failed_twice(failure, second, rescued, unit, journal)
    blamed = _blame(attempt, failure, host, ledger, limits)
    if target.proxy is None:
        ledger.close_as_before()
    else:
        ledger.close_as_good()
    return _rolled_back(failure, target, blamed, unit, journal)


def _converge_back(
    attempt: Attempt, target: Desired, host: Host, ledger: Ledger, limits: Limits, emit: Emit
) -> None:
    touched = attempt.progress.touched
    kubelet_unit, url = attempt.plan.kubelet_unit, limits.healthz_url
    observation, changes = look_again(host, target, ledger.record, kubelet_unit, url)
    changes = _only(changes, touched)
    plan = build_plan(
        attempt.plan.mode,
        target,
        changes,
        (),
        attempt.nonce,
        with_generation,
        kubelet_unit=kubelet_unit,
        hold=host.files.state(paths.HOLD).digest != "",
        state=ledger.state_of_ours() if target.proxy is None and Part.PROXY in touched else (),
    )
    waits = any(step.kind is StepKind.AWAIT_KUBELET for step in plan.steps)
    if attempt.progress.moved_kubelet and not waits and not observation.kubelet_healthy:
        # Between two tries it is on no endpoint: nothing differs, but it is down because of us.
        plan = replace(plan, steps=plan.steps + _kubelet_again(kubelet_unit))
    ledger.claim(plan, observation)
    apply_plan(plan, host, limits, emit, Progress())
    ledger.note_applied(plan, host.systemd.unit(paths.PROXY_UNIT).invocation_id)
    observation, changes = look_again(host, target, ledger.record, kubelet_unit, url)
    left = remaining(_only(changes, touched))
    if left:
        raise StepFailedError(f"still not as before: {left}")


def _only(changes: Changes, parts: set[Part]) -> Changes:
    return Changes(
        tuple(change for change in changes.files if change.part in parts),
        tuple(change for change in changes.units if change.part in parts),
    )


def _kubelet_again(name: str) -> tuple[Step, ...]:
    return tuple(Step(kind, name, Part.KUBELET) for kind in (StepKind.RESTART, StepKind.AWAIT_KUBELET))


def _rescue_kubelet(attempt: Attempt, host: Host, ledger: Ledger, limits: Limits, emit: Emit) -> bool:
    """The good proxy did not come back: kubelet leaves the relay, and stays away until a human or a
    later success ends the hold. Says whether kubelet is healthy on its base endpoint."""
    name = attempt.plan.kubelet_unit
    try:
        ledger.hold("the way back failed too: kubelet stays on its base endpoint")
        unit = host.systemd.unit(name)
        process = host.processes.get(unit.main_pid) if unit.main_pid else None
        if process is not None and not process.uses_relay and host.healthz.ok(limits.healthz_url):
            return True
        plan = replace(attempt.plan, desired=Desired(), steps=_kubelet_again(name))
        apply_plan(plan, host, replace(limits, settle=min(limits.settle, 2.0)), emit, Progress())
    except (InstallerError, OSError):
        return False
    return True


def _runtime_ready(attempt: Attempt, host: Host) -> bool:
    try:
        return host.cri.status(attempt.base_endpoint).ready
    except InstallerError:
        return False


def _blame(attempt: Attempt, failure: StepFailedError, host: Host, ledger: Ledger, limits: Limits) -> bool:
    """R8: only a sound environment lets us blame the generation."""
    if attempt.plan.desired.proxy is None or not attempt.sound_before or failure.interfered:
        return False
    if not _runtime_ready(attempt, host) or not host.healthz.ok(limits.healthz_url):
        return False
    ledger.blame(attempt.plan.desired.generation, failure.message, host.clock)
    return True


def _rolled_back(
    failure: StepFailedError, target: Desired, blamed: bool, unit: str, journal: tuple[str, ...]
) -> RolledBackError:
    where = "the last good generation is in place again" if target.proxy else "the host is as it was before"
    hint = f"{where}. "
    if blamed:
        hint += (
            "This generation is remembered and not tried again: change an input (settings, configs, "
            "payload), or run `cri-resmgr-installer install --retry`."
        )
    else:
        hint += "The environment was not sound, so nothing is blamed: run the same command again later."
    return RolledBackError(_story(failure.message, unit, journal), hint, remembered=blamed)


def _runtime_away(
    failure: StepFailedError, second: Exception, unit: str, journal: tuple[str, ...]
) -> RolledBackError:
    """Kubelet is left as it runs: a start on either endpoint would fail while the runtime is away."""
    hint = (
        "the container runtime does not answer, so nothing is blamed, kubelet was not restarted, and the "
        "previous files are in place. The proxy comes back by itself when the runtime does: look at "
        "`systemctl status containerd` (or crio), then run the same command again."
    )
    message = f"{failure.message}\nand on the way back: {second}"
    return RolledBackError(_story(message, unit, journal), hint)


def _failed_twice(
    first: StepFailedError, second: Exception, rescued: bool, unit: str, journal: tuple[str, ...]
) -> RollbackFailedError:
    message = _story(f"{first.message}\nand the way back failed too: {second}", unit, journal)
    if rescued:
        hint = (
            f"kubelet is healthy on its base endpoint and held there ({paths.HOLD}). Look at "
            f"`journalctl -u {paths.PROXY_UNIT}`, then run `cri-resmgr-installer install --retry` "
            "or `cri-resmgr-installer remove`."
        )
    else:
        hint = (
            "kubelet is NOT healthy. By hand, on the node: "
            f"`rm -f /etc/systemd/system/*.d/{paths.DROP_IN_NAME} && systemctl daemon-reload && "
            "systemctl restart kubelet`, then `journalctl -u kubelet -n 50`; "
            "afterwards run `cri-resmgr-installer remove`."
        )
    return RollbackFailedError(message, hint)


def _story(message: str, unit: str, journal: tuple[str, ...]) -> str:
    if not journal:
        return message
    return "\n".join((message, f"last lines of the journal of {unit}:", *(f"  {line}" for line in journal)))
