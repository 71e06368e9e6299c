"""The daemon's side of the cluster: a short child process for each talk with the API server.

The libraries that talk TLS would weigh on every node for ever. Here is only what was last heard, what is
still to be told, and when the next child is due.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from installer.cluster.agenda import Agenda, Due, Periods
from installer.cluster.events import EVENTS, MESSAGE_LIMIT, NodeSpeech, kind_of, message_of, policy_of
from installer.cluster.memory import ClusterMemory
from installer.cluster.pod_context import PodContext
from installer.cluster.talk import TALK_SECONDS, Heard, NodeFacts, Result, Talk
from installer.cluster.turns import Turns
from installer.host.ports import Files
from installer.host.run import OURSELVES, Finished, describe_exit, run
from installer.model.daemon import DaemonState, Loop, Phase, RunningChild
from installer.model.event import Emit, Event
from installer.model.fleet import FleetRules, PlannedWork, Turn, WorkResult
from installer.model.jsontext import from_json, to_json

_PERIODS = Periods()
_FIRST_SECONDS = 3.0  # before the first pass: a dead API server must not delay it
_GRACE = 2.0  # seconds a child gets from SIGTERM to SIGKILL
_QUEUE = 16  # events; the oldest go first
_REASONED = (Phase.FAILED, Phase.REFUSED, Phase.CONVERGED)  # another reason is another Event

_PAUSE_UNKNOWN = "the API server does not say whether this node is paused"

RunChild = Callable[[Sequence[str], float], Finished]


class ApiCluster:
    """The Cluster port. `run_child` runs a process and waits for it. `program` is what is started, with the
    verb `talk` and one JSON text."""

    def __init__(
        self,
        context: PodContext,
        emit: Emit,
        files: Files,
        program: Sequence[str] = OURSELVES,
        run_child: RunChild = run,
        periods: Periods = _PERIODS,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._context, self._emit, self._program = context, emit, tuple(program)
        self._run_child, self._periods, self._now = run_child, periods, now
        self._agenda = Agenda(periods, clock, random.random)
        self._loop: Loop | None = None
        self._changed: Callable[[], None] = lambda: None
        self._kept = ClusterMemory(files)
        self._node = NodeSpeech(now)
        self._speaks = True  # for the node: no newer daemon does
        self._told: tuple[object, ...] = ()
        self._warned = False  # by an Event, and not yet that it is over
        self._waits = False  # for its turn
        self._queue: deque[Mapping[str, Any]] = deque(maxlen=_QUEUE)
        self._flight: tuple[Mapping[str, Any], ...] = ()
        self._heard: dict[str, Result] = {}
        self._child: RunningChild | None = None
        self._output = ""
        self._timer = 0
        self._sees = False  # the child looks at the Node
        self._asking = False  # a pass waits for that
        self._unseen = False  # the last look at the Node was in vain
        self._busy = False  # a pass is at work
        self._turns = Turns(context, emit, files, self._program, self.see_node, clock)

    # -- the port -------------------------------------------------------------------------

    def begin(self, loop: Loop, changed: Callable[[], None]) -> None:
        """See the port."""
        self._kept.recall()
        order = Talk(self._context, _FIRST_SECONDS - 0.5, look=True, is_first=True)
        done = self._run_child(self._argv(order), _FIRST_SECONDS)
        failed, wait = self._take(done.output, "" if done.code == 0 else _how_it_ended(done.code))
        self._agenda.ended(failed, looked=True, retry_after=wait)
        self._want_more(failed)
        self._loop, self._changed = loop, changed
        self._turns.begin(loop, changed)
        self._schedule()

    def paused(self) -> bool:
        """The last that the API server said: while it is away, nothing changes."""
        return self._kept.paused

    def asked(self) -> bool:
        """See the port."""
        return self._agenda.is_fresh

    def ask(self) -> None:
        """See the port."""
        if self._loop is not None and not self._asking:
            self._asking = True
            if not self._sees:
                self._agenda.want(Due.NODE)
                self._schedule()

    def removal_evidence(self) -> tuple[bool, str]:
        """See the port."""
        done = self._run_child(self._argv(Talk(self._context, evidence=True)), TALK_SECONDS + _GRACE)
        with contextlib.suppress(ValueError):
            if done.code == 0 and (found := from_json(Heard, _last_line(done.output)).evidence):
                return found.certain, found.why
        return False, f"the API server was not reached: {_how_it_ended(done.code)}"

    def turn(self) -> Turn:
        """See the port. Where the API server does not say whether the node is paused, repairs go on, and
        planned work has time: its turn waits, too. Work that has begun in its turn is finished."""
        turn, unknown = self._turns.turn(), self._unseen or self._agenda.is_kept_away
        if turn.granted is None or turn.powerless or self._busy or not unknown:
            return turn
        return replace(turn, granted=None, why=_PAUSE_UNKNOWN)

    def want(self, work: PlannedWork | None, rules: FleetRules, *, busy: bool) -> None:
        """See the port."""
        self._busy = busy
        self._turns.want(work, rules, busy=busy)

    def worked(self, result: WorkResult) -> None:
        """See the port."""
        self._turns.worked(result)

    def report(self, state: DaemonState) -> None:
        """See the port. A transition is told at once, everything else with the next heartbeat. A daemon that
        has been replaced says that as an Event, and leaves the annotation to the newer one."""
        phase = state.phase
        if phase is Phase.CHECKING:
            return  # nothing has changed
        self._speaks = phase is not Phase.YIELDED
        if not self._speaks:
            self._turns.yields()
        self._node.take(state)
        what = (state.reason if phase in _REASONED else "") or policy_of(state)
        told = (phase, state.hold, what)
        if phase is Phase.CONVERGING:
            self._told = ()  # the result of new inputs is told, also where it is the same as before
        if self._waits and phase is not Phase.WAITING:
            self._end_waiting()
        if phase is Phase.WAITING:
            self._wait()
        elif phase in EVENTS and told != self._told:
            self._told = told
            if not self._goes_without_event(state):
                self._queue.append(self._event(state))
            self._agenda.soon(Due.WORD)
        elif phase in EVENTS and self._owes_state:
            self._agenda.soon(Due.WORD)
        elif self._owes_annotation:
            self._agenda.want(Due.WORD, self._periods.word)
        self._schedule()

    def _goes_without_event(self, state: DaemonState) -> bool:
        """Whether all is well, and no warning has to be taken back: the Node and its pod say it."""
        warned, warns = self._warned, kind_of(state)[0] == "Warning"
        good = state.phase in (Phase.CONVERGED, Phase.REMOVED) and not warns
        self._warned = warns or (warned and not good)
        return good and not warned

    def _event(self, state: DaemonState) -> Mapping[str, Any]:
        kind, reason = kind_of(state)
        message = message_of(state)[:MESSAGE_LIMIT]
        return {"type": kind, "reason": reason, "message": message, "time": self._now()}

    def _wait(self) -> None:
        """A turn that comes at once is no word."""
        if not self._waits:
            self._waits, self._told = True, ()
            self._agenda.put_off(Due.WORD, self._periods.waiting)
        elif self._owes_annotation:
            self._agenda.want(Due.WORD, self._periods.word)

    def _end_waiting(self) -> None:
        """What has not been said by now is not so any more."""
        self._waits = False
        if not self._queue and not self._node.shows(Phase.WAITING):
            self._agenda.put_off(Due.WORD, self._periods.word)

    def end(self) -> None:
        """See the port."""
        self._turns.end(self._run_child)
        loop, self._loop = self._loop, None
        if loop is None:
            return
        if self._timer:
            loop.cancel(self._timer)
        if self._child is not None:
            self._child.kill()
        unsent = (*self._flight, *self._queue) if self._is_allowed("events") else ()
        tells = self._owes_state and self._node.lasts
        if self._reached and (unsent or tells):
            sees = tells and not self._memory
            order = self._order(unsent, _FIRST_SECONDS - 0.5, sees=sees, tells=tells)
            self._run_child(self._argv(order), _FIRST_SECONDS)

    # -- children ---------------------------------------------------------------------------

    def _order(
        self,
        events: tuple[Mapping[str, Any], ...],
        seconds: float,
        *,
        sees: bool,
        tells: bool,
    ) -> Talk:
        """`sees`: the Node is looked at; `tells`: it is told the present state."""
        says = self._node.statement if self._speaks and tells else None
        return Talk(self._context, seconds, look=sees, say=says, said=self._memory, events=events)

    def _tells(self, due: frozenset[Due]) -> bool:
        """Whether the Node is told the present state. What differs is told instead of a look: the answer is
        one. What does not differ is compared with what a look finds: others may have changed it."""
        if due & {Due.WORD, Due.NODE} and self._differs:
            return True
        return self._node.lasts and (Due.NODE in due or self._owes_annotation)

    @property
    def _memory(self) -> dict[str, Any]:
        """What the Node says of us; empty where that is not known, or may not be changed in one request."""
        return self._node.known if self._is_allowed("condition") else {}

    @property
    def _differs(self) -> bool:
        """Whether the Node says anything else than what was last reported."""
        return self._context.annotate and self._speaks and self._node.differs

    @property
    def _says(self) -> bool:
        """Whether the Node says itself how it is."""
        return self._context.annotate and self._is_allowed("annotation") and self._is_allowed("condition")

    @property
    def _owes_annotation(self) -> bool:
        return self._differs and self._says

    @property
    def _owes_state(self) -> bool:
        return self._owes_annotation and not self._node.shows_state

    def _is_allowed(self, part: str) -> bool:
        """Whether the last attempt was no failure; there may have been none."""
        return self._heard.get(part, ("ok", ""))[0] == "ok"

    def _argv(self, order: Talk) -> tuple[str, ...]:
        return (*self._program, "talk", to_json(order))

    def see_node(self) -> None:
        """Looks at the Node soon."""
        self._agenda.soon(Due.NODE)
        self._schedule()

    def _schedule(self) -> None:
        """Sets the timer for what is due first."""
        if self._loop is None or self._child is not None:
            return
        if self._timer:
            self._loop.cancel(self._timer)
        wait = self._agenda.wait()
        self._timer = 0 if wait is None else self._loop.after(wait, self._heartbeat)

    def _heartbeat(self) -> None:
        self._timer = 0
        if self._loop is None:
            return
        due = self._agenda.begin()
        self._output, self._flight = "", tuple(self._queue)
        self._queue.clear()
        tells = self._tells(due)
        self._sees = Due.NODE in due or (tells and not self._memory)
        if not (self._sees or tells or self._flight):
            self._schedule()  # what was to be said is no longer so
            return
        order = self._order(self._flight, TALK_SECONDS, sees=self._sees, tells=tells)
        self._node.sending(order.say)
        try:
            self._child = self._loop.start(self._argv(order), self._line, self._ended, TALK_SECONDS, _GRACE)
        except OSError as error:
            self._heard_back(f"no process could be started: {error.strerror}")

    def _line(self, text: str) -> None:
        self._output = text  # the last one counts

    def _ended(self, code: int) -> None:
        self._child = None
        if self._loop is not None:
            self._heard_back("" if code == 0 else _how_it_ended(code))

    def _heard_back(self, failure: str) -> None:
        looked, self._sees = self._sees, False
        asked, self._asking = looked and self._asking, self._asking and not looked
        failed, wait = frozenset(Due), 0.0
        try:
            failed, wait = self._take("" if failure else self._output, failure)
        finally:  # whatever fails, there is a next heartbeat
            self._agenda.ended(failed, looked=looked, retry_after=wait)
            self._want_more(failed)
            self._schedule()
        if asked:
            self._changed()

    def _want_more(self, failed: frozenset[Due]) -> None:
        """What is due without a change, and is not tried again anyway."""
        if self._asking:
            self._agenda.want(Due.NODE)
        elif Due.NODE in failed:
            pass
        elif self._turns.awaits_node:
            first, last = self._periods.ready
            self._agenda.want(Due.NODE, min(last, max(first, self._turns.since_work / 4)))
        elif self._kept.paused:
            self._agenda.want_varied(Due.NODE, self._periods.paused)
        if self._owes_annotation:
            self._agenda.want(Due.WORD, self._periods.word)

    # -- what is heard -----------------------------------------------------------------------

    @property
    def _reached(self) -> bool:
        return any(result == "ok" for part, (result, _) in self._heard.items() if part != "process")

    def _take(self, output: str, failure: str) -> tuple[frozenset[Due], float]:
        """What a child has answered, or why it has not answered. Returns what is to be tried again, and for
        how many seconds the server wants to be left alone."""
        try:
            if failure:
                raise ValueError(failure)
            heard = from_json(Heard, _last_line(output))
            parts = {**heard.parts, "process": ("ok", "")}
        except ValueError:
            heard = Heard({})
            parts = {"process": ("failed", failure or "its answer cannot be parsed")}
            self._node.known = {}  # the Node may have been told something
        self._take_node(heard.node or NodeFacts())
        unsent = (*self._flight[heard.sent :], *self._queue)
        self._queue, self._flight = deque(unsent, maxlen=_QUEUE), ()
        words = [parts[part][0] == "ok" for part in ("annotation", "condition") if part in parts]
        self._node.heard(heard.said, told=all(words) if words else None)
        self._say(parts)
        before, unseen = self._kept.paused, self._unseen
        vain = parts["process"][0] != "ok" or self._unseen
        self._unseen = parts["node"][0] != "ok" if "node" in parts else vain
        paused = heard.node.paused if heard.node else None
        self._kept.paused = before if paused is None else paused
        self._kept.keep()
        if self._kept.paused is not before or (unseen and not self._unseen):  # what waits for that may begin
            self._changed()
        return self._failed(parts), heard.wait

    def _take_node(self, node: NodeFacts) -> None:
        """Nothing where the Node was not looked at, or did not come."""
        if node.uid:
            self._turns.node_is(node.uid, canary=node.canary, ready=node.ready)
        elif node.hidden:
            self._turns.node_is_hidden()

    def _failed(self, parts: Mapping[str, Result]) -> frozenset[Due]:
        """What has to be tried again. Without the Node's UID nobody can ask for a turn."""
        failed = {part for part, (result, _) in parts.items() if result != "ok"}
        if "process" in failed:
            return frozenset(Due)
        again = {Due.NODE} if "node" in failed else set[Due]()
        words = [parts[part][0] for part in ("annotation", "condition") if part in parts]
        again |= {Due.WORD} if self._queue or "failed" in words else set()
        return frozenset(again)

    def _say(self, parts: Mapping[str, Result]) -> None:
        """Each kind of failure once, until it is over: the node is served without permission or server."""
        before = dict(self._heard)
        self._heard.update(parts)
        said = set(before.values())
        for result, kind, what in (
            ("denied", "cluster.denied", "the API server denies"),
            ("failed", "cluster.unreachable", "the API server does not serve"),
        ):
            fresh = {
                part: found[1]
                for part, found in parts.items()
                if found[0] == result and before.get(part, ("ok", ""))[0] != result and found not in said
            }
            if fresh:
                why = "; ".join(dict.fromkeys(fresh.values()))
                message = f"{what} {', '.join(fresh)}: {why}; the node keeps working"
                self._emit(Event(kind, message, {"parts": dict(fresh)}))
        over = [
            part for part, found in parts.items() if found[0] == "ok" and before.get(part, found)[0] != "ok"
        ]
        if over:
            message = f"the API server answers again: {', '.join(over)}"
            self._emit(Event("cluster.restored", message, {"parts": over}))


def _last_line(output: str) -> str:
    """What comes before is a warning of Python's."""
    return (output.splitlines() or [""])[-1]


def _how_it_ended(code: int | None) -> str:
    return "its process did not end in time" if code is None else f"its process: {describe_exit(code)}"
