"""Metrics and alerts, as Prometheus' own program judges them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from installer.daemon.pages import render_page
from installer.model.daemon import DaemonState, Phase
from installer.model.names import Mode
from tests.unit.manifests.rendering import Maker, the

pytestmark = pytest.mark.skipif(not shutil.which("promtool"), reason="needs promtool")

CASES = Path(__file__).parents[1] / "cases/alerts/tests.yaml"


def promtool(*arguments: str | Path, given: str = "") -> None:
    words = ["promtool", *map(str, arguments)]
    done = subprocess.run(words, input=given, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr


@pytest.fixture
def made(tmp_path: Path) -> list[dict[str, Any]]:
    return Maker(tmp_path)({"settings": {"status": {"listen": ":9464"}}}, monitoring=True)


@pytest.fixture
def rules(tmp_path: Path, made: list[dict[str, Any]]) -> Path:
    path = tmp_path / "rules.json"
    path.write_text(json.dumps(the(made, "PrometheusRule")["spec"]))
    return path


def test_the_metrics_are_by_convention() -> None:
    page = render_page("/metrics", DaemonState(Mode.INSTALL, Phase.REFUSED, False), "1", 1e9)
    assert page is not None
    promtool("check", "metrics", given=page.text)


def test_the_alerts_are_rules(rules: Path) -> None:
    promtool("check", "rules", rules)


def test_each_alert_fires_when_it_should_and_is_silent_when_it_should(rules: Path) -> None:
    tests = rules.with_name("tests.yaml")
    tests.write_text(CASES.read_text())
    promtool("test", "rules", tests)


def test_a_node_without_a_success_yet_is_not_the_oldest(rules: Path, made: list[dict[str, Any]]) -> None:
    (text,) = the(made, "ConfigMap", "cri-resmgr-installer-dashboard")["data"].values()
    panels = {panel["title"]: panel["targets"][0]["expr"] for panel in json.loads(text)["panels"]}
    success = "cri_resmgr_installer_last_success_timestamp_seconds"
    series = [
        {"series": f'{success}{{node="{node}"}}', "values": f"{at}x9"} for node, at in (("a", 60), ("b", 0))
    ]
    asked = {
        "expr": panels["Oldest success"],
        "eval_time": "5m",
        "exp_samples": [{"labels": "{}", "value": 240}],
    }
    tests = rules.with_name("tests.yaml")
    case = {"interval": "1m", "input_series": series, "promql_expr_test": [asked]}
    tests.write_text(json.dumps({"tests": [case]}))
    promtool("test", "rules", tests)


def test_each_alert_is_tried_both_ways(rules: Path) -> None:
    (group,) = json.loads(rules.read_text())["groups"]
    given = [case for test in yaml.safe_load(CASES.read_text())["tests"] for case in test["alert_rule_test"]]
    for fires in (True, False):
        assert {case["alertname"] for case in given if ("exp_alerts" in case) is fires} == {
            alert["alert"] for alert in group["rules"]
        }
