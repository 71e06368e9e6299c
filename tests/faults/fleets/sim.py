"""A cluster on a simulated clock: nodes with the watcher's own policy and its own syncs with the API server,
pods by the rules of the DaemonSet controller, and an API server of plain objects.

What is simulated is the host below: a pass takes its seconds, and succeeds or fails as the node's nature
says. Whatever decides, asks, waits, tells and tries again is the program's own.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from installer.cluster.kubeapi import Answer
from installer.cluster.leases import permits_of, read_permits
from installer.cluster.node_status import EVENTS_PATH
from installer.daemon.decision import Action
from installer.daemon.policy import BUSY
from installer.daemon.poller import PollSnapshot
from installer.model.daemon import Installed
from installer.model.fleet import REMOVAL, AskFirst, FleetRules, PlannedWork
from installer.model.host import UnitState
from installer.model.result import RunResult
from installer.node.picture import Picture
from tests.faults.fleets.sim_loop import SimLoop
from tests.faults.fleets.watcher import Watcher
from tests.lib.fleet_bench import DAEMONSET, LEASES, NAMESPACE, Store
from tests.lib.policy_bench import KUBELET, PROXY

_LOOK_SECONDS = 0.5  # a pass that changes nothing
_PULL_SECONDS = (3.0, 20.0)  # from a pod's creation to the start of its container
_BURST = 250  # pods that the controller creates or deletes at a time
_MIN_READY = 15.0  # minReadySeconds of the DaemonSet


@dataclass(frozen=True, slots=True)
class Nature:
    """What a node is like. `takes`: seconds of a pass that restarts kubelet. `bad`: generations that fail
    here. `skew`: of its clock. `light`: none restarts kubelet, as an upgrade; `soaks`: its canaries are
    watched, as of that, but not of another parameter of the same policy."""

    takes: float = 20.0
    bad: frozenset[str] = frozenset()
    skew: float = 0.0
    canary: bool = False
    light: bool = False
    soaks: bool = True


_FAILED = RunResult(5, True, remembered=True, rolled_back=True, restarts=1, reason="it does not start")
_KEPT = RunResult(3, would_restart=True)
_NOT_AGAIN = RunResult(5, remembered=True, reason="this generation failed on this host and is not retried")

_KINDS = (
    (f"{LEASES}/permit-", "permit"),
    (f"{LEASES}/breaker-", "breaker"),
    (f"{LEASES}/", "size of the fleet"),
    (LEASES, "all Leases of the rollout"),
    (DAEMONSET, "DaemonSet"),
    (EVENTS_PATH, "Event"),
    ("/api/v1/nodes/", "Node"),
    ("/api/v1/nodes", "canaries"),
)


def kind_of(method: str, path: str) -> str:
    """What a request is, in words: the verb, and the object."""
    return f"{method} {next(word for start, word in _KINDS if path.startswith(start))}"


class Clock:
    """`now` goes on from event to event."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._cancelled: set[int] = set()
        self._last = 0

    def after(self, seconds: float, call: Callable[[], None]) -> int:
        self._last += 1
        heapq.heappush(self._due, (self.now + max(0.0, seconds), self._last, call))
        return self._last

    def cancel(self, timer: int) -> None:
        self._cancelled.add(timer)

    def next_due(self) -> float:
        return self._due[0][0] if self._due else float("inf")

    def run(self, until: float, done: Callable[[], bool] = lambda: False, each: int = 64) -> None:
        """Up to this time, or until `done`, which is asked after so many events."""
        count = 0
        while self._due and self._due[0][0] <= until:
            at, number, call = heapq.heappop(self._due)
            if number in self._cancelled:
                self._cancelled.discard(number)
                continue
            self.now = at
            call()
            count += 1
            if count % each == 0 and done():
                return
        self.now = max(self.now, until)


class MemoryFiles:
    """A directory in memory, for what a daemon remembers."""

    def __init__(self) -> None:
        self._kept: dict[str, bytes] = {}

    def read(self, path: str) -> bytes | None:
        return self._kept.get(path)

    def status(self, path: str) -> object:
        return self._kept.get(path)

    def make_directory(self, path: str) -> None:
        """There are none."""

    def write(self, path: str, content: bytes, mode: int) -> None:
        self._kept[path] = content


