"""The daemon's client of the API server: a short child process for each sync.

The libraries for TLS would weigh on every node for ever. `member.py` says what is known and what is due when;
here are only the child, the timer, the file, and the lines of the log.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from errno import EBUSY
from functools import partial

from installer.cluster.member import PERIODS, Due, Kept, Member, Periods, kept, restored
from installer.cluster.node_status import Report
from installer.cluster.pod_context import PodContext
from installer.cluster.sync import OK, SYNC_SECONDS, SyncReply, SyncRequest
from installer.cluster.sync_plan import FIRST_SECONDS, first_sync, last_sync, next_sync, receive
from installer.errors import InstallerError
from installer.host.command import OURSELVES, Finished, describe_exit, run
from installer.host.ports import Files
from installer.model import paths
from installer.model.daemon import Cluster, DaemonState, Job, Loop, RunningChild
from installer.model.event import Emit, Event, name_some
from installer.model.fleet import FleetRules, Permission, PermitAnswer, PlannedWork, WorkResult
from installer.model.hold import CLUSTER_MEMORY
from installer.model.jsontext import from_json, to_json

_GRACE = 2.0  # seconds a child gets from SIGTERM to SIGKILL

RunChild = Callable[[Sequence[str], float], Finished]


class ClusterClient(Cluster):
    """`run_child` runs a process and waits for it. `program` is what is started, with the verb `sync` and one
    JSON text. `chance`, within 0 and 1, keeps the nodes of a fleet out of step."""

    def __init__(
        self,
        context: PodContext,
        emit: Emit,
        files: Files,
        program: Sequence[str] = OURSELVES,
        run_child: RunChild = run,
        periods: Periods = PERIODS,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._emit, self._files, self._program, self._run_child = emit, files, tuple(program), run_child
        self._now, self._clock, self._chance = now, clock, chance
        self._loop: Loop | None = None
        self._changed: Callable[[], None] = lambda: None
        self._child: RunningChild | None = None
        self._output, self._timer = "", 0
        self._kept = Kept()
        self.member = Member(
            context=context, periods=periods, report=Report(pod=context.pod), worked_at=clock()
        )

    # -- the port -------------------------------------------------------------------------

    def begin(self, loop: Loop, changed: Callable[[], None]) -> None:
        with contextlib.suppress(InstallerError, OSError, ValueError):  # it is not understood
            self._kept = from_json(Kept, self._files.read(CLUSTER_MEMORY) or b"{}")
        self.member = first_sync(restored(self.member, self._kept))
        self._receive(self._run(self.member.in_flight, FIRST_SECONDS))
        self._loop, self._changed = loop, changed
        self._schedule()

    def permission(self) -> Permission:
        return self.member.permission(self._clock())

    def update(
        self, state: DaemonState, work: PlannedWork | None, rules: FleetRules, *, busy: bool, read_node: bool
    ) -> None:
        now = self._clock()
        member = self.member.with_state(now, state, self._now()).with_work(now, work, rules, busy=busy)
        self.become(member.awaiting_node(now) if read_node else member)

    def report_result(self, result: WorkResult) -> None:
        self.become(self.member.with_result(self._clock(), result))

    def removal_evidence(self) -> tuple[bool, str]:
        reply = self._run(SyncRequest(self.member.context, evidence=True), SYNC_SECONDS + _GRACE)
        if reply.evidence is not None:
            return reply.evidence.certain, reply.evidence.why
        why = reply.parts.get("sync", ("", "its answer cannot be parsed"))[1]
        return False, f"the API server was not reached: {why}"

    def end(self, *, leaves: bool = False, replaced: bool = False) -> None:
        loop, self._loop = self._loop, None
        if loop is None:
            return
        if self._timer:
            loop.cancel(self._timer)
        if self._child is not None:
            self._child.kill()
        member = self.member.handed_over() if replaced else self.member
        if (request := last_sync(member, self._clock(), leaves=leaves)) is not None:
            self._run(request, FIRST_SECONDS)

    # -- effects --------------------------------------------------------------------------

    def become(self, member: Member) -> None:
        self.member = member
        self._keep()
        self._schedule()

    def _keep(self) -> None:
        """Write nothing for a node that has nothing to remember, not even of its boot. A newer daemon
        remembers for itself."""
        found = kept(self.member)
        if found == self._kept or self.member.replaced:
            return
        with contextlib.suppress(InstallerError, OSError):  # the next pass reports what is wrong
            if found != Kept() or self._files.status(CLUSTER_MEMORY) is not None:
                self._files.make_directory(paths.OUR_RUNTIME)
                self._files.write(CLUSTER_MEMORY, to_json(found).encode() + b"\n", 0o644)
            self._kept = found

    def _schedule(self) -> None:
        if self._loop is None:
            return
        if self._timer:
            self._loop.cancel(self._timer)
        wait = self.member.wait(self._clock())
        self._timer = 0 if wait is None else self._loop.after(wait, partial(self._sync, self._loop))

    def _sync(self, loop: Loop) -> None:
        self._timer, self._output = 0, ""
        self.member = next_sync(self.member, self._clock())
        request = self.member.in_flight
        if request is None:
            self._schedule()  # what was to be reported is over
            return
        try:
            if self._child is not None and not self._child.is_gone:
                raise OSError(EBUSY, "the last one hangs")
            job = Job(self._argv(request), self._line, self._ended, SYNC_SECONDS, _GRACE)
            self._child = loop.start(job)
        except OSError as error:
            self._receive(_build_loss(request, f"no process could be started: {error.strerror}"))

    def _argv(self, request: SyncRequest) -> tuple[str, ...]:
        return (*self._program, "sync", to_json(request))

    def _run(self, request: SyncRequest | None, seconds: float) -> SyncReply:
        request = request or SyncRequest(self.member.context)
        done = self._run_child(self._argv(request), seconds)
        return _parse_reply(request, done.output, done.code)

    def _line(self, text: str) -> None:
        self._output = text  # the last one counts

    def _ended(self, code: int) -> None:
        if self._child is not None and self._child.is_gone:
            self._child = None
        if self._loop is not None and self.member.in_flight is not None:
            self._receive(_parse_reply(self.member.in_flight, self._output, code))

    def _receive(self, reply: SyncReply) -> None:
        now, before = self._clock(), self.member
        # Whatever fails, there is a next sync.
        self.member = replace(before, in_flight=None, due={Due.NODE: now + before.periods.retry[0]})
        try:
            self.member = after = receive(before, now, self._chance(), reply)
            self._keep()
            for event in _news(before, after, reply):
                self._emit(event)
        finally:
            self._schedule()
        # What waits for a look at the Node may begin.
        was_read = (before.awaits_node and not after.awaits_node) or (before.unread and not after.unread)
        permission = replace(after.permission(now), fresh=before.is_fresh(now))
        if was_read or permission != before.permission(now):
            self._changed()


def _parse_reply(request: SyncRequest, output: str, code: int | None) -> SyncReply:
    """Parse the last line of a child's output; what comes before it is a warning of Python's."""
    if code != 0:
        how = "its process did not end in time" if code is None else f"its process: {describe_exit(code)}"
        return _build_loss(request, how)
    try:
        return from_json(SyncReply, (output.splitlines() or [""])[-1])
    except ValueError:
        return _build_loss(request, "its answer cannot be parsed")


def _build_loss(request: SyncRequest, why: str) -> SyncReply:
    asked = request.begin is not None or request.end is not None
    permit = PermitAnswer(why=f"the API server was not reached: {why}", failed=True) if asked else None
    return SyncReply({"sync": ("failed", why)}, permit=permit)


# -- the log ------------------------------------------------------------------------------


def _news(before: Member, after: Member, reply: SyncReply) -> Iterator[Event]:
    permit, request = reply.permit, before.in_flight
    if permit is not None and not (before.replaced and request and request.begin):
        data = {"permit": after.held.name if after.held else ""}
        if permit.granted:
            name = f", with {permit.permit}" if permit.permit else ""
            yield Event("permit.granted", f"this node may start planned work{name}", data)
        elif permit.why and permit.why != before.why:
            yield Event("permit.waiting", f"{permit.why}{permit.detail}", data)
        if permit.tripped:
            yield Event("rollout.stopped", permit.tripped, data)
    if request and request.awaited and reply.unready:
        yield from _describe_pods(before, after, reply.unready)
    yield from _failures(before, reply)


def _describe_pods(before: Member, after: Member, unready: Sequence[str]) -> Iterator[Event]:
    seconds = f"{after.rules.pod_seconds:g} s"
    what = f"the permit waits, for at most {seconds}, until these pods are Ready again"
    if not after.unready:
        what = f"the permit goes back although these pods are not Ready again after {seconds}"
    if not (before.unready and after.unready):
        yield Event("permit.pods", f"{what}: {name_some(unready)}", {"pods": unready})


def _failures(before: Member, reply: SyncReply) -> Iterator[Event]:
    """Report each kind of failure once, until it is over: the daemon also works without the API server."""
    parts, said = {"sync": OK, **reply.parts}, set(before.parts.values())
    for result, kind, complaint in (
        ("denied", "cluster.denied", "the API server denies requests for"),
        ("failed", "cluster.unreachable", "requests to the API server fail for"),
    ):
        fresh = {
            part: answer[1]
            for part, answer in parts.items()
            if answer[0] == result and before.parts.get(part, OK)[0] != result and answer not in said
        }
        if fresh:
            why = "; ".join(dict.fromkeys(fresh.values()))
            message = f"{complaint} {', '.join(fresh)}: {why}; the daemon keeps working"
            yield Event(kind, message, {"parts": fresh})
    over = [
        part
        for part, answer in parts.items()
        if answer[0] == "ok" and before.parts.get(part, answer)[0] != "ok"
    ]
    if over:
        message = f"the API server answers again: {', '.join(over)}"
        yield Event("cluster.restored", message, {"parts": over})
