"""`manifests --monitoring`: what it makes fits what is served, and what is documented."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from installer.daemon.pages import render_page
from installer.model.daemon import DaemonState, Phase
from installer.model.names import Mode
from tests.lib.documents import MONITORING, RUNBOOKS, section
from tests.unit.manifests.rendering import Maker, pod_of, the

REACHED = {"settings": {"status": {"listen": ":9464"}}}


@pytest.fixture
def made(tmp_path: Path) -> list[dict[str, Any]]:
    return Maker(tmp_path)(REACHED, monitoring=True)


def served() -> set[str]:
    page = render_page("/metrics", DaemonState(Mode.INSTALL, Phase.STARTING, False), "1")
    assert page is not None
    return {"up"} | set(re.findall(r"(?m)^# TYPE (\w+)", page.text))


def test_alerts_and_panels_ask_for_what_is_served(made: list[dict[str, Any]]) -> None:
    (group,) = the(made, "PrometheusRule")["spec"]["groups"]
    dashboard = json.loads(the(made, "ConfigMap", "cri-resmgr-installer-dashboard")["data"].popitem()[1])
    asked = [rule["expr"] for rule in group["rules"]]
    asked += [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    names = {name for text in asked for name in re.findall(r"\bcri_resmgr_installer_\w+|\bup\b", text)}
    assert names <= served()
    phases = {phase for text in asked for phase in re.findall(r'phase="(\w+)"', text)}
    assert phases <= {phase.value for phase in Phase}


def anchor(heading: str) -> str:
    """As GitHub makes it."""
    kept = "".join(letter for letter in heading.lower() if letter.isalnum() or letter in " -")
    return kept.replace(" ", "-")


def test_every_alert_has_its_runbook(made: list[dict[str, Any]]) -> None:
    anchors = {f"docs/runbooks.md#{anchor(each)}" for each in re.findall(r"(?m)^#+ (.*)$", RUNBOOKS)}
    explained = section("Alerts", MONITORING)
    (group,) = the(made, "PrometheusRule")["spec"]["groups"]
    for alert in group["rules"]:
        runbook = alert["annotations"]["runbook"]
        assert runbook in anchors
        _, _, place = runbook.partition("/")
        assert re.search(rf"(?m)^\| `{alert['alert']}` .*\({re.escape(place)}\)", explained)


def test_prometheus_finds_the_port_of_the_pods(made: list[dict[str, Any]]) -> None:
    monitor, daemonset = the(made, "PodMonitor")["spec"], the(made, "DaemonSet")
    (port,) = pod_of(daemonset)["containers"][0]["ports"]
    assert (port["name"], port["containerPort"]) == (monitor["podMetricsEndpoints"][0]["port"], 9464)
    labels = daemonset["spec"]["template"]["metadata"]["labels"]
    assert monitor["selector"]["matchLabels"].items() <= labels.items()


def test_a_removal_leaves_the_port_to_the_installation(tmp_path: Path) -> None:
    """Both are in the host's network, where a port is for one pod."""
    removal = Maker(tmp_path)(REACHED, mode="remove", monitoring=True)
    assert "ports" not in pod_of(the(removal, "DaemonSet"))["containers"][0]
    assert "PodMonitor" not in [each["kind"] for each in removal]


@pytest.mark.parametrize("listen", ["", "127.0.0.1:9464", "[::1]:9464", "localhost:9464"])
def test_what_prometheus_cannot_reach_is_refused(tmp_path: Path, listen: str) -> None:
    values = f"images: {{installer: a:1}}\nsettings: {{status: {{listen: '{listen}'}}}}\n"
    (fault,) = Maker(tmp_path).faults(values, monitoring=True)
    assert fault.startswith("settings.status.listen: must be an address that Prometheus reaches")
