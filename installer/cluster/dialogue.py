"""What the next talk of a node with the API server is about, and what follows from its answer. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from installer.cluster.member import EVENTS_KEPT, FRESH, NEVER, OK, Due, Held, Member
from installer.cluster.talk import End, Heard, NodeFacts, Result, Talk
from installer.model.fleet import FleetAnswer

FIRST_SECONDS = 3.0  # before the first pass, and at the end: a dead API server must not delay it
_SAME = 0.05  # seconds; a timer may be early by that
_BACKOFF = (5.0, 300.0)  # of a question for a permit, the first and the longest
_READY_RETRY = 5.0
_HIDDEN = "the API server does not return the Node object of this node"
_JITTER = 0.1


def first_talk(member: Member) -> Member:
    """Before the first pass: is the node paused?"""
    order = Talk(member.context, FIRST_SECONDS - 0.5, look=True, is_first=True)
    return replace(member, flight=order)


def next_talk(before: Member, now: float) -> Member:
    """With the talk that is due as its `flight`; none if what was to be said is no longer so."""
    due = {what for what, at in before.due.items() if at <= now + _SAME}
    later = {what: at for what, at in before.due.items() if what not in due}
    member = replace(before, due=later, talked_at=now)
    order, permit = Talk(before.context), _permit_talk(before, now) if Due.PERMIT in due else None
    if due & {Due.LOOK, Due.WORD}:
        # A statement that differs is written without a look, because the answer shows the Node. One that does
        # not differ needs the look: others may have changed it.
        tells = before.differs or (before.lasts and Due.LOOK in due)
        look = Due.LOOK in due or (tells and not before.memory)
        order, member = _word_talk(before, order, look=look, tells=tells), replace(member, events=())
    if permit is not None:
        order = replace(permit, look=order.look, say=order.say, said=order.said, events=order.events)
    return replace(member, flight=order) if order.is_of_node or permit else member


def _word_talk(member: Member, order: Talk, *, look: bool, tells: bool) -> Talk:
    says = member.speech.statement if tells and member.context.annotate and not member.yielded else None
    return replace(order, look=look, say=says, said=member.memory, events=member.events)


def _permit_talk(member: Member, now: float) -> Talk | None:
    """First reports the end of the last work, and only then asks for more."""
    order = Talk(member.context, uid=member.uid, canary=member.canary, rules=member.rules)
    returns = member.held if member.is_spare and not member.awaits_node else None
    if member.uid and (member.results or returns):
        end = _end(member, returns, now, knows_none=not member.held and not member.yielded)
        return replace(order, end=end)
    asks = member.uid and member.work is not None and member.granted is None and not member.busy
    return replace(order, begin=member.work) if asks else None


def _end(member: Member, returns: Held | None, now: float, *, knows_none: bool = False) -> End:
    result = member.results[0] if member.results else None
    name, version = (returns.name, returns.version) if returns else ("", "")
    return End(result, name, version, knows_none, member.successor_seconds(now))


def last_talk(before: Member, now: float) -> Talk | None:
    """When the daemon ends: what was not told, and the permit, if it is no longer needed."""
    unsent = (*(before.flight.events if before.flight else ()), *before.events)
    reached = any(result == "ok" for part, (result, _) in before.parts.items() if part != "process")
    order, tells = Talk(before.context, FIRST_SECONDS - 0.5), before.owes_state and before.lasts
    if reached and ((unsent and before.is_allowed("events")) or tells):
        member = replace(before, events=unsent if before.is_allowed("events") else ())
        order = _word_talk(member, order, look=tells and not before.memory, tells=tells)
    end = _end(before, None if before.busy else before.held, now)
    if end.result or end.permit:
        order = replace(order, uid=before.uid, rules=before.rules, end=end)
    return order if order.is_of_node or order.end else None


def heard(before: Member, now: float, chance: float, answer: Heard) -> Member:
    """What the child of the `flight` has answered. `chance`, within 0 and 1, varies what would else be in
    step with the whole fleet."""
    flight = before.flight or Talk(before.context)
    parts = {"process": OK, **answer.parts}
    lost = parts["process"][0] != "ok" and flight.is_of_node
    unseen = parts["node"][0] != "ok" if "node" in parts else lost or before.unseen
    paused = answer.node.paused if answer.node else None
    unsent = (*flight.events[answer.sent :], *before.events)[-EVENTS_KEPT:]
    member = replace(
        before,
        flight=None,
        events=unsent,
        parts={**before.parts, **parts},
        unseen=unseen,
        paused=before.paused if paused is None else paused,
        asking=before.asking and not flight.look,
        looked_at=now if flight.look else before.looked_at,
        quiet_until=now + answer.wait,
    )
    member = _see_node(_hear_word(member, flight, parts, answer.said), now, answer.node or NodeFacts())
    if answer.permit is not None:
        member = _hear_permit(member, now, chance, flight, answer.permit)
    return _plan(member, now, chance, flight, parts)


def _hear_word(
    member: Member, flight: Talk, parts: Mapping[str, Result], said: Mapping[str, Any] | None
) -> Member:
    """What our Node says of us by now, as far as we know."""
    words = [parts[part][0] == "ok" for part in ("annotation", "condition") if part in parts]
    if parts["process"][0] != "ok" and flight.say:
        return replace(member, known={})  # it may have been told something
    known = said or member.known
    if not words:
        return replace(member, known=known)
    told = all(words) and flight.say is not None
    return replace(
        member, known=known if told else {}, shown=flight.say.status if told and flight.say else {}
    )


def _see_node(before: Member, now: float, node: NodeFacts) -> Member:
    """Nothing where the Node was not looked at, or did not come."""
    if not node.uid:
        if not node.hidden or before.uid:
            return before
        return replace(before, powerless_since=min(now, before.powerless_since), why=_HIDDEN)
    member = replace(before, uid=node.uid, canary=node.canary, ready=node.ready).without_expired(now)
    asks = not before.uid or member.results or (member.is_spare and not member.awaits_node)
    return member.put_off(Due.PERMIT, now) if asks else member


def _hear_permit(before: Member, now: float, chance: float, flight: Talk, answer: FleetAnswer) -> Member:
    others_first = before.in_vain and flight.end is not None and bool(flight.end.permit)
    refusals = before.refusals + 1 if answer.failed else 0
    powerless_since = min(now, before.powerless_since) if answer.powerless else NEVER
    member = replace(before, refusals=refusals, powerless_since=powerless_since)
    member = _hear_end(member, flight.end, answer) if flight.end else _hear_begin(member, now, flight, answer)
    first, longest = _BACKOFF
    pause = min(longest, first * 2.0 ** min(10, refusals - 1)) * (0.75 + chance / 2) if refusals else 0.0
    wait, asks = max(answer.wait, pause), member.work is not None and member.granted is None
    if asks and others_first:
        wait = max(wait, FRESH)
    waits = asks or answer.failed or member.owes
    return member.put_off(Due.PERMIT, now + (wait or _READY_RETRY)) if waits else member


def _hear_begin(before: Member, now: float, flight: Talk, answer: FleetAnswer) -> Member:
    if before.yielded:
        return before
    if not answer.granted:
        return replace(before, why=answer.why, in_vain=not answer.failed)
    member = replace(before, in_vain=False, why="")
    if answer.permit:  # else one of earlier work is still to be given back
        used = before.used and before.held is not None and answer.permit == before.held.name
        member = replace(member, used=used, held=Held(answer.permit, answer.version, now))
    if flight.begin is None or flight.begin != before.work:
        return member
    leads = flight.begin.generation if answer.canary else before.leads or ""
    return replace(member, granted=flight.begin, granted_at=now, leads=leads)


def _hear_end(before: Member, end: End, answer: FleetAnswer) -> Member:
    """A node that could not report the end of its last work waits until it has."""
    member = replace(before, why=answer.why) if answer.why else before
    if answer.told and end.result:
        member = replace(member, results=before.results[1:])
    if answer.released and end.permit:
        member = replace(member, held=None, in_vain=False)
    return member


def _plan(before: Member, now: float, chance: float, flight: Talk, parts: Mapping[str, Result]) -> Member:
    """What is tried again, and what is due without a change."""
    bad, periods = {part for part, (result, _) in parts.items() if result != "ok"}, before.periods
    lost, spoke = "process" in bad, flight.is_of_node
    again = {Due.LOOK} if "node" in bad or (lost and spoke) else set[Due]()
    failed_word = any(parts.get(part, OK)[0] == "failed" for part in ("annotation", "condition"))
    again |= {Due.WORD} if "events" in bad or failed_word or (lost and spoke) else set()
    member = replace(before, failures=before.failures + 1 if again else 0) if spoke else before
    pause = min(periods.retry[1], periods.retry[0] * 2.0 ** min(10, member.failures - 1))
    varied = 1 + _JITTER * (2 * chance - 1)
    for what in sorted(again):
        member = member.put_off(what, now + max(pause, before.quiet_until - now) * varied)
    if member.asking:
        member = member.want(Due.LOOK, now)
    elif Due.LOOK in again:
        pass
    elif member.awaits_node:
        first, last = periods.ready
        member = member.want(Due.LOOK, now + min(last, max(first, (now - member.worked_at) / 4)))
    elif member.paused:
        member = member.want(Due.LOOK, now + periods.paused * varied)
    return member.want(Due.WORD, now + periods.word) if member.owes_annotation else member
