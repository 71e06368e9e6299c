"""A removal made from what a cluster has is the one that the values would render; and what is taken off a
Node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from installer.manifests.build import build_objects
from installer.manifests.inputs import ManifestOptions, load_inputs
from installer.model.hold import PAUSE_ANNOTATION
from installer.model.names import LAST_FAILURE, LEFT, NOT_READY_TAINT, READY_CONDITION, READY_LABEL, STATUS
from installer.operator.api import ApiError, KubeApi, Page
from installer.operator.inventory import read_installed
from installer.operator.node_objects import build_marks, build_patches, clear_node_objects
from installer.operator.removal_daemonset import (
    build_removal,
    parse_settings_map,
    settings_map_of,
    wait_seconds_of,
)
from tests.lib.rules import rule

CASES = Path(__file__).parents[2] / "cases" / "manifests"
OF_THE_SERVER: dict[str, Any] = {"uid": "1", "resourceVersion": "2", "generation": 3, "managedFields": []}
VALUES = {case: (CASES / case / "values.yaml").read_text() for case in ("minimal", "full", "restricted")}
VALUES["a port"] = "images: {installer: i:1}\nsettings: {status: {listen: ':9464'}}\n"


def rendered(values: Path, mode: str) -> dict[tuple[str, str], Any]:
    options = ManifestOptions(values=values, mode=mode)
    objects = build_objects(load_inputs(options, lambda _: None))
    return {(each["kind"], each["metadata"]["name"]): each for each in objects}


@pytest.mark.parametrize("text", VALUES.values(), ids=VALUES)
def test_it_is_what_the_values_would_render(tmp_path: Path, text: str) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(text)
    installed, removal = rendered(values, "install"), rendered(values, "remove")
    name = yaml.safe_load(text).get("name", "cri-resmgr-installer")
    daemon_set = installed["DaemonSet", name]
    daemon_set["metadata"] |= OF_THE_SERVER
    daemon_set["metadata"].setdefault("annotations", {})["deprecated.daemonset.template.generation"] = "1"
    daemon_set["status"] = {"numberReady": 3}
    found = read_installed(daemon_set)
    assert found is not None
    settings = parse_settings_map(installed["ConfigMap", settings_map_of(daemon_set)])
    for made in build_removal(found, settings):
        assert made == removal[made["kind"], made["metadata"]["name"]]


@pytest.mark.parametrize(
    ("settings", "seconds"),
    [
        ("{}", 600),
        ("{removal: {waitSeconds: 3600}}", 3600),
    ],
)
def test_a_person_says_how_long_it_waits_for_silent_nodes(
    tmp_path: Path, settings: str, seconds: float
) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(f"images: {{installer: i:1}}\nsettings: {settings}\n")
    installed = rendered(values, "install")
    name = settings_map_of(installed["DaemonSet", "cri-resmgr-installer"])
    assert wait_seconds_of(parse_settings_map(installed["ConfigMap", name])) == seconds


def test_what_people_have_added_to_the_pods_stays() -> None:
    installed = rendered(CASES / "minimal" / "values.yaml", "install")
    daemon_set = installed["DaemonSet", "cri-resmgr-installer"]
    daemon_set["spec"]["template"]["spec"]["tolerations"] = [{"key": "theirs"}]
    found = read_installed(daemon_set)
    assert found is not None
    _, made = build_removal(found, {})
    assert made["spec"]["template"]["spec"]["tolerations"] == [{"key": "theirs"}]


def test_only_what_is_ours_is_taken_off_a_node() -> None:
    theirs = {"key": "theirs", "effect": "NoSchedule"}
    node = {
        "metadata": {
            "resourceVersion": "7",
            "annotations": {STATUS: "{}", LAST_FAILURE: "{}", PAUSE_ANNOTATION: "", "other": "x"},
            "labels": {READY_LABEL: "true", "kubernetes.io/os": "linux"},
        },
        "spec": {"taints": [theirs, {"key": NOT_READY_TAINT, "effect": "NoSchedule"}]},
        "status": {"conditions": [{"type": "Ready"}, {"type": READY_CONDITION}]},
    }
    patch, status = build_patches(node)
    assert patch == {
        "metadata": {
            "annotations": dict.fromkeys((STATUS, LAST_FAILURE, PAUSE_ANNOTATION)),
            "labels": {READY_LABEL: None},
            "resourceVersion": "7",
        },
        "spec": {"taints": [theirs]},
    }
    assert status == {"status": {"conditions": [{"type": READY_CONDITION, "$patch": "delete"}]}}
    assert build_patches({"metadata": {"annotations": {"other": "x"}}}) == ({}, {})


def given_up(state: str = "converged") -> dict[str, Any]:
    theirs = {"key": "theirs", "effect": "NoSchedule"}
    condition = {"type": READY_CONDITION, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    status = json.dumps({"state": state, "generation": "ab"})
    return {
        "metadata": {
            "name": "n1",
            "resourceVersion": "7",
            "annotations": {STATUS: status, PAUSE_ANNOTATION: "a person", LAST_FAILURE: "{}"},
            "labels": {READY_LABEL: "true"},
        },
        "spec": {"taints": [theirs, {"key": NOT_READY_TAINT, "effect": "NoSchedule"}]},
        "status": {"conditions": [{"type": "Ready"}, condition]},
    }


@rule("R13")
def test_a_node_that_is_given_up_no_longer_calls_itself_ready() -> None:
    patch, status = build_marks(given_up(), "its kubelet is silent", 0.0)
    metadata, (condition,) = patch["metadata"], status["status"]["conditions"]
    assert json.loads(metadata["annotations"].pop(STATUS)) == {
        "state": LEFT,
        "generation": "ab",
        "reason": "its kubelet is silent",
    }
    assert metadata == {"annotations": {}, "labels": {READY_LABEL: None}, "resourceVersion": "7"}
    assert [each["key"] for each in patch["spec"]["taints"]] == ["theirs"]  # nobody else takes ours off
    assert (condition["status"], condition["reason"]) == ("Unknown", "Left")
    assert condition["message"] == "its kubelet is silent"


def test_a_node_that_is_given_up_again_or_clean_keeps_what_it_says() -> None:
    left, _ = build_marks(given_up(LEFT), "again", 0.0)
    assert left["metadata"] == {"labels": {READY_LABEL: None}, "resourceVersion": "7"}
    assert build_marks(given_up("removed"), "it is late", 0.0) == ({}, {})
    bare = {"metadata": {"name": "n1", "annotations": {STATUS: json.dumps({"state": LEFT})}}}
    assert build_marks(bare, "again", 0.0) == ({}, {})


class Forgetful(KubeApi):
    """An API server with two Nodes that forgets the place in a list as soon as something is written."""

    def __init__(self) -> None:
        self.written: list[str] = []

    def list_pages(self, *_given: Any) -> Iterator[Page]:
        for name in ("n1", "n2"):
            if self.written:
                raise ApiError(410, "The provided continue parameter is too old")
            yield Page(({"metadata": {"name": name, "labels": {READY_LABEL: "true"}}},), "1")

    def merge(self, *given: Any, **_how: Any) -> Any:
        _, _, name, _ = given
        self.written.append(name)

    def get(self, *_given: Any) -> Any:
        raise AssertionError("no other one is quicker")


def test_a_fleet_that_takes_longer_than_a_list_lasts_is_cleaned() -> None:
    api = Forgetful()
    assert clear_node_objects(api, "ours") == 2
    assert api.written == ["n1", "n2"]
