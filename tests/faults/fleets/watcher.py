"""One pod's daemon on a simulated clock: its own policy, and its own syncs with the API server."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from installer.cluster.client import ClusterClient
from installer.cluster.pod_context import PodContext
from installer.daemon.configuration import Configuration
from installer.daemon.decision import Action, Decision
from installer.daemon.fleet import report_end, report_state
from installer.daemon.policy import Policy
from installer.daemon.poller import PollSnapshot
from installer.model.fleet import REMOVAL
from installer.model.names import Mode
from installer.model.result import RunResult
from tests.faults.fleets.sim_loop import LATENCY

if TYPE_CHECKING:
    from tests.faults.fleets.sim import SimNode

_HEARTBEAT = 5.0  # between two looks of the daemon; here only when work was permitted within the last minute
_MINUTE = 60.0


class Watcher:
    """One pod's daemon: what `loop.py` does, without a host."""

    def __init__(self, node: SimNode, generation: str) -> None:
        self.node, self.cluster_of, self.generation = node, node.fleet, generation
        self.clock = node.fleet.clock
        self.loop = node.fleet.loop(self.clock, node, self._wall, lambda: not self.is_running)
        pod = f"{node.name}-{node.pods}"
        ours, annotates = "cri-resmgr-installer", node.fleet.annotates
        permits = node.fleet.namespace
        context = PodContext("", 0, "", node.name, pod, "kube-system", ours, annotates, permits)
        mode = Mode.REMOVE if generation == REMOVAL else Mode.INSTALL
        configuration = Configuration(mode, rules=node.fleet.rules)
        self.policy = Policy(configuration, node.fleet.chance, self.clock.now)
        self.cluster = ClusterClient(
            context,
            lambda _event: None,
            node.files,  # type: ignore[arg-type]
            ("program",),
            self.loop.run,
            now=self._wall,
            clock=self._monotonic,
            chance=node.fleet.chance,
        )
        self.alive, self.superseded = True, False  # by a newer daemon
        self._timer = 0
        self._granted_at = -_MINUTE
        self._published: Any = None
        self.cluster.begin(self.loop, self.stir)
        if node.busy or node.unread:  # a pass outlives its pod: it is followed to its end
            self.policy.begun(Decision(node.action), self._look(), by_another=True)
        if node.unread:
            unread, node.unread = node.unread, None
            self.loop.after(LATENCY, partial(self.ended, *unread))
        self._set_timer(0.0)

    def _wall(self) -> float:
        """The node's own clock, which may be wrong."""
        return self.node.wall()

    def _monotonic(self) -> float:
        return self.clock.now

    @property
    def is_running(self) -> bool:
        return self.alive and not self.node.is_dead

    # -- the daemon -----------------------------------------------------------------------------

    def stir(self) -> None:
        self._set_timer(0.05)

    def _set_timer(self, seconds: float) -> None:
        if self._timer:
            self.loop.cancel(self._timer)
        self._timer = self.loop.after(seconds, self.turn)

    def _look(self) -> PollSnapshot:
        seen, permission = self.node.look(self.generation), self.cluster.permission()
        return replace(seen, paused=permission.paused, permission=permission, superseded=self.superseded)

    def turn(self) -> None:
        if self._timer:  # it was due later, and something has happened
            self.loop.cancel(self._timer)
        self._timer = 0
        snapshot = self._look()
        decision = self.policy.step(self.clock.now, snapshot)
        if decision.action not in (Action.NOTHING, Action.STOP):
            self._begin(decision, snapshot)
        self._publish(decision, snapshot)
        self._granted_at = self.clock.now if snapshot.permission.granted else self._granted_at
        due, waits = decision.due - self.clock.now, self.policy.planned_work and not self.policy.working
        soon = waits and self.clock.now - self._granted_at < _MINUTE
        self._set_timer(min(due, _HEARTBEAT) if soon else due)

    def _publish(self, decision: Decision, snapshot: PollSnapshot) -> None:
        state, before = self.policy.state, self._published
        self._published = state
        if before is None or state.ready != before.ready:
            self.node.pod_is(ready=state.ready)
        report_state(self.cluster, self.policy, decision, snapshot)

    def _begin(self, decision: Decision, snapshot: PollSnapshot) -> None:
        self.policy.begun(decision, snapshot)
        permitted = self.policy.permitted
        if decision.action is Action.HOLD:
            seconds, outcome = self.node.set_hold(decision.why)
        elif decision.action is Action.RESTART_PROXY:
            seconds, outcome = self.node.restart_proxy()
        elif decision.action is Action.RESCUE:
            seconds, outcome = self.node.rescue(decision.why)
        else:
            seconds, outcome = self.node.work(self.generation, decision.ask_first, self.policy.restarts_left)
        is_planned = decision.action is not Action.RESCUE and not decision.is_return
        if is_planned and (outcome.restarts or outcome.changed):
            self.node.fleet.began(self.node, permitted, self.generation)
        self.node.run(self, decision.action, seconds, outcome)

    def ended(self, action: Action, outcome: RunResult) -> None:
        """A pass has ended, which this daemon or an earlier one has begun."""
        if self.policy.working:
            report_end(self.cluster, self.policy, action, outcome)
            self.policy.ended(self.clock.now, outcome, self._look())
            self.turn()

    def end(self) -> None:
        """The pod is deleted. A pass that it has begun goes on."""
        if self.is_running:
            self.cluster.end(replaced=self.superseded)
        self.alive = False
        if self._timer:
            self.loop.cancel(self._timer)
