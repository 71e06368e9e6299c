"""The resident's side of the cluster: a short child process for each talk with the API server.

The libraries that talk TLS would weigh on every node for ever; here is only what was last
heard, what is still to be told, and when the next child is due.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import installer
from installer.daemon.cluster.heartbeat import HEARTBEAT_SECONDS, Request
from installer.daemon.cluster.pod_context import PodContext
from installer.errors import InstallerError
from installer.host.ports import Files
from installer.host.run import Finished, run
from installer.model import paths
from installer.model.daemon import DaemonState, Phase, Timers
from installer.model.event import Emit, Event
from installer.model.jsontext import parse_json
from installer.model.state import Mode

PROGRAM = (sys.executable, "-P", "-m", "installer.cli")

MEMORY = f"{paths.OUR_RUNTIME}/cluster.json"

_PERIOD = 40.0  # seconds between two beats; the Lease lasts three of them
_JITTER = 0.1  # of the period, so that a fleet that started together drifts apart
_GAP = 1.0  # seconds from one heartbeat to the next, however fast the transitions come
_FIRST_SECONDS = 3.0  # before the first pass; a node is not kept waiting for a dead API server
_GRACE = 2.0  # seconds a child gets beyond its own deadline
_QUEUE = 16  # events; the oldest go first
_MESSAGE_LIMIT = 1024  # characters; one argument of a process has at most 128 KiB (execve(2))

_EVENTS = {
    Phase.WAITING: ("Normal", "WaitingForTurn"),
    Phase.CONVERGED: ("Normal", "Converged"),
    Phase.REMOVED: ("Normal", "Removed"),
    Phase.UNWELL: ("Warning", "Unwell"),
    Phase.FAILED: ("Warning", "RepairFailed"),
    Phase.HELD: ("Warning", "HoldSet"),
    Phase.LIMITED: ("Warning", "RestartLimitReached"),
    Phase.PAUSED: ("Normal", "Paused"),
    Phase.YIELDED: ("Normal", "HandedOver"),
}
"""Phase -> type and reason of the Event. Starting and converging are ways, not outcomes: a host whose
every repair fails would else have two events for each attempt."""


class Running(Protocol):
    def signal(self, number: int) -> None: ...


StartChild = Callable[[Sequence[str], Callable[[str], None], Callable[[int], None]], Running]
RunChild = Callable[[Sequence[str], float], Finished]


class ApiCluster:
    """The Cluster port. `start_child` starts a process beside the main loop, `run_child` waits for one.
    `program` is what is started, with a verb of the command line (`cluster-...`) and one JSON text.

    What was heard is kept on the host below /run, for a container that starts again while the API server
    is away or our DaemonSet is already gone. A crash before it is written loses that alone."""

    def __init__(
        self,
        place: PodContext,
        emit: Emit,
        files: Files,
        start_child: StartChild,
        program: Sequence[str] = PROGRAM,
        run_child: RunChild = run,
        period: float = _PERIOD,
    ) -> None:
        self._place, self._emit, self._files, self._program = place, emit, files, tuple(program)
        self._start_child, self._run_child, self._period = start_child, run_child, period
        self._timers: Timers | None = None
        self._changed: Callable[[], None] = _nobody
        self._paused = False
        self._uid = ""
        self._kept: dict[str, Any] = {}
        self._status: dict[str, str] = {}
        self._told: tuple[object, ...] = ()
        self._queue: deque[Mapping[str, Any]] = deque(maxlen=_QUEUE)
        self._flight: tuple[Mapping[str, Any], ...] = ()
        self._heard: dict[str, tuple[str, str]] = {}
        self._child: Running | None = None
        self._output = ""
        self._timer = self._limit = 0
        self._begun = 0.0
        self._again = False

    # -- the port -------------------------------------------------------------------------

    def begin(self, timers: Timers, changed: Callable[[], None]) -> None:
        """See the port."""
        self._recall()
        request = Request(self._place, self._uid, _FIRST_SECONDS - 0.5, ask_only=True)
        done = self._run_child(self._argv("cluster-heartbeat", request), _FIRST_SECONDS)
        self._take(done.output, "" if done.code == 0 else _end(done.code))
        self._timers, self._changed = timers, changed
        self._schedule(0.0)

    def paused(self) -> bool:
        """The last that the API server said: while it is away, nothing changes."""
        return self._paused

    def removal_evidence(self) -> tuple[bool, str]:
        """See the port."""
        request = Request(self._place, self._uid)
        done = self._run_child(self._argv("cluster-decommission", request), HEARTBEAT_SECONDS + _GRACE)
        try:
            if done.code != 0:
                raise ValueError
            answer = json.loads(done.lines[-1])
            return answer["certain"] is True, str(answer["why"])
        except (ValueError, LookupError, TypeError):
            return False, f"the API server could not be asked: {_end(done.code)}"

    def report(self, state: DaemonState) -> None:
        """See the port. A transition is told at once, everything else with the next heartbeat."""
        phase = state.phase
        self._status = {
            "version": installer.__version__,
            "state": phase.value,
            "reason": state.reason[:_MESSAGE_LIMIT],
            "generation": state.generation,
        }
        told = (phase, state.hold, state.reason if phase is Phase.FAILED else "")
        if phase is Phase.CONVERGING:
            self._told = ()  # what comes of new inputs is told, also when it is what was before
        if phase not in _EVENTS or told == self._told:
            return
        self._told = told
        kind, reason = _EVENTS[phase]
        message = _message(state)[:_MESSAGE_LIMIT]
        self._queue.append({"type": kind, "reason": reason, "message": message, "time": time.time()})
        self._soon()

    def end(self) -> None:
        """See the port."""
        timers, self._timers = self._timers, None
        if timers is None:
            return
        for timer in (self._timer, self._limit):
            if timer:
                timers.cancel(timer)
        self._timer = self._limit = 0
        if self._child is not None:
            self._child.signal(signal.SIGKILL)
        unsent = (*self._flight, *self._queue)
        if unsent and self._heard.get("events", ("ok", ""))[0] == "ok" and self._reached:
            request = Request(self._place, self._uid, _FIRST_SECONDS - 0.5, False, self._status, unsent)
            self._run_child(self._argv("cluster-heartbeat", request), _FIRST_SECONDS)

    # -- children ---------------------------------------------------------------------------

    def _argv(self, verb: str, request: Request) -> tuple[str, ...]:
        return (*self._program, verb, request.to_json())

    def _soon(self) -> None:
        if self._child is not None:
            self._again = True
        elif self._timers is not None:
            self._schedule(max(0.0, self._begun + _GAP - time.monotonic()))

    def _schedule(self, seconds: float) -> None:
        if self._timers is None:
            return
        if self._timer:
            self._timers.cancel(self._timer)
        self._timer = self._timers.after(seconds, self._heartbeat)

    def _heartbeat(self) -> None:
        self._timer = 0
        if self._timers is None:
            return
        self._begun, self._again, self._output = time.monotonic(), False, ""
        self._flight = tuple(self._queue)
        self._queue.clear()
        request = Request(self._place, self._uid, HEARTBEAT_SECONDS, False, self._status, self._flight)
        try:
            self._child = self._start_child(self._argv("cluster-heartbeat", request), self._line, self._ended)
        except OSError as error:
            self._take("", f"no process could be started: {error.strerror}")
            self._next()
            return
        self._limit = self._timers.after(HEARTBEAT_SECONDS + _GRACE, self._too_long)

    def _line(self, text: str) -> None:
        self._output = text  # the last one counts; what comes before is a warning of Python's

    def _too_long(self) -> None:
        self._limit = 0
        if self._child is not None:
            self._child.signal(signal.SIGKILL)

    def _ended(self, code: int) -> None:
        self._child = None
        if self._timers is None:
            return
        if self._limit:
            self._timers.cancel(self._limit)
            self._limit = 0
        self._take(self._output, "" if code == 0 else _end(code))
        self._next()

    def _next(self) -> None:
        if self._again:
            self._soon()
        else:
            self._schedule(self._period * random.uniform(1 - _JITTER, 1 + _JITTER))

    # -- what is heard -----------------------------------------------------------------------

    @property
    def _reached(self) -> bool:
        return any(result == "ok" for part, (result, _) in self._heard.items() if part != "process")

    def _take(self, output: str, failure: str) -> None:
        """What a child has answered, or why it has not."""
        parts: dict[str, tuple[str, str]] = {}
        sent, paused = 0, None
        try:
            if failure:
                raise ValueError(failure)
            answer = json.loads(output.splitlines()[-1])
            parts = {str(part): (str(found[0]), str(found[1])) for part, found in answer["parts"].items()}
            sent, paused, self._uid = int(answer["sent"]), answer["paused"], str(answer["uid"])
            parts["process"] = ("ok", "")
        except (ValueError, LookupError, TypeError, AttributeError):
            parts = {"process": ("failed", failure or "its answer is not understood")}
        unsent = (*self._flight[sent:], *self._queue)
        self._queue, self._flight = deque(unsent, maxlen=_QUEUE), ()
        self._say(parts)
        before, self._paused = self._paused, self._paused if paused is None else paused is True
        self._remember()
        if self._paused is not before:
            self._changed()

    def _recall(self) -> None:
        """The UID counts for the same pod only: the next DaemonSet's is rightly another one."""
        try:
            found = parse_json(self._files.read(MEMORY) or b"{}")
            self._paused = found.get("paused") is True
            same = bool(self._place.pod_uid) and found.get("pod") == self._place.pod_uid
            self._uid = str(found["uid"]) if same else ""
        except (InstallerError, OSError, ValueError, LookupError, AttributeError):
            return  # as if there was none

    def _remember(self) -> None:
        found = {"pod": self._place.pod_uid, "uid": self._uid, "paused": self._paused}
        if found == self._kept:
            return
        try:
            self._files.make_directory(paths.OUR_RUNTIME)
            self._files.write(MEMORY, json.dumps(found).encode() + b"\n", 0o644)
        except (InstallerError, OSError):
            return  # whatever ails the host is said by who looks at it
        self._kept = found

    def _say(self, parts: Mapping[str, tuple[str, str]]) -> None:
        """Each kind of failure once, until it is over: without permission or a server all goes on."""
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
                message = f"{what} {', '.join(fresh)}: {why}; all else goes on"
                self._emit(Event(kind, message, {"parts": dict(fresh)}))
        over = [
            part for part, found in parts.items() if found[0] == "ok" and before.get(part, found)[0] != "ok"
        ]
        if over:
            message = f"the API server serves again: {', '.join(over)}"
            self._emit(Event("cluster.restored", message, {"parts": over}))


def _message(state: DaemonState) -> str:
    """What people read in the Event."""
    words = {
        Phase.CONVERGED: "cri-resmgr is in place between kubelet and the runtime",
        Phase.REMOVED: "cri-resmgr and all that came with it is removed",
        Phase.PAUSED: "paused: nothing is changed on this node",
    }.get(state.phase, "")
    if state.phase is Phase.YIELDED and state.mode is Mode.INSTALL:
        words = "a newer installer is at work on this node"
    return ": ".join(text for text in (words, state.reason) if text) or state.phase.value


def _end(code: int | None) -> str:
    return "the process did not end in time" if code is None else f"the process ended with {code}"


def _nobody() -> None:
    """Told of a change before anybody listens."""
