"""What the stand-in kubelet does about the pods of its node: it admits, probes, and reports them.

What the API server says of the node is the file PODS, which a test writes:

    {"labels": {...}, "pods": [{"metadata": ..., "spec": ...}], "tokens": {"TOKEN": ["nodes/pods"]}}

A token may read the parts of kubelet's API that stand beside it. Nothing is started here: the containers of
a pod are those of the runtime that have its labels. Probes are those of readiness that execute a command.

As kubelet 1.36 does it (pkg/kubelet/prober, lifecycle/predicate.go), and nothing is kinder:

- A start admits each pod of the node again. One whose `nodeSelector` the node's labels no longer fit is
  refused, and its containers are killed, whatever grace they are promised.
- A container is ready while there is no probe worker for it yet: those that kubelet finds at its start get
  theirs late. With one, it is what the probe said, and not ready before it has said anything.
- A container that was there 10 s before kubelet stays what the API server knows of it until the first probe.
"""

import json
import os
import time
from _thread import allocate_lock, start_new_thread
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn

from tests.lib.throwaway.standins.http2 import CallError, field, fields, numbers, strings

PODS = "/etc/standin-kubelet-pods.json"

#: What the API server was told, as JSON: by UID of the pod, `ready` and `history`, pairs of CLOCK_MONOTONIC
#: and the new readiness.
STATUS = "/run/standin-kubelet/pods.json"

#: What kubelet keeps of the pods that it has admitted (since 1.33; in this shape since 1.34).
ALLOCATED = "/var/lib/kubelet/allocated_pods_state"

UID_LABEL, NAME_LABEL = "io.kubernetes.pod.uid", "io.kubernetes.container.name"
RUNNING = 1

#: How much older than kubelet a container is whose readiness outlives the restart.
RESTART_GRACE = 10.0

#: From the refusal of a pod until its containers are killed.
REFUSED_SECONDS = 2.0

#: From the start of kubelet until the probes of the pods that were there have workers.
WORKER_SECONDS = 0.6

Call = Callable[..., bytes]


class Container(NamedTuple):
    """One that runs, `created` in seconds since the epoch."""

    identity: str
    created: float


def load() -> dict[str, Any]:
    """What the API server says of the node. A missing file: there are no pods."""
    try:
        with open(PODS, encoding="utf-8") as file:
            found: dict[str, Any] = json.load(file)
    except FileNotFoundError:
        return {}
    return found


def containers(listed: bytes) -> dict[tuple[str, str], Container]:
    """The running containers of a ListContainersResponse that are labelled with a pod, by its UID and their
    name; the newest of each."""
    found: dict[tuple[str, str], Container] = {}
    for number, message in fields(listed):
        scalars = numbers(message)
        if number != 1 or scalars.get(6, 0) != RUNNING:
            continue
        labels = [strings(entry) for part, entry in fields(message) if part == 8]
        named = {label.get(1, ""): label.get(2, "") for label in labels}
        container = Container(strings(message)[1], scalars.get(7, 0) / 1e9)
        key = named.get(UID_LABEL, ""), named.get(NAME_LABEL, "")
        if all(key) and (key not in found or found[key].created < container.created):
            found[key] = container
    return found


def static_pods(directory: str) -> list[dict[str, Any]]:
    """Those of the manifests (JSON) in a directory, which are only listed: nothing runs them."""
    found: list[dict[str, Any]] = []
    for name in sorted(os.listdir(directory)) if directory and os.path.isdir(directory) else ():
        with open(f"{directory}/{name}", encoding="utf-8") as file:
            pod = json.load(file)
        own = {**pod["metadata"], "name": f"{pod['metadata']['name']}-{os.uname().nodename}"}
        own |= {"uid": name, "annotations": {"kubernetes.io/config.source": "file"}}
        found.append({**pod, "metadata": own})
    return found


