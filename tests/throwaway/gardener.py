"""A seed and the Shoots on it: two API servers' stand-ins, and between them what gardenlet,
gardener-resource-manager and the nodes do of themselves.

A node is only what its pods say: `nodes` has its name and how it is, in every Shoot.
"""

from __future__ import annotations

import contextlib
import copy
import threading
from base64 import b64decode, b64encode
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import yaml

from installer.gardener.registration import render_registration
from installer.manifests import ManifestOptions
from tests.gochart import render_chart
from tests.throwaway.kubeserver import Kind, KubeServer, Name, Refused

EXTENSIONS = Kind("/apis/extensions.gardener.cloud/v1alpha1", "extensions")
CLUSTERS = Kind("/apis/extensions.gardener.cloud/v1alpha1", "clusters")
RESOURCES = Kind("/apis/resources.gardener.cloud/v1alpha1", "managedresources")
SECRETS, NODES, PODS = Kind("/api/v1", "secrets"), Kind("/api/v1", "nodes"), Kind("/api/v1", "pods")
DAEMON_SETS = Kind("/apis/apps/v1", "daemonsets")
EVENTS = Kind("/apis/events.k8s.io/v1", "events")
LEASES = Kind("/apis/coordination.k8s.io/v1", "leases")
LABELS = {
    "kubernetes.io/os": "linux",
    "kubernetes.io/arch": "amd64",
    "worker.gardener.cloud/cri-name": "containerd",
}
TYPE, RESOURCE = "cri-resmgr-extension", "cri-resmgr-installer"
OPERATION, MANAGER = "gardener.cloud/operation", "resources.gardener.cloud/gardener-resource-manager"


def install_controller(values: Path, images: tuple[str, str]) -> dict[str, Any]:
    """What gardenlet makes of the printed registration on a seed, by kind."""
    printed = render_registration(ManifestOptions(values=values, images=images))
    given = next(each for each in yaml.safe_load_all(printed) if each["kind"] == "ControllerDeployment")
    chart = b64decode(given["providerConfig"]["chart"])
    objects = render_chart(chart, given["providerConfig"]["values"], "extension-1")
    return {each["kind"]: each for each in objects}


def asked(operation: str) -> dict[str, str]:
    """The annotations of who asks for it now."""
    return {OPERATION: operation, "gardener.cloud/timestamp": datetime.now(UTC).isoformat()}


