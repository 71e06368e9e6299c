"""A Shoot whose nodes are hosts: what gardener-resource-manager makes of our objects there. Between one API
server and another as in `Landscape`, but all of them are applied, and each pod of ours is the program at work
on its host (`Nodes`).
"""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from installer.model.names import STATUS
from tests.host.node import Node
from tests.host.nodes import Nodes, pod_name
from tests.lib.throwaway.fleet import CONFIG_MAPS, DAEMON_SETS, NODES, PODS
from tests.lib.throwaway.gardener import LABELS, Landscape
from tests.lib.throwaway.kubeserver import Kind, KubeServer, Name
from tests.lib.throwaway.managed import COLLECTABLE, FINALIZED, RESOURCES, SECRETS

EVENTS = Kind("/api/v1", "events")
FOREGROUND = "foregroundDeletion"
_LOOKS_PER_SECOND = 10

Object = dict[str, Any]


class LiveShoot(Landscape):
    """One Shoot. `payload` is what the image of its pods has in it. `late`: so much time has passed that
    gardener-resource-manager waits for no pod of what it deletes."""

    shared = False

    def __init__(self, seed: KubeServer, shoot: KubeServer, payload: Path, scratch: Path) -> None:
        super().__init__(seed, shoot)
        self.late = False
        self._nodes = Nodes(shoot, payload, scratch)
        self.container, self.pods_of, self.said = self._nodes.container, self._nodes.pods_of, self._nodes.said

    def __exit__(self, *exit: Any) -> None:
        try:
            super().__exit__(*exit)
        finally:
            self._nodes.kill()

    # -- what a test does ---------------------------------------------------------------------------

    def join(self, name: str, machine: Node, **labels: str) -> None:
        self._nodes.join(name, machine, LABELS | labels)

    def lose(self, name: str) -> None:
        """Its machine is switched off, and has been for an hour. Nobody ends its pods."""
        since = (datetime.now(UTC) - timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
        silent = {"type": "Ready", "status": "Unknown", "lastTransitionTime": since}
        with self.shoot.changed:
            machine = self._nodes.lose(name)
            self.shoot.patch(Name(NODES, "", name), {"status": {"conditions": [silent]}})
        machine.host.stop()

    def grow_old(self, name: str) -> None:
        """The pod there has had its time to become Ready."""
        for pod in self.pods_of(name):
            old = {"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}}
            self.shoot.patch(pod_name(pod), old)

    def state(self, name: str) -> str:
        """What the node's annotation says."""
        annotations = self.shoot.get(Name(NODES, "", name))["metadata"].get("annotations", {})
        return str(json.loads(annotations.get(STATUS, "{}")).get("state", ""))

    # -- gardener-resource-manager ------------------------------------------------------------------

    def seen(self) -> tuple[object, ...]:
        """Processes come and go without telling an API server."""
        return *super().seen(), int(time.monotonic() * _LOOKS_PER_SECOND)

    def placed(self, _namespace: str, objects: list[Object]) -> list[Object]:
        return objects

    def is_over(self, metadata: Object) -> bool:
        return self.late and FINALIZED in metadata.get("annotations", {})

    def create(self, name: Name, body: Object) -> None:
        """With a DaemonSet its pods go first: it is deleted in the foreground."""
        finalizers = {"finalizers": [FOREGROUND]} if name.kind == DAEMON_SETS else {}
        super().create(name, {**body, "metadata": body["metadata"] | finalizers})

    def collect_garbage(self) -> None:
        """What is named by its content, and nobody refers to any more: gardener-resource-manager does it once
        an hour. And namespaces that are deleted and empty."""
        self.shoot.finish_namespaces()
        resources = self.seed.find(RESOURCES)
        named = {each["name"] for resource in resources for each in resource["spec"]["secretRefs"]}
        users = [*self.shoot.find(DAEMON_SETS), *self.shoot.find(PODS)]
        named |= {value for each in users for value in (each["metadata"].get("annotations") or {}).values()}
        for server, kind in ((self.seed, SECRETS), (self.shoot, CONFIG_MAPS)):
            for each in server.find(kind):
                metadata = each["metadata"]
                if COLLECTABLE in (metadata.get("labels") or {}) and metadata["name"] not in named:
                    server.delete(Name(kind, metadata["namespace"], metadata["name"]))

    # -- the nodes ----------------------------------------------------------------------------------

    def run_nodes(self) -> None:
        self._nodes.run()
