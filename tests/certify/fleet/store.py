"""The API server of the fleet that is enumerated, as a value: objects, and their versions that count."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl

from installer.cluster.kubeapi import Answer
from installer.cluster.leases import MOST_PERMITS, Permit, build_permit, permit_name, read_permits
from installer.model.fleet import BREAKER, LONGEST_HOLD, REMOVAL, FleetRules
from installer.model.hold import PAUSE_ANNOTATION
from installer.model.instant import parse_time
from installer.operator.rollout_view import read_leases, to_retry
from tests.certify.values import EPOCH, HORIZON, NOW, Copier, move_stamp, passing
from tests.faults.fleets.sim import SimStore
from tests.lib.fleet_bench import LEASES, NAMESPACE, PODS, Objects
from tests.lib.throwaway.apiserver import merge

VERSION = re.compile(r"~([a-z]+(?:-\w+)?)\.(\d+)~")
LONG = 90.0  # seconds after which it does not matter any more how long something has been stopped
_YEARS = 1e8
_OVER = 61.0  # seconds after its end, when a permit is over by every clock


class CertStore(SimStore):
    """`generation` is what the DaemonSet asks for. `since`: when each generation was stopped, the fleet
    (`fleet`) and each node were paused, a plugin has served each node. `before` has Nodes as they were, for a
    cache that lags. `taken` are the versions that somebody remembers, so that a new one is new to all; None:
    no version comes twice. `inert` are Leases that nobody writes, and `page` how many are on a page, 0:
    all."""

    def __init__(self, clock: Any) -> None:
        self.since: dict[str, float] = {}
        self.before: dict[str, Any] = {}
        self.taken: frozenset[str] | None = frozenset()
        self.resource, self.enough = "", 1
        self.inert: dict[str, Any] = {}
        self.page = 0
        super().__init__(clock)
        self._epoch = EPOCH - NOW
        self.generation = ""

    def next_version(self, path: str) -> str:
        name = path.rpartition("/")[2]
        if not path.startswith(LEASES):
            return f"~{name}.0~"
        if self.taken is None:
            return super().next_version(path)
        there = self.objects.get(path, {}).get("metadata", {}).get("resourceVersion", "")
        number = 0
        while (found := f"~{name}.{number}~") in self.taken or found == there:
            number += 1
        return found

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Answer:
        answer = super().call(method, path, body)
        self.requests.clear()
        self.events.clear()
        if self.page and method == "GET" and path.startswith(f"{LEASES}?"):
            return self._page_of(answer, int(dict(parse_qsl(path)).get("continue", "0")))
        return answer

    def _page_of(self, answer: Answer, start: int) -> Answer:
        items = sorted(answer.body["items"], key=lambda each: str(each["metadata"]["name"]))
        more = {"continue": str(start + self.page)} if start + self.page < len(items) else {}
        found = {**answer.body, "metadata": more, "items": items[start : start + self.page]}
        return replace(answer, body=found)

    def strew(self, what: str) -> None:
        """Leases from before the policies were there. `pages`: more than are read, each on a page of its own,
        after all others; `lost`: each permit that there can be, dated years ahead."""
        self.page = 1 if what == "pages" else 0
        for number in range(11 if what == "pages" else MOST_PERMITS):
            permit = Permit(permit_name(number))
            lease = build_permit(permit, NAMESPACE, "somebody/else", EPOCH + _YEARS, LONGEST_HOLD)
            if what == "pages":
                lease["metadata"]["name"] = f"unknown-{number:02}"
            self.put(f"{LEASES}/{lease['metadata']['name']}", lease)
        self.inert = {path: self.objects[path] for path in self.objects.below[LEASES]}

    def _is_inert(self, path: str) -> bool:
        return self.objects.get(path) is self.inert.get(path, self)

    def says(self) -> tuple[Any, ...]:
        """All that tells it from another one."""
        told = {path: each for path, each in self.objects.items() if not self._is_inert(path)}
        return told, len(self.objects), self.before, self.since, self.generation

    def copy(self) -> CertStore:
        return self._with(Copier())

    def _with(self, copier: Copier) -> CertStore:
        copy = CertStore.__new__(CertStore)
        copy.__dict__ |= self.__dict__
        copy.objects = Objects()
        for path, found in self.objects.items():
            copy.objects[copier(path)] = found if self._is_inert(path) else copier(found)
        copy.since = {copier(name): at for name, at in self.since.items()}
        copy.before = copier(self.before)
        return copy

    def renamed(self, text: Any) -> CertStore:
        return self._with(Copier(text))

    # -- time ---------------------------------------------------------------------------------------

    def later(self, seconds: float) -> CertStore:
        """As it is after so many seconds."""
        text, time = passing(seconds, {})
        copy = CertStore.__new__(CertStore)
        copy.__dict__ |= self.__dict__
        copy.objects = Objects()
        for path, found in self.objects.items():
            name = path.rpartition("/")[2]
            if self._is_inert(path):
                copy.objects[path] = found
            elif name.startswith("permit-"):
                copy.objects[path] = _later_permit(found, seconds)
            elif name.startswith("breaker-"):
                copy.objects[path] = _later_breaker(found, seconds)
            else:
                copy.objects[path] = Copier(text, time)(found)
        copy.since = {name: max(at - seconds, NOW - LONG) for name, at in self.since.items()}
        return copy

    # -- what people and things do -------------------------------------------------------------------

    def node_is(self, name: str, *, ready: bool) -> None:
        path = f"/api/v1/nodes/{name}"
        there = self.before[path] = self.objects[path]
        status = {**there["status"], "conditions": [{"type": "Ready", "status": str(ready)}]}
        self.objects[path] = {**there, "status": status}

    def successor(self, namespace: str) -> None:
        """The resource of an NRI plugin that is to follow on all nodes; none if there is no namespace."""
        if namespace:
            self.resource = f"/apis/config.nri/v1alpha1/namespaces/{namespace}/topologyawarepolicies/default"
            metadata = {"name": "default", "namespace": namespace, "generation": 1}
            self.put(self.resource, {"kind": "TopologyAwarePolicy", "metadata": metadata})

    def shows(self, node: str, pod: str, plugin: str) -> None:
        """How its pod with a readiness probe is, if there is one, and what the plugin says of the node."""
        path, is_ready = f"{PODS}/pod-{node}", pod == "ready"
        there = self.objects.get(path)
        if there is not None and there["status"]["containerStatuses"][0]["ready"] != is_ready:
            status = {
                "phase": "Running",
                "containerStatuses": [{"ready": is_ready, "state": {"running": {}}}],
            }
            self.objects[path] = {**there, "status": status}
        if plugin and self.resource in self.objects:
            there = self.objects[self.resource]
            says = {"status": plugin, "generation": 1} | ({"errors": "no"} if plugin != "Success" else {})
            nodes = {**there.get("status", {}).get("nodes", {}), node: says}
            self.objects[self.resource] = {**there, "status": {"nodes": dict(sorted(nodes.items()))}}
            if plugin == "Success":
                self.since.setdefault(f"served {node}", self._clock.now)

    def is_node_paused(self, name: str, *, paused: bool) -> None:
        path = f"/api/v1/nodes/{name}"
        self.before[path] = self.objects[path]
        says = {"metadata": {"annotations": {PAUSE_ANNOTATION: "" if paused else None}}}
        self.objects[path] = merge(self.objects[path], says)
        self._notes(name, paused)

    def pause(self, why: str | None) -> None:
        super().pause(why)
        self._notes("fleet", why is not None)

    def _notes(self, what: str, holds: bool) -> None:
        if holds:
            self.since.setdefault(what, self._clock.now)
        else:
            self.since.pop(what, None)

    def to_retry(self, rules: FleetRules, nodes: int) -> list[str]:
        """The paths of what `rollout retry` deletes."""
        leases = read_leases(self.leases_there(), self.now, rules)
        return [f"{LEASES}/{each.lease}" for each in to_retry(leases, rules, nodes)]

    # -- what is judged ------------------------------------------------------------------------------

    def leases_there(self) -> list[Mapping[str, Any]]:
        return [self.objects[path] for path in sorted(self.objects.below.get(LEASES, ()))]

    def permits(self) -> tuple[Permit, ...]:
        return read_permits(self.leases_there())

    def held(self) -> list[Permit]:
        return [permit for permit in self.permits() if permit.is_held(self.now)]

    def watch_breakers(self) -> None:
        """Note since when a generation is stopped: by `enough` failures. By what the Lease says, and
        not by what the program makes of it."""
        for lease in self.leases_there():
            name = lease["metadata"]["name"]
            if name.startswith("breaker-"):
                generation = name.removeprefix("breaker-")
                says = self.breaker(generation)
                self._notes(
                    f"stopped {generation}", says is None or len(says.get("failures", ())) >= self.enough
                )

    def breaker(self, generation: str) -> dict[str, Any] | None:
        """What the circuit breaker says; empty if there is none, None if nobody understands it."""
        lease = self.objects.get(
            f"{LEASES}/breaker-{generation}", {"metadata": {"annotations": {BREAKER: "{}"}}}
        )
        try:
            found: dict[str, Any] = json.loads(lease["metadata"]["annotations"][BREAKER])
        except ValueError:
            return None
        return found

    def is_new(self, node: str) -> bool:
        """Whether the node has joined during the certificate's time."""
        metadata = self.objects.get(f"/api/v1/nodes/{node}", {}).get("metadata", {})
        return parse_time(metadata.get("creationTimestamp")) > EPOCH - 2 * HORIZON

    def unserved(self) -> list[str]:
        """Nodes that say that they have left, and no plugin has served them since."""
        canaries = (self.breaker(REMOVAL) or {}).get("canaries", {})
        return [
            node for node, each in canaries.items() if each.get("done") and f"served {node}" not in self.since
        ]

    def has_forgotten(self) -> bool:
        """Whether a permit has expired that nobody has given back."""
        now = self.now
        return any(each.holder and not (each.is_held(now) or each.is_lost(now)) for each in self.permits())


