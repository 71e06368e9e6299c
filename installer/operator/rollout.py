"""The verb `rollout`: shows what nodes have agreed on about their restarts of kubelet, and lets a person
pause, resume and retry."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from installer.cluster.leases import build_lease
from installer.cluster.size import all_poll_within, measure
from installer.errors import InvalidInputError
from installer.inputs.settings import RolloutSettings
from installer.model.event import name_some
from installer.model.fleet import FLEET, ROLLOUT, FleetRules
from installer.model.hold import PAUSE_ANNOTATION
from installer.model.names import Mode
from installer.model.overview import NodeView, Rollout
from installer.operator.api import CONFIG_MAPS, LEASES, KubeApi
from installer.operator.inventory import Installed
from installer.operator.kube_objects import Object, mapping_at
from installer.operator.removal_daemonset import parse_settings_map, settings_map_of
from installer.operator.rollout_view import (
    Released,
    build_rollout,
    find_pause,
    read_leases,
    to_retry,
)


def rollout_namespace(installed: Installed) -> str:
    """The namespace of its permits and breakers, see Values.rollout_namespace."""
    return f"{installed.instance}-rollout"


def see_rollouts(
    api: KubeApi, installations: Sequence[Installed], nodes: Collection[NodeView]
) -> tuple[Rollout, ...]:
    """Return the rollout of each instance: that of its removal, where there is one, for that is what its
    nodes do then. `nodes` are those of all instances. Raises ApiError."""
    rollouts = []
    for installed in _one_for_each_instance(installations):
        leases = read_leases(_list_leases(api, installed), api.now())
        rollouts.append(build_rollout(installed, leases, _read_rules(api, installed), nodes))
    return tuple(rollouts)


def pause(api: KubeApi, installations: Sequence[Installed], why: str) -> None:
    """Let no node begin planned work until `resume`. Raises ApiError."""
    for installed in _one_for_each_instance(installations):
        namespace, patch = rollout_namespace(installed), build_pause(why)
        lease = build_lease(FLEET, namespace, FLEET, annotations={PAUSE_ANNOTATION: why})
        if not (
            api.merge_present(LEASES, namespace, FLEET, patch) or api.create_absent(LEASES, namespace, lease)
        ):
            api.merge(LEASES, namespace, FLEET, patch)  # a node has created it meanwhile


def resume(api: KubeApi, installations: Sequence[Installed]) -> None:
    """End the pause. Raises ApiError."""
    for installed in _one_for_each_instance(installations):
        api.merge_present(LEASES, rollout_namespace(installed), FLEET, build_pause(None))


def build_pause(why: str | None) -> dict[str, Any]:
    """Return a merge patch of the Lease `fleet`; None ends the pause. Nodes find the Lease by its label,
    which it may have lost."""
    return {"metadata": {"labels": {ROLLOUT: FLEET}, "annotations": {PAUSE_ANNOTATION: why}}}


def retry(api: KubeApi, installations: Sequence[Installed]) -> tuple[str, ...]:
    """Release the generations that were stopped. Returns, in sentences, what it did and what nodes do then;
    nothing where nothing was stopped. Raises ApiError."""
    said = list[str]()
    for installed in _one_for_each_instance(installations):
        leases = read_leases(_list_leases(api, installed), api.now())
        nodes = measure(installed.daemon_set, "", 0.0).nodes
        released = to_retry(leases, _read_rules(api, installed), nodes)
        for each in released:
            api.delete(LEASES, rollout_namespace(installed), each.lease)
            said.append(_describe(each))
        if released:
            seconds = max(60, math.ceil(all_poll_within(nodes)))
            said.append(f"nodes that wait ask again within {seconds} s")
    return tuple(said)


def _one_for_each_instance(installations: Sequence[Installed]) -> list[Installed]:
    """Installation and removal share a rollout; the removal takes precedence."""
    by_namespace = dict[str, Installed]()
    for each in sorted(installations, key=lambda each: each.mode is Mode.REMOVE):
        by_namespace[rollout_namespace(each)] = each
    return [each for _, each in sorted(by_namespace.items())]


def _describe(released: Released) -> str:
    if not released.generation:
        return f"deleted Lease {released.lease}: {released.why}"
    said = f"released generation {released.generation[:12]}, which starts again with canaries"
    if not released.failed:
        return said
    remembered = name_some(released.failed)
    return f"{said}; {remembered} failed it and will retry only on `cri-resmgr-installer install --retry`"


def why_paused(api: KubeApi, installed: Installed) -> str | None:
    """Return None if the rollout is not paused. Raises ApiError."""
    return find_pause(_list_leases(api, installed))


def _list_leases(api: KubeApi, installed: Installed) -> list[Object]:
    return list(api.list_objects(LEASES, "", rollout_namespace(installed)))


def _read_rules(api: KubeApi, installed: Installed) -> FleetRules:
    """Read the rules from the settings that the nodes have; return the defaults where those are gone."""
    name = settings_map_of(installed.daemon_set)
    config_map = api.find(CONFIG_MAPS, installed.namespace, name) if name else {}
    try:
        return rules_of(parse_settings_map(config_map) if config_map else {})
    except InvalidInputError:
        return FleetRules()


def rules_of(settings: Mapping[str, Any]) -> FleetRules:
    """Return the rules in the settings of the nodes, which follow the defaults if these are invalid."""
    try:
        given = RolloutSettings.model_validate(mapping_at(settings, "rollout"))
    except ValidationError:
        return FleetRules()
    return FleetRules(
        concurrent_restarts=str(given.concurrent_restarts),
        max_failures=str(given.max_failures),
        order=given.order,
        soak_seconds=float(given.soak_seconds),
    )
