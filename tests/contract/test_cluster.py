"""The real client, the real children and the real loop against the API server's stand-in."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import trustme

from installer import __version__
from installer.cluster.client import ClusterClient
from installer.cluster.decommission import Decommission
from installer.cluster.kubeapi import Answer, KubeApi
from installer.cluster.leases import leases_path
from installer.cluster.member import Periods
from installer.cluster.node_status import NodeStatus
from installer.cluster.pod_context import PodContext, find_pod_context
from installer.cluster.sync import SyncReply, SyncRequest
from installer.cluster.sync_child import Sync, sync
from installer.host.files import RootedFiles
from installer.model.daemon import DaemonState, Phase
from installer.model.event import Event
from installer.model.fleet import DEFAULT_RULES
from installer.model.hold import PAUSE_ANNOTATION
from installer.model.jsontext import from_json, to_json
from installer.model.names import NOT_READY_TAINT, READY_CONDITION, READY_LABEL, STATUS, Mode
from tests.lib import event_loop
from tests.lib.member_bench import UNCHANGED
from tests.lib.own_process import tidied
from tests.lib.rules import rule
from tests.lib.throwaway.podserver import CHILD, ApiServer
from tests.lib.throwaway.seen_requests import SeenRequests

FAST = Periods(gap=0.1, paused=0.2, retry=(0.2, 0.2))
EVENT = {"type": "Normal", "reason": "Converged", "message": "done", "time": 0.0}


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as serving:
        yield serving


@pytest.fixture
def context(server: ApiServer) -> PodContext:
    found = find_pod_context(server.environment())
    assert found
    return found


@pytest.fixture
def api(context: PodContext) -> Iterator[KubeApi]:
    client = KubeApi(context.host, context.port, Path(context.account), time.monotonic() + 60)
    yield client
    client.close()


def heard(order: SyncRequest) -> SyncReply:
    """What a child says."""
    return from_json(SyncReply, sync(to_json(order)))


# -- the client ---------------------------------------------------------------------------


def test_an_object_is_read(server: ApiServer, api: KubeApi) -> None:
    answer = api.call("GET", server.node_path)
    assert answer.ok
    assert answer.body["metadata"]["name"] == server.node_name


def test_an_object_is_patched_and_created(server: ApiServer, api: KubeApi) -> None:
    patch = {"metadata": {"annotations": {"a": "b"}}}
    assert api.call("PATCH", server.node_path, patch).ok
    assert server.annotations == {"a": "b"}
    created = api.call("POST", leases_path(server.namespace), {"metadata": {"name": "mine"}})
    assert (created.code, created.ok) == (201, True)


@pytest.mark.parametrize(("code", "denied"), [(401, True), (403, True), (404, False), (500, False)])
def test_a_failure_keeps_its_code_and_the_servers_word(
    server: ApiServer, api: KubeApi, code: int, denied: bool
) -> None:
    server.fail(code=code)
    answer = api.call("GET", server.node_path)
    assert (answer.code, answer.ok, answer.denied) == (code, False, denied)
    assert answer.body["kind"] == "Status"
    assert answer.failure.startswith(f"{code}: ")


def test_one_failure_does_not_spoil_the_connection(server: ApiServer, api: KubeApi) -> None:
    server.fail(part="/daemonsets", code=403)
    assert api.call("GET", server.daemonset_path).denied
    assert api.call("GET", server.node_path).ok


@pytest.mark.parametrize("code", [200, 404, 502])
def test_a_proxys_page_is_no_object(server: ApiServer, api: KubeApi, code: int) -> None:
    server.fail(code=code, page=True)
    answer = api.call("GET", server.node_path)
    assert (answer.code, answer.ok, dict(answer.body)) == (code, False, {})


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("7", 7.0),
        ("86400", 300.0),
        ("9" * 400, 300.0),
        ("-5", 0.0),
        ("Wed, 21 Oct 2099 07:28:00 GMT", 0.0),
        ("", 0.0),
    ],
    ids=lambda found: str(found)[:10],
)
def test_a_server_is_left_alone_for_five_minutes_at_most(
    server: ApiServer, api: KubeApi, said: str, seconds: float
) -> None:
    """Whatever stands in between says of a day: a pause is to be seen."""
    server.fail(part="/nodes", code=429, retry_after=said)
    assert api.call("GET", server.node_path).retry_after == seconds


def test_a_slow_server_is_waited_for(server: ApiServer, api: KubeApi) -> None:
    server.fail(part="/nodes", delay=0.3)
    assert api.call("GET", server.node_path).ok


def test_a_server_that_hangs_costs_one_answer_not_the_next(server: ApiServer, context: PodContext) -> None:
    client = KubeApi(context.host, context.port, Path(context.account), time.monotonic() + 2)
    server.fail(part="/nodes", hang=True)
    answer = client.call("GET", server.node_path)
    assert (answer.code, answer.failure) == (0, "no answer in time")
    assert client.call("GET", server.daemonset_path).ok
    client.close()


def test_a_server_that_is_away_is_not_tried_again(server: ApiServer, api: KubeApi) -> None:
    server.go_away()
    assert "refused" in api.call("GET", server.node_path).failure
    server.come_back()
    assert "refused" in api.call("GET", server.node_path).failure


@rule("R9")
def test_a_client_has_one_deadline_for_all(server: ApiServer, context: PodContext) -> None:
    client = KubeApi(context.host, context.port, Path(context.account), time.monotonic() + 0.3)
    server.fail(hang=True)
    started = time.monotonic()
    for _ in range(3):
        assert not client.call("GET", server.node_path).ok
    assert time.monotonic() - started < 60
    client.close()


def test_a_rotated_token_is_read_anew(server: ApiServer, context: PodContext) -> None:
    assert heard(SyncRequest(context, read_node=True)).parts["node"] == ("ok", "")
    server.rotate_token()
    assert heard(SyncRequest(context, read_node=True)).parts["node"] == ("ok", "")


def test_an_old_token_is_denied(server: ApiServer, context: PodContext) -> None:
    server.token = "another"
    answer = heard(SyncRequest(context, read_node=True))
    assert {found[0] for found in answer.parts.values()} == {"denied"}
    assert answer.node
    assert answer.node.paused is None


def test_a_server_with_anothers_certificate_gets_no_token(server: ApiServer, api: KubeApi) -> None:
    trustme.CA().cert_pem.write_to_path(str(server.directory / "ca.crt"))
    assert "certificate" in api.call("GET", server.node_path).failure
    assert server.log == []


def test_a_certificate_for_another_address_is_refused(server: ApiServer, context: PodContext) -> None:
    client = KubeApi("localhost", context.port, Path(context.account), time.monotonic() + 60)
    assert "certificate" in client.call("GET", server.node_path).failure
    assert server.log == []


def test_what_is_not_tls_is_a_failure(context: PodContext) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = KubeApi(
            "127.0.0.1", listener.getsockname()[1], Path(context.account), time.monotonic() + 0.5
        )
        assert client.call("GET", "/").code == 0


@pytest.mark.parametrize("name", ["token", "ca.crt"])
def test_a_service_account_that_lacks_a_file_is_a_failure(server: ApiServer, api: KubeApi, name: str) -> None:
    (server.directory / name).unlink()
    assert api.call("GET", server.node_path).failure


# -- a heartbeat and the evidence ------------------------------------------------------------------


def test_a_beat_looks_and_leaves_an_event(server: ApiServer, context: PodContext) -> None:
    answer = heard(SyncRequest(context, read_node=True, events=(EVENT,)))
    assert answer.node
    assert (answer.node.paused, answer.sent) == (False, 1)
    assert [event["reason"] for event in server.events] == ["Converged"]


@rule("R2")
def test_the_annotation_is_written_only_when_it_differs(server: ApiServer) -> None:
    context = annotating(server)
    for state in ("converged", "converged", "failed"):
        heard(SyncRequest(context, read_node=True, status=NodeStatus({"state": state})))
    patches = [path for method, path in server.log if method == "PATCH" and server.node_path in path]
    assert patches == 2 * [f"{server.node_path}/status"]
    assert json.loads(server.annotations[STATUS])["state"] == "failed"


def annotating(server: ApiServer) -> PodContext:
    context = find_pod_context({**server.environment(), "CRI_RESMGR_INSTALLER_ANNOTATE_NODE": "true"})
    assert context
    return context


@rule("R2")
def test_a_served_node_says_so_once_and_loses_the_startup_taint(server: ApiServer) -> None:
    context, theirs = annotating(server), {"key": "dedicated", "effect": "NoSchedule"}
    server.node["spec"] = {"taints": [{"key": NOT_READY_TAINT, "effect": "NoSchedule"}, theirs]}
    server.node["status"] = {"conditions": [{"type": "Ready", "status": "True"}]}
    told = SyncRequest(
        context, read_node=True, status=NodeStatus({"state": "converged", "generation": "ab12"}, serves=True)
    )
    for _ in range(2):
        assert heard(told).parts["condition"] == ("ok", "")
    assert server.node["spec"]["taints"] == [theirs]
    assert server.node["metadata"]["labels"][READY_LABEL] == "true"
    kubelets, ours = server.node["status"]["conditions"]
    assert (kubelets["type"], ours["type"], ours["status"]) == ("Ready", READY_CONDITION, "True")
    writes = [path for method, path in server.log if method == "PATCH"]
    assert writes == [f"{server.node_path}/status", server.node_path]
    heard(SyncRequest(context, read_node=True, status=NodeStatus({"state": "removed"}, serves=False)))
    assert READY_LABEL not in server.node["metadata"]["labels"]
    assert [each["type"] for each in server.node["status"]["conditions"]] == ["Ready"]


def test_a_taint_that_another_has_added_meanwhile_stays(server: ApiServer) -> None:
    """What was read may come from the API server's memory, and be old."""
    context, theirs = annotating(server), {"key": "dedicated", "effect": "NoSchedule"}
    ours = {"key": NOT_READY_TAINT, "effect": "NoSchedule"}
    server.node["spec"] = {"taints": [ours, theirs]}
    client = KubeApi(context.host, context.port, Path(context.account), time.monotonic() + 10)
    order = SyncRequest(context, read_node=True, status=NodeStatus({"state": "converged"}, serves=True))
    old = {**server.node, "metadata": {**server.node["metadata"], "resourceVersion": "0"}}
    old["spec"] = {"taints": [ours]}
    assert Sync(_Remembers(client, old), order).run().parts["annotation"] == ("ok", "")
    assert server.node["spec"]["taints"] == [theirs]
    client.close()