def _later_permit(lease: dict[str, Any], seconds: float) -> dict[str, Any]:
    """How long ago a free permit was held does not matter, nor since when another one is over."""
    spec = dict(lease["spec"])
    if not spec.get("holderIdentity"):
        for key in ("renewTime", "acquireTime"):
            if parse_time(spec.get(key)) > EPOCH:
                spec[key] = move_stamp(spec[key], min(seconds, parse_time(spec[key]) - EPOCH))
            else:
                spec[key] = move_stamp("2023-11-14T22:13:20.000000Z", 0.0)
        return {**lease, "spec": spec}
    ends = parse_time(spec["renewTime"]) + spec["leaseDurationSeconds"] - seconds
    moves = seconds - max(0.0, EPOCH - _OVER - ends)
    spec["renewTime"] = move_stamp(spec["renewTime"], moves)
    spec["acquireTime"] = move_stamp(spec["acquireTime"], moves)
    return {**lease, "spec": spec}


def _later_breaker(lease: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Long after all that it says, only their order matters."""
    text = lease["metadata"]["annotations"].get(BREAKER, "")
    stamps = [parse_time(found) for found in re.findall(r"20\d\d-[^\"]*Z", text)]
    newest = max(stamps, default=EPOCH)
    moves = seconds - max(0.0, EPOCH - HORIZON - (newest - seconds))
    if moves <= 0:
        return lease
    changed = re.sub(r"20\d\d-[^\"]*Z", lambda found: move_stamp(found[0], moves), text)
    metadata = {**lease["metadata"], "annotations": {**lease["metadata"]["annotations"], BREAKER: changed}}
    return {**lease, "metadata": metadata}


def permit_path(index: int) -> str:
    return f"{LEASES}/{permit_name(index)}"
