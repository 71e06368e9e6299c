"""What the next sync of a node with the API server is about, and what follows from the reply. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from installer.cluster.member import EVENTS_KEPT, GRANT_SECONDS, NEVER, Due, Held, Member
from installer.cluster.sync import OK, UNREAD, NodeFacts, Result, SyncReply, SyncRequest, WorkEnd
from installer.model.fleet import PermitAnswer

FIRST_SECONDS = 3.0  # before the first pass, and at the end: a dead API server must not delay it
_SAME = 0.05  # seconds; a timer may be early by that
_BACKOFF = (5.0, 300.0)  # of a question for a permit, the first and the longest
_READY_RETRY = 5.0
_HIDDEN = "the API server does not return the Node object of this node"
_JITTER = 0.1


def first_sync(member: Member) -> Member:
    """Before the first pass: is the node paused?"""
    request = SyncRequest(member.context, FIRST_SECONDS - 0.5, read_node=True, is_first=True)
    return replace(member, in_flight=request)


def next_sync(before: Member, now: float) -> Member:
    """Put the sync that is due `in_flight`; none if what was to be reported is over."""
    due = {what for what, at in before.due.items() if at <= now + _SAME}
    later = {what: at for what, at in before.due.items() if what not in due}
    member = replace(before, due=later, synced_at=now)
    request = SyncRequest(before.context)
    if due & {Due.NODE, Due.REPORT}:
        # A status that differs is written without a read, because the answer shows the Node. One that does
        # not differ needs the read: others may have changed it.
        reports = before.differs or (before.is_lasting and Due.NODE in due)
        reads = Due.NODE in due or (reports and not before.memory)
        request = _with_report(request, before, reads=reads, reports=reports)
        request = replace(request, awaited=before.awaited if before.is_spare else ())
        member = replace(member, events=())
    request = _with_permit(request, before, now) if Due.PERMIT in due else request
    is_needed = request.concerns_node or request.begin or request.end
    return replace(member, in_flight=request) if is_needed else member


def _with_report(request: SyncRequest, member: Member, *, reads: bool, reports: bool) -> SyncRequest:
    writes = reports and member.context.annotate and not member.replaced and member.report.node.status
    status = member.report.node if writes else None
    return replace(request, read_node=reads, status=status, known=member.memory, events=member.events)


def _with_permit(request: SyncRequest, member: Member, now: float) -> SyncRequest:
    """First report the end of the last work, and only then ask for more."""
    request = replace(request, node=member.node, rules=member.rules)
    returned = member.held if member.is_spare and not member.awaits_ready else None
    if member.node.uid and (member.results or returned):
        end = _build_end(member, returned, now, knows_none=not member.held and not member.replaced)
        return replace(request, end=end)
    asks = member.node.uid and member.work is not None and member.granted is None and not member.busy
    notes_pods = member.node.flips and member.rules.pod_seconds > 0
    return replace(request, begin=member.work, notes_pods=notes_pods) if asks else request


def _build_end(member: Member, returned: Held | None, now: float, *, knows_none: bool = False) -> WorkEnd:
    result = member.results[0] if member.results else None
    name, version = (returned.name, returned.version) if returned else ("", "")
    return WorkEnd(result, name, version, knows_none, member.successor_seconds(now))


def last_sync(before: Member, now: float, *, leaves: bool) -> SyncRequest | None:
    """When the daemon ends: what was not reported, and the permit, if it is no longer needed. A node that
    `leaves` because its pod ends gives it back before any NRI plugin serves the node."""
    unsent = (*(before.in_flight.events if before.in_flight else ()), *before.events)
    reached = any(result == "ok" for part, (result, _) in before.parts.items() if part != "sync")
    request = SyncRequest(before.context, FIRST_SECONDS - 0.5)
    reports = before.owes_state and before.is_lasting
    if reached and ((unsent and before.is_allowed("events")) or reports):
        member = replace(before, events=unsent if before.is_allowed("events") else ())
        request = _with_report(request, member, reads=reports and not before.memory, reports=reports)
    end = _build_end(before, None if before.busy else before.held, now)
    end = replace(end, successor_seconds=None) if leaves else end
    if end.result or end.permit:
        request = replace(request, node=before.node, rules=before.rules, end=end)
    return request if request.concerns_node or request.end else None


def receive(before: Member, now: float, chance: float, reply: SyncReply) -> Member:
    """Take in the reply to the sync `in_flight`. `chance`, within 0 and 1, keeps the nodes of a fleet out of
    step."""
    request = before.in_flight or SyncRequest(before.context)
    parts = {"sync": OK, **reply.parts}
    lost = parts["sync"][0] != "ok" and request.concerns_node
    unread = parts["node"][0] != "ok" if "node" in parts else lost or before.unread
    paused = reply.node.paused if reply.node else None
    unsent = (*request.events[reply.sent :], *before.events)[-EVENTS_KEPT:]
    member = replace(
        before,
        in_flight=None,
        events=unsent,
        parts={**before.parts, **parts},
        unread=unread,
        paused=before.paused if paused is None else paused,
        awaits_node=before.awaits_node and not request.read_node,
        read_at=now if request.read_node else before.read_at,
        quiet_until=now + reply.wait,
    )
    member = _take_status(member, request, parts, reply.known)
    member = _take_pods(member, now, request, reply)
    member = _take_node(member, now, reply.node or UNREAD)
    if reply.permit is not None:
        member = _take_permit(member, now, chance, request, reply.permit)
    return _schedule(member, now, chance, request, parts)


def _take_status(
    member: Member, request: SyncRequest, parts: Mapping[str, Result], known: Mapping[str, Any] | None
) -> Member:
    """Note what our Node says of us now, as far as we know."""
    written = [parts[part][0] == "ok" for part in ("annotation", "condition") if part in parts]
    if parts["sync"][0] != "ok" and request.status:
        return replace(member, known={})  # it may have been written
    known = member.known if known is None else known
    if not written:
        return replace(member, known=known)
    if all(written) and request.status is not None:
        return replace(member, known=known, shown=request.status.status)
    return replace(member, known={}, shown={})


def _take_node(before: Member, now: float, node: NodeFacts) -> Member:
    """Nothing changes if the Node was not read."""
    if not node.uid:
        if not node.hidden or before.node.uid:
            return before
        return replace(before, denied_since=min(now, before.denied_since), why=_HIDDEN)
    member = replace(before, node=node).without_expired(now)
    asks = not before.node.uid or member.results or (member.is_spare and not member.awaits_ready)
    return member.due_at(Due.PERMIT, now) if asks else member


def _take_pods(member: Member, now: float, request: SyncRequest, reply: SyncReply) -> Member:
    """Note which pods are not Ready yet: after a while, or without the right to see them, none."""
    if not request.awaited:
        return member
    is_over = now - member.worked_at >= member.rules.pod_seconds
    if is_over or reply.parts.get("pods", OK)[0] == "denied":
        return replace(member, unready=())
    return replace(member, unready=reply.unready) if reply.unready is not None else member


def _take_permit(
    before: Member, now: float, chance: float, request: SyncRequest, answer: PermitAnswer
) -> Member:
    others_first = before.stalled and request.end is not None and bool(request.end.permit)
    refusals = before.refusals + 1 if answer.failed else 0
    denied_since = min(now, before.denied_since) if answer.denied else NEVER
    member = replace(before, refusals=refusals, denied_since=denied_since)
    member = (
        _take_end(member, request.end, answer) if request.end else _take_grant(member, now, request, answer)
    )
    first, longest = _BACKOFF
    pause = min(longest, first * 2.0 ** min(10, refusals - 1)) * (0.75 + chance / 2) if refusals else 0.0
    wait, asks = max(answer.wait, pause), member.work is not None and member.granted is None
    if asks and others_first:
        wait = max(wait, GRANT_SECONDS)
    waits = asks or answer.failed or member.owes_fleet
    return member.due_at(Due.PERMIT, now + (wait or _READY_RETRY)) if waits else member


def _take_grant(before: Member, now: float, request: SyncRequest, answer: PermitAnswer) -> Member:
    if before.replaced:
        return before
    if not answer.granted:
        return replace(before, why=answer.why, stalled=not answer.failed)
    member = replace(before, stalled=False, why="")
    if answer.permit:  # else one of earlier work is still to be given back
        used = before.used and before.held is not None and answer.permit == before.held.name
        # Of the same permit: pods that were Ready before the first work with it.
        earlier = before.held.pods if used and before.held is not None else ()
        pods = tuple(dict.fromkeys((*earlier, *answer.pods)))
        member = replace(member, used=used, held=Held(answer.permit, answer.version, now, pods))
    if request.begin is None or request.begin != before.work:
        return member
    canary_of = request.begin.generation if answer.canary else before.canary_of or ""
    return replace(member, granted=request.begin, granted_at=now, canary_of=canary_of)


def _take_end(before: Member, end: WorkEnd, answer: PermitAnswer) -> Member:
    """A node that could not report the end of its last work waits until it has."""
    member = replace(before, why=answer.why) if answer.why else before
    if answer.told and end.result:
        member = replace(member, results=before.results[1:])
    if answer.released and end.permit:
        member = replace(member, held=None, stalled=False)
    return member


def _schedule(
    before: Member, now: float, chance: float, request: SyncRequest, parts: Mapping[str, Result]
) -> Member:
    """Schedule what is tried again, and what is due without a change."""
    bad, periods = {part for part, (result, _) in parts.items() if result != "ok"}, before.periods
    lost = "sync" in bad and request.concerns_node
    again = {Due.NODE} if "node" in bad or lost else set[Due]()
    unwritten = any(parts.get(part, OK)[0] == "failed" for part in ("annotation", "condition"))
    again |= {Due.REPORT} if "events" in bad or unwritten or lost else set()
    failures = before.failures + 1 if again else 0
    member = replace(before, failures=failures) if request.concerns_node else before
    pause = min(periods.retry[1], periods.retry[0] * 2.0 ** min(10, member.failures - 1))
    varied = 1 + _JITTER * (2 * chance - 1)
    for what in sorted(again):
        member = member.due_at(what, now + max(pause, before.quiet_until - now) * varied)
    if member.awaits_node:
        member = member.due_by(Due.NODE, now)
    elif Due.NODE in again:
        pass
    elif member.awaits_ready:
        first, last = periods.ready
        member = member.due_by(Due.NODE, now + min(last, max(first, (now - member.worked_at) / 4)))
    elif member.paused:
        member = member.due_by(Due.NODE, now + periods.paused * varied)
    return member.due_by(Due.REPORT, now + periods.report) if member.owes_status else member
