"""What the hard cap rests on beside the permits themselves, whatever a daemon sees and does in any order.

A permit is given back only while no pass is at work. One that work has used waits until the node is Ready.
One that is held for longer than hold_seconds is forgotten: others may have it. A daemon that was replaced
touches none, and remembers nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from installer.cluster.kubeapi import Answer
from installer.cluster.leases import read_permits
from installer.model.fleet import PlannedWork, WorkResult
from tests.faults.fleets.sim import Clock, SimStore
from tests.faults.fleets.sim_loop import LATENCY
from tests.lib.fleet_bench import LEASES
from tests.lib.member_bench import ONE, MemberNode

WORKS = {"one": ONE, "two": PlannedWork("two", begins=True), "files": PlannedWork("one", False, begins=True)}
BEGINS, ENDS = ("wants one", "begins"), ("ends well", "fails")
FACTS = st.one_of(
    st.sampled_from((BEGINS, (*BEGINS, "ends well", "wait 900"))),
    st.sampled_from((*ENDS, "its pod ends", "wait 900")).map(lambda last: (*BEGINS, last)),
    st.sampled_from(("wants one", "wants two", "wants files", "wants nothing")).map(lambda fact: (fact,)),
    st.sampled_from(("begins", *ENDS, "another works", "its pod ends")).map(lambda fact: (fact,)),
    st.sampled_from(("ready", "ready", "not ready", "wait 900")).map(lambda fact: (fact,)),
    st.sampled_from(("away", "back", "another takes it", "a newer one comes")).map(lambda fact: (fact,)),
    st.sampled_from(("wait 2", "wait 20", "wait 60")).map(lambda fact: (fact,)),
)
NEVER = float("inf")
LOOK = 5.0  # between two looks of the daemon
ASYNC = LATENCY + 0.01  # what was asked for before may arrive so much later


class Server(SimStore):
    """As one node sees it: `judges` is called with each permit that it has written, as it was before."""

    def __init__(
        self, clock: Clock, shared: SimStore, judges: Callable[[str, Mapping[str, Any]], None]
    ) -> None:
        super().__init__(clock)
        self._shared, self._judges, self.objects = shared, judges, shared.objects

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Answer:
        name = (body or {}).get("metadata", {}).get("name") or path.rpartition("/")[2]
        before = self._shared.objects.get(f"{LEASES}/{name}", {})
        answer = self._shared.call(method, path, body)
        if method != "GET" and name.startswith("permit-") and answer.ok:
            self._judges(method, before)
        return answer


class Life:
    """One node, its daemons one after the other, and what the rules say of each request."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.store = SimStore(self.clock)
        self.store.size(3)
        self.server = Server(self.clock, self.store, self.judges)
        self.node = MemberNode(self.server, self.clock, "node")
        self.node.sees()
        self.others = [MemberNode(self.store, self.clock, f"other-{at}") for at in range(2)]
        self.work: PlannedWork | None = None
        self.busy_since = self.replaced_at = NEVER
        self.used = self.ready = False
        self.started_at = 0.0
        self.remembered: object = None

    # -- the rules --------------------------------------------------------------------------------

    def judges(self, method: str, permit: Mapping[str, Any]) -> None:
        assert self.clock.now <= self.replaced_at + ASYNC
        if method != "PATCH":  # it takes the permit: one that had expired is another's, as far as it knows
            self.used &= any(found.is_held(self.store.now) for found in read_permits([permit]))
            return
        assert permit["spec"]["holderIdentity"] == "node/uid-node"
        assert self.clock.now <= self.busy_since + ASYNC
        assert self.ready or not self.used
        known = self.store.now - self.clock.now + self.started_at + self.node.rules.hold_seconds
        assert self.store.now <= max(known, read_permits([permit])[0].expires) + LOOK + ASYNC
        self.used = False

    # -- the facts --------------------------------------------------------------------------------

    def meets(self, fact: str) -> None:
        what, _, how = fact.partition(" ")
        if what == "wants" and not self.node.busy and self.replaced_at == NEVER:
            self.node.wants = WORKS.get(how)
        elif fact == "begins" and self.node.granted and not self.node.busy:
            self.work, self.node.busy, self.busy_since = self.node.granted, True, self.clock.now
        elif fact == "another works" and not self.node.busy:  # a repair, which needs no permit
            self.work, self.node.busy, self.busy_since = None, True, self.clock.now
        elif fact in ("ends well", "fails") and self.node.busy:
            self.ends(ok=fact == "ends well")
        elif fact in ("ready", "not ready"):
            self.ready = fact == "ready"
            self.node.sees(ready=self.ready)
        elif fact in ("away", "back"):
            self.store.away = Answer(503, failure="503") if fact == "away" else None
        elif fact == "its pod ends":
            self.used = self.used and self.node.busy  # nobody is left to see it Ready
            self.node.ends()
            self.comes_again()
        elif fact == "another takes it":
            self.taken_by_another()
        elif fact == "a newer one comes" and self.replaced_at == NEVER:
            self.node.client.become(self.node.client.member.handed_over())
            self.node.wants, self.replaced_at = None, self.clock.now
            self.remembered = dict(self.node.files._kept)
        self.node.goes_on(float(how) if what == "wait" else 1.0)

    @property
    def holds(self) -> bool:
        """Whether it has a permit, by the Leases."""
        return "node/uid-node" in self.store.holders()

    def ends(self, *, ok: bool) -> None:
        self.node.busy, self.busy_since = False, NEVER
        if self.work is not None:
            self.node.wants = None
            self.used, self.ready = self.holds, False
            self.node.is_ready(False)
            self.node.client.report_result(WorkResult(self.work, ok, "" if ok else "it is broken"))

    def comes_again(self) -> None:
        """The next pod's daemon; a pass that is at work goes on, and it follows that to its end."""
        busy, work = self.node.busy, self.work
        self.node.is_ready(False)
        self.node = MemberNode(self.server, self.clock, "node", self.node.files)
        self.node.busy, self.work, self.started_at = busy, work, self.clock.now
        self.used, self.ready, self.replaced_at = self.holds, False, NEVER
        self.node.sees(ready=False)

    def taken_by_another(self) -> None:
        """As soon as it has expired."""
        other = self.others[0]
        other.sees()
        other.wants = WORKS["two"]
        other.goes_on(2.0)
        other.wants = None
        other.goes_on(2.0)

    def check(self) -> None:
        if self.replaced_at < self.clock.now:
            assert self.remembered == self.node.files._kept


@settings(max_examples=100, deadline=None)
@given(st.lists(FACTS, min_size=2, max_size=15))
def test_a_permit_is_kept_for_as_long_as_it_is_needed(stories: list[tuple[str, ...]]) -> None:
    life = Life()
    for fact in itertools.chain(*stories):
        life.meets(fact)
        life.check()
