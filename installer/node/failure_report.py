"""Report a failure: what differs, what units and journals say, and how the rollback went."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from installer.errors import InstallerError, RollbackFailedError, RolledBackError, StepFailedError
from installer.host.ports import Host, Journal
from installer.model import paths
from installer.model.event import Event
from installer.model.host import Health, HostSnapshot, Kind
from installer.model.limits import ANSWER_SECONDS
from installer.model.plan import Assessment, Desired, Plan
from installer.node.await_kubelet import is_stopped
from installer.node.diff import diff
from installer.node.kubelet_link import read_kubelet
from installer.node.run import Run
from installer.node.snapshot import refresh
from installer.report.planned import plan_json

# One block for the log after a failure: what was planned, what of it is still missing, the state of both
# units, and their last journal lines.
#
# It is read-only and never fails: it shows the error in place of what cannot be read. Environments are left
# out, since they may contain other people's secrets.

_JOURNAL_LINES = 30

Found = Mapping[str, object]
"""JSON values: `units` by name, and what still `differs`, at the instant of the failure."""


def capture_units(host: Host, kubelet_unit: str) -> Found:
    """Both units as they are now."""
    return {"units": {name: _unit(host, name) for name in (paths.PROXY_UNIT, kubelet_unit)}, "differs": []}


def capture(plan: Plan, before: HostSnapshot, run: Run) -> Found:
    """Both units as they are now, and where the host differs from the plan."""
    found, record = capture_units(run.host, plan.kubelet_unit), run.store.record
    try:
        changes = diff(plan.desired, refresh(before, run.host, run.settings, record), record)
    except (InstallerError, OSError) as error:
        return {**found, "differs": [f"[{error}]"]}
    return {**found, "differs": list(changes.describe())}


def diagnose(why: str, found: Found, host: Host, kubelet_unit: str, plan: Plan | None = None) -> Event:
    """The block as one event `diagnostics`, with the last journal lines of both units."""
    units = (paths.PROXY_UNIT, kubelet_unit)
    host.journal.sync()
    journal = {name: list(host.journal.tail(name, _JOURNAL_LINES)) for name in units}
    data: dict[str, object] = {"why": why, **found, "journal": journal}
    if plan is not None:
        data["plan"] = plan_json(plan)
    return Event("diagnostics", f"diagnostics: {why}", data)


def _unit(host: Host, name: str) -> object:
    try:
        state = asdict(host.systemd.unit(name))
        kubelet = read_kubelet(host, host.systemd.unit(name))
    except (InstallerError, OSError) as error:
        return f"[{error}]"
    del state["environment"]
    return {**state, "uses_relay": kubelet.on_relay if kubelet.process else None}


# What a failed run has left on the host, in words: the last lines of exits 5 and 6. Read-only: a host whose
# rollback has failed is not touched again.

_INSTALLER = "cri-resmgr-installer"
_NOT_BLAMED = "The node, not this version, caused the failure; it will be retried"


@dataclass(frozen=True, slots=True)
class RollbackReport:
    """The host after a rollback that failed."""

    endpoint: str
    kubelet_unit: str
    runtime: str = ""  # why kubelet's own runtime does not answer; empty: it does
    unreadable: str = ""  # why the host cannot be read; empty: it can
    healthz: bool = False  # whether kubelet's healthz is ok, if the host cannot be read
    snapshot: HostSnapshot | None = None
    left: tuple[str, ...] = ()  # paths that are not as they were
    drop_ins: tuple[str, ...] = ()  # ours, which kubelet's unit still has

    @property
    def kubelet_unwell(self) -> bool:
        """Whether it is unhealthy, or nothing could be read."""
        return self.snapshot is None or self.snapshot.kubelet.unwell

    @property
    def as_before(self) -> bool:
        """Whether every file is as it was before the run."""
        return not self.unreadable and not self.left


def report_rollback(assessment: Assessment, target: Desired, run: Run) -> RollbackReport:
    """Read the host once, with the error in place of what does not answer. `target`: of the rollback."""
    host, settings, record = run.host, run.settings, run.store.record
    endpoint, unit = assessment.base_endpoint, assessment.plan.kubelet_unit
    runtime = runtime_error(host, endpoint)
    try:
        snapshot = refresh(assessment.snapshot, host, settings, record)
    except (InstallerError, OSError) as error:
        healthz = host.healthz.ask(settings.kubelet.healthz_url, 0) is Health.OK
        return RollbackReport(endpoint, unit, runtime, unreadable=str(error), healthz=healthz)
    return RollbackReport(
        endpoint,
        unit,
        runtime,
        snapshot=snapshot,
        left=tuple(change.path for change in diff(target, snapshot, record).files),
        drop_ins=tuple(
            path
            for path, state in snapshot.files.items()
            if path.endswith(f"/{paths.DROP_IN_NAME}") and state.kind is not Kind.ABSENT
        ),
    )


def runtime_unit(endpoint: str) -> str:
    """The systemd unit of the runtime that listens there."""
    return "crio.service" if endpoint.endswith("/crio.sock") else "containerd.service"


def runtime_error(host: Host, endpoint: str, seconds: float = ANSWER_SECONDS) -> str:
    """Why the runtime behind kubelet's own endpoint is not ready; empty if it is."""
    try:
        status = host.cri.status(endpoint, seconds)
    except (InstallerError, OSError) as error:
        return str(error)
    return "" if status.ready else status.reason or "it is not ready"


