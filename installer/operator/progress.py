"""How far a change of a whole fleet is, and when it may be through: from one look, without a memory. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from installer.model.daemon import Phase
from installer.model.instant import parse_time
from installer.model.overview import NodeHealth, NodeView, Progress, Rollout

_WINDOW = 3600.0  # seconds; what was finished earlier says nothing of the present pace
_FEWEST = 3  # nodes; the pace of fewer is chance


def see_progress(nodes: Collection[NodeView], rollouts: Sequence[Rollout], now: float) -> Progress | None:
    """None while nothing is to be done. `now` is a time of the epoch, by the API server.

    The pace is that of the nodes that were changed last, and since the canaries were through: before that
    most nodes wait, however fast they are. Nodes that need a person are not waited for.
    """
    working = [node for node in nodes if node.health is NodeHealth.WORKING]
    waiting = sum(node.phase == Phase.WAITING for node in working)
    outdated = sum(each.outdated for each in rollouts)
    left = len(working) + outdated
    if not left:
        return None
    begun = [each for rollout in rollouts for each in rollout.generations]
    passed = max((parse_time(each.passed) for each in begun if each.passed), default=0.0)
    since = max(now - _WINDOW, passed)
    done = sorted(
        at for at in (parse_time(node.changed) for node in nodes if node.changed) if since < at <= now
    )
    if len(done) < _FEWEST or now <= done[0] or any(each.is_stopped for each in rollouts):
        return Progress(waiting, len(working) - waiting, outdated)
    pace = len(done) / (now - done[0])
    return Progress(waiting, len(working) - waiting, outdated, round(pace * 3600), round(left / pace))
