"""Nodes of a cluster that are hosts: what the DaemonSet controller and kubelet make of our objects there, at
an API server's stand-in. Each pod of ours is the program at work on its host.

A pod is Available as soon as it is Ready: nothing here waits for `minReadySeconds`. Its readiness probe is
not run; the test reads the same file instead. A pod's mounts stay as they were when it began.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.host.command import PROGRAM
from tests.host.daemon import Daemon
from tests.host.node import Node
from tests.lib.throwaway.fleet import CONFIG_MAPS, DAEMON_SETS, NODES, PODS
from tests.lib.throwaway.kubeserver import KubeServer, Name, Refused

REVISION = "controller-revision-hash"
KUBELET = "kubelet"

Object = dict[str, Any]


class Nodes:
    """`payload` is what the image of the pods has in it; what they mount is written below `scratch`."""

    def __init__(self, server: KubeServer, payload: Path, scratch: Path) -> None:
        self._server, self._payload, self._scratch = server, payload, scratch
        self._machines: dict[str, Node] = {}
        self._containers: dict[Name, Daemon] = {}
        self._ending: dict[Name, float] = {}  # until when
        self._numbers = itertools.count(1)

    def kill(self) -> None:
        """Every container that still runs."""
        for container in self._containers.values():
            container.kill()

    def join(self, name: str, machine: Node, labels: Mapping[str, str]) -> None:
        """A Node that is Ready, with the labels that kubelet gives it and these."""
        self._machines[name] = machine
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        body = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}},
            "status": {"conditions": [ready]},
        }
        self._server.create(NODES, "", body)

    def lose(self, name: str) -> Node:
        """Its machine is away, and its containers with it. Nobody ends its pods."""
        with self._server.changed:
            for pod in self.pods_of(name):
                self._containers.pop(pod_name(pod)).kill()
            return self._machines.pop(name)

    def container(self, name: str) -> Daemon:
        """That of the one pod on this node."""
        (pod,) = self.pods_of(name)
        return self._containers[pod_name(pod)]

    def runs(self, name: str) -> bool:
        """Whether the container of the one pod on this node was started."""
        return [pod_name(pod) in self._containers for pod in self.pods_of(name)] == [True]

    def pods_of(self, name: str) -> list[Object]:
        return [pod for pod in self._pods() if pod["spec"]["nodeName"] == name]

    def said(self) -> str:
        return "\n".join(each.said() for each in self._containers.values())

    def _pods(self) -> list[Object]:
        return self._server.find(PODS)

    # -- the DaemonSet controller -------------------------------------------------------------------

    def run(self) -> None:
        """What is to be done now."""
        with self._server.changed:
            for pod in self._pods():
                self._run_pod(pod)
            for daemon_set in self._server.find(DAEMON_SETS):
                self._schedule(daemon_set)

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
                self._server.delete(pod_name(pod))
            if not pods:
                self._server.patch(key, {"metadata": {"finalizers": []}})
            return
        nodes = {each["metadata"]["name"]: each for each in self._server.find(NODES)}
        wanted = [name for name, node in nodes.items() if _selects(template["spec"], node)]
        for name in pods.keys() - wanted:
            self._server.delete(pod_name(pods[name]))
        away = [name for name in wanted if name not in pods or not _is_ready(pods[name])]
        new = [
            name for name in wanted if name in pods and pods[name]["metadata"]["labels"][REVISION] == revision
        ]
        for name in wanted:
            if name not in pods:
                with contextlib.suppress(Refused):  # its namespace is being deleted
                    self._create_pod(daemon_set, name, revision)
            elif name not in new and (name in away or not away):
                self._server.delete(pod_name(pods[name]))
                away.append(name)
        status = {
            "observedGeneration": metadata["generation"],
            **dict.fromkeys(("desiredNumberScheduled", "currentNumberScheduled"), len(wanted)),
            "updatedNumberScheduled": len(new),
            **dict.fromkeys(("numberAvailable", "numberReady"), len(wanted) - len(away)),
        }
        if daemon_set.get("status") != status:
            self._server.patch(key, {"status": status})

    def _create_pod(self, daemon_set: Object, node: str, revision: str) -> None:
        metadata, template = daemon_set["metadata"], daemon_set["spec"]["template"]
        body = {
            "metadata": {
                **template["metadata"],
                "name": f"{metadata['name']}-{next(self._numbers):05}",  # five characters, as the real ones
                "labels": {**template["metadata"]["labels"], REVISION: revision},
                "finalizers": [KUBELET],
                "ownerReferences": [
                    {
                        "apiVersion": "apps/v1",
                        "kind": "DaemonSet",
                        "name": metadata["name"],
                        "uid": metadata["uid"],
                    }
                ],
            },
            "spec": {**template["spec"], "nodeName": node},
        }
        self._server.create(PODS, metadata["namespace"], body)

    # -- kubelet ------------------------------------------------------------------------------------

    def _run_pod(self, pod: Object) -> None:
        name, machine = pod_name(pod), self._machines.get(pod["spec"]["nodeName"])
        container = self._containers.get(name)
        ending = bool(pod["metadata"].get("deletionTimestamp"))
        if Name(NODES, "", pod["spec"]["nodeName"]) not in self._server.objects:
            self._server.patch(name, {"metadata": {"finalizers": []}})  # nobody waits for a kubelet
            self._server.delete(name)
            return
        if machine is None:
            self._tell(name, pod, False)
            return
        if container is None:
            if not ending:
                self._containers[name] = self._start(pod, machine)
                return
        elif container.process.poll() is None:
            if ending and name not in self._ending:
                self._ending[name] = time.monotonic() + pod["spec"]["terminationGracePeriodSeconds"]
                container.process.send_signal(signal.SIGTERM)
            elif ending and time.monotonic() > self._ending[name]:
                container.process.kill()
            self._tell(name, pod, container.ready_file.exists() and not ending)
            return
        else:
            self._containers.pop(name).kill()
            self._tell(name, pod, False, container.process.returncode)
        if ending:
            self._server.patch(name, {"metadata": {"finalizers": []}})

    def _tell(self, name: Name, pod: Object, ready: bool, code: int | None = None) -> None:
        last = pod.get("status", {}).get("containerStatuses", [{}])[0].get("lastState", {})
        ended = last if code is None else {"terminated": {"exitCode": code}}
        status = {
            "conditions": [{"type": "Ready", "status": str(ready)}],
            "containerStatuses": [{"lastState": ended}],
        }
        if pod.get("status") != status:
            self._server.patch(name, {"status": status})

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
            "KUBERNETES_SERVICE_PORT": str(self._server.port),
            "CRI_RESMGR_INSTALLER_SERVICE_ACCOUNT": str(self._server.account_of(pod)),
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
        for key, text in self._server.get(Name(CONFIG_MAPS, namespace, volume["configMap"]["name"]))[
            "data"
        ].items():
            (directory / key).write_text(text)
        return directory


def _outside(value: str, places: Mapping[str, Path]) -> str:
    for inside, outside in places.items():
        if value == inside or value.startswith(f"{inside}/"):
            return f"{outside}{value.removeprefix(inside)}"
    return value


def pod_name(pod: Object) -> Name:
    return Name(PODS, pod["metadata"]["namespace"], pod["metadata"]["name"])


def _selects(spec: Object, node: Object) -> bool:
    labels = node["metadata"]["labels"]
    chosen = all(labels.get(key) == value for key, value in spec.get("nodeSelector", {}).items())
    affinity = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = affinity["nodeSelectorTerms"]
    for each in term["matchExpressions"]:
        values = {"DoesNotExist": labels.values(), "NotIn": each.get("values", ())}[each["operator"]]
        chosen = chosen and labels.get(each["key"]) not in values
    return chosen


def _is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions", [{}])
    return conditions[0].get("status") == "True" and not pod["metadata"].get("deletionTimestamp")


def _digest(template: Object) -> str:
    return hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:10]
