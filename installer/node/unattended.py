"""For runs that nobody watches: repair the last good generation even if a new one is refused, and add to the
error what is installed nevertheless.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from installer.errors import InstallerError, InterruptedRunError, KubeletKeptError
from installer.host.ports import Host
from installer.inputs.load import Inputs, Request
from installer.inputs.policy import policy_in_force
from installer.model.event import Emit, Event
from installer.model.host import Part
from installer.model.names import Mode
from installer.model.plan import Assessment
from installer.model.proxy import PolicyInForce
from installer.node.desired import fleet_generation
from installer.node.inspection import assess_good
from installer.node.preconditions import UNTOUCHED, check_pause, is_remembered
from installer.node.preflight import PENDING
from installer.node.record import load_record, takes_over
from installer.node.snapshot import read_machine, take_snapshot

KEPT = "the last good generation stays in place meanwhile"
_REPAIRED = "the last good generation was repaired, and nothing else was touched"


def keep_good(error: InstallerError, request: Request, host: Host, emit: Emit) -> None:
    """Repair the last good generation, which `error` does not concern: in an unattended run, and while a
    failed generation is not retried. While planned work waits, what restarts kubelet waits as well, unless
    it may be restarted. The hint of `error` then says so.

    Raises InstallerError.
    """
    remembered, waits = is_remembered(error), isinstance(error, KubeletKeptError)
    if request.mode is Mode.REMOVE or not (request.unattended or remembered):
        return
    found = assess_good(request, host, emit)
    if found is None:
        return
    run, good = found
    if remembered:
        error.hint = f"{KEPT}: {error.hint}"
    waits_too = waits and request.ask_first and good.plan.restarts_kubelet
    if good.plan.refusals and (repairable := _without_kubelet(good)):
        good = repairable
    if not good.plan.steps or good.plan.refusals or waits_too:
        return
    check_pause(request, good.snapshot)
    if not (remembered or waits):
        emit(Event("warning", f"refused: {error.message}", {"code": "refused", "hint": ""}))
    from installer.node.carry_out import repair

    repair(request, good, run)
    if not remembered:
        hint = error.hint.removesuffix(UNTOUCHED).removesuffix("; ")
        error.hint = f"{hint}; {_REPAIRED}" if hint else _REPAIRED


def _without_kubelet(good: Assessment) -> Assessment | None:
    """The same for the proxy alone, if all that is refused concerns kubelet, and no reload is needed, which
    would make somebody's edit of kubelet's unit live. If more than such an edit is refused, nothing
    restarts."""
    plan, refused = good.plan, {finding.code for finding in good.plan.refusals}
    changes = plan.changes.within({Part.PROXY})
    unit = changes.unit(Part.PROXY)
    reloads = unit is not None and unit.daemon_reload
    disturbs = changes.disturb and refused != {PENDING}
    if reloads or disturbs or not all(code == PENDING or code.startswith("kubelet-") for code in refused):
        return None
    steps = tuple(step for step in plan.steps if step.part is Part.PROXY)
    alone = replace(plan, changes=changes, steps=steps, findings=plan.warnings, parts=frozenset({Part.PROXY}))
    return replace(good, plan=alone)


@contextmanager
def explained(request: Request, host: Host) -> Iterator[list[Inputs]]:
    """Add to the error of an unattended run what is still installed, by reading the host again, and the
    generation that was asked for: that of the yielded list's last element, if it has one."""
    asked = list[Inputs]()
    try:
        yield asked
    except InstallerError as error:
        if request.unattended and not isinstance(error, InterruptedRunError):
            error.fleet_generation = fleet_generation(asked[-1]) if asked else ""
            with suppress(InstallerError, OSError):
                error.installed = _installed(request, host)
        raise


def _installed(request: Request, host: Host) -> dict[str, str]:
    """Empty if no generation is good. Raises InstallerError and OSError."""
    machine = read_machine(host)
    record = load_record(host.files, machine.machine_id, machine.hostname).record
    if record.good is None or takes_over(record):
        return {}
    policy = policy_in_force(take_snapshot(host, machine, request.settings, record))
    return {"generation": record.good.generation} | named(policy)


def named(policy: PolicyInForce | None) -> dict[str, str]:
    """For an event's data."""
    return {
        "policy": policy.name if policy else "",
        "policySource": policy.source.value if policy else "",
    }