class Pods:
    """The pods of a kubelet that starts now; `call` is one call of the CRI on its endpoint, by method.
    `manifests` is the directory of its static pods."""

    def __init__(
        self, call: Call, say: Callable[[str, str], None], worker: float, grace: float, manifests: str
    ) -> None:
        self._call, self._say, self._worker_seconds, self._grace = call, say, worker, grace
        self._manifests = manifests
        self._started = time.time()
        self._lock = allocate_lock()
        self._has_looked = False
        self._admitted: set[str] = set()
        self._refused: dict[str, float] = {}
        self._working: set[tuple[str, str]] = set()
        self._running: dict[tuple[str, str], Container] = {}
        self._results: dict[str, bool] = {}
        self._known: dict[str, dict[str, Any]] = {}
        self._allocated: dict[str, dict[str, Any]] = {}
        with suppress(FileNotFoundError), open(STATUS, encoding="utf-8") as file:
            self._known = json.load(file)

    def sync(self, listed: bytes) -> None:
        """Looks at the pods as the API server and the runtime have them now."""
        world = load()
        pods, late = world.get("pods", []), not self._has_looked
        self._has_looked = True
        if not pods:
            return
        with self._lock:
            self._running = containers(listed)
        for pod in pods:
            uid = pod["metadata"]["uid"]
            if uid not in self._admitted and uid not in self._refused:
                self._admit(pod, world.get("labels", {}), late)
            if uid in self._refused:
                self._end(pod)
            self.publish(pod)

    def _admit(self, pod: dict[str, Any], labels: dict[str, str], late: bool) -> None:
        uid, selector = pod["metadata"]["uid"], pod["spec"].get("nodeSelector", {})
        if any(labels.get(key) != value for key, value in selector.items()):
            self._say(
                "I", f'"Pod admission denied" pod="{name_of(pod)}" podUID="{uid}" reason="NodeAffinity"'
            )
            self._refused[uid] = time.monotonic()
            return
        self._admitted.add(uid)
        resources = {each["name"]: each.get("resources", {}) for each in pod["spec"]["containers"]}
        self._allocated[uid] = {"ContainerResources": resources}
        data = json.dumps({"entries": self._allocated})
        with open(ALLOCATED, "w", encoding="utf-8") as file:
            json.dump({"data": data, "checksum": 0}, file)
        for container in pod["spec"]["containers"]:
            if "exec" in container.get("readinessProbe", {}):
                if not late:
                    self._working.add((uid, container["name"]))
                start_new_thread(self._work, (pod, container, self._worker_seconds if late else 0.0))

    def _end(self, pod: dict[str, Any]) -> None:
        """Kills what is left of a refused pod when its time has come."""
        uid = pod["metadata"]["uid"]
        if time.monotonic() < self._refused[uid] + REFUSED_SECONDS:
            return
        for (owner, name), container in self._running.items():
            if owner == uid:
                self._say("I", f'"Killing container" pod="{name_of(pod)}" containerName="{name}"')
                with suppress(OSError, CallError):  # seen again at the next look
                    self._call("StopContainer", field(1, container.identity))

    # -- probes ---------------------------------------------------------------

    def _work(self, pod: dict[str, Any], spec: dict[str, Any], delay: float) -> NoReturn:
        """The worker of a container's readiness probe."""
        key = pod["metadata"]["uid"], spec["name"]
        probe, probed, streak = spec["readinessProbe"], "", 0
        time.sleep(delay)
        self._working.add(key)
        while True:
            container = self._running.get(key)
            if container is not None and container.identity != probed:
                probed, streak = container.identity, 0
                if not self._is_old(container):
                    self._results[probed] = False
                self.publish(pod)
                age = time.time() - container.created
                time.sleep(max(0.0, probe.get("initialDelaySeconds", 0) - age))
            good = None if container is None else self._probe(container, probe)
            if good is not None:  # a probe that could not be run says nothing
                if not streak:
                    self._say("I", f'"Probed" pod="{name_of(pod)}" containerName="{key[1]}" good="{good}"')
                streak = max(streak, 0) + 1 if good else min(streak, 0) - 1
                enough = probe.get("successThreshold", 1) if good else probe.get("failureThreshold", 3)
                if abs(streak) >= enough:
                    self._results[probed] = good
                self.publish(pod)
            time.sleep(probe.get("periodSeconds", 10))

    def _probe(self, container: Container, probe: dict[str, Any]) -> bool | None:
        """Whether the command ended well; None when it could not be run."""
        words = b"".join(field(2, word) for word in probe["exec"]["command"])
        seconds = probe.get("timeoutSeconds", 1)
        try:
            answer = self._call(
                "ExecSync", field(1, container.identity) + words + field(3, seconds), seconds + 5.0
            )
        except (OSError, CallError):
            return None
        return numbers(answer).get(3, 0) == 0

    # -- what it says -----------------------------------------------------------

    def _is_old(self, container: Container) -> bool:
        return container.created < self._started - self._grace

    def is_ready(self, pod: dict[str, Any], spec: dict[str, Any]) -> bool:
        uid = pod["metadata"]["uid"]
        container = self._running.get((uid, spec["name"]))
        if container is None or uid in self._refused:
            return False
        result = self._results.get(container.identity)
        if result is not None or "readinessProbe" not in spec:
            return result is not False
        if self._is_old(container):
            return bool(self._known.get(uid, {}).get("ready", False))
        return (uid, spec["name"]) not in self._working

    def publish(self, pod: dict[str, Any]) -> None:
        """Tells the API server what has changed."""
        uid = pod["metadata"]["uid"]
        with self._lock:
            ready = all(self.is_ready(pod, spec) for spec in pod["spec"]["containers"])
            status = self._known.setdefault(uid, {"ready": False, "history": []})
            if status["ready"] == ready and status["history"]:
                return
            status["ready"] = ready
            status["history"].append([time.monotonic(), ready])
            os.makedirs(os.path.dirname(STATUS), exist_ok=True)
            with open(STATUS + ".new", "w", encoding="utf-8") as file:
                json.dump(self._known, file)
            os.rename(STATUS + ".new", STATUS)
        self._say("I", f'"SyncLoop (probe)" probe="readiness" status="{ready}" pod="{name_of(pod)}"')

    def page(self) -> dict[str, Any]:
        """The answer to /pods: those of the node with their requests and limits, and how they are."""
        items = [self._with_status(pod) for pod in load().get("pods", []) + static_pods(self._manifests)]
        return {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}

    def _with_status(self, pod: dict[str, Any]) -> dict[str, Any]:
        uid = pod["metadata"]["uid"]
        statuses = []
        for spec in pod["spec"]["containers"]:
            container = self._running.get((uid, spec["name"]))
            identity = {"containerID": f"containerd://{container.identity}"} if container else {}
            statuses.append({"name": spec["name"], "ready": self.is_ready(pod, spec), **identity})
        ready = all(status["ready"] for status in statuses)
        status = (
            {"phase": "Failed", "reason": "NodeAffinity"} if uid in self._refused else {"phase": "Running"}
        )
        conditions = [{"type": "Ready", "status": str(ready)}]
        return {**pod, "status": {**status, "conditions": conditions, "containerStatuses": statuses}}


def name_of(pod: dict[str, Any]) -> str:
    return f"{pod['metadata'].get('namespace', 'default')}/{pod['metadata']['name']}"
