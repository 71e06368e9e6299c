"""The daemon's side of the cluster: a short child process for each talk with the API server.

The libraries that talk TLS would weigh on every node for ever. Here is only what was last heard, what is
still to be told, and when the next child is due.
"""

from __future__ import annotations

import json
import random
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import installer
from installer.daemon.cluster.heartbeat import HEARTBEAT_SECONDS, HeartbeatRequest
from installer.daemon.cluster.pod_context import PodContext
from installer.daemon.cluster.turns import Turns
from installer.errors import InstallerError
from installer.host.ports import Files
from installer.host.run import OURSELVES, Finished, describe_exit, run
from installer.model import paths
from installer.model.daemon import DaemonState, Loop, Phase, RunningChild
from installer.model.event import Emit, Event
from installer.model.fleet import FleetRules, PlannedWork, Turn, WorkResult
from installer.model.instant import plain_time
from installer.model.jsontext import parse_json
from installer.model.pause import CLUSTER_MEMORY
from installer.model.state import Mode

_PERIOD = 40.0  # seconds between two heartbeats; the Lease lasts three of them
_JITTER = 0.1  # of the period, so that a fleet that started together drifts apart
_GAP = 1.0  # seconds from one heartbeat to the next, however fast the transitions come
_FIRST_SECONDS = 3.0  # before the first pass: a dead API server must not delay it
_NODE_RETRY = 5.0  # seconds until a node that is to be Ready is looked at again
_GRACE = 2.0  # seconds a child gets from SIGTERM to SIGKILL
_QUEUE = 16  # events; the oldest go first
_MESSAGE_LIMIT = 1024  # characters; one argument of a process has at most 128 KiB (execve(2))

_EVENTS = {
    Phase.WAITING: ("Normal", "WaitingForTurn"),
    Phase.CONVERGED: ("Normal", "Converged"),
    Phase.REMOVED: ("Normal", "Removed"),
    Phase.UNWELL: ("Warning", "Unwell"),
    Phase.FAILED: ("Warning", "RepairFailed"),
    Phase.REFUSED: ("Warning", "Refused"),
    Phase.HELD: ("Warning", "HoldSet"),
    Phase.LIMITED: ("Warning", "RestartLimitReached"),
    Phase.PAUSED: ("Normal", "Paused"),
    Phase.YIELDED: ("Normal", "HandedOver"),
}
"""Phase -> type and reason of the Event. What lasts for one pass has none: a host whose every repair fails
would have two events for each attempt."""


RunChild = Callable[[Sequence[str], float], Finished]


