"""The hard cap: never more permits are held than the settings allow, whoever asks while another asks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from installer.cluster.kubeapi import Answer
from installer.cluster.leases import read_permits
from tests.lib.fleet_bench import LEASES, REPAIR, Node, Store, anywhere

NODES = "abcdef"
STEP = st.tuples(st.sampled_from(NODES), st.sampled_from(("begin", "begin", "end", "reboot", "wait", "late")))


class Crowded(Store):
    """Between any two requests of one node others may make theirs, as the steps say."""

    def __init__(self, limit: int, steps: list[tuple[str, str]]) -> None:
        super().__init__()
        self.size(100)
        self._limit, self._steps, self._asking = limit, steps, set[str]()
        rules = anywhere(concurrent_restarts=str(limit))
        self._nodes = {name: Node(self, name, rules) for name in NODES}

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Answer:
        self.next()
        answer = super().call(method, path, body)
        self.look()
        return answer

    def next(self) -> None:
        """Somebody who is not in the middle of a question does what comes next."""
        if not self._steps or self._steps[0][0] in self._asking:
            return
        name, what = self._steps.pop(0)
        self._asking.add(name)
        node = self._nodes[name]
        if what == "begin":
            node.begin(REPAIR)
        elif what == "end":
            node.end(work=REPAIR)
        elif what == "reboot":  # it has forgotten its permit
            self._nodes[name] = Node(self, name, node.rules)
        else:
            self.now += 100.0 if what == "wait" else 700.0  # longer than a permit is held
        self._asking.remove(name)

    def look(self) -> None:
        leases = [found for path, found in self.objects.items() if path.startswith(f"{LEASES}/permit-")]
        held = [permit.holder for permit in read_permits(leases) if permit.is_held(self.now)]
        assert len(held) <= self._limit
        assert len(set(held)) == len(held)

    def run(self) -> None:
        while self._steps:
            self.next()


@settings(max_examples=150, deadline=None)
@given(limit=st.integers(1, 3), steps=st.lists(STEP, min_size=5, max_size=40))
def test_never_more_permits_are_held_than_the_settings_allow(
    limit: int, steps: list[tuple[str, str]]
) -> None:
    Crowded(limit, steps).run()
