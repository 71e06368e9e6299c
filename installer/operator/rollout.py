"""The verb `rollout`: shows what nodes have agreed on about their restarts of kubelet, and lets a person
pause, resume and retry."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from installer.cluster.leases import build_lease
from installer.cluster.size import all_poll_within, measure
from installer.errors import InvalidInputError
from installer.inputs.deadlines import build_fleet_rules
from installer.inputs.settings import Settings
from installer.model.event import name_some
from installer.model.fleet import FLEET, ROLLOUT, FleetRules
from installer.model.hold import PAUSE_ANNOTATION
from installer.model.names import Mode
from installer.model.overview import NodeView, Rollout
from installer.operator.api import CONFIG_MAPS, LEASES, ApiError, KubeApi
from installer.operator.inventory import Installed
from installer.operator.kube_objects import Object, cut_line
from installer.operator.removal_daemonset import parse_settings_map, settings_map_of
from installer.operator.rollout_view import (
    Released,
    build_rollout,
    find_pause,
    read_leases,
    to_retry,
    view_window,
)


def rollout_namespace(installed: Installed) -> str:
    """The namespace of its permits and breakers, see Values.rollout_namespace."""
    return f"{installed.instance}-rollout"


def see_rollouts(
    api: KubeApi, installations: Sequence[Installed], nodes: Collection[NodeView]
) -> tuple[Rollout, ...]:
    """Return the rollout of each instance: that of its removal, where there is one, for that is what its
    nodes do then. `nodes` are those of all instances. One that cannot be read says why."""
    rollouts = []
    for installed in _one_for_each_instance(installations):
        try:
            rules = _read_rules(api, installed)
            leases = read_leases(_list_leases(api, installed), api.now(), rules)
            rollout = build_rollout(installed, leases, rules, nodes)
            rollouts.append(replace(rollout, window=view_window(installed.mode, rules, api.now())))
        except ApiError as error:
            name = f"{installed.namespace}/{installed.name}"
            rollouts.append(Rollout(name, 0, 0, None, (), 0, mode=installed.mode, fault=cut_line(str(error))))
    return tuple(rollouts)


def pause(api: KubeApi, installations: Sequence[Installed], why: str) -> None:
    """Let no node begin planned work until `resume`. Raises ApiError, after all of them were tried."""

    def pause_one(installed: Installed) -> None:
        namespace, patch = rollout_namespace(installed), build_pause(why)
        lease = build_lease(FLEET, namespace, FLEET, annotations={PAUSE_ANNOTATION: why})
        if not (
            api.merge_present(LEASES, namespace, FLEET, patch) or api.create_absent(LEASES, namespace, lease)
        ):
            api.merge(LEASES, namespace, FLEET, patch)  # a node has created it meanwhile

    _for_each_instance(installations, pause_one)


def resume(api: KubeApi, installations: Sequence[Installed]) -> None:
    """End the pause. Raises ApiError, after all of them were tried."""

    def resume_one(installed: Installed) -> None:
        api.merge_present(LEASES, rollout_namespace(installed), FLEET, build_pause(None))

    _for_each_instance(installations, resume_one)


def _for_each_instance(installations: Sequence[Installed], act: Callable[[Installed], None]) -> None:
    """Act on each rollout: a failure of one keeps none of the others from it. Raises ApiError at the end."""
    failed = list[str]()
    for installed in _one_for_each_instance(installations):
        try:
            act(installed)
        except ApiError as error:
            failed.append(f"{rollout_namespace(installed)}: {error}")
    if failed:
        raise ApiError(0, f"{'; '.join(failed)}; the others are done")


def build_pause(why: str | None) -> dict[str, Any]:
    """Return a merge patch of the Lease `fleet`; None ends the pause. Nodes find the Lease by its label,
    which it may have lost."""
    return {"metadata": {"labels": {ROLLOUT: FLEET}, "annotations": {PAUSE_ANNOTATION: why}}}


def retry(api: KubeApi, installations: Sequence[Installed]) -> tuple[str, ...]:
    """Release the generations that were stopped. Returns, in sentences, what it did and what nodes do then;
    nothing where nothing was stopped. Raises ApiError."""
    said = list[str]()

    def retry_one(installed: Installed) -> None:
        rules = _read_rules(api, installed)
        leases = read_leases(_list_leases(api, installed), api.now(), rules)
        nodes = measure(installed.daemon_set, "", 0.0).nodes
        released = to_retry(leases, rules, nodes)
        for each in released:
            api.delete(LEASES, rollout_namespace(installed), each.lease)
        said.extend(_describe(each) for each in released if each.generation)
        for why in dict.fromkeys(each.why for each in released if not each.generation):
            said.append(f"deleted {name_some([each.lease for each in released if each.why == why])}: {why}")
        if released:
            seconds = max(60, math.ceil(all_poll_within(nodes)))
            said.append(f"nodes that wait ask again within {seconds} s")

    _for_each_instance(installations, retry_one)
    return tuple(said)


def _one_for_each_instance(installations: Sequence[Installed]) -> list[Installed]:
    """Installation and removal share a rollout; the removal takes precedence."""
    by_namespace = dict[str, Installed]()
    for each in sorted(installations, key=lambda each: each.mode is Mode.REMOVE):
        by_namespace[rollout_namespace(each)] = each
    return [each for _, each in sorted(by_namespace.items())]


def _describe(released: Released) -> str:
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
        return build_fleet_rules(Settings.model_validate(settings))
    except ValidationError:
        return FleetRules()
