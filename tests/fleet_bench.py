"""A fleet in memory: objects with optimistic concurrency, and nodes on a clock that the test sets."""

from __future__ import annotations

import copy
import heapq
import random
import urllib.parse
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from installer.fleet.ask import Ask, FleetContext
from installer.fleet.objects import CANARY, RING, config_maps_path, leases_path
from installer.host.kubeapi import Answer
from installer.model.fleet import FleetAnswer, FleetRequest, FleetRules, PlannedWork, WorkResult

NAMESPACE = "cri-resmgr-installer-rollout"
DAEMONSET = "/apis/apps/v1/namespaces/kube-system/daemonsets/cri-resmgr-installer"
LEASES, CONFIG_MAPS = leases_path(NAMESPACE), config_maps_path(NAMESPACE)
RULES = FleetRules(hold_seconds=600.0)
NEW = PlannedWork("one", restarts_kubelet=True, begins=True, soaks=True)
REPAIR = PlannedWork("one", restarts_kubelet=True)


class Store:
    """An Api of objects by path. `away`: it does not answer. `now` is its clock."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.requests: list[tuple[str, str]] = []
        self.now = 1_000_000.0
        self.away: Answer | None = None
        self.before_write: Callable[[], None] = lambda: None
        self._version = 0
        self.put(DAEMONSET, {"kind": "DaemonSet", "metadata": {"annotations": {}}, "status": {}})

    def put(self, path: str, found: Mapping[str, Any]) -> dict[str, Any]:
        self._version += 1
        kept = copy.deepcopy(dict(found))
        kept["metadata"] = {**kept["metadata"], "resourceVersion": str(self._version)}
        self.objects[path] = kept
        return kept

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Answer:
        path, _, query = path.partition("?")
        self.requests.append((method, path))
        if self.away is not None:
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
        if method == "GET" and path in (LEASES, CONFIG_MAPS, "/api/v1/nodes"):
            key, _, value = dict(urllib.parse.parse_qsl(query)).get("labelSelector", "").partition("=")
            below = [found for at, found in self.objects.items() if at.rpartition("/")[0] == path]
            items = [
                each for each in below if not key or each["metadata"].get("labels", {}).get(key) == value
            ]
            return 200, {"kind": "List", "items": items}
        if method == "POST":
            path = f"{path}/{body['metadata']['name']}"
            return (409, {}) if path in self.objects else (201, self.put(path, body))
        if path not in self.objects:
            return 404, {}
        old = self.objects[path]
        if body["metadata"].get("resourceVersion") != old["metadata"]["resourceVersion"]:
            return 409, {}
        if method == "PATCH":
            spec = {key: value for key, value in {**old["spec"], **body["spec"]}.items() if value is not None}
            body = {**old, "spec": spec}
        return 200, self.put(path, body)

    # -- what tests set and see ---------------------------------------------------------------

    def size(self, nodes: int, waiting: int = 0) -> None:
        daemonset = self.objects[DAEMONSET]
        daemonset["status"] = {"desiredNumberScheduled": nodes, "numberUnavailable": waiting}

    def node(self, name: str, *, canary: bool = False, uid: str = "") -> None:
        labels = {RING: CANARY} if canary else {}
        metadata = {"name": name, "uid": uid or f"uid-{name}", "labels": labels}
        self.put(f"/api/v1/nodes/{name}", {"kind": "Node", "metadata": metadata})

    def holders(self) -> list[str]:
        """By the Leases alone, expired ones too."""
        leases = [found for path, found in self.objects.items() if path.startswith(LEASES)]
        return [lease["spec"]["holderIdentity"] for lease in leases if lease["spec"].get("holderIdentity")]


class Node:
    """One node's questions. `held` is its permit."""

    def __init__(
        self, store: Store, name: str, rules: FleetRules = RULES, canary: bool = False, seed: int = 0
    ) -> None:
        self.store, self.name, self.rules, self.canary = store, name, rules, canary
        self.random = random.Random(f"{name} {seed}")
        self.held = self.heard = FleetAnswer()
        self.uid = f"uid-{name}"
        self.skew = 0.0
        store.node(name, canary=canary)

    def _ask(self, request: FleetRequest) -> Ask:
        fleet = FleetContext(self.name, NAMESPACE, DAEMONSET)
        return Ask(fleet, request, self.store, lambda: self.store.now + self.skew, self.random.random)

    def begin(self, work: PlannedWork = NEW) -> FleetAnswer:
        known = replace(
            FleetRequest(self.uid, self.rules, self.canary),
            limit=self.heard.limit,
            waiting=self.heard.waiting,
            grants=self.heard.grants,
        )
        answer = self._ask(known).begin(work)
        self.heard = answer
        self.held = answer if answer.granted else self.held
        return answer

    def end(self, ok: bool | None = True, work: PlannedWork = NEW, why: str = "it is broken") -> FleetAnswer:
        """As `run` does: only what the fleet waits for is told."""
        tells = work.begins and (ok is not True or self.held.canary)
        result = WorkResult(work, ok, "" if ok else why) if tells else None
        request = FleetRequest(
            self.uid, self.rules, result=result, permit=self.held.permit, version=self.held.version
        )
        answer = self._ask(request).end()
        if answer.told and answer.released:
            self.held = FleetAnswer()
        return answer


