"""Waits until a DaemonSet has done its work on every node, or nothing has happened for too long.

While nothing changes, it makes one request every few seconds: it lists pods and nodes only when the
DaemonSet's own counts have changed, and for the message of each minute. It waits for an API server that is
away as for silent nodes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from installer.model.event import Emit, Event, name_some
from installer.model.names import Mode, our_selector
from installer.model.overview import NodeHealth, NodeView
from installer.operator.api import DAEMON_SETS, NODES, PODS, ApiError, KubeApi
from installer.operator.inventory import find_installations
from installer.operator.judge import is_clean, judge_nodes
from installer.operator.kube_objects import is_rolled_out, mapping_at, silent_since, text_at
from installer.report.rollout import describe_duration

_PACE = 2.0  # seconds between two looks
_LARGE = 500  # nodes; looks at more of them are further apart
_NEVER = float("-inf")
_REPORT_SECONDS = 60.0  # from one message about a wait to the next
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Clock:
    """Passed in, in seconds. `now` only moves on."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class Waiting:
    """`namespace` is that of the pods. `patience`: how many seconds may pass without progress on any node."""

    def __init__(
        self,
        api: KubeApi,
        namespace: str,
        instance: str,
        patience: float,
        emit: Emit,
        clock: Clock | None = None,
    ) -> None:
        self._api, self._namespace, self._instance = api, namespace, instance
        self._patience = patience
        self._emit, self._clock = emit, clock or Clock()
        self._away = False  # whether the last request had no answer
        self._reported_at = _NEVER

    def until_clean(self, name: str, given_up: Collection[str] = ()) -> tuple[NodeView, ...]:
        """Wait until the removal's DaemonSet of this name is done, except on the nodes that are given up.
        Returns the nodes that are not clean, with their reasons. Raises ApiError."""
        clean, since, count = set[str](), self._clock.now(), 0
        pace = _Pace()
        seen: object = None
        left = tuple[NodeView, ...]()
        self._reported_at = _NEVER
        while True:
            daemon_set = self._ask(lambda: self._api.get(DAEMON_SETS, self._namespace, name), since) or {}
            status, done = mapping_at(daemon_set, "status"), is_rolled_out(daemon_set)
            if done or self._is_over(since) or status != seen or self._must_report:
                views = self._ask(self._judge_nodes, since)
                if views is not None:
                    seen, count = status, len(views)
                    fresh = {each.name for each in views if is_clean(each)} - clean
                    clean |= fresh
                    since = self._clock.now() if fresh else since
                    done_now = sum(map(is_clean, views))
                    rest = pace.left(done_now, count - done_now, self._clock.now()) if fresh else ""
                    self._report_clean(sorted(fresh), done_now, count, rest)
                    left = tuple(_with_reason(each) for each in views if not is_clean(each))
                    known = bool(left) and all(each.name in given_up for each in left)
                    done = done and not any(_is_new(each) for each in left)
                    if done or self._is_over(since) or (known and is_rolled_out(daemon_set, len(left))):
                        return left
            who = name_some([f"{each.name} ({each.reason or each.phase or 'at work'})" for each in left])
            self._report(f"nodes to be clean: {who}" if left else "the first pods of the removal", since)
            self._clock.sleep(_PACE * max(1.0, count / _LARGE))

    def until_gone(self, excused: Collection[str], removals: bool) -> tuple[str, ...]:
        """Wait until our pods run on the excused nodes alone; return the other pods that remain when nothing
        happens any more, without those of silent nodes: they end when the node comes back. `removals`: the
        pods of the removal have to end as well. Raises ApiError."""
        if not self.until_none("pods to end", lambda: self._pods(excused, removals)):
            return ()
        silent = self.retry(lambda: set(self._find_silent()))
        return self.retry(lambda: tuple(self._pods({*excused, *silent}, removals)))

    def until_none(self, awaited: str, find: Callable[[], Iterable[str]]) -> tuple[str, ...]:
        """Wait until nothing is found; return what is found when nothing happens any more. Raises
        ApiError."""
        fewest, since, self._reported_at = -1, self._clock.now(), _NEVER
        while True:
            left = self._ask(lambda: tuple(find()), since)
            if left is not None and (fewest < 0 or len(left) < fewest):
                fewest, since = len(left), self._clock.now()
            if left is not None and (not left or self._is_over(since)):
                return left
            self._report(f"{awaited}: {name_some(left)}" if left else awaited, since)
            self._clock.sleep(_PACE)

    def retry(self, call: Callable[[], _T]) -> _T:
        """Return what the call returns; retry it while the API server is away. Raises ApiError."""
        since = self._clock.now()
        while (found := self._ask(lambda: (call(),), since)) is None:
            self._clock.sleep(_PACE)
        return found[0]

    def _judge_nodes(self) -> tuple[NodeView, ...]:
        installations = find_installations(self._api, self._namespace, self._instance)
        return judge_nodes(self._api, installations, self._instance).nodes

    def _pods(self, excused: Collection[str], removals: bool) -> Iterator[str]:
        selector = our_selector(self._instance, None if removals else Mode.INSTALL)
        for each in self._api.list_objects(PODS, selector, self._namespace):
            if text_at(each, "spec", "nodeName") not in excused:
                yield text_at(each, "metadata", "name")

    def _find_silent(self) -> Iterator[str]:
        nodes = self._api.list_objects(NODES)
        return (text_at(each, "metadata", "name") for each in nodes if silent_since(each) is not None)

    def _is_over(self, since: float) -> bool:
        return self._clock.now() - since >= self._patience

    def _ask(self, call: Callable[[], _T], since: float) -> _T | None:
        """Return None while the API server is away or overloaded. Raises ApiError for another error, and
        when it has been away for longer than the patience lasts."""
        try:
            found = call()
        except ApiError as error:
            if (error.code and error.code != 429 and error.code < 500) or self._is_over(since):
                raise
            if not self._away:
                rest = f"retried until {self._patience:g} s pass without progress"
                self._emit(Event("warning", f"the API server: {error}; {rest}"))
            self._away = True
            return None
        self._away = False
        return found

    @property
    def _must_report(self) -> bool:
        return self._clock.now() - self._reported_at >= _REPORT_SECONDS

    def _report(self, what: str, since: float) -> None:
        """Say what it waits for, for how long still, and what ends it: at once, and then each minute."""
        if self._must_report:
            now = self._reported_at = self._clock.now()
            seconds = math.ceil(max(0.0, self._patience - (now - since)))
            message = f"waiting for {what}; gives up after {seconds} s without progress"
            self._emit(Event("uninstall.waiting", message, {"seconds": seconds}))

    def _report_clean(self, fresh: list[str], clean: int, count: int, rest: str) -> None:
        if fresh:
            message = f"clean: {name_some(fresh)} ({clean} of {count}{rest})"
            self._emit(Event("uninstall.progress", message, {"nodes": fresh, "clean": clean, "of": count}))


class _Pace:
    """How fast nodes become clean, since the first that did."""

    def __init__(self) -> None:
        self._from: tuple[float, int] | None = None

    def left(self, clean: int, left: int, now: float) -> str:
        """Return how long the rest will take, in words; empty while that is unknown, or a minute or less."""
        began, at_first = self._from = self._from or (now, clean)
        if clean == at_first:
            return ""
        seconds = (now - began) / (clean - at_first) * left
        return f", about {describe_duration(seconds)} left" if seconds > _REPORT_SECONDS else ""


def _is_new(node: NodeView) -> bool:
    """Whether the DaemonSet's counts may lack the node: it has no pod yet."""
    return node.mode is Mode.REMOVE and node.health is NodeHealth.WORKING


def _with_reason(node: NodeView) -> NodeView:
    if node.mode is Mode.INSTALL and not node.reason:
        return replace(node, reason="the existing removal does not select it: delete its DaemonSet")
    return node
