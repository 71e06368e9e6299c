"""A seed and the Shoots on it: two API servers' stand-ins, and between them what gardenlet,
gardener-resource-manager and the nodes do of themselves.

A node is only what its pods say: `nodes` has its name and how it is, in every Shoot.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from installer.gardener.registration import render_registration
from installer.manifests import ManifestOptions
from tests.lib import yamltext
from tests.lib.charts import render_chart
from tests.lib.throwaway.fleet import DAEMON_SETS, NODES, PODS
from tests.lib.throwaway.kubeserver import Kind, KubeServer, Name
from tests.lib.throwaway.managed import RESOURCES, SECRETS, Manager

EXTENSIONS = Kind("/apis/extensions.gardener.cloud/v1alpha1", "extensions")
CLUSTERS = Kind("/apis/extensions.gardener.cloud/v1alpha1", "clusters")
EVENTS = Kind("/apis/events.k8s.io/v1", "events")
LABELS = {
    "kubernetes.io/os": "linux",
    "kubernetes.io/arch": "amd64",
    "worker.gardener.cloud/cri-name": "containerd",
}
TYPE, RESOURCE = "cri-resmgr-extension", "cri-resmgr-installer"
OPERATION = "gardener.cloud/operation"


def install_controller(values: Path, images: tuple[str, str]) -> dict[str, Any]:
    """What gardenlet makes of the printed registration on a seed, by kind."""
    printed = render_registration(ManifestOptions(values=values, images=images))
    given = next(each for each in yamltext.load_all(printed) if each["kind"] == "ControllerDeployment")
    chart = b64decode(given["helm"]["rawChart"])
    objects = render_chart(chart, given["helm"]["values"], "extension-1")
    return {each["kind"]: each for each in objects}


def asked(operation: str) -> dict[str, str]:
    """The annotations of who asks for it now."""
    return {OPERATION: operation, "gardener.cloud/timestamp": datetime.now(UTC).isoformat()}


class Landscape(Manager):
    """Each Shoot has a namespace of the one API server that they share, and nothing else is seen there.

    `nodes`: name -> ready (its pods do what they should), stuck (they do not), silent (nobody has heard of
    it for an hour). `story` has what became of the Shoots' DaemonSets, in order. `refuses`: name of a
    DaemonSet -> what a Shoot's API server says of an object behind it, which it does not take.

    `servers` are those of the seed and of the Shoots, where they are not the usual ones."""

    shared = True

    def __init__(self, *servers: KubeServer, **nodes: str) -> None:
        super().__init__(*(servers or (KubeServer(), KubeServer())))
        self.nodes = nodes
        self.story: list[str] = []
        self.refuses: dict[str, str] = {}
        self._settled: dict[Name, tuple[str, int, str]] = {}

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

    def serve(self, namespace: str, config: Any = None) -> None:
        """Adds a Shoot, enables the extension for it, and waits until all is well."""
        self.add_shoot(namespace)
        self.enable(namespace, config)
        self.rest(namespace, "Create Succeeded")

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

    def seen(self) -> tuple[object, ...]:
        return self.seed.version, self.shoot.version, str(self.nodes), str(self.refuses)

    def placed(self, namespace: str, objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Only the DaemonSets: the rest says nothing here. Each Shoot's are in a namespace of its own."""
        found = [
            each
            for each in objects
            if each["kind"] == "DaemonSet" and "agent" not in each["metadata"]["name"]
        ]
        return [{**each, "metadata": {**each["metadata"], "namespace": namespace}} for each in found]

    def refusal(self, objects: Iterable[dict[str, Any]]) -> str:
        return "".join(self.refuses.get(each["metadata"]["name"], "") for each in objects)

    def tell(self, name: Name, what: str) -> None:
        self.story.append(f"{name.namespace}: {name.name} {what}")

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
        scheduled = ("desiredNumberScheduled", "currentNumberScheduled", "updatedNumberScheduled")
        numbers = dict.fromkeys(scheduled, len(self.nodes))
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
