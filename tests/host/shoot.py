"""A Shoot whose nodes are hosts: what gardener-resource-manager, the DaemonSet controller and kubelet make of
our objects there. Between one API server and another as in `Landscape`, but all of them are applied, and each
pod of ours is the program at work on its host.

A pod is Available as soon as it is Ready: nothing here waits for `minReadySeconds`. Its readiness probe is
not run; the file that it looks at is looked at.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import signal
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from installer.model.node_marks import STATUS
from tests.host.command import PROGRAM
from tests.host.daemon import Daemon
from tests.host.node import Node
from tests.throwaway.gardener import DAEMON_SETS, LABELS, NODES, PODS, RESOURCES, SECRETS, Landscape
from tests.throwaway.kubeserver import Kind, KubeServer, Name, Refused

CONFIG_MAPS, EVENTS = Kind("/api/v1", "configmaps"), Kind("/api/v1", "events")
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
REVISION = "controller-revision-hash"
KUBELET, FOREGROUND = "kubelet", "foregroundDeletion"
_LOOKS_PER_SECOND = 10

Object = dict[str, Any]


class LiveShoot(Landscape):
    """One Shoot. `payload` is what the image of its pods has in it. `late`: so much time has passed that
    gardener-resource-manager waits for no pod of what it deletes."""

    shared = False

    def __init__(self, seed: KubeServer, shoot: KubeServer, payload: Path, scratch: Path) -> None:
        super().__init__(seed, shoot)
        self._payload, self._scratch = payload, scratch
        self.late = False
        self._machines: dict[str, Node] = {}
        self._containers: dict[Name, Daemon] = {}
        self._ending: set[Name] = set()
        self._lock = threading.RLock()
        self._objects: set[Name] = set()
        self._numbers = itertools.count(1)

    def __exit__(self, *exit: Any) -> None:
        try:
            super().__exit__(*exit)
        finally:
            for container in self._containers.values():
                container.kill()

    # -- what a test does ---------------------------------------------------------------------------

    def join(self, name: str, machine: Node, **labels: str) -> None:
        self._machines[name] = machine
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        body = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": LABELS | {"kubernetes.io/hostname": name} | labels},
            "status": {"conditions": [ready]},
        }
        self.shoot.create(NODES, "", body)

    def lose(self, name: str) -> None:
        """Its machine is switched off, and has been for an hour. Nobody ends its pods."""
        since = (datetime.now(UTC) - timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
        silent = {"type": "Ready", "status": "Unknown", "lastTransitionTime": since}
        with self._lock:
            machine = self._machines.pop(name)
            self.shoot.patch(Name(NODES, "", name), {"status": {"conditions": [silent]}})
            for pod in self.pods_of(name):
                self._containers.pop(_pod_name(pod)).kill()
            machine.host.stop()

    def grow_old(self, name: str) -> None:
        """The pod there has had its time to become Ready."""
        for pod in self.pods_of(name):
            old = {"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}}
            self.shoot.patch(_pod_name(pod), old)

    def state(self, name: str) -> str:
        """What the node's annotation says."""
        annotations = self.shoot.get(Name(NODES, "", name))["metadata"].get("annotations", {})
        return str(json.loads(annotations.get(STATUS, "{}")).get("state", ""))

    def container(self, name: str) -> Daemon:
        (pod,) = self.pods_of(name)
        return self._containers[_pod_name(pod)]

    def pods_of(self, name: str) -> list[Object]:
        return [pod for pod in self._pods() if pod["spec"]["nodeName"] == name]

    def said(self) -> str:
        return "\n".join(each.said() for each in self._containers.values())

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
        an hour."""
        resources = self.seed.find(RESOURCES)
        named = {each["name"] for resource in resources for each in resource["spec"]["secretRefs"]}
        users = [*self.shoot.find(DAEMON_SETS), *self._pods()]
        named |= {value for each in users for value in (each["metadata"].get("annotations") or {}).values()}
        for server, kind in ((self.seed, SECRETS), (self.shoot, CONFIG_MAPS)):
            for each in server.find(kind):
                metadata = each["metadata"]
                if COLLECTABLE in (metadata.get("labels") or {}) and metadata["name"] not in named:
                    server.delete(Name(kind, metadata["namespace"], metadata["name"]))

    # -- the DaemonSet controller -------------------------------------------------------------------

    def run_nodes(self) -> None:
        with self._lock:
            for pod in self._pods():
                self._run_pod(pod)
            for daemon_set in self.shoot.find(DAEMON_SETS):
                self._schedule(daemon_set)
            self._check_health()

    def _schedule(self, daemon_set: Object) -> None:
        metadata, template = daemon_set["metadata"], daemon_set["spec"]["template"]
        key, revision = Name(DAEMON_SETS, metadata["namespace"], metadata["name"]), _digest(template)
        pods = {
            pod["spec"]["nodeName"]: pod
            for pod in self._pods()
            if pod["metadata"]["ownerReferences"][0]["uid"] == metadata["uid"]
        }
        if metadata.get("deletionTimestamp"):
            for pod in pods.values():
                self.shoot.delete(_pod_name(pod))
            if not pods:
                self.shoot.patch(key, {"metadata": {"finalizers": []}})
            return
        nodes = {each["metadata"]["name"]: each for each in self.shoot.find(NODES)}
        wanted = [name for name, node in nodes.items() if _selects(template["spec"], node)]
        for name in pods.keys() - wanted:
            self.shoot.delete(_pod_name(pods[name]))
        away = [name for name in wanted if name not in pods or not _is_ready(pods[name])]
        new = [
            name for name in wanted if name in pods and pods[name]["metadata"]["labels"][REVISION] == revision
        ]
        for name in wanted:
            if name not in pods:
                self._create_pod(daemon_set, name, revision)
            elif name not in new and (name in away or not away):
                self.shoot.delete(_pod_name(pods[name]))
                away.append(name)
        status = {
            "observedGeneration": metadata["generation"],
            "desiredNumberScheduled": len(wanted),
            "updatedNumberScheduled": len(new),
            **dict.fromkeys(("numberAvailable", "numberReady"), len(wanted) - len(away)),
        }
        if daemon_set.get("status") != status:
            self.shoot.patch(key, {"status": status})

    def _create_pod(self, daemon_set: Object, node: str, revision: str) -> None:
        metadata, template = daemon_set["metadata"], daemon_set["spec"]["template"]
        body = {
            "metadata": {
                **template["metadata"],
                "name": f"{metadata['name']}-{next(self._numbers)}",
                "labels": {**template["metadata"]["labels"], REVISION: revision},
                "finalizers": [KUBELET],
                "ownerReferences": [{"kind": "DaemonSet", "name": metadata["name"], "uid": metadata["uid"]}],
            },
            "spec": {**template["spec"], "nodeName": node},
        }
        self.shoot.create(PODS, metadata["namespace"], body)

    def _pods(self) -> list[Object]:
        return self.shoot.find(PODS)

    # -- kubelet ------------------------------------------------------------------------------------

    def _run_pod(self, pod: Object) -> None:
        name, machine = _pod_name(pod), self._machines.get(pod["spec"]["nodeName"])
        container = self._containers.get(name)
        ending = bool(pod["metadata"].get("deletionTimestamp"))
        if machine is None:
            self._tell(name, pod, False)
            return
        if container is None:
            if not ending:
                self._containers[name] = self._start(pod, machine)
                return
        elif container.process.poll() is None:
            if ending and name not in self._ending:
                self._ending.add(name)
                container.process.send_signal(signal.SIGTERM)
            self._tell(name, pod, container.ready_file.exists() and not ending)
            return
        else:
            self._containers.pop(name).kill()
            self._tell(name, pod, False, container.process.returncode)
        if ending:
            self.shoot.patch(name, {"metadata": {"finalizers": []}})

    def _tell(self, name: Name, pod: Object, ready: bool, code: int | None = None) -> None:
        last = pod.get("status", {}).get("containerStatuses", [{}])[0].get("lastState", {})
        ended = last if code is None else {"terminated": {"exitCode": code}}
        status = {
            "conditions": [{"type": "Ready", "status": str(ready)}],
            "containerStatuses": [{"lastState": ended}],
        }
        if pod.get("status") != status:
            self.shoot.patch(name, {"status": status})

    def _start(self, pod: Object, machine: Node) -> Daemon:
        """The container's command and environment, with paths of ours instead of its own."""
        metadata, spec = pod["metadata"], pod["spec"]
        (container,) = spec["containers"]
        place = self._scratch / metadata["name"]
        places = {"/payload": self._payload} | {
            mount["mountPath"]: self._volume(
                mount["name"], spec["volumes"], metadata["namespace"], machine, place
            )
            for mount in container["volumeMounts"]
        }
        fields = {
            "spec.nodeName": spec["nodeName"],
            **{f"metadata.{key}": metadata[key] for key in ("name", "namespace", "uid")},
        }
        environment = {
            each["name"]: fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
            if "valueFrom" in each
            else _outside(each.get("value", ""), places)
            for each in container["env"]
        }
        environment |= {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(self.shoot.port),
            "CRI_RESMGR_INSTALLER_SERVICE_ACCOUNT": str(self.shoot.account),
            "CRI_RESMGR_INSTALLER_GOOD_SECONDS": "2",
        }
        program, *words = container["command"]
        assert program == PROGRAM.name
        return Daemon(machine, place / "ready", environment, [str(PROGRAM), *words])

    def _volume(self, name: str, volumes: list[Object], namespace: str, machine: Node, place: Path) -> Path:
        (volume,) = (each for each in volumes if each["name"] == name)
        if "hostPath" in volume:
            return Path(f"{machine.host.root}{volume['hostPath']['path']}".rstrip("/"))
        directory = place / name
        directory.mkdir(parents=True)
        for key, text in self.shoot.get(Name(CONFIG_MAPS, namespace, volume["configMap"]["name"]))[
            "data"
        ].items():
            (directory / key).write_text(text)
        return directory


