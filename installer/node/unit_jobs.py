"""Run systemd's jobs for the steps of a plan."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from installer.errors import InstallerError, StepFailedError, SystemdError
from installer.host.ports import Host
from installer.model.plan import Step
from installer.node.run import Progress


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
    """Run a job of systemd to its end. A unit that is still stopping at the deadline says nothing about what
    was to be started. A canceled job means that somebody else stopped or started the unit. One that ran out
    of its own time has not ended the start: it may have begun with a slow stop, or as somebody else's job.

    Raises SystemdError, StepFailedError."""
    try:
        result = job()
    except SystemdError as error:
        if error.lost or host.systemd.unit(step.target).active_state != "deactivating":
            raise
        raise StepFailedError(
            f"{message_of(step, error)}: it is still stopping",
            f"`systemctl show -p TimeoutStopUSec {step.target}` shows the limit: shorten it, "
            "or raise startTimeoutSeconds in the settings",
            interfered=True,
        ) from error
    if result == "done":
        return
    is_late, unit = verb == "start" and result == "timeout", host.systemd.unit(step.target)
    if is_late and unit.starts:
        return
    failure = progress.failure(step.target, f"systemd could not {verb} it: the job ended as '{result}'")
    is_stopping = is_late and unit.active_state == "deactivating"
    failure.interfered = is_stopping or result in ("canceled", "dependency")  # ours depend on none
    raise failure