class _Remembers:
    """An API server whose memory has an old node."""

    def __init__(self, api: KubeApi, node: dict[str, Any]) -> None:
        self._api, self._node = api, node

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Answer:
        if method == "GET" and "/nodes/" in path and path.endswith("resourceVersion=0"):
            return Answer(200, self._node)
        return self._api.call(method, path, body)


def test_a_part_that_hangs_does_not_hinder_the_other(server: ApiServer, context: PodContext) -> None:
    server.annotations[PAUSE_ANNOTATION] = "true"
    server.fail(part="/events", hang=True)
    answer = heard(SyncRequest(context, seconds=2.0, read_node=True, events=(EVENT,)))
    assert {part: found[0] for part, found in answer.parts.items()} == {"node": "ok", "events": "failed"}
    assert answer.node
    assert answer.node.paused


def evidence(context: PodContext, seconds: float = 10.0) -> Decommission:
    found = heard(SyncRequest(context, seconds, evidence=True)).evidence
    assert found
    return found


def remove(server: ApiServer) -> None:
    server.delete_daemonset()


def begin_deletion(server: ApiServer) -> None:
    server.daemonset["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"


def select_others(server: ApiServer) -> None:
    server.daemonset["spec"]["template"]["spec"]["nodeSelector"] = {"pool": "other"}


def relabel(server: ApiServer) -> None:
    server.node["metadata"]["labels"] = {"kubernetes.io/os": "plan9"}


@pytest.mark.parametrize("change", [remove, begin_deletion, select_others, relabel])
def test_positive_evidence(
    server: ApiServer, context: PodContext, change: Callable[[ApiServer], None]
) -> None:
    change(server)
    assert evidence(context).certain


FAULTS: list[dict[str, Any]] = [
    {},
    {"code": 401},
    {"code": 403},
    {"code": 500},
    {"code": 503},
    {"part": "/daemonsets", "code": 404, "page": True},
    {"part": "/nodes", "code": 403},
    {"part": "/nodes", "hang": True},
    {"hang": True},
]


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_no_evidence(server: ApiServer, context: PodContext, fault: dict[str, Any]) -> None:
    if fault:
        server.fail(**fault)
    found = evidence(context, seconds=1.0)
    assert not found.certain
    assert found.why


def replace(server: ApiServer) -> None:
    """By another of the same name, as `kubectl replace --force` does: its pod is about to come."""
    server.daemonset["metadata"]["uid"] = "another"


def forget_labels(server: ApiServer) -> None:
    """No kubelet's node is like that: what is read is not the whole of it."""
    del server.node["metadata"]["labels"]


@pytest.mark.parametrize("change", [replace, forget_labels])
def test_doubt_is_no_evidence(
    server: ApiServer, context: PodContext, change: Callable[[ApiServer], None]
) -> None:
    change(server)
    assert not evidence(context).certain


def test_a_server_that_is_away_is_no_evidence(server: ApiServer, context: PodContext) -> None:
    server.go_away()
    why = "DaemonSet kube-system/cri-resmgr-installer could not be read: Connection refused"
    assert evidence(context) == Decommission(False, why)


# -- the daemon's side, with children --------------------------------------------------------


class Scene(event_loop.Scene):
    def __init__(self, context: PodContext, root: Path) -> None:
        super().__init__()
        self.said: list[Event] = []
        self.cluster = ClusterClient(context, self.said.append, RootedFiles(root), CHILD, periods=FAST)

    def begin(self) -> None:
        self.cluster.begin(self.loop, self.changed)

    def until(self, reached: Callable[[], bool], seconds: float = event_loop.SOON) -> bool:
        assert super().until(reached, seconds), [event.message for event in self.said]
        return True

    def report(self, phase: Phase) -> None:
        self.says(DaemonState(Mode.INSTALL, phase, phase is Phase.CONVERGED))

    def says(self, state: DaemonState, *, read_node: bool = False) -> None:
        self.cluster.update(state, None, DEFAULT_RULES, busy=False, read_node=read_node)

    def paused(self) -> bool:
        return self.cluster.permission().paused

    def kinds(self) -> list[str]:
        return [event.kind for event in self.said]


@pytest.fixture
def scene(context: PodContext, tmp_path: Path) -> Iterator[Scene]:
    made = Scene(context, tmp_path)
    with tidied():
        yield made
        made.cluster.end()
    assert not made.failures


def test_a_paused_node_is_paused_from_the_start(server: ApiServer, scene: Scene) -> None:
    server.annotations[PAUSE_ANNOTATION] = "a person is at work"
    scene.begin()
    assert scene.paused()
    assert {method for method, _ in server.log} == {"GET"}


def test_the_annotation_comes_and_goes(server: ApiServer, scene: Scene) -> None:
    scene.begin()
    assert not scene.paused()
    server.annotations[PAUSE_ANNOTATION] = "true"
    scene.says(UNCHANGED, read_node=True)
    scene.until(scene.paused)
    del server.annotations[PAUSE_ANNOTATION]
    scene.until(lambda: not scene.paused())
    assert scene.told == 2  # the first one is the answer, too


def test_a_pause_outlasts_an_api_server_that_is_away(server: ApiServer, scene: Scene) -> None:
    server.annotations[PAUSE_ANNOTATION] = "true"
    scene.begin()
    server.go_away()
    scene.until(lambda: "cluster.unreachable" in scene.kinds())
    assert scene.paused()
    server.come_back()
    scene.until(lambda: "cluster.restored" in scene.kinds())
    assert scene.paused()
    assert scene.kinds() == ["cluster.unreachable", "cluster.restored"]


@rule("R13")
def test_transitions_arrive_in_order(server: ApiServer, scene: Scene) -> None:
    scene.begin()
    for phase in (Phase.FAILED, Phase.HELD, Phase.CONVERGED):
        scene.report(phase)
    scene.until(lambda: len(server.events) == 3)
    assert [event["reason"] for event in server.events] == ["RepairFailed", "HoldSet", "Converged"]
    assert scene.said == []


def test_without_permission_it_goes_on_and_says_so_once(server: ApiServer, scene: Scene) -> None:
    server.fail(part="/events", code=403)
    scene.begin()
    scene.report(Phase.FAILED)
    asked = ("POST", "/api/v1/namespaces/default/events")
    scene.until(lambda: server.log.count(asked) > 4)
    assert scene.kinds() == ["cluster.denied"]
    server.heal()
    scene.until(lambda: len(server.events) == 1)
    scene.until(lambda: "cluster.restored" in scene.kinds())


def test_evidence_counts_from_what_was_seen_at_the_start(server: ApiServer, scene: Scene) -> None:
    scene.begin()
    certain, why = scene.cluster.removal_evidence()
    assert (certain, "selects this node" in why) == (False, True)
    server.delete_daemonset()
    certain, why = scene.cluster.removal_evidence()
    assert (certain, "is gone" in why) == (True, True)


def test_the_last_word_is_told_at_the_end(server: ApiServer, scene: Scene) -> None:
    scene.begin()
    scene.report(Phase.FAILED)
    scene.cluster.end()
    assert [event["reason"] for event in server.events] == ["RepairFailed"]


def test_only_the_beginning_of_a_long_refusal_is_kept(tmp_path: Path) -> None:
    """A webhook may refuse in megabytes, and each node would log them."""
    with SeenRequests() as server:
        server.answer = 403, json.dumps({"kind": "Status", "message": "no " * 100_000}).encode()
        (tmp_path / "ca.crt").write_bytes(server.authority.cert_pem.bytes())
        (tmp_path / "token").write_text("a-token")
        client = KubeApi("127.0.0.1", server.port, tmp_path, time.monotonic() + 60)
        found = client.call("GET", "/api/v1/nodes/n1")
        client.close()
    assert len(found.failure) == 1024


@pytest.mark.parametrize(
    ("token", "said"),
    [
        ("marked-0123456789\nmarked-0123456789", "characters that no request can carry"),
        ("marked-0123456789\u20ac", "characters that no request can carry"),
        ("", "is empty"),
        ("marked-0123456789", "401: I do not know Bearer (hidden) nor (hidden)"),
        ("marked-0123456789\r\n ", "401: I do not know Bearer (hidden) nor (hidden)"),
    ],
)
def test_no_answer_repeats_the_token(tmp_path: Path, token: str, said: str) -> None:
    with SeenRequests() as server:
        answer = {"kind": "Status", "message": "I do not know TOKEN nor marked-0123456789-cut"}
        server.answer = 401, json.dumps(answer).encode()
        (tmp_path / "ca.crt").write_bytes(server.authority.cert_pem.bytes())
        (tmp_path / "token").write_text(token)
        client = KubeApi("127.0.0.1", server.port, tmp_path, time.monotonic() + 60)
        found = client.call("GET", "/api/v1/nodes/n1")
        client.close()
    assert said in found.failure
    assert "marked" not in found.failure
    if found.code:
        assert server.headers("user-agent") == [f"cri-resmgr-installer/{__version__}"]
