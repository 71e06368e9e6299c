"""The commands for a whole cluster, as processes: on an API server's stand-in with our manifests and played
nodes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from installer.manifests.inputs import ManifestOptions
from tests.extras import EXTENSION
from tests.throwaway.fleet import NODES, Fleet, build_node

Ran = subprocess.CompletedProcess[str]
Run = Callable[..., Ran]


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
        program = [sys.executable, "-m", "installer.cli", *arguments, "--kubeconfig", str(kubeconfig)]
        environment = {**os.environ, "PYTHONPATH": f"{EXTENSION}{os.pathsep}{Path.cwd()}"}
        return subprocess.run(
            program, env=environment, capture_output=True, text=True, timeout=120, check=False
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
    assert states["n4"] == ("silent", "its kubelet is not heard of")
    assert states["left"][0] == "deselected, not removed"
    text = run("report").stdout
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
    assert asked == {"daemonsets": 1, "pods": 1, "leases": 1, "nodes": 3}


def test_what_the_api_server_refuses_is_said_in_its_words(fleet: Fleet, run: Run) -> None:
    fleet.server.fail("GET", "/nodes", code=403)
    refused = run("report")
    assert refused.returncode == 1
    assert "error: the API server: 403: a fault of the test" in refused.stderr
