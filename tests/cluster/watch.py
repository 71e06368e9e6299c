"""What a node reports, compared with the state of its host, again and again while something happens."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple, Self

from installer.model.names import COMPONENT_LABEL, COMPONENTS, READY_CONDITION, READY_LABEL, STATUS, Mode
from tests.cluster.world import Cluster, KubeNode, Object

#: What was so may be said for so long: two heartbeats of the daemon, and a machine that is busy.
LATE = 30.0

_INSTALLATION = f"{COMPONENT_LABEL}%3D{COMPONENTS[Mode.INSTALL]}"


class Seen(NamedTuple):
    """`wrong`: each word that was not so. `ready`: as the API server has it of kubelet."""

    at: float
    wrong: frozenset[str]
    ready: bool


class Watch:
    """`with Watch(cluster) as watch:` looks each half second, and then tells."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._stop = cluster, threading.Event()
        self._seen: dict[str, list[Seen]] = {node.name: [] for node in cluster.nodes}
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def lies(self) -> list[str]:
        """Each stretch in which something was said for too long that was not so."""
        return [line for name, seen in self._seen.items() for line in _lies(name, seen)]

    def flips(self) -> list[str]:
        """The nodes that were not Ready for a moment."""
        return [name for name, seen in self._seen.items() if not all(each.ready for each in seen)]

    def _look(self) -> None:
        while not self._stop.wait(0.5):
            for node in self._cluster.nodes:
                self._seen[node.name] += self._see(node)

    def _see(self, node: KubeNode) -> Iterator[Seen]:
        """Nothing, while its host is off. What changes meanwhile is as it was, or as it is."""
        was, at = node.on_relay(), time.monotonic()
        found = self._cluster.plane.admin.call("GET", f"/api/v1/nodes/{node.name}")
        path = f"/api/v1/namespaces/{self._cluster.namespace}/pods?labelSelector={_INSTALLATION}"
        pods = self._cluster.plane.admin.call("GET", f"{path}&fieldSelector=spec.nodeName%3D{node.name}")
        now = {was, node.on_relay()}
        if found.ok and pods.ok and None not in now:
            says = set(_say(found.body, pods.body["items"]))
            wrong = {f"{word}, and is not" for word in says if word.startswith("is") and True not in now}
            wrong |= {f"{word}, and is" for word in says if word.startswith("not") and False not in now}
            conditions = _conditions(found.body)
            yield Seen(at, frozenset(wrong), conditions.get("Ready") == "True")


def _say(node: Object, pods: list[Object]) -> Iterator[str]:
    """`is served` or `not served`, and who says so."""
    metadata = node["metadata"]
    marks = {
        "its condition": _conditions(node).get(READY_CONDITION),
        "its label": metadata["labels"].get(READY_LABEL, "").title(),
    }
    status = json.loads(metadata.get("annotations", {}).get(STATUS, "{}"))
    marks["its annotation"] = str(status.get("ready", "")).title()
    for who, said in marks.items():
        if said in ("True", "False"):
            yield f"{'is' if said == 'True' else 'not'} served, says {who}"
    if any(_conditions(pod).get("Ready") == "True" for pod in pods):
        yield "is served, says its pod"
    if status.get("state") == "converged":
        yield "is converged, says its annotation"


def _conditions(found: Object) -> dict[str, str]:
    return {each["type"]: each["status"] for each in found.get("status", {}).get("conditions", [])}


def _lies(name: str, seen: list[Seen]) -> Iterator[str]:
    for word in sorted({word for each in seen for word in each.wrong}):
        for wrong, stretch in groupby(seen, lambda each, word=word: word in each.wrong):  # type: ignore[misc]
            found = list(stretch)
            lasted = found[-1].at - found[0].at
            if wrong and lasted > LATE:
                yield f"{name} for {lasted:.0f} s: {word}"
