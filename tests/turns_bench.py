"""The daemon's side of the fleet on a simulated clock: its own questions to an API server of objects."""

from __future__ import annotations

from dataclasses import replace

from installer.cluster.client import ApiCluster
from installer.cluster.pod_context import PodContext
from installer.cluster.turns import Turns
from installer.model.event import Event
from installer.model.fleet import FleetRules, PlannedWork, WorkResult
from tests.faults.fleets.sim import Clock, MemoryFiles, SimStore
from tests.faults.fleets.sim_loop import SimLoop
from tests.fleet_bench import NAMESPACE, anywhere

ONE = PlannedWork("one", begins=True, soaks=True)
ANY = anywhere()
_LOOK = 5.0  # between two looks of the daemon


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
        self.loop = SimLoop(clock, store, lambda: store.now)
        self.turns.begin(self.loop, lambda: None)

    def talk(self) -> ApiCluster:
        """All that a daemon of this node says and asks, its heartbeats too."""
        cluster = ApiCluster(
            self.context,
            self.said.append,
            self.files,  # type: ignore[arg-type]
            ("program",),
            self.loop.run,
            now=lambda: self.store.now,
            clock=lambda: self.clock.now,
        )
        cluster.begin(self.loop, lambda: None)
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
        self.turns.end(self.loop.run)

    @property
    def granted(self) -> PlannedWork | None:
        return self.turns.turn().granted