def _outside(value: str, places: Mapping[str, Path]) -> str:
    for inside, outside in places.items():
        if value == inside or value.startswith(f"{inside}/"):
            return f"{outside}{value.removeprefix(inside)}"
    return value


def _name_of(body: Object) -> Name:
    kind, metadata = body["kind"], body["metadata"]
    assert kind in NAMESPACED | WIDE, f"{kind} is not known here"
    group = body["apiVersion"]
    prefix = f"/apis/{group}" if "/" in group else f"/api/{group}"
    namespace = metadata["namespace"] if kind in NAMESPACED else ""
    plural = "validatingadmissionpolicies" if kind == POLICY else f"{kind.lower()}s"
    return Name(Kind(prefix, plural), namespace, metadata["name"])


def _pod_name(pod: Object) -> Name:
    return Name(PODS, pod["metadata"]["namespace"], pod["metadata"]["name"])


def _replacement(old: Any, new: Any) -> Any:
    """The merge patch that makes the new one of the old one."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    gone = dict.fromkeys(old.keys() - new)
    return gone | {key: _replacement(old.get(key), value) for key, value in new.items()}


def _selects(spec: Object, node: Object) -> bool:
    labels = node["metadata"]["labels"]
    chosen = all(labels.get(key) == value for key, value in spec.get("nodeSelector", {}).items())
    affinity = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = affinity["nodeSelectorTerms"]
    assert {each["operator"] for each in term["matchExpressions"]} == {"DoesNotExist"}
    return chosen and not any(each["key"] in labels for each in term["matchExpressions"])


def _is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions", [{}])
    return conditions[0].get("status") == "True" and not pod["metadata"].get("deletionTimestamp")


def _is_well(daemon_set: Object) -> bool:
    status = daemon_set.get("status", {})
    numbers = {status.get(key) for key in ("desiredNumberScheduled", "updatedNumberScheduled", "numberReady")}
    return status.get("observedGeneration") == daemon_set["metadata"]["generation"] and len(numbers) == 1


def _digest(template: Object) -> str:
    return hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:10]
