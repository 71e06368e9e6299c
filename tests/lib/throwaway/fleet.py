"""A cluster on the API server's stand-in: our manifests applied to it, and nodes that do what our pods would.

`played` is what a node does with a pod of a DaemonSet: "ready" (what the pod is there for), "stuck" (it says
that it failed), "gone" (its kubelet is silent: no pod changes, and none ends).
"""

from __future__ import annotations

import json
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from installer.cluster.selection import selects
from installer.manifests.build import build_objects
from installer.manifests.inputs import ManifestOptions, load_inputs
from installer.model.instant import plain_time
from installer.model.names import STATUS
from tests.lib.throwaway.kubeserver import Kind, KubeServer, Name

NODES, PODS = Kind("/api/v1", "nodes"), Kind("/api/v1", "pods")
DAEMON_SETS = Kind("/apis/apps/v1", "daemonsets")
CONFIG_MAPS = Kind("/api/v1", "configmaps")
LEASES = Kind("/apis/coordination.k8s.io/v1", "leases")
LABELS = {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
_PLURALS = {"ValidatingAdmissionPolicy": "validatingadmissionpolicies"}


def kind_of(body: dict[str, Any]) -> Kind:
    """Of an object of a manifest."""
    version, kind = body["apiVersion"], body["kind"]
    prefix = f"/apis/{version}" if "/" in version else f"/api/{version}"
    return Kind(prefix, _PLURALS.get(kind, kind.lower() + "s"))


class Fleet:
    """`with Fleet(n1="ready") as fleet:` has nodes at the API server `fleet.server`, and nothing of ours."""

    def __init__(self, **played: str) -> None:
        self.server = KubeServer()
        self.server.keeps_pods = True
        self.played = {name.replace("_", "-"): how for name, how in played.items()}
        self._stop = threading.Event()
        self.removed: set[str] = set()  # nodes that a removal has cleaned
        self.error: Exception | None = None

    def __enter__(self) -> Self:
        self.server.__enter__()
        for name, how in self.played.items():
            self.server.create(NODES, "", build_node(name, how))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        with self.server.changed:
            self.server.changed.notify_all()
        self._thread.join(30)
        self.server.__exit__()
        if self.error is not None:
            raise self.error

    def apply(self, options: ManifestOptions, only: str = "") -> None:
        """The objects of the manifests in their order, or those of one kind."""
        for body in build_objects(load_inputs(options, lambda _: None)):
            if only in ("", body["kind"]):
                self.server.create(kind_of(body), body["metadata"].get("namespace", ""), body)

    def recover(self, node: str) -> None:
        """The node does from now on what its pods are there for."""
        with self.server.changed:
            self.played[node] = "ready"
            for pod in self.server.find(PODS):
                if pod["spec"]["nodeName"] == node:
                    self.server.delete(Name(PODS, pod["metadata"]["namespace"], pod["metadata"]["name"]))

    def rest(self) -> None:
        """Waits until every pod that should be there has done what it does."""
        self.server.wait(lambda: not self._step(), what="the DaemonSets and their pods")

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                with self.server.changed:
                    if not self._step():
                        self.server.changed.wait(1)
        except Exception as error:
            self.error = error

    def _step(self) -> bool:
        """What the DaemonSet controller and the nodes do next; whether they did something."""
        with self.server.changed:
            found = self.server.find(DAEMON_SETS)
            sets = {
                each["metadata"]["uid"]: each for each in found if _name_of(each).startswith("cri-resmgr")
            }
            pods = self.server.find(PODS)
            return self._end_pods(sets, pods) or any(self._begin_pods(each, pods) for each in sets.values())

    def _end_pods(self, sets: dict[str, Any], pods: list[dict[str, Any]]) -> bool:
        ended = [
            pod
            for pod in pods
            if _owner_of(pod) not in sets and self.played[pod["spec"]["nodeName"]] != "gone"
        ]
        for pod in ended:
            self.server.delete(Name(PODS, pod["metadata"]["namespace"], pod["metadata"]["name"]))
        return bool(ended)

    def _begin_pods(self, daemon_set: dict[str, Any], pods: list[dict[str, Any]]) -> bool:
        metadata, template = daemon_set["metadata"], daemon_set["spec"]["template"]
        there = {pod["spec"]["nodeName"] for pod in pods if _owner_of(pod) == metadata["uid"]}
        wanted = [name for name in self.played if selects(template, name, LABELS)]
        new = [name for name in wanted if name not in there]
        for name in new:
            how = self.played[name]
            if _name_of(daemon_set) == "cri-resmgr-installer":
                self._act(name, how, template["metadata"]["labels"], metadata["namespace"])
            self.server.create(PODS, metadata["namespace"], build_pod(daemon_set, name, how))
        count = len(wanted)
        ready = sum(self.played[name] == "ready" for name in wanted)
        status = {
            "observedGeneration": metadata["generation"],
            "desiredNumberScheduled": count,
            "updatedNumberScheduled": count,
            "numberReady": ready,
            "numberAvailable": ready,
        }
        if daemon_set.get("status") != status:
            key = Name(DAEMON_SETS, metadata["namespace"], metadata["name"])
            self.server.patch(key, {"status": status})
            return True
        return bool(new)

    def _act(self, node: str, how: str, labels: dict[str, str], namespace: str) -> None:
        """What our pod does at its node, and says of it."""
        if how == "gone":
            return
        removes = labels["app.kubernetes.io/component"] == "removal"
        state = "failed" if how == "stuck" else "removed" if removes else "converged"
        self.removed |= {node} if state == "removed" else set()
        said = {"state": state, "reason": "the disk is full" if how == "stuck" else "", "policy": "none"}
        said |= {
            "generation": "0123456789abcdef",
            "version": "1",
            "hold": "",
            "changed": plain_time(time.time()),
        }
        annotations = {STATUS: json.dumps(said)}
        self.server.patch(Name(NODES, "", node), {"metadata": {"annotations": annotations}})


def _owner_of(pod: dict[str, Any]) -> str:
    return str(pod["metadata"]["ownerReferences"][0]["uid"])


def _name_of(daemon_set: dict[str, Any]) -> str:
    return str(daemon_set["metadata"].get("labels", {}).get("app.kubernetes.io/name", ""))


def build_node(name: str, how: str = "ready", annotation: dict[str, Any] | None = None) -> dict[str, Any]:
    long_ago = (datetime.now(UTC) - timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    status = "Unknown" if how == "gone" else "True"
    found = {STATUS: json.dumps(annotation)} if annotation else {}
    return {
        "metadata": {
            "name": name,
            "labels": {**LABELS, "kubernetes.io/hostname": name},
            "annotations": found,
        },
        "status": {"conditions": [{"type": "Ready", "status": status, "lastTransitionTime": long_ago}]},
    }


def build_pod(daemon_set: dict[str, Any], node: str, how: str = "ready") -> dict[str, Any]:
    ready = "True" if how == "ready" else "False"
    return {
        "metadata": {
            "name": f"{daemon_set['metadata']['name']}-{node}",
            "labels": daemon_set["spec"]["template"]["metadata"]["labels"],
            "ownerReferences": [
                {
                    "apiVersion": "apps/v1",
                    "kind": "DaemonSet",
                    "name": daemon_set["metadata"]["name"],
                    "uid": daemon_set["metadata"]["uid"],
                    "controller": True,
                }
            ],
        },
        "spec": {"nodeName": node},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }
