"""The verb `rollout`: what nodes have agreed on about their restarts of kubelet, and a person's word in
it."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from installer.cluster.breaker import Breaker
from installer.cluster.leases import breaker_name
from installer.cluster.size import heard_by
from installer.model.daemon import Phase
from installer.model.event import name_some
from installer.model.fleet import FLEET, REMOVAL, FleetRules
from installer.model.instant import plain_time
from installer.model.names import Mode
from installer.model.overview import GenerationView, NodeHealth, NodeView, RolloutView, group_nodes
from installer.operator.api import CONFIG_MAPS, LEASES, PAGE, ApiError, KubeApi
from installer.operator.find import Installed
from installer.operator.kube_objects import Object, mapping_at, text_at
from installer.operator.removal import parse_settings_map, settings_map_of
from installer.operator.rollout_view import (
    Generation,
    Released,
    Rollout,
    build_pause,
    build_paused_fleet,
    build_resume,
    build_rollout,
    find_pause,
    to_retry,
)


def rollout_namespace(installed: Installed) -> str:
    """The namespace of its permits and breakers, see Values.rollout_namespace."""
    return f"{installed.what.instance}-rollout"


def see_rollouts(
    api: KubeApi, installations: Sequence[Installed], nodes: Collection[NodeView]
) -> tuple[RolloutView, ...]:
    """Of each instance: of its removal, where there is one, for that is what its nodes do then. `nodes` are
    those of all of them. Raises ApiError."""
    acting = dict[str, Installed]()
    for each in sorted(installations, key=lambda each: each.what.mode is Mode.REMOVE):
        acting[rollout_namespace(each)] = each
    return tuple(build_view(each, _read(api, each), nodes) for _, each in sorted(acting.items()))


def pause(api: KubeApi, installations: Sequence[Installed], why: str) -> None:
    """No planned work begins on any node. Raises ApiError."""
    for namespace in _namespaces(installations):
        if not _pause(api, namespace, why):
            try:
                api.create(LEASES, namespace, build_paused_fleet(namespace, why))
            except ApiError as error:  # a node has created it meanwhile
                if not (error.conflict and _pause(api, namespace, why)):
                    raise


def _pause(api: KubeApi, namespace: str, why: str) -> bool:
    """Whether the Lease is there. Raises ApiError."""
    try:
        api.merge(LEASES, namespace, FLEET, build_pause(why))
    except ApiError as error:
        if not error.missing:
            raise
        return False
    return True


def resume(api: KubeApi, installations: Sequence[Installed]) -> None:
    """Raises ApiError."""
    for namespace in _namespaces(installations):
        try:
            api.merge(LEASES, namespace, FLEET, build_resume())
        except ApiError as error:
            if not error.missing:  # then it is not paused
                raise


def _namespaces(installations: Sequence[Installed]) -> tuple[str, ...]:
    return tuple(sorted({rollout_namespace(each) for each in installations}))


def retry(api: KubeApi, installations: Sequence[Installed]) -> tuple[str, ...]:
    """Lets the generations begin again that were stopped. Returns what it did and what nodes do then, in
    sentences; nothing where nothing was stopped. Raises ApiError."""
    said = list[str]()
    for namespace in _namespaces(installations):
        rollout = _read(api, next(each for each in installations if rollout_namespace(each) == namespace))
        released = to_retry(rollout)
        for each in released:
            api.delete(LEASES, namespace, each.lease)
            said.append(_describe(each))
        if released:
            seconds = max(60, math.ceil(heard_by(rollout.nodes)))
            said.append(f"nodes that wait ask again within {seconds} s")
    return tuple(said)


def _describe(released: Released) -> str:
    if not released.generation:
        return f"deleted Lease {released.lease}: {released.why}"
    said = f"released generation {released.generation[:12]}, which begins again with canaries"
    if not released.failed:
        return said
    remembered = name_some(released.failed)
    return (
        f"{said}; {remembered} had failed and tries it again by `cri-resmgr-installer install --retry` only"
    )


def why_paused(api: KubeApi, installed: Installed) -> str | None:
    """None if it is not. Raises ApiError."""
    return find_pause(_list_leases(api, installed))


def _list_leases(api: KubeApi, installed: Installed) -> list[Object]:
    pages = api.list_pages(LEASES, "", rollout_namespace(installed), PAGE)
    return [each for page in pages for each in page.items]


def _read(api: KubeApi, installed: Installed) -> Rollout:
    rules = _read_rules(api, installed)
    return build_rollout(installed.daemon_set, _list_leases(api, installed), rules, api.now().timestamp())


def _read_rules(api: KubeApi, installed: Installed) -> FleetRules:
    """Those of the settings that the nodes have; the defaults where they are gone."""
    name = settings_map_of(installed.daemon_set)
    try:
        found = parse_settings_map(api.get(CONFIG_MAPS, installed.what.namespace, name)) if name else {}
    except ApiError as error:
        if not error.missing:
            raise
        found = {}
    given, usual = mapping_at(found, "rollout"), FleetRules()
    return FleetRules(
        concurrent_restarts=str(given.get("concurrentRestarts", usual.concurrent_restarts)),
        max_failures=str(given.get("maxFailures", usual.max_failures)),
        order=str(given.get("order", usual.order)),
        soak_seconds=float(given.get("soakSeconds", usual.soak_seconds)),
    )


def build_view(installed: Installed, rollout: Rollout, nodes: Collection[NodeView]) -> RolloutView:
    """What the nodes say decides which generations are asked for: those whose pod is of the present template.
    Where they say nothing (`annotateNode: false`), it is the one that was begun last. A removal has
    a circuit breaker only where a plugin is to follow it. Pure."""
    mode = installed.what.mode
    ours = [each for each in nodes if each.mode is mode]
    installs = mode is Mode.INSTALL
    wanted = {each.wanted for each in ours if each.wanted and not each.outdated} if installs else set()
    begun = {each.breaker.generation: each for each in rollout.generations}
    last = [name for name in begun if (name == REMOVAL) is not installs][:1]
    current = wanted or set(last)
    unbegun = [
        _generation(Generation(Breaker(each), "", 0), ours, current=True) for each in wanted - set(begun)
    ]
    generations = [_generation(each, ours, current=name in current) for name, each in begun.items()]
    return RolloutView(
        daemon_set=f"{installed.what.namespace}/{text_at(installed.daemon_set, 'metadata', 'name')}",
        nodes=rollout.nodes,
        waiting=rollout.waiting,
        paused=rollout.paused,
        permits=tuple((permit.node or permit.name, plain_time(permit.taken)) for permit in rollout.permits),
        limit=rollout.limit,
        generations=(*unbegun, *sorted(generations, key=lambda each: not each.current)),
        unreadable=tuple(
            name for name in rollout.unreadable if not wanted or name in map(breaker_name, wanted)
        ),
        outdated=rollout.outdated,
        mode=mode,
        awaited=group_nodes(each for each in ours if each.health is not NodeHealth.WELL),
        stuck=_is_stuck(rollout, ours),
    )


def _generation(found: Generation, nodes: Collection[NodeView], *, current: bool) -> GenerationView:
    breaker = found.breaker
    ours = [each for each in nodes if each.wanted == breaker.generation]
    return GenerationView(
        breaker.generation,
        begun=plain_time(breaker.begun) if breaker.begun else "",
        canaries=tuple(sorted(breaker.canaries)),
        succeeded=tuple(sorted(breaker.succeeded)),
        failures={node: failure.why for node, failure in sorted(breaker.failures.items())},
        passed=plain_time(breaker.passed) if breaker.passed else "",
        soaks_until=plain_time(found.soaks_until) if found.soaks_until else "",
        stopped=found.stopped,
        missing=0 if breaker.passed else breaker.missing,
        current=current,
        has=sum(each.health is NodeHealth.WELL for each in ours),
        awaits=sum(each.phase == Phase.WAITING for each in ours),
    )


def _is_stuck(rollout: Rollout, nodes: Collection[NodeView]) -> bool:
    """Whether there is work left that no node does, because nodes have refused it or failed: a rolling update
    replaces no further pod while so many are not available."""
    blocked = any(each.phase in (Phase.REFUSED, Phase.FAILED) and not each.ready for each in nodes)
    at_work = any(each.health is NodeHealth.WORKING and each.phase != Phase.WAITING for each in nodes)
    return blocked and rollout.outdated > 0 and not rollout.permits and not at_work
