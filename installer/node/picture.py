"""What a run would find and do now, as one small value: for whoever watches a host and starts its runs.

Taking a picture touches nothing and needs no lock. It reads what a run reads, but does not ask the runtime:
that matters only to a run that has something to change. What else matters only to such a run is read if that
run needs a permit: one that is refused anyway takes none.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from installer.errors import InstallerError, InvalidInputError, RolledBackError, UnservableHostError
from installer.host.ports import Host
from installer.inputs.load import Request
from installer.model.daemon import NOTHING_INSTALLED, Installed
from installer.model.event import Event
from installer.model.fleet import PlannedWork
from installer.model.names import Mode
from installer.model.paths import OUR_RUNTIME
from installer.model.plan import Assessment, Changes
from installer.model.result import BEGUN, listed
from installer.node.desired import fleet_generation, settings_digest
from installer.node.inspection import Probed, assess_good, assess_host
from installer.node.preconditions import check_worth, planned_work, repair_work
from installer.node.preflight_proxy import check_placed
from installer.node.reconcile import is_to_be_closed, remarks_of
from installer.node.snapshot import find_hold
from installer.node.unattended import find_repair
from installer.report.events import error_event

_WORDS = 240  # bytes: it is a reason, an Event, and a line of the log


@dataclass(frozen=True, slots=True)
class Picture:
    """`differs` is empty on a host that is as it should be. `due`: a run has something to do, be it only the
    repair of the good generation (`repairs`) while the one that is wanted is refused (`code`, the exit code
    that a run would end with, and `reason`), or waits for a permit (`work`)."""

    differs: str = ""  # and why, in words
    due: bool = False
    in_files: bool = False  # files differ, and not only units
    is_new: bool = False  # another generation than the installed one is wanted
    code: int = 0
    reason: str = ""
    remembered: bool = False  # the wanted generation failed here, and is not tried again
    repairs: bool = False
    work: PlannedWork | None = None
    unchecked: str = ""  # the start of the proxy that may have taken weight from containers: a run looks
    restarts: int = 0  # of kubelet, that a run would need
    pending: str = ""  # what a run would do, in one line
    wanted: str = ""  # the generation that the inputs name; empty if they cannot be read
    inputs: str = ""  # a digest of them and of the settings
    installed: Installed | None = NOTHING_INSTALLED  # None: it could not be read
    remarks: str = ""  # what a person should know of the host, and what to do
    hold: str = ""  # why kubelet was held on its base endpoint
    at_work: str = ""  # another run, which changes what is seen
    spent: bool = False  # a run has been at it since
    overtaken: bool = False  # something has changed while it was taken
    error: Event | None = field(default=None, compare=False)  # the same as `reason`, whole and with a hint

    @property
    def is_clean(self) -> bool:
        """Whether everything is as it should be."""
        return not (self.due or self.code or self.differs or self.spent)

    @property
    def repairs_first(self) -> bool:
        """Whether a run repairs the good generation, without a restart of kubelet, though the wanted one
        waits."""
        return self.repairs and not self.code

    @property
    def problem(self) -> tuple[object, ...]:
        """What a run would be about: another value means that something has changed."""
        about = (self.inputs, self.code, self.reason, self.differs, self.repairs, self.work, self.unchecked)
        return (*about, self.due)


def take_picture(request: Request, host: Host) -> tuple[Picture, Assessment | None]:
    """The assessment that it was made of comes with it, if there is one. Raises OSError for lack of
    descriptors or memory."""
    at_work = host.lock_holder()
    if why := host.files.exposed(OUR_RUNTIME).get(OUR_RUNTIME):  # which each run mends first of all
        return Picture(
            f"{OUR_RUNTIME}: {why}", due=True, in_files=True, installed=None, at_work=at_work
        ), None
    try:
        found = assess_host(request, host, probed=Probed.NOTHING)
    except (InvalidInputError, UnservableHostError, RolledBackError) as error:
        seen = Picture(installed=None, hold=find_hold(host.files), at_work=at_work)
        return _refused(seen, error, request, host), None
    assessment, inputs = found.assessment, found.inputs
    plan = assessment.plan
    wanted = fleet_generation(inputs)
    seen = Picture(
        differs=_in_words(plan.changes),
        due=bool(plan.steps) or (request.mode is Mode.INSTALL and is_to_be_closed(assessment, found.run)),
        in_files=bool(plan.changes.files),
        is_new=plan.desired.generation != assessment.installed,
        restarts=_restarts(assessment, request),
        wanted=wanted,
        inputs=f"{wanted} {settings_digest(request.settings)}",
        installed=_installed(assessment),
        remarks=remarks_of(assessment, check_placed(assessment.snapshot)),
        hold=assessment.snapshot.hold,
        at_work=at_work,
    )
    work = planned_work(inputs, assessment, found.run.store.record) if plan.steps else None
    needs_permit = work is not None and (work.restarts_kubelet or work.begins)
    try:
        check_worth(inputs, assessment)
        if needs_permit:
            check_worth(inputs, assess_host(request, host, probed=Probed.HOST).assessment)
    except InstallerError as error:
        return _refused(seen, error, request, host), assessment
    if needs_permit:
        seen = replace(seen, work=work, unchecked=_last_start(assessment) if assessment.unchecked else "")
        if request.mode is Mode.INSTALL and seen.is_new:
            repair = _repair(request, host, asks_first=True, probed=Probed.NOTHING)
            seen = replace(seen, repairs=repair is not None)
    return seen, assessment


def _refused(seen: Picture, error: InstallerError, request: Request, host: Host) -> Picture:
    """What is wanted will not be installed. The good generation may be repaired all the same."""
    ended = BEGUN.failed(error)
    seen = replace(
        seen,
        due=False,
        restarts=0,
        code=ended.code,
        reason=ended.reason,
        remembered=ended.remembered,
        error=error_event(error),
    )
    if request.mode is Mode.REMOVE:
        return seen
    try:
        good = assess_good(request, host, probed=Probed.NOTHING)
    except InstallerError:
        return seen
    if good is None:
        return seen
    seen = replace(seen, installed=_installed(good.assessment))
    repair = find_repair(good.assessment, asks_first=False)
    if repair is not None and repair.plan.restarts_kubelet:
        repair = _repair(request, host, asks_first=False, probed=Probed.HOST)
    if repair is None and good.assessment.unchecked and not seen.remembered:
        # Only the runtime knows whether a start took weight.
        return replace(seen, due=True, repairs=True, unchecked=_last_start(good.assessment))
    return seen if repair is None else _with_repair(seen, repair, request)


def _with_repair(seen: Picture, repair: Assessment, request: Request) -> Picture:
    changes = repair.plan.changes
    return replace(
        seen,
        due=True,
        repairs=True,
        differs=_in_words(changes),
        in_files=bool(changes.files),
        restarts=_restarts(repair, request),
        work=repair_work(repair) if repair.plan.restarts_kubelet else None,
    )


def _last_start(assessment: Assessment) -> str:
    """Of the proxy."""
    return assessment.snapshot.proxy.unit.invocation_id


def _in_words(changes: Changes) -> str:
    return listed(changes.describe(), _WORDS)


def _repair(request: Request, host: Host, *, asks_first: bool, probed: Probed) -> Assessment | None:
    good = assess_good(request, host, probed=probed)
    return find_repair(good.assessment, asks_first=asks_first) if good is not None else None


def _restarts(assessment: Assessment, request: Request) -> int:
    return min(assessment.plan.kubelet_restarts, request.settings.kubelet.restarts_per_hour)


def _installed(assessment: Assessment) -> Installed:
    if not assessment.installed:
        return NOTHING_INSTALLED
    policy = assessment.policy
    return Installed(
        assessment.installed,
        assessment.installed_version,
        policy.name if policy else "",
        policy.source.value if policy else "",
    )
