"""The daemon's side of the cluster: a short child process for each talk with the API server.

The libraries that talk TLS would weigh on every node for ever. What is known, and what is due when, is
`member.py`'s; here are only the child, the timer, the file, and the lines of the log.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from installer.cluster.dialogue import FIRST_SECONDS, first_talk, heard, last_talk, next_talk
from installer.cluster.member import PERIODS, Due, Kept, Member, Periods, kept, recalled
from installer.cluster.pod_context import PodContext
from installer.cluster.talk import TALK_SECONDS, Heard, Talk
from installer.errors import InstallerError
from installer.host.ports import Files
from installer.host.run import OURSELVES, Finished, describe_exit, run
from installer.model import paths
from installer.model.daemon import DaemonState, Loop, RunningChild
from installer.model.event import Emit, Event
from installer.model.fleet import FleetAnswer, FleetRules, Permission, PlannedWork, WorkResult
from installer.model.hold import CLUSTER_MEMORY
from installer.model.jsontext import from_json, to_json

_GRACE = 2.0  # seconds a child gets from SIGTERM to SIGKILL

RunChild = Callable[[Sequence[str], float], Finished]


class Voice:
    """The Cluster port. `run_child` runs a process and waits for it. `program` is what is started, with the
    verb `talk` and one JSON text."""

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
    ) -> None:
        self._emit, self._files, self._program, self._run_child = emit, files, tuple(program), run_child
        self._now, self._clock = now, clock
        self._loop: Loop | None = None
        self._changed: Callable[[], None] = lambda: None
        self._child: RunningChild | None = None
        self._output, self._timer = "", 0
        self._kept = Kept()
        self.member = Member(context=context, periods=periods, worked_at=clock())

    # -- the port -------------------------------------------------------------------------

    def begin(self, loop: Loop, changed: Callable[[], None]) -> None:
        """See the port."""
        self._kept = recall(self._files)
        self.member = first_talk(recalled(self.member, self._kept))
        self._hear(self._run(self.member.flight, FIRST_SECONDS))
        self._loop, self._changed = loop, changed
        self._schedule()

    def permission(self) -> Permission:
        """See the port."""
        return self.member.permission(self._clock())

    def saw(
        self, state: DaemonState, work: PlannedWork | None, rules: FleetRules, *, busy: bool, looks: bool
    ) -> None:
        """See the port."""
        now = self._clock()
        member = self.member.reported(now, state, self._now()).wants(now, work, rules, busy=busy)
        self.become(member.asks(now) if looks else member)

    def ended(self, result: WorkResult) -> None:
        """See the port."""
        self.become(self.member.ended(self._clock(), result))

    def removal_evidence(self) -> tuple[bool, str]:
        """See the port."""
        answer = self._run(Talk(self.member.context, evidence=True), TALK_SECONDS + _GRACE)
        if answer.evidence is not None:
            return answer.evidence.certain, answer.evidence.why
        return False, f"the API server was not reached: {_why(answer)}"

    def end(self) -> None:
        """See the port."""
        loop, self._loop = self._loop, None
        if loop is None:
            return
        if self._timer:
            loop.cancel(self._timer)
        if self._child is not None:
            self._child.kill()
        if (order := last_talk(self.member, self._clock())) is not None:
            self._run(order, FIRST_SECONDS)

    # -- effects --------------------------------------------------------------------------

    def become(self, member: Member) -> None:
        self.member = member
        self._keep()
        self._schedule()

    def _keep(self) -> None:
        """Nothing is written for a node that has nothing to remember, not even of its boot. A newer daemon
        remembers for itself."""
        found = kept(self.member)
        if found == self._kept or self.member.yielded:
            return
        with contextlib.suppress(InstallerError, OSError):  # the next pass tells what is wrong with the host
            if found != Kept() or self._files.status(CLUSTER_MEMORY) is not None:
                self._files.make_directory(paths.OUR_RUNTIME)
                self._files.write(CLUSTER_MEMORY, to_json(found).encode() + b"\n", 0o644)
            self._kept = found

    def _schedule(self) -> None:
        """Sets the timer for what is due first."""
        if self._loop is None:
            return
        if self._timer:
            self._loop.cancel(self._timer)
        wait = self.member.wait(self._clock())
        self._timer = 0 if wait is None else self._loop.after(wait, self._talk)

    def _talk(self) -> None:
        self._timer, self._output = 0, ""
        if self._loop is None:
            return
        self.member = next_talk(self.member, self._clock())
        order = self.member.flight
        if order is None:
            self._schedule()  # what was to be said is no longer so
            return
        try:
            self._child = self._loop.start(self._argv(order), self._line, self._heard, TALK_SECONDS, _GRACE)
        except OSError as error:
            self._hear(_lost(order, f"no process could be started: {error.strerror}"))

    def _argv(self, order: Talk) -> tuple[str, ...]:
        return (*self._program, "talk", to_json(order))

    def _run(self, order: Talk | None, seconds: float) -> Heard:
        order = order or Talk(self.member.context)
        done = self._run_child(self._argv(order), seconds)
        return _read(order, done.output, done.code)

    def _line(self, text: str) -> None:
        self._output = text  # the last one counts

    def _heard(self, code: int) -> None:
        self._child = None
        if self._loop is not None and self.member.flight is not None:
            self._hear(_read(self.member.flight, self._output, code))

    def _hear(self, answer: Heard) -> None:
        now, before = self._clock(), self.member
        # Whatever fails, there is a next talk.
        self.member = replace(before, flight=None, due={Due.LOOK: now + before.periods.retry[0]})
        try:
            self.member = after = heard(before, now, random.random(), answer)
            self._keep()
            for event in _news(before, after, answer):
                self._emit(event)
        finally:
            self._schedule()
        answered = before.asking and not after.asking
        seen = before.unseen and not after.unseen  # what waits for that may begin
        if (
            answered
            or seen
            or before.permission(now) != replace(after.permission(now), fresh=before.is_fresh(now))
        ):
            self._changed()


def recall(files: Files) -> Kept:
    """A file that is not understood is as good as none."""
    with contextlib.suppress(InstallerError, OSError, ValueError):
        return from_json(Kept, files.read(CLUSTER_MEMORY) or b"{}")
    return Kept()


def _read(order: Talk, output: str, code: int | None) -> Heard:
    """What a child has answered; what comes before its last line is a warning of Python's."""
    if code != 0:
        how = "its process did not end in time" if code is None else f"its process: {describe_exit(code)}"
        return _lost(order, how)
    try:
        return from_json(Heard, (output.splitlines() or [""])[-1])
    except ValueError:
        return _lost(order, "its answer cannot be parsed")


