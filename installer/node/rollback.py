"""After a failed step, roll back: to the last good generation, or to what was there before us.

The way back is the same as forward, to another target. Kubelet is moved only if the failed plan moved it or
there is no good generation. It is also moved if the good proxy does not come back: then it is held on its
base endpoint, so that the node stays alive.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from installer.errors import (
    InstallerError,
    KubeletKeptError,
    StepFailedError,
    failed_on_disk,
)
from installer.host.ports import Clock
from installer.inputs.policy import policy_of
from installer.model import hold, paths
from installer.model.event import Event
from installer.model.host import ABSENT, DesiredFile, Health, HostSnapshot, Part
from installer.model.limits import ANSWER_SECONDS, HURRIED_SECONDS, Limits
from installer.model.plan import Assessment, Changes, Desired, Plan, StepKind
from installer.model.proxy import Repinning, fatal_lines
from installer.node.adoption import forget_old
from installer.node.await_kubelet import is_stopped
from installer.node.controls import due_controls
from installer.node.converge import converge, limits_of
from installer.node.desired import settings_digest
from installer.node.diff import diff, why_different
from installer.node.failure_report import (
    failed_twice,
    last_lines,
    report_rollback,
    rolled_back,
    runtime_away,
    runtime_error,
    runtime_unit,
)
from installer.node.kept import good_desired
from installer.node.pinning import read_cache
from installer.node.plan import Options, base_of, build_hold_plan, leaves_to, order_steps
from installer.node.record import is_earlier, leftovers_of_ours
from installer.node.relay_steps import restart_kubelet_steps
from installer.node.run import Progress, Run
from installer.node.snapshot import read_units, refresh

_SLOW = "This node starts the proxy slowly: the next run uses a longer timeout"
_RESCUE_SETTLE = 2.0  # seconds: a node that may go NotReady has no time for more


class _UnstoppableClock:
    """A clock whose waits no signal ends: a rollback that stops half-way is worse than a late one."""

    def __init__(self, clock: Clock) -> None:
        self.now = clock.now
        self.monotonic = clock.monotonic
        self.sleep = self.sleep_through = clock.sleep_through

    def check(self) -> None:
        """Never raises."""


def roll_back(
    assessment: Assessment, progress: Progress, failure: StepFailedError, limits: Limits, run: Run
) -> InstallerError:
    """Undo what the plan of `assessment` did (`progress`), and return the error that reports the outcome
    (exit 5 or 6)."""
    run = replace(run, host=replace(run.host, clock=_UnstoppableClock(run.host.clock)))
    unit = progress.failed_unit
    if unit:
        run.host.journal.sync()
    failure = _with_causes(failure, assessment, progress, run)
    journal = last_lines(unit, run.host.journal, progress.journal_from)
    message = f"failed: {failure.message}; rolling back"
    run.emit(Event("rollback.started", message, {"reason": failure.message}))
    run.tally.count(rolls_back=True)
    target, back, kept = Desired(), Progress(restarts_left=progress.restarts_left), ""
    try:
        target = good_desired(run.store.record, run.host.files) or Desired()
        plan, snapshot = _plan_back(assessment, progress, target, run)
        limits = replace(limits_of(plan, snapshot, run.settings), healthz_url=limits.healthz_url)
        back.held = snapshot.hold if hold.is_operators(snapshot.hold) else ""
        try:
            converge(plan, snapshot, run, limits, back)
        except KubeletKeptError as error:  # it is healthy there
            kept = f", but {error.message}"
        with suppress(InstallerError, OSError):
            forget_old(run.host.files)  # nobody checks weights here, after which it would be deleted
    except (InstallerError, OSError) as error:
        second = failed_on_disk("the rollback", error) if isinstance(error, OSError) else error
        if not runtime_error(run.host, assessment.base_endpoint):
            _rescue_kubelet(assessment, run, limits, progress, back)
        after = report_rollback(assessment, target, run)
        if after.runtime and not after.kubelet_unwell and after.as_before:
            # Every file is as it was. A proxy without its runtime waits, and systemd retries.
            return runtime_away(failure, second, after, journal)
        return failed_twice(failure, second, after, journal)
    cut_short = progress.cut_short and not failure.interfered  # else the time is not what it failed for
    if cut_short and back.left_relay:  # it had less time than even the good proxy needs here
        failure = StepFailedError(failure.message, _SLOW, interfered=True)
    elif cut_short and not assessment.snapshot.kubelet.moves:
        failure = StepFailedError(failure.message, _hint_of_hanging(assessment), interfered=True)
    blamed = _blame(assessment, failure, run)
    unsaved = _close(target, run)
    return rolled_back(failure, target, blamed and unsaved is None, journal, unsaved, kept)


def _hint_of_hanging(assessment: Assessment) -> str:
    """Only a kubelet that was started with our lines heeds a hold."""
    kubelet = assessment.snapshot.kubelet
    ours = kubelet.process is not None and kubelet.process.generation
    how = f"`touch {paths.HOLD} && systemctl restart {kubelet.unit.name}`"
    how = how if ours else "restart it with the container runtime's endpoint in its own files"
    return (
        "kubelet cannot be moved while this proxy starts, and may not hang on it for longer: "
        f"take kubelet off the proxy ({how}), and run this command again"
    )


# What systemd says where it failed before it could run a program (systemd.exec(5)). 203 is the program's own.
_NOT_SET_UP = re.compile(r"\.service: \w+ process exited, code=exited, (status=2(?!03)[0-4]\d/[A-Z_]+)$")


def _with_causes(
    failure: StepFailedError, assessment: Assessment, progress: Progress, run: Run
) -> StepFailedError:
    """The failure, with the last fatal line of the unit that failed, and blameless for the generation if the
    runtime is away, the proxy cannot read its cache, somebody has changed our files meanwhile, or systemd has
    not even come to run it. Checked before the rollback, during which the runtime may come back."""
    message, hint, blameless = failure.message, failure.hint, failure.interfered
    endpoint, unit = assessment.base_endpoint, progress.failed_unit
    if assessment.plan.desired.proxy and (why := runtime_error(run.host, endpoint, HURRIED_SECONDS)):
        message += f"; the container runtime does not answer: {why}"
        hint, blameless = f"Look at `systemctl status {runtime_unit(endpoint)}`", True
    logged = run.host.journal.since(unit, progress.journal_from) if unit else ()
    if lines := fatal_lines(logged):
        message += f": {lines[-1]}"
    if unit == paths.PROXY_UNIT and (found := next(filter(None, map(_NOT_SET_UP.search, logged)), None)):
        message += f": systemd could not set up what its unit asks for ({found[1]})"
        hint, blameless = f"`systemctl cat {unit}` shows the drop-ins of others", True
    if meddled := tuple(_changed_by_others(assessment, run)):
        message += f"; someone else has changed {', '.join(meddled)} during this run"
        hint, blameless = "run the same command again", True
    blameless = blameless or (unit == paths.PROXY_UNIT and _is_cache_unreadable(run))
    return StepFailedError(message, hint, blameless)


def _changed_by_others(assessment: Assessment, run: Run) -> Iterator[str]:
    """Our files that are neither as they were nor as the plan writes them."""
    plan, before = assessment.plan, assessment.snapshot.files
    written = [step.file for step in plan.steps if isinstance(step.file, DesiredFile)]
    for path in (file.path for file in plan.desired.files):
        with suppress(InstallerError, OSError):
            now = run.host.files.state(path, run.store.record.known_digest)
            ours = any(file.path == path and not why_different(file, now) for file in written)
            if now != before.get(path, ABSENT) and not ours:
                yield path


def _is_cache_unreadable(run: Run) -> bool:
    with suppress(OSError):
        cache = read_cache(run.host.files)
        return cache.torn or cache.foreign
    return False


def _plan_back(
    assessment: Assessment, progress: Progress, target: Desired, run: Run
) -> tuple[Plan, HostSnapshot]:
    """The plan to `target`, and the snapshot it is made from."""
    record = run.store.record
    hangs = assessment.snapshot.kubelet.on_relay or progress.moved_kubelet
    seconds = HURRIED_SECONDS if hangs else ANSWER_SECONDS
    snapshot = refresh(assessment.snapshot, run.host, run.settings, record, seconds)
    # How long a start of the good proxy takes was measured before the attempt.
    took = assessment.snapshot.proxy.last_start
    snapshot = replace(snapshot, proxy=replace(snapshot.proxy, last_start=took))
    parts = frozenset(Part) if is_earlier(record) else _parts(progress, target)
    changes = diff(target, snapshot, record).within(parts)
    controls = due_controls(record.controls, target, snapshot)
    options = replace(_options_back(assessment, target, changes, snapshot, run), returns=bool(controls))
    unit = assessment.plan.kubelet_unit
    steps = order_steps(target, changes, options)
    # Continuing would not restore a weight that is lost during the rollback.
    steps = tuple(step for step in steps if step.kind is not StepKind.CHECK_WEIGHTS)
    waits = any(step.kind is StepKind.AWAIT_KUBELET for step in steps)
    if progress.moved_kubelet and not waits and (is_earlier(record) or snapshot.kubelet.unwell):
        # Between two restarts it is on no endpoint: nothing differs, but it is down because of us. Or it left
        # an earlier installation's relay while the proxy started.
        steps += restart_kubelet_steps(unit)
    resets_all = assessment.plan.resets_all or _pinned(assessment)
    mode = assessment.plan.mode
    takes = policy_of(target, assessment.snapshot.cache).repins is not Repinning.NOTHING
    plan = Plan(
        *(mode, target, changes, unit, steps),
        parts=parts,
        resets_all=resets_all,
        adopts=options.adopts,
        harms=takes and not options.adopts,
        controls=controls,
    )
    return plan, snapshot


def _options_back(
    assessment: Assessment, target: Desired, changes: Changes, snapshot: HostSnapshot, run: Run
) -> Options:
    """As forward, except for what the attempt may have done. It may have pinned containers that `target`
    would leave pinned (which ones is read once the proxy is stopped), and may have failed before it adopted
    any. With the files of an earlier installation, kubelet knows no hold."""
    record, endpoint = run.store.record, assessment.base_endpoint
    removes, policy = target.proxy is None, policy_of(target, assessment.snapshot.cache)
    undoes_pins = _pinned(assessment) or assessment.plan.resets_all
    resets = removes or (policy.name == "none" and undoes_pins)
    adopts = run.settings.proxy.existing_containers == "adopt" and policy.repins is not Repinning.NOTHING
    stays = removes or is_earlier(record)
    returns = snapshot.kubelet.linked and not stays
    return Options(
        os.urandom(8).hex(),
        hold=bool(snapshot.hold),
        ends_hold=hold.is_of_a_run(snapshot.hold) or (returns and not hold.is_operators(snapshot.hold)),
        torn_cache=snapshot.cache.torn,
        leftovers=leftovers_of_ours(record, snapshot, undone=True) if removes else (),
        resets=endpoint if resets and run.settings.removal.reset_pinning else "",
        adopts=endpoint if adopts else "",
        leaves_to="" if stays else leaves_to(snapshot, changes),
        linked=returns,
        base=base_of(snapshot) if removes else "",
        runtime=endpoint,
    )


def _pinned(assessment: Assessment) -> bool:
    """Whether the attempt had a policy that pins. Its proxy may have been restarted since with files that are
    already restored; then its cache tells of the policy none."""
    attempted = assessment.plan.desired
    return attempted.proxy is not None and policy_of(attempted, assessment.snapshot.cache).name != "none"


def _parts(progress: Progress, target: Desired) -> frozenset[Part]:
    """What is rolled back. Not only what this plan has touched: an interrupted run may have done the rest,
    which was never good. Without a good generation nothing may stay. With one, kubelet is not moved just for
    that."""
    return frozenset(Part) if target.proxy is None else frozenset(progress.touched | {Part.PROXY})


def _close(target: Desired, run: Run) -> StepFailedError | None:
    """Update the record. By now everything is restored, and what the record said before the attempt is still
    true. So an error while writing it is returned, not raised."""
    try:
        if target.proxy is None or is_earlier(run.store.record):
            run.store.close_removed(undone=True)
        else:
            run.store.close_as_good()
    except OSError as error:
        return failed_on_disk("the record could not be updated", error)
    return None


def _rescue_kubelet(assessment: Assessment, run: Run, limits: Limits, *done: Progress) -> None:
    """The good proxy did not come back: move kubelet off the relay until a person or a later success ends the
    hold. Nothing is moved if that proxy was never away. The report that follows shows the outcome. `done`:
    what the plan and the rollback have done."""
    host = run.host
    moved_proxy = any(each.moved_proxy for each in done)
    moved_kubelet = any(each.moved_kubelet for each in done)
    with suppress(InstallerError, OSError):
        units = read_units(host, run.settings)
        before, proxy = assessment.snapshot.proxy.unit, units.proxy.unit
        # systemd may have refused each job, or let it wait in vain.
        stayed = not moved_proxy or (proxy.running and proxy.invocation_id == before.invocation_id != "")
        seconds = ANSWER_SECONDS if stayed else HURRIED_SECONDS
        health = host.healthz.ask(limits.healthz_url, units.kubelet.unit.main_pid, seconds)
        well = units.kubelet.process is not None and health is not Health.UNWELL
        # Somebody stops kubelet on purpose. A host that shuts down begins with that.
        stops = assessment.snapshot.kubelet.process is not None and is_stopped(units.kubelet.unit)
        needs_nothing = (well and units.kubelet.on_relay) or (stops and not moved_kubelet)
        if needs_nothing and stayed and host.cri.answers(paths.RELAY_ENDPOINT):
            return  # the good proxy was never away
        if is_earlier(run.store.record):
            plan = _plan_off_relay(assessment, run)
        else:
            reason = f"{hold.BY_ROLLBACK}it failed, and kubelet stays on its base endpoint"
            plan = build_hold_plan(units, reason, leaves=units.kubelet.on_relay, restarts=not well)
        converge(plan, units, run, rescue_limits(limits), Progress())


def _plan_off_relay(assessment: Assessment, run: Run) -> Plan:
    """Kubelet moves to the runtime, with its own files repaired. With the earlier installation's files it
    would start on the relay, whatever holds it."""
    record = run.store.record
    snapshot = refresh(assessment.snapshot, run.host, run.settings, record)
    changes = diff(Desired(), snapshot, record).within({Part.KUBELET})
    unit = assessment.plan.kubelet_unit
    steps = order_steps(Desired(), changes, Options(base=base_of(snapshot)))
    if not changes.restarts(Part.KUBELET) and snapshot.kubelet.unwell:
        steps += restart_kubelet_steps(unit)
    return Plan(assessment.plan.mode, Desired(), changes, unit, steps, parts=frozenset())


def rescue_limits(limits: Limits) -> Limits:
    """The deadlines while kubelet is moved to its base endpoint."""
    return replace(limits, settle=min(limits.settle, _RESCUE_SETTLE))


def _blame(assessment: Assessment, failure: StepFailedError, run: Run) -> bool:
    """R8: blame the generation only if the environment was sound before and after."""
    desired = assessment.plan.desired
    sound = assessment.snapshot.sound or run.store.began_sound
    if desired.proxy is None or not sound or failure.interfered:
        return False
    if runtime_error(run.host, assessment.base_endpoint):
        return False
    try:
        pid = run.host.systemd.unit(assessment.plan.kubelet_unit).main_pid
        if run.host.healthz.ask(run.settings.kubelet.healthz_url, pid) is not Health.OK:
            return False
    except (InstallerError, OSError):
        return False
    made_with = settings_digest(run.settings)
    run.store.blame(desired.generation, failure.message, run.host.clock, made_with)
    return True
