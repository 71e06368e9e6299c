"""What is said of each node of a fleet, from what the API server has of it."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from typing import Any

import pytest

import installer.kube.client  # noqa: F401 - its library tries a socket when it is first imported
from installer.admin.find import Installed
from installer.admin.look import Known, PodView, judge_node
from installer.cli import main
from installer.model.overview import FleetInstallation, NodeHealth, NodeView, Overview, group_nodes
from installer.model.state import Mode
from installer.report.overview import describe_age, overview_json, render_overview, render_page

NAME = "cri-resmgr-installer"
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
POOL = {"pool": "a"}
READY, UNREADY, BROKEN = PodView(True, ""), PodView(False, ""), PodView(False, "ErrImagePull: no such tag")
INSTALL, REMOVAL = (Mode.INSTALL,), (Mode.INSTALL, Mode.REMOVE)


def known(modes: tuple[Mode, ...], pod: PodView | None, word: float | None) -> Known:
    spec = {"template": {"spec": {"nodeSelector": POOL}}}
    installed = tuple(
        Installed(
            FleetInstallation("kube-system", mode, "cri-resmgr-installer", mode, "image"), {"spec": spec}
        )
        for mode in modes
    )
    words = {} if word is None else {"cri-resmgr-installer.n1": (NOW - timedelta(seconds=word), 120)}
    return Known(installed, {("n1", modes[-1]): pod} if pod and modes else {}, words, NOW)


def node(
    says: dict[str, str] | str, labels: dict[str, str] = POOL, heard: bool = True, age: float = 3600
) -> dict[str, Any]:
    text = says if isinstance(says, str) else json.dumps(says)
    return {
        "metadata": {
            "name": "n1",
            "labels": labels,
            "annotations": {"cri-resource-manager.intel.com/installer": text} if says else {},
            "creationTimestamp": (NOW - timedelta(seconds=age)).isoformat(),
        },
        "status": {"conditions": [{"type": "Ready", "status": "True" if heard else "Unknown"}]},
    }


DESELECTED = "no DaemonSet of ours selects it any more"
CONVERGED, REMOVED = {"state": "converged"}, {"state": "removed"}


@pytest.mark.parametrize(
    ("given", "modes", "pod", "word", "health", "reason"),
    [
        (node(CONVERGED), INSTALL, READY, 10, NodeHealth.WELL, ""),
        (node({}), INSTALL, READY, 10, NodeHealth.WELL, ""),
        (node({}), INSTALL, UNREADY, 10, NodeHealth.WORKING, "its pod is not Ready yet"),
        (node({}), INSTALL, BROKEN, None, NodeHealth.TROUBLE, BROKEN.complaint),
        (
            node({"state": "failed", "reason": "no space"}),
            INSTALL,
            UNREADY,
            10,
            NodeHealth.TROUBLE,
            "no space",
        ),
        (node({"state": "waiting", "reason": "turn"}), INSTALL, UNREADY, 10, NodeHealth.WORKING, "turn"),
        (node({"state": "repairing"}), INSTALL, BROKEN, 10, NodeHealth.TROUBLE, BROKEN.complaint),
        (node({"state": "paused", "reason": "why"}), INSTALL, READY, 10, NodeHealth.PAUSED, "why"),
        (node(CONVERGED), INSTALL, READY, 121, NodeHealth.SILENT, "its installer has not renewed its Lease"),
        (node(CONVERGED, heard=False), INSTALL, READY, 10, NodeHealth.SILENT, "its kubelet is not heard of"),
        (node({}), INSTALL, None, None, NodeHealth.SILENT, "it is selected and has no pod of ours"),
        (node({}, age=10), INSTALL, None, None, NodeHealth.WORKING, "it is selected and has no pod of ours"),
        (node(CONVERGED), REMOVAL, UNREADY, 10, NodeHealth.WORKING, "converged"),
        (node(REMOVED), REMOVAL, READY, 10, NodeHealth.WELL, ""),
        (
            node(CONVERGED, {}),
            INSTALL,
            None,
            10,
            NodeHealth.DIRTY,
            DESELECTED,
        ),
        (node(CONVERGED), (), None, None, NodeHealth.DIRTY, DESELECTED),
        (node({}, {}), INSTALL, None, 10, NodeHealth.DIRTY, DESELECTED),
        (node("[not ours", {}), INSTALL, None, None, None, ""),
        (node(REMOVED, {}), INSTALL, None, 10, None, ""),
        (node({}, {}), INSTALL, None, None, None, ""),
    ],
)
def test_a_node_is_judged_by_its_words_its_pod_and_its_silence(
    given: dict[str, Any],
    modes: tuple[Mode, ...],
    pod: PodView | None,
    word: float | None,
    health: NodeHealth | None,
    reason: str,
) -> None:
    view = judge_node(given, known(modes, pod, word))
    assert (view and view.health, view.reason if view else "") == (health, reason)


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
        NodeView("n8", NodeHealth.SILENT, NASTY, phase="converged", heard=7300),
        NodeView("n9", NodeHealth.WELL, phase="converged", policy="none", changed="2026-02-01T00:00:00Z"),
    ),
)


def test_nodes_with_the_same_reason_are_one_group_whatever_their_names() -> None:
    first, *_ = group_nodes(SEEN.nodes)
    assert (len(first.nodes), first.reason) == (7, "NODE has no space")
    assert not SEEN.well


def test_the_text_names_some_nodes_of_each_group_and_all_where_asked() -> None:
    text = render_overview(SEEN)
    assert "7  not ready, failed: NODE has no space" in text
    assert "n0, n1, n2, n3, n4 and 2 more" in text
    assert "\x1b" not in text
    lines = render_overview(SEEN, every_node=True).splitlines()
    assert lines[-1].split() == ["n9", "well", "converged", "none", "2026-02-01T00:00:00Z"]


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
    assert json.loads(page.data) == overview_json(SEEN)


def test_ages_are_short() -> None:
    assert [describe_age(each) for each in (0, 119, 120, 7200, 172_800)] == ["0s", "119s", "2m", "2h", "2d"]


def test_other_commands_have_no_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--output", "html", "status"]) == 2
    assert "only `report` has it" in capsys.readouterr().err


def test_a_missing_library_is_named_with_what_installs_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    assert main(["report"]) == 2
    assert "pip install 'cri-resmgr-installer[operator]'" in capsys.readouterr().err
