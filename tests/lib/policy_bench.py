"""A policy of the daemon on a clock that the test sets, and what it may see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from installer.daemon.decision import Action, Decision
from installer.daemon.outcome import Outcome
from installer.daemon.policy import Policy
from installer.daemon.poller import PollSnapshot
from installer.model.daemon import Phase
from installer.model.hold import BY_DAEMON
from installer.model.host import UnitState

OURS = ("CRI_RESMGR_INSTALLER_UNIT=digest",)


PROXY = UnitState("p", "loaded", "active", "running", main_pid=2, environment=OURS)


KUBELET = UnitState("k", "loaded", "active", "running", main_pid=3, environment=OURS)


GOOD = PollSnapshot(inputs=("i",), files=("f",), units=("u",), proxy=PROXY, kubelet=KUBELET, on_relay=True)


BARE = replace(GOOD, proxy=UnitState("p"), on_relay=False, relay=False, units=("bare",))


SILENT = replace(GOOD, relay=False)


DEAD = replace(SILENT, proxy=replace(PROXY, active_state="activating", main_pid=0), units=("dead",))


HELD = replace(GOOD, on_relay=False, hold=f"{BY_DAEMON}dead", units=("held",))


OK, CHANGED = Outcome(0), Outcome(0, changed=True)


class Bench:
    """A policy and its clock. `look` steps, and begins what is decided."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.now = 1000.0
        self.snapshot = GOOD
        self.last = Decision(Action.NOTHING)

    def look(self, snapshot: PollSnapshot | None = None, after: float = 0.0) -> Action:
        self.now += after
        self.snapshot = snapshot or self.snapshot
        self.last = self.policy.step(self.now, self.snapshot)
        assert self.last.wake > self.now  # the loop never spins
        if self.last.action not in (Action.NOTHING, Action.STOP):
            self.policy.begun(self.last, self.snapshot)
        return self.last.action

    def end(self, outcome: Outcome = OK, snapshot: PollSnapshot | None = None, took: float = 1.0) -> None:
        self.now += took
        self.snapshot = snapshot or self.snapshot
        self.policy.ended(self.now, outcome, self.snapshot)

    def settle(self) -> None:
        assert self.look(GOOD) is Action.INSTALL
        self.end()
        assert self.look() is Action.NOTHING

    @property
    def phase(self) -> Phase:
        return self.policy.state.phase

    @property
    def ready(self) -> bool:
        return self.policy.state.ready


Make = Callable[..., Bench]


def held(bench: Bench, snapshot: PollSnapshot = HELD) -> None:
    bench.look(DEAD)
    assert bench.look(after=21) is Action.RESCUE
    bench.end(Outcome(0, restarts=1), snapshot)
