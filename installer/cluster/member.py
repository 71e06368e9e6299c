"""What a node of a cluster knows, wants to say and may do: one value. Pure.

Each fact makes another value of it: what the daemon has decided (`reported`, `wants`, `asks`, `ended`), that
a newer daemon has come (`yields`), what the API server has said (`dialogue.heard`). From it follow what may
begin (`permission`), when the next talk is due (`wait`), and what it is about (`dialogue.next_talk`).
`voice.py` has the child, the timer and the file.

A node at rest looks at its Node before the pass that comes each ten minutes: 0.5 requests in five minutes, 17
a second for ten thousand nodes. Everything else follows a change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

from installer.cluster.pod_context import PodContext
from installer.cluster.speech import EVENTS, Speech
from installer.cluster.talk import Result, Talk
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
FRESH = 45.0  # seconds in which permitted work has to begin: less than the minute within which nothing more
# begins anywhere after a pause. Else others come first for as long
_POWERLESS_SECONDS = 60.0  # of denied requests, after which a removal waits no longer
_TO_TELL, EVENTS_KEPT = 4, 16  # the oldest go first
_WHY = 300  # characters of a failure that are kept
_PAUSE_UNKNOWN = "the API server does not say whether this node is paused"
OK: Result = ("ok", "")


class Due(StrEnum):
    LOOK = "look"  # at the Node: is it paused, is it Ready
    WORD = "word"  # an Event, or what the Node says of us
    PERMIT = "permit"  # a question for one, or its end


@dataclass(frozen=True, slots=True)
class Periods:
    """Seconds. `gap`: from one talk to the next, however fast the transitions come. `word`: until the Node
    says what is no transition. `waiting`: until it says that it waits for a permit, which may come at once.
    `fresh`: how old what is known of a pause may be when a pass begins. `paused`: between two looks whether a
    pause has ended. `ready`: between two looks at a Node that is to be Ready, the first and the longest.
    `retry`: after a failure, the first and the longest."""

    gap: float = 1.0
    word: float = 40.0
    waiting: float = 10.0
    fresh: float = 10.0
    paused: float = 60.0
    ready: tuple[float, float] = (5.0, 60.0)
    retry: tuple[float, float] = (10.0, 300.0)


PERIODS = Periods()


@dataclass(frozen=True, slots=True)
class Held:
    """A permit, the resourceVersion that it was taken with, and when, on the clock of a boot."""

    name: str
    version: str
    since: float


@dataclass(frozen=True, slots=True)
class Kept:
    """What outlasts a daemon, in a file below /run: for a container that starts again while the API server is
    away, and for the pod that comes after it. Without it a permit is found again by its holder, or expires;
    but a failure that was not told would be forgotten by the whole fleet.

    `paused`: what the API server has last said. `failed` is the generation that this node has told to have
    failed, `leads` the one that it has begun as a canary; None: after a boot, when nobody knows whether it
    has begun one. `begun` is permitted work that has begun, and whose end is not known yet, `results` are the
    ends that are still to be told. `watched` is what ended well and is watched until then. Times are
    monotonic: all processes of a boot share that clock."""

    paused: bool = False
    held: Held | None = None
    failed: str = ""
    leads: str | None = None
    begun: PlannedWork | None = None
    results: tuple[WorkResult, ...] = ()
    watched: tuple[PlannedWork, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Member(Kept):
    context: PodContext
    periods: Periods = PERIODS
    # What the API server has said.
    uid: str = ""  # of our Node; without it nothing can be asked for
    canary: bool = False  # our Node has the label
    ready: bool = False  # kubelet says that the node is Ready
    known: Mapping[str, Any] = field(default_factory=dict)  # what our Node says of us; empty: not known
    shown: Mapping[str, str] = field(default_factory=dict)  # our status there, as far as we know
    parts: Mapping[str, Result] = field(default_factory=dict)  # of all talks, the last result
    unseen: bool = False  # the last look at the Node was in vain
    # What the daemon has said.
    state: DaemonState | None = None
    speech: Speech = field(default_factory=Speech)
    events: tuple[Mapping[str, Any], ...] = ()  # not sent yet
    rules: FleetRules = DEFAULT_RULES
    work: PlannedWork | None = None  # nothing is missing but a permit for this
    busy: bool = True  # a pass is at work, or an earlier daemon's may be
    worked_at: float = -NEVER
    asking: bool = False  # a pass waits for a look at the Node
    yielded: bool = False  # to a newer daemon, which says, asks and keeps everything from then on
    # What is permitted.
    used: bool = False  # the permit, by work: the node has to be Ready before others may go on
    granted: PlannedWork | None = None
    granted_at: float = -NEVER
    in_vain: bool = False  # the work that waits does not begin, and so the permit is given back
    why: str = ""  # nothing may begin
    powerless_since: float = NEVER
    # When.
    flight: Talk | None = None  # the talk that is under way
    due: Mapping[Due, float] = field(default_factory=dict)
    talked_at: float = -NEVER
    looked_at: float = -NEVER  # in vain or not
    quiet_until: float = -NEVER  # the server wants to be left alone
    failures: int = 0  # of talks, one after the other
    refusals: int = 0  # of questions for a permit

    # -- what the daemon says ---------------------------------------------------------------------

    def reported(self, now: float, state: DaemonState, epoch: float) -> Member:
        """Reports a transition at once, everything else with the next talk. A daemon that has been replaced
        says so in an Event, and leaves the annotation to the newer one."""
        phase, periods = state.phase, self.periods
        if phase is Phase.CHECKING or state == self.state:
            return self  # nothing has changed
        speech, event = self.speech.take(state, epoch)
        transition = phase in EVENTS and speech.told != self.speech.told
        member = replace(self.yields() if phase is Phase.YIELDED else self, state=state, speech=speech)
        if event:
            member = replace(member, events=(*member.events, event)[-EVENTS_KEPT:])
        if speech.waits and not self.speech.waits:  # a permit that comes at once is no word
            return member.put_off(Due.WORD, now + periods.waiting)
        if self.speech.waits and not speech.waits and not self.events and not self.shows(Phase.WAITING):
            member = member.put_off(Due.WORD, now + periods.word)  # what has not been said is not so any more
        if transition or (phase in EVENTS and member.owes_state):
            return member.soon(Due.WORD, now)
        return member.want(Due.WORD, now + periods.word) if member.owes_annotation else member

    def asks(self, now: float) -> Member:
        """A pass waits for what the Node says of a pause."""
        if self.asking:
            return self
        member = replace(self, asking=True)
        return member if self.flight and self.flight.look else member.want(Due.LOOK, now)

    def wants(self, now: float, work: PlannedWork | None, rules: FleetRules, *, busy: bool) -> Member:
        """Said after each decision: the work that waits for a permit, or none."""
        member = replace(self, rules=rules, busy=busy, worked_at=now if busy else self.worked_at)
        if not self.context.rollout_namespace:
            return member
        work = None if self.yielded else work
        member = member.without_expired(now)
        if busy and member.granted and not (member.used and member.begun == member.granted):
            member = replace(member, used=True, begun=member.granted)
        stale = member.granted is not None and not busy and now - member.granted_at >= FRESH
        if work != member.work or stale:
            member = replace(member, work=work, granted=None, refusals=0, in_vain=stale)
            member = member.soon(Due.LOOK, now) if member.awaits_node else member
            return member.put_off(Due.PERMIT, now)
        idle = work is None and not busy and Due.PERMIT not in member.due
        return member.put_off(Due.PERMIT, now) if idle and member.owes else member

    def ended(self, now: float, result: WorkResult) -> Member:
        """Reports what others have to know, and gives the permit back when the node is Ready. That includes
        the first success after a boot: others may wait for a canary whose power was cut, or for the permit
        that it has forgotten."""
        if not self.context.rollout_namespace:
            return self
        result, work = replace(result, why=result.why[:_WHY]), result.work
        if not work.generation and self.watched is not None and now < self.watched[1]:
            result = WorkResult(self.watched[0], ok=False, why=result.why)
        member, generation, ok = self, result.work.generation, result.ok
        known = generation in (self.failed, self.leads) or (ok and self.leads is None)
        forgot = result.work.removes and self.leads is None and not self.held
        if generation and (result.work.begins or forgot) and (ok is False or known):
            member = replace(
                member,
                results=(*self.results, result)[-_TO_TELL:],
                failed=generation if ok is False else "" if ok else self.failed,
                leads="" if self.leads in (generation, None) else self.leads,
            )
        if self.begun is not None and self.begun.generation == generation:
            soaks = ok and work == self.begun and work.begins
            watched = (work, now + self.rules.soak_seconds) if soaks else self.watched
            member = replace(member, begun=None, watched=watched)
        member = replace(member, granted=None, ready=False, used=self.held is not None)
        member = member.soon(Due.LOOK, now) if member.held else member
        return member.put_off(Due.PERMIT, now)

    def yields(self) -> Member:
        """The newer daemon works with the permit of this node, and gives it back."""
        return replace(self, yielded=True, held=None, granted=None)

    # -- what may begin ---------------------------------------------------------------------------

    def permission(self, now: float) -> Permission:
        """What may begin now. A removal whose rights are gone does not wait for them: to leave cleanly is
        worth more. Where the API server does not say whether the node is paused, repairs go on, and planned
        work has time. Permitted work that has begun is finished."""
        fresh, granted, why = self.is_fresh(now), self.granted, self.why
        if not self.context.rollout_namespace:
            return replace(FREE, paused=self.paused, fresh=fresh)
        kept_away = now < self.quiet_until and now - self.looked_at >= self.periods.fresh
        if self.work is not None and self.work.removes and self.powerless_since != NEVER:
            granted = self.work if now - self.powerless_since >= _POWERLESS_SECONDS else None
        elif not self.busy and now - self.granted_at >= FRESH:
            granted = None
        elif granted and not self.busy and (self.unseen or kept_away):
            granted, why = None, _PAUSE_UNKNOWN
        return Permission(True, granted, "" if granted else why, self.begun, self.paused, fresh)

    def is_fresh(self, now: float) -> bool:
        """Whether the Node was looked at a moment ago, or may not be asked for."""
        return now - self.looked_at < self.periods.fresh or now < self.quiet_until

    @property
    def is_spare(self) -> bool:
        """Whether this node holds a permit that it does not need."""
        return self.held is not None and not self.busy and (self.work is None or self.in_vain)

    @property
    def awaits_node(self) -> bool:
        """Whether the permit waits for a Ready node."""
        return self.is_spare and self.used and not self.ready

    @property
    def owes(self) -> bool:
        return bool(self.results or self.held)

    def successor_seconds(self, now: float) -> float | None:
        """Until a removal counts as failed, because no NRI plugin says that it serves the node; None where
        none is waited for. The permit lasts at least as long: a pass takes less than half of its time."""
        is_left = self.state is not None and self.state.phase is Phase.REMOVED
        return (
            self.worked_at + self.rules.hold_seconds / 2 - now if self.rules.successor and is_left else None
        )

    def without_expired(self, now: float) -> Member:
        """A permit that others may have by now is forgotten: its node has not become Ready in time."""
        expired = self.held is not None and not self.busy and now - self.held.since >= self.rules.hold_seconds
        return replace(self, held=None) if expired else self

    # -- what the Node says -----------------------------------------------------------------------

    def is_allowed(self, part: str) -> bool:
        """Whether the last attempt was no failure; there may have been none."""
        return self.parts.get(part, OK)[0] == "ok"

    @property
    def memory(self) -> Mapping[str, Any]:
        """What the Node says of us; empty where that is not known, or may not be changed in one request."""
        return self.known if self.is_allowed("condition") else {}

    @property
    def differs(self) -> bool:
        """Whether the Node says anything else than what was last reported."""
        status = self.speech.status
        return self.context.annotate and not self.yielded and bool(status) and status != self.shown

    def shows(self, phase: str) -> bool:
        return self.shown.get("state") == phase

    @property
    def owes_annotation(self) -> bool:
        return self.differs and self.is_allowed("annotation") and self.is_allowed("condition")

    @property
    def owes_state(self) -> bool:
        return self.owes_annotation and not self.shows(self.speech.status["state"])

    @property
    def lasts(self) -> bool:
        """Whether the present state is worth a word though none is due."""
        status = self.speech.status
        return bool(status) and (self.speech.lasts or self.shows(status["state"]))

    # -- when -------------------------------------------------------------------------------------

    def put_off(self, what: Due, at: float) -> Member:
        """Not before then, and then."""
        return replace(self, due={**self.due, what: at})

    def want(self, what: Due, at: float) -> Member:
        """By then."""
        return self.put_off(what, min(at, self.due.get(what, NEVER)))

    def soon(self, what: Due, now: float) -> Member:
        """As soon as the last talk is `gap` seconds ago."""
        return self.want(what, max(now, self.talked_at + self.periods.gap))

    def wait(self, now: float) -> float | None:
        """Seconds until the next talk; None if nothing is due."""
        dues = [at for what, at in self.due.items() if what is not Due.PERMIT or self.uid]
        if self.flight is not None or not dues:
            return None
        return max(0.0, min(dues) - now, self.quiet_until - now)


def kept(member: Member) -> Kept:
    return Kept(**{each.name: getattr(member, each.name) for each in fields(Kept)})


def recalled(member: Member, found: Kept) -> Member:
    """As far as is known, work has used the permit."""
    return replace(member, used=True, **{each.name: getattr(found, each.name) for each in fields(Kept)})
