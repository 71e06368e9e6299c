"""What people, things and a thief do to the API server of the fleet that is enumerated."""

from __future__ import annotations

from collections.abc import Iterator

from installer.cluster.breaker import Breaker, build_breaker, with_failure
from installer.cluster.leases import Permit, build_lease, build_permit, permit_name
from installer.model.fleet import FLEET, LONGEST_HOLD, SIZE
from tests.certify.fleet.moves import HOLD, THIEF, Fleet, Move
from tests.certify.fleet.store import CertStore, permit_path
from tests.lib.fleet_bench import DAEMONSET, LEASES, NAMESPACE, THE_FLEET

_THIEFS = f"/api/v1/nodes/{THIEF.node}"
_NEXT = {"one": "two", "two": "three"}


def store_moves(store: CertStore, fleet: Fleet) -> Iterator[Move]:
    if store.generation in _NEXT:
        yield Move("apply", -1, _NEXT[store.generation], 1)
    if "fleet" in store.since:
        yield Move("resume")
    else:
        yield Move("pause", -1, "", 1)
    for number in range(fleet.nodes):
        name = f"node-{number}"
        if f"/api/v1/nodes/{name}" not in store.objects:
            continue
        if name in store.since:
            yield Move("resume-node", number)
        else:
            yield Move("pause-node", number, "", 1)
    if store.to_retry(fleet.rules, fleet.nodes):
        yield Move("retry", -1, "", 1)
    if fleet.begins == "remove" and DAEMONSET in store.objects:
        yield Move("uninstall", -1, "", 1)
    if fleet.rules.successor:
        is_there = store.resource in store.objects
        yield Move("resource", -1, "deleted" if is_there else "applied", int(is_there))
    if is_at_large(store):
        yield from _thefts(store)


def is_at_large(store: CertStore) -> bool:
    """Whether the thief's node is still there."""
    return _THIEFS in store.objects


def _thefts(store: CertStore) -> Iterator[Move]:
    """All that the policies leave to a token: for the thief's own node, in its own name."""
    permits = {permit.name: permit for permit in store.permits()}
    for name in (permit_name(0), permit_name(1)):
        permit = permits.get(name, Permit(name))
        if permit.holder == THIEF.identity:
            yield Move("steal", -1, f"{name} back", 1)
            yield Move("steal", -1, f"{name} ahead", 1)
        else:
            yield Move("steal", -1, f"{name} next", 1)
            yield Move("steal", -1, f"{name} day", 1)
    yield Move("steal", -1, "size", 1)
    yield Move("steal", -1, "size lost", 1)
    yield Move("steal", -1, "failure", 1)
    yield Move("steal", -1, "garbage", 1)


def steal(store: CertStore, how: str, fleet: Fleet) -> None:
    """A write that admission.yaml.j2 lets through."""
    what, _, way = how.partition(" ")
    if how == "size lost":
        store.call("PATCH", THE_FLEET, {"metadata": {"annotations": {SIZE: None}}})
        return
    if how == "size":
        size = {SIZE: f'{{"daemonset":"{DAEMONSET}","nodes":1000,"waiting":1,"at":{store.now}}}'}
        if store.call("PATCH", THE_FLEET, {"metadata": {"annotations": size}}).code == 404:
            store.call("POST", LEASES, build_lease(FLEET, NAMESPACE, FLEET, annotations=size))
        return
    if what in ("failure", "garbage"):
        path = f"{LEASES}/breaker-{store.generation}"
        breaker = with_failure(Breaker(store.generation, store.now), THIEF.node, "it says so", store.now)
        body = build_breaker(breaker, NAMESPACE, fleet.rules, fleet.nodes)
        if what == "garbage":
            body["metadata"]["annotations"] = dict.fromkeys(body["metadata"]["annotations"], "{")
        store.objects.pop(path, None)
        store.put(path, body)
        return
    permit = {each.name: each for each in store.permits()}.get(what, Permit(what))
    now, path = store.now, permit_path(int(what.removeprefix("permit-")))
    if way == "back":
        spec = {**store.objects[path]["spec"], "holderIdentity": None, "leaseDurationSeconds": 1}
        store.put(path, {**store.objects[path], "spec": spec})
    elif way == "ahead":  # dated into the future, as no node does it
        store.put(path, build_permit(permit, NAMESPACE, THIEF.identity, now + LONGEST_HOLD, LONGEST_HOLD))
    else:
        seconds = LONGEST_HOLD if way == "day" else HOLD
        store.put(path, build_permit(permit, NAMESPACE, THIEF.identity, now, seconds))


def happen(move: Move, store: CertStore, fleet: Fleet) -> None:
    """To the API server alone."""
    if move.kind == "apply":
        store.generation = move.how
    elif move.kind == "pause":
        store.pause("")
    elif move.kind == "resume":
        store.pause(None)
    elif move.kind in ("pause-node", "resume-node"):
        store.is_node_paused(f"node-{move.node}", paused=move.kind == "pause-node")
    elif move.kind == "retry":
        for path in store.to_retry(fleet.rules, fleet.nodes):
            if path in store.objects:
                del store.objects[path]
    elif move.kind == "uninstall":
        del store.objects[DAEMONSET]
    elif move.kind == "resource" and move.how == "deleted":
        del store.objects[store.resource]
    elif move.kind == "resource":
        store.successor(fleet.rules.successor)
    elif move.kind == "arrest":
        del store.objects[_THIEFS]
    else:
        steal(store, move.how, fleet)
