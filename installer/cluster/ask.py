"""The requests of one node: to be permitted planned work, and to tell how it ended. For short processes.

Undisturbed, a node makes three for its part in a rollout: one LIST of all that is to be known (`board.py`),
its permit taken, its permit given back. While it waits, each further question is one.

Times are the API server's own (its header Date), so that a node whose clock is wrong takes no permit that is
still held.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from installer.cluster import breaker as breakers
from installer.cluster.board import Board, read_board, read_pause
from installer.cluster.breaker import Breaker, build_breaker, read_breaker
from installer.cluster.kubeapi import NO_OBJECTS, Answer, Api
from installer.cluster.leases import (
    CANARY,
    RING,
    Member,
    Permit,
    breaker_name,
    build_lease,
    build_permit,
    build_release,
    leases_path,
    permits_of,
    read_permits,
    rollout_query,
)
from installer.cluster.permits import choose, is_ghost, suspect
from installer.cluster.size import CROWD, FleetSize, build_size, heard_by, measure, pace_of
from installer.model.fleet import FLEET, FleetAnswer, FleetRequest, PlannedWork, WorkResult
from installer.model.overview import name_some

_TRIES = 4  # of a write that others hinder
_NODES_PATH = "/api/v1/nodes"
_GRANT_SECONDS = 7.0  # a fleet that waits asks once in twice that time for each permit there is
_MANY = 11.0  # the same, at most, where there are many permits: one is often free, and is used for longer
_SHORTEST = 4.0  # seconds until a node asks again
_LONGEST = 7200.0  # the same, and what is spread over at most, whatever others have written down

_OTHERS_FIRST = "other nodes go first"
_LOST = "every permit is dated years ahead; `cri-resmgr-installer rollout retry` deletes them"

_CONFLICT, _GONE = 409, 404


@dataclass(frozen=True, slots=True)
class FleetContext:
    """Where a node finds what it asks for. `namespace` is the rollout's."""

    node: str
    namespace: str
    daemonset_path: str


class _Wait(Exception):
    """Why nothing may begin now, and what of that soon changes. It is asked for again after `seconds`, and up
    to `spread` seconds more, so that a fleet does not ask in step."""

    def __init__(
        self,
        why: str,
        seconds: float = 0.0,
        spread: float = 0.0,
        detail: str = "",
        answer: Answer | None = None,
    ) -> None:
        super().__init__(why)
        self.why, self.detail, self.seconds, self.spread = why, detail, seconds, spread
        self.failed = answer is not None
        self.powerless = answer is not None and (answer.denied or answer.code == _GONE)


