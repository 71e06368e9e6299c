"""The requests of one node of a fleet: for a permit, and to report how its work ended. For short processes.

Undisturbed, a node makes three requests for its part in a rollout: a LIST of all that it has to know, its
permit taken, its permit given back. While it waits, each further question is one. `rollout.py` decides what
comes next.

Times are the API server's own (its header Date), so that a node with a wrong clock takes no permit that is
still held.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from installer.cluster import breaker as breakers
from installer.cluster.breaker import Breaker, build_breaker
from installer.cluster.kubeapi import MOST_SAID, NO_OBJECTS, Answer, Api
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
from installer.cluster.permit_choice import is_holder_gone
from installer.cluster.rollout import (
    CheckHolder,
    FleetState,
    Lookup,
    Rollout,
    TakePermit,
    Wait,
    WriteBreaker,
    read_fleet_state,
    read_pause,
    wait_for_others,
)
from installer.cluster.size import FleetSize, build_size, measure
from installer.cluster.successor import judge, resource_paths
from installer.cluster.sync import SyncRequest, WorkEnd
from installer.model.event import truncate
from installer.model.fleet import FLEET, REMOVAL, PermitAnswer, PlannedWork, WorkResult
from installer.model.instant import parse_time
from installer.model.jsontext import text_at

_TRIES = 4  # of a write that other nodes thwart
_PAGES = 10  # of a LIST; the policies allow no more Leases than these have
_MOVES = 4 + _TRIES  # two lookups of the size, the canaries, a holder; and the circuit breaker
_NODES_PATH = "/api/v1/nodes"
_LONGEST = 7200.0  # seconds until a node asks again, whatever others have written down
_NOT_FOUND, _CONFLICT = 404, 409
_QUOTA = "exceeded quota"  # checkRequest of k8s.io/apiserver/pkg/admission/plugin/resourcequota
_SUCCESSOR_PAUSE = 10.0  # seconds between two looks whether a plugin serves the node
_RESOURCE_PAUSE = 30.0  # the same for its resource, and up to so many more
_FAILED_REMOVAL = PlannedWork(REMOVAL, begins=True, removes=True)


class _FailedError(Exception):
    """The API server has not done what was asked for."""

    def __init__(self, answer: Answer) -> None:
        # A full quota of the namespace is also a 403, and takes no right away.
        denied = (answer.denied and _QUOTA not in answer.failure) or answer.code == _NOT_FOUND
        what = "the API server denies a permit" if denied else "the request for a permit failed"
        why, wait = f"{what}: {answer.failure}", answer.retry_after
        self.answer = PermitAnswer(why=why, wait=wait, failed=True, denied=denied)


class PermitClient:
    """One question of one node. `clock` is the time of the epoch if the server does not send it."""

    def __init__(
        self,
        request: SyncRequest,
        api: Api,
        clock: Callable[[], float],
        random: Callable[[], float],
    ) -> None:
        self._request, self._context, self._random = request, request.context, random
        self._api, self._now = api, clock()
        self._rules = request.rules
        self._me = Holder(request.context.node, request.node.uid)
        self._leases = leases_path(request.context.rollout_namespace)

    # -- to begin ---------------------------------------------------------------------------

    def begin(self, work: PlannedWork) -> PermitAnswer:
        """Ask whether the work may begin now. A permit that the node holds already is found again."""
        needs_successor = work.removes and work.begins
        try:
            state, path = self._read_state(work.generation), self._context.daemonset_path
            for _ in range(_MOVES):
                now, given = self._now, (self._request.node.canary, self._request.node.joined)
                rollout = Rollout(state, self._me, work, self._rules, path, now, self._random, *given)
                move = rollout.next_move()
                # A node that may not begin is not a canary, so this comes before the breaker is written.
                if needs_successor and isinstance(move, TakePermit | WriteBreaker):
                    _resources, why = self._read_resources()
                    if why:
                        return self._answer(Wait(why, "", _RESOURCE_PAUSE, _RESOURCE_PAUSE))
                    needs_successor = False
                if isinstance(move, TakePermit):
                    taken = self._take_permit(move.permits)
                    return self._answer(taken) if isinstance(taken, Wait) else _granted(taken, rollout)
                if isinstance(move, Wait):
                    return self._answer(move)
                state = self._carry_out(move, state, work)
        except _FailedError as error:
            return error.answer
        return self._answer(wait_for_others("wrote the circuit breaker"))

    def _answer(self, wait: Wait) -> PermitAnswer:
        seconds = min(_LONGEST, wait.seconds) + min(_LONGEST, wait.spread) * self._random()
        why, detail = truncate(wait.why, MOST_SAID), truncate(wait.detail, MOST_SAID)
        return PermitAnswer(why=why, detail=detail, wait=seconds)

    def _carry_out(
        self, move: Lookup | CheckHolder | WriteBreaker, state: FleetState, work: PlannedWork
    ) -> FleetState:
        """Return what is known then. Raises _FailedError."""
        if move is Lookup.SIZE:
            return self._count(state, may_be_gone=work.removes)
        if isinstance(move, Lookup):
            query = f"?labelSelector={RING}%3D{CANARY}&resourceVersion=0&{NO_OBJECTS}"
            found = _checked(self._call("GET", _NODES_PATH + query))
            return replace(state, labelled=len(found.get("rows") or found.get("items") or ()))
        if isinstance(move, WriteBreaker):
            if written := self._write_breaker(move.breaker, state.nodes):
                return replace(state, breaker=written)
            anew = self._read_state(work.generation)
            return replace(anew, size=state.size, is_counted=state.is_counted)
        # Not from the API server's cache: one that lags may not have the holder's Node yet.
        answer = self._call("GET", f"{_NODES_PATH}/{move.permit.node}")
        is_gone = is_holder_gone(move.permit, answer.code, str(answer.metadata.get("uid", "")))
        return replace(state, gone=move.permit.holder if is_gone else "")

    def _read_state(self, generation: str) -> FleetState:
        """Raises _FailedError."""
        leases, more = list[object](), ""
        for _ in range(_PAGES):
            found = _checked(self._call("GET", self._leases + rollout_query(generation, more)))
            items = found.get("items")
            leases += items if isinstance(items, list) else []
            more = text_at(found, "metadata", "continue")
            if not more:
                break
        return read_fleet_state(leases, generation, self._now)

    def _count(self, state: FleetState, *, may_be_gone: bool) -> FleetState:
        """Read the size from the DaemonSet, or keep the known one if the DaemonSet is gone. Write a new size
        down for the next nodes; if that fails, they ask. Raises _FailedError."""
        path = self._context.daemonset_path
        answer = self._call("GET", path)
        if answer.code == _NOT_FOUND and may_be_gone:
            return replace(state, is_counted=True)
        size = measure(_checked(answer), path, self._now)
        state = replace(state, started=parse_time(answer.metadata.get("creationTimestamp")))
        is_news = size.nodes and (size.nodes != state.nodes or not state.knows_size(path, self._now))
        paused = self._write_size(size) if is_news else None
        return replace(state, size=size, is_counted=True, paused=state.paused if paused is None else paused)

    def _write_size(self, size: FleetSize) -> str | None:
        """Write it to the Lease of the fleet, which gets its label back: a Lease without it is not listed,
        and no node sees its pause. Return why the Lease pauses the rollout, if it does."""
        lease = build_lease(FLEET, self._context.rollout_namespace, FLEET, annotations=build_size(size))
        patch = {"metadata": {key: lease["metadata"][key] for key in ("labels", "annotations")}}
        written = self._call("PATCH", f"{self._leases}/{FLEET}", patch)
        if written.code == _NOT_FOUND:
            self._call("POST", self._leases, lease)
        return read_pause(written.body) if written.ok else None

    def _take_permit(self, permits: Sequence[Permit]) -> Permit | Wait:
        """Take the first that no other node takes at the same time; one without a name if none is needed.
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
        """Write it with this node as its holder."""
        namespace, seconds = self._context.rollout_namespace, self._rules.hold_seconds
        lease = build_permit(permit, namespace, self._me.identity, self._now, seconds)
        return self._write_lease(permit.name, permit.version, lease)

    def _write_breaker(self, breaker: Breaker, nodes: int) -> Breaker | None:
        """Return it with its new version; None if another node has written it meanwhile. Raises
        _FailedError."""
        body = build_breaker(breaker, self._context.rollout_namespace, self._rules, nodes)
        name = breaker_name(breaker.generation)
        answer = self._write_lease(name, breaker.version, body)
        if answer.code == _CONFLICT and not breaker.version:  # another's by now, or without our label
            label = {"metadata": {"labels": body["metadata"]["labels"]}}
            self._call("PATCH", f"{self._leases}/{name}", label)
        if answer.code == _CONFLICT:
            return None
        _checked(answer)
        return replace(breaker, version=str(answer.metadata.get("resourceVersion", "")))

    def _write_lease(self, name: str, version: str, body: Mapping[str, Any]) -> Answer:
        """`version` is the resourceVersion that the body rests on, empty for a new Lease."""
        if version:
            return self._call("PUT", f"{self._leases}/{name}", body)
        return self._call("POST", self._leases, body)

    # -- to end -----------------------------------------------------------------------------

    def end(self, end: WorkEnd) -> PermitAnswer:
        """Report the result first, so that the next node that gets the permit knows of it."""
        told, tripped = False, ""
        try:
            if end.successor_seconds is not None and (end.result is None or end.result.ok):
                why, has_ended = self._await_successor(end.successor_seconds)
                if not has_ended:
                    return PermitAnswer(why=why, wait=_SUCCESSOR_PAUSE)
                end = replace(end, result=WorkResult(_FAILED_REMOVAL, False, why)) if why else end
            why = self._report(end.result, knows_none=end.knows_none) if end.result else ""
            tripped = truncate(why, MOST_SAID)
            told = True
            released = not end.permit or self._release(end.permit, end.version)
        except _FailedError as error:
            return replace(error.answer, told=told, tripped=tripped)
        return PermitAnswer(told=True, released=released, tripped=tripped)

    def _report(self, result: WorkResult, *, knows_none: bool) -> str:
        """Write the result down, and give back each permit that the node has forgotten. Return why the result
        has tripped the circuit breaker, empty if it has not. Raises _FailedError."""
        for _ in range(2 * _TRIES):
            state = self._read_state(result.work.generation)
            held = state.permits if knows_none else ()
            mine = [each for each in held if each.holder == self._me.identity and each.is_held(self._now)]
            tripped = self._tell(result, state, max((each.taken for each in mine), default=0.0))
            if tripped is not None:
                for each in mine:
                    self._release(each.name, each.version)
                return tripped
        raise _FailedError(
            Answer(_CONFLICT, failure="other nodes wrote the circuit breaker at the same time")
        )

    def _tell(self, result: WorkResult, state: FleetState, taken: float) -> str | None:
        """Write the result into the circuit breaker. `taken`: when the node took the permit that it has
        forgotten, 0 if there is none. Return why the result has tripped the breaker, empty if it has not,
        and None if another node wrote it at the same time. Raises _FailedError."""
        # Nobody begins a generation whose breaker has a fault, until a person deletes it: then it is new.
        if state.fault or (result.work.removes and not result.work.begins):
            return ""
        # Others wait for a canary. A failure that it has told before may have been forgiven since.
        if result.recalled and not _has_begun(state.breaker, self._me.node, taken):
            return ""
        if result.ok is False and not state.knows_size(self._context.daemonset_path, self._now):
            state = self._count(state, may_be_gone=True)
        breaker = state.breaker or Breaker(result.work.generation, begun=self._now)
        after = breakers.with_result(breaker, self._me.node, result.ok, result.why, self._now)
        if after == breaker:
            return ""
        if not self._write_breaker(after, state.nodes):
            return None
        before = breakers.stopped(breaker, self._rules, state.nodes)
        return "" if before else breakers.stopped(after, self._rules, state.nodes)

    # -- what follows cri-resmgr --------------------------------------------------------------

    def _await_successor(self, seconds: float) -> tuple[str, bool]:
        """Return why no NRI plugin serves this node, empty if one does; and whether that is final, because
        one has tried or the seconds are over. Raises _FailedError."""
        resources, unread = self._read_resources()
        why, has_tried = (unread, False) if unread else judge(resources, self._me.node)
        return f"cri-resmgr is removed, but {why}" if why else "", has_tried or seconds <= 0

    def _read_resources(self) -> tuple[list[Mapping[str, Any]], str]:
        """Return those that are for this node, or why no NRI plugin could serve it. Raises _FailedError."""
        node = _checked(self._call("GET", f"{_NODES_PATH}/{self._me.node}?resourceVersion=0"))
        resources = list[Mapping[str, Any]]()
        for paths in resource_paths(self._rules.successor, node):
            for path in paths:
                answer = self._call("GET", path)
                if answer.ok:
                    resources.append(answer.body)
                    break
                if answer.code != _NOT_FOUND:
                    complaint = "the API server does not return the resources of NRI plugins"
                    return [], f"{complaint}: {answer.failure}"
        wanted = "TopologyAwarePolicy or BalloonsPolicy for this node"
        hint = "apply the output of `cri-resmgr-installer translate`"
        return resources, "" if resources else f"namespace {self._rules.successor} has no {wanted}; {hint}"

    def _release(self, name: str, version: str) -> bool:
        """Give the permit back, and return whether it is no longer ours. One that was written since is
        another's, even under the name of this node: of a removal that works with it. Raises _FailedError."""
        answer = self._call("PATCH", f"{self._leases}/{name}", build_release(version))
        return answer.code in (_CONFLICT, _NOT_FOUND) or bool(_checked(answer))

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Answer:
        answer = self._api.call(method, path, body)
        self._now = answer.when or self._now
        return answer


def _has_begun(breaker: Breaker | None, node: str, taken: float) -> bool:
    """Whether the node has begun the generation since the breaker exists: as a canary, or with the permit
    that was taken then."""
    return breaker is not None and (node in breaker.canaries or taken > breaker.begun)


def _granted(permit: Permit, rollout: Rollout) -> PermitAnswer:
    canary = rollout.work.begins and rollout.is_canary
    return PermitAnswer(granted=True, permit=permit.name, version=permit.version, canary=canary)


def _checked(answer: Answer) -> Mapping[str, Any]:
    """Return its body. Raises _FailedError."""
    if answer.ok:
        return answer.body
    raise _FailedError(answer)
