"""What a Node's status gets: only what differs, and only what is ours."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from installer.cluster.node_status import NodeStatus, build_node_patch, build_status_patch, extract_ours
from installer.model.names import LAST_FAILURE, NOT_READY_TAINT, READY_CONDITION, READY_LABEL, STATUS
from tests.lib.rules import rule
from tests.lib.throwaway.apiserver import merge, merge_conditions

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC).timestamp()
SAID = {"version": "1", "state": "converged", "reason": "größer", "generation": "ab12"}
FAILURE = {"time": "2026-01-02T12:00:00Z", "state": "failed", "reason": "no space"}
THEIRS = {"key": "dedicated", "effect": "NoSchedule"}
OURS = {"key": NOT_READY_TAINT, "effect": "NoExecute"}
NODE: dict[str, Any] = {
    "metadata": {"name": "n1", "resourceVersion": "7", "labels": {"os": "linux"}, "annotations": {"a": "b"}},
    "spec": {"taints": [THEIRS, OURS]},
    "status": {"conditions": [{"type": "Ready", "status": "True"}]},
}


def test_a_node_that_is_served_says_so_and_takes_the_pods_that_waited() -> None:
    patch = build_node_patch(NODE, NodeStatus(SAID, True, FAILURE))
    assert patch is not None
    annotations = patch["metadata"].pop("annotations")
    assert patch == {
        "metadata": {"labels": {READY_LABEL: "true"}, "resourceVersion": "7"},
        "spec": {"taints": [THEIRS]},
    }
    assert json.loads(annotations.pop(STATUS)) == SAID
    assert json.loads(annotations.pop(LAST_FAILURE)) == FAILURE
    assert annotations == {}


def test_what_is_said_already_is_not_said_again() -> None:
    patch = build_node_patch(NODE, NodeStatus(SAID, True, FAILURE))
    after = merge(NODE, patch)
    assert build_node_patch(after, NodeStatus(SAID, True, FAILURE)) is None
    assert build_node_patch(after, NodeStatus(SAID, None, {})) is None
    assert build_node_patch(after, NodeStatus(SAID, False, {})) == {
        "metadata": {"labels": {READY_LABEL: "false"}}
    }


@pytest.mark.parametrize(
    ("before", "now", "says"),
    [
        ('{"changed": "2026-01-01T00:00:00Z"}', "", "2026-01-01T00:00:00Z"),
        ('{"changed": "2026-01-01T00:00:00Z"}', "2026-01-02T00:00:00Z", "2026-01-02T00:00:00Z"),
        ("{}", "", ""),
        ("[edited", "", ""),
        ("[]", "", ""),
    ],
)
def test_a_daemon_that_has_changed_nothing_keeps_the_time_of_the_last_change(
    before: str, now: str, says: str
) -> None:
    node = {**NODE, "metadata": {"annotations": {STATUS: before}}}
    patch = build_node_patch(node, NodeStatus({**SAID, "changed": now}, None, {}))
    assert patch is not None
    assert json.loads(patch["metadata"]["annotations"][STATUS])["changed"] == says


@rule("R13")
@pytest.mark.parametrize(
    ("status", "serves", "message"),
    [
        ({"state": "converged", "generation": "ab12", "wanted": "one"}, True, "generation ab12"),
        (
            {"state": "waiting", "generation": "ab12", "wanted": "two", "reason": "other nodes go first"},
            True,
            "generation ab12, pending generation two: other nodes go first",
        ),
        ({"state": "refused", "generation": "ab12", "reason": "no"}, True, "generation ab12: no"),
        ({"state": "waiting", "wanted": "two"}, False, "not installed, pending generation two"),
        ({"state": "starting"}, True, "an earlier generation"),
    ],
)
def test_the_condition_says_what_is_installed_and_what_is_asked_for(
    status: dict[str, str], serves: bool, message: str
) -> None:
    patch = build_status_patch(NODE, NodeStatus(status, serves, {}), NOON)
    assert patch is not None
    (condition,) = patch["status"]["conditions"]
    assert (condition["status"], condition["message"]) == (str(serves), message)


def test_a_node_that_is_not_served_keeps_the_taint() -> None:
    for serves in (False, None):
        patch = build_node_patch(NODE, NodeStatus({**SAID, "state": "failed"}, serves, FAILURE))
        assert patch is not None
        assert "spec" not in patch


def test_after_a_removal_only_its_word_is_left() -> None:
    before = merge(NODE, build_node_patch(NODE, NodeStatus(SAID, True, FAILURE)))
    removed = {**SAID, "state": "removed", "generation": ""}
    after = merge(before, build_node_patch(before, NodeStatus(removed, False, FAILURE)))
    assert after["metadata"]["labels"] == {"os": "linux"}
    assert set(after["metadata"]["annotations"]) == {"a", STATUS}
    assert build_node_patch(after, NodeStatus(removed, False, FAILURE)) is None


def told(node: dict[str, Any], said: dict[str, str]) -> dict[str, Any]:
    """A Node that is served, with its word, as the API server writes a status."""
    patch = build_status_patch(node, NodeStatus(said, True, FAILURE), NOON)
    assert patch is not None
    there = node["status"]["conditions"]
    conditions = merge_conditions(there, patch.get("status", {}).get("conditions", []))
    metadata = merge(node["metadata"], patch.get("metadata", {}))
    return {**node, "metadata": metadata, "status": {"conditions": conditions}}


def test_all_but_the_taint_is_one_word() -> None:
    after = told(NODE, SAID)
    assert json.loads(after["metadata"]["annotations"][STATUS]) == SAID
    assert json.loads(after["metadata"]["annotations"][LAST_FAILURE]) == FAILURE
    assert after["metadata"]["labels"][READY_LABEL] == "true"
    assert [each["type"] for each in after["status"]["conditions"]] == ["Ready", READY_CONDITION]
    assert build_status_patch(after, NodeStatus(SAID, True, FAILURE), NOON) is None
    assert build_node_patch(after, NodeStatus(SAID, True, FAILURE)) == {
        "metadata": {"resourceVersion": "7"},
        "spec": {"taints": [THEIRS]},
    }


def test_the_next_word_needs_no_look_at_the_node() -> None:
    """What is remembered of it gives the same patch; it has nothing of others."""
    after = told(NODE, {**SAID, "changed": "2026-01-01T00:00:00Z"})
    kept = extract_ours(after)
    assert "linux" not in json.dumps(kept)
    assert kept["metadata"]["labels"] == {READY_LABEL: "true"}
    assert set(kept["metadata"]["annotations"]) == {STATUS, LAST_FAILURE}
    for next_said in ({**SAID, "state": "unwell", "changed": ""}, {**SAID, "state": "removed"}):
        for serves in (True, False, None):
            word = build_status_patch(kept, NodeStatus(next_said, serves, {}), NOON)
            assert word == build_status_patch(after, NodeStatus(next_said, serves, {}), NOON)
            assert word is not None


@rule("R2")
def test_a_reason_with_bytes_that_are_no_text_is_written_once() -> None:
    """An API server stores another character for them, which would always differ."""
    patch = build_status_patch(NODE, NodeStatus({**SAID, "reason": "ExecStart=\udcff"}, True, FAILURE), NOON)
    assert json.dumps(patch, ensure_ascii=False).encode()


def with_condition(**values: str) -> dict[str, Any]:
    mine = {"type": READY_CONDITION, "lastTransitionTime": "2026-01-01T00:00:00Z", **values}
    return {**NODE, "status": {"conditions": [*NODE["status"]["conditions"], mine]}}


def conditions(node: dict[str, Any], status: dict[str, str], serves: bool | None) -> Any:
    patch = build_status_patch(node, NodeStatus(status, serves, {}), NOON)
    assert patch is not None
    return patch.get("status")


def test_a_condition_changes_its_time_only_with_its_status() -> None:
    (condition,) = conditions(NODE, SAID, True)["conditions"]
    assert condition == {
        "type": READY_CONDITION,
        "status": "True",
        "reason": "Converged",
        "message": "generation ab12: größer",
        "lastHeartbeatTime": "2026-01-02T12:00:00Z",
        "lastTransitionTime": "2026-01-02T12:00:00Z",
    }
    assert conditions(with_condition(**condition), SAID, True) is None
    (found,) = conditions(with_condition(status="True", reason="Unwell"), SAID, True)["conditions"]
    assert found["lastTransitionTime"] == "2026-01-01T00:00:00Z"


def test_a_condition_goes_with_the_installation_and_is_not_guessed() -> None:
    removed = {**SAID, "state": "removed"}
    assert conditions(with_condition(status="True"), removed, False) == {
        "conditions": [{"type": READY_CONDITION, "$patch": "delete"}]
    }
    assert conditions(NODE, removed, False) is None
    assert conditions(NODE, {"state": "starting"}, None) is None


@rule("R15")
@pytest.mark.parametrize(
    ("annotations", "message"),
    [({STATUS: "x" * 250_000}, ""), ({LAST_FAILURE: "\U0001f600" * 16_000}, ""), ({}, "x" * 500_000)],
    ids=["one annotation", "another, in few characters", "the condition"],
)
def test_what_others_have_filled_up_is_not_remembered(annotations: dict[str, str], message: str) -> None:
    """What is remembered goes on a command line, whose arguments have 128 KiB."""
    conditions = [{"type": READY_CONDITION, "status": "True", "message": message}]
    node = {
        "metadata": {**NODE["metadata"], "annotations": annotations},
        "status": {"conditions": conditions},
    }
    assert extract_ours(node) == {}


def test_as_much_as_we_write_is_remembered() -> None:
    """A reason of control characters takes the most."""
    said = {**SAID, "reason": "\x01" * 1024, "hold": "\x01" * 1024}
    assert extract_ours(told(NODE, said))["metadata"]["annotations"].keys() == {STATUS, LAST_FAILURE}
