"""What an operator sees of a rollout and does with it: `rollout status`, `pause`, `resume`, `retry`. Pure.

Objects as the API returns them and a time go in; values, and patches or names for the API come out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from installer.cluster.breaker import Breaker, read_breaker, stopped
from installer.cluster.leases import Permit, build_lease, metadata_of, permits_of, read_permits
from installer.cluster.rollout import read_pause
from installer.cluster.size import measure
from installer.model.fleet import FLEET, ROLLOUT, FleetRules
from installer.model.hold import PAUSE_ANNOTATION

_BREAKER = "breaker-"
_EDITED = "no node could read it, and no other node began its generation, which canaries begin again"
_LOST = "it was dated so far ahead that no node could take this permit, which is free now"


@dataclass(frozen=True, slots=True)
class Generation:
    """One generation that nodes have begun. `stopped` says why no other node may begin it, empty if one may.
    `passed`: when the canaries were through, 0 before; `soaks_until`: until when they are watched."""

    breaker: Breaker
    stopped: str
    soaks_until: float

    @property
    def at_work(self) -> tuple[str, ...]:
        """Canaries that are waited for."""
        return tuple(sorted(set(self.breaker.canaries) - self.breaker.succeeded))


@dataclass(frozen=True, slots=True)
class Released:
    """A Lease that is to go: the circuit breaker of `generation`, with the nodes that have learnt that it
    `failed`; or one with which something else is wrong: `why`, and what follows from its end."""

    lease: str
    generation: str = ""
    failed: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True)
class Rollout:
    """`nodes`, `waiting` and `outdated`: those that the DaemonSet selects, those whose pod is not available,
    and those whose pod is not of the present template. `paused` says why planned work is stopped, None if it
    is not. `permits` are those in use, of `limit` there may be. `generations`: the last begun first.
    `unreadable`: circuit breakers that were edited by hand. `void`: permits that no node can have come by
    honestly, and why."""

    nodes: int
    waiting: int
    limit: int
    paused: str | None
    permits: tuple[Permit, ...]
    generations: tuple[Generation, ...]
    unreadable: tuple[str, ...] = ()
    outdated: int = 0
    void: Mapping[str, str] = field(default_factory=dict)


def build_rollout(
    daemonset: Mapping[str, Any], leases: Iterable[Mapping[str, Any]], rules: FleetRules, now: float
) -> Rollout:
    """From the DaemonSet and all Leases of the rollout's namespace."""
    leases = list(leases)
    status = daemonset.get("status")
    status = status if isinstance(status, dict) else {}
    size = measure(daemonset, "", now)
    nodes = size.nodes
    outdated = max(0, nodes - (status.get("updatedNumberScheduled") or 0))
    every_permit = read_permits(leases)
    permits = tuple(permit for permit in every_permit if permit.is_held(now))
    void = dict.fromkeys((permit.name for permit in every_permit if permit.is_lost(now)), _LOST)
    void |= _more_than_one(permits)
    breakers, unreadable = _read_breakers(leases, now)
    generations = tuple(
        Generation(
            breaker,
            stopped(breaker, rules, nodes),
            breaker.passed + rules.soak_seconds if breaker.passed else 0,
        )
        for breaker in sorted(breakers, key=lambda breaker: -breaker.begun)
    )
    limit = permits_of(rules.concurrent_restarts, nodes)
    paused = find_pause(leases)
    return Rollout(nodes, size.waiting, limit, paused, permits, generations, unreadable, outdated, void)


def find_pause(leases: Iterable[Mapping[str, Any]]) -> str | None:
    """Why planned work is stopped, None if it is not. Of the Leases of the rollout's namespace."""
    return next((read_pause(each) for each in leases if metadata_of(each).get("name") == FLEET), None)


def build_pause(why: str) -> dict[str, Any]:
    """A merge patch of the Lease `fleet`: planned work begins nowhere until `build_resume`. Nodes find the
    Lease by its label, which it may have lost."""
    return {"metadata": {"labels": {ROLLOUT: FLEET}, "annotations": {PAUSE_ANNOTATION: why}}}


def build_paused_fleet(namespace: str, why: str) -> dict[str, Any]:
    """The Lease, where no node has written it yet."""
    return build_lease(FLEET, namespace, FLEET, annotations={PAUSE_ANNOTATION: why})


def build_resume() -> dict[str, Any]:
    """A merge patch of the Lease."""
    return {"metadata": {"annotations": {PAUSE_ANNOTATION: None}}}


def to_retry(rollout: Rollout) -> tuple[Released, ...]:
    """What to delete, so that the generations that were stopped are begun again: by canaries; and the permits
    that no other node can take because of what one node has written."""
    stopped = [each.breaker for each in rollout.generations if each.stopped]
    found = [
        Released(_BREAKER + each.generation, each.generation, tuple(sorted(each.failures)))
        for each in stopped
    ]
    wrong = {**dict.fromkeys(rollout.unreadable, _EDITED), **rollout.void}
    return (*found, *(Released(name, why=why) for name, why in wrong.items()))


def _more_than_one(permits: Iterable[Permit]) -> Iterator[tuple[str, str]]:
    """A node needs one."""
    seen = set[str]()
    for permit in sorted(permits, key=lambda permit: permit.index):
        if permit.holder in seen - {""}:
            yield (
                permit.name,
                f"node {permit.node} holds another permit and needs one, so that this is free now",
            )
        seen.add(permit.holder)


def _read_breakers(leases: Iterable[Mapping[str, Any]], now: float) -> tuple[list[Breaker], tuple[str, ...]]:
    breakers, unreadable = list[Breaker](), list[str]()
    for lease in leases:
        name = str(metadata_of(lease).get("name", ""))
        if not name.startswith(_BREAKER):
            continue
        try:
            breakers.append(read_breaker(name.removeprefix(_BREAKER), lease, now))
        except ValueError:
            unreadable.append(name)
    return breakers, tuple(unreadable)
