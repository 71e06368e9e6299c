"""The daemon's side of the fleet with real children and the real loop, against the API server's stand-in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from installer.cluster.client import ClusterClient
from installer.cluster.leases import CANARY, RING, build_lease, leases_path
from installer.cluster.pod_context import find_pod_context
from installer.host.files import RootedFiles
from installer.model.event import Event
from installer.model.fleet import BREAKER, FLEET, FleetRules, PlannedWork, WorkResult
from installer.model.hold import PAUSE_ANNOTATION
from tests.host.daemon import SOON
from tests.lib import event_loop
from tests.lib.member_bench import UNCHANGED
from tests.lib.own_process import tidied
from tests.lib.throwaway.podserver import CHILD, ApiServer

NAMESPACE = "cri-resmgr-installer-rollout"
WORK = PlannedWork("one", begins=True, soaks=True)
RULES = FleetRules(hold_seconds=600)
PERMIT = f"{leases_path(NAMESPACE)}/permit-0"
THE_BREAKER = f"{leases_path(NAMESPACE)}/breaker-one"
THE_FLEET = f"{leases_path(NAMESPACE)}/{FLEET}"


class Run(event_loop.Scene):
    """A `run` of one node, as far as the fleet sees it."""

    def __init__(self, server: ApiServer, root: Path, node: str) -> None:
        super().__init__()
        root.mkdir(exist_ok=True)
        context = find_pod_context(server.environment())
        assert context
        context = replace(context, node=node, rollout_namespace=NAMESPACE)
        self.uid = server.at(f"/api/v1/nodes/{node}")["metadata"]["uid"]
        self.said: list[Event] = []
        self.client = ClusterClient(context, self.said.append, RootedFiles(root), CHILD)
        self._work: PlannedWork | None = None
        self._busy = False
        self._server, self._node = server, f"/api/v1/nodes/{node}"
        self.see(ready=False)
        self.client.begin(self.loop, lambda: None)

    def see(self, *, ready: bool = True) -> None:
        """It looks at its Node, and kubelet says there whether that is Ready."""
        self._server.at(self._node)["status"] = {"conditions": [{"type": "Ready", "status": str(ready)}]}
        self.client.update(UNCHANGED, self._work, RULES, busy=self._busy, read_node=True)

    def until(self, reached: Callable[[], bool], seconds: float = SOON) -> bool:
        found = super().until(lambda: reached() or bool(self.failures), seconds)
        assert not self.failures
        assert found, [event.message for event in self.said]
        return True

    def want(self, work: PlannedWork | None = WORK, *, busy: bool = False) -> None:
        self._work, self._busy = work, busy
        self.client.update(UNCHANGED, work, RULES, busy=busy, read_node=False)

    def granted(self) -> bool:
        return self.client.permission().granted is not None


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with tidied(), ApiServer(node="one") as serving:
        serving.add_node("two")
        serving.daemonset["status"] = {"desiredNumberScheduled": 2, "numberUnavailable": 2}
        yield serving


def holder(server: ApiServer) -> str:
    return str(server.at(PERMIT).get("spec", {}).get("holderIdentity", ""))


def test_a_permit_is_got_used_and_given_back(server: ApiServer, tmp_path: Path) -> None:
    run = Run(server, tmp_path / "one", "one")
    run.want()
    run.until(run.granted)
    assert holder(server) == f"one/{run.uid}"
    run.want(busy=True)
    assert run.client.permission().granted == WORK
    run.client.report_result(WorkResult(WORK, True))
    run.want(None)
    run.until(lambda: '"done": true' in server.at(THE_BREAKER)["metadata"]["annotations"][BREAKER])
    assert holder(server)  # the node is not Ready yet
    assert run.client.member.awaits_ready
    run.see()
    run.until(lambda: not holder(server))


def test_a_failure_is_told_before_the_permit_is_given_back(server: ApiServer, tmp_path: Path) -> None:
    run = Run(server, tmp_path / "one", "one")
    run.want()
    run.until(run.granted)
    run.client.report_result(WorkResult(WORK, False, "the relay does not answer"))
    run.want(None)
    run.see()
    run.until(lambda: not holder(server) and bool(server.events))
    assert [event["reason"] for event in server.events] == ["RolloutStopped"]
    other = Run(server, tmp_path / "two", "two")
    other.want()
    other.until(lambda: bool(other.client.permission().why))
    assert (
        other.client.permission().why
        == "generation one is stopped: it failed on node one: the relay does not answer"
    )


def test_a_run_that_starts_again_knows_its_permit(server: ApiServer, tmp_path: Path) -> None:
    first = Run(server, tmp_path / "one", "one")
    first.want()
    first.until(first.granted)
    again = Run(server, tmp_path / "one", "one")
    again.want()
    again.until(again.granted)
    leases = [name.name for name in server.below(leases_path(NAMESPACE))]
    assert [name for name in leases if name.startswith("permit-")] == ["permit-0"]
    again.client.report_result(WorkResult(WORK, True))
    again.want(None)
    again.see()
    again.until(lambda: not holder(server))


def test_a_permit_that_is_not_needed_any_more_is_given_back(server: ApiServer, tmp_path: Path) -> None:
    run = Run(server, tmp_path / "one", "one")
    run.want()
    run.until(run.granted)
    run.see()
    run.want(None)
    run.until(lambda: not holder(server))


def test_while_the_api_server_is_away_it_waits_and_says_so(server: ApiServer, tmp_path: Path) -> None:
    run = Run(server, tmp_path / "one", "one")
    server.go_away()
    run.want()
    run.until(lambda: bool(run.client.permission().why))
    assert "the request for a permit failed" in run.client.permission().why
    assert not run.granted()
    server.come_back()
    run.until(run.granted)


def test_an_end_that_cannot_be_told_is_why_nothing_begins(server: ApiServer, tmp_path: Path) -> None:
    run = Run(server, tmp_path / "one", "one")
    run.want()
    run.until(run.granted)
    server.go_away()
    run.client.report_result(WorkResult(WORK, False, "the relay does not answer"))
    run.want(PlannedWork("two", begins=True))
    run.until(lambda: "the request for a permit failed" in run.client.permission().why)
    server.come_back()
    run.until(run.granted)


def test_a_pause_is_seen_before_anything_begins(server: ApiServer, tmp_path: Path) -> None:
    lease = build_lease(FLEET, NAMESPACE, FLEET, annotations={PAUSE_ANNOTATION: "we look"})
    server.put(THE_FLEET, lease)
    run = Run(server, tmp_path / "one", "one")
    run.want()
    run.until(lambda: run.client.permission().why == "the rollout is paused: we look")
    assert not run.granted()
    assert not holder(server)


def test_many_large_nodes_with_the_label_are_no_reason_to_wait(server: ApiServer, tmp_path: Path) -> None:
    """As whole objects they are more than a node reads of an answer."""
    for at in range(600):
        server.add_node(f"labelled-{at}")
        node = server.at(f"/api/v1/nodes/labelled-{at}")
        node["metadata"]["labels"][RING] = CANARY
        node["metadata"]["annotations"] = {"of others": "x" * 8000}
    server.node["metadata"]["labels"][RING] = CANARY
    run = Run(server, tmp_path / "one", "one")
    run.want()
    run.until(lambda: run.granted() or bool(run.client.permission().why))
    assert run.granted(), run.client.permission().why
