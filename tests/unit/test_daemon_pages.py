"""What the daemon tells over HTTP: bodies here, the server in the contract tests."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from installer.daemon.pages import render_page
from installer.model.daemon import DaemonState, Installed, Phase
from installer.model.names import Mode
from tests.lib.rules import rule

STATE = DaemonState(
    Mode.INSTALL,
    Phase.CONVERGED,
    ready=True,
    last_exit=0,
    last_seconds=0.25,
    installed=Installed('a"b\\c\nd', "v0.9.2", "balloons", "cri-resmgr-agent"),
    restarts=2,
    all_restarts=7,
    repairs=3,
)


def metrics(state: DaemonState) -> dict[str, float]:
    page = render_page("/metrics", state, "1.2")
    assert page is not None
    families = text_string_to_metric_families(page.text)
    samples = [sample for family in families for sample in family.samples]
    return {sample.name + sample.labels.get("phase", ""): sample.value for sample in samples}


def test_metrics_are_what_prometheus_reads() -> None:
    page = render_page("/metrics", STATE, "1.2")
    assert page is not None
    families = {family.name: family for family in text_string_to_metric_families(page.text)}
    assert families["cri_resmgr_installer_info"].samples[0].labels == {
        "version": "1.2",
        "mode": "install",
        "generation": STATE.installed.generation,
        "payload_version": "v0.9.2",
        "policy": "balloons",
        "policy_source": "cri-resmgr-agent",
    }
    assert families["cri_resmgr_installer_kubelet_restarts"].type == "counter"
    found = metrics(STATE)
    assert found["cri_resmgr_installer_kubelet_restarts_total"] == 7
    assert found["cri_resmgr_installer_kubelet_restarts_last_hour"] == 2
    assert found["cri_resmgr_installer_repairs_total"] == 3
    assert found["cri_resmgr_installer_last_pass_seconds"] == 0.25
    assert found["cri_resmgr_installer_hold"] == 0


def test_names_and_help_are_by_convention() -> None:
    """https://prometheus.io/docs/practices/naming/; promtool checks the same."""
    page = render_page("/metrics", STATE, "1.2", 1_767_355_200.0)
    assert page is not None
    for family in text_string_to_metric_families(page.text):
        (name,) = {sample.name for sample in family.samples}
        assert re.fullmatch(r"[a-z][a-z_]*[a-z]", name)
        assert name.endswith("_total") is (family.type == "counter")
        assert not re.search("milli|minute|hours|_count$|_sum$|_bucket$", name)
        assert bool(re.search("time|_pass_s|_answer_s", name)) is name.endswith("_seconds")
        assert re.fullmatch(r"[A-Z0-9].{20,}\.", family.documentation), family.documentation
    assert "last_success_timestamp_seconds 1767355200.0" in page.text


def test_the_time_of_a_cri_call_is_told() -> None:
    page = render_page("/metrics", STATE, "1.2", answered_in=0.0042)
    assert page is not None
    assert "\ncri_resmgr_installer_relay_answer_seconds 0.0042\n" in page.text


@pytest.mark.parametrize("phase", Phase)
def test_just_one_phase_is_true(phase: Phase) -> None:
    found = metrics(replace(STATE, phase=phase))
    true = [name for name, value in found.items() if name.startswith("cri_resmgr_installer_phase") and value]
    assert true == [f"cri_resmgr_installer_phase{phase.value}"]
    assert found["cri_resmgr_installer_converged"] == (phase in (Phase.CONVERGED, Phase.REMOVED))


@rule("R13")
@pytest.mark.parametrize(
    ("path", "ready", "status"),
    [("/healthz", True, 200), ("/healthz", False, 200), ("/readyz", True, 200), ("/readyz", False, 503)],
)
def test_only_readiness_depends_on_the_host(path: str, ready: bool, status: int) -> None:
    page = render_page(path, replace(STATE, ready=ready, reason="why", hold="held"), "1")
    assert page is not None
    assert page.status.startswith(f"{status} ")
    told = json.loads(page.text)
    assert (told["phase"], told["reason"], told["hold"], told["payloadVersion"]) == (
        "converged",
        "why",
        "held",
        "v0.9.2",
    )


def test_there_is_nothing_else() -> None:
    assert render_page("/", STATE, "1") is None
