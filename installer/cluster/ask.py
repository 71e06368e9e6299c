"""The requests of one node: to be permitted planned work, and to tell how it ended. For short processes.

Undisturbed, a node makes three for its part in a rollout: one LIST of all that is to be known, its permit
taken, its permit given back. While it waits, each further question is one. `rollout.py` decides what is next.

Times are the API server's own (its header Date), so that a node whose clock is wrong takes no permit that is
still held.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from installer.cluster import breaker as breakers
from installer.cluster.breaker import Breaker, build_breaker
from installer.cluster.kubeapi import NO_OBJECTS, Answer, Api
from installer.cluster.leases import (
    CANARY,
    RING,
    Holder,
    Permit,
    breaker_name,
    build_lease,
    build_permit,
    build_release,
    leases_path,
    read_permits,
    rollout_query,
)
from installer.cluster.permits import is_ghost
from installer.cluster.rollout import (
    Board,
    Doubt,
    Look,
    Rollout,
    Take,
    Wait,
    Write,
    read_board,
    read_pause,
    wait_for_others,
)
from installer.cluster.size import FleetSize, build_size, measure
from installer.cluster.successor import describe_missing, judge, resource_paths
from installer.cluster.talk import End, Talk
from installer.model.fleet import FLEET, REMOVAL, FleetAnswer, PlannedWork, WorkResult

_TRIES = 4  # of a write that others hinder
_MOVES = 4 + _TRIES  # two looks at the size, the canaries, a doubt; and the breaker
_NODES_PATH = "/api/v1/nodes"
_LONGEST = 7200.0  # seconds until a node asks again, whatever others have written down
_CONFLICT, _GONE = 409, 404
_SUCCESSOR_PAUSE = 10.0  # seconds between two looks whether a plugin serves the node
_RESOURCE_PAUSE = 30.0  # the same for its resource, and at most so many more
_LEFT = PlannedWork(REMOVAL, begins=True, removes=True)


class _FailedError(Exception):
    """The API server has not done what was asked for."""

    def __init__(self, answer: Answer) -> None:
        powerless = answer.denied or answer.code == _GONE
        what = "the API server denies a permit" if powerless else "the request for a permit failed"
        why, wait = f"{what}: {answer.failure}", answer.retry_after
        self.answer = FleetAnswer(why=why, wait=wait, failed=True, powerless=powerless)


class Ask:
    """One question of one node. `clock` is the time of the epoch where the server does not say it."""

    def __init__(
        self,
        order: Talk,
        api: Api,
        clock: Callable[[], float],
        random: Callable[[], float],
    ) -> None:
        self._order, self._context, self._random = order, order.context, random
        self._api, self._now = api, clock()
        self._rules = order.rules
        self._me = Holder(order.context.node, order.uid)
        self._leases = leases_path(order.context.rollout_namespace)

    # -- to begin ---------------------------------------------------------------------------

    def begin(self, work: PlannedWork) -> FleetAnswer:
        """Whether the work may begin now. A permit that the node holds already is found again."""
        needs_successor = work.removes and work.begins
        try:
            board, path = self._read_board(work.generation), self._context.daemonset_path
            for _ in range(_MOVES):
                now, labelled = self._now, self._order.canary
                rollout = Rollout(board, self._me, work, self._rules, path, now, self._random, labelled)
                move = rollout.next_move()
                if needs_successor and isinstance(move, Take | Write):  # one that may not begin is no canary
                    if why := self._misses_successor():
                        return self._answer(Wait(why, "", _RESOURCE_PAUSE, _RESOURCE_PAUSE))
                    needs_successor = False
                if isinstance(move, Take):
                    taken = self._take(move.permits)
                    return self._answer(taken) if isinstance(taken, Wait) else _granted(taken, rollout)
                if isinstance(move, Wait):
                    return self._answer(move)
                board = self._do(move, board, work)
        except _FailedError as error:
            return error.answer
        return self._answer(wait_for_others("wrote the circuit breaker"))

    def _answer(self, wait: Wait) -> FleetAnswer:
        seconds = min(_LONGEST, wait.seconds) + min(_LONGEST, wait.spread) * self._random()
        return FleetAnswer(why=wait.why, detail=wait.detail, wait=seconds)

    def _do(self, move: Look | Doubt | Write, board: Board, work: PlannedWork) -> Board:
        """Returns what is known then. Raises _FailedError."""
        if move is Look.SIZE:
            return self._count(board, may_be_gone=work.removes)
        if isinstance(move, Look):
            query = f"?labelSelector={RING}%3D{CANARY}&resourceVersion=0&{NO_OBJECTS}"
            found = _checked(self._call("GET", _NODES_PATH + query))
            return replace(board, labelled=len(found.get("rows") or found.get("items") or ()))
        if isinstance(move, Write):
            if written := self._write_breaker(move.breaker, board.nodes):
                return replace(board, breaker=written)
            anew = self._read_board(work.generation)
            return replace(anew, size=board.size, is_counted=board.is_counted)
        answer = self._call("GET", f"{_NODES_PATH}/{move.permit.node}?resourceVersion=0")
        is_gone = is_ghost(move.permit, answer.code, str(answer.metadata.get("uid", "")))
        return replace(board, gone=move.permit.holder if is_gone else "")

    def _read_board(self, generation: str) -> Board:
        """Raises _FailedError."""
        found = _checked(self._call("GET", self._leases + rollout_query(generation))).get("items")
        return read_board(found, generation, self._now)

    def _count(self, board: Board, *, may_be_gone: bool) -> Board:
        """By the DaemonSet; what is known already, where that is gone. A size that is news is left to the
        next nodes; if that fails, they ask. Raises _FailedError."""
        path = self._context.daemonset_path
        answer = self._call("GET", path)
        if answer.code == _GONE and may_be_gone:
            return replace(board, size=board.size or FleetSize(path), is_counted=True)
        size = measure(_checked(answer), path, self._now)
        news = size.nodes and (size.nodes != board.nodes or not board.knows_size(path, self._now))
        paused = self._leave(size) if news else None
        return replace(board, size=size, is_counted=True, paused=board.paused if paused is None else paused)

    def _leave(self, size: FleetSize) -> str | None:
        """In the Lease of the fleet, which gets its label back: without it, it is not listed, and no node
        sees a pause that it has. Returns that."""
        lease = build_lease(FLEET, self._context.rollout_namespace, FLEET, annotations=build_size(size))
        patch = {"metadata": {key: lease["metadata"][key] for key in ("labels", "annotations")}}
        left = self._call("PATCH", f"{self._leases}/{FLEET}", patch)
        if left.code == _GONE:
            self._call("POST", self._leases, lease)
        return read_pause(left.body) if left.ok else None

    def _take(self, permits: Sequence[Permit]) -> Permit | Wait:
        """The first one that no other node takes at the same time; one without a name where none is needed.
        Raises _FailedError."""
        for permit in permits[:_TRIES]:
            answer = self._write_permit(permit)
            if answer.code == _CONFLICT and not permit.version:  # another's by now, or without our label
                there = read_permits([self._call("GET", f"{self._leases}/{permit.name}").body])
                answer = self._write_permit(there[0]) if there and not there[0].is_held(self._now) else answer
            if answer.code != _CONFLICT:
                _checked(answer)
                return replace(permit, version=str(answer.metadata.get("resourceVersion", "")))
        return wait_for_others("took the free permits") if permits else Permit("")

    def _write_permit(self, permit: Permit) -> Answer:
        """With this node as its holder."""
        namespace, seconds = self._context.rollout_namespace, self._rules.hold_seconds
        lease = build_permit(permit, namespace, self._me.identity, self._now, seconds)
        if permit.version:
            return self._call("PUT", f"{self._leases}/{permit.name}", lease)
        return self._call("POST", self._leases, lease)

    def _write_breaker(self, breaker: Breaker, nodes: int) -> Breaker | None:
        """As it is then. None if another node has written it meanwhile. Raises _FailedError."""
        body = build_breaker(breaker, self._context.rollout_namespace, self._rules, nodes)
        if breaker.version:
            answer = self._call("PUT", f"{self._leases}/{breaker_name(breaker.generation)}", body)
        else:
            answer = self._call("POST", self._leases, body)
        if answer.code == _CONFLICT:
            return None
        _checked(answer)
        return replace(breaker, version=str(answer.metadata.get("resourceVersion", "")))

    # -- to end -----------------------------------------------------------------------------

    def end(self, end: End) -> FleetAnswer:
        """Tells the result first, so that the next node that gets the permit knows of it."""
        told, tripped = False, ""
        try:
            if end.successor_seconds is not None and (end.result is None or end.result.ok):
                why, has_ended = self._await_successor(end.successor_seconds)
                if not has_ended:
                    return FleetAnswer(why=why, wait=_SUCCESSOR_PAUSE)
                end = replace(end, result=WorkResult(_LEFT, False, why)) if why else end
            tripped = self._tell(end.result, knows_none=end.knows_none) if end.result else ""
            told = True
            released = not end.permit or self._release(end.permit, end.version)
        except _FailedError as error:
            return replace(error.answer, told=told, tripped=tripped)
        return FleetAnswer(told=True, released=released, tripped=tripped)

    def _tell(self, result: WorkResult, *, knows_none: bool) -> str:
        """Writes the result down, and says whether that has tripped the breaker, and why. Raises
        _FailedError."""
        for _ in range(2 * _TRIES):
            board = self._read_board(result.work.generation)
            for each in board.permits if knows_none else ():
                if each.holder == self._me.identity and each.is_held(self._now):
                    self._release(each.name, each.version)
            # Of a fault: no node begins the generation until a person deletes it, and then it begins anew.
            if board.fault or (result.work.removes and not result.work.begins):
                return ""
            if result.ok is False and not board.knows_size(self._context.daemonset_path, self._now):
                board = self._count(board, may_be_gone=True)
            breaker = board.breaker or Breaker(result.work.generation, begun=self._now)
            after = breakers.with_result(breaker, self._me.node, result.ok, result.why, self._now)
            if after == breaker:
                return ""
            if self._write_breaker(after, board.nodes):
                before = breakers.stopped(breaker, self._rules, board.nodes)
                return "" if before else breakers.stopped(after, self._rules, board.nodes)
        raise _FailedError(
            Answer(_CONFLICT, failure="other nodes wrote the circuit breaker at the same time")
        )

    # -- what follows cri-resmgr --------------------------------------------------------------

    def _misses_successor(self) -> str:
        """Why no NRI plugin could serve this node; empty if one could. Raises _FailedError."""
        resources, why = self._read_resources()
        return why or ("" if resources else describe_missing(self._rules.successor))

    def _await_successor(self, seconds: float) -> tuple[str, bool]:
        """Why no NRI plugin serves this node, empty if one does; and whether that is its last word, or so
        many seconds have passed. Raises _FailedError."""
        resources, unread = self._read_resources()
        why, has_tried = (unread, False) if unread else judge(resources, self._me.node)
        return f"cri-resmgr is removed, and {why}" if why else "", has_tried or seconds <= 0

    def _read_resources(self) -> tuple[list[Mapping[str, Any]], str]:
        """Those that are for this node, or why they cannot be read. Raises _FailedError."""
        node = _checked(self._call("GET", f"{_NODES_PATH}/{self._me.node}?resourceVersion=0"))
        found = list[Mapping[str, Any]]()
        for paths in resource_paths(self._rules.successor, node):
            for path in paths:
                answer = self._call("GET", path)
                if answer.ok:
                    found.append(answer.body)
                    break
                if answer.code != _GONE:
                    return [], f"the API server does not show the resources of NRI plugins: {answer.failure}"
        return found, ""

    def _release(self, name: str, version: str) -> bool:
        """Whether the permit is no longer ours. One that was written since is another's, also where that
        has the name of this node: a removal that works with it. Raises _FailedError."""
        answer = self._call("PATCH", f"{self._leases}/{name}", build_release(version))
        return answer.code in (_CONFLICT, _GONE) or bool(_checked(answer))

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Answer:
        answer = self._api.call(method, path, body)
        self._now = answer.when or self._now
        return answer


def _granted(permit: Permit, rollout: Rollout) -> FleetAnswer:
    canary = rollout.work.begins and rollout.is_canary
    return FleetAnswer(granted=True, permit=permit.name, version=permit.version, canary=canary)


def _checked(answer: Answer) -> Mapping[str, Any]:
    """Its body. Raises _FailedError."""
    if answer.ok:
        return answer.body
    raise _FailedError(answer)
