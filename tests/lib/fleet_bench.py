"""An API server of plain objects with optimistic concurrency, and what one node asks of it."""

from __future__ import annotations

import random
import urllib.parse
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from installer.cluster.kubeapi import NO_OBJECTS, Answer
from installer.cluster.leases import CANARY, RING, build_lease, leases_path
from installer.cluster.node_status import EVENTS_PATH
from installer.cluster.permit_client import PermitClient
from installer.cluster.pod_context import PodContext
from installer.cluster.sync import NodeFacts, SyncRequest, WorkEnd
from installer.model.fleet import FLEET, FleetRules, PermitAnswer, PlannedWork, WorkResult
from installer.model.hold import PAUSE_ANNOTATION
from tests.lib.throwaway.apiserver import as_table, merge, merge_conditions
from tests.lib.throwaway.selectors import matches

NAMESPACE = "cri-resmgr-installer-rollout"
DAEMONSET = "/apis/apps/v1/namespaces/kube-system/daemonsets/cri-resmgr-installer"
LEASES = leases_path(NAMESPACE)
PODS = "/api/v1/pods"
THE_FLEET = f"{LEASES}/{FLEET}"
RULES = FleetRules(hold_seconds=600.0)
NEW = PlannedWork("one", restarts_kubelet=True, begins=True, soaks=True)
REPAIR = PlannedWork("one", restarts_kubelet=True)


@lru_cache(256)
def _selector(query: str) -> str:
    return dict(urllib.parse.parse_qsl(query)).get("labelSelector", "")


class Objects(dict[str, dict[str, Any]]):
    """Objects by path. `below` has the paths of a collection."""

    def __init__(self) -> None:
        super().__init__()
        self.below: dict[str, dict[str, None]] = {}

    def __setitem__(self, path: str, found: dict[str, Any]) -> None:
        super().__setitem__(path, found)
        self.below.setdefault(path.rpartition("/")[0], {})[path] = None

    def __delitem__(self, path: str) -> None:
        super().__delitem__(path)
        del self.below[path.rpartition("/")[0]][path]


class Store:
    """An Api of objects by path. `away`: it does not answer, or not for paths with `away_for`. `now` is its
    clock; `events` counts reasons."""

    def __init__(self) -> None:
        self.objects = Objects()
        self.requests: list[tuple[str, str]] = []
        self.events = Counter[str]()
        self.now = 1_000_000.0
        self.away: Answer | None = None
        self.away_for = ""
        self.before_write: Callable[[], None] = lambda: None
        self._version = 0
        metadata = {"name": "cri-resmgr-installer", "uid": "ours", "annotations": {}}
        self.put(DAEMONSET, {"kind": "DaemonSet", "metadata": metadata, "status": {}})

    def put(self, path: str, found: Mapping[str, Any]) -> dict[str, Any]:
        kept = dict(found)
        kept["metadata"] = {**kept["metadata"], "resourceVersion": self.next_version(path)}
        self.objects[path] = kept
        return kept

    def next_version(self, _path: str) -> str:
        """Return one that no object has had."""
        self._version += 1
        return str(self._version)

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Answer:
        path, _, query = path.partition("?")
        self.requests.append((method, path))
        if self.away is not None and self.away_for in path:
            return self.away
        if method != "GET":
            hook, self.before_write = self.before_write, lambda: None
            hook()
        code, found = self._answer(method, path, query, body or {})
        return Answer(code, found, "" if code < 300 else f"{code}", self.now)

    def _answer(
        self, method: str, path: str, query: str, body: Mapping[str, Any]
    ) -> tuple[int, dict[str, Any]]:
        if method == "GET" and path in self.objects:
            return 200, self.objects[path]
        if method == "GET" and path in (LEASES, "/api/v1/nodes"):
            selector = _selector(query)
            below = [self.objects[at] for at in self.objects.below.get(path, ())]
            items = [each for each in below if matches(selector, each["metadata"].get("labels"))]
            found = {"kind": "List", "items": items}
            return 200, as_table(found, query) if NO_OBJECTS in query else found
        if method == "GET" and path == PODS:
            named = dict(urllib.parse.parse_qsl(query))["fieldSelector"].removeprefix("spec.nodeName=")
            below = [self.objects[at] for at in self.objects.below.get(path, ())]
            items = [each for each in below if each["spec"]["nodeName"] == named]
            return 200, as_table({"kind": "List", "items": items}, query)
        if path == EVENTS_PATH:
            self.events[body["reason"]] += 1
            return 201, {"kind": "Event"}
        if method == "POST":
            path = f"{path}/{body['metadata']['name']}"
            return (409, {}) if path in self.objects else (201, self.put(path, body))
        path, part = (path.removesuffix("/status"), "status") if path.endswith("/status") else (path, "")
        if path not in self.objects:
            return 404, {}
        old = self.objects[path]
        version = body.get("metadata", {}).get("resourceVersion")
        if version != old["metadata"]["resourceVersion"] and (version or method == "PUT"):
            return 409, {}
        if part:
            there = old.get("status", {}).get("conditions", [])
            conditions = merge_conditions(there, body.get("status", {}).get("conditions", []))
            body = {"metadata": body.get("metadata", {}), "status": {"conditions": conditions}}
        return 200, self.put(path, merge(old, body) if method == "PATCH" else body)

    # -- what tests set and see ---------------------------------------------------------------

    def size(self, nodes: int, waiting: int = 0) -> None:
        daemonset = self.objects[DAEMONSET]
        daemonset["status"] = {"desiredNumberScheduled": nodes, "numberUnavailable": waiting}

    def pause(self, why: str | None) -> None:
        """A person's word; None takes it back."""
        body = self.objects.get(THE_FLEET) or build_lease(FLEET, NAMESPACE, FLEET)
        self.put(THE_FLEET, merge(body, {"metadata": {"annotations": {PAUSE_ANNOTATION: why}}}))

    def node(self, name: str, *, canary: bool = False, uid: str = "") -> None:
        labels = {RING: CANARY} if canary else {}
        metadata = {"name": name, "uid": uid or f"uid-{name}", "labels": labels}
        self.put(f"/api/v1/nodes/{name}", {"kind": "Node", "metadata": metadata})

    def pod(self, node: str, name: str, *, ready: bool, phase: str = "Running", **metadata: str) -> None:
        head = {"name": name, "namespace": "theirs", "uid": f"{name}-uid", **metadata}
        status = {"phase": phase, "containerStatuses": [{"ready": ready, "state": {"running": {}}}]}
        self.put(f"{PODS}/{name}", {"metadata": head, "spec": {"nodeName": node}, "status": status})

    def holders(self) -> list[str]:
        """By the Leases alone, expired ones too."""
        leases = [found for path, found in self.objects.items() if path.startswith(f"{LEASES}/permit-")]
        return [lease["spec"]["holderIdentity"] for lease in leases if lease["spec"].get("holderIdentity")]