@dataclass(frozen=True, slots=True)
class Life:
    """What a node of a simulation is like. `starts` is when its pod asks first, `takes` how long its work is,
    `ok` whether it succeeds. `dies`: it says nothing any more once its work has begun."""

    starts: float = 0.0
    takes: float = 20.0
    ok: bool = True
    dies: bool = False
    skew: float = 0.0
    canary: bool = False


class Fleet:
    """Nodes that all want the same work, from the first question to the end of the last one."""

    def __init__(self, lives: list[Life], rules: FleetRules, work: PlannedWork = NEW, seed: int = 0) -> None:
        self.store = Store()
        self.lives, self.work = lives, work
        names = [f"node-{number}" for number in range(len(lives))]
        self.nodes = [
            Node(self.store, name, rules, life.canary, seed) for name, life in zip(names, lives, strict=True)
        ]
        self.begun: dict[int, float] = {}
        self.done: dict[int, float] = {}
        self.failed: list[int] = []
        self.working: set[int] = set()
        self.most_at_once = 0
        self.why = Counter[str]()
        self.requests = Counter[int]()
        self.asked_per_second = Counter[int]()
        self._due: list[tuple[float, int, str]] = []
        self._start = self.store.now
        for number, (node, life) in enumerate(zip(self.nodes, lives, strict=True)):
            node.skew = life.skew
            self._at(life.starts, number, "begin")

    def _at(self, seconds: float, number: int, what: str) -> None:
        heapq.heappush(self._due, (self.store.now + seconds, number, what))

    def run(self, until: float = 1e9) -> None:
        """Until nobody has anything to do, or this many seconds have passed."""
        while self._due and self._due[0][0] < self._start + until:
            at, number, what = heapq.heappop(self._due)
            self.store.now = max(self.store.now, at)
            waiting = len(self.lives) - len(self.done) - len(self.failed)
            self.store.size(len(self.lives), waiting)
            before = len(self.store.requests)
            getattr(self, f"_{what}")(number)
            made = len(self.store.requests) - before
            self.requests[number] += made
            self.asked_per_second[int(at)] += made

    def _begin(self, number: int) -> None:
        answer = self.nodes[number].begin(self.work)
        if not answer.granted:
            self.why[answer.why.partition(",")[0]] += 1
            self._at(max(answer.wait, 60.0 if answer.failed else 0.0), number, "begin")
            return
        self.begun[number] = self.store.now
        self.working.add(number)
        self.most_at_once = max(self.most_at_once, len(self.working))
        self._at(self.lives[number].takes, number, "work")

    def _work(self, number: int) -> None:
        self.working.discard(number)
        if not self.lives[number].dies:
            self._end(number)

    def _end(self, number: int) -> None:
        life = self.lives[number]
        answer = self.nodes[number].end(life.ok, self.work)
        if not (answer.told and answer.released):
            self._at(max(answer.wait, 5.0), number, "end")
        elif life.ok:
            self.done[number] = self.store.now
        else:
            self.failed.append(number)

    @property
    def seconds(self) -> float:
        return max(self.done.values(), default=self._start) - self._start


def anywhere(rules: FleetRules = RULES, **changes: Any) -> FleetRules:
    """Rules without canaries."""
    return replace(rules, order="any", **changes)