class ApiCluster:
    """The Cluster port. `run_child` runs a process and waits for it. `program` is what is started, with a
    verb of the command line (`cluster-...`) and one JSON text.

    What was heard is kept on the host below /run, for a container that starts again while the API server
    is away or our DaemonSet is already gone. A crash before it is written loses that alone."""

    def __init__(
        self,
        context: PodContext,
        emit: Emit,
        files: Files,
        program: Sequence[str] = OURSELVES,
        run_child: RunChild = run,
        period: float = _PERIOD,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._context, self._emit, self._files, self._program = context, emit, files, tuple(program)
        self._run_child, self._period, self._now = run_child, period, now
        self._loop: Loop | None = None
        self._changed: Callable[[], None] = lambda: None
        self._paused = False
        self._uid = ""
        self._kept: dict[str, Any] = {}
        self._status: dict[str, str] = {}
        self._serves: bool | None = None
        self._failing: dict[str, str] = {}  # until it is over
        self._failure: dict[str, str] = {}  # the last one of this process
        self._changes, self._changed_at = 0, ""  # of this process
        self._sent_status: dict[str, str] = {}
        self._shown_state = ""  # by the annotation, as far as we know
        self._speaks = True  # for the node: no newer daemon does
        self._told: tuple[object, ...] = ()
        self._queue: deque[Mapping[str, Any]] = deque(maxlen=_QUEUE)
        self._flight: tuple[Mapping[str, Any], ...] = ()
        self._heard: dict[str, tuple[str, str]] = {}
        self._child: RunningChild | None = None
        self._output = ""
        self._timer = 0
        self._begun = 0.0
        self._again = False
        self._turns = Turns(context, emit, files, self._program, self._soon)

    # -- the port -------------------------------------------------------------------------

    def begin(self, loop: Loop, changed: Callable[[], None]) -> None:
        """See the port."""
        self._recall()
        request = HeartbeatRequest(self._context, self._uid, _FIRST_SECONDS - 0.5, ask_only=True)
        done = self._run_child(self._argv("cluster-heartbeat", request), _FIRST_SECONDS)
        self._take(done.output, "" if done.code == 0 else _how_it_ended(done.code))
        self._loop, self._changed = loop, changed
        self._turns.begin(loop, changed)
        self._schedule(0.0)

    def paused(self) -> bool:
        """The last that the API server said: while it is away, nothing changes."""
        return self._paused

    def removal_evidence(self) -> tuple[bool, str]:
        """See the port."""
        request = HeartbeatRequest(self._context, self._uid)
        done = self._run_child(self._argv("cluster-decommission", request), HEARTBEAT_SECONDS + _GRACE)
        try:
            if done.code != 0:
                raise ValueError
            answer = json.loads(done.lines[-1])
            return answer["certain"] is True, str(answer["why"])
        except (ValueError, LookupError, TypeError):
            return False, f"the API server could not be asked: {_how_it_ended(done.code)}"

    def turn(self) -> Turn:
        """See the port."""
        return self._turns.turn()

    def want(self, work: PlannedWork | None, rules: FleetRules, *, busy: bool) -> None:
        """See the port."""
        self._turns.want(work, rules, busy=busy)

    def worked(self, result: WorkResult) -> None:
        """See the port."""
        self._turns.worked(result)

    def report(self, state: DaemonState) -> None:
        """See the port. A transition is told at once, everything else with the next heartbeat. A daemon that
        has been replaced says that as an Event, and leaves Lease and annotation to the newer one."""
        phase = state.phase
        if phase is Phase.CHECKING:
            return  # nothing has changed
        self._speaks = phase is not Phase.YIELDED
        self._status = {
            "version": installer.__version__,
            "state": phase.value,
            "reason": state.reason[:_MESSAGE_LIMIT],
            "generation": state.generation,
            "policy": state.policy,
            "policySource": state.policy_source,
            "hold": state.hold[:_MESSAGE_LIMIT],
            "changed": self._last_change(state),
        }
        self._judge(state)
        told = (phase, state.hold, state.reason if phase in (Phase.FAILED, Phase.REFUSED) else _policy(state))
        if phase is Phase.CONVERGING:
            self._told = ()  # the result of new inputs is told, also where it is the same as before
        if phase not in _EVENTS:
            return
        if told == self._told:
            if self._owes_annotation:
                self._soon()
            return
        self._told = told
        kind, reason = _EVENTS[phase]
        message = _message(state)[:_MESSAGE_LIMIT]
        self._queue.append({"type": kind, "reason": reason, "message": message, "time": self._now()})
        self._soon()

    def _last_change(self, state: DaemonState) -> str:
        """When this process has last changed the host; empty if it has not: the Node keeps what it says."""
        if state.changes > self._changes:
            self._changes, self._changed_at = state.changes, plain_time(self._now())
        return self._changed_at

    def _judge(self, state: DaemonState) -> None:
        """Whether cri-resmgr serves the node, and what went wrong last. A failure that is met again and again
        has the time when it began."""
        phase = state.phase
        if phase is not Phase.STARTING:  # nothing is known yet
            self._serves = state.ready and state.mode is Mode.INSTALL and phase is not Phase.REFUSED
        if _EVENTS.get(phase, ("", ""))[0] == "Warning":
            failing = {"state": phase.value, "reason": state.reason[:_MESSAGE_LIMIT]}
            if failing != self._failing:
                self._failing, self._failure = failing, {"time": plain_time(self._now()), **failing}
        elif phase in (Phase.CONVERGED, Phase.REMOVED):
            self._failing = {}

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
        if self._reached and (unsent or self._owes_annotation):
            request = self._request(unsent, _FIRST_SECONDS - 0.5)
            self._run_child(self._argv("cluster-heartbeat", request), _FIRST_SECONDS)

    # -- children ---------------------------------------------------------------------------

    def _request(self, events: tuple[Mapping[str, Any], ...], seconds: float) -> HeartbeatRequest:
        return HeartbeatRequest(
            self._context,
            self._uid,
            seconds,
            status=self._status if self._speaks else {},
            events=events,
            renew=self._speaks,
            serves=self._serves,
            failure=self._failure,
        )

    @property
    def _owes_annotation(self) -> bool:
        """Whether the annotation says another state than the last that was reported."""
        wanted = self._context.annotate and self._speaks and self._is_allowed("annotation")
        return wanted and bool(self._status) and self._status["state"] != self._shown_state

    def _is_allowed(self, part: str) -> bool:
        """Whether the last attempt was no failure; there may have been none."""
        return self._heard.get(part, ("ok", ""))[0] == "ok"

    def _argv(self, verb: str, request: HeartbeatRequest) -> tuple[str, ...]:
        return (*self._program, verb, request.to_json())

    def _soon(self) -> None:
        if self._child is not None:
            self._again = True
        else:
            self._schedule(max(0.0, self._begun + _GAP - time.monotonic()))

    def _schedule(self, seconds: float) -> None:
        if self._loop is None:
            return
        if self._timer:
            self._loop.cancel(self._timer)
        self._timer = self._loop.after(seconds, self._heartbeat)

    def _heartbeat(self) -> None:
        self._timer = 0
        if self._loop is None:
            return
        self._begun, self._again, self._output = time.monotonic(), False, ""
        self._flight = tuple(self._queue)
        self._queue.clear()
        request = self._request(self._flight, HEARTBEAT_SECONDS)
        self._sent_status = dict(request.status)
        argv = self._argv("cluster-heartbeat", request)
        try:
            self._child = self._loop.start(argv, self._line, self._ended, HEARTBEAT_SECONDS, _GRACE)
        except OSError as error:
            self._heard_back(f"no process could be started: {error.strerror}")

    def _line(self, text: str) -> None:
        self._output = text  # the last one counts; what comes before is a warning of Python's

    def _ended(self, code: int) -> None:
        self._child = None
        if self._loop is not None:
            self._heard_back("" if code == 0 else _how_it_ended(code))

    def _heard_back(self, failure: str) -> None:
        try:
            self._take("" if failure else self._output, failure)
        finally:  # whatever fails, there is a next heartbeat
            if self._again:
                self._soon()
            elif self._turns.awaits_node:
                self._schedule(_NODE_RETRY)
            else:
                self._schedule(self._period * random.uniform(1 - _JITTER, 1 + _JITTER))

    # -- what is heard -----------------------------------------------------------------------

    @property
    def _reached(self) -> bool:
        return any(result == "ok" for part, (result, _) in self._heard.items() if part != "process")

    def _take(self, output: str, failure: str) -> None:
        """What a child has answered, or why it has not answered."""
        parts: dict[str, tuple[str, str]] = {}
        sent, paused = 0, None
        try:
            if failure:
                raise ValueError(failure)
            answer = json.loads(output.splitlines()[-1])
            parts = {str(part): (str(found[0]), str(found[1])) for part, found in answer["parts"].items()}
            sent, paused, self._uid = int(answer["sent"]), answer["paused"], str(answer["uid"])
            node = answer.get("node") or {}
            facts = bool(node.get("canary")), bool(node.get("ready"))
            self._turns.node_is(str(node.get("uid", "")), canary=facts[0], ready=facts[1])
            parts["process"] = ("ok", "")
        except (ValueError, LookupError, TypeError, AttributeError):
            parts = {"process": ("failed", failure or "its answer is not understood")}
        unsent = (*self._flight[sent:], *self._queue)
        self._queue, self._flight = deque(unsent, maxlen=_QUEUE), ()
        if "annotation" in parts:
            self._shown_state = self._sent_status.get("state", "") if parts["annotation"][0] == "ok" else ""
        self._say(parts)
        before, self._paused = self._paused, self._paused if paused is None else paused is True
        self._remember()
        if self._paused is not before:
            self._changed()

    def _recall(self) -> None:
        """The UID counts for the same pod only: the next DaemonSet's is rightly another one."""
        try:
            found = parse_json(self._files.read(CLUSTER_MEMORY) or b"{}")
            self._paused = found.get("paused") is True
            same = bool(self._context.pod_uid) and found.get("pod") == self._context.pod_uid
            self._uid = str(found["uid"]) if same else ""
        except (InstallerError, OSError, ValueError, LookupError, AttributeError):
            return

    def _remember(self) -> None:
        found = {"pod": self._context.pod_uid, "uid": self._uid, "paused": self._paused}
        if found == self._kept:
            return
        try:
            self._files.make_directory(paths.OUR_RUNTIME)
            self._files.write(CLUSTER_MEMORY, json.dumps(found).encode() + b"\n", 0o644)
        except (InstallerError, OSError):
            return  # the pass that follows tells what is wrong with the host
        self._kept = found

    def _say(self, parts: Mapping[str, tuple[str, str]]) -> None:
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
                message = f"{what} {', '.join(fresh)}: {why}; the node is served all the same"
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
        Phase.CONVERGED: f"cri-resmgr runs between kubelet and the runtime{_policy(state)}",
        Phase.REMOVED: "cri-resmgr and all files of its installation are removed",
        Phase.PAUSED: "paused: nothing is changed on this node",
    }.get(state.phase, "")
    if state.phase is Phase.YIELDED and state.mode is Mode.INSTALL:
        words = "a newer installer has taken over this node"
    return ": ".join(text for text in (words, state.reason) if text) or state.phase.value


def _policy(state: DaemonState) -> str:
    return f", with the policy {state.policy} from {state.policy_source}" if state.policy else ""


def _how_it_ended(code: int | None) -> str:
    return "its process did not end in time" if code is None else f"its process: {describe_exit(code)}"
