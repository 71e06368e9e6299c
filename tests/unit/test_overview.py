"""The verdict on each node of a fleet, from what the API server knows about it."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser
from typing import Any

import pytest

from installer.cli import main
from installer.model.daemon import Phase
from installer.model.instant import plain_time
from installer.model.names import Mode
from installer.model.overview import (
    NEED_A_PERSON,
    FleetInstallation,
    Generation,
    NodeHealth,
    NodeView,
    Overview,
    Progress,
    Rollout,
    group_nodes,
)
from installer.operator.inventory import Installed
from installer.operator.judge import Listed, PodView, judge_node
from installer.operator.rollout_view import see_progress
from installer.report.advice import advise
from installer.report.overview import overview_json, print_overview, render_overview, render_page
from installer.report.rollout import describe_duration, describe_progress
from tests.lib.documents import ROOT, anchors
from tests.lib.rules import rule

NAME = "cri-resmgr-installer"
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp()
POOL = {"pool": "a"}
READY, UNREADY, BROKEN = PodView(True, ""), PodView(False, ""), PodView(False, "ErrImagePull: no such tag")
INSTALL, REMOVAL = (Mode.INSTALL,), (Mode.INSTALL, Mode.REMOVE)


def listed(modes: tuple[Mode, ...], pod: PodView | None, age: float = 3600) -> Listed:
    spec = {"template": {"spec": {"nodeSelector": POOL}}}
    daemon_set = {"metadata": {"creationTimestamp": plain_time(NOW - age)}, "spec": spec}
    installed = tuple(
        Installed("kube-system", mode, "cri-resmgr-installer", mode, "image", daemon_set) for mode in modes
    )
    return Listed(installed, {("n1", modes[-1]): pod} if pod and modes else {}, NOW)


def node(
    says: dict[str, str] | str, labels: dict[str, str] = POOL, heard: bool = True, age: float = 3600
) -> dict[str, Any]:
    text = says if isinstance(says, str) else json.dumps(says)
    return {
        "metadata": {
            "name": "n1",
            "labels": labels,
            "annotations": {"cri-resource-manager.intel.com/installer": text} if says else {},
            "creationTimestamp": plain_time(NOW - age),
        },
        "status": {"conditions": [{"type": "Ready", "status": "True" if heard else "Unknown"}]},
    }


DESELECTED = "no DaemonSet selects it any more"
CONVERGED, REMOVED = {"state": "converged"}, {"state": "removed"}


@pytest.mark.parametrize(
    ("given", "modes", "pod", "health", "reason"),
    [
        (node(CONVERGED), INSTALL, READY, NodeHealth.WELL, ""),
        (node({}), INSTALL, READY, NodeHealth.WELL, ""),
        (node({}), INSTALL, UNREADY, NodeHealth.WORKING, "its pod is not Ready yet"),
        (node({}), INSTALL, BROKEN, NodeHealth.TROUBLE, BROKEN.complaint),
        (
            node({"state": "failed", "reason": "no space"}),
            INSTALL,
            UNREADY,
            NodeHealth.TROUBLE,
            "no space",
        ),
        (node({"state": "waiting", "reason": "turn"}), INSTALL, UNREADY, NodeHealth.WORKING, "turn"),
        (node({"state": "repairing"}), INSTALL, BROKEN, NodeHealth.TROUBLE, BROKEN.complaint),
        (node({"state": "paused", "reason": "why"}), INSTALL, READY, NodeHealth.PAUSED, "why"),
        (node(CONVERGED, heard=False), INSTALL, READY, NodeHealth.SILENT, "its kubelet is silent"),
        (node({}), INSTALL, None, NodeHealth.SILENT, "the DaemonSet selects it, but it has no pod"),
        (
            node({}, age=10),
            INSTALL,
            None,
            NodeHealth.WORKING,
            "the DaemonSet selects it, but it has no pod",
        ),
        (node(CONVERGED), REMOVAL, UNREADY, NodeHealth.WORKING, "converged"),
        (node(REMOVED), REMOVAL, READY, NodeHealth.WELL, ""),
        (
            node(CONVERGED, {}),
            INSTALL,
            None,
            NodeHealth.DIRTY,
            DESELECTED,
        ),
        (node(CONVERGED), (), None, NodeHealth.DIRTY, DESELECTED),
        (
            node(json.dumps({"state": "failed", "reason": "x" * 20_000})),
            INSTALL,
            READY,
            NodeHealth.WELL,
            "",
        ),
        (node("[" * 16_000), INSTALL, READY, NodeHealth.WELL, ""),
        (node("[not ours", {}), INSTALL, None, None, ""),
        (node(REMOVED, {}), INSTALL, None, None, ""),
        (node({}, {}), INSTALL, None, None, ""),
    ],
)
def test_a_node_is_judged_by_its_words_its_pod_and_its_silence(
    given: dict[str, Any],
    modes: tuple[Mode, ...],
    pod: PodView | None,
    health: NodeHealth | None,
    reason: str,
) -> None:
    view = judge_node(given, listed(modes, pod))
    assert (view and view.health, view.reason if view else "") == (health, reason)


def test_a_new_daemonset_has_time_to_put_its_pods_on_the_nodes() -> None:
    """Its controller creates the pods of a large fleet over minutes."""
    view = judge_node(node({}), listed(INSTALL, None, age=10))
    assert view is not None
    assert view.health is NodeHealth.WORKING


def test_one_node_that_says_much_makes_no_line_of_the_others_longer() -> None:
    """Its annotation may have 256 KiB; each line of a table is as wide as the widest."""
    words = dict.fromkeys(("state", "generation", "policy", "changed", "hold", "reason"), "a b" * 5000)
    much = [node(words), node({"state": "converged", "policy": "x" * 250_000}), node("[" * 250_000)]
    views = [judge_node(each, listed(INSTALL, READY)) for each in (*much, node({"policy": "x" * 15_000}))]
    seen = replace(SEEN, nodes=tuple(view for view in views if view))
    assert len(seen.nodes) == 4
    text = render_overview(seen, every_node=True)
    assert max(map(len, text.splitlines())) < 3000


NASTY = "</script><b>\u2028\x1b[2J"
SEEN = Overview(
    "2026-03-01T12:00:00Z",
    (
        FleetInstallation(
            "kube-system", "cri-resmgr-installer", "cri-resmgr-installer", Mode.INSTALL, "image:1"
        ),
    ),
    (
        *(NodeView(f"n{at}", NodeHealth.TROUBLE, f"n{at} has no space", phase="failed") for at in range(7)),
        NodeView("n8", NodeHealth.SILENT, NASTY, phase="converged"),
        NodeView("n9", NodeHealth.WELL, phase="converged", policy="none", changed="2026-02-01T00:00:00Z"),
    ),
)


def test_nodes_with_the_same_reason_are_one_group_whatever_their_names() -> None:
    first, *_ = group_nodes(SEEN.nodes)
    assert (len(first.nodes), first.reason) == (7, "NODE has no space")
    assert not SEEN.well


@pytest.mark.parametrize(
    ("node", "reason", "shown"),
    [
        ("c", "its selector is cached: c.example.org", "its selector is cached: c.example.org"),
        ("node1", "node10 has it, node1 has not", "node10 has it, NODE has not"),
        ("a.b", "node a.b. It is silent", "node NODE. It is silent"),
        ("n1", "n1-pool, n1: full", "n1-pool, NODE: full"),
    ],
)
def test_the_name_of_a_node_is_taken_from_its_reason_where_it_is_a_word(
    node: str, reason: str, shown: str
) -> None:
    (group,) = group_nodes([NodeView(node, NodeHealth.TROUBLE, reason)])
    assert group.reason == shown


def test_the_text_names_some_nodes_of_each_group_and_all_where_asked() -> None:
    text = render_overview(SEEN)
    assert "7  not ready, failed: NODE has no space" in text
    assert "n0, n1, n2, n3, n4 and 2 more" in text
    assert "\x1b" not in text
    lines = render_overview(SEEN, every_node=True).splitlines()
    assert lines[-1].split() == ["n9", "well", "converged", "none", "2026-02-01T00:00:00Z"]


def test_the_first_line_says_whether_all_is_well_and_each_reason_what_to_do() -> None:
    well = replace(SEEN, nodes=SEEN.nodes[-1:])
    assert render_overview(SEEN).startswith("NOT WELL: 7 not ready, 1 silent; 1 of 9 nodes are well\n")
    assert "-> fix what the reason names" in render_overview(SEEN)
    assert render_overview(well).startswith("WELL: 1 of 1 nodes are well\n")
    assert render_overview(replace(SEEN, nodes=(), installations=())).startswith("not installed:")
    text = render_overview(replace(well, rollouts=(rollout(paused="a Friday"),)))
    assert text.startswith("STOPPED: planned work waits for an operator; 1 of 1")
    assert "`rollout resume` ends it" in text


@rule("R13")
def test_a_pipeline_waits_until_the_pods_of_well_nodes_are_replaced_too() -> None:
    well = replace(SEEN, nodes=SEEN.nodes[-1:])
    work = replace(well, progress=Progress(0, 0, outdated=1))
    assert [print_overview(each, "text", io.StringIO()) for each in (well, work)] == [0, 3]


@pytest.mark.parametrize("health", NodeHealth)
@pytest.mark.parametrize("phase", ["", "of a newer version", *Phase])
def test_whoever_needs_a_person_is_told_what_to_do_and_where_it_stands(
    health: NodeHealth, phase: str
) -> None:
    advice = advise(health, phase)
    page, _, heading = advice.runbook.partition("#")
    if health in NEED_A_PERSON or advice.runbook:
        assert advice.text
        assert heading in anchors(ROOT / page)


def rollout(outdated: int = 0, passed: float = 0, paused: str | None = None) -> Rollout:
    """`passed`: so many minutes ago its canaries were through."""
    when = plain_time(NOW - 60 * passed) if passed else ""
    return Rollout("a/b", 50, 0, paused, (), 1, (Generation("one", passed=when),), outdated=outdated)


def changed(*minutes: float) -> list[NodeView]:
    """Nodes that were changed so many minutes ago."""
    times = [plain_time(NOW - 60 * each) for each in minutes]
    return [NodeView(f"n{at}", NodeHealth.WELL, changed=time) for at, time in enumerate(times)]


WAITING = [NodeView(f"w{at}", NodeHealth.WORKING, phase=Phase.WAITING) for at in range(40)]
BUSY = [NodeView("b1", NodeHealth.WORKING, phase=Phase.REPAIRING)]


@pytest.mark.parametrize(
    ("nodes", "rollouts", "progress"),
    [
        (changed(1, 2, 3), (), None),
        (WAITING + BUSY, (), Progress(40, 1, 0)),
        (WAITING + changed(5, 6), (), Progress(40, 0, 0)),
        (WAITING + changed(0, 10, 20, 70), (), Progress(40, 0, 0, 9, 16000)),
        (changed(0, 1, 2, 3), (rollout(outdated=8),), Progress(0, 0, 8, 80, 360)),
        (WAITING + changed(0, 1, 2, 30), (rollout(passed=10),), Progress(40, 0, 0, 90, 1600)),
        (WAITING + changed(0, 1, 2), (rollout(paused="a Friday"),), Progress(40, 0, 0)),
    ],
)
def test_the_rest_is_estimated_from_the_pace_since_the_canaries_were_through(
    nodes: list[NodeView], rollouts: tuple[Rollout, ...], progress: Progress | None
) -> None:
    assert see_progress(nodes, rollouts, NOW) == progress


def test_the_queue_and_the_rest_are_said_in_words() -> None:
    assert describe_progress(Progress(40, 1, 0)) == "nodes at work: 1, waiting for a permit: 40"
    words = describe_progress(Progress(40, 0, 2, 9, 16000))
    assert words.endswith("replaced: 2; 9 per hour, about 4 h 27 min left")
    durations = [describe_duration(each) for each in (20, 720, 300_000)]
    assert durations == ["less than a minute", "12 min", "3 days"]


def test_the_page_is_one_document_without_network_and_nothing_ends_its_data() -> None:
    class Page(HTMLParser):
        inside, data, outside = "", "", list[str]()

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.inside = dict(attrs).get("id") or tag
            self.outside += [str(value) for key, value in attrs if key in ("src", "href")]

        def handle_data(self, data: str) -> None:
            self.data += data if self.inside == "data" else ""

        def handle_endtag(self, tag: str) -> None:
            self.inside = ""

    page = Page()
    page.feed(render_page(SEEN))
    assert not page.outside
    document = json.loads(page.data)
    assert set(document.pop("runbooks")) <= {group["runbook"] for group in document["groups"]}
    assert document == overview_json(SEEN)


def test_other_commands_have_no_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--output", "html", "status"]) == 2
    assert "only `report` can print it" in capsys.readouterr().err


def test_a_missing_library_is_named_with_what_installs_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    assert main(["report"]) == 2
    assert "pip install 'cri-resmgr-installer[operator]'" in capsys.readouterr().err
