"""A policy of the daemon on a clock that the test sets, and what it may see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from installer.daemon.decision import Action, Decision
from installer.daemon.policy import Policy
from installer.daemon.poller import PollSnapshot
from installer.model.daemon import Installed, Phase
from installer.model.hold import BY_DAEMON
from installer.model.host import UnitState
from installer.model.result import RunResult
from installer.node.picture import Picture

OURS = ("CRI_RESMGR_INSTALLER_UNIT=digest",)


PROXY = UnitState("p", "loaded", "active", "running", main_pid=2, environment=OURS)


KUBELET = UnitState("k", "loaded", "active", "running", main_pid=3, environment=OURS)


CLEAN = Picture(wanted="i", inputs="i", installed=Installed("i"))


DRIFT = replace(CLEAN, differs="/etc/cri-resmgr/fallback.cfg: its content", due=True, in_files=True)


UNITS = replace(CLEAN, differs="kubelet.service: it is on its base endpoint", due=True)


NEW = replace(DRIFT, wanted="new", inputs="new", is_new=True)


NEWER = replace(NEW, wanted="newer", inputs="newer")


BAD = replace(NEW, due=False, code=5, remembered=True, reason="it is broken")
"""The new generation has failed here, and the good one is as it should be."""


GOOD = PollSnapshot(picture=CLEAN, proxy=PROXY, kubelet=KUBELET, on_relay=True)


DRIFTED = replace(GOOD, picture=DRIFT)


BARE = replace(
    GOOD, proxy=UnitState("p"), on_relay=False, relay=False, picture=replace(NEW, installed=Installed())
)


SILENT = replace(GOOD, relay=False, picture=UNITS)


DEAD = replace(SILENT, proxy=replace(PROXY, active_state="activating", main_pid=0))


HELD = replace(GOOD, on_relay=False, hold=f"{BY_DAEMON}dead", picture=UNITS)


OK, CHANGED = RunResult(0), RunResult(0, changed=True)


class Bench:
    """A policy and its clock. `look` steps, takes a picture if the policy asks for one, and begins what is
    decided."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.now = 1000.0
        self.snapshot = GOOD
        self.last = Decision(Action.NOTHING)
        self.looked_closer = False

    def look(self, snapshot: PollSnapshot | None = None, after: float = 0.0) -> Action:
        self.now += after
        self.snapshot = snapshot or self.snapshot
        self.last = self.policy.step(self.now, self.snapshot)
        self.looked_closer = self.last.looks_closer
        if self.looked_closer and self.snapshot.picture is not None:
            self.snapshot = replace(self.snapshot, picture=replace(self.snapshot.picture))
            self.last = self.policy.step(self.now, self.snapshot)
        assert self.last.wake > self.now  # the loop never spins
        if self.last.action not in (Action.NOTHING, Action.STOP):
            self.policy.begun(self.last, self.snapshot)
        return self.last.action

    def end(self, outcome: RunResult = OK, snapshot: PollSnapshot | None = None, took: float = 1.0) -> None:
        """What is seen then is as before, but for what a run puts right."""
        self.now += took
        right = self.policy.working in (Action.INSTALL, Action.REMOVE) and outcome.code == 0
        done = replace(self.snapshot, picture=CLEAN if right else self.snapshot.picture)
        self.snapshot = snapshot or done
        self.policy.ended(self.now, outcome, self.snapshot)

    def settle(self) -> None:
        assert self.look(GOOD) is Action.NOTHING
        assert self.phase is Phase.CONVERGED

    @property
    def phase(self) -> Phase:
        return self.policy.state.phase

    @property
    def ready(self) -> bool:
        return self.policy.state.ready


Make = Callable[..., Bench]


def rescue_in_a_repair(bench: Bench) -> PollSnapshot:
    """A rescue is at work, which has stopped a repair. Return what is seen."""
    bench.look(replace(GOOD, picture=DRIFT))
    dead = replace(DEAD, picture=DRIFT)
    bench.look(dead)
    assert bench.look(after=21) is Action.STOP
    bench.end(RunResult(143), dead)
    assert bench.look() is Action.RESCUE
    return dead


def held(bench: Bench, snapshot: PollSnapshot = HELD) -> None:
    bench.look(DEAD)
    assert bench.look(after=21) is Action.RESCUE
    bench.end(RunResult(0, restarts=1), snapshot)
