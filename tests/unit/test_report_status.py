"""How the status of a host is shown, and with which exit code."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace

import pytest

from installer.model import paths
from installer.model.history import History, HistoryEntry, Past
from installer.model.host import DesiredFile, HostSnapshot, ProcessState, UnitState
from installer.model.names import Mode
from installer.model.plan import Assessment, Desired, DesiredUnit, Finding, Plan, Severity, UnitAction
from installer.model.proxy import PolicyInForce, PolicySource
from installer.report.history import print_history
from installer.report.status import print_status
from tests.lib.reported import FALLBACK, HARMFUL, file, plan, there, unit
from tests.lib.snapshots import but, snapshot

PROXY = UnitState(paths.PROXY_UNIT, "loaded", "active", "running", "enabled", main_pid=5)


KUBELET = UnitState("kubelet.service", "loaded", "active", "running", "enabled", main_pid=7)


WELL = snapshot(
    {FALLBACK: there(b"")},
    PROXY,
    KUBELET,
    ProcessState(5, (), {paths.GENERATION_VARIABLE: "g1"}),
    relay_answers=True,
    on_relay=True,
    kubelet_healthy=True,
)


WANTED = Desired((DesiredFile.of(FALLBACK, b""),), proxy=DesiredUnit(paths.PROXY_UNIT, "", "", "g1"))


def status(seen: HostSnapshot, shown: Plan, output: str = "text") -> tuple[int, str]:
    stream = io.StringIO()
    code = print_status(Assessment(replace(shown, desired=WANTED), seen), output, stream)
    return code, stream.getvalue()


CHANGE = HistoryEntry(
    "2026-11-22T03:00:00Z", "alice", "install", "done", "1 to change", (), WANTED.generation, "v0.9.2"
)


PAST = Past(CHANGE, "2026-11-22T03:00:01Z", "relay: ready, waited 0.10 s")


def test_status_tells_the_policy_the_runtime_the_payload_and_how_it_came_to_be() -> None:
    running = ProcessState(
        5, ("cri-resmgr", "--runtime-socket=/run/x.sock"), {paths.GENERATION_VARIABLE: "g1"}
    )
    seen = Assessment(
        replace(plan(), desired=WANTED),
        but(WELL, proxy_process=running),
        policy=PolicyInForce("balloons", PolicySource.AGENT),
        as_installed=True,
        installed=WANTED.generation,
        asked={"payload": "/root/my payload", "default_configs": ""},
    )
    stream = io.StringIO()
    assert print_status(seen, "text", stream, PAST) == 0
    lines = [line.strip() for line in stream.getvalue().splitlines()]
    for line in (
        "policy: balloons, from cri-resmgr-agent",
        "runtime endpoint: /run/x.sock",
        f"installed: cri-resmgr v0.9.2, generation {WANTED.generation}",
        "the last run by hand had --payload '/root/my payload' --default-configs",
        "guard: relay: ready, waited 0.10 s  (2026-11-22T03:00:01Z)",
        "last change: 2026-11-22T03:00:00Z install by alice: done: 1 to change",
        "compared with what was installed last, because no payload and configs were given",
    ):
        assert line in lines
    stream = io.StringIO()
    print_status(seen, "json", stream, PAST)
    document = json.loads(stream.getvalue())
    assert document["policy"] == {"name": "balloons", "source": "cri-resmgr-agent", "pending": ""}
    assert (document["runtimeEndpoint"], document["payloadVersion"]) == ("/run/x.sock", "v0.9.2")
    assert document["guard"] == {"time": PAST.guard_time, "decision": PAST.guard, "thisStart": True}
    assert (document["lastChange"]["who"], document["asInstalled"]) == ("alice", True)


def test_a_decision_of_the_guard_for_another_start_is_called_so() -> None:
    """After a removal kubelet starts without the guard, whose last word is in the journal all the same."""
    stream = io.StringIO()
    print_status(Assessment(plan(), WELL), "text", stream, PAST._replace(guard_invocation="another"))
    assert (
        "    guard: relay: ready, waited 0.10 s  (2026-11-22T03:00:01Z, for an earlier start)"
        in stream.getvalue()
    )


def test_a_version_that_was_not_installed_last_is_not_shown() -> None:
    stream = io.StringIO()
    other = PAST._replace(last_change=replace(CHANGE, generation="g0"))
    print_status(Assessment(replace(plan(), desired=WANTED), WELL), "text", stream, other)
    assert f"given: generation {WANTED.generation}\n" in stream.getvalue()


def test_status_and_history_name_a_generation_alike() -> None:
    """One name for it, whatever the units were started with."""
    seen = Assessment(
        replace(plan(), desired=WANTED), WELL, installed=WANTED.generation, installed_version="v0.9.2"
    )
    stream = io.StringIO()
    print_status(seen, "text", stream)
    shown = re.findall("(?:cri-resmgr .*)?generation .*", stream.getvalue())
    stream = io.StringIO()
    print_history(History((CHANGE,)), "text", stream)
    assert shown == re.findall("cri-resmgr .*", stream.getvalue()) != []


def test_a_host_without_us_is_not_installed() -> None:
    bare = but(WELL, proxy=UnitState(paths.PROXY_UNIT), proxy_process=None, on_relay=False)
    stream = io.StringIO()
    assert print_status(Assessment(plan(), bare, as_installed=True), "text", stream) == 3
    assert stream.getvalue().splitlines()[-1] == "not installed"


def test_what_was_compared_with_nothing_is_not_converged() -> None:
    """A first installation that was cut off before its end, looked at without a payload."""
    stream = io.StringIO()
    assert print_status(Assessment(plan(), WELL, as_installed=True), "text", stream) == 3
    assert stream.getvalue().splitlines()[-1].startswith("no installation was completed here")
    stream = io.StringIO()
    print_status(Assessment(plan(), WELL, as_installed=True), "json", stream)
    assert json.loads(stream.getvalue())["converged"] is False


def test_what_journals_say_cannot_act_on_the_terminal() -> None:
    nasty = "\x1b[2J\nforged: line"
    past = Past(replace(CHANGE, who=nasty, summary=nasty), nasty, nasty)
    stream = io.StringIO()
    print_status(Assessment(replace(plan(), desired=WANTED), WELL), "text", stream, past)
    print_history(History((replace(CHANGE, who=nasty, why=(nasty,)),)), "text", stream)
    assert not HARMFUL.search(stream.getvalue())
    assert "\nforged" not in stream.getvalue()


def test_a_converged_and_healthy_host() -> None:
    code, text = status(WELL, plan())
    assert code == 0
    assert text.splitlines()[-1] == "converged and healthy"
    assert "cri-resource-manager.service: active (running), pid 5, enabled" in text
    assert "endpoint: relay" in text
    assert "files: 1 correct, 0 different" in text


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (but(WELL, relay_answers=False), "not healthy: the relay does not answer"),
        (
            but(WELL, relay_answers=False, starting=True),
            "not healthy: the proxy is still starting, and its relay does not answer yet",
        ),
        (but(WELL, kubelet_healthy=False), "not healthy: kubelet.service is not healthy"),
        (but(WELL, on_relay=False), "not healthy: kubelet runs on its base endpoint, not on the relay"),
        (
            but(WELL, proxy=UnitState(paths.PROXY_UNIT)),
            "not healthy: cri-resource-manager.service is not running",
        ),
    ],
)
def test_an_unhealthy_host_is_exit_3_though_no_file_differs(seen: HostSnapshot, said: str) -> None:
    code, text = status(seen, plan())
    assert code == 3
    assert said in text.splitlines()[-1]


def test_a_difference_is_exit_3_and_named() -> None:
    different = plan(file(there(b"a"), DesiredFile.of(FALLBACK, b"b")), units=(unit(UnitAction.RESTART),))
    process = ProcessState(5, (), {paths.GENERATION_VARIABLE: "g0"})
    code, text = status(but(WELL, proxy_process=process), different)
    assert code == 3
    assert f"    {FALLBACK}: its content differs" in text
    assert "started with digest g0 (expected digest g1)" in text
    assert "not converged: 1 to change; cri-resource-manager restarts" in text


def test_a_refusal_is_not_well() -> None:
    refused = plan(findings=(Finding(Severity.REFUSE, "kubelet-masked", "m", "h"),))
    code, text = status(WELL, refused)
    assert code == 3
    assert text.splitlines()[-1] == "refused: kubelet-masked"


def test_a_unit_that_somebody_else_started_says_so() -> None:
    _code, text = status(but(WELL, proxy_process=None), plan())
    assert "not started by this installer (expected digest g1)" in text
    stream = io.StringIO()
    print_status(Assessment(plan(), WELL), "text", stream)
    assert "started with digest g1 (expected none)" in stream.getvalue()


def test_a_removed_host_is_well_without_a_proxy() -> None:
    gone = but(
        WELL, proxy=UnitState(paths.PROXY_UNIT), proxy_process=None, relay_answers=False, on_relay=False
    )
    look = Assessment(replace(plan(), mode=Mode.REMOVE), gone)
    stream = io.StringIO()
    assert print_status(look, "text", stream) == 0
    assert "cri-resource-manager.service: not found" in stream.getvalue()


def test_status_as_json_is_one_document() -> None:
    code, text = status(but(WELL, relay_answers=False), plan(), "json")
    document = json.loads(text)
    assert code == 3
    assert (document["converged"], document["healthy"]) == (True, False)
    assert document["complaints"] == ["the relay does not answer"]
    proxy, kubelet = document["units"]
    assert (proxy["generation"], proxy["wantedGeneration"], proxy["mainPid"]) == ("g1", "g1", 5)
    assert kubelet["name"] == "kubelet.service"


def test_status_tells_of_a_hold_and_of_a_remembered_failure() -> None:
    stream = io.StringIO()
    look = Assessment(
        plan(),
        replace(WELL, hold="the proxy \x1b[2J died"),
        remembered_failure="2024-01-01T00:00:00Z: it exits",
    )
    print_status(look, "text", stream)
    assert "held on its base endpoint" in stream.getvalue()
    assert "the proxy \\x1b[2J died" in stream.getvalue()
    assert all(place in stream.getvalue() for place in paths.HOLDS)
    assert "not retried: 2024-01-01T00:00:00Z: it exits" in stream.getvalue()
