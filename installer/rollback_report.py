"""What a run that failed has left on the host, and how it tells so: the last word of exits 5 and 6.

It only looks, at what answers: a host whose way back has failed is touched no further.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from installer.errors import InstallerError, RollbackFailedError, RolledBackError, StepFailedError
from installer.host.ports import Host
from installer.model import paths
from installer.model.plan import Plan
from installer.model.resource import Kind
from installer.model.state import Desired, Observation
from installer.record.store import RecordStore
from installer.verify import look_again

_RUNTIME_UNITS = {"crio.sock": "crio.service"}
_USUAL_RUNTIME = "containerd.service"
_INSTALLER = "cri-resmgr-installer"


@dataclass(frozen=True, slots=True)
class RollbackReport:
    """The host after a way back that failed. `blind` is why it cannot be looked at, empty if it can;
    `runtime` why kubelet's own runtime does not answer; `healthz` whether kubelet says ok; `left` the
    paths that are not as they were, `drop_ins` those of ours that kubelet's unit still has."""

    endpoint: str
    kubelet_unit: str
    runtime: str = ""
    healthz: bool = False
    blind: str = ""
    observation: Observation | None = None
    held: bool = False
    left: tuple[str, ...] = ()
    drop_ins: tuple[str, ...] = ()

    @property
    def kubelet_well(self) -> bool:
        return self.observation is not None and self.observation.kubelet_healthy

    @property
    def as_before(self) -> bool:
        """Every file is as it was before the run."""
        return not self.blind and not self.left

    @property
    def runtime_unit(self) -> str:
        return _RUNTIME_UNITS.get(self.endpoint.rpartition("/")[2], _USUAL_RUNTIME)


def look_around(
    plan: Plan, target: Desired, endpoint: str, host: Host, ledger: RecordStore, healthz_url: str
) -> RollbackReport:
    """Looks once; what does not answer says so in its place."""
    runtime, healthz = runtime_error(host, endpoint), host.healthz.ok(healthz_url)
    try:
        observation, changes = look_again(host, target, ledger.record, plan.kubelet_unit, healthz_url)
        held = host.files.state(paths.HOLD).kind is not Kind.ABSENT
        drop_ins = tuple(
            path
            for path in (*ledger.record.claims, *(file.path for file in plan.desired.files))
            if path.endswith(paths.DROP_IN_NAME) and host.files.state(path).kind is not Kind.ABSENT
        )
    except (InstallerError, OSError) as error:
        return RollbackReport(endpoint, plan.kubelet_unit, runtime, healthz, str(error))
    left = tuple(change.path for change in changes.files)
    unique = tuple(dict.fromkeys(drop_ins))
    return RollbackReport(endpoint, plan.kubelet_unit, runtime, healthz, "", observation, held, left, unique)


def runtime_error(host: Host, endpoint: str) -> str:
    """Why the runtime behind kubelet's own endpoint is not ready; empty if it is."""
    try:
        status = host.cri.status(endpoint)
    except (InstallerError, OSError) as error:
        return str(error)
    return "" if status.ready else status.reason or "it is not ready"


def rolled_back(
    failure: StepFailedError,
    target: Desired,
    blamed: bool,
    journal: str,
    unsaved: StepFailedError | None = None,
) -> RolledBackError:
    """Exit 5. `unsaved` is why the record could not be written, if it could not."""
    where = "the last good generation is in place again" if target.proxy else "the host is as it was before"
    message = failure.message
    if blamed:
        what_next = (
            "This generation is remembered and not tried again: change an input (settings, configs, "
            f"payload), or run `{_INSTALLER} install --retry`."
        )
    elif unsaved is not None:
        message += f"\nand afterwards: {unsaved.message}"
        what_next = f"Nothing is remembered of this failure: {unsaved.hint}. Then run the same command again."
    else:
        remedy = f"{failure.hint}. Then" if failure.hint else "Later"
        what_next = (
            f"The environment was not sound, so nothing is blamed. {remedy} run the same command again."
        )
    return RolledBackError(_story(message, journal), f"{where}. {what_next}", remembered=blamed)