class Ask:
    """One question of one node. `clock` is the time of the epoch where the server does not say it."""

    def __init__(
        self,
        context: FleetContext,
        request: FleetRequest,
        api: Api,
        clock: Callable[[], float],
        random: Callable[[], float],
    ) -> None:
        self._context, self._request, self._random = context, request, random
        self._api, self._now = api, clock()
        self._rules = request.rules
        self._me = Member(context.node, request.uid)
        self._leases = leases_path(context.namespace)
        self._nodes = self._limit = 1
        self._queue_seconds = 0.0

    # -- to begin ---------------------------------------------------------------------------

    def begin(self, work: PlannedWork) -> FleetAnswer:
        """Whether the work may begin now. A permit that the node holds already is found again."""
        try:
            board = self._read_board(work)
            if board.fault and work.begins:
                raise self._not_understood(board.fault)
            self._await_people(board.paused)
            size, paused = self._size(board, may_be_gone=work.removes)
            self._await_people(paused)
            self._count(size, board, work)
            if work.begins and board.breaker is not None:
                self._await(board.breaker, work)
            breaker = self._pass_breaker(board.breaker, work) if work.begins else None
            free = self._free(board) if work.restarts_kubelet else ()
            if size == board.size and breakers.allows_more(self._rules, size.nodes):
                self._verify(size, board, work)
                if breaker is not None:
                    self._await(breaker, work)
                free = self._free(board) if work.restarts_kubelet else ()
            taken = self._take(free) if work.restarts_kubelet else Permit("")
            canary = breaker is not None and self._context.node in breaker.canaries
        except _Wait as wait:
            return FleetAnswer(
                why=wait.why,
                detail=wait.detail,
                wait=min(_LONGEST, wait.seconds) + min(_LONGEST, wait.spread) * self._random(),
                failed=wait.failed,
                powerless=wait.powerless,
            )
        return FleetAnswer(granted=True, permit=taken.name, version=taken.version, canary=canary)

    def _read_board(self, work: PlannedWork) -> Board:
        """Raises _Wait."""
        found = _checked(self._call("GET", self._leases + rollout_query(work.generation))).get("items")
        board = read_board(found, work.generation, self._now)
        self._nodes = board.size.nodes if board.size else 1
        return board

    def _not_understood(self, fault: str) -> _Wait:
        return self._for_people(f"{fault}; `cri-resmgr-installer rollout retry` deletes it")

    def _size(self, board: Board, *, may_be_gone: bool) -> tuple[FleetSize, str | None]:
        """How large the fleet is, and a pause that is found meanwhile. A size that is not known any more is
        asked for, and left to the next nodes; if that fails, they ask. Raises _Wait."""
        if board.size is not None and board.size.is_fresh(self._context.daemonset_path, self._now):
            return board.size, None
        size = self._measure(board, may_be_gone=may_be_gone)
        return size, self._leave(size) if size.nodes and size != board.size else None

    def _measure(self, board: Board, *, may_be_gone: bool) -> FleetSize:
        """By the DaemonSet; what is known already, where that is gone. Raises _Wait."""
        path = self._context.daemonset_path
        answer = self._call("GET", path)
        if answer.code == _GONE and may_be_gone:
            return board.size or FleetSize(path)
        return measure(_checked(answer), path, board.grants, self._now)

    def _verify(self, said: FleetSize, board: Board, work: PlannedWork) -> None:
        """What another node has said is enough to wait by, but not to begin by. Raises _Wait."""
        size = self._measure(board, may_be_gone=work.removes)
        if size.nodes and size.nodes != said.nodes:
            self._await_people(self._leave(size))
        self._count(size, board, work)

    def _count(self, size: FleetSize, board: Board, work: PlannedWork) -> None:
        """What follows from the size."""
        self._nodes, self._limit = size.nodes, permits_of(self._rules.concurrent_restarts, size.nodes)
        if work.restarts_kubelet:
            each = min(_MANY, _GRANT_SECONDS + self._limit / 4)
            self._queue_seconds = each * size.queue(board.grants) / self._limit

    def _leave(self, size: FleetSize) -> str | None:
        """In the Lease of the fleet, which gets its label back: without it, it is not listed, and no node
        sees a pause that it has. Returns that."""
        lease = build_lease(FLEET, self._context.namespace, FLEET, annotations=build_size(size))
        patch = {"metadata": {key: lease["metadata"][key] for key in ("labels", "annotations")}}
        left = self._call("PATCH", f"{self._leases}/{FLEET}", patch)
        if left.code == _GONE:
            self._call("POST", self._leases, lease)
        return read_pause(left.body) if left.ok else None

    def _await_people(self, paused: str | None) -> None:
        """Raises _Wait, if it is."""
        if paused is not None:
            raise self._for_people("the rollout is paused" + (f": {paused}" if paused else ""))

    def _for_people(self, why: str, detail: str = "") -> _Wait:
        """What ends at any moment: when people say so, or when a canary has ended. A node with their label
        is waited for by all others, and hears of it as soon as in a small fleet."""
        pace = pace_of(1 if self._request.canary else self._nodes)
        return _Wait(why, pace / 2, pace, detail)

    # -- permits ------------------------------------------------------------------------------

    def _free(self, board: Board) -> tuple[Permit, ...]:
        """The permits that may be taken; the one that this node has already is the only one. Raises _Wait if
        there are none."""
        permits = board.permits
        choice = choose(permits, self._me, self._limit, self._now, self._random)
        old = None if choice.mine or choice.free else suspect(choice.held, self._now, self._random)
        if old is not None:
            answer = self._call("GET", f"{_NODES_PATH}/{old.node}?resourceVersion=0")
            if is_ghost(old, answer.code, str(answer.metadata.get("uid", ""))):
                choice = choose(permits, self._me, self._limit, self._now, self._random, old.holder)
        if choice.mine:
            return (choice.mine,)
        if choice.free:
            return choice.free
        if not choice.held:
            raise self._for_people(_LOST)
        permits_are = "the permit is" if self._limit == 1 else f"all {self._limit} permits are"
        by = name_some([permit.node or permit.name for permit in choice.held], 3)
        detail = f": {permits_are} taken, by {by}"
        raise _Wait(_OTHERS_FIRST, _SHORTEST / 2, max(_SHORTEST, 2 * self._queue_seconds), detail)

    def _take(self, permits: Sequence[Permit]) -> Permit:
        """The first one that nobody else takes at the same time. Raises _Wait."""
        for permit in permits[:_TRIES]:
            answer = self._write_permit(permit)
            if answer.code == _CONFLICT and not permit.version:  # another's by now, or without our label
                there = read_permits([self._call("GET", f"{self._leases}/{permit.name}").body])
                answer = self._write_permit(there[0]) if there and not there[0].is_held(self._now) else answer
            if answer.code != _CONFLICT:
                _checked(answer)
                return replace(permit, version=str(answer.metadata.get("resourceVersion", "")))
        taken = ": they took the free permits at the same time"
        raise _Wait(_OTHERS_FIRST, _SHORTEST / 2, _SHORTEST, taken)

    def _write_permit(self, permit: Permit) -> Answer:
        """With this node as its holder."""
        namespace, seconds = self._context.namespace, self._rules.hold_seconds
        lease = build_permit(permit, namespace, self._me.identity, self._now, seconds)
        if permit.version:
            return self._call("PUT", f"{self._leases}/{permit.name}", lease)
        return self._call("POST", self._leases, lease)

    # -- the breaker ----------------------------------------------------------------------------

    def _pass_breaker(self, found: Breaker | None, work: PlannedWork) -> Breaker:
        """The breaker as it is when the generation may begin on this node. Raises _Wait."""
        for _try in range(_TRIES):
            breaker = found or self._new_breaker(work.generation)
            self._await(breaker, work)
            admitted = self._admitted(breaker)
            written = admitted == breaker and bool(breaker.version)
            after = admitted if written else self._write_breaker(admitted)
            if after is not None:
                self._await(after, work)
                return after
            found = self._read_breaker(work.generation)
        raise _Wait(
            _OTHERS_FIRST, _SHORTEST / 2, _SHORTEST, ": they wrote the circuit breaker at the same time"
        )

    def _await(self, breaker: Breaker, work: PlannedWork) -> None:
        """Raises _Wait where the generation was stopped, or others begin it first: unless that is still to be
        written down, or this node is to be one of them."""
        why, node = breakers.stopped(breaker, self._rules, self._nodes), self._context.node
        if why and node not in breaker.failures:
            raise self._for_people(why)
        others = self._rules.order == "canary" and node not in breaker.canaries
        if others and breaker.version and self._admitted(breaker) == breaker:
            self._await_canaries(breaker, work)

    def _admitted(self, breaker: Breaker) -> Breaker:
        """The breaker with this node as a canary, if it is to be one."""
        breaker = breakers.with_passed(breaker, self._now)
        if breaker.passed or self._rules.order != "canary" or self._context.node in breaker.canaries:
            return breaker
        node, labelled = self._context.node, self._request.canary
        if breakers.may_be_canary(breaker, node, labelled=labelled, nodes=self._nodes, now=self._now):
            return breakers.with_canary(breaker, node, self._now)
        return breaker

    def _await_canaries(self, breaker: Breaker, work: PlannedWork) -> None:
        """Raises _Wait while the canaries are at work, or watched."""
        soak = self._rules.soak_seconds if work.soaks else 0.0
        if not breaker.passed:
            awaited = sorted(set(breaker.canaries) - breaker.succeeded)
            who = name_some(awaited, 3) if awaited else f"nodes with the label {RING}={CANARY}"
            detail = f": canaries, {who}"
            if soak:
                raise self._for_people(_OTHERS_FIRST, detail)
            raise _Wait(_OTHERS_FIRST, _SHORTEST, self._queue_spread, detail)  # they are soon through
        left = breaker.passed + soak - self._now
        detail = f": canaries, which are watched for {left:.0f} s more"
        if left > heard_by(self._nodes):  # meanwhile one may fail, and a person may say `rollout retry`
            raise self._for_people(_OTHERS_FIRST, detail)
        if left > 0:
            raise _Wait(_OTHERS_FIRST, left, self._queue_spread, detail)

    @property
    def _queue_spread(self) -> float:
        """Seconds over which the questions are spread when what is waited for has ended for all at once."""
        return max(_SHORTEST, self._nodes / CROWD, 2 * self._queue_seconds)

    def _new_breaker(self, generation: str) -> Breaker:
        """Of a generation that nobody has begun yet: it says who goes first. Raises _Wait."""
        query = f"?labelSelector={RING}%3D{CANARY}&resourceVersion=0&{NO_OBJECTS}"
        found = _checked(self._call("GET", _NODES_PATH + query))
        labelled = len(found.get("rows") or found.get("items") or ())
        ring = breakers.LABELLED if labelled else breakers.FIRST
        return Breaker(generation, ring, self._now, labelled=labelled)

    def _read_breaker(self, generation: str) -> Breaker | None:
        """None where there is none. Raises _Wait."""
        answer = self._call("GET", f"{self._leases}/{breaker_name(generation)}")
        if answer.code == _GONE:
            return None
        try:
            return read_breaker(generation, _checked(answer), self._now)
        except ValueError as error:
            raise self._not_understood(str(error)) from None

    def _write_breaker(self, breaker: Breaker) -> Breaker | None:
        """As it is then. None if another node has written it meanwhile. Raises _Wait."""
        body = build_breaker(breaker, self._context.namespace, self._rules, self._nodes)
        if breaker.version:
            answer = self._call("PUT", f"{self._leases}/{breaker_name(breaker.generation)}", body)
        else:
            answer = self._call("POST", self._leases, body)
        if answer.code == _CONFLICT:
            return None
        _checked(answer)
        return replace(breaker, version=str(answer.metadata.get("resourceVersion", "")))

    # -- to end -----------------------------------------------------------------------------

    def end(self) -> FleetAnswer:
        """Tells the result first, so that the next node that gets the permit knows of it."""
        request, told, tripped = self._request, False, ""
        try:
            tripped = self._tell(request.result) if request.result else ""
            told = True
            released = not request.permit or self._release(request.permit, request.version)
        except _Wait as wait:
            return FleetAnswer(
                why=wait.why,
                wait=wait.seconds,
                failed=True,
                powerless=wait.powerless,
                told=told,
                tripped=tripped,
            )
        return FleetAnswer(told=True, released=released, tripped=tripped)

    def _tell(self, result: WorkResult) -> str:
        """Writes the result down, and says whether that has tripped the breaker, and why. Raises _Wait."""
        board = self._read_board(result.work)
        for each in board.permits if self._request.knows_none else ():
            if each.holder == self._me.identity and each.is_held(self._now):
                self._release(each.name, each.version)
        # Of a fault: nobody begins the generation until a person deletes it, and then it begins anew.
        if board.fault or result.work.removes:
            return ""
        found = board.breaker
        if result.ok is False:
            self._nodes = self._size(board, may_be_gone=True)[0].nodes
        for _try in range(2 * _TRIES):
            breaker = found or Breaker(result.work.generation, begun=self._now)
            after = breakers.with_result(breaker, self._context.node, result.ok, result.why, self._now)
            if after == breaker:
                return ""
            if self._write_breaker(after):
                before = breakers.stopped(breaker, self._rules, self._nodes)
                return "" if before else breakers.stopped(after, self._rules, self._nodes)
            found = self._read_breaker(result.work.generation)
        raise _Wait("other nodes wrote the circuit breaker at the same time", _SHORTEST)

    def _release(self, name: str, version: str) -> bool:
        """Whether the permit is not ours any more. One that was written since is another's, also where that
        has the name of this node: a removal that works with it. Raises _Wait."""
        answer = self._call("PATCH", f"{self._leases}/{name}", build_release(version))
        return answer.code in (_CONFLICT, _GONE) or bool(_checked(answer))

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Answer:
        answer = self._api.call(method, path, body)
        self._now = answer.when or self._now
        return answer


def _checked(answer: Answer) -> Mapping[str, Any]:
    """Its body. Raises _Wait for a failure."""
    if answer.ok:
        return answer.body
    denied = answer.denied or answer.code == _GONE
    what = "the API server denies a permit" if denied else "the API server cannot be asked for a permit"
    raise _Wait(f"{what}: {answer.failure}", answer.retry_after, answer=answer)
