"""The real gardener-resource-manager, for whoever has its program, on a real control plane that is seed and
Shoot at once. A process of this machine that listens on 127.0.0.1.

`--gardener DIR` names the directory of the program.
"""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any, Self

from tests.lib.throwaway.controlplane import DIES_WITH_US, ControlPlane, free_ports

PROGRAM = "gardener-resource-manager"
_SYNC = "15s"  # the shortest that it takes
_GROUP = "resources.gardener.cloud"
_OPEN = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
DEFINITION: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": f"managedresources.{_GROUP}"},
    "spec": {
        "group": _GROUP,
        "names": {"kind": "ManagedResource", "plural": "managedresources"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {"type": "object", "properties": {"spec": _OPEN, "status": _OPEN}}
                },
                "subresources": {"status": {}},
            }
        ],
    },
}
"""Its group, names and subresource; the schema is Gardener's business."""


def find_manager(directory: Path) -> Path:
    """Raises ValueError, in words for whoever has named the directory."""
    if not (directory / PROGRAM).is_file():
        raise ValueError(f"--gardener: {directory} has no {PROGRAM}")
    return directory / PROGRAM


class ResourceManager:
    """`with ResourceManager(program, plane, directory):` is at work there until the block ends."""

    def __init__(self, program: Path, plane: ControlPlane, directory: Path) -> None:
        self._program, self._plane, self._directory = program, plane, directory

    def __enter__(self) -> Self:
        admin, definitions = self._plane.admin, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        answer = admin.call("POST", definitions, DEFINITION)
        assert answer.ok, answer
        end = time.monotonic() + 120
        while not admin.call("GET", f"/apis/{_GROUP}/v1alpha1/managedresources").ok:
            assert time.monotonic() < end
            time.sleep(0.1)
        argv = (*DIES_WITH_US, str(self._program), f"--config={self._configure()}")
        with (self._directory / "manager.log").open("wb") as log:
            self._process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()  # its caches take long to end
        self._process.wait()

    def _configure(self) -> Path:
        ports = dict(zip(("webhooks", "healthProbes", "metrics"), free_ports(3), strict=True))
        server: dict[str, Any] = {
            name: {"bindAddress": "127.0.0.1", "port": port} for name, port in ports.items()
        }
        server["webhooks"]["tls"] = {"serverCertDir": str(self._plane.issue_pair(self._directory / "tls"))}
        names = ("health", "managedResources", "garbageCollector")
        controllers: dict[str, dict[str, Any]] = {name: {"syncPeriod": _SYNC} for name in names}
        controllers["garbageCollector"]["enabled"] = True
        configuration = {
            "apiVersion": "resourcemanager.config.gardener.cloud/v1alpha1",
            "kind": "ResourceManagerConfiguration",
            "sourceClientConnection": {"kubeconfig": str(self._plane.kubeconfig("admin"))},
            "leaderElection": {"leaderElect": False},
            "server": server,
            "controllers": controllers,
        }
        path = self._directory / "manager.json"
        path.write_text(json.dumps(configuration))
        return path
