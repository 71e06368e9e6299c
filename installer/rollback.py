"""The way back after a plan failed: to the last good generation, or to what was there before us.

The same path with another desired state. Kubelet is moved only where the failed
plan has moved it or nothing good is there; besides, if the good proxy does not come back: then
it is held on its base endpoint, so that the node lives.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, replace

from installer.apply import Limits, Progress, apply_plan
from installer.desired import with_generation
from installer.errors import (
    InstallerError,
    InterruptedRunError,
    StepFailedError,
    failed_on_disk,
)
from installer.host.ports import Clock, Host
from installer.model import paths
from installer.model.change import Changes
from installer.model.event import Emit, Event
from installer.model.plan import Plan, Step, StepKind
from installer.model.resource import Part
from installer.model.state import Desired
from installer.plan import build_plan
from installer.record.schema import good_desired
from installer.record.store import RecordStore
from installer.rollback_report import (
    failed_twice,
    journal_lines,
    look_around,
    rolled_back,
    runtime_away,
    runtime_error,
)
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
    ledger: RecordStore,
    limits: Limits,
    emit: Emit,
) -> InstallerError:
    """Undoes what the attempt did and returns the error that tells the story (exit 5 or 6)."""
    host = replace(host, clock=_Unstoppable(host.clock))
    unit = attempt.progress.failed_unit
    journal = journal_lines(unit, host.journal.tail(unit, _JOURNAL_LINES) if unit else ())
    emit(Event("rollback.started", f"failed: {failure.message}; going back", {"reason": failure.message}))
    target, way_back = Desired(), Progress()
    try:
        target = good_desired(ledger.record, host.files) or Desired()
        _converge_back(attempt, way_back, target, host, ledger, limits, emit)
    except (InstallerError, OSError) as error:
        second = failed_on_disk("the way back", error) if isinstance(error, OSError) else error
        if not runtime_error(host, attempt.base_endpoint):
            _rescue_kubelet(attempt, way_back, host, ledger, limits, emit)
        after = look_around(attempt.plan, target, attempt.base_endpoint, host, ledger, limits.healthz_url)
        if after.runtime and after.kubelet_well and after.as_before:
            # All is written as it was; a proxy without its runtime waits, and systemd tries again.
            return runtime_away(failure, second, after, journal)
        return failed_twice(failure, second, after, journal)
    blamed = _blame(attempt, failure, host, ledger, limits)
    unsaved = _close(target, ledger)
    return rolled_back(failure, target, blamed and unsaved is None, journal, unsaved)


def _close(target: Desired, ledger: RecordStore) -> StepFailedError | None:
    """Brings the record up to date. All is back in place by now, and what the record said before the
    attempt is true of it, too: that it could not be written is returned, not raised."""
    try:
        if target.proxy is None:
            ledger.close_as_before()
        else:
            ledger.close_as_good()
    except OSError as error:
        return failed_on_disk("the record could not be brought up to date", error)
    return None


def _converge_back(
    attempt: Attempt,
    way_back: Progress,
    target: Desired,
    host: Host,
    ledger: RecordStore,
    limits: Limits,
    emit: Emit,
) -> None:
    parts = _parts(attempt, target)
    kubelet_unit, url = attempt.plan.kubelet_unit, limits.healthz_url
    observation, changes = look_again(host, target, ledger.record, kubelet_unit, url)
    changes = _only(changes, parts)
    plan = build_plan(
        attempt.plan.mode,
        target,
        changes,
        (),
        attempt.nonce,
        with_generation,
        kubelet_unit=kubelet_unit,
        hold=host.files.state(paths.HOLD).digest != "",
        state=ledger.state_of_ours() if target.proxy is None else (),
    )
    waits = any(step.kind is StepKind.AWAIT_KUBELET for step in plan.steps)
    if attempt.progress.moved_kubelet and not waits and not observation.kubelet_healthy:
        # Between two tries it is on no endpoint: nothing differs, but it is down because of us.
        plan = replace(plan, steps=plan.steps + _kubelet_again(kubelet_unit))
    if plan.steps:
        ledger.claim(plan, observation)
    apply_plan(plan, host, limits, emit, way_back)
    ledger.note_applied(plan, host.systemd.unit(paths.PROXY_UNIT).invocation_id)
    observation, changes = look_again(host, target, ledger.record, kubelet_unit, url)
    left = remaining(_only(changes, parts))
    if left:
        raise StepFailedError(f"still not as before: {left}")


def _parts(attempt: Attempt, target: Desired) -> set[Part]:
    """What goes back. Not only what this plan has touched: a run before it that was cut off may have done
    the rest, and that was never good. Without a good generation nothing may stay; with one, kubelet is not
    moved for that."""
    return set(Part) if target.proxy is None else attempt.progress.touched | {Part.PROXY}


def _only(changes: Changes, parts: set[Part]) -> Changes:
    return Changes(
        tuple(change for change in changes.files if change.part in parts),
        tuple(change for change in changes.units if change.part in parts),
    )


def _kubelet_again(name: str) -> tuple[Step, ...]:
    return tuple(Step(kind, name, Part.KUBELET) for kind in (StepKind.RESTART, StepKind.AWAIT_KUBELET))


def _rescue_kubelet(
    attempt: Attempt, way_back: Progress, host: Host, ledger: RecordStore, limits: Limits, emit: Emit
) -> None:
    """The good proxy did not come back: kubelet leaves the relay, and stays away until a human or a
    later success ends the hold. How that went is for a look at the host to say."""
    name = attempt.plan.kubelet_unit
    with suppress(InstallerError, OSError):
        unit = host.systemd.unit(name)
        process = host.processes.get(unit.main_pid) if unit.main_pid else None
        on_relay = process is None or process.uses_relay
        well = process is not None and host.healthz.ok(limits.healthz_url)
        moved_proxy = attempt.progress.moved_proxy or way_back.moved_proxy
        if well and on_relay and not moved_proxy and host.cri.answers(paths.RELAY_ENDPOINT):
            return  # the good proxy has never been away
        with suppress(OSError):  # a disk that takes no hold: the guard goes without a proxy all the same
            ledger.hold("the way back failed too: kubelet stays on its base endpoint")
        if well and not on_relay:
            return
        plan = replace(attempt.plan, desired=Desired(), steps=_kubelet_again(name))
        apply_plan(plan, host, replace(limits, settle=min(limits.settle, 2.0)), emit, Progress())


def _blame(
    attempt: Attempt, failure: StepFailedError, host: Host, ledger: RecordStore, limits: Limits
) -> bool:
    """R8: only a sound environment lets us blame the generation."""
    if attempt.plan.desired.proxy is None or not attempt.sound_before or failure.interfered:
        return False
    if runtime_error(host, attempt.base_endpoint) or not host.healthz.ok(limits.healthz_url):
        return False
    ledger.blame(attempt.plan.desired.generation, failure.message, host.clock)
    return True