def runtime_away(
    failure: StepFailedError, second: Exception, after: RollbackReport, journal: str
) -> RolledBackError:
    """Exit 5: kubelet is left as it runs; a start on either endpoint would fail while the runtime is away."""
    hint = (
        "the container runtime does not answer, so nothing is blamed, kubelet was not restarted, and the "
        "previous files are in place. The proxy comes back by itself when the runtime does: look at "
        f"`systemctl status {after.runtime_unit}`, then run the same command again."
    )
    return RolledBackError(_story(f"{failure.message}\nand on the way back: {second}", journal), hint)


def failed_twice(
    failure: StepFailedError, second: Exception, after: RollbackReport, journal: str
) -> RollbackFailedError:
    """Exit 6: three lines say what is on the host now, what to type, and how to go on."""
    message = _story(f"{failure.message}\nand the way back failed too: {second}", journal)
    remedies = dict.fromkeys(
        one.hint for one in (failure, second) if isinstance(one, InstallerError) and one.hint
    )
    first = "".join(f"{remedy}; " for remedy in remedies) if not after.runtime else ""
    return RollbackFailedError(
        message,
        f"on the host now: {_state(after)}\n"
        f"by hand, on the node: {first}{_commands(after)}\n"
        f"then: `{_INSTALLER} install --retry`, or `{_INSTALLER} remove`; nothing more was touched",
    )


def _state(after: RollbackReport) -> str:
    """All that matters, in one line."""
    found = []
    if after.runtime:
        found.append(f"the container runtime at {after.endpoint} does not answer ({after.runtime})")
    if after.observation is None:
        well = "says that it is healthy" if after.healthz else "does NOT say that it is healthy"
        return "; ".join([*found, f"kubelet {well}; more cannot be said: {after.blind}"])
    seen = after.observation
    where = "the relay" if seen.on_relay else "its own endpoint"
    if seen.kubelet_healthy:
        held = f" and held there ({paths.HOLD})" if after.held else ""
        found.append(f"{after.kubelet_unit} is healthy on {where}{held}")
    elif seen.kubelet_process is not None:
        found.append(f"{after.kubelet_unit} is NOT healthy, on {where}")
    else:
        found.append(
            f"{after.kubelet_unit} does NOT run ({seen.kubelet.active_state}, {seen.kubelet.result})"
        )
    found.append(f"{paths.PROXY_UNIT} is {seen.proxy.active_state}")
    found.append(f"not as before: {', '.join(after.left)}" if after.left else "every file is as before")
    return "; ".join(found)


def _commands(after: RollbackReport) -> str:
    """What a person has to type, one line, to have a kubelet that is well; looking, if it is."""
    typed = []
    if after.runtime:
        typed.append(f"systemctl restart {after.runtime_unit}")
    unit = shlex.quote(after.kubelet_unit)
    if after.blind:
        typed.append("systemctl restart dbus.service")
    if not after.kubelet_well and not after.blind:
        if after.drop_ins:
            typed += [f"rm -f {shlex.join(after.drop_ins)}", "systemctl daemon-reload"]
        typed += [f"systemctl reset-failed {unit}", f"systemctl restart {unit}"]
    typed = typed or [f"journalctl -u {paths.PROXY_UNIT} -n 50"]
    return f"`{' && '.join(typed)}`"


def _story(message: str, journal: str) -> str:
    return f"{message}\n{journal}" if journal else message


def journal_lines(unit: str, lines: tuple[str, ...]) -> str:
    """The end of a unit's journal as a block; empty if it said nothing."""
    if not lines:
        return ""
    return "\n".join((f"last lines of the journal of {unit}:", *(f"  {line}" for line in lines)))