def rolled_back(
    failure: StepFailedError,
    target: Desired,
    blamed: bool,
    journal: str,
    unsaved: StepFailedError | None = None,
    kept: str = "",
) -> RolledBackError:
    """Exit 5. `unsaved`: why the record could not be written. `kept`: kubelet waits on its base endpoint, in
    words."""
    where = "the host is as it was before"
    if target.proxy:
        what = "last good generation" if target.proxy.generation else "earlier installation"
        where = f"the {what} is in place again"
    message = failure.message
    if blamed:
        look = f"{failure.hint}. " if failure.hint else ""
        what_next = (
            f"{look}This generation is remembered and not retried: change an input (configs, payload, "
            f"settings of proxy or kubelet), or run `{_INSTALLER} install --retry`."
        )
    elif unsaved is not None:
        message += f"\nand afterwards: {unsaved.message}"
        what_next = f"This failure could not be recorded: {unsaved.hint}. Then run the same command again."
    else:
        first = f"{failure.hint}. Then run" if failure.hint else "Run"
        what_next = f"{_NOT_BLAMED}. {first} the same command again."
    return RolledBackError(f"{message}{journal}", f"{where}{kept}. {what_next}", remembered=blamed)


def runtime_away(
    failure: StepFailedError, second: Exception, after: RollbackReport, journal: str
) -> RolledBackError:
    """Exit 5: kubelet is left running as it is, since a start on either endpoint would fail without the
    runtime."""
    hint = (
        "the container runtime does not answer, so this generation is not blamed, kubelet was not restarted, "
        "and the previous files are in place. The proxy recovers when the runtime does: check "
        f"`systemctl status {runtime_unit(after.endpoint)}`, then run the same command again."
    )
    return RolledBackError(f"{failure.message}\nand during the rollback: {second}{journal}", hint)


def failed_twice(
    failure: StepFailedError, second: Exception, after: RollbackReport, journal: str
) -> RollbackFailedError:
    """Exit 6: three lines with the state of the host, what to type, and how to continue."""
    remedies = dict.fromkeys(
        one.hint for one in (failure, second) if isinstance(one, InstallerError) and one.hint
    )
    first = "".join(f"{remedy}; " for remedy in remedies) if not after.runtime else ""
    return RollbackFailedError(
        f"{failure.message}\nand the rollback failed too: {second}{journal}",
        f"on the host now: {_state(after)}\n"
        f"by hand, on the node: {first}{_commands(after)}\n"
        f"then: `{_INSTALLER} install --retry`, or `{_INSTALLER} remove`; nothing more was touched",
    )


def _state(after: RollbackReport) -> str:
    """What an operator needs to know, in one line."""
    found = []
    if after.runtime:
        found.append(f"the container runtime at {after.endpoint} does not answer ({after.runtime})")
    if after.snapshot is None:
        healthy = "reports healthy" if after.healthz else "does NOT report healthy"
        return "; ".join([*found, f"kubelet {healthy}; nothing else could be read: {after.unreadable}"])
    kubelet, proxy = after.snapshot.kubelet, after.snapshot.proxy.unit
    where = "the relay" if kubelet.on_relay else "its base endpoint"
    if kubelet.healthy:
        held = f" and held there ({paths.HOLD})" if after.snapshot.hold else ""
        found.append(f"{after.kubelet_unit} is healthy on {where}{held}")
    elif kubelet.foreign_healthz:
        found.append(f"{after.kubelet_unit} runs on {where}, and another process answers on its healthz")
    elif kubelet.process is not None:
        found.append(f"{after.kubelet_unit} is NOT healthy, on {where}")
    else:
        found.append(
            f"{after.kubelet_unit} is NOT running ({kubelet.unit.active_state}, {kubelet.unit.result})"
        )
    found.append(f"{paths.PROXY_UNIT} is {proxy.active_state}")
    found.append(f"not as before: {', '.join(after.left)}" if after.left else "every file is as before")
    return "; ".join(found)


def _commands(after: RollbackReport) -> str:
    """What to type, in one line, to get kubelet healthy; or to investigate, if it is."""
    typed = []
    if after.runtime:
        typed.append(f"systemctl restart {runtime_unit(after.endpoint)}")
    unit = shlex.quote(after.kubelet_unit)
    if after.unreadable:
        typed.append("systemctl restart dbus.service")
    if after.kubelet_unwell and not after.unreadable:
        stops = after.snapshot is not None and is_stopped(after.snapshot.kubelet.unit)
        if after.drop_ins and not stops:
            typed += [f"rm -f {shlex.join(after.drop_ins)}", "systemctl daemon-reload"]
        typed += [f"systemctl reset-failed {unit}", f"systemctl restart {unit}"]
    typed = typed or [f"journalctl -u {paths.PROXY_UNIT} -n 50"]
    return f"`{' && '.join(typed)}`"


def last_lines(unit: str, journal: Journal, begun: str) -> str:
    """The end of a unit's journal as a block that follows a message; empty if there is none. Of what earlier
    starts have logged, only if this one (`begun`: the journal's end before it) has logged nothing."""
    lines = journal.since(unit, begun)[-_JOURNAL_LINES:] or journal.tail(unit, _JOURNAL_LINES) if unit else ()
    return "\n  ".join((f"\nlast lines of the journal of {unit}:", *lines)) if lines else ""
