"""The process of one sync with the API server: its requests, the most important first, because time may run
out.

No part hinders another: each has its own result. The RBAC role has to allow: get a DaemonSet, get a Node (and
patch it and its status), create Events, and in a fleet Leases and, with kubelets that flip them, pods.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from installer.cluster.decommission import Decommission, decide
from installer.cluster.kubeapi import Answer, Api, KubeApi, condition_of
from installer.cluster.leases import CANARY, RING
from installer.cluster.node_status import (
    EVENTS_PATH,
    NodeStatus,
    build_event,
    build_node_patch,
    build_status_patch,
    extract_ours,
    is_paused,
)
from installer.cluster.permit_client import PermitClient
from installer.cluster.pods import find_ready, find_unready, flips_pods, pods_path
from installer.cluster.sync import OK, NodeFacts, Result, SyncReply, SyncRequest, WorkEnd
from installer.errors import InvalidInputError
from installer.model.fleet import PermitAnswer
from installer.model.instant import parse_time
from installer.model.jsontext import from_json, mapping_at, to_json

_NOT_FOUND, _CONFLICT, _TOO_MANY = 404, 409, 429
_CACHED = "?resourceVersion=0"
"""From the API server's cache, not from etcd (Kubernetes API concepts, "Resource versions"), so that a fleet
does not burden it. May be a moment old."""


def parse_request(text: str) -> SyncRequest:
    """Raises InvalidInputError."""
    try:
        return from_json(SyncRequest, text)
    except ValueError as error:
        raise InvalidInputError([f"the request is not one of the daemon's: {error}"]) from None


def sync(text: str) -> str:
    """Carry out a SyncRequest, and return the SyncReply. Raises InvalidInputError for any other text."""
    request = parse_request(text)
    context, deadline = request.context, time.monotonic() + request.seconds
    with closing(KubeApi(context.host, context.port, Path(context.account), deadline)) as api:
        return to_json(Sync(api, request).run())


class Sync:
    """One sync with the API server. `clock` is the time of the epoch if the server does not send it.
    `chance`, within 0 and 1, keeps the nodes of a fleet out of step."""

    def __init__(
        self,
        api: Api,
        request: SyncRequest,
        clock: Callable[[], float] = time.time,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._api, self._request, self._clock, self._chance = api, request, clock, chance
        self._context = request.context
        self._parts: dict[str, Result] = {}
        self._sent = 0
        self._refusal: Answer | None = None

    def run(self) -> SyncReply:
        request = self._request
        status = request.status if self._context.annotate else None
        node = self._write_from_memory(status) if status and request.known else None
        node = self._read_node() if node is None and request.read_node else node
        permit = self._ask_fleet(request.end or WorkEnd()) if request.begin or request.end else None
        if request.events:
            self._parts["events"] = self._send_events()
        if status and node is not None and node.ok and "condition" not in self._parts:
            node = self._write(status, node)
        known = node is not None and node.ok and node.body.get("kind") == "Node"
        facts = _facts_of(node, known) if node is not None else None
        return SyncReply(
            self._parts,
            facts,
            extract_ours(node.body) if node is not None and known else None,
            self._sent,
            self._refusal.retry_after if self._refusal else 0.0,
            permit,
            self._find_evidence() if request.evidence else None,
            self._find_unready(request.awaited) if request.awaited and facts and facts.ready else None,
        )

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Answer:
        """A server that asks for a pause gets no further request."""
        if self._refusal is not None:
            return self._refusal
        answer = self._api.call(method, path, body)
        if answer.retry_after > 0 or answer.code == _TOO_MANY:
            self._refusal = answer
        return answer

    def _read_node(self) -> Answer:
        node = self.call("GET", self._context.node_path + ("" if self._request.is_first else _CACHED))
        self._parts["node"] = _result(node)
        return node

    # -- of a fleet -------------------------------------------------------------------------------

    def _ask_fleet(self, end: WorkEnd) -> PermitAnswer:
        """Ask for a permit, or else report how work has ended."""
        client = PermitClient(self._request, self, self._clock, self._chance)
        answer = client.begin(self._request.begin) if self._request.begin else client.end(end)
        if answer.tripped:
            message = f"{answer.tripped}; no other node will start it"
            event = {"type": "Warning", "reason": "RolloutStopped", "message": message, "time": self._clock()}
            self.call("POST", EVENTS_PATH, build_event(self._context, event))
        if not (answer.permit and self._request.notes_pods):
            return answer
        own_pod = f"{self._context.namespace}/{self._context.pod}"
        return replace(answer, pods=find_ready(self._list_pods(), own_pod))

    def _list_pods(self) -> Mapping[str, Any]:
        """Return an empty answer if it fails, and say so."""
        answer = self.call("GET", pods_path(self._context.node))
        self._parts["pods"] = _result(answer)
        return answer.body if answer.ok else {}

    def _find_unready(self, awaited: tuple[str, ...]) -> tuple[str, ...] | None:
        pods = self._list_pods()
        return find_unready(pods, awaited) if pods else None

    def _find_evidence(self) -> Decommission:
        context = self._context
        known = context.namespace and context.daemonset
        daemonset = self.call("GET", context.daemonset_path) if known else Answer(0)
        node = self.call("GET", context.node_path) if daemonset.ok else Answer(0, failure="not asked for")
        found = decide(context, daemonset, node)
        if found.certain:
            node = node if node.ok else self.call("GET", context.node_path)
            if node.ok and is_paused(node.metadata):
                return Decommission(False, f"{found.why}, but node {context.node} is paused")
        return found

    # -- what it writes ----------------------------------------------------------------------------

    def _write_from_memory(self, status: NodeStatus) -> Answer | None:
        """Write what differs from what the Node last said, without reading it: the answer shows it. None if
        nothing differs, or if the write failed."""
        answer = self._patch_status(status, self._request.known)
        if answer is None:
            return None
        if not answer.ok:
            self._parts["annotation"] = self._parts["condition"] = _result(answer)
            return None
        self._parts["node"] = OK
        return self._write(status, answer)

    def _write(self, status: NodeStatus, node: Answer) -> Answer:
        """Write the Node's status in one request, and the rest in another: the taint, and if the status is
        denied to us, also annotations and labels. Return the Node as it is then."""
        answer = self._patch_status(status, node.body)
        self._parts["condition"] = OK if answer is None else _result(answer)
        node = answer if answer is not None and answer.ok else node
        self._parts["annotation"] = self._patch_node(status, node)
        return node

    def _patch_status(self, status: NodeStatus, node: Mapping[str, Any]) -> Answer | None:
        """None if the Node says it already."""
        patch = build_status_patch(node, status, self._clock())
        return None if patch is None else self.call("PATCH", f"{self._context.node_path}/status", patch)

    def _patch_node(self, status: NodeStatus, node: Answer) -> Result:
        """A patch that rests on an old version of the Node is made again from the present one, once."""
        answer = node
        for _ in range(2):
            patch = build_node_patch(node.body, status) if node.ok else None
            if patch is None:
                return _result(node)
            answer = self.call("PATCH", self._context.node_path, patch)
            if answer.code != _CONFLICT:
                break
            node = self.call("GET", self._context.node_path)
        return _result(answer)

    def _send_events(self) -> Result:
        """Send them in order. An Event whose content the server refuses is not sent again."""
        result = OK
        for event in self._request.events:
            answer = self.call("POST", EVENTS_PATH, build_event(self._context, event))
            result = _result(answer)
            if not answer.ok and answer.code not in (400, 422):
                break
            self._sent += 1
        return result


def _facts_of(node: Answer, known: bool) -> NodeFacts:
    return NodeFacts(
        uid=str(node.metadata.get("uid", "")) if node.ok else "",
        hidden=node.denied or node.code == _NOT_FOUND,
        canary=mapping_at(node.metadata, "labels").get(RING) == CANARY,
        ready=condition_of(node.body, "Ready").get("status") == "True",
        paused=is_paused(node.metadata) if known else None,
        joined=parse_time(node.metadata.get("creationTimestamp")),
        flips=flips_pods(node.body),
    )


def _result(answer: Answer) -> Result:
    if answer.ok:
        return OK
    return ("denied" if answer.denied else "failed", answer.failure)
