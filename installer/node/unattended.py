"""For runs that nobody watches: repair the last good generation even if a new one is refused."""

from __future__ import annotations

from dataclasses import replace

from installer.errors import InstallerError, KubeletKeptError
from installer.host.ports import Host
from installer.inputs.load import Request
from installer.model.event import Emit, Event
from installer.model.host import Part
from installer.model.names import Mode
from installer.model.plan import Assessment, StepKind
from installer.model.result import Tally
from installer.node.inspection import assess_good
from installer.node.preconditions import UNTOUCHED, check_pause, is_remembered
from installer.node.preflight import PENDING

KEPT = "the last good generation stays in place meanwhile"
_REPAIRED = "the last good generation was repaired, and nothing else was touched"


def keep_good(error: InstallerError, request: Request, host: Host, emit: Emit, tally: Tally) -> None:
    """Repair the last good generation, which `error` does not concern: in an unattended run, and while a
    failed generation is not retried. While planned work waits, what restarts kubelet waits as well, unless
    it may be restarted. The hint of `error` then says so.

    Raises InstallerError.
    """
    remembered, waits = is_remembered(error), isinstance(error, KubeletKeptError)
    if request.mode is Mode.REMOVE or not (request.mandate.unattended or remembered):
        return
    found = assess_good(request, host, emit, tally)
    if found is None:
        return
    if remembered:
        error.hint = f"{KEPT}: {error.hint}"
    repair_of = find_repair(found.assessment, asks_first=waits and bool(request.mandate.ask_first))
    if repair_of is None:
        return
    check_pause(request, repair_of.snapshot)
    if not (remembered or waits):
        emit(Event("warning", f"refused: {error.message}", {"code": "refused", "hint": ""}))
    from installer.node.carry_out import repair

    repair(request, repair_of, found.run)
    if not remembered:
        hint = error.hint.removesuffix(UNTOUCHED).removesuffix("; ")
        error.hint = f"{hint}; {_REPAIRED}" if hint else _REPAIRED


def find_repair(good: Assessment, *, asks_first: bool) -> Assessment | None:
    """What a repair of the last good generation would do; None if there is nothing that it may do.
    `asks_first`: a restart of kubelet has to wait."""
    if good.plan.refusals:
        good = _without_kubelet(good) or good
    waits = asks_first and good.plan.restarts_kubelet
    return None if waits or good.plan.refusals or not good.plan.steps else good


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
    # Without kubelet's change nothing has to be compared after it: that would be a repair without an end.
    compares = bool(changes) or good.snapshot.may_be_unknown
    left_out = () if compares else (StepKind.CHECK_PODS, StepKind.CHECK_WEIGHTS)
    steps = tuple(step for step in plan.steps if step.part is Part.PROXY and step.kind not in left_out)
    alone = replace(plan, changes=changes, steps=steps, findings=plan.warnings, parts=frozenset({Part.PROXY}))
    return replace(good, plan=alone)