class SimNode:
    """A host, its kubelet, and its pod. It is also the API server as this node sees it: each request counts.
    `silent`: the relay does not answer; `rescued`: the daemon has taken kubelet off it. `hold` is a person's
    or the daemon's, `blind` says why the host cannot be looked at. `boots` counts what
    has ended everything on it, `starts` those of kubelet, `asked` its requests."""

    def __init__(self, fleet: SimFleet, number: int, nature: Nature) -> None:
        self.fleet, self.number, self.nature = fleet, number, nature
        self.name = f"node-{number}"
        self.files = MemoryFiles()
        self.installed = ""
        self.failed: set[str] = set()  # generations that are not retried
        self.drifted = self.silent = self.rescued = False
        self.hold = self.blind = ""
        self.busy = False
        self.is_dead = False
        self.starts = self.boots = self.pods = self.asked = 0
        self.watcher: Watcher | None = None
        self.action = Action.INSTALL  # the last one
        self.unread: tuple[Action, RunResult] | None = None  # a pass that ended while there was no daemon
        self.pod_generation = ""
        fleet.store.node(self.name, canary=nature.canary)

    def wall(self) -> float:
        return self.fleet.store.now + self.nature.skew

    def call(self, method: str, path: str, body: Any = None) -> Answer:
        self.count(method, path)
        return self.fleet.store.call(method, path, body)

    def count(self, method: str, path: str) -> None:
        self.asked += 1
        self.fleet.per_second[int(self.fleet.clock.now)] += 1
        self.fleet.kinds[kind_of(method, path)] += 1

    # -- the pod ----------------------------------------------------------------------------------

    def start_pod(self, generation: str) -> None:
        self.pods += 1
        self.pod_generation = generation
        number = self.pods

        def start() -> None:
            if self.pods == number and not self.is_dead and generation not in self.fleet.unpullable:
                self.watcher = Watcher(self, generation)

        self.fleet.clock.after(random.uniform(*_PULL_SECONDS), start)

    def replace_pod(self) -> None:
        if not self.is_dead and self.watcher is not None:
            self.end_pod()
            self.start_pod(self.pod_generation)

    def end_pod(self) -> None:
        if self.watcher is not None:
            self.watcher.end()
            self.watcher = None
        self.fleet.controller.available(self, available=False)

    def pod_is(self, *, ready: bool) -> None:
        number = self.pods
        if not ready:
            self.fleet.controller.available(self, available=False)
            return

        def judge() -> None:
            watcher = self.watcher
            still = watcher is not None and watcher.is_running and watcher.policy.state.ready
            if still and self.pods == number:
                self.fleet.controller.available(self, available=True)

        self.fleet.clock.after(_MIN_READY, judge)

    # -- the host ---------------------------------------------------------------------------------

    def look(self, generation: str) -> PollSnapshot:
        good = bool(self.installed) and not (self.drifted or self.rescued)
        return PollSnapshot(
            picture=self.picture(generation),
            proxy=PROXY if self.installed else UnitState("p"),
            kubelet=KUBELET,
            relay=bool(self.installed) and not self.silent,
            on_relay=good,
            hold=self.hold,
            blind=self.blind,
        )

    def picture(self, generation: str) -> Picture:
        """What the engine would say of this host."""
        wanted = "" if generation == REMOVAL else generation
        begins = self.installed != wanted
        seen = Picture(wanted=wanted, inputs=generation, installed=Installed(self.installed))
        if begins and generation in self.failed:
            reason = "this generation failed on this host and is not retried"
            return replace(seen, code=5, remembered=True, reason=reason, is_new=True)
        if not self.lacks(generation):
            return seen
        work = self.work_for(generation)
        return replace(
            seen,
            differs="it differs",
            due=True,
            is_new=begins,
            in_files=True,
            work=work if work.restarts_kubelet or work.begins else None,
            restarts=int(work.restarts_kubelet),
            at_work="a run" if self.busy else "",
        )

    def lacks(self, generation: str) -> bool:
        """Whether it does not run that on the relay; of a removal: whether it runs anything."""
        wanted = "" if generation == REMOVAL else generation
        return self.installed != wanted or self.drifted or self.rescued

    def work_for(self, generation: str) -> PlannedWork:
        removes, heavy = generation == REMOVAL, not self.nature.light
        begins = bool(self.fleet.rules.successor) if removes else self.installed != generation
        soaks = begins and self.nature.soaks
        return PlannedWork(generation, heavy, begins=begins, soaks=soaks, removes=removes)

    def set_hold(self, why: str) -> tuple[float, RunResult]:
        """Seconds and end of a hold, which restarts nothing: kubelet stays where it is."""
        self.hold = why
        return 0.1, RunResult(0)

    def restart_proxy(self) -> tuple[float, RunResult]:
        """Seconds and end of a restart of the proxy, which does not help."""
        return 0.1, RunResult(0)

    def rescue(self, why: str) -> tuple[float, RunResult]:
        """Seconds and end of a pass that takes kubelet off the relay."""
        self.busy, self.rescued, self.hold = True, True, self.hold or why
        self.starts += 1
        return self.nature.takes, RunResult(0, True, restarts=1)

    def work(self, generation: str, asks: AskFirst, restarts_left: int) -> tuple[float, RunResult]:
        """Seconds and end of a pass. `asks`: what it may not do unasked."""
        if self.busy:
            return 0.1, RunResult(BUSY)
        picture, work = self.picture(generation), self.work_for(generation)
        done = RunResult(0, fleet_generation=generation)
        if picture.remembered:
            return _LOOK_SECONDS, replace(_NOT_AGAIN, fleet_generation=generation)
        if not picture.due:
            return _LOOK_SECONDS, done
        heavy = work.restarts_kubelet
        if asks is AskFirst.ALL or (asks is AskFirst.RESTARTS and heavy):
            return _LOOK_SECONDS, replace(_KEPT, planned=work, fleet_generation=generation)
        if not heavy:
            return _LOOK_SECONDS, replace(done, changed=True)
        if not restarts_left:
            return _LOOK_SECONDS, replace(_KEPT, fleet_generation=generation)
        self.busy = True
        self.starts += 1
        if picture.is_new and generation in self.nature.bad:
            return self.nature.takes, replace(_FAILED, fleet_generation=generation)
        return self.nature.takes, replace(done, changed=True, restarts=1)

    def run(self, watcher: Watcher, action: Action, seconds: float, outcome: RunResult) -> None:
        """Let the pass that this daemon has begun end after these seconds."""
        self.action, boots = action, self.boots

        def end() -> None:
            if self.boots == boots:
                self.end(watcher, action, outcome)

        self.fleet.clock.after(seconds, end)

    def end(self, began: Watcher, action: Action, outcome: RunResult) -> None:
        """A pass ends that this daemon has begun. The present one follows it to its end if it is worth it."""
        self.finish(action, began.generation, outcome)
        watcher = self.watcher
        followed = watcher is began or outcome.restarts > 0
        if watcher is not None and watcher.is_running and followed:
            watcher.ended(action, outcome)
        elif outcome.restarts:
            self.unread = (action, outcome)

    def finish(self, action: Action, generation: str, outcome: RunResult) -> None:
        if outcome.restarts:
            self.busy = False
        if outcome.restarts or outcome.changed:
            self.fleet.ended(self)
        if outcome.changed and outcome.code == 0 and action is not Action.RESCUE:
            self.installed = "" if generation == REMOVAL else generation
            self.drifted, self.rescued, self.hold = False, False, ""
            self.fleet.arrived(self)
        elif outcome.restarts and outcome.remembered:
            self.failed.add(generation)

    def die(self) -> None:
        """Its power fails, and all that ran there dies without a report."""
        self.is_dead = True
        self.boots += 1
        self.busy = False
        self.fleet.ended(self)
        if self.watcher is not None:
            self.watcher.alive = False
            self.watcher = None
        self.fleet.controller.available(self, available=False)

    def reboot(self, seconds: float) -> None:
        """What is on its disk stays."""
        if self.is_dead:
            return
        self.die()
        self.files, self.unread = MemoryFiles(), None  # /run

        def start() -> None:
            self.is_dead = False
            self.starts += 1
            self.start_pod(self.pod_generation)

        self.fleet.clock.after(seconds, start)

    def drift(self) -> None:
        """A node agent has taken our drop-in away and restarted kubelet."""
        if self.is_dead or self.busy or not self.installed:
            return
        self.drifted = True
        self.starts += 1
        if self.watcher is not None and self.watcher.is_running:
            self.watcher.stir()


