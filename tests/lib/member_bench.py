"""A node of a fleet on a simulated clock: what its daemon asks an API server of objects, and hears of it."""

from __future__ import annotations

from dataclasses import replace

from installer.cluster.client import ClusterClient
from installer.cluster.pod_context import PodContext
from installer.model.daemon import DaemonState, Phase
from installer.model.event import Event
from installer.model.fleet import FleetRules, PlannedWork, WorkResult
from installer.model.names import Mode
from tests.faults.fleets.sim import Clock, MemoryFiles, SimStore
from tests.faults.fleets.sim_loop import LATENCY, SimLoop
from tests.lib.fleet_bench import NAMESPACE, anywhere

ONE = PlannedWork("one", begins=True, soaks=True)
ANY = anywhere()
UNCHANGED = DaemonState(Mode.INSTALL, Phase.CHECKING, ready=False)
_LOOK = 5.0  # between two looks of the daemon


class MemberNode:
    """`wants` is what the daemon says each 5 s, `busy` whether a pass is at work. Its Node is there."""

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
        self.kubelet_version = ""
        self.wants: PlannedWork | None = None
        self.busy = False
        name = "cri-resmgr-installer"
        context = PodContext("", 0, "", self.name, f"{self.name}-pod", "kube-system", name)
        self.loop = SimLoop(clock, store, lambda: store.now)
        self.client = ClusterClient(
            replace(context, rollout_namespace=NAMESPACE),
            self.said.append,
            self.files,  # type: ignore[arg-type]
            ("program",),
            self.loop.run,
            now=lambda: store.now,
            clock=lambda: clock.now,
        )
        if f"/api/v1/nodes/{self.name}" not in store.objects:
            store.node(self.name)
        self.client.begin(self.loop, lambda: None)

    # -- the daemon -------------------------------------------------------------------------------

    def is_ready(self, ready: bool) -> None:
        """As kubelet says on its Node."""
        path = f"/api/v1/nodes/{self.name}"
        status = {"conditions": [{"type": "Ready", "status": str(ready)}]}
        version = {"nodeInfo": {"kubeletVersion": self.kubelet_version}}
        self.store.objects[path] = {**self.store.objects[path], "status": {**status, **version}}

    def sees(self, *, ready: bool = True) -> None:
        """It looks at its Node."""
        self.is_ready(ready)
        self.decides(read_node=True)
        self.clock.run(self.clock.now + 2 * LATENCY)

    def decides(self, *, read_node: bool = False) -> None:
        self.client.update(UNCHANGED, self.wants, self.rules, busy=self.busy, read_node=read_node)

    def goes_on(self, seconds: float = 1.0) -> None:
        until = self.clock.now + seconds
        while self.clock.now < until:
            self.decides()
            self.clock.run(min(until, self.clock.now + _LOOK))

    def is_permitted(self, work: PlannedWork = ONE) -> None:
        self.wants = work
        self.goes_on()
        assert self.granted == work

    def works(self, work: PlannedWork = ONE, *, ok: bool | None = True) -> None:
        """The pass that was permitted begins and ends, and kubelet has just been restarted."""
        self.busy = True
        self.goes_on()
        self.is_ready(False)
        self.busy, self.wants = False, None
        self.client.report_result(WorkResult(work, ok, "" if ok else "it is broken"))
        self.goes_on()

    def ends(self) -> None:
        """Its pod ends."""
        self.client.end()

    @property
    def granted(self) -> PlannedWork | None:
        return self.client.permission().granted
