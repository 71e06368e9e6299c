"""The verb `rollout`: what nodes have agreed on about their restarts of kubelet, and a person's word in
it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from installer.admin.find import PAGE, Installed, Lists
from installer.admin.removal import parse_settings_map, settings_map_of
from installer.fleet.overview import (
    Rollout,
    build_pause,
    build_paused_fleet,
    build_resume,
    build_rollout,
    find_freeze,
    to_retry,
)
from installer.kube.api import CONFIG_MAPS, LEASES, ApiError, Resource
from installer.kube.objects import Object, mapping_at, text_at
from installer.model.fleet import FLEET, FleetRules
from installer.model.instant import plain_time
from installer.model.overview import GenerationView, RolloutView


class RolloutApi(Lists, Protocol):
    """See KubeClient."""

    def now(self) -> Any: ...
    def create(self, resource: Resource, namespace: str, body: Mapping[str, Any]) -> Object: ...
    def get(self, resource: Resource, namespace: str, name: str) -> Object: ...
    def delete(self, resource: Resource, namespace: str, name: str) -> None: ...
    def merge(self, resource: Resource, namespace: str, name: str, patch: Mapping[str, Any]) -> Object: ...


def rollout_namespace(installed: Installed) -> str:
    """The namespace of its permits and brakes, see manifests/admission.py."""
    return f"{installed.what.instance}-rollout"


def see_rollouts(api: RolloutApi, installations: Sequence[Installed]) -> tuple[RolloutView, ...]:
    """Of each DaemonSet. Raises ApiError."""
    return tuple(_view(each, _read(api, each)) for each in installations)


def pause(api: RolloutApi, installations: Sequence[Installed], why: str) -> None:
    """No planned work begins on any node. Raises ApiError."""
    for namespace in _namespaces(installations):
        if not _pause(api, namespace, why):
            try:
                api.create(LEASES, namespace, build_paused_fleet(namespace, why))
            except ApiError as error:  # a node has created it meanwhile
                if not (error.conflict and _pause(api, namespace, why)):
                    raise


def _pause(api: RolloutApi, namespace: str, why: str) -> bool:
    """Whether the Lease is there. Raises ApiError."""
    try:
        api.merge(LEASES, namespace, FLEET, build_pause(why))
    except ApiError as error:
        if not error.missing:
            raise
        return False
    return True


def resume(api: RolloutApi, installations: Sequence[Installed]) -> None:
    """Raises ApiError."""
    for namespace in _namespaces(installations):
        try:
            api.merge(LEASES, namespace, FLEET, build_resume())
        except ApiError as error:
            if not error.missing:  # then it is not paused
                raise


def _namespaces(installations: Sequence[Installed]) -> tuple[str, ...]:
    return tuple(sorted({rollout_namespace(each) for each in installations}))


def retry(api: RolloutApi, installations: Sequence[Installed]) -> tuple[str, ...]:
    """Lets the generations begin again that were stopped; the brakes that were released. Raises ApiError."""
    found = {(rollout_namespace(each), name) for each in installations for name in to_retry(_read(api, each))}
    for namespace, name in sorted(found):
        api.delete(LEASES, namespace, name)
    return tuple(name for _, name in sorted(found))


def why_paused(api: Lists, installed: Installed) -> str | None:
    """None if it is not. Raises ApiError."""
    return find_freeze(_list_leases(api, installed))


def _list_leases(api: Lists, installed: Installed) -> list[Object]:
    pages = api.list_pages(LEASES, "", rollout_namespace(installed), PAGE)
    return [each for page in pages for each in page.items]


def _read(api: RolloutApi, installed: Installed) -> Rollout:
    rules = _read_rules(api, installed)
    return build_rollout(installed.daemon_set, _list_leases(api, installed), rules, api.now().timestamp())


def _read_rules(api: RolloutApi, installed: Installed) -> FleetRules:
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


def _view(installed: Installed, rollout: Rollout) -> RolloutView:
    return RolloutView(
        daemon_set=f"{installed.what.namespace}/{text_at(installed.daemon_set, 'metadata', 'name')}",
        nodes=rollout.nodes,
        waiting=rollout.waiting,
        frozen=rollout.frozen,
        permits=tuple((permit.node, plain_time(permit.taken)) for permit in rollout.permits),
        limit=rollout.limit,
        generations=tuple(
            GenerationView(
                each.brake.generation,
                begun=plain_time(each.brake.begun) if each.brake.begun else "",
                canaries=tuple(sorted(each.brake.canaries)),
                succeeded=tuple(sorted(each.brake.succeeded)),
                failures={node: failure.why for node, failure in sorted(each.brake.failures.items())},
                passed=plain_time(each.brake.passed) if each.brake.passed else "",
                soaks_until=plain_time(each.soaks_until) if each.soaks_until else "",
                stopped=each.stopped,
                missing=0 if each.brake.passed else each.brake.missing,
            )
            for each in rollout.generations
        ),
        unreadable=rollout.unreadable,
        outdated=rollout.outdated,
    )
