"""claim -> apply -> verify, once: the only way from a plan to a changed host.

Installation, removal, repair of the good generation, rollback, rescue and hold all go through here; only
their plans differ. This module raises failures and does not decide what to do about them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from installer.errors import InstallerError, InterruptedRunError, StepFailedError, failed_on_disk
from installer.inputs.settings import Settings
from installer.model import paths
from installer.model.event import Event
from installer.model.host import HostSnapshot, UnitState
from installer.model.limits import ANSWER_SECONDS, Limits
from installer.model.plan import Plan
from installer.model.proxy import WHILE_HANGING, WHILE_LINKED, longest_start, patience
from installer.node.apply import apply_plan
from installer.node.await_kubelet import check_steady, failure_of
from installer.node.diff import diff
from installer.node.run import Progress, Run
from installer.node.snapshot import refresh

_PROGRESSING = 3.0  # a start that makes progress may take this many times as long as expected


def limits_of(plan: Plan, snapshot: HostSnapshot, settings: Settings) -> Limits:
    """The deadlines of a plan made from `snapshot`. A kubelet that was ill before is not judged by its
    healthz, unless a dead relay explains that, or a run that was cut off: otherwise no removal would lead
    out."""
    containers, hanging = snapshot.container_count, snapshot.kubelet.on_relay
    bound = WHILE_LINKED if plan.leaves_if_slow else WHILE_HANGING
    limits = build_limits(settings, bound if hanging else 0.0, containers, snapshot.proxy.last_start)
    explained = plan.desired.proxy is not None and (plan.awaits_kubelet or not snapshot.proxy.relay_answers)
    if snapshot.kubelet.ails(limits.kubelet_start) and not explained:
        limits = replace(limits, healthz_url="")
    return replace(limits, begun_start=limits.unhurried) if plan.leaves_if_slow else limits


def build_limits(settings: Settings, hanging: float, containers: int = 0, seen: float = 0.0) -> Limits:
    """The deadlines of a run. The proxy may take longer the more containers there are and the longer its last
    start took (`seen`), but no longer than `hanging` seconds while kubelet hangs on the relay (0: it does
    not)."""
    unhurried = patience(settings.proxy.start_timeout_seconds, containers, seen)
    proxy_start = min(unhurried, hanging) if hanging else unhurried
    # A busy node needs longer than its containers explain. The other half is for the start that may follow.
    begun_start = max(longest_start(containers), proxy_start / 2) if hanging else unhurried
    return Limits(
        proxy_start=proxy_start,
        begun_start=begun_start,
        hanging=hanging > 0,
        unhurried=unhurried,
        furthest=_PROGRESSING * unhurried,
        kubelet_start=float(settings.kubelet.start_timeout_seconds),
        settle=float(settings.kubelet.settle_seconds),
        guard=float(settings.kubelet.guard_seconds),
        healthz_url=settings.kubelet.healthz_url,
    )


def converge(
    plan: Plan, snapshot: HostSnapshot, run: Run, limits: Limits, progress: Progress, *, healthy: bool = False
) -> HostSnapshot:
    """Carry out the plan and return the host as it is then.

    `snapshot` is what the plan was made from. `healthy`: kubelet has to be healthy in the end. `progress`
    tells what was done, also after a failure.

    Raises StepFailedError, and InterruptedRunError between two steps. A crash at any instant leaves a host
    from which the next run's diff derives the rest.
    """
    if plan.steps and plan.parts:
        judged = plan.restarts_kubelet and bool(limits.healthz_url)
        _claim(plan, snapshot, run, owes_health=plan.desired.kubelet is not None and (healthy or judged))
    apply_plan(plan, run.host, limits, run.emit, progress, run.tally)
    after = _verify(plan, snapshot, run, progress) if plan.parts else snapshot
    if healthy and after.kubelet.unwell:
        before = after if progress.moved_kubelet else snapshot
        unsteady = _why_unsteady(before.kubelet.unit, run)
        raise unsteady or failure_of(plan.kubelet_unit, "it is not healthy")
    return after


def _claim(plan: Plan, snapshot: HostSnapshot, run: Run, *, owes_health: bool) -> None:
    """R6: record ownership, and keep originals and edits, before the first write."""
    try:
        kept = run.store.claim(plan, snapshot, owes_health=owes_health)
    except OSError as error:
        raise failed_on_disk("the record could not be written", error) from error
    emit_kept(kept, run)


def emit_kept(kept: Iterable[str], run: Run) -> None:
    """What other people had at our paths was set aside: `FROM -> TO`."""
    for edit in kept:
        original = edit.startswith(paths.OBJECTS)
        what = "the edited file" if not original else "an original, whose place the lost record knew,"
        run.emit(Event("edit.kept", f"{what} was kept: {edit}", {"kept": edit}))


def _verify(plan: Plan, snapshot: HostSnapshot, run: Run, progress: Progress) -> HostSnapshot:
    """An empty diff *is* done."""
    try:
        after = refresh(snapshot, run.host, run.settings, run.store.record, ANSWER_SECONDS)
    except (StepFailedError, InterruptedRunError):
        raise
    except InstallerError as error:
        raise StepFailedError(f"verification: {error.message}", error.hint, interfered=True) from error
    except OSError as error:
        raise failed_on_disk("verification", error) from error
    run.store.note_applied(plan, after.proxy.unit.invocation_id)
    left = diff(plan.desired, after, run.store.record).within(plan.parts)
    if left:
        message = f"the host still differs from what was applied: {'; '.join(left.describe())}"
        proxy = progress.proxy or after.proxy.unit
        unsteady = [_why_unsteady(unit, run) for unit in (proxy, after.kubelet.unit)]
        disturbed = any(error.interfered for error in unsteady if error)
        raise StepFailedError(message, interfered=bool(left.files) or disturbed)
    return after


def _why_unsteady(before: UnitState, run: Run) -> StepFailedError | None:
    """The failure of a unit that has ended or was restarted, perhaps only since it was read; None: it has
    not."""
    try:
        check_steady(before, run.host.systemd.unit(before.name), failure_of)
    except StepFailedError as error:
        return error
    except InstallerError as error:  # the bus is lost
        return StepFailedError(error.message, error.hint, interfered=True)
    except OSError as error:  # no descriptors are left to ask
        return failed_on_disk(before.name, error)
    return None
