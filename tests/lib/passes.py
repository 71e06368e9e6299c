"""Passes of the program itself on a simulated node, as its daemon starts them."""

from __future__ import annotations

import io
from pathlib import Path

from installer.cli.options import Options
from installer.cli.passes import build_request, carry_out
from installer.daemon.configuration import Command
from installer.daemon.decision import Decision, Order
from installer.daemon.outcome import PassReader, result_event
from installer.daemon.poller import PollSnapshot
from installer.errors import InstallerError
from installer.inputs.settings import KubeletSettings, Settings
from installer.model import paths
from installer.model.event import Event
from installer.model.host import UnitState
from installer.model.names import Mode
from installer.model.result import RunResult, Tally
from installer.node.picture import take_picture
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
            self.restarts.append((self.now, self.node.place(done[1]).on_relay, answered))
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
        asked = self._command.request(self.settings, Mode.INSTALL)
        return PollSnapshot(
            picture=take_picture(asked, node.fake.host)[0],
            proxy=unit(paths.PROXY_UNIT),
            kubelet=unit(KUBELET),
            relay=self.answers,
            on_relay=node.on_relay,
            moves=True,
            hold=(node.read(paths.HOLD) or b"").decode().strip(),
        )

    @property
    def _command(self) -> Command:
        return Command(Path(), self.payload, self.configs, None)

    def begin(self, decision: Decision, restarts_left: int) -> RunResult:
        """The pass that is decided on, from its begin to its end."""
        order = Order(decision.action, decision.why, restarts_left, decision.ask_first, decision.begins)
        options = Options(Path(), Path("/"), self.payload, True, self.configs, False, False, "json", False)
        asked = build_request(order, options, self.settings)
        reader, written, code = PassReader(self.said.append, lambda: None), io.StringIO(), 0
        emit = JsonReporter(written)
        tally = Tally(lambda result: emit(result_event(result)))
        try:
            carry_out(order, asked, self.node.fake.host, emit, tally)
        except InstallerError as error:
            code = error.exit_code
            tally.note(tally.result.failed(error))
            report_error(error, "json", written)
        for line in written.getvalue().splitlines():
            reader.line(line)
        return reader.end(code)
