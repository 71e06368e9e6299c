"""A Shoot whose nodes are hosts: what gardener-resource-manager makes of our objects there. Between one API
server and another as in `Landscape`, but all of them are applied, and each pod of ours is the program at work
on its host (`Nodes`).
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from installer.model.names import STATUS
from tests.host.node import Node
from tests.host.nodes import Nodes, pod_name
from tests.throwaway.fleet import CONFIG_MAPS
from tests.throwaway.gardener import DAEMON_SETS, LABELS, NODES, PODS, RESOURCES, SECRETS, Landscape
from tests.throwaway.kubeserver import Kind, KubeServer, Name, Refused

EVENTS = Kind("/api/v1", "events")
NAMESPACED = {"ServiceAccount", "Role", "RoleBinding", "ConfigMap", "Service", "DaemonSet"}
POLICY = "ValidatingAdmissionPolicy"  # kept, and not obeyed here
WIDE = {
    "Namespace",
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
    POLICY,
    f"{POLICY}Binding",
}
KEPT = "resources.gardener.cloud/keep-object"
COLLECTABLE = "resources.gardener.cloud/garbage-collectable-reference"
FINALIZED = "resources.gardener.cloud/finalize-deletion-after"
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
        self._objects: set[Name] = set()
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

    def apply(self, namespace: str, labels: Mapping[str, str], objects: list[Object]) -> bool:
        """What is no longer wanted goes first, and with a DaemonSet its pods: that is deleted in the
        foreground."""
        wanted = {_name_of(each): each for each in objects}
        if pending := {name for name in self._objects - wanted.keys() if self._is_left(name)}:
            for name in pending:
                finalized = FINALIZED in self.shoot.get(name)["metadata"].get("annotations", {})
                self.shoot.delete(name)
                if self.late and finalized:
                    self.shoot.patch(name, {"metadata": {"finalizers": []}})
            return False
        for name, body in wanted.items():
            for each in (body, body.get("spec", {}).get("template")):
                if each is not None:
                    each["metadata"]["labels"] = {**each["metadata"].get("labels", {}), **labels}
            self._write(name, body)
        self._objects = set(wanted)
        return True

    def _is_left(self, name: Name) -> bool:
        metadata = self.shoot.objects.get(name, {}).get("metadata")
        if metadata is None:
            return False
        return not (KEPT in metadata.get("annotations", {}) or COLLECTABLE in metadata.get("labels", {}))

    def _write(self, name: Name, body: Object) -> None:
        if name not in self.shoot.objects:
            finalizers = {"finalizers": [FOREGROUND]} if name.kind == DAEMON_SETS else {}
            self.shoot.create(name.kind, name.namespace, {**body, "metadata": body["metadata"] | finalizers})
            return
        found = self.shoot.get(name)
        parts = {
            key: _replacement(found.get(key), body[key]) for key in body.keys() & {"spec", "data", "rules"}
        }
        self.shoot.patch(name, {"metadata": body["metadata"], **parts})

    def _check_health(self) -> None:
        for resource in self.seed.find(RESOURCES):
            metadata = resource["metadata"]
            name = Name(RESOURCES, metadata["namespace"], metadata["name"])
            current = resource.get("status", {}).get("observedGeneration") == metadata["generation"]
            if current and not metadata.get("deletionTimestamp"):
                daemon_sets = self.shoot.find(DAEMON_SETS)
                with contextlib.suppress(Refused):
                    self.report(name, metadata["generation"], all(map(_is_well, daemon_sets)))

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
        self._check_health()


def _name_of(body: Object) -> Name:
    kind, metadata = body["kind"], body["metadata"]
    assert kind in NAMESPACED | WIDE, f"{kind} is not known here"
    group = body["apiVersion"]
    prefix = f"/apis/{group}" if "/" in group else f"/api/{group}"
    namespace = metadata["namespace"] if kind in NAMESPACED else ""
    plural = "validatingadmissionpolicies" if kind == POLICY else f"{kind.lower()}s"
    return Name(Kind(prefix, plural), namespace, metadata["name"])


def _replacement(old: Any, new: Any) -> Any:
    """The merge patch that makes the new one of the old one."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    gone = dict.fromkeys(old.keys() - new)
    return gone | {key: _replacement(old.get(key), value) for key, value in new.items()}


def _is_well(daemon_set: Object) -> bool:
    status = daemon_set.get("status", {})
    numbers = {status.get(key) for key in ("desiredNumberScheduled", "updatedNumberScheduled", "numberReady")}
    return status.get("observedGeneration") == daemon_set["metadata"]["generation"] and len(numbers) == 1
