"""The requests of one node: to be permitted planned work, and to tell how it ended. For short processes.

Undisturbed, a node makes five for its part in a rollout: the permits, the DaemonSet, the brake, its permit
taken, its permit given back. While it waits for a permit, each further question is one.

Times are the API server's own (its header Date), so that a node whose clock is wrong takes no permit that is
still held.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from installer.fleet import brake as brakes
from installer.fleet.brake import Brake, build_brake, read_brake
from installer.fleet.objects import (
    CANARY,
    RING,
    Member,
    Permit,
    brake_name,
    build_permit,
    build_release,
    config_maps_path,
    leases_path,
    read_fleet,
    read_permits,
    share_of,
)
from installer.fleet.permits import choose, is_ghost, suspect
from installer.host.kubeapi import Answer, Api
from installer.model.fleet import FleetAnswer, FleetFacts, FleetRequest, PlannedWork, WorkResult

_TRIES = 4  # of a write that others hinder
_NODES_PATH = "/api/v1/nodes"
_GRANT_SECONDS = 7.0  # a fleet that waits asks once in that time for each permit there is
_MANY = 16.0  # the same, at most, where there are many permits and one of them is often free
_SHORTEST = 4.0  # seconds until a node asks again
_BY_PEOPLE = 40.0  # the same for what people end: a freeze, a tripped brake
_CROWD = 15.0  # questions a second of a large fleet that waits for people or for canaries

_CANARIES_FIRST = "canaries go first"

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
        self._limit, self._nodes = request.limit, request.nodes
        self._waiting, self._grants = request.waiting, request.grants
        if request.facts is not None:
            self._take_facts(request.facts)

    # -- to begin ---------------------------------------------------------------------------

    def begin(self, work: PlannedWork) -> FleetAnswer:
        """Whether the work may begin now. A permit that the node holds already is found again."""
        try:
            if self._request.canaries_first:
                self._see_canaries(work)  # else there is nothing more to ask for
            permits = self._read_permits() if work.restarts_kubelet else ()
            mine = choose(permits, self._me, 1, self._now, self._random).mine
            if self._limit and work.restarts_kubelet and not mine:
                self._free(permits)  # else there is nothing more to ask for
            self._check_freeze(self._request.facts or self._see_fleet(may_be_gone=work.removes))
            free = (mine,) if mine else self._free(permits) if work.restarts_kubelet else ()
            canary = work.begins and self._pass_brake(work)
            taken = self._take(free) if work.restarts_kubelet else Permit("")
        except _Wait as wait:
            seconds = wait.seconds + wait.spread * self._random()
            return FleetAnswer(
                why=wait.why,
                detail=wait.detail,
                wait=seconds,
                limit=self._limit,
                nodes=self._nodes,
                waiting=self._waiting,
                grants=self._grants,
                canaries_first=wait.why == _CANARIES_FIRST,
                failed=wait.failed,
                powerless=wait.powerless,
            )
        return FleetAnswer(
            granted=True,
            permit=taken.name,
            version=taken.version,
            limit=self._limit,
            nodes=self._nodes,
            canary=canary,
        )

    def _see_fleet(self, *, may_be_gone: bool) -> FleetFacts:
        """What the DaemonSet says. Raises _Wait."""
        answer = self._call("GET", self._context.daemonset_path)
        if answer.code == _GONE and may_be_gone:
            self._limit = max(1, self._limit)  # as it was last known
            return FleetFacts()
        facts = read_fleet(_checked(answer))
        self._take_facts(facts)
        return facts

    def _take_facts(self, facts: FleetFacts) -> None:
        """How many nodes there are and wait, and so how many permits there are."""
        self._nodes, self._waiting = facts.nodes, facts.waiting
        self._limit = share_of(self._rules.concurrent_restarts, self._nodes)

    def _check_freeze(self, facts: FleetFacts) -> None:
        if facts.frozen is not None:
            raise self._for_people("the rollout is frozen" + (f": {facts.frozen}" if facts.frozen else ""))

    def _for_people(self, why: str) -> _Wait:
        """What ends when people say so."""
        seconds = max(_BY_PEOPLE, self._nodes / _CROWD)
        return _Wait(why, seconds / 2, seconds)

    # -- permits ------------------------------------------------------------------------------

    def _read_permits(self) -> tuple[Permit, ...]:
        """All there are. What was granted since the last question shortens the queue. Raises _Wait."""
        found = _checked(self._call("GET", leases_path(self._context.namespace))).get("items")
        permits = read_permits(found)
        before, self._grants = self._grants, sum(permit.holders for permit in permits)
        if self._request.limit and self._request.facts is None:  # else it was counted just now
            self._waiting -= self._grants - before
        return permits

    def _free(self, permits: Sequence[Permit]) -> tuple[Permit, ...]:
        """The permits that may be taken. Raises _Wait if there are none."""
        choice = choose(permits, self._me, self._limit, self._now, self._random)
        old = None if choice.free else suspect(choice.held, self._now)
        if old is not None:
            answer = self._call("GET", f"{_NODES_PATH}/{old.node}?resourceVersion=0")
            if is_ghost(old, answer.code, str(answer.metadata.get("uid", ""))):
                permits = [replace(each, holder="") if each == old else each for each in permits]
                choice = choose(permits, self._me, self._limit, self._now, self._random)
        if choice.free:
            return choice.free
        each = min(_MANY, _GRANT_SECONDS + self._limit / 4)
        seconds = max(_SHORTEST, each * self._waiting / self._limit)
        taken = (
            "the permit to restart kubelet is"
            if self._limit == 1
            else f"all {self._limit} permits to restart kubelet are"
        )
        by = f", by {_listed([permit.node for permit in choice.held])}"
        raise _Wait(f"{taken} taken", seconds / 2, seconds, by)

    def _take(self, permits: Sequence[Permit]) -> Permit:
        """The first one that nobody else takes at the same time. Raises _Wait."""
        path = leases_path(self._context.namespace)
        for permit in permits[:_TRIES]:
            lease = build_permit(
                permit, self._context.namespace, self._me.identity, self._now, self._rules.hold_seconds
            )
            if permit.version:
                answer = self._call("PUT", f"{path}/{permit.name}", lease)
            else:
                answer = self._call("POST", path, lease)
            if answer.code != _CONFLICT:
                _checked(answer)
                return replace(permit, version=str(answer.metadata.get("resourceVersion", "")))
        raise _Wait("other nodes took the free permits at the same time", _SHORTEST / 2, _SHORTEST)

    # -- the brake ----------------------------------------------------------------------------

    def _pass_brake(self, work: PlannedWork) -> bool:
        """Returns if the generation may begin on this node, and whether as a canary. Raises _Wait."""
        node = self._context.node
        for _try in range(_TRIES):
            brake = self._read_brake(work.generation) or Brake(work.generation, self._ring(), self._now)
            why = brakes.stopped(brake, self._rules, self._nodes)
            if why and node not in brake.failures:
                raise self._for_people(why)
            after = self._admitted(brake)
            if (after == brake and brake.version) or self._write_brake(after):
                if node not in after.canaries and self._rules.order == "canary":
                    self._await_canaries(after, work)
                return node in after.canaries
        raise _Wait("other nodes wrote the brake at the same time", _SHORTEST / 2, _SHORTEST)

    def _see_canaries(self, work: PlannedWork) -> None:
        """For a node that has waited for them. Writes nothing. Raises _Wait while they are at work, or
        watched."""
        brake = self._read_brake(work.generation)
        if brake is None or brakes.stopped(brake, self._rules, self._nodes):
            return
        if self._admitted(brake) == brake and self._context.node not in brake.canaries:
            self._await_canaries(brake, work)

    def _admitted(self, brake: Brake) -> Brake:
        """The brake with this node as a canary, if it is to be one."""
        brake = brakes.with_passed(brake, self._now)
        if brake.passed or self._rules.order != "canary" or self._context.node in brake.canaries:
            return brake
        node, labelled = self._context.node, self._request.canary
        if brakes.may_be_canary(brake, node, labelled=labelled, nodes=self._nodes, now=self._now):
            return brakes.with_canary(brake, node, self._now)
        return brake

    def _await_canaries(self, brake: Brake, work: PlannedWork) -> None:
        """Raises _Wait while the canaries are at work, or watched."""
        soak = self._rules.soak_seconds if work.soaks else 0.0
        if not brake.passed:  # and so nothing begins before the soak time is over
            awaited = sorted(set(brake.canaries) - brake.succeeded)
            who = _listed(awaited) if awaited else f"nodes with the label {RING}={CANARY}"
            spread = max(_SHORTEST, self._nodes / _CROWD)
            raise _Wait(_CANARIES_FIRST, max(_SHORTEST, soak), spread, f": {who}")
        left = brake.passed + soak - self._now
        if left > 0:
            detail = f": they are watched for {left:.0f} s more"
            raise _Wait(_CANARIES_FIRST, left, self._nodes / _CROWD, detail)

    def _ring(self) -> str:
        """Who goes first in a generation that nobody has begun yet. Raises _Wait."""
        query = f"?labelSelector={RING}%3D{CANARY}&resourceVersion=0"
        found = _checked(self._call("GET", _NODES_PATH + query))
        return brakes.LABELLED if found.get("items") else brakes.FIRST

    def _read_brake(self, generation: str) -> Brake | None:
        """None where there is none. Raises _Wait."""
        answer = self._call("GET", f"{config_maps_path(self._context.namespace)}/{brake_name(generation)}")
        if answer.code == _GONE:
            return None
        try:
            return read_brake(generation, _checked(answer))
        except ValueError as error:
            why = f"{error}; `cri-resmgr-installer rollout retry` deletes it"
            raise self._for_people(why) from None

    def _write_brake(self, brake: Brake) -> bool:
        """False if another node has written it meanwhile. Raises _Wait."""
        body = build_brake(brake, self._context.namespace, self._rules, self._nodes)
        path = config_maps_path(self._context.namespace)
        if brake.version:
            answer = self._call("PUT", f"{path}/{brake_name(brake.generation)}", body)
        else:
            answer = self._call("POST", path, body)
        if answer.code == _CONFLICT:
            return False
        _checked(answer)
        return True

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
        """Writes the result down, and says whether that has tripped the brake, and why. Raises _Wait."""
        for _try in range(2 * _TRIES):
            found = self._read_brake(result.work.generation)
            brake = found or Brake(result.work.generation, begun=self._now)
            after = brakes.with_result(brake, self._context.node, result.ok, result.why, self._now)
            if after == brake:
                return ""
            if result.ok is False:
                self._see_fleet(may_be_gone=True)
            if self._write_brake(after):
                before = brakes.stopped(brake, self._rules, self._nodes)
                return "" if before else brakes.stopped(after, self._rules, self._nodes)
        raise _Wait("other nodes wrote the brake at the same time", _SHORTEST)

    def _release(self, name: str, version: str) -> bool:
        """Whether the permit is not ours any more. Raises _Wait."""
        path = f"{leases_path(self._context.namespace)}/{name}"
        answer = self._call("PATCH", path, build_release(version, self._now))
        if answer.code != _CONFLICT:
            return answer.code == _GONE or bool(_checked(answer))
        (permit,) = read_permits([_checked(self._call("GET", path))]) or (Permit(name),)
        if permit.holder != self._me.identity:
            return True
        return self._call("PATCH", path, build_release(permit.version, self._now)).ok

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


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