class Node:
    """One node's questions. `held` is its permit."""

    def __init__(
        self, store: Store, name: str, rules: FleetRules = RULES, canary: bool = False, seed: int = 0
    ) -> None:
        self.store, self.name, self.rules, self.canary = store, name, rules, canary
        self.random = random.Random(f"{name} {seed}")
        self.held = PermitAnswer()
        self.uid = f"uid-{name}"
        self.skew = 0.0
        self.joined = 0.0
        store.node(name, canary=canary)

    def _ask(self) -> PermitClient:
        name = "cri-resmgr-installer"
        context = PodContext("", 0, "", self.name, "", "kube-system", name, rollout_namespace=NAMESPACE)
        node = NodeFacts(self.uid, canary=self.canary, joined=self.joined)
        order = SyncRequest(context, node=node, rules=self.rules)
        return PermitClient(order, self.store, lambda: self.store.now + self.skew, self.random.random)

    def begin(self, work: PlannedWork = NEW) -> PermitAnswer:
        answer = self._ask().begin(work)
        self.held = answer if answer.granted else self.held
        return answer

    def end(self, ok: bool | None = True, work: PlannedWork = NEW, why: str = "it is broken") -> PermitAnswer:
        """As `run` does: reports only what the fleet waits for."""
        tells = work.begins and (ok is not True or self.held.canary)
        result = WorkResult(work, ok, "" if ok else why) if tells else None
        answer = self._ask().end(WorkEnd(result, self.held.permit, self.held.version))
        if answer.told and answer.released:
            self.held = PermitAnswer()
        return answer


def anywhere(rules: FleetRules = RULES, **changes: Any) -> FleetRules:
    """Rules without canaries."""
    return replace(rules, order="any", **changes)


def trio(store: Store, rules: FleetRules = RULES) -> tuple[Node, Node, Node]:
    return Node(store, "a", rules), Node(store, "b", rules), Node(store, "c", rules)


def requests_of(store: Store, node: Node, work: PlannedWork = NEW) -> list[str]:
    """That one question makes."""
    store.requests.clear()
    node.begin(work)
    return [f"{method} {path.rpartition('/')[2]}" for method, path in store.requests]