class Controller:
    """The DaemonSet controller (Kubernetes documentation, "Perform a Rolling Update on a DaemonSet"): a new
    one starts everywhere; of an update, old pods that are not available are replaced outside of the budget,
    others as far as maxUnavailable (10 %) allows. A pod's end waits for its kubelet."""

    def __init__(self, fleet: SimFleet) -> None:
        self.fleet = fleet
        self.generation = ""
        self.new: list[int] = []  # nodes without a pod
        self.old: set[int] = set()  # nodes with a pod of an earlier template
        self.unavailable: set[int] = set()
        self._due = False

    def apply(self, generation: str) -> None:
        first = not self.generation
        self.generation = generation
        numbers = set(range(len(self.fleet.nodes)))
        if first:
            self.unavailable = set(numbers)
            self.new = sorted(numbers, reverse=True)
        else:
            self.old = numbers
        self._show()
        self.soon()

    def available(self, node: SimNode, *, available: bool) -> None:
        before = len(self.unavailable)
        (self.unavailable.discard if available else self.unavailable.add)(node.number)
        if len(self.unavailable) != before:
            self._show()
            self.soon()

    def soon(self) -> None:
        if not self._due:
            self._due = True
            self.fleet.clock.after(1.0, self._sync)

    def _show(self) -> None:
        self.fleet.store.size(len(self.fleet.nodes), len(self.unavailable))

    def _sync(self) -> None:
        self._due = False
        for number in (self.new.pop() for _ in range(min(_BURST, len(self.new)))):
            self.fleet.nodes[number].start_pod(self.generation)
        if self.new:
            self.soon()
        if self.old:
            self._replace()

    def _replace(self) -> None:
        budget = max(0, max(1, len(self.fleet.nodes) // 10) - len(self.unavailable))
        replaced = [*sorted(self.old & self.unavailable), *sorted(self.old - self.unavailable)[:budget]]
        if len(replaced) > _BURST:
            self.soon()
        for number in replaced[:_BURST]:
            self.old.discard(number)
            node = self.fleet.nodes[number]
            node.pod_generation = self.generation
            if not node.is_dead:
                node.end_pod()
                node.start_pod(self.generation)


class SimFleet:
    """`at_work` are nodes whose kubelet is restarted as planned; `most_at_work` at once so far. `touched` has
    the nodes that have begun a generation, `unasked` those without a permit. `per_second` counts
    requests by second, `kinds` by what they are. `done_at` has the times at which planned work was."""

    def __init__(
        self,
        natures: Sequence[Nature],
        rules: FleetRules,
        seed: int = 0,
        clock: Clock | None = None,
        store: Any = None,
        loop: type[SimLoop] = SimLoop,
    ) -> None:
        random.seed(seed)
        self.chance: Callable[[], float] = random.random  # the program's own jitter
        self.rules, self.loop = rules, loop
        self.clock = clock or Clock()
        self.store = store or SimStore(self.clock)
        self.annotates = True  # what a daemon does, stands on its Node
        self.namespace = NAMESPACE  # of the permits
        self.unpullable: set[str] = set()
        self.at_work: set[int] = set()
        self.most_at_work = 0
        self.touched: dict[str, set[int]] = {}
        self.unasked: list[str] = []
        self.kinds = Counter[str]()
        self.begun_at = 0.0  # the last planned work
        self.done_at: list[float] = []
        self.per_second = Counter[int]()
        self.controller = Controller(self)
        self.nodes = [SimNode(self, number, nature) for number, nature in enumerate(natures)]

    def began(self, node: SimNode, permitted: PlannedWork | None, generation: str) -> None:
        if permitted is None:
            self.unasked.append(node.name)
        self.begun_at = self.clock.now
        self.at_work.add(node.number)
        self.most_at_work = max(self.most_at_work, len(self.at_work))
        self.touched.setdefault(generation, set()).add(node.number)

    def ended(self, node: SimNode) -> None:
        self.at_work.discard(node.number)

    def arrived(self, _node: SimNode) -> None:
        self.done_at.append(self.clock.now)

    # -- what tests ask ---------------------------------------------------------------------------

    def healthy(self) -> list[SimNode]:
        return [node for node in self.nodes if not node.is_dead]

    def installed_other_than(self, generation: str) -> int:
        return sum(node.installed != generation for node in self.nodes)

    @property
    def asked(self) -> int:
        """Requests so far."""
        return sum(node.asked for node in self.nodes)

    @property
    def limit(self) -> int:
        return permits_of(self.rules.concurrent_restarts, len(self.nodes))

    def install(self, generation: str) -> None:
        """As if it had been there for long; the pods come within a minute."""
        for node in self.nodes:
            node.installed = generation
        self.controller.apply(generation)
        self.run(120)

    def lacking(self, generation: str) -> list[str]:
        """Healthy nodes that do not run it, though they could."""
        return [
            node.name
            for node in self.healthy()
            if not (node.hold or node.blind)
            if node.drifted or (node.installed != generation and generation not in node.nature.bad)
        ]

    def run(self, seconds: float, generation: str = "") -> float:
        """So long, or until every healthy node runs the generation and all permits are given back; how long
        that took."""
        began = self.clock.now

        def done() -> bool:
            return bool(generation) and not (self.at_work or self.holders() or self.lacking(generation))

        self.clock.run(began + seconds, done, max(64, 2 * len(self.nodes)))
        return self.clock.now - began

    def holders(self) -> list[str]:
        """Of permits that have not expired."""
        now = self.store.now
        return [permit.holder for permit in read_permits(self.store.leases()) if permit.is_held(now)]


class SimStore(Store):
    """The API server on the fleet's clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._epoch = clock, 1_000_000.0
        super().__init__()

    @property
    def now(self) -> float:
        return self._epoch + self._clock.now

    @now.setter
    def now(self, value: float) -> None:
        """Set by nobody."""

    def node(self, name: str, *, canary: bool = False, uid: str = "") -> None:
        super().node(name, canary=canary, uid=uid)
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        self.objects[f"/api/v1/nodes/{name}"]["status"] = ready

    def leases(self) -> list[dict[str, Any]]:
        """Of the rollout."""
        return [self.objects[path] for path in self.objects.below.get(LEASES, ())]
