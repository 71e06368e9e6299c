"""The daemon's side of the fleet on a simulated clock: its own questions to an API server of objects."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

from installer.daemon.cluster.client import ApiCluster
from installer.daemon.cluster.heartbeat import Heartbeat
from installer.daemon.cluster.heartbeat import parse_request as parse_heartbeat
from installer.daemon.cluster.pod_context import PodContext
from installer.daemon.cluster.turn_child import parse_request, talk
from installer.daemon.cluster.turns import Turns
from installer.host.run import Finished
from installer.model.event import Event
from installer.model.fleet import FleetRules, PlannedWork, WorkResult
from installer.model.jsontext import to_json
from tests.faults.fleets.sim import Clock, MemoryFiles, SimStore
from tests.fleet_bench import NAMESPACE, anywhere

ONE = PlannedWork("one", begins=True, soaks=True)
ANY = anywhere()
_LOOK = 5.0  # between two looks of the daemon


class _Child:
    def kill(self) -> None:
        """It has answered by then."""


class TurnsOfANode:
    """`wants` is what the daemon says each 5 s, `busy` whether a pass is at work."""

    def __init__(
        self,
        store: SimStore,
        clock: Clock,
        name: str,
        files: MemoryFiles | None = None,
        rules: FleetRules = ANY,
    ) -> None:
        self.store, self.clock, self.name, self.rules = store, clock, name, rules
        self.files = files or MemoryFiles()
        self.said: list[Event] = []
        self.wants: PlannedWork | None = None
        self.busy = False
        context = PodContext("", 0, "", name, f"{name}-pod", "kube-system", "cri-resmgr-installer")
        self.context = replace(context, rollout_namespace=NAMESPACE)
        self.turns = Turns(
            self.context,
            self.said.append,
            self.files,  # type: ignore[arg-type]
            ("program",),
            lambda: None,
            lambda: clock.now,
        )
        store.node(name)
        self.turns.begin(self, lambda: None)

    # -- the loop ---------------------------------------------------------------------------------

    def after(self, seconds: float, call: Callable[[], None]) -> int:
        return self.clock.after(seconds, call)

    def cancel(self, timer: int) -> None:
        self.clock.cancel(timer)

    def start(
        self,
        argv: Sequence[str],
        on_line: Callable[[str], None],
        on_end: Callable[[int], None],
        deadline: float,
        grace: float,
    ) -> _Child:
        def end() -> None:
            on_line(self._run(argv, deadline).output)
            on_end(0)

        self.clock.after(0.1, end)
        return _Child()

    def _run(self, argv: Sequence[str], _seconds: float) -> Finished:
        if argv[-2] == "cluster-heartbeat":
            return Finished(
                tuple(argv), 0, json.dumps(Heartbeat(parse_heartbeat(argv[-1]), self.store).run())
            )
        context, _, request = parse_request(argv[-1])
        return Finished(tuple(argv), 0, to_json(talk(context, request, self.store, lambda: self.store.now)))

    def talk(self) -> ApiCluster:
        """All that a daemon of this node says and asks, its heartbeats too."""
        cluster = ApiCluster(
            self.context,
            self.said.append,
            self.files,  # type: ignore[arg-type]
            ("program",),
            self._run,
            now=lambda: self.store.now,
            clock=lambda: self.clock.now,
        )
        cluster.begin(self, lambda: None)
        return cluster

    # -- the daemon -------------------------------------------------------------------------------

    def sees(self, *, ready: bool = True) -> None:
        """A heartbeat has looked at the Node."""
        self.turns.node_is(f"uid-{self.name}", canary=False, ready=ready)

    def goes_on(self, seconds: float = 1.0) -> None:
        until = self.clock.now + seconds
        while self.clock.now < until:
            self.turns.want(self.wants, self.rules, busy=self.busy)
            self.clock.run(min(until, self.clock.now + _LOOK))

    def gets_turn(self, work: PlannedWork = ONE) -> None:
        self.wants = work
        self.goes_on()
        assert self.granted == work

    def works(self, work: PlannedWork = ONE, *, ok: bool = True) -> None:
        """The pass whose turn has come begins and ends."""
        self.busy = True
        self.goes_on()
        self.busy, self.wants = False, None
        self.turns.worked(WorkResult(work, ok, "" if ok else "it is broken"))
        self.goes_on()

    def ends(self) -> None:
        """Its pod ends."""
        self.turns.end(self._run)

    @property
    def granted(self) -> PlannedWork | None:
        return self.turns.turn().granted
