"""What a Node says, compared with what its host is, again and again while something happens."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple, Self

from tests.cluster.world import Cluster, KubeNode

#: A Node may say for so long what was so: two heartbeats of the daemon, and a machine that is busy.
LATE = 30.0


class Seen(NamedTuple):
    """`says`: that it is served. `is_so`: kubelet was on the relay before and after that was read."""

    at: float
    says: bool
    is_so: bool


class Watch:
    """`with Watch(cluster) as watch:` looks each half second, and then tells."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._stop = cluster, threading.Event()
        self._seen: dict[str, list[Seen]] = {node.name: [] for node in cluster.nodes}
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def lies(self) -> list[str]:
        """Each stretch in which a Node said for too long that it is served, and was not."""
        return [line for name, seen in self._seen.items() for line in _lies(name, seen)]

    def _look(self) -> None:
        while not self._stop.wait(0.5):
            for node in self._cluster.nodes:
                self._seen[node.name].append(self._see(node))

    def _see(self, node: KubeNode) -> Seen:
        before, at = node.on_relay(), time.monotonic()
        says = self._cluster.says_served(node)
        return Seen(at, says, before or node.on_relay())


def _lies(name: str, seen: list[Seen]) -> Iterator[str]:
    for wrong, stretch in groupby(seen, lambda each: each.says and not each.is_so):
        found = list(stretch)
        lasted = found[-1].at - found[0].at
        if wrong and lasted > LATE:
            yield f"{name} said for {lasted:.0f} s that it is served, and kubelet was not on the relay"
