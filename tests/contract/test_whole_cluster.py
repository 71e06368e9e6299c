"""The commands for a whole cluster, as processes: on an API server's stand-in with our manifests and played
nodes.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from installer.cluster.breaker import Breaker, Failure, build_breaker
from installer.cluster.leases import Permit, build_lease, build_permit
from installer.manifests.inputs import ManifestOptions
from installer.model.fleet import BREAKER, FleetRules
from installer.model.instant import parse_time
from tests.lib.extras import EXTENSION
from tests.lib.throwaway.fleet import LEASES, NODES, Fleet, build_node
from tests.lib.throwaway.kubeserver import Name

Ran = subprocess.CompletedProcess[str]
Run = Callable[..., Ran]


PROGRAM = (sys.executable, "-m", "installer.cli")
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{EXTENSION}{os.pathsep}{Path.cwd()}"}


@pytest.fixture
def values(tmp_path: Path) -> Path:
    path = tmp_path / "values.yaml"
    path.write_text(
        "images: {installer: registry.example.org/cri-resmgr-installer:1}\n"
        "annotateNode: true\nagent: {enabled: true}\nnamespace: resources\n"
        "configs: {default: 'policy: {Active: none}'}\n"
    )
    return path


@pytest.fixture
def fleet(values: Path) -> Iterator[Fleet]:
    with Fleet(n1="ready", n2="ready", n3="stuck", n4="gone") as found:
        found.apply(ManifestOptions(values=values))
        found.rest()
        yield found


@pytest.fixture
def run(tmp_path: Path, fleet: Fleet) -> Run:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(fleet.server.kubeconfig())

    def command(*arguments: str) -> Ran:
        program = [*PROGRAM, *arguments, "--kubeconfig", str(kubeconfig)]
        return subprocess.run(
            program, env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False
        )

    return command


def test_report_tells_of_every_node_what_is_wrong_and_where(fleet: Fleet, run: Run) -> None:
    left = build_node("left", annotation={"state": "converged"})
    left["metadata"]["labels"]["kubernetes.io/arch"] = "arm64"
    fleet.server.create(NODES, "", left)
    found = run("report", "--output", "json")
    assert found.returncode == 3, found.stderr
    seen = json.loads(found.stdout)
    states = {each["name"]: (each["state"], each["reason"]) for each in seen["nodes"]}
    assert states["n1"] == states["n2"] == ("well", "")
    assert states["n3"] == ("not ready", "the disk is full")
    assert states["n4"] == ("silent", "its kubelet is silent")
    assert states["left"][0] == "deselected, not removed"
    assert all(parse_time(each["changed"]) for each in seen["nodes"] if each["name"] in ("n1", "n2", "n3"))
    text = run("report").stdout
    assert text.startswith(
        "NOT WELL: 1 not ready, 1 silent, 1 deselected, not removed; 2 of 5 nodes are well\n"
    )
    assert "the disk is full" in text
    assert "resources/cri-resmgr-installer, mode install, image registry.example.org" in text


def test_report_asks_for_pages_and_for_no_node_alone(fleet: Fleet, run: Run) -> None:
    for at in range(1000):
        fleet.server.create(NODES, "", build_node(f"other-{at}"))
    fleet.server.requests.clear()
    page = run("report", "--output", "html")
    assert page.returncode == 3
    assert page.stdout.startswith("<!DOCTYPE html>")
    asked = {plural: count for (_, plural), count in fleet.server.requests.items()}
    once = dict.fromkeys(("clusterrolebindings", "configmaps", "events", "pods", "leases"), 1)
    assert asked == {**once, "daemonsets": 2, "nodes": 3}  # those of two namespaces, kube-system is one


@pytest.mark.parametrize("command", [("report",), ("rollout", "status"), ("uninstall", "--dry-run")])
def test_a_command_that_a_person_ends_says_so(fleet: Fleet, tmp_path: Path, command: tuple[str, ...]) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(fleet.server.kubeconfig())
    fleet.server.fail("GET", "/daemonsets", hang=True)
    fleet.server.requests.clear()
    # Whoever runs the tests in the background may ignore Ctrl-C, and so would all that they start.
    program = ["env", "--default-signal=INT", *PROGRAM, *command, "--kubeconfig", str(kubeconfig)]
    running = subprocess.Popen(program, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    fleet.server.wait(lambda: fleet.server.requests.total() > 0)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=120)
    assert (running.returncode, said.splitlines()[0]) == (130, "error: ended by signal 2 between two steps")


def test_no_answer_to_the_question_is_a_no(fleet: Fleet, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(fleet.server.kubeconfig())
    ours, theirs = os.openpty()
    program = [*PROGRAM, "uninstall", "--kubeconfig", str(kubeconfig)]
    running = subprocess.Popen(program, env=ENVIRONMENT, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    try:
        read_until(ours, b"[y/N] ")
        os.write(ours, b"\x04")  # Ctrl-D
        read_until(ours, b"not confirmed; nothing was touched")
        assert running.wait(120) == 2
    finally:
        running.kill()
        running.wait()
        os.close(ours)
    assert {method for method, _ in fleet.server.log} == {"GET"}


def read_until(terminal: int, wanted: bytes) -> bytes:
    said = b""
    while wanted not in said:
        assert select.select([terminal], [], [], 120)[0], said
        said += os.read(terminal, 1 << 16)
    return said


def test_what_the_api_server_refuses_is_said_in_its_words(fleet: Fleet, run: Run) -> None:
    fleet.server.fail("GET", "/nodes", code=403)
    refused = run("report")
    assert refused.returncode == 69
    assert "error: the API server: 403: a fault of the test" in refused.stderr


@pytest.mark.parametrize("code", [429, 503])
def test_report_tries_again_when_a_busy_api_server_asks_for_it(fleet: Fleet, run: Run, code: int) -> None:
    fleet.server.fail("GET", "/nodes", code=code, times=2, retry_after="1")
    assert run("report").returncode == 3
    fleet.server.fail("GET", "/nodes", code=code)
    away = run("report")
    assert (away.returncode, away.stdout) == (69, "")


def test_a_rollout_is_seen_paused_and_begun_again(fleet: Fleet, run: Run) -> None:
    place, now = "cri-resmgr-installer-rollout", time.time()
    breaker = Breaker("0123456789abcdef", begun=now - 60, failures={"n3": Failure(now - 50, "no space")})
    fleet.server.create(LEASES, place, build_breaker(breaker, place, FleetRules(), 4))
    fleet.server.create(LEASES, place, build_permit(Permit("permit-0"), place, "n1/uid-1", now, 600))
    seen = run("rollout", "status")
    assert seen.returncode == 3, seen.stderr
    assert "permits: 1 of 1 in use: n1 since" in seen.stdout
    assert "is stopped: it failed on node n3: no space" in seen.stdout
    assert "it failed on node n3" in run("report").stdout
    assert run("rollout", "pause", "--why", "a Friday").returncode == 0
    paused = run("rollout", "status", "--output", "json")
    assert [(each["paused"], each["why"]) for each in json.loads(paused.stdout)["rollouts"]] == [
        (True, "a Friday")
    ]
    refused = run("uninstall", "--dry-run")
    assert refused.returncode == 2
    assert "the rollout is paused: no node will start: a Friday" in refused.stderr
    assert run("rollout", "resume").returncode == 0
    said = run("rollout", "retry").stdout
    assert "released generation 0123456789ab, which starts again with canaries; n3 failed it" in said
    assert "nodes that wait ask again within 60 s" in said
    assert Name(LEASES, place, "breaker-0123456789abcdef") not in fleet.server.objects
    assert run("rollout", "status").returncode == 0
    assert run("rollout", "retry").stdout == "no generation was stopped; nothing has changed\n"


def test_a_retry_says_of_each_lease_why_it_goes(fleet: Fleet, run: Run) -> None:
    place, now = "cri-resmgr-installer-rollout", time.time()
    breaker = build_lease("breaker-edited", place, "edited", annotations={BREAKER: "{"})
    fleet.server.create(LEASES, place, breaker)
    for name, holder, begins in (
        ("permit-0", "n1/uid-1", now),
        ("permit-1", "n1/uid-1", now),
        ("permit-2", "n2/uid-2", now + 10 * 86400),
    ):
        fleet.server.create(LEASES, place, build_permit(Permit(name), place, holder, begins, 600))
    assert run("rollout", "retry").stdout.strip().split("; ") == [
        "deleted breaker-edited: no node could parse it or start its generation, which canaries start again",
        "deleted permit-2: its term is further ahead than any node dates it",
        "deleted permit-1: node n1 holds another permit and needs only one",
        "nodes that wait ask again within 60 s",
    ]


def test_a_pause_is_no_failure_where_a_node_writes_the_lease_first(fleet: Fleet, run: Run) -> None:
    """It is not there yet when the pause looks, and there when the pause creates it."""
    place = "cri-resmgr-installer-rollout"
    fleet.server.create(LEASES, place, build_lease("fleet", place, "fleet"))
    fleet.server.fail("PATCH", "/leases/fleet", code=404, times=1)
    paused = run("rollout", "pause", "--why", "a Friday")
    assert paused.returncode == 0, paused.stderr
    assert "a Friday" in run("rollout", "status").stdout


def test_labelled_nodes_that_the_others_wait_for_are_counted(fleet: Fleet, run: Run) -> None:
    place, now = "cri-resmgr-installer-rollout", time.time()
    canaries = {"n1": now - 60}
    breaker = Breaker("0123456789abcdef", now - 60, canaries, frozenset({"n1"}), labelled=3)
    fleet.server.create(LEASES, place, build_breaker(breaker, place, FleetRules(), 4))
    waiting = "1 of 1 canaries have it, 2 labelled nodes have not started it yet"
    assert waiting in run("rollout", "status").stdout
    through = replace(breaker, passed=now - 1)
    fleet.server.replace(
        Name(LEASES, place, "breaker-0123456789abcdef"), build_breaker(through, place, FleetRules(), 4)
    )
    assert "have not started it yet" not in run("rollout", "status").stdout
