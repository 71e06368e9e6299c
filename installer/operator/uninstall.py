"""The verb `uninstall`: cleans every node, then deletes the installer's objects from the API server.

    removal -> wait for the nodes -> mark -> DaemonSets, their pods, and the rest; rights last

It keeps no memory. If it is killed at any point, the next run decides from what it finds: what is clean is
clean, what is deleted is gone. It deletes nothing before every reachable node is clean, unless a person
says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from installer.cluster.leases import permits_of
from installer.errors import InvalidInputError, RollbackFailedError, RolledBackError
from installer.model.event import Emit, Event, name_some
from installer.model.names import UNINSTALLING, Mode
from installer.model.overview import NodeHealth, NodeView
from installer.operator.annotations import find_unready
from installer.operator.api import CONFIG_MAPS, DAEMON_SETS, KubeApi
from installer.operator.homes import AGENT, Home, find_homes
from installer.operator.inventory import (
    DEFINITIONS,
    Installed,
    Owned,
    delete_owned,
    describe_unproven,
    find_adjustments,
    find_agents_other_user,
    find_installations,
    find_instance,
    find_release,
    removal_name,
    take_inventory,
)
from installer.operator.judge import find_unclean, is_any_told, judge_nodes
from installer.operator.kube_objects import mapping_at
from installer.operator.node_objects import clear_node_objects, mark_left
from installer.operator.removal_daemonset import (
    build_removal,
    parse_settings_map,
    settings_map_of,
    wait_seconds_of,
)
from installer.operator.rollout import rules_of, why_paused
from installer.operator.wait import Clock, Waiting
from installer.report.rollout import describe_duration

_NAMED = 10  # objects or nodes in a message
_SECONDS_OF_NODE = 30  # for a removal: most nodes take half of that
_LEFT = "`uninstall` has left this node as it was"
_GARDENER = ("resources.gardener.cloud/origin", "resources.gardener.cloud/description")


@dataclass(frozen=True, slots=True)
class UninstallOptions:
    """`wait` in seconds; None: as the installation's settings say. `leave_nodes`: delete everything even if
    some nodes are not clean."""

    namespace: str = ""
    name: str = ""
    wait: float | None = None
    leave_nodes: bool = False


def not_released(api: KubeApi, options: UninstallOptions, release: str) -> str:
    """Return why the hook of a Helm chart must not uninstall, empty if it may. Helm's hooks are plain objects
    wherever another program applies what `helm template` prints, and a Job that it creates runs at once.
    Raises ApiError, and InvalidInputError where it is in doubt whether that is so."""
    why = find_release(api, options.name, options.namespace, release)
    return why and (
        f"{why}: this hook of Helm release {release} does nothing; `cri-resmgr-installer uninstall --name "
        f"{options.name}` removes the installation"
    )


@dataclass(frozen=True, slots=True)
class Target:
    """What an uninstallation has to remove."""

    instance: str
    namespace: str  # of the pods
    installed: Installed | None
    removal: Installed | None
    settings: Mapping[str, Any]  # of the nodes
    patience: float  # seconds that may pass without progress
    cleaning: float  # the same while nodes become clean: the first ones are watched meanwhile
    owned: tuple[Owned, ...]
    nodes: tuple[NodeView, ...]
    adjustments: int  # objects of our CRD that people have
    unready: tuple[str, ...] = ()  # workloads whose annotations the NRI plugin to follow would not read

    @property
    def dirty(self) -> tuple[NodeView, ...]:
        """The nodes that no DaemonSet selects and that were not cleaned."""
        return tuple(node for node in self.nodes if node.health is NodeHealth.DIRTY)


def find(api: KubeApi, options: UninstallOptions) -> Target:
    """Find everything; change nothing. Raises ApiError, and InvalidInputError where the installation is not
    ours to remove."""
    instance = find_instance(api, options.namespace, options.name)
    sets = _find_sets(api, instance, options.namespace) if instance else ()
    by_mode = {each.mode: each for each in sets}
    for each in sets:
        if any(key in _GARDENER for key in mapping_at(each.daemon_set, "metadata", "annotations")):
            raise InvalidInputError(
                [f"DaemonSet {each.name} belongs to a ManagedResource, which would recreate it"],
                "remove it through Gardener: docs/gardener-by-hand.md, Remove",
            )
        if (why := why_paused(api, each)) is not None:
            raise InvalidInputError(
                [f"the rollout is paused: no node will start: {why or 'no reason given'}"],
                "`cri-resmgr-installer rollout resume` ends the pause",
            )
    namespace = sets[0].namespace if sets else options.namespace
    namespace = namespace or find_homes(api).get(instance, Home()).namespace
    owned = take_inventory(api, instance, namespace) if instance else ()
    if any(each.name == AGENT for each in owned) and (other := find_agents_other_user(api, instance)):
        raise InvalidInputError(
            [f"{AGENT} has the label of {instance}, and installation {other} uses it too"],
            f"apply the manifests of {other} again, which gives it their label; then run the same command",
        )
    settings = _read_settings(api, by_mode.get(Mode.INSTALL), by_mode.get(Mode.REMOVE))
    followed = mapping_at(settings, "removal").get("successor") == "nri"
    patience = wait_seconds_of(settings) if options.wait is None else options.wait
    soak = rules_of(settings).soak_seconds if followed and options.wait is None else 0.0
    return Target(
        instance,
        namespace,
        by_mode.get(Mode.INSTALL),
        by_mode.get(Mode.REMOVE),
        settings,
        patience,
        patience + soak,
        owned,
        judge_nodes(api, sets, instance).nodes if instance else find_unclean(api),
        len(_for_a_warning(lambda: find_adjustments(api)))
        if any(each.resource == DEFINITIONS for each in owned)
        else 0,
        _for_a_warning(lambda: find_unready(api)) if followed else (),
    )


def _for_a_warning(find: Callable[[], tuple[str, ...]]) -> tuple[str, ...]:
    """Return nothing where it fails: no object of others that only a warning is about may end a command."""
    try:
        return find()
    except Exception:
        return ()


def _find_sets(api: KubeApi, instance: str, namespace: str) -> tuple[Installed, ...]:
    """Return the DaemonSets of the instance. Raises ApiError, and InvalidInputError where it lives in another
    namespace than the given one, or nothing proves that a DaemonSet of this name is one of ours."""
    home = find_homes(api).get(instance, Home()).namespace
    if home and namespace not in ("", home):
        # Two of them would share their ClusterRole, and each would lose it with the other.
        raise InvalidInputError(
            [f"{instance} is in namespace {home}, as its ClusterRoleBinding says, not in {namespace}"],
            f"give --namespace {home}, or none",
        )
    found = find_installations(api, namespace, instance)
    unproven = "" if home or namespace or found else describe_unproven(api, instance)
    if unproven:
        raise InvalidInputError([unproven], "if one is yours, give its --namespace")
    return found


def _read_settings(api: KubeApi, installed: Installed | None, removal: Installed | None) -> Mapping[str, Any]:
    """Read the settings of the nodes. Raises InvalidInputError where they are gone and the removal needs
    them."""
    source = installed or removal
    if source is None:
        return {}
    name = settings_map_of(source.daemon_set)
    if config_map := api.find(CONFIG_MAPS, source.namespace, name) if name else {}:
        return parse_settings_map(config_map)
    if removal is not None:
        return {}
    found = f"ConfigMap {source.namespace}/{name} is gone"
    found = found if name else f"DaemonSet {source.namespace}/{source.name} has no ConfigMap `settings`"
    raise InvalidInputError(
        [f"{found}: the removal needs the settings in it"],
        "apply the manifests again, then run the same command",
    )


def describe(target: Target, options: UninstallOptions) -> Iterator[Event]:
    """Say what `uninstall` would do, line by line."""
    if not target.owned:
        named = f" with the name {options.name}" if options.name else ""
        where = "the API server, except on nodes" if target.dirty else "this cluster"
        yield Event("uninstall.plan", f"no object of cri-resmgr-installer{named} is in {where}")
        return
    where = (
        f"{target.instance} in namespace {target.namespace or 'of its objects'}, {_count(len(target.nodes))}"
    )
    yield Event("uninstall.plan", where, {"instance": target.instance, "namespace": target.namespace})
    if target.installed is not None or target.removal is not None:
        does = "removes cri-resmgr from every node; each kubelet restarts once"
        rest = f"waits for all of them, until {target.cleaning:g} s pass without progress; {_takes(target)}"
        yield Event("uninstall.plan", f"1. a removal {does}; {rest}")
    chosen = f"app.kubernetes.io/instance={target.instance}"
    yield Event("uninstall.plan", f"2. deletes the installer's objects with the label {chosen}:")
    for kind, names in _by_kind(target.owned).items():
        yield Event("uninstall.plan", f"     {kind}: {_some(names)}", {"kind": kind, "objects": names})
    yield Event(
        "uninstall.plan", "3. removes the installer's annotations, label, condition and taint from every Node"
    )
    if target.adjustments:
        yield Event(
            "warning", f"{target.adjustments} Adjustments created by users are deleted with their definition"
        )
    if target.unready:
        lacking = f"these workloads lack annotations for the NRI plugin: {name_some(target.unready, _NAMED)}"
        yield Event("warning", f"{lacking}; `cri-resmgr-installer translate --annotations` prints them")
    if target.dirty:
        dirty = name_some([node.name for node in target.dirty], _NAMED)
        yield Event("warning", f"no DaemonSet selects these nodes, and they are not clean: {dirty}")


def _takes(target: Target) -> str:
    """Say how long the removal will take, without windows and pods that are slow to become Ready again."""
    rules, nodes = rules_of(target.settings), len(target.nodes)
    at_once = permits_of(rules.concurrent_restarts, nodes)
    seconds = math.ceil(nodes / max(1, at_once)) * _SECONDS_OF_NODE
    duration = describe_duration(seconds)
    about = "" if duration.startswith("less") else "about "
    return f"{about}{duration}, with {_count(at_once)} at a time"


def _count(nodes: int) -> str:
    return f"{nodes} node{'s' * (nodes != 1)}"


def uninstall(
    api: KubeApi, target: Target, options: UninstallOptions, emit: Emit, clock: Clock | None = None
) -> None:
    """Clean every node, then delete everything. Raises RolledBackError (exit 5) where nodes are not clean
    and their rights stay, RollbackFailedError (exit 6) where everything was deleted and nodes were left as
    they are, and ApiError."""
    cleaning = Waiting(api, target.namespace, target.instance, target.cleaning, emit, clock)
    waiting = Waiting(api, target.namespace, target.instance, target.patience, emit, clock)
    left = _clean_hosts(api, target, cleaning, emit)
    _require_clean(left, options, _removal_of(target))
    if not (left or options.leave_nodes):
        _require_word(api, target)

    named = set[str]()

    def look_again() -> tuple[Owned, ...]:
        return take_inventory(api, target.instance, target.namespace)

    def delete(owned: Sequence[Owned]) -> None:
        waiting.retry(lambda: delete_owned(api, owned))
        # What was named before is only still on its way out.
        for kind, names in _by_kind([item for item in owned if item.path not in named]).items():
            message = f"deleted {kind}: {_some(names)}"
            emit(Event("uninstall.deleted", message, {"kind": kind, "objects": names}))
        named.update(item.path for item in owned)

    owned = waiting.retry(look_again)
    waiting.retry(lambda: _mark(api, owned))
    if target.installed is not None:
        name = target.installed.name
        delete([item for item in owned if item.resource == DAEMON_SETS and item.name == name])
        unreachable = {node.name for node in left if not node.reachable}
        _require_gone(waiting.until_gone(unreachable, removals=False))
        # Of two pods that started at once, after a boot, the installation's may have been the last.
        left = waiting.until_clean(_removal_of(target), {node.name for node in left})
        _require_clean(left, options, _removal_of(target))
    # Without DaemonSets, a run that continues this one finds only what the Nodes say.
    marks = {node.name: f"{_LEFT}: {node.reason or node.phase}" for node in left}
    mark_left(api, target.instance, marks, waiting.retry)
    delete([item for item in owned if item.resource == DAEMON_SETS])
    if target.namespace:
        _require_gone(waiting.until_gone({node.name for node in left}, removals=True))
    mark_left(api, target.instance, marks, waiting.retry)  # its daemon may have had a last word
    count = clear_node_objects(api, target.instance, {node.name for node in left}, waiting.retry)
    emit(Event("uninstall.nodes", f"cleaned {count} Nodes in the API server", {"nodes": count}))
    delete(waiting.retry(look_again))
    kept = waiting.until_none(
        "objects to be gone", lambda: (f"{item.path} ({item.held or 'new'})" for item in look_again())
    )
    _require_all_gone(left, kept)


def _require_all_gone(left: Sequence[NodeView], kept: Sequence[str]) -> None:
    """Raise RollbackFailedError for nodes that are not clean, RolledBackError for objects that remain."""
    but = f", except {name_some(kept)}" if kept else ""
    what = f"everything is deleted from the API server{but}"
    if left:
        raise left_behind(left, what)
    if kept:
        raise RolledBackError(
            f"every node is clean, and {what}; these remain:\n" + "\n".join(kept[:_NAMED]),
            "remove what holds them, then run the same command again: it continues",
        )


def left_behind(left: Sequence[NodeView], what: str) -> RollbackFailedError:
    """Build the error for nodes whose kubelet may keep running on the proxy, without an installer."""
    names = ",".join(node.name for node in left)
    return RollbackFailedError(
        f"{what}; nodes left uncleaned:\n{_lines(left)}",
        f"`cri-resmgr-installer manifests --mode remove --nodes {names} | kubectl apply -f -`, with your "
        "--values, cleans them when they are back; then run the same command again. Until then their kubelet "
        "keeps running on the proxy, and `report` names them",
    )


def _clean_hosts(api: KubeApi, target: Target, waiting: Waiting, emit: Emit) -> tuple[NodeView, ...]:
    """Run the removal; return the nodes that are not clean in the end."""
    if target.installed is not None and target.removal is None:
        config_map, daemon_set = build_removal(target.installed, target.settings)
        # Where one exists already, an earlier run has created it.
        api.create_absent(CONFIG_MAPS, target.namespace, config_map)
        api.create_absent(DAEMON_SETS, target.namespace, daemon_set)
        emit(Event("uninstall.removal", f"DaemonSet {target.namespace}/{_removal_of(target)} is running"))
    if removal := _removal_of(target):
        return waiting.until_clean(removal)
    return find_unclean(api)


def _removal_of(target: Target) -> str:
    if target.removal is not None:
        return target.removal.name
    return removal_name(target.installed.name) if target.installed is not None else ""


def _require_clean(left: Sequence[NodeView], options: UninstallOptions, removal: str) -> None:
    """Raise RolledBackError where a reachable node is not clean."""
    answering = [node for node in left if node.reachable]
    if answering and not options.leave_nodes:
        kept = (
            f"; if you correct image or settings, delete DaemonSet {removal} just before" if removal else ""
        )
        raise RolledBackError(
            f"nodes that are not clean: {len(answering)}; nothing was deleted, because cleaning needs it:\n"
            f"{_lines(answering)}",
            f"fix what the reasons name, then run the same command again: it continues{kept}. With "
            "--leave-nodes it deletes everything, and leaves such nodes as they are",
        )


def _require_word(api: KubeApi, target: Target) -> None:
    """Raise RolledBackError where a person has deleted the DaemonSets, and nothing is known about the nodes.
    An interrupted uninstall has marked the remaining objects."""
    started = all(each.marked for each in target.owned if each.guarded)
    if not (_removal_of(target) or started or is_any_told(api)):
        raise RolledBackError(
            "no DaemonSet is left to clean the nodes, and no node has reported itself clean; "
            "nothing was deleted",
            "apply the manifests again, then run the same command. With --leave-nodes it deletes everything",
        )


def _require_gone(pods: Sequence[str]) -> None:
    if pods:
        raise RolledBackError(
            f"{len(pods)} pods do not end: {name_some(pods, _NAMED)}",
            "`kubectl describe pod` says why; then run the same command again: it continues",
        )


def _mark(api: KubeApi, owned: Sequence[Owned]) -> None:
    """Set the annotation for which the deletion policy lets an object be deleted."""
    for each in owned:
        if each.guarded and not each.marked:
            patch = {"metadata": {"annotations": {UNINSTALLING: "true"}}}
            api.merge_present(each.resource, each.namespace, each.name, patch)


def _by_kind(owned: Sequence[Owned]) -> Mapping[str, list[str]]:
    paths: dict[str, list[str]] = {}
    for each in owned:
        paths.setdefault(each.resource.plural, []).append(each.path)
    return paths


def _some(paths: Sequence[str]) -> str:
    """Name the objects without their kind."""
    return name_some([path.partition(" ")[2] for path in paths], _NAMED)


def _lines(nodes: Sequence[NodeView]) -> str:
    lines = [f"{node.name}: {node.reason or node.phase}" for node in nodes[:_NAMED]]
    return "\n".join([*lines, *([f"and {len(nodes) - _NAMED} more"] if len(nodes) > _NAMED else [])])
