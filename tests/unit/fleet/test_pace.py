"""How soon a node that waits asks again: the nodes of a fleet share the API server."""

from __future__ import annotations

from dataclasses import replace

import pytest

from installer.cluster.breaker import Breaker
from installer.cluster.leases import Holder, Permit, permit_name
from installer.cluster.rollout import FleetState, Rollout, Wait, wait_for_others
from installer.cluster.size import FleetSize
from installer.model.fleet import PlannedWork
from tests.lib.fleet_bench import REPAIR, RULES

NOW, PATH = 10_000.0, "/apis/apps/v1/daemonsets/d"
SOON = PlannedWork("one", restarts_kubelet=True, begins=True)  # whose canaries are not watched


def asks_again(nodes: int, waiting: int, work: PlannedWork) -> tuple[float, float]:
    """After how many seconds a node asks again, and over how many more it spreads that. The permits are
    taken, and canaries are at work."""
    size = FleetSize(PATH, nodes, waiting, NOW)
    permits = tuple(
        Permit(permit_name(index), f"n{index}/u", NOW, NOW, NOW + 600, "1")
        for index in range(max(1, nodes // 100))
    )
    breaker = Breaker(
        "one", begun=NOW, canaries=dict.fromkeys((f"n{index}" for index in range(60)), NOW), version="1"
    )
    state = FleetState(size, permits, breaker=breaker, is_counted=True)
    move = Rollout(state, Holder("me", "u"), work, RULES, PATH, NOW, lambda: 0.5, labelled=False).next_move()
    assert isinstance(move, Wait)
    return move.seconds, move.spread


@pytest.mark.parametrize(
    ("nodes", "waiting", "again"),
    [
        (3, 0, (2.0, 4.0)),
        (300, 30, (2.0, 155.0)),  # three permits, of which each is free again after 7.75 s
        (3000, 300, (2.0, 220.0)),  # of many, each is used for longer: 11 s
    ],
)
def test_who_waits_for_a_permit_asks_again_when_one_is_likely_to_be_free(
    nodes: int, waiting: int, again: tuple[float, float]
) -> None:
    assert asks_again(nodes, waiting, REPAIR) == again


@pytest.mark.parametrize(
    ("nodes", "waiting", "work", "again"),
    [
        (3, 0, SOON, (4.0, 4.0)),
        (3000, 0, SOON, (4.0, 200.0)),  # 15 questions a second
        (3000, 300, SOON, (4.0, 220.0)),
        (3000, 300, replace(SOON, restarts_kubelet=False), (4.0, 200.0)),  # it does not queue for a permit
    ],
)
def test_who_waits_for_a_canary_that_is_soon_through_asks_again_soon(
    nodes: int, waiting: int, work: PlannedWork, again: tuple[float, float]
) -> None:
    assert asks_again(nodes, waiting, work) == again


def test_who_was_just_too_late_asks_again_at_once() -> None:
    again = wait_for_others("took it")
    assert (again.seconds, again.spread) == (2.0, 4.0)
