"""A ClusterClient on a clock that does not wait, with children that are answered by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from installer.cluster.client import ClusterClient
from installer.cluster.member import Due
from installer.cluster.node_status import NodeStatus
from installer.cluster.pod_context import PodContext
from installer.cluster.sync import SyncRequest
from installer.cluster.sync_child import parse_request
from installer.host.command import Finished
from installer.host.files import RootedFiles
from installer.model.daemon import DaemonState, Job, Phase
from installer.model.event import Event
from installer.model.fleet import DEFAULT_RULES
from installer.model.names import Mode
from tests.lib.member_bench import UNCHANGED

CONTEXT = PodContext("10.0.0.1", 443, "/account", "worker-7", "ours-x7k2p", "kube-system", "ours")
SEEN = {"node": ("ok", "")}
ALL_OK = {**SEEN, "events": ("ok", "")}


def answer(
    paused: bool | None = False,
    sent: int = 0,
    parts: Mapping[str, tuple[str, str]] = ALL_OK,
    wait: float = 0.0,
    **more: Any,
) -> str:
    """What a child says of a heartbeat."""
    node = None if paused is None else {"paused": paused}
    return json.dumps({"node": node, "sent": sent, "parts": parts, "wait": wait} | more)


class FakeLoop:
    """Timers on a clock that goes on with `fire`."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.children: list[FakeChild] = []
        self.refuse: OSError | None = None
        self.due: dict[int, tuple[float, Callable[[], None]]] = {}
        self._last = 0

    def after(self, seconds: float, call: Callable[[], None]) -> int:
        self._last += 1
        self.due[self._last] = (self.now + seconds, call)
        return self._last

    def cancel(self, timer: int) -> None:
        del self.due[timer]

    def start(self, job: Job) -> FakeChild:
        if self.refuse:
            raise self.refuse
        self.children.append(FakeChild(job))
        return self.children[-1]

    def fire(self) -> float:
        """The one that is due first; how long it was set for."""
        timer = min(self.due, key=lambda number: self.due[number][0])
        at, call = self.due.pop(timer)
        seconds, self.now = at - self.now, at
        call()
        return seconds


class FakeChild:
    is_gone = True

    def __init__(self, job: Job) -> None:
        self.verb, self.request = job.argv[-2], parse_request(job.argv[-1])
        self.seconds = job.deadline + job.grace
        self.killed = False
        self._on_line, self._on_end = job.on_line, job.on_end

    def kill(self) -> None:
        self.killed = True

    def end(self, output: str = "", code: int = 0) -> None:
        if output:
            self._on_line(output)
        self._on_end(code)


class Scene:
    """A ClusterClient whose children are answered by hand."""

    def __init__(self, files: RootedFiles, annotate: bool = False) -> None:
        self.said: list[Event] = []
        self.loop = FakeLoop()
        self.children = self.loop.children
        self.asked: list[tuple[str, SyncRequest]] = []
        self.answers: list[Finished] = []
        self.changes = 0
        self.now = 0.0
        context = replace(CONTEXT, annotate=annotate)
        self.cluster = ClusterClient(
            context,
            self.said.append,
            files,
            ("program",),
            self._run,
            now=lambda: self.now,
            clock=lambda: self.loop.now,
        )

    def _run(self, argv: Sequence[str], _timeout: float) -> Finished:
        self.asked.append((argv[-2], parse_request(argv[-1])))
        return self.answers.pop(0) if self.answers else Finished(tuple(argv), 0, answer())

    def _change(self) -> None:
        self.changes += 1

    def begin(self, output: str = "", code: int | None = 0) -> None:
        self.answers.append(Finished((), code, output or answer(parts=SEEN)))
        self.cluster.begin(self.loop, self._change)

    def heartbeat(self, output: str, code: int = 0) -> SyncRequest:
        """The next heartbeat, from its timer to its end; a look at the Node, if none is due."""
        if not self.loop.due:
            self.look()
        self.loop.fire()
        child = self.children[-1]
        child.end(output, code)
        return child.request

    def look(self) -> None:
        """At the Node, soon."""
        due = {Due.NODE: max(self.loop.now, self.cluster.member.synced_at + 1)}
        self.cluster.become(replace(self.cluster.member, due=due))

    def report(self, state: DaemonState) -> None:
        self.cluster.update(state, None, DEFAULT_RULES, busy=False, read_node=False)

    def ask(self) -> None:
        """A pass waits for a look at the Node."""
        self.cluster.update(UNCHANGED, None, DEFAULT_RULES, busy=False, read_node=True)

    def paused(self) -> bool:
        return self.cluster.permission().paused

    def is_fresh(self) -> bool:
        return self.cluster.permission().fresh

    def kinds(self) -> list[str]:
        return [event.kind for event in self.said]


def state(phase: Phase, reason: str = "", **more: Any) -> DaemonState:
    return DaemonState(Mode.INSTALL, phase, phase is Phase.CONVERGED, reason, **more)


def says(order: SyncRequest) -> NodeStatus:
    assert order.status
    return order.status
