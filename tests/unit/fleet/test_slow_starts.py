"""A fleet whose nodes carry out their passes themselves, each on a simulated host with a slow proxy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from installer.daemon.decision import Action, Decision
from installer.daemon.outcome import Outcome
from installer.daemon.poller import PollSnapshot
from tests.faults.fleets.scenarios import HOUR, RULES, safe
from tests.faults.fleets.sim import Nature, SimFleet, SimNode
from tests.lib.passes import UNSURE, WatchedNode

ANYWHERE = replace(RULES, order="any")
RESERVED = {"one": 750, "two": 500}


class HostedNode(SimNode):
    """Its passes are the program's own. `in_turn`: of each restart of kubelet, whether it came to the relay
    and whether the pass was permitted that."""

    def __init__(self, fleet: SimFleet, number: int, root: Path) -> None:
        super().__init__(fleet, number, Nature())
        root.mkdir()
        self.host = WatchedNode(root)
        self.in_turn: list[tuple[bool, bool]] = []

    def look(self, generation: str) -> PollSnapshot:
        return replace(self.host.see(), inputs=(generation,))

    def work(self, generation: str, asks: str, restarts_left: int) -> tuple[float, Outcome]:
        host, count = self.host, len(self.host.moves)
        host.configure(RESERVED[generation])
        began = host.now
        outcome = host.begin(Decision(Action.INSTALL, ask_first=asks), restarts_left)
        self.in_turn += [(on_relay, not asks) for on_relay in host.moves[count:]]
        self.busy = outcome.restarts > 0
        if outcome.code == 0:
            self.installed = generation
        return host.now - began, outcome


def build_fleet(tmp_path: Path, size: int) -> tuple[SimFleet, list[HostedNode]]:
    fleet = SimFleet([Nature()] * size, ANYWHERE)
    nodes = [HostedNode(fleet, number, tmp_path / f"{number}") for number in range(size)]
    fleet.nodes = list(nodes)
    fleet.install("one")
    return fleet, nodes


def test_kubelet_leaves_for_a_slow_start_with_a_permit_only(tmp_path: Path) -> None:
    """Nothing that is planned restarts kubelet, but the start may turn out slow."""
    fleet, nodes = build_fleet(tmp_path, 4)
    for node in nodes:
        node.host.starts_take(UNSURE, slow=True)
    fleet.controller.apply("two")
    fleet.run(4 * HOUR, "two")
    assert safe(fleet) == []
    assert [node.in_turn for node in nodes] == [[(False, True), (True, True)]] * 4
    assert [node.installed for node in nodes] == ["two"] * 4


def test_one_that_had_to_leave_without_a_permit_waits_for_it_to_come_back(tmp_path: Path) -> None:
    """Both the new and the good proxy are silent for longer than kubelet may hang."""
    fleet, nodes = build_fleet(tmp_path, 2)
    for node in nodes:
        node.host.starts_take(1.0, slow=True)
    fleet.controller.apply("two")
    fleet.run(4 * HOUR, "two")
    assert all(node.in_turn[0] == (False, False) and node.host.node.on_relay for node in nodes)
    assert not any((True, False) in node.in_turn for node in nodes)
    assert [node.installed for node in nodes] == ["two"] * 2
