"""The daemon's side of the fleet: when the turn of this node is asked for, and what is told of its end.

As with the heartbeat, a child makes the requests (`ask.py`). Here is only what was heard,
what is still to be told, and when the next question is due; `turn_memory.py` keeps it for the next `run`.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from installer.cluster.pod_context import PodContext
from installer.cluster.talk import TALK_SECONDS, End, Heard, Talk
from installer.cluster.turn_memory import TurnMemory, keep, recall
from installer.host.ports import Files
from installer.host.run import describe_exit
from installer.model.daemon import Loop, RunningChild
from installer.model.event import Emit, Event
from installer.model.fleet import FREE, FleetAnswer, FleetRules, PlannedWork, Turn, WorkResult
from installer.model.jsontext import from_json, to_json

_GRACE = 2.0
_END_SECONDS = 3.0  # for giving the permit back when `run` ends
_FRESH = 45.0  # seconds in which granted work has to begin: less than the minute within which nothing more
# begins anywhere after a pause. Else others come first for as long
_BACKOFF = (5.0, 300.0)  # the first and the longest
_READY_RETRY = 5.0
_POWERLESS_SECONDS = 60.0  # from then on nobody is waited for who cannot be asked
_TO_TELL = 4
_HIDDEN = "the API server returned a different object than the Node of this node"


class Turns:
    """`program` is what is started with the verb `talk` and one JSON text. `changed` is called when
    the turn has changed, `see_node` asks for a heartbeat soon, which calls `node_is`."""

    def __init__(
        self,
        context: PodContext,
        emit: Emit,
        files: Files,
        program: Sequence[str],
        see_node: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._context, self._emit, self._files = context, emit, files
        self._program, self._see_node = tuple(program), see_node
        self._loop: Loop | None = None
        self._changed: Callable[[], None] = lambda: None
        self._uid, self._canary, self._ready = "", False, False
        self._rules = FleetRules()
        self._work: PlannedWork | None = None
        self._busy = False
        self._answer = FleetAnswer()  # to the last question
        self._asked: PlannedWork | None = None  # what that question was about
        self._granted: PlannedWork | None = None
        self._begun: PlannedWork | None = None  # by an earlier daemon or this one; its end is not known
        self._granted_at = self._powerless_since = 0.0
        self._results: deque[WorkResult] = deque(maxlen=_TO_TELL)
        self._permit, self._version = "", ""
        self._permit_at = self._worked_at = clock()
        self._used = False  # by work, after which the node has to be Ready before others may go on
        self._yielded = False
        self._in_vain = False  # the work that waits does not begin, and so the permit is given back
        self._returns = ""  # the permit that the child gives back
        self._failed = ""  # the generation that this node has told to have failed
        self._leads: str | None = None  # the generation that it has begun as a canary, if that is known
        self._soaking: tuple[PlannedWork, float] | None = None  # what ended well, and is watched until then
        self._shown = FREE
        self._child: RunningChild | None = None
        self._output = ""
        self._timer = 0
        self._failures = 0

    # -- the port ---------------------------------------------------------------------------

    def begin(self, loop: Loop, changed: Callable[[], None]) -> None:
        self._loop, self._changed = loop, changed
        self._recall()

    def turn(self) -> Turn:
        """What may begin now. A removal whose rights are gone does not wait for them: to leave cleanly is
        worth more."""
        if not self._context.rollout_namespace:
            return FREE
        now, work = self._clock(), self._work
        if work is not None and work.removes and self._powerless_since:
            powerless = now - self._powerless_since >= _POWERLESS_SECONDS
            return Turn(True, work if powerless else None, self._answer.why, powerless, self._begun)
        fresh = self._busy or now - self._granted_at < _FRESH
        granted = self._granted if fresh else None
        return Turn(True, granted, "" if granted else self._answer.why, begun=self._begun)

    def want(self, work: PlannedWork | None, rules: FleetRules, *, busy: bool) -> None:
        self._rules, self._busy = rules, busy
        if not self._context.rollout_namespace:
            return
        self._forget_expired()
        if busy and self._granted is not None and (not self._used or self._begun != self._granted):
            self._used, self._begun = True, self._granted
            self._remember()
        self._worked_at = self._clock() if busy else self._worked_at
        stale = self._granted is not None and not busy and self._clock() - self._granted_at >= _FRESH
        if work != self._work or stale:
            self._work, self._granted, self._failures = work, None, 0
            self._in_vain, self._shown = stale, self.turn()  # the next grant is news, also of the same work
            if self.awaits_node:
                self._see_node()
            self._next(0.0)
        elif work is None and not busy and self._owes and not self._timer:
            self._next(0.0)

    def worked(self, result: WorkResult) -> None:
        """What others have to know of is told, and the permit is given back when the node is Ready. The first
        success after a boot is told, too: others may wait for a canary whose power was cut, or for the permit
        that it has forgotten."""
        if not self._context.rollout_namespace:
            return
        work = result.work
        if not work.generation and self._soaking is not None and self._clock() < self._soaking[1]:
            result = WorkResult(self._soaking[0], ok=False, why=result.why)
        generation = result.work.generation
        known = generation in (self._failed, self._leads) or (result.ok and self._leads is None)
        forgot = result.work.removes and self._leads is None and not self._permit
        if generation and (result.work.begins or forgot) and (result.ok is False or known):
            self._results.append(result)
            self._failed = generation if result.ok is False else "" if result.ok else self._failed
            self._leads = "" if self._leads in (generation, None) else self._leads
        if self._begun is not None and self._begun.generation == generation:
            if result.ok and work == self._begun and work.begins:
                self._soaking = (work, self._clock() + self._rules.soak_seconds)
            self._begun = None
        self._granted, self._ready, self._used = None, False, bool(self._permit)
        self._remember()
        if self._permit:
            self._see_node()
        self._next(0.0)

    def yields(self) -> None:
        """A newer daemon has come, which works with the permit of this node, and gives it back."""
        self._yielded, self._permit, self._granted = True, "", None

    def node_is(self, uid: str, *, canary: bool, ready: bool) -> None:
        """What a heartbeat has seen of the Node."""
        known, self._uid = bool(self._uid), uid or self._uid
        self._canary, self._ready = canary, ready
        self._forget_expired()
        if not known or self._results or (self._is_spare and not self.awaits_node):
            self._next(0.0)

    def node_is_hidden(self) -> None:
        """The API server denies this node its Node, or says that there is none. Who does not know its UID
        cannot ask for anything."""
        if not self._uid:
            self._powerless_since = self._powerless_since or self._clock()
            self._answer = replace(self._answer, why=_HIDDEN)
            self._show()

    @property
    def awaits_node(self) -> bool:
        """Whether a heartbeat is to come soon: the permit waits for a Ready node."""
        return self._is_spare and self._used and not self._ready

    @property
    def since_work(self) -> float:
        """Seconds since a pass was at work."""
        return self._clock() - self._worked_at

    def _forget_expired(self) -> None:
        """A permit that others may have by now: its node has not become Ready in time."""
        held = self._clock() - self._permit_at
        if self._permit and not self._busy and held >= self._rules.hold_seconds:
            self._permit = self._version = ""
            self._remember()

    @property
    def _is_spare(self) -> bool:
        """Whether this node holds a permit that it does not need."""
        return bool(self._permit) and not self._busy and (self._work is None or self._in_vain)

    def end(self, run: Callable[[Sequence[str], float], object]) -> None:
        """Tells what was not told, and gives the permit back if it is not needed any more; `run` runs a
        process and waits for it."""
        loop, self._loop = self._loop, None
        if loop is not None and self._timer:
            loop.cancel(self._timer)
        if self._child is not None:
            self._child.kill()
        permit = "" if self._busy else self._permit
        result = self._results[0] if self._results else None
        if permit or result:
            end = End(result, permit, self._version)
            run(self._argv(self._order(_END_SECONDS - 0.5, end=end)), _END_SECONDS)

    # -- questions ----------------------------------------------------------------------------

    @property
    def _owes(self) -> bool:
        return bool(self._results or self._permit)

    def _next(self, seconds: float) -> None:
        if self._loop is None or self._child is not None or not self._context.rollout_namespace:
            return
        if self._timer:
            self._loop.cancel(self._timer)
        self._timer = self._loop.after(seconds, self._ask)

    def _ask(self) -> None:
        self._timer = 0
        if self._loop is None or self._child is not None or not self._uid:
            return
        self._returns = returns = self._permit if self._is_spare and not self.awaits_node else ""
        self._asked = None
        if self._results or returns:
            result = self._results[0] if self._results else None
            knows_none = not self._permit and not self._yielded
            order = self._order(end=End(result, returns, self._version, knows_none))
        elif self._work is not None and self._granted is None and not self._busy:
            self._asked = self._work
            order = self._order(begin=self._work)
        else:
            return
        self._output = ""
        try:
            self._child = self._loop.start(self._argv(order), self._line, self._ended, TALK_SECONDS, _GRACE)
        except OSError as error:
            self._take(FleetAnswer(why=f"no process could be started: {error.strerror}", failed=True))

    def _order(
        self, seconds: float = TALK_SECONDS, begin: PlannedWork | None = None, end: End | None = None
    ) -> Talk:
        order = Talk(self._context, seconds, uid=self._uid, canary=self._canary, rules=self._rules)
        return replace(order, begin=begin, end=end)

    def _argv(self, order: Talk) -> tuple[str, ...]:
        return (*self._program, "talk", to_json(order))

    def _line(self, text: str) -> None:
        self._output = text

    def _ended(self, code: int) -> None:
        self._child = None
        if self._loop is None:
            return
        try:
            if code != 0:
                raise ValueError(describe_exit(code))
            answer = from_json(Heard, self._output).permit or FleetAnswer(failed=True)
        except ValueError as error:
            answer = FleetAnswer(why=f"the API server was not reached: {error}", failed=True)
        self._take(answer)

    def _take(self, answer: FleetAnswer) -> None:
        self._failures = self._failures + 1 if answer.failed else 0
        now, others_first = self._clock(), self._in_vain and bool(self._returns)
        self._powerless_since = (self._powerless_since or now) if answer.powerless else 0.0
        if self._asked is not None:
            self._take_turn(answer, now)
        else:
            self._take_end(answer)
        self._remember()
        if self._loop is not None:
            pause = (
                min(_BACKOFF[1], _BACKOFF[0] * 2.0 ** min(10, self._failures - 1)) if answer.failed else 0.0
            )
            wait = max(answer.wait, pause * random.uniform(0.75, 1.25))
            asks = self._work is not None and self._granted is None
            if asks and others_first:
                wait = max(wait, _FRESH)
            if asks or answer.failed or self._owes:
                self._next(wait or _READY_RETRY)
        self._show()

    def _show(self) -> None:
        if self.turn() != self._shown:
            self._shown = self.turn()
            self._changed()

    def _take_turn(self, answer: FleetAnswer, now: float) -> None:
        if self._yielded:
            return
        if answer.granted:
            if answer.permit:  # else one of earlier work is still to be given back
                self._used = self._used and answer.permit == self._permit
                self._permit, self._version, self._permit_at = answer.permit, answer.version, now
            self._in_vain = False
            if self._asked == self._work:
                self._granted, self._granted_at = self._asked, now
                leads = self._asked.generation if self._asked and answer.canary else self._leads
                self._leads = leads or ""
            self._say("permit.granted", f"this node may begin{_with(answer.permit)}")
            self._answer = answer
            return
        if answer.why != self._answer.why:
            self._say("permit.waiting", f"{answer.why}{answer.detail}")
        self._answer, self._in_vain = answer, not answer.failed

    def _take_end(self, answer: FleetAnswer) -> None:
        """Nothing is asked for before the end of the last work is told: where that fails, it is what is
        waited for."""
        if answer.failed:
            if answer.why != self._answer.why:
                self._say("permit.waiting", answer.why)
            self._answer = replace(self._answer, why=answer.why)
        if answer.told and self._results:
            self._results.popleft()
        if answer.tripped:
            self._say("rollout.stopped", answer.tripped)
        if answer.released and self._returns:
            self._permit = self._version = ""
            self._used = self._in_vain = False

    def _say(self, kind: str, message: str) -> None:
        self._emit(Event(kind, message, {"permit": self._permit}))

    # -- memory ---------------------------------------------------------------------------------

    def _recall(self) -> None:
        found = recall(self._files)
        self._permit, self._version, self._used = found.permit, found.version, True  # as far as is known
        self._failed, self._leads, self._begun = found.failed, found.leads, found.begun
        self._results.extend(found.untold)
        self._soaking = found.soaking

    def _remember(self) -> None:
        """A newer daemon remembers for itself."""
        if not self._yielded:
            known = self._failed, self._leads, self._begun, tuple(self._results), self._soaking
            keep(self._files, TurnMemory(self._permit, self._version, *known))


def _with(permit: str) -> str:
    return f", with {permit}" if permit else ""
