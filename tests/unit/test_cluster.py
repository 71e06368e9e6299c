"""What follows from the API server's answers: evidence, selectors, names, and what is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from installer.cluster.decommission import Decommission, decide
from installer.cluster.kubeapi import Answer
from installer.cluster.node_status import NodeStatus, build_event, is_paused
from installer.cluster.pod_context import PodContext, find_pod_context
from installer.cluster.selection import selects
from installer.cluster.sync import NodeFacts, SyncReply, SyncRequest, WorkEnd
from installer.cluster.sync_child import Sync, parse_request
from installer.errors import InvalidInputError
from installer.model.event import truncate
from installer.model.fleet import PlannedWork, WorkResult
from installer.model.hold import PAUSE_ANNOTATION
from installer.model.jsontext import to_json

NODE = "worker-7"
UID = "5f1c-first"
CONTEXT = PodContext("10.0.0.1", 443, "/account", NODE, "ours-x7k2p", "kube-system", "ours")
LABELS = {"os": "linux", "pool": "a", "cores": "16", "word": "many"}


# -- whom a DaemonSet selects ---------------------------------------------------------


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}


def template(*terms: dict[str, Any], selector: dict[str, str] | None = None) -> dict[str, Any]:
    spec: dict[str, Any] = {"nodeSelector": selector or {}}
    if terms:
        required = {"nodeSelectorTerms": list(terms)}
        spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    return {"spec": spec}


def term(*expressions: dict[str, Any]) -> dict[str, Any]:
    return {"matchExpressions": list(expressions)}


MATCHES: list[tuple[dict[str, Any], bool]] = [
    (expression("pool", "In", "a", "b"), True),
    (expression("pool", "In", "b"), False),
    (expression("gone", "In", "a"), False),
    (expression("pool", "NotIn", "a"), False),
    (expression("pool", "NotIn", "b"), True),
    (expression("gone", "NotIn", "a"), True),
    (expression("pool", "Exists"), True),
    (expression("gone", "Exists"), False),
    (expression("pool", "DoesNotExist"), False),
    (expression("gone", "DoesNotExist"), True),
    (expression("cores", "Gt", "8"), True),
    (expression("cores", "Gt", "16"), False),
    (expression("cores", "Lt", "17"), True),
    (expression("cores", "Lt", "16"), False),
    (expression("word", "Gt", "1"), False),
    (expression("word", "Lt", "1"), False),
    (expression("gone", "Lt", "1"), False),
]


@pytest.mark.parametrize(("what", "expected"), MATCHES, ids=[str(what) for what, _ in MATCHES])
def test_each_operator(what: dict[str, Any], expected: bool) -> None:
    assert selects(template(term(what)), NODE, LABELS) is expected


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ({"spec": {}}, True),
        (template(selector={"os": "linux"}), True),
        (template(selector={"os": "linux", "pool": "b"}), False),
        (template(selector={"gone": ""}), False),
        (template(term(expression("pool", "Exists")), selector={"pool": "b"}), False),
        (template(term(expression("pool", "Exists"), expression("gone", "Exists"))), False),
        (template(term(expression("gone", "Exists")), term(expression("pool", "Exists"))), True),
        (template({}), False),
        (template({}, term(expression("pool", "Exists"))), True),
        (template({"matchFields": [expression("metadata.name", "In", NODE)]}), True),
        (template({"matchFields": [expression("metadata.name", "In", "worker-8")]}), False),
        (template({"matchFields": [expression("metadata.name", "NotIn", NODE)]}), False),
        (
            template(
                {"matchFields": [expression("metadata.name", "In", NODE)], **term(expression("x", "Exists"))}
            ),
            False,
        ),
        (
            {"spec": {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}}},
            True,
        ),
        ({"spec": {"affinity": {"podAntiAffinity": {}}, "tolerations": []}}, True),
    ],
)
def test_selectors_and_terms(what: dict[str, Any], expected: bool) -> None:
    assert selects(what, NODE, LABELS) is expected


NOT_UNDERSTOOD: list[dict[str, Any]] = [
    {},
    {"spec": {"nodeSelector": ["os"]}},
    template(term(expression("pool", "Near", "a"))),
    template(term(expression("pool", "In"))),
    template(term(expression("pool", "Exists", "a"))),
    template(term(expression("cores", "Gt", "1", "2"))),
    template(term(expression("cores", "Gt", "1_0"))),
    template(term({"operator": "Exists"})),
    template({"matchFields": [expression("metadata.uid", "In", "a")]}),
    template({"matchAnything": []}),
    {"spec": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}}}},
    {
        "spec": {
            "affinity": {
                "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}
            }
        }
    },
]


@pytest.mark.parametrize("what", NOT_UNDERSTOOD, ids=str)
def test_what_is_not_understood_is_no_no(what: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        selects(what, NODE, LABELS)
    found = decide(CONTEXT, daemonset(template=what), node())
    assert not found.certain
    assert "cannot be parsed" in found.why


def evidence(context: PodContext, api: FakeApi) -> Decommission:
    found = Sync(api, SyncRequest(context, evidence=True)).run().evidence
    assert found
    return found


def paused_of(answer: SyncReply) -> bool | None:
    assert answer.node
    return answer.node.paused


# -- evidence ---------------------------------------------------------------------------


def daemonset(template: Mapping[str, Any] | None = None, **metadata: Any) -> Answer:
    about = {"name": "ours", "namespace": "kube-system", "uid": UID, **metadata}
    spec = {"template": template if template is not None else {"spec": {"nodeSelector": {"os": "linux"}}}}
    return Answer(200, {"kind": "DaemonSet", "metadata": about, "spec": spec})


def node(**metadata: Any) -> Answer:
    return Answer(200, {"kind": "Node", "metadata": {"name": NODE, "labels": LABELS, **metadata}})


def status(
    code: int, reason: str, name: str = "ours", kind: str = "daemonsets", group: str = "apps"
) -> Answer:
    details = {"name": name, "group": group, "kind": kind}
    body = {"kind": "Status", "reason": reason, "details": details, "code": code}
    return Answer(code, body, f"{code}: {reason}")


def test_a_daemonset_that_wants_the_node_is_no_evidence() -> None:
    found = decide(CONTEXT, daemonset(), node())
    assert (found.certain, "selects this node" in found.why) == (False, True)


@pytest.mark.parametrize(
    ("answer", "node_answer", "word"),
    [
        (status(404, "NotFound"), Answer(0), "is gone"),
        (daemonset(deletionTimestamp="2026-01-01T00:00:00Z"), Answer(0), "being deleted"),
        (daemonset(template=template(selector={"os": "plan9"})), node(), "no longer selects"),
        (daemonset(template=template({})), node(), "no longer selects"),
        (daemonset(uid="another", template=template(selector={"os": "plan9"})), node(), "no longer selects"),
    ],
)
def test_evidence(answer: Answer, node_answer: Answer, word: str) -> None:
    found = decide(CONTEXT, answer, node_answer)
    assert found.certain
    assert word in found.why


@pytest.mark.parametrize(
    ("answer", "node_answer", "word"),
    [
        (Answer(0, failure="no answer in time"), node(), "no answer in time"),
        (status(401, "Unauthorized"), node(), "401"),
        (status(403, "Forbidden"), node(), "403"),
        (status(410, "Gone"), node(), "410"),
        (status(500, "InternalError"), node(), "500"),
        (Answer(404, {}, "404"), node(), "does not come from an API server"),
        (Answer(404, {"kind": "Status", "reason": "NotFound"}, "404"), node(), "does not come"),
        (status(404, "NotFound", "other"), node(), "does not come"),
        (status(404, "NotFound", kind="nodes"), node(), "does not come"),
        (status(404, "NotFound", kind="namespaces", group=""), node(), "does not come"),
        (status(404, "NotFound", group="example.org"), node(), "does not come"),
        (status(404, "Unknown"), node(), "does not come"),
        (Answer(200, {}, "200, with something else"), node(), "something else"),
        (Answer(200, {"kind": "DaemonSetList", "metadata": {}}), node(), "returned a different object"),
        (daemonset(name="other"), node(), "returned a different object"),
        (daemonset(namespace="other"), node(), "returned a different object"),
        (daemonset(), status(403, "Forbidden"), "could not be read"),
        (daemonset(), status(404, "NotFound", NODE), "could not be read"),
        (daemonset(), Answer(0, failure="no answer in time"), "no answer in time"),
        (daemonset(), node(name="worker-8", labels={}), "returned a different object"),
        (daemonset(), node(labels=["os"]), "without labels"),
        (daemonset(), node(labels={}), "without labels"),
        (daemonset(), node(labels=None), "without labels"),
        (daemonset(uid="another"), node(), "selects this node"),
        (daemonset(uid="another"), Answer(0, failure="no answer in time"), "no answer in time"),
    ],
)
def test_doubt_keeps_the_node(answer: Answer, node_answer: Answer, word: str) -> None:
    found = decide(CONTEXT, answer, node_answer)
    assert not found.certain
    assert word in found.why


LONG = "a-name-of-a-daemonset-that-is-longer-than-fifty-seven-characters"


@pytest.mark.parametrize(
    ("daemonset", "pod", "ours"),
    [
        ("ours", "ours-x7k2p", True),
        (LONG, f"{LONG[:58]}x7k2p", True),
        ("ours", "prefix-ours-x7k2p", False),
        ("prefix-ours", "ours-x7k2p", False),
        ("ours", "ours-5d8f9-x7k2p", False),
        ("ours", "ours-0", False),
        ("ours", "ours-of-a", False),
        ("ours", "x7k2p", False),
        ("ours", "", False),
        ("", "-x7k2p", False),
    ],
)
def test_only_a_pod_that_has_its_name_from_a_daemonset_knows_that_it_is_gone(
    daemonset: str, pod: str, ours: bool
) -> None:
    """Else the name may be wrong: somebody has renamed the DaemonSet, and not its environment."""
    context = replace(CONTEXT, daemonset=daemonset, pod=pod)
    assert context.is_of_daemonset is ours
    found = decide(context, status(404, "NotFound", daemonset), node())
    assert found.certain is ours


def test_without_its_name_nothing_is_asked() -> None:
    context = PodContext("10.0.0.1", 443, "/account", NODE)
    api = FakeApi({})
    found = evidence(context, api)
    assert (found.certain, api.calls) == (False, [])
    assert "not known" in found.why


def test_a_pause_keeps_a_node_that_is_not_wanted_any_more() -> None:
    """Nobody may have heard of the pause before."""
    gone = {("GET", CONTEXT.daemonset_path): status(404, "NotFound")}
    paused = {("GET", CONTEXT.node_path): node(annotations={PAUSE_ANNOTATION: "yes"})}
    assert evidence(CONTEXT, FakeApi(gone | {("GET", CONTEXT.node_path): node()})).certain
    found = evidence(CONTEXT, FakeApi(gone | paused))
    assert (found.certain, "worker-7 is paused" in found.why) == (False, True)


def test_a_server_that_wants_to_be_left_alone_is_asked_for_nothing_more() -> None:
    busy = Answer(429, {}, "429: TooManyRequests", retry_after=7)
    api = FakeApi({**GOOD, ("GET", CONTEXT.node_path): busy})
    answer = Sync(api, SyncRequest(CONTEXT, read_node=True, events=(EVENT,))).run()
    assert api.calls == [("GET", CONTEXT.node_path)]
    assert (answer.wait, answer.sent) == (7, 0)
    assert {found[0] for found in answer.parts.values()} == {"failed"}


# -- context and names ----------------------------------------------------------------------

POD = {
    "KUBERNETES_SERVICE_HOST": "10.0.0.1",
    "KUBERNETES_SERVICE_PORT": "6443",
    "NODE_NAME": NODE,
    "POD_NAME": "ours-x7k2p",
    "POD_NAMESPACE": "kube-system",
    "CRI_RESMGR_INSTALLER_DAEMONSET": "ours",
}


@pytest.fixture
def pod(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "token").write_text("secret")
    (tmp_path / "namespace").write_text("from-file\n")
    return {**POD, "CRI_RESMGR_INSTALLER_SERVICE_ACCOUNT": str(tmp_path)}


def test_the_context_is_what_the_pod_says(pod: dict[str, str], tmp_path: Path) -> None:
    expected = PodContext("10.0.0.1", 6443, str(tmp_path), NODE, "ours-x7k2p", "kube-system", "ours")
    assert find_pod_context(pod) == expected


def test_the_secure_port_comes_first(pod: dict[str, str]) -> None:
    context = find_pod_context({**pod, "KUBERNETES_SERVICE_PORT_HTTPS": "8443"})
    assert context
    assert context.port == 8443


def test_the_namespace_may_come_from_the_service_account(pod: dict[str, str]) -> None:
    del pod["POD_NAMESPACE"]
    context = find_pod_context(pod)
    assert context
    assert context.namespace == "from-file"


def test_outside_a_pod_or_without_a_token_there_is_none(pod: dict[str, str], tmp_path: Path) -> None:
    assert find_pod_context({}) is None
    (tmp_path / "token").unlink()
    assert find_pod_context(pod) is None


def test_every_fault_of_the_environment_is_named(pod: dict[str, str]) -> None:
    faulty = {**pod, "NODE_NAME": "", "KUBERNETES_SERVICE_PORT": "x", "POD_NAMESPACE": "../etc"}
    with pytest.raises(InvalidInputError) as raised:
        find_pod_context(faulty)
    assert [fault.partition(":")[0] for fault in raised.value.faults] == [
        "KUBERNETES_SERVICE_PORT",
        "POD_NAMESPACE",
        "NODE_NAME",
    ]


# -- what is written ------------------------------------------------------------------------

NOON = datetime(2026, 1, 2, 12, 0, 0, 5, UTC)


@pytest.mark.parametrize(
    ("annotations", "paused"),
    [
        (None, False),
        ({}, False),
        ({PAUSE_ANNOTATION: "true"}, True),
        ({PAUSE_ANNOTATION: ""}, True),
        ({PAUSE_ANNOTATION: "disk is being replaced"}, True),
        ({PAUSE_ANNOTATION: "false"}, False),
        ({"other": "true"}, False),
    ],
)
def test_any_value_but_false_pauses(annotations: object, paused: bool) -> None:
    assert is_paused({"annotations": annotations}) is paused


def test_an_event_regards_the_node_as_kubelets_do() -> None:
    what = {"type": "Warning", "reason": "HoldSet", "message": "ü" * 2000, "time": NOON.timestamp()}
    event = build_event(CONTEXT, what)
    assert event["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": NODE}
    assert event["metadata"]["namespace"] == "default"
    assert event["firstTimestamp"] == "2026-01-02T12:00:00Z"
    assert len(event["message"].encode()) <= 1024
    assert event["message"].endswith("ü...")


def test_what_fits_is_not_cut() -> None:
    assert truncate("ü" * 512, 1024) == "ü" * 512


# -- one heartbeat ------------------------------------------------------------------------------


class FakeApi:
    """Answers by (method, the start of the path); everything else is a 404."""

    def __init__(self, answers: Mapping[tuple[str, str], Answer]) -> None:
        self.answers = dict(answers)
        self.calls: list[tuple[str, str]] = []
        self.bodies: list[Mapping[str, Any] | None] = []

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Answer:
        self.calls.append((method, path.partition("?")[0]))
        self.bodies.append(body)
        found = [
            answer
            for (verb, start), answer in self.answers.items()
            if verb == method and path.startswith(start)
        ]
        return found[-1] if found else status(404, "NotFound")


GOOD = {
    ("GET", CONTEXT.node_path): node(annotations={PAUSE_ANNOTATION: "yes"}),
    ("POST", "/api/v1/namespaces/default/events"): Answer(201, {"kind": "Event"}),
}
EVENT = {"type": "Normal", "reason": "Converged", "message": "done", "time": 0.0}


def test_a_beat_asks_and_tells() -> None:
    api = FakeApi(GOOD)
    answer = Sync(api, SyncRequest(CONTEXT, read_node=True, events=(EVENT, EVENT))).run()
    assert paused_of(answer) is True
    assert answer.sent == 2
    assert {part: found[0] for part, found in answer.parts.items()} == {"node": "ok", "events": "ok"}


@pytest.mark.parametrize("part", ["node", "events"])
@pytest.mark.parametrize(
    ("fault", "result"),
    [
        (status(401, "Unauthorized"), "denied"),
        (status(403, "Forbidden"), "denied"),
        (Answer(0, failure="no answer in time"), "failed"),
        (status(500, "InternalError"), "failed"),
    ],
)
def test_no_part_hinders_another(part: str, fault: Answer, result: str) -> None:
    keys = dict(zip(("node", "events"), GOOD, strict=True))
    api = FakeApi({**GOOD, keys[part]: fault})
    answer = Sync(api, SyncRequest(CONTEXT, read_node=True, events=(EVENT,))).run()
    results = {name: found[0] for name, found in answer.parts.items()}
    assert results.pop(part) == result
    assert set(results.values()) == {"ok"}
    assert paused_of(answer) is (None if part == "node" else True)


def test_the_node_is_annotated_only_if_that_is_enabled() -> None:
    said = {"state": "converged"}
    patched = {**GOOD, ("PATCH", CONTEXT.node_path): node()}  # and with it its status
    silent = FakeApi(patched)
    Sync(silent, SyncRequest(CONTEXT, read_node=True, status=NodeStatus(said))).run()
    assert ("PATCH", CONTEXT.node_path) not in silent.calls
    context = replace(CONTEXT, annotate=True)
    telling = FakeApi(patched)
    answer = Sync(telling, SyncRequest(context, read_node=True, status=NodeStatus(said, serves=True))).run()
    assert answer.parts["annotation"] == answer.parts["condition"] == ("ok", "")
    changes = [path for method, path in telling.calls if method == "PATCH"]
    assert changes[0] == f"{CONTEXT.node_path}/status"


def test_an_event_that_is_refused_for_what_it_says_does_not_hold_up_the_others() -> None:
    refused = {**GOOD, ("POST", "/api/v1/namespaces/default/events"): status(422, "Invalid")}
    assert Sync(FakeApi(refused), SyncRequest(CONTEXT, events=(EVENT, EVENT))).run().sent == 2


def test_a_request_survives_its_way_through_a_command_line() -> None:
    says = NodeStatus({"state": "paused"}, False, {"state": "failed"})
    work = PlannedWork("one", begins=True)
    end = WorkEnd(WorkResult(work, None), "permit-0", "7", knows_none=True)
    order = SyncRequest(CONTEXT, 3.0, status=says, events=(EVENT,), node=NodeFacts(UID), begin=work, end=end)
    assert parse_request(to_json(order)) == order


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"context": {}, "events": []}', '{"context": 1, "events": 2}']
)
def test_a_request_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError):
        parse_request(text)
