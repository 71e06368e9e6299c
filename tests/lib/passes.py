"""Passes of the program itself on a simulated node, as its daemon starts them."""

from __future__ import annotations

import io
from pathlib import Path

from installer.daemon.child_run import ChildOutcome, ChildRun
from installer.daemon.decision import Action, Decision
from installer.daemon.poller import PollSnapshot
from installer.errors import InstallerError
from installer.inputs.load import Request
from installer.inputs.settings import KubeletSettings, Settings
from installer.model import paths
from installer.model.event import Event
from installer.model.host import UnitState
from installer.model.names import Mode
from installer.node.reconcile import look, reconcile
from installer.node.rescue import hold_kubelet, restart_proxy
from installer.report.events import JsonReporter, report_error
from tests.faults.disks.node import KUBELET
from tests.lib.fakes import failed
from tests.lib.slownode import SlowNode, build_slow_node, last_start_took, release

UNSURE, LONG = 5.0, 14.0
"""Seconds of a last start: after the one the next may turn out slow, for the other kubelet leaves."""

_PLACES = "policy:\n  Active: topology-aware\n  ReservedResources:\n    CPU: {}m\n"


class WatchedNode:
    """`restarts` are those of kubelet: when, whether it came to the relay, and whether its relay answered
    just before; the next `failing` ones fail. `said` is what passes have said."""

    def __init__(self, root: Path, restarts_per_hour: int = 3) -> None:
        self.payload, self.configs = root / "payload", root / "configs"
        release(self.payload, "one")
        self.configs.mkdir()
        kubelet = KubeletSettings(settle_seconds=1, restarts_per_hour=restarts_per_hour)
        self.settings = Settings(kubelet=kubelet)
        self.node: SlowNode = build_slow_node(root / "node", self.payload)
        self.configure(750)
        self.node.install(self.payload, self.configs)
        self.restarts: list[tuple[float, bool, bool]] = []
        self.failing = 0
        self.said: list[Event] = []
        job = self.node.systemd.on_job[KUBELET]

        def restart(method: str, unit: UnitState) -> tuple[str, UnitState]:
            answered = self.answers
            if self.failing:
                self.failing -= 1
                self.restarts.append((self.now, False, answered))
                return "failed", failed(unit)
            done = job(method, unit)
            process = self.node.fake.processes.processes[done[1].main_pid]
            self.restarts.append((self.now, process.uses_relay, answered))
            return done

        self.node.systemd.on_job[KUBELET] = restart

    @property
    def now(self) -> float:
        return self.node.fake.clock.time

    @property
    def answers(self) -> bool:
        return self.node.fake.cri.answers(paths.RELAY_ENDPOINT)

    @property
    def moves(self) -> list[bool]:
        """Of each restart, whether it came to the relay."""
        return [on_relay for _at, on_relay, _answered in self.restarts]

    def configure(self, reserved: int) -> None:
        (self.configs / "fallback.cfg").write_text(_PLACES.format(reserved))

    def starts_take(self, last: float, *, slow: bool) -> None:
        """The last start of the proxy, and whether the next ones are slow."""
        if self.answers:
            last_start_took(self.node, last)
        self.node.slow = ("one",) if slow else ()

    def see(self) -> PollSnapshot:
        node, unit = self.node, self.node.systemd.unit
        return PollSnapshot(
            inputs=((self.configs / "fallback.cfg").read_text(),),
            files=(node.read(paths.GUARD), node.read(paths.FALLBACK_CONFIG)),
            units=(unit(KUBELET).main_pid, unit(paths.PROXY_UNIT).main_pid),
            proxy=unit(paths.PROXY_UNIT),
            kubelet=unit(KUBELET),
            relay=self.answers,
            on_relay=node.on_relay,
            hold=(node.read(paths.HOLD) or b"").decode().strip(),
        )

    def begin(self, decision: Decision, asks: str, restarts_left: int) -> ChildOutcome:
        """The child run of a decision, from its begin to its end."""
        host, action = self.node.fake.host, decision.action
        asked = Request(
            Mode.INSTALL,
            self.settings,
            self.payload,
            self.configs,
            ask_first=asks,
            restarts_left=restarts_left,
            unattended=True,
        )
        if action is Action.PLAN:
            plan = look(asked, host).plan
            return ChildOutcome(3 if plan.steps else 0, would_restart=plan.restarts_kubelet)
        child, code = ChildRun(action, KUBELET, self.said.append, lambda: None), 0
        written = io.StringIO()
        emit = JsonReporter(written)
        try:
            if action is Action.RESTART_PROXY:
                restart_proxy(self.settings, host, emit)
            elif action in (Action.RESCUE, Action.HOLD):
                hold_kubelet(self.settings, host, emit, decision.why, restart=action is Action.RESCUE)
            else:
                reconcile(asked, host, emit)
        except InstallerError as error:
            code = error.exit_code
            report_error(error, "json", written)
        for line in written.getvalue().splitlines():
            child.line(line)
        return child.outcome(code)