class Landscape:
    """Each Shoot has a namespace of the one API server that they share, and nothing else is seen there.

    `nodes`: name -> ready (its pods do what they should), stuck (they do not), silent (nobody has heard of
    it for an hour). `story` has what became of the Shoots' DaemonSets, in order. `refuses`: name of a
    DaemonSet -> what a Shoot's API server says of an object behind it, which it does not take.

    `servers` are those of the seed and of the Shoots, where they are not the usual ones."""

    shared = True

    def __init__(self, *servers: KubeServer, **nodes: str) -> None:
        self.seed, self.shoot = servers or (KubeServer(), KubeServer())
        self.nodes = nodes
        self.story: list[str] = []
        self.refuses: dict[str, str] = {}
        self._applied: dict[str, set[Name]] = {}
        self._settled: dict[Name, tuple[str, int, str]] = {}
        self._stop = threading.Event()
        self.error: Exception | None = None

    def __enter__(self) -> Self:
        self.seed.__enter__()
        self.shoot.__enter__()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        self._stop.set()
        with self.seed.changed:
            self.seed.changed.notify_all()
        self._thread.join(10)
        self.seed.__exit__()
        self.shoot.__exit__()
        if self.error is not None:
            raise self.error from error

    # -- what gardenlet does ------------------------------------------------------------------------

    def add_shoot(self, namespace: str, **shoot: Any) -> None:
        """Its Cluster and the credentials of its API server."""
        body = {"metadata": {}, "spec": {"kubernetes": {"version": "1.31.2"}}, **shoot}
        self.seed.create(CLUSTERS, "", {"metadata": {"name": namespace}, "spec": {"shoot": body}})
        kubeconfig = self.shoot.kubeconfig(namespace if self.shared else "")
        data = {"kubeconfig": b64encode(kubeconfig.encode()).decode()}
        secret = {"metadata": {"name": "gardener-internal"}, "data": data}
        self.seed.create(SECRETS, namespace, secret)

    def edit_shoot(self, namespace: str, **shoot: Any) -> None:
        self.seed.patch(Name(CLUSTERS, "", namespace), {"spec": {"shoot": shoot}})

    def enable(self, namespace: str, config: Any = None) -> None:
        spec = {"type": TYPE} | ({"providerConfig": config} if config is not None else {})
        body = {"metadata": {"name": TYPE, "annotations": asked("reconcile")}, "spec": spec}
        self.seed.create(EXTENSIONS, namespace, {"kind": "Extension", **body})

    def ask(self, namespace: str, operation: str = "reconcile", config: Any = None) -> None:
        spec = {"spec": {"providerConfig": config}} if config is not None else {}
        self.seed.patch(self.key(namespace), {"metadata": {"annotations": asked(operation)}, **spec})

    def disable(self, namespace: str) -> None:
        self.seed.delete(self.key(namespace))

    # -- what a test looks at -----------------------------------------------------------------------

    def key(self, namespace: str) -> Name:
        return Name(EXTENSIONS, namespace, TYPE)

    def extension(self, namespace: str) -> dict[str, Any]:
        """Empty when it is gone."""
        return self.seed.objects.get(self.key(namespace), {})

    def operation(self, namespace: str) -> str:
        """`Create Succeeded`, when nobody asks for anything; empty before."""
        found = self.extension(namespace)
        last = found.get("status", {}).get("lastOperation")
        if not last or (found["metadata"].get("annotations") or {}).get(OPERATION):
            return ""
        return f"{last['type']} {last['state']}"

    def health(self, namespace: str) -> tuple[str, str]:
        """Status and message of SystemComponentsHealthy."""
        for each in self.extension(namespace).get("status", {}).get("conditions", []):
            if each["type"] == "SystemComponentsHealthy":
                return each["status"], each["message"]
        return "", ""

    def resource(self, namespace: str) -> dict[str, Any]:
        return self.seed.objects.get(Name(RESOURCES, namespace, RESOURCE), {})

    def rest(self, namespace: str, operation: str, health: str = "True") -> None:
        self.seed.wait(
            lambda: (self.operation(namespace), self.health(namespace)[0]) == (operation, health),
            what=f"{operation}, {health}",
        )

    def says(self, namespace: str, health: str, message: str = "") -> None:
        def said() -> bool:
            status, told = self.health(namespace)
            return status == health and message in told

        self.seed.wait(said, what=f"{health}: {message}")

    def gone(self, namespace: str) -> None:
        self.seed.wait(
            lambda: not self.extension(namespace) and not self.resource(namespace),
            what="the Extension and its ManagedResource are gone",
        )

    # -- what gardener-resource-manager and the nodes do --------------------------------------------

    def _run(self) -> None:
        seen: tuple[object, ...] = ()
        while not self._stop.is_set():
            if (now_ := self.seen()) == seen:
                with self.seed.changed:
                    self.seed.changed.wait(0.02)
                continue
            seen = now_
            try:
                for resource in self._due():
                    with contextlib.suppress(Refused):  # another one was quicker
                        self._manage(resource)
                self.run_nodes()
            except Exception as error:
                self.error = error
                return

    def seen(self) -> tuple[object, ...]:
        """As long as it is the same, nothing is to be done."""
        return self.seed.version, self.shoot.version, str(self.nodes), str(self.refuses)

    def _due(self) -> list[dict[str, Any]]:
        with self.seed.changed:
            found = [each for name, each in self.seed.objects.items() if name.kind == RESOURCES]
            return [
                copy.deepcopy(each)
                for each in found
                if each["metadata"].get("deletionTimestamp")
                or each.get("status", {}).get("observedGeneration") != each["metadata"]["generation"]
            ]

    def _manage(self, resource: dict[str, Any]) -> None:
        metadata, spec = resource["metadata"], resource["spec"]
        namespace = metadata["namespace"]
        key = Name(RESOURCES, namespace, metadata["name"])
        if MANAGER not in metadata.get("finalizers", []):
            if not metadata.get("deletionTimestamp"):
                self.seed.patch(key, {"metadata": {"finalizers": [MANAGER]}})
            return
        if metadata.get("deletionTimestamp"):
            if spec.get("keepObjects"):
                self._applied.pop(namespace, None)
            elif not self.apply(namespace, {}, []):
                return
            self.seed.patch(key, {"metadata": {"finalizers": []}})
            return
        if resource.get("status", {}).get("observedGeneration") == metadata["generation"]:
            return
        objects: list[dict[str, Any]] = []
        for reference in spec["secretRefs"]:
            secret = self.seed.get(Name(SECRETS, namespace, reference["name"]))
            for text in secret["data"].values():
                objects += [each for each in yaml.safe_load_all(b64decode(text)) if each]
        known = self._applied.get(namespace, set())
        if not self.apply(namespace, spec.get("injectLabels", {}), objects):
            return
        names = [each["metadata"]["name"] for each in objects if each["kind"] == "DaemonSet"]
        if why := "".join(self.refuses.get(name, "") for name in names):
            # What is applied until then is not written down, nor which generation it was.
            self._applied[namespace] = known
            self.report_failure(key, why)
            return
        self.report(key, metadata["generation"])

    def report_failure(self, key: Name, why: str) -> None:
        """The generation that was observed stays that of the last success."""
        failed = {"type": "ResourcesApplied", "status": "False", "reason": "ApplyFailed", "message": why}
        others = [
            each
            for each in self.seed.get(key).get("status", {}).get("conditions", [])
            if each["type"] != failed["type"]
        ]
        self.seed.patch(key, {"status": {"conditions": [failed, *others]}}, status=True)

    def report(self, key: Name, generation: int, healthy: bool = True) -> None:
        """What a ManagedResource says of its objects."""
        known = (("Applied", True), ("Healthy", healthy), ("Progressing", not healthy))
        conditions = [
            {"type": f"Resources{kind}", "status": str(status), "reason": "x", "message": ""}
            for kind, status in known
        ]
        body = {"observedGeneration": generation, "conditions": conditions}
        if self.seed.get(key).get("status") != body:
            self.seed.patch(key, {"status": body}, status=True)

    def apply(self, namespace: str, labels: dict[str, str], objects: list[dict[str, Any]]) -> bool:
        """Whether all is there that should be, and nothing else. Only the DaemonSets: the rest says nothing
        here. Each Shoot's are in a namespace of its own."""
        wanted = {
            Name(DAEMON_SETS, namespace, each["metadata"]["name"]): each
            for each in objects
            if each["kind"] == "DaemonSet" and "agent" not in each["metadata"]["name"]
        }
        for name in self._applied.get(namespace, set()) - wanted.keys():
            self.story.append(f"{namespace}: {name.name} deleted")
            with contextlib.suppress(Refused):
                self.shoot.delete(name)
        for name, body in wanted.items():
            if name in self.shoot.objects:
                self.shoot.patch(name, {"spec": body["spec"]})
            else:
                self.story.append(f"{namespace}: {name.name} created")
                self.shoot.create(DAEMON_SETS, namespace, body)
        self._applied[namespace] = set(wanted)
        return True

    def run_nodes(self) -> None:
        hour_ago = (datetime.now(UTC) - timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
        for name, how in self.nodes.items():
            ready = {
                "type": "Ready",
                "status": "Unknown" if how == "silent" else "True",
                "lastTransitionTime": hour_ago,
            }
            metadata = {"labels": LABELS | {"kubernetes.io/hostname": name}}
            self._ensure(Name(NODES, "", name), {"metadata": metadata, "status": {"conditions": [ready]}})
        for daemon_set in self.shoot.find(DAEMON_SETS):
            self._run_pods(daemon_set, hour_ago)
        for pod in self.shoot.find(PODS):
            metadata = pod["metadata"]
            owner = Name(DAEMON_SETS, metadata["namespace"], metadata["labels"]["owner"])
            # Nobody ends those of a node that is off.
            if owner not in self.shoot.objects and self.nodes.get(pod["spec"]["nodeName"]) != "silent":
                self.shoot.delete(Name(PODS, metadata["namespace"], metadata["name"]))

    def _run_pods(self, daemon_set: dict[str, Any], created: str) -> None:
        metadata = daemon_set["metadata"]
        key, state = Name(DAEMON_SETS, metadata["namespace"], metadata["name"]), str(self.nodes)
        if self._settled.get(key) == (metadata["uid"], metadata["generation"], state):
            return
        self._settled[key] = metadata["uid"], metadata["generation"], state
        labels = daemon_set["spec"]["template"]["metadata"]["labels"] | {"owner": metadata["name"]}
        ready = 0
        for name, how in self.nodes.items():
            fine = how == "ready"
            ready += fine
            crashed = {"terminated": {"exitCode": 6}}
            status = {
                "conditions": [{"type": "Ready", "status": "True" if fine else "False"}],
                "containerStatuses": [{"lastState": {} if fine else crashed}],
            }
            body = {"metadata": {"labels": labels}, "spec": {"nodeName": name}, "status": status}
            self._ensure(Name(PODS, metadata["namespace"], f"{metadata['name']}-{name}"), body)
        numbers = dict.fromkeys(("desiredNumberScheduled", "updatedNumberScheduled"), len(self.nodes))
        numbers |= dict.fromkeys(("numberAvailable", "numberReady"), ready)
        status = {"observedGeneration": metadata["generation"], **numbers}
        if self.shoot.get(key).get("status") != status:
            self.shoot.patch(key, {"status": status})

    def _ensure(self, key: Name, body: dict[str, Any]) -> None:
        if key not in self.shoot.objects:
            wanted = {**body, "metadata": {**body.get("metadata", {}), "name": key.name}}
            self.shoot.create(key.kind, key.namespace, wanted)
            return
        found = self.shoot.get(key)
        if any(found.get(part) != body[part] for part in ("status",)):
            self.shoot.patch(key, {"status": body["status"]})
