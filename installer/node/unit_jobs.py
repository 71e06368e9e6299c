"""Run systemd's jobs for the steps of a plan."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from installer.errors import TIMEOUT, InstallerError, StepFailedError, SystemdError
from installer.host.ports import Host
from installer.model.host import UnitState
from installer.model.plan import Step
from installer.node.run import Progress


class JobWaitsError(StepFailedError):
    """A job whose time is over has not begun. That says nothing about what was to be started or stopped."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message, hint, interfered=True)


def start_unit(step: Step, seconds: float, host: Host, progress: Progress, *, at_once: bool = False) -> None:
    """Start the step's unit, or start it again. Takes at most `seconds`. Raises SystemdError,
    StepFailedError."""
    host.systemd.reset_failed(step.target)
    job = partial(host.systemd.restart, step.target, seconds, at_once=at_once)
    await_job(step, "start", job, host, progress)


def message_of(step: Step, error: InstallerError) -> str:
    """Name the step, unless the error does: those of systemd's calls say what was called."""
    return error.message if step.describe in error.message else f"{step.describe}: {error.message}"


def await_job(step: Step, verb: str, job: Callable[[], str], host: Host, progress: Progress) -> None:
    """Run a job of systemd to its end.

    systemd cancels the job when somebody else stops or starts the unit. A job that runs out of its own time
    does not end the start that it has begun: that time includes a slow stop, and an earlier job that ours has
    joined.

    Raises SystemdError, StepFailedError; JobWaitsError if the time was over before the job had begun."""
    before = host.systemd.unit(step.target).invocation_id  # which the job ends
    try:
        result = job()
    except SystemdError as error:
        if error.lost:
            raise
        waits, hint = _why_waiting(host.systemd.unit(step.target), before if error.name == TIMEOUT else None)
        if not waits:
            raise
        raise JobWaitsError(f"{message_of(step, error)}: {waits}", hint) from error
    if result == "done":
        return
    why = f"systemd could not {verb} it: the job ended as '{result}'"
    if result == "timeout":
        unit = host.systemd.unit(step.target)
        waits, hint = _why_waiting(unit, before)
        if waits:
            raise JobWaitsError(f"{step.target}: {why}: {waits}", hint)
        if verb == "start" and unit.starts:
            return
    failure = progress.failure(step.target, why)
    failure.interfered = result in ("canceled", "dependency")  # ours depend on none
    raise failure


def _why_waiting(unit: UnitState, before: str | None) -> tuple[str, str]:
    """Return why a job has not begun its start or stop yet, and a hint; empty if it has. Either waits until
    whatever is ordered after the unit has stopped. The unit runs on meanwhile."""
    if unit.active_state == "deactivating":
        shows = f"`systemctl show -p TimeoutStopUSec {unit.name}` shows the limit"
        return "it is still stopping", f"{shows}: shorten it, or raise startTimeoutSeconds in the settings"
    if unit.invocation_id == before:
        return "another unit's job came first", "`systemctl list-jobs` on the host may show it"
    return "", ""