def _lost(order: Talk, why: str) -> Heard:
    asked = order.begin is not None or order.end is not None
    permit = FleetAnswer(why=f"the API server was not reached: {why}", failed=True) if asked else None
    return Heard({"process": ("failed", why)}, permit=permit)


def _why(answer: Heard) -> str:
    return answer.parts.get("process", ("", "its answer cannot be parsed"))[1]


# -- the log ------------------------------------------------------------------------------


def _news(before: Member, after: Member, answer: Heard) -> Iterator[Event]:
    permit, flight = answer.permit, before.flight
    if permit is not None and not (before.yielded and flight and flight.begin):
        data = {"permit": after.held.name if after.held else ""}
        if permit.granted:
            name = f", with {permit.permit}" if permit.permit else ""
            yield Event("permit.granted", f"this node may begin{name}", data)
        elif permit.why and permit.why != before.why:
            yield Event("permit.waiting", f"{permit.why}{permit.detail}", data)
        if permit.tripped:
            yield Event("rollout.stopped", permit.tripped, data)
    yield from _failures(before, after, answer)


def _failures(before: Member, after: Member, answer: Heard) -> Iterator[Event]:
    """Each kind of failure once, until it is over: the node is served without permission or server."""
    parts, said = {"process": ("ok", ""), **answer.parts}, set(before.parts.values())
    for result, kind, what in (
        ("denied", "cluster.denied", "the API server denies"),
        ("failed", "cluster.unreachable", "the API server does not serve"),
    ):
        fresh = {
            part: found[1]
            for part, found in parts.items()
            if found[0] == result and before.parts.get(part, ("ok", ""))[0] != result and found not in said
        }
        if fresh:
            why = "; ".join(dict.fromkeys(fresh.values()))
            message = f"{what} {', '.join(fresh)}: {why}; the node keeps working"
            yield Event(kind, message, {"parts": fresh})
    over = [
        part for part, found in parts.items() if found[0] == "ok" and before.parts.get(part, found)[0] != "ok"
    ]
    if over:
        message = f"the API server answers again: {', '.join(over)}"
        yield Event("cluster.restored", message, {"parts": over})
