"""Judges a rollout by its DaemonSet, the Leases of its namespace and its nodes, and says which Leases a retry
deletes. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from installer.cluster.breaker import Breaker, is_over, read_breaker, stopped
from installer.cluster.leases import Permit, breaker_name, permit_name, permits_of, read_permits
from installer.cluster.rollout import read_pause
from installer.cluster.size import measure
from installer.model.daemon import Phase
from installer.model.fleet import FLEET, REMOVAL, FleetRules
from installer.model.instant import parse_time, plain_time
from installer.model.names import Mode
from installer.model.overview import (
    Generation,
    NodeHealth,
    NodeView,
    Progress,
    Rollout,
    WindowView,
    group_nodes,
)
from installer.model.window import judge_windows
from installer.operator.inventory import Installed
from installer.operator.kube_objects import Object, text_at

_BREAKER = breaker_name("")
_WINDOW = 3600.0  # seconds; nodes that finished earlier say nothing of the present pace
_FEWEST = 3  # nodes; the pace of fewer is chance
_EDITED = "no node could parse it or start its generation, which canaries start again"
_AHEAD = "its term is further ahead than any node dates it"
_UNUSED = "no node may use a permit of its number"


@dataclass(frozen=True, slots=True)
class RolloutLeases:
    """The Leases of a rollout's namespace. `paused`: why planned work is stopped, None if it is not.
    `permits`: those in use. `breakers`: the last begun first. `unreadable`: circuit breakers that were edited
    by hand. `void`: permits that no node works with, or can have taken by the rules, and why. `free`: the
    numbers of those that are not in use."""

    paused: str | None
    permits: tuple[Permit, ...]
    breakers: tuple[Breaker, ...]
    unreadable: tuple[str, ...]
    void: Mapping[str, str]
    free: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Released:
    """A Lease to delete: the circuit breaker of `generation`, with the nodes that it `failed` on; or one
    that is wrong otherwise: `why`, and what follows from its deletion."""

    lease: str
    generation: str = ""
    failed: tuple[str, ...] = ()
    why: str = ""


def read_leases(leases: list[Object], now: float, rules: FleetRules) -> RolloutLeases:
    """A node that takes over the permit of one that is gone lets its own term begin when the other's is over
    (`Permit`), and works meanwhile: that may be as far ahead as a permit is held."""
    permits = read_permits(leases)
    held = tuple(permit for permit in permits if permit.is_held(now))
    breakers, unreadable = list[Breaker](), list[str]()
    for lease in leases:
        name = text_at(lease, "metadata", "name")
        if name.startswith(_BREAKER):
            try:
                breakers.append(read_breaker(name.removeprefix(_BREAKER), lease, now))
            except ValueError:
                unreadable.append(name)
    breakers.sort(key=lambda breaker: -breaker.begun)
    ahead = {each.name: _AHEAD for each in permits if each.is_ahead(now + rules.hold_seconds)}
    free = tuple(sorted(each.index for each in permits if not each.is_held(now)))
    void = dict(_find_surplus(held)) | ahead
    return RolloutLeases(find_pause(leases), held, tuple(breakers), tuple(unreadable), void, free)


def find_pause(leases: Iterable[Object]) -> str | None:
    """Return why planned work is stopped, None if it is not."""
    return next((read_pause(each) for each in leases if text_at(each, "metadata", "name") == FLEET), None)


def _find_surplus(permits: Iterable[Permit]) -> Iterator[tuple[str, str]]:
    """Yield the permits of a node that holds another one already."""
    holders = set[str]()
    for permit in sorted(permits, key=lambda permit: permit.index):
        if permit.holder in holders - {""}:
            yield permit.name, f"node {permit.node} holds another permit and needs only one"
        holders.add(permit.holder)


def to_retry(leases: RolloutLeases, rules: FleetRules, nodes: int) -> tuple[Released, ...]:
    """Return what to delete, so that canaries begin the stopped generations again, and every permit can be
    taken. `nodes`: how many the DaemonSet selects."""
    stopped_generations = [
        Released(_BREAKER + breaker.generation, breaker.generation, tuple(sorted(breaker.failures)))
        for breaker in leases.breakers
        if stopped(breaker, rules, nodes)
    ]
    limit = permits_of(rules.concurrent_restarts, nodes)
    unused = {permit_name(number): _UNUSED for number in leases.free if number >= limit}
    wrong = {**dict.fromkeys(leases.unreadable, _EDITED), **unused, **leases.void}
    return (*stopped_generations, *(Released(name, why=why) for name, why in wrong.items()))


def build_rollout(
    installed: Installed,
    leases: RolloutLeases,
    rules: FleetRules,
    nodes: Collection[NodeView],
) -> Rollout:
    """Build the rollout. The nodes' own status decides which generations are current: those whose pod is of
    the present template, and has reported. Until one has, no generation is. Where nodes have no status
    (`annotateNode: false`), it is the one that was started last. A removal has a circuit breaker only where a
    plugin is to follow it."""
    mode, installs = installed.mode, installed.mode is Mode.INSTALL
    size = measure(installed.daemon_set, "", 0.0)
    ours = [each for each in nodes if (each.instance, each.mode) == (installed.instance, mode)]
    wanted = {each.wanted for each in ours if each.wanted and not each.outdated} if installs else set()
    started = parse_time(text_at(installed.daemon_set, "metadata", "creationTimestamp"))
    begun = [each.generation for each in leases.breakers if not is_over(each, started)]
    told = any(each.wanted or (each.phase and each.health is NodeHealth.WORKING) for each in ours)
    unreported = installs and not wanted and (told or not installed.updated)
    last = [] if unreported else [name for name in begun if (name == REMOVAL) is not installs][:1]
    current = wanted or set(last)
    breakers = (*(Breaker(each) for each in wanted - set(begun)), *leases.breakers)
    generations = [
        _build_generation(each, stopped(each, rules, size.nodes), rules, ours, each.generation in current)
        for each in breakers
    ]
    limit = permits_of(rules.concurrent_restarts, size.nodes)
    working = [each for each in leases.permits if leases.void.get(each.name) != _AHEAD]
    outdated = max(0, size.nodes - installed.updated)
    return Rollout(
        daemon_set=f"{installed.namespace}/{installed.name}",
        nodes=size.nodes,
        waiting=size.waiting,
        paused=leases.paused,
        permits=tuple((each.node or each.name, plain_time(each.taken)) for each in working),
        limit=limit,
        void=leases.void,
        blocked=not working and len(leases.permits) >= limit,
        generations=tuple(sorted(generations, key=lambda each: not each.current)),
        unreadable=tuple(
            name
            for name in leases.unreadable
            if not (wanted or unreported) or name in map(breaker_name, wanted)
        ),
        outdated=outdated,
        unreported=unreported,
        mode=mode,
        awaited=group_nodes(each for each in ours if each.health is not NodeHealth.WELL),
        stuck=outdated > 0 and not leases.permits and _is_stuck(ours),
    )


def view_window(mode: Mode, rules: FleetRules, now: float) -> WindowView | None:
    """A removal waits for none."""
    if not rules.window or mode is Mode.REMOVE:
        return None
    found = judge_windows(rules.window, now)
    return WindowView(found.open, plain_time(found.until) if found.until else "", found.fault)


def _build_generation(
    breaker: Breaker, why_stopped: str, rules: FleetRules, nodes: Collection[NodeView], current: bool
) -> Generation:
    passed = breaker.passed
    ours = [each for each in nodes if each.wanted == breaker.generation]
    return Generation(
        breaker.generation,
        begun=plain_time(breaker.begun) if breaker.begun else "",
        canaries=tuple(sorted(breaker.canaries)),
        succeeded=tuple(sorted(breaker.succeeded)),
        failures={node: failure.why for node, failure in sorted(breaker.failures.items())},
        passed=plain_time(passed) if passed else "",
        soaks_until=plain_time(passed + rules.soak_seconds) if passed else "",
        stopped=why_stopped,
        missing=0 if passed else breaker.missing,
        current=current,
        has=sum(each.health is NodeHealth.WELL for each in ours),
        awaits=sum(each.phase == Phase.WAITING for each in ours),
    )


def _is_stuck(nodes: Collection[NodeView]) -> bool:
    """Whether no node works, because nodes have refused or failed: a rolling update replaces no further pod
    while so many are not available. It replaces outdated ones that are not available all the same."""
    ends = (Phase.REFUSED, Phase.FAILED)
    blocked = any(each.phase in ends and not (each.ready or each.outdated) for each in nodes)
    at_work = any(each.health is NodeHealth.WORKING and each.phase != Phase.WAITING for each in nodes)
    return blocked and not at_work


def see_progress(nodes: Collection[NodeView], rollouts: Sequence[Rollout], now: float) -> Progress | None:
    """How far a change of the whole fleet is, and when it may be done; None while there is nothing to do.
    By one look, without a memory. `now` is a time of the epoch, by the API server.

    The pace is that of the nodes that were changed last, and since the canaries were through: before that
    most nodes wait, however fast they are. Nodes that need a person are not counted as work.
    """
    working = [node for node in nodes if node.health is NodeHealth.WORKING]
    waiting = sum(node.phase == Phase.WAITING for node in working)
    outdated = sum(each.outdated for each in rollouts)
    left = len(working) + outdated
    if not left:
        return None
    begun = [each for rollout in rollouts for each in rollout.generations]
    passed = max((parse_time(each.passed) for each in begun if each.passed), default=0.0)
    since = max(now - _WINDOW, passed)
    done = sorted(
        at for at in (parse_time(node.changed) for node in nodes if node.changed) if since < at <= now
    )
    waits = any(each.is_stopped or (each.window and not each.window.open) for each in rollouts)
    if len(done) < _FEWEST or now <= done[0] or waits:
        return Progress(waiting, len(working) - waiting, outdated)
    pace = len(done) / (now - done[0])
    return Progress(waiting, len(working) - waiting, outdated, round(pace * 3600), round(left / pace))
