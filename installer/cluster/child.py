"""What the process of one talk with the API server does: the requests, the most important first, for the time
may not suffice for all.

No part hinders another: each has its own result. What an RBAC role has to allow for them is DaemonSet get,
Node get (and patch of it and its status), Event create, and in a fleet Leases.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from installer.cluster.ask import Ask
from installer.cluster.decommission import Decommission, decide
from installer.cluster.kubeapi import Answer, Api, KubeApi
from installer.cluster.leases import CANARY, RING
from installer.cluster.node_word import (
    EVENTS_PATH,
    Statement,
    build_event,
    build_node_patch,
    build_word_patch,
    is_paused,
    remember,
)
from installer.cluster.talk import End, Heard, NodeFacts, Result, Talk
from installer.errors import InvalidInputError
from installer.model.fleet import FleetAnswer
from installer.model.jsontext import from_json, to_json

_NONE, _TOO_MANY = 404, 429
_CACHED = "?resourceVersion=0"
"""From the API server's own memory, not from etcd (Kubernetes API concepts, "Resource versions"): the looks
of a fleet must not be felt. May be a moment old."""

_OK: Result = ("ok", "")


def parse_talk(text: str) -> Talk:
    """Raises InvalidInputError."""
    try:
        return from_json(Talk, text)
    except ValueError as error:
        raise InvalidInputError([f"the request is not one of the daemon's: {error}"]) from None


def talk(text: str) -> str:
    """A Talk in, what was Heard out. Raises InvalidInputError where the daemon did not ask."""
    order = parse_talk(text)
    context, deadline = order.context, time.monotonic() + order.seconds
    api = KubeApi(context.host, context.port, Path(context.account), deadline)
    try:
        return to_json(talk_with(api, order))
    finally:
        api.close()


def talk_with(api: Api, order: Talk, clock: Callable[[], float] = time.time) -> Heard:
    """`clock` is the time of the epoch where the server does not say it."""
    return _Child(api, order, clock).run()


class _Child:
    def __init__(self, api: Api, order: Talk, clock: Callable[[], float]) -> None:
        self._api, self._order, self._clock = api, order, clock
        self._context = order.context
        self._parts: dict[str, Result] = {}
        self._sent = 0
        self._busy: Answer | None = None
        self._wait = 0.0

    def run(self) -> Heard:
        order = self._order
        says = order.say if self._context.annotate else None
        node = self._say_from_memory(says) if says and order.said else None
        node = self._look() if node is None and order.look else node
        permit = self._ask(order.end or End()) if order.begin or order.end else None
        if order.events:
            self._parts["events"] = self._send_events()
        if says and node is not None and node.ok and "condition" not in self._parts:
            node = self._say(says, node)
        known = node is not None and node.ok and node.body.get("kind") == "Node"
        return Heard(
            self._parts,
            _facts_of(node, known) if node is not None else None,
            remember(node.body) if node is not None and known else None,
            self._sent,
            self._wait,
            permit,
            self._find_evidence() if order.evidence else None,
        )

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Answer:
        """A server that wants to be left alone is asked for nothing more."""
        if self._busy is not None:
            return self._busy
        answer = self._api.call(method, path, body)
        if answer.retry_after > 0 or answer.code == _TOO_MANY:
            self._busy, self._wait = answer, answer.retry_after
        return answer

    def _look(self) -> Answer:
        node = self.call("GET", self._context.node_path + ("" if self._order.is_first else _CACHED))
        self._parts["node"] = _result(node)
        return node

    # -- of a fleet -------------------------------------------------------------------------------

    def _ask(self, end: End) -> FleetAnswer:
        """Whether work may begin; else how it has come to its end."""
        ask = Ask(self._order, self, self._clock, random.random)
        answer = ask.begin(self._order.begin) if self._order.begin else ask.end(end)
        if answer.tripped:
            message = f"{answer.tripped}; no other node begins it"
            event = {"type": "Warning", "reason": "RolloutStopped", "message": message, "time": self._clock()}
            self.call("POST", EVENTS_PATH, build_event(self._context, event))
        return answer

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

    def _say_from_memory(self, says: Statement) -> Answer | None:
        """What differs from what the Node has said before is written without a look; the answer is one. None
        if there is nothing to say, or if it did not come through."""
        answer = self._write_word(says, self._order.said)
        if answer is None:
            return None
        if not answer.ok:
            self._parts["annotation"] = self._parts["condition"] = _result(answer)
            return None
        self._parts["node"] = _OK
        return self._say(says, answer)

    def _say(self, says: Statement, node: Answer) -> Answer:
        """Writes what the Node is to say in one request, and the rest (the taint; all but the condition,
        where it may not write the status) in another one. Returns the Node as it is then."""
        answer = self._write_word(says, node.body)
        self._parts["condition"] = _OK if answer is None else _result(answer)
        node = answer if answer is not None and answer.ok else node
        self._parts["annotation"] = self._annotate(says, node)
        return node

    def _write_word(self, says: Statement, node: Mapping[str, Any]) -> Answer | None:
        """None if the Node says it already."""
        patch = build_word_patch(node, says.status, says.serves, says.failure, datetime.now(UTC))
        return None if patch is None else self.call("PATCH", f"{self._context.node_path}/status", patch)

    def _annotate(self, says: Statement, node: Answer) -> Result:
        """What rests on an old version of the Node is done again with the present one, once."""
        for _ in range(2):
            patch = build_node_patch(node.body, says.status, says.serves, says.failure)
            if patch is None:
                return _OK
            answer = self.call("PATCH", self._context.node_path, patch)
            if answer.code != 409:
                return _result(answer)
            node = self.call("GET", self._context.node_path)
            if not node.ok:
                return _result(node)
        return _result(answer)

    def _send_events(self) -> Result:
        """In order. One whose content the server refuses is not sent again."""
        result = _OK
        for event in self._order.events:
            answer = self.call("POST", EVENTS_PATH, build_event(self._context, event))
            result = _result(answer)
            if not answer.ok and answer.code not in (400, 422):
                break
            self._sent += 1
        return result


def _facts_of(node: Answer, known: bool) -> NodeFacts:
    labels, status = node.metadata.get("labels"), node.body.get("status")
    conditions = (status.get("conditions") if isinstance(status, dict) else None) or []
    return NodeFacts(
        uid=str(node.metadata.get("uid", "")) if node.ok else "",
        hidden=node.denied or node.code == _NONE,
        canary=isinstance(labels, dict) and labels.get(RING) == CANARY,
        ready=any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions),
        paused=is_paused(node.metadata) if known else None,
    )


def _result(answer: Answer) -> Result:
    if answer.ok:
        return _OK
    return ("denied" if answer.denied else "failed", answer.failure)
