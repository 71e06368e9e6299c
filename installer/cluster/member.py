"""What a node of a cluster knows, has to report and may do: one value. Pure.

Each fact makes another value of it: what the daemon has decided (`with_state`, `with_work`, `with_result`,
`awaiting_node`), that a newer daemon has come (`handed_over`), what the API server has replied
(`sync_plan.receive`). It says what may begin (`permission`) and when the next sync is due (`wait`); what that
is about is in `sync_plan.next_sync`. `client.py` has the child process, the timer and the file.

A node at rest reads its Node every ten minutes (`policy.py`): 0.5 requests in five minutes, 17 a second for
ten thousand nodes. Everything else follows a change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

from installer.cluster.node_status import EVENTS, TRANSIENT, Report
from installer.cluster.pod_context import PodContext
from installer.cluster.sync import OK, UNREAD, NodeFacts, Result, SyncRequest
from installer.model.daemon import DaemonState, Phase
from installer.model.fleet import (
    DEFAULT_RULES,
    FREE,
    FleetRules,
    Permission,
    PlannedWork,
    WorkResult,
)

NEVER = float("inf")
GRANT_SECONDS = 45.0  # in which permitted work has to begin: less than the minute within which a pause stops
# the whole fleet. Work that has not begun by then lets others go first, for as long
_DENIED_SECONDS = 60.0  # of denied requests, after which a removal waits no longer
_LAST_CALL = 60.0  # before a permit expires, for the report that no NRI plugin serves the node
_RESULTS_KEPT, EVENTS_KEPT = 4, 16  # the oldest are dropped first
_WHY = 300  # characters of a failure that are kept
_PAUSE_UNKNOWN = "the API server does not say whether this node is paused"


class Due(StrEnum):
    NODE = "node"  # read the Node: is it paused, is it Ready?
    REPORT = "report"  # Events, and what the Node says of us
    PERMIT = "permit"  # ask for one, or report the end of work


@dataclass(frozen=True, slots=True)
class Periods:
    """All in seconds."""

    gap: float = 1.0  # between two syncs, however fast the phases change
    report: float = 40.0  # until the Node reports a state that may pass soon
    waiting: float = 10.0  # until it says that it waits for a permit, which may come at once
    fresh: float = 10.0  # how old the last look for a pause may be when a pass begins
    paused: float = 60.0  # between two looks whether a pause has ended
    ready: tuple[float, float] = (5.0, 60.0)  # between two looks whether the Node is Ready: first, longest
    retry: tuple[float, float] = (10.0, 300.0)  # after a failure: first, longest


PERIODS = Periods()


@dataclass(frozen=True, slots=True)
class Held:
    """A permit, the resourceVersion that it was taken with, and when, in monotonic seconds. `pods`: those
    that were Ready then (`pods.py`)."""

    name: str
    version: str
    since: float
    pods: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Kept:
    """What outlives a daemon, in a file below /run: for a container that restarts while the API server is
    away, and for the next pod. Without the file the node finds its permit again by the holder's name, or lets
    it expire; but no other node would learn of a failure that was not reported yet.

    Times are monotonic: all processes of a boot share that clock."""

    paused: bool = False  # by the Node's annotation, as last read
    held: Held | None = None
    failed: str = ""  # the generation that this node has reported as failed
    canary_of: str | None = None  # the generation it has begun as a canary; None: after a boot, nobody knows
    begun: PlannedWork | None = None  # permitted work that has begun and whose end is not known
    results: tuple[WorkResult, ...] = ()  # that are still to be reported
    watched: tuple[PlannedWork, float] | None = None  # work that ended well, and until when it is watched


@dataclass(frozen=True, slots=True, kw_only=True)
class Member(Kept):
    context: PodContext
    periods: Periods = PERIODS
    # What the API server has said.
    node: NodeFacts = UNREAD  # as last read; not Ready any more when work has ended since
    unready: tuple[str, ...] | None = None  # the pods that the permit waits for; None: not known
    known: Mapping[str, Any] = field(default_factory=dict)  # what our Node says of us; empty: not known
    shown: Mapping[str, str] = field(default_factory=dict)  # our status there, as far as we know
    parts: Mapping[str, Result] = field(default_factory=dict)  # of all syncs, the last result
    unread: bool = False  # the last attempt to read the Node has failed
    # What the daemon has said.
    state: DaemonState | None = None
    report: Report = field(default_factory=Report)
    events: tuple[Mapping[str, Any], ...] = ()  # not sent yet
    rules: FleetRules = DEFAULT_RULES
    work: PlannedWork | None = None  # that waits for nothing but a permit
    busy: bool = True  # a pass is at work, or an earlier daemon's may be
    worked_at: float = -NEVER
    awaits_node: bool = False  # a pass waits until the Node was read
    replaced: bool = False  # by a newer daemon, which reports, asks and keeps everything from then on
    # What is permitted.
    used: bool = False  # the permit, by work: the node has to be Ready before others may begin
    granted: PlannedWork | None = None
    granted_at: float = -NEVER
    stalled: bool = False  # permitted work does not begin, so the permit is given back
    why: str = ""  # nothing may begin
    denied_since: float = NEVER
    # When.
    in_flight: SyncRequest | None = None
    due: Mapping[Due, float] = field(default_factory=dict)
    synced_at: float = -NEVER
    read_at: float = -NEVER  # the Node, or the attempt
    quiet_until: float = -NEVER  # the server wants no request before
    failures: int = 0  # of syncs in a row
    refusals: int = 0  # of questions for a permit in a row

    # -- what the daemon says ---------------------------------------------------------------------

    def with_state(self, now: float, state: DaemonState, epoch: float) -> Member:
        """Report a transition at once, everything else with the next sync. A replaced daemon says so in an
        Event, and leaves the annotation to the newer one."""
        phase, periods = state.phase, self.periods
        if phase is Phase.CHECKING or state == self.state:
            return self  # nothing has changed
        report, event = self.report.observe(state, epoch)
        is_transition = phase in EVENTS and report.last_event != self.report.last_event
        member = replace(self.handed_over() if state.replaced else self, state=state, report=report)
        if event:
            member = replace(member, events=(*member.events, event)[-EVENTS_KEPT:])
        if report.waits and not self.report.waits:  # not worth a write if the permit comes at once
            return member.due_at(Due.REPORT, now + periods.waiting)
        if self.report.waits and not report.waits and not self.events and not self.shows(Phase.WAITING):
            member = member.due_at(Due.REPORT, now + periods.report)  # the wait is over, and nobody saw it
        if is_transition or (phase in EVENTS and member.owes_state):
            return member.due_soon(Due.REPORT, now)
        return member.due_by(Due.REPORT, now + periods.report) if member.owes_status else member

    def awaiting_node(self, now: float) -> Member:
        """A pass waits until the Node was read for a pause."""
        if self.awaits_node:
            return self
        member = replace(self, awaits_node=True)
        return member if self.in_flight and self.in_flight.read_node else member.due_by(Due.NODE, now)

    def with_work(self, now: float, work: PlannedWork | None, rules: FleetRules, *, busy: bool) -> Member:
        """Take the work that waits for a permit, or none, after each decision of the daemon."""
        member = replace(self, rules=rules, busy=busy, worked_at=now if busy else self.worked_at)
        if not self.context.rollout_namespace:
            return member
        work = None if self.replaced else work
        member = member.without_expired(now)
        if busy and member.granted:
            member = replace(member, used=True, begun=member.granted)
        stalled = member.granted is not None and not busy and now - member.granted_at >= GRANT_SECONDS
        if work != member.work or stalled:
            member = replace(member, work=work, granted=None, refusals=0, stalled=stalled)
            member = member.due_soon(Due.NODE, now) if member.awaits_ready else member
            return member.due_at(Due.PERMIT, now)
        asks = member.owes_fleet if work is None else member.granted is None
        # A question that fell due during a pass was not asked.
        is_missed = asks and not busy and Due.PERMIT not in member.due
        return member.due_at(Due.PERMIT, now) if is_missed else member

    def with_result(self, now: float, result: WorkResult) -> Member:
        """Report what other nodes have to know, and give the permit back when the node is Ready. That
        includes the first success after a boot: others may wait for a canary whose power was cut, or for the
        permit that it has forgotten. So does the first failure that only the host's record remembers."""
        if not self.context.rollout_namespace or (result.recalled and self.canary_of is not None):
            return self
        result, work = replace(result, why=result.why[:_WHY]), result.work
        if not work.generation and self.watched is not None and now < self.watched[1]:
            result = WorkResult(self.watched[0], ok=False, why=result.why)
        member, generation, ok = self, result.work.generation, result.ok
        is_first = ok and self.canary_of is None  # since the boot
        known = is_first or generation in (self.failed, self.canary_of)
        tells = result.work.begins or (is_first and not self.held)
        if generation and tells and (ok is False or known):
            member = replace(
                member,
                results=(*self.results, result)[-_RESULTS_KEPT:],
                failed=generation if ok is False else "" if ok else self.failed,
                canary_of="" if self.canary_of in (generation, None) else self.canary_of,
            )
        if self.begun is not None and self.begun.generation == generation:
            soaks = ok and work.begins
            watched = (work, now + self.rules.soak_seconds) if soaks else self.watched
            member = replace(member, begun=None, watched=watched)
        node = replace(member.node, ready=False)
        member = replace(member, granted=None, node=node, unready=None, used=self.held is not None)
        member = member.due_soon(Due.NODE, now) if member.held else member
        return member.due_at(Due.PERMIT, now)

    def handed_over(self) -> Member:
        """The newer daemon works with the permit of this node, and gives it back."""
        return replace(self, replaced=True, held=None, granted=None)

    # -- what may begin ---------------------------------------------------------------------------

    def permission(self, now: float) -> Permission:
        """Return what may begin now. A removal does not wait for rights that are gone: to leave cleanly is
        worth more. If the API server does not say whether the node is paused, repairs begin all the same, and
        planned work waits. Permitted work that has begun is finished."""
        fresh, granted, why = self.is_fresh(now), self.granted, self.why
        if not self.context.rollout_namespace:
            return replace(FREE, paused=self.paused, fresh=fresh)
        kept_away = now < self.quiet_until and now - self.read_at >= self.periods.fresh
        if self.work is not None and self.work.removes and self.denied_since != NEVER:
            granted = self.work if now - self.denied_since >= _DENIED_SECONDS else None
        elif not self.busy and now - self.granted_at >= GRANT_SECONDS:
            granted = None
        elif granted and not self.busy and (self.unread or kept_away):
            granted, why = None, _PAUSE_UNKNOWN
        return Permission(True, granted, "" if granted else why, self.begun, self.paused, fresh)

    def is_fresh(self, now: float) -> bool:
        """Whether the Node was read recently, or must not be."""
        return now - self.read_at < self.periods.fresh or now < self.quiet_until

    @property
    def is_spare(self) -> bool:
        """Whether this node holds a permit that it does not need."""
        return self.held is not None and not self.busy and (self.work is None or self.stalled)

    @property
    def awaits_ready(self) -> bool:
        """Whether the permit waits for a Ready node, and for the pods that were Ready on it."""
        return self.is_spare and self.used and not (self.node.ready and not self.awaited)

    @property
    def awaited(self) -> tuple[str, ...]:
        """The pods that have to be Ready again."""
        return self.held.pods if self.held is not None and self.used and self.unready != () else ()

    @property
    def owes_fleet(self) -> bool:
        return bool(self.results or self.held)

    def successor_seconds(self, now: float) -> float | None:
        """Return the seconds until a removal counts as failed because no NRI plugin says that it serves the
        node; None if none is waited for. That is before the permit expires: a pass takes less than half of
        its time, and a pod that was replaced meanwhile gets no more."""
        is_left = self.state is not None and self.state.phase is Phase.REMOVED
        if not (self.rules.successor and is_left):
            return None
        ends = self.worked_at + self.rules.hold_seconds / 2
        if self.held is not None:
            ends = min(ends, self.held.since + self.rules.hold_seconds - _LAST_CALL)
        return ends - now

    def without_expired(self, now: float) -> Member:
        """Forget a permit that others may have by now: the node has not become Ready in time."""
        expired = self.held is not None and not self.busy and now - self.held.since >= self.rules.hold_seconds
        return replace(self, held=None) if expired else self

    # -- what the Node says -----------------------------------------------------------------------

    def is_allowed(self, part: str) -> bool:
        """Whether the last attempt has not failed; there may have been none."""
        return self.parts.get(part, OK)[0] == "ok"

    @property
    def memory(self) -> Mapping[str, Any]:
        """What the Node says of us; empty if that is not known, or cannot be changed in one request."""
        return self.known if self.is_allowed("condition") else {}

    @property
    def differs(self) -> bool:
        """Whether the Node says something else than the daemon."""
        status = self.report.node.status
        return self.context.annotate and not self.replaced and status != self.shown

    def shows(self, phase: str) -> bool:
        return self.shown.get("state") == phase

    @property
    def owes_status(self) -> bool:
        return self.differs and self.is_allowed("annotation") and self.is_allowed("condition")

    @property
    def owes_state(self) -> bool:
        return self.owes_status and not self.shows(self.report.node.status["state"])

    @property
    def is_lasting(self) -> bool:
        """Whether the present state is worth a write though none is due."""
        status = self.report.node.status
        return bool(status) and (status["state"] not in TRANSIENT or self.shows(status["state"]))

    # -- when -------------------------------------------------------------------------------------

    def due_at(self, what: Due, at: float) -> Member:
        return replace(self, due={**self.due, what: at})

    def due_by(self, what: Due, at: float) -> Member:
        return self.due_at(what, min(at, self.due.get(what, NEVER)))

    def due_soon(self, what: Due, now: float) -> Member:
        """As soon as the last sync is `gap` seconds ago."""
        return self.due_by(what, max(now, self.synced_at + self.periods.gap))

    def wait(self, now: float) -> float | None:
        """Return the seconds until the next sync; None if nothing is due."""
        times = [at for what, at in self.due.items() if what is not Due.PERMIT or self.node.uid]
        if self.in_flight is not None or not times:
            return None
        return max(0.0, min(times) - now, self.quiet_until - now)


def kept(member: Member) -> Kept:
    return Kept(**{each.name: getattr(member, each.name) for each in fields(Kept)})


def restored(member: Member, kept: Kept) -> Member:
    """Assume that work has used the permit."""
    return replace(member, used=True, **{field.name: getattr(kept, field.name) for field in fields(Kept)})
