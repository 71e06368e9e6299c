"""A fleet with our manifests at an API server's stand-in, and everything that was there before them: what
`uninstall` has to give back."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from installer.manifests.inputs import ManifestOptions
from installer.model.event import Event
from installer.operator.kube import KubeClient, connect_with
from installer.operator.uninstall import UninstallOptions, find, uninstall
from installer.operator.wait import Clock
from tests.lib.extras import EXTENSION
from tests.lib.throwaway.fleet import DAEMON_SETS, NODES, Fleet
from tests.lib.throwaway.kubeserver import Kind, Name

CONFIG_MAPS, ACCOUNTS = Kind("/api/v1", "configmaps"), Kind("/api/v1", "serviceaccounts")
VALUES = """
images: {installer: registry.example.org/cri-resmgr-installer:1}
annotateNode: true
agent: {enabled: true}
namespace: resources
configs: {fallback: 'policy: {Active: none}', default: 'policy: {Active: none}'}
"""
NAME, INSTANCE = "app.kubernetes.io/name", "app.kubernetes.io/instance"
OTHERS: tuple[tuple[Kind, str, str, dict[str, str]], ...] = (
    (CONFIG_MAPS, "resources", "cri-resmgr-installer-settings-ours", {}),
    (CONFIG_MAPS, "kube-system", "theirs", {INSTANCE: "cri-resmgr-installer"}),
    (
        DAEMON_SETS,
        "resources",
        "another",
        {"app.kubernetes.io/name": "other", INSTANCE: "cri-resmgr-installer"},
    ),
    (Kind("/apis/coordination.k8s.io/v1", "leases"), "resources", "leader", {}),
)


class World:
    """A fleet with our manifests, and everything that was there before them."""

    def __init__(self, fleet: Fleet, values: Path) -> None:
        self.fleet, self.server = fleet, fleet.server
        for kind, namespace, name, labels in OTHERS:
            spec: dict[str, Any] = {"selector": {}, "template": {"metadata": {"labels": {}}}}
            fleet.server.create(kind, namespace, {"metadata": {"name": name, "labels": labels}, "spec": spec})
        fleet.rest()
        self.before = self.everything()
        fleet.apply(ManifestOptions(values=values))
        fleet.rest()
        self.virtual = 0.0
        self.events: list[Event] = []

    def everything(self) -> dict[Name, Any]:
        """All objects, without what the server counts."""
        found = copy.deepcopy(self.server.objects)
        for each in found.values():
            for key in ("resourceVersion", "generation"):
                each["metadata"].pop(key)
            for key in ("annotations", "labels"):
                if not each["metadata"].get(key):
                    each["metadata"].pop(key, None)
        return found

    def api(self) -> KubeClient:
        return connect_with(self.server.kubeconfig().encode())

    def emit(self, event: Event) -> None:
        """The nodes finish a removal before the first look at it, which might find them at work otherwise."""
        self.events.append(event)
        if event.kind == "uninstall.removal":
            self.fleet.rest()

    def uninstall(self, asked: UninstallOptions = UninstallOptions(), api: Any = None) -> None:  # noqa: B008 - frozen
        """Time passes only while the nodes have nothing to do."""

        def sleep(seconds: float) -> None:
            self.fleet.rest()
            self.virtual += seconds

        clock = Clock(lambda: self.virtual, sleep)
        with closing(api or self.api()) as client:
            uninstall(client, find(client, asked), asked, self.emit, clock)

    def run(self, *arguments: str, verb: str = "uninstall") -> subprocess.CompletedProcess[str]:
        """As a process."""
        environment = {**os.environ, "PYTHONPATH": f"{EXTENSION}{os.pathsep}{Path.cwd()}"}
        kubeconfig = json.dumps(json.loads(self.server.kubeconfig()))
        program = [
            sys.executable,
            "-m",
            "installer.cli",
            verb,
            *arguments,
            "--kubeconfig",
            "/dev/stdin",
        ]
        return subprocess.run(
            program,
            input=kubeconfig,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


def node(name: str) -> Name:
    return Name(NODES, "", name)


@contextmanager
def two_installations(tmp_path: Path) -> Iterator[World]:
    """Each has a pool of its own."""
    values = dict.fromkeys(("first", "second"), tmp_path)
    for name, host in (("first", "n1"), ("second", "n2")):
        values[name] = tmp_path / f"{name}.yaml"
        given = VALUES.replace("agent: {enabled: true}\n", "").replace(
            ", default: 'policy: {Active: none}'", ""
        )
        values[name].write_text(f"{given}name: {name}\nnodes: [{host}]\n")
    with Fleet(n1="ready", n2="ready") as fleet:
        world = World(fleet, values["first"])
        fleet.apply(ManifestOptions(values=values["second"]))
        fleet.rest()
        yield world
