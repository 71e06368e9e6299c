"""What a cluster tells the stand-in kubelet of its node, and what it hears of it.

Whose containers are made with `create_container`; kubelet starts none. See standins/pods.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.lib.throwaway.containers import Pod, reach
from tests.lib.throwaway.host import ThrowawayHost
from tests.lib.throwaway.standins.kubelet_api import READ_ONLY, SECURE
from tests.lib.throwaway.standins.pods import ALLOCATED, PODS, STATUS


def pod_object(
    pod: Pod,
    requests: Mapping[str, str] | None = None,
    selector: Mapping[str, str] | None = None,
    probe: Sequence[str] = (),
    period: int = 5,
) -> dict[str, Any]:
    """The pod as the API has it, with one container of the same name and no limits but its requests.

    `probe` is the command of its readiness probe, `period` that one's seconds.
    """
    container: dict[str, Any] = {"name": pod.name, "resources": {"requests": dict(requests or {})}}
    if probe:
        check = {"exec": {"command": list(probe)}, "periodSeconds": period, "failureThreshold": 2}
        container["readinessProbe"] = {**check, "timeoutSeconds": 5}
    return {
        "metadata": {"name": pod.name, "namespace": "default", "uid": pod.uid},
        "spec": {"nodeSelector": dict(selector or {}), "containers": [container]},
    }


@dataclass(slots=True)
class Assigned:
    """What the API server says of a node; `tell` makes it so for the host's kubelet."""

    host: ThrowawayHost
    labels: dict[str, str] = field(default_factory=dict)
    pods: list[dict[str, Any]] = field(default_factory=list)
    tokens: dict[str, list[str]] = field(default_factory=dict)

    def tell(self) -> None:
        world = {"labels": self.labels, "pods": self.pods, "tokens": self.tokens}
        new = self._file(f"{PODS}.new")
        new.write_text(json.dumps(world))
        new.rename(self._file(PODS))

    def forget(self) -> None:
        """There are no pods, and there have been none; for a kubelet's next start."""
        for path in (PODS, STATUS, ALLOCATED):
            self._file(path).unlink(missing_ok=True)

    def admitted(self, pod: Pod) -> bool:
        """Whether kubelet has written down what it requests."""
        try:
            return pod.uid in self._file(ALLOCATED).read_text()
        except FileNotFoundError:
            return False

    def history(self, pod: Pod) -> list[tuple[float, bool]]:
        """When (CLOCK_MONOTONIC) kubelet said that a pod was ready or not ready, as it changed."""
        try:
            known = json.loads(self._file(STATUS).read_text())
        except FileNotFoundError:
            return []
        return [(at, ready) for at, ready in known.get(pod.uid, {}).get("history", [])]

    def is_ready(self, pod: Pod) -> bool:
        return any(ready for _, ready in self.history(pod)[-1:])

    def _file(self, path: str) -> Path:
        return Path(reach(self.host, path))


def available_since(history: Sequence[tuple[float, bool]], min_ready: float) -> float | None:
    """When a rollout would first have called a pod available: ready without a break for `min_ready` seconds.
    None if it has not, as far as the history goes."""
    for number, (at, ready) in enumerate(history):
        ends = history[number + 1][0] if number + 1 < len(history) else None
        if ready and (ends is None or ends - at >= min_ready):
            return at + min_ready
    return None


def fetch(host: ThrowawayHost, path: str, token: str | None = None) -> tuple[int, str]:
    """kubelet's answer, status and body: on the read-only port, or with a token on the other one."""
    port = READ_ONLY if token is None else SECURE[1]
    script = (
        "import http.client, ssl, sys\n"
        "context = ssl._create_unverified_context()\n"
        f"secure = {token is not None}\n"
        f"connection = (http.client.HTTPSConnection('127.0.0.1', {port}, timeout=10, context=context)\n"
        f"    if secure else http.client.HTTPConnection('127.0.0.1', {port}, timeout=10))\n"
        f"connection.request('GET', {path!r}, headers={{'Authorization': 'Bearer ' + {token or ''!r}}})\n"
        "answer = connection.getresponse()\n"
        "print(answer.status)\n"
        "print(answer.read().decode(), end='')\n"
    )
    status, _, body = host.run("python3", "-IS", "-c", script).stdout.partition("\n")
    return int(status), body
