"""One heartbeat, and one check for a decommission: the requests, in order, and what they amount to.

No part hinders another: each has its own result. What an RBAC role has to allow for them is DaemonSet get,
Node get (and patch of it and its status), Event create.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from installer.cluster.decommission import Decommission, decide
from installer.cluster.kubeapi import Answer, Api, KubeApi
from installer.cluster.leases import CANARY, RING
from installer.cluster.node_objects import (
    EVENTS_PATH,
    build_event,
    is_paused,
)
from installer.cluster.node_word import build_node_patch, build_word_patch, remember
from installer.cluster.pod_context import PodContext
from installer.errors import InvalidInputError
from installer.model.jsontext import from_json, to_json

HEARTBEAT_SECONDS = 10.0
_NONE, _TOO_MANY = 404, 429
_CACHED = "?resourceVersion=0"
"""From the API server's own memory, not from etcd (Kubernetes API concepts, "Resource versions"): the
heartbeats of a fleet must not be felt. May be a moment old."""

Result = tuple[str, str]
"""ok, denied or failed; and why."""

_OK: Result = ("ok", "")


@dataclass(frozen=True, slots=True)
class HeartbeatRequest:
    """What the daemon wants of a child. `status`, `serves` and `failure` are what the Node is to say
    (node_word.py), `known` what it said of us when it was last seen (`said` of an answer), empty if that is
    not known; `ask_only`: nothing is written; `see_node`: whether the Node is looked at. `seconds` is the
    deadline of all of it."""

    context: PodContext
    seconds: float = HEARTBEAT_SECONDS
    ask_only: bool = False
    status: Mapping[str, str] = field(default_factory=dict)
    events: tuple[Mapping[str, Any], ...] = ()
    serves: bool | None = None
    failure: Mapping[str, str] = field(default_factory=dict)
    see_node: bool = True
    known: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        return to_json(self)


def parse_request(text: str) -> HeartbeatRequest:
    """Raises InvalidInputError."""
    try:
        return from_json(HeartbeatRequest, text)
    except ValueError as error:
        raise InvalidInputError([f"the request is not one of the daemon's: {error}"]) from None


def heartbeat(text: str) -> str:
    """Asks and tells the API. The answer has `paused` (null if not known), `node` (null if not seen), `said`
    (what the Node says of us then; null if not seen), `sent` (how many of the events are done with), `parts`
    with the result of each, and `wait`: for how many seconds the server wants to be left alone.

    Raises InvalidInputError for a text that is not `HeartbeatRequest.to_json`'s.
    """
    return _with_api(text, lambda request, api: Heartbeat(request, api).run())


def decommission(text: str) -> str:
    """Whether it is certain that this node is no longer to be served: `certain` and `why`.

    Raises InvalidInputError for a text that is not `HeartbeatRequest.to_json`'s.
    """
    return _with_api(text, check_decommission)


def check_decommission(request: HeartbeatRequest, api: Api) -> dict[str, Any]:
    context = request.context
    known = context.namespace and context.daemonset
    daemonset = api.call("GET", context.daemonset_path) if known else Answer(0)
    node = api.call("GET", context.node_path) if daemonset.ok else Answer(0, failure="not asked for")
    found = decide(context, daemonset, node)
    if found.certain:
        node = node if node.ok else api.call("GET", context.node_path)
        if node.ok and is_paused(node.metadata):
            found = Decommission(False, f"{found.why}, but node {context.node} is paused")
    return asdict(found)


def _with_api(text: str, talk: Callable[[HeartbeatRequest, Api], Mapping[str, Any]]) -> str:
    request = parse_request(text)
    context, deadline = request.context, time.monotonic() + request.seconds
    api = KubeApi(context.host, context.port, Path(context.account), deadline)
    try:
        return json.dumps(talk(request, api))
    finally:
        api.close()


class Heartbeat:
    """The most important request comes first: the time may not be enough for all."""

    def __init__(self, request: HeartbeatRequest, api: Api) -> None:
        self._request, self._context, self._api = request, request.context, api
        self._parts: dict[str, Result] = {}
        self._cached = "" if request.ask_only else _CACHED  # the first has to be new
        self._sent = 0
        self._busy: Answer | None = None
        self._wait = 0.0

    def run(self) -> dict[str, Any]:
        node = self._tell_from_memory() if self._request.known else None
        if node is None and self._request.see_node:
            node = self._see_node()
        if not self._request.ask_only:
            node = self._tell(node)
        known = node is not None and node.ok and node.body.get("kind") == "Node"
        return {
            "paused": is_paused(node.metadata) if node is not None and known else None,
            "node": _node_facts(node) if node is not None else None,
            "said": remember(node.body) if node is not None and known else None,
            "sent": self._sent,
            "parts": self._parts,
            "wait": self._wait,
        }

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Answer:
        """A server that wants to be left alone is asked for nothing more."""
        if self._busy is not None:
            return self._busy
        answer = self._api.call(method, path, body)
        if answer.retry_after > 0 or answer.code == _TOO_MANY:
            self._busy, self._wait = answer, answer.retry_after
        return answer

    def _see_node(self) -> Answer:
        node = self._call("GET", self._context.node_path + self._cached)
        self._parts["node"] = _result(node)
        return node

    def _tell(self, node: Answer | None) -> Answer | None:
        """Everything that is to be said; returns the Node as it is then, as far as it is known."""
        if self._request.events:
            self._parts["events"] = self._send_events()
        if self._is_to_speak and node is not None and node.ok and "condition" not in self._parts:
            node = self._speak(node)
        return node

    @property
    def _is_to_speak(self) -> bool:
        return self._context.annotate and bool(self._request.status) and not self._request.ask_only

    def _tell_from_memory(self) -> Answer | None:
        """What differs from what the Node has said before is written without a look; the answer is one. None
        if there is nothing to say, or if it did not come through."""
        answer = self._write_word(self._request.known) if self._is_to_speak else None
        if answer is None:
            return None
        if not answer.ok:
            self._parts["annotation"] = self._parts["condition"] = _result(answer)
            return None
        self._parts["node"] = _OK
        return self._speak(answer)

    def _speak(self, node: Answer) -> Answer:
        """The Node gets its word, in one request. What that could not say (the taint; and all but the
        condition, where the status may not be written) is said in another one. Returns the Node as it is
        then."""
        answer = self._write_word(node.body)
        self._parts["condition"] = _OK if answer is None else _result(answer)
        node = answer if answer is not None and answer.ok else node
        self._parts["annotation"] = self._annotate(node)
        return node

    def _write_word(self, node: Mapping[str, Any]) -> Answer | None:
        """None if the Node says it already."""
        request = self._request
        patch = build_word_patch(node, request.status, request.serves, request.failure, datetime.now(UTC))
        return None if patch is None else self._call("PATCH", f"{self._context.node_path}/status", patch)

    def _annotate(self, node: Answer) -> Result:
        """What rests on an old version of the Node is done again with the present one, once."""
        request = self._request
        for _ in range(2):
            patch = build_node_patch(node.body, request.status, request.serves, request.failure)
            if patch is None:
                return _OK
            answer = self._call("PATCH", self._context.node_path, patch)
            if answer.code != 409:
                return _result(answer)
            node = self._call("GET", self._context.node_path)
            if not node.ok:
                return _result(node)
        return _result(answer)

    def _send_events(self) -> Result:
        """In order. One whose content the server refuses is not sent again."""
        result = _OK
        for event in self._request.events:
            answer = self._call("POST", EVENTS_PATH, build_event(self._context, event))
            result = _result(answer)
            if not answer.ok and answer.code not in (400, 422):
                break
            self._sent += 1
        return result


def _node_facts(node: Answer) -> dict[str, Any]:
    """What the fleet needs to know of the Node: its UID, whether it is a canary, whether it is Ready; and
    whether the API server says that we may not see it, or that there is none."""
    labels, status = node.metadata.get("labels"), node.body.get("status")
    conditions = status.get("conditions") if isinstance(status, dict) else []
    return {
        "uid": str(node.metadata.get("uid", "")) if node.ok else "",
        "hidden": node.denied or node.code == _NONE,
        "canary": isinstance(labels, dict) and labels.get(RING) == CANARY,
        "ready": any(
            found.get("type") == "Ready" and found.get("status") == "True" for found in conditions or []
        ),
    }


def _result(answer: Answer) -> Result:
    if answer.ok:
        return _OK
    return ("denied" if answer.denied else "failed", answer.failure)
