"""What a node says of itself while it waits and works, and in how few requests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from installer.cluster.kubeapi import Answer
from installer.cluster.node_status import NodeStatus, extract_ours
from installer.cluster.sync import SyncReply, SyncRequest
from installer.cluster.sync_child import Sync
from installer.host.files import RootedFiles
from installer.model.daemon import Phase
from installer.model.hold import PAUSE_ANNOTATION
from installer.model.jsontext import to_json
from installer.model.names import NOT_READY_TAINT, READY_CONDITION, READY_LABEL, STATUS
from tests.lib.cluster_scene import ALL_OK, CONTEXT, SEEN, Scene, answer, says, state
from tests.lib.fleet_bench import Store
from tests.lib.rules import rule

TOLD = {**ALL_OK, "annotation": ("ok", ""), "condition": ("ok", "")}
SAID = {"metadata": {"annotations": {STATUS: "{}"}, "labels": {}}, "status": {"conditions": []}}
SILENT = {"metadata": {"annotations": {}, "labels": {}}, "status": {"conditions": []}}


def begun(path: Path, *, annotate: bool = True, said: Any = SAID) -> Scene:
    """A daemon that has started, and has looked at its Node."""
    path.mkdir()
    scene = Scene(RootedFiles(path), annotate=annotate)
    scene.begin(answer(known=said, parts=SEEN))
    scene.heartbeat(answer())
    return scene


def wait(scene: Scene) -> None:
    scene.report(state(Phase.WAITING, "other nodes go first"))


# -- which words --------------------------------------------------------------------------------


@rule("R13")
def test_a_node_that_waits_for_long_says_so_and_needs_no_event_for_it(tmp_path: Path) -> None:
    scene = begun(tmp_path / "one")
    wait(scene)
    assert scene.loop.fire() == pytest.approx(10)
    request = scene.children[-1].request
    assert (says(request).status["state"], request.events, request.read_node) == ("waiting", (), False)


@rule("R13")
def test_a_node_that_may_not_say_so_leaves_it_to_its_pod(tmp_path: Path) -> None:
    scene = begun(tmp_path / "one", annotate=False)
    talks = len(scene.children)
    wait(scene)
    assert scene.loop.fire() == pytest.approx(10)
    assert len(scene.children) == talks


@pytest.mark.parametrize("annotate", [True, False])
def test_a_permit_that_comes_at_once_is_no_event(tmp_path: Path, annotate: bool) -> None:
    """Nor is the pass that follows, unless it lasts."""
    scene = begun(tmp_path / "one", annotate=annotate)
    scene.report(state(Phase.STARTING))
    wait(scene)
    scene.loop.now += 2
    scene.report(state(Phase.STARTING))
    scene.loop.now += 20
    scene.report(state(Phase.CONVERGED))
    if annotate:
        request = scene.heartbeat(answer(sent=1, parts=TOLD))
        assert (request.events, says(request).status["state"]) == ((), "converged")
        assert len(scene.children) == 2
    else:
        scene.loop.fire()
        assert len(scene.children) == 1


@pytest.mark.parametrize("annotate", [True, False])
@pytest.mark.parametrize("phase", [Phase.CONVERGED, Phase.REMOVED])
def test_what_is_well_is_no_event_unless_it_ends_a_warning(
    tmp_path: Path, phase: Phase, annotate: bool
) -> None:
    scene = begun(tmp_path / "one", annotate=annotate)
    reasons = []
    for each in (phase, Phase.FAILED, phase, Phase.HELD, phase, phase):
        scene.report(state(Phase.STARTING))
        scene.report(state(each, hold="no" if each is Phase.HELD else ""))
        spoken = len(scene.children)
        while scene.loop.due and len(scene.children) == spoken:
            scene.loop.fire()
        for child in scene.children[spoken:]:
            reasons += [event["reason"] for event in child.request.events]
            child.end(answer(sent=1, parts=TOLD))
    good = "Converged" if phase is Phase.CONVERGED else "Removed"
    assert reasons == ["RepairFailed", good, "HoldSet", good]


@rule("R13")
def test_a_long_start_is_said(tmp_path: Path) -> None:
    scene = begun(tmp_path / "one")
    wait(scene)
    scene.report(state(Phase.STARTING))
    assert scene.loop.fire() == pytest.approx(40)
    assert says(scene.children[-1].request).status["state"] == "starting"


@rule("R13")
def test_a_node_that_said_it_waits_says_that_it_works_with_the_look_before_the_pass(tmp_path: Path) -> None:
    scene = begun(tmp_path / "one")
    wait(scene)
    scene.heartbeat(answer(parts=TOLD, known=SAID))
    scene.loop.now += 30
    scene.report(state(Phase.STARTING))
    scene.ask()
    order = scene.heartbeat(answer(paused=False, parts=TOLD, known=SAID))
    assert says(order).status["state"] == "starting"
    assert scene.is_fresh()


def test_what_did_not_come_through_is_not_believed_to_be_known(tmp_path: Path) -> None:
    """Without the right to write the status, the pod still reads the Node and writes its annotation."""
    scene = begun(tmp_path / "one")
    scene.report(state(Phase.CONVERGED))
    denied = {**TOLD, "condition": ("denied", "403: Forbidden")}
    assert scene.heartbeat(answer(sent=1, parts=denied)).known == SAID
    scene.ask()
    request = scene.heartbeat(answer(known=SAID, parts=denied))
    assert (dict(request.known), request.read_node) == ({}, True)
    scene.loop.now += 60
    scene.ask()
    assert dict(scene.heartbeat(answer(known=SAID, parts=denied)).known) == {}


# -- in how few requests ------------------------------------------------------------------------


class Node:
    """The API server, and the Node on it."""

    def __init__(self, *taints: dict[str, str], **metadata: Any) -> None:
        self.store = Store()
        body = {"kind": "Node", "metadata": {"name": CONTEXT.node, "uid": "n", **metadata}}
        status = {"conditions": [{"type": "Ready", "status": "True"}]}
        self.store.put(CONTEXT.node_path, {**body, "spec": {"taints": list(taints)}, "status": status})
        self.refused: tuple[str, str] = ("", "")

    def call(self, method: str, path: str, body: Any = None) -> Answer:
        if (method, path) == self.refused:
            self.store.requests.append((method, path))
            return Answer(403, {}, "403: Forbidden")
        return self.store.call(method, path, body)

    def tell(self, known: Any = None, *, read_node: bool = False) -> SyncReply:
        statement = NodeStatus({"state": "converged", "generation": "ab12"}, serves=True)
        self.store.requests.clear()
        order = SyncRequest(
            replace(CONTEXT, annotate=True), read_node=read_node, status=statement, known=known or {}
        )
        return Sync(self, order).run()

    @property
    def requests(self) -> list[str]:
        return [f"{method} {path.rpartition('/')[2]}" for method, path in self.store.requests]

    @property
    def body(self) -> dict[str, Any]:
        return self.store.objects[CONTEXT.node_path]


@rule("R13")
def test_a_word_is_one_request_whose_answer_is_a_look() -> None:
    node = Node(annotations={PAUSE_ANNOTATION: "a person looks"})
    told = node.tell(extract_ours(node.body), read_node=True)
    assert node.requests == ["PATCH status"]
    assert told.node
    assert (told.node.paused, told.node.ready, told.node.uid) == (True, True, "n")
    assert {part: found[0] for part, found in told.parts.items()} == dict.fromkeys(
        ("node", "annotation", "condition"), "ok"
    )
    assert node.body["metadata"]["labels"][READY_LABEL] == "true"
    assert [each["type"] for each in node.body["status"]["conditions"]] == ["Ready", READY_CONDITION]
    assert told.known == extract_ours(node.body)


def test_a_word_that_the_node_says_already_is_none() -> None:
    node = Node()
    said = node.tell(read_node=True).known
    assert node.requests == [f"GET {CONTEXT.node}", "PATCH status"]
    node.tell(said)
    assert node.requests == []


def test_what_others_have_changed_is_put_right_with_the_next_look() -> None:
    node = Node()
    said = node.tell(read_node=True).known
    del node.body["metadata"]["annotations"][STATUS]
    node.tell(said, read_node=True)
    assert node.requests == [f"GET {CONTEXT.node}", "PATCH status"]
    assert STATUS in node.body["metadata"]["annotations"]


@rule("R15")
def test_what_others_have_filled_up_is_replaced(tmp_path: Path) -> None:
    """A daemon that remembers nothing of its Node reads it before the next word."""
    node = Node(annotations={STATUS: "\U0001f600" * 16_000})
    scene = begun(tmp_path / "one", said=extract_ours(node.body))
    scene.report(state(Phase.CONVERGED))
    scene.loop.fire()
    request = scene.children[-1].request
    assert len(to_json(request)) < 128 << 10
    assert Sync(node, request).run().parts["annotation"] == ("ok", "")
    assert '"state":"converged"' in node.body["metadata"]["annotations"][STATUS]


def test_the_startup_taint_goes_by_the_version_that_the_answer_has() -> None:
    ours, theirs = {"key": NOT_READY_TAINT, "effect": "NoSchedule"}, {"key": "theirs", "effect": "NoSchedule"}
    node = Node(ours, theirs)
    known = extract_ours(node.body)
    assert node.tell(known).parts["annotation"] == ("ok", "")
    assert node.requests == ["PATCH status", f"PATCH {CONTEXT.node}"]
    assert node.body["spec"]["taints"] == [theirs]


def test_a_node_whose_status_may_not_be_written_is_annotated_all_the_same() -> None:
    node = Node()
    node.refused = ("PATCH", f"{CONTEXT.node_path}/status")
    told = node.tell(read_node=True)
    assert (told.parts["condition"][0], told.parts["annotation"][0]) == ("denied", "ok")
    assert STATUS in node.body["metadata"]["annotations"]


def test_what_the_node_says_is_dated_by_the_clock_of_the_sync() -> None:
    store = Store()
    store.node(CONTEXT.node)
    context = replace(CONTEXT, annotate=True)
    request = SyncRequest(context, read_node=True, status=NodeStatus({"state": "converged"}, serves=True))
    Sync(store, request, clock=lambda: 1_700_000_000.0).run()
    said = store.objects[CONTEXT.node_path]["status"]["conditions"]
    assert [each["lastTransitionTime"] for each in said] == ["2023-11-14T22:13:20Z"]
