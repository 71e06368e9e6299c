"""A cluster in the middle of a rollout that a person has paused, and a thief who has the token of one of our
pods in it.
"""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Mapping
from typing import Any

from installer.cluster.leases import build_lease
from installer.model.fleet import BREAKER
from installer.model.hold import PAUSE_ANNOTATION
from tests.lib.throwaway.controlplane import Caller

NAMESPACE, NAME, AGENT = "kube-system", "cri-resmgr-installer", "cri-resmgr-agent"
PLACE = f"{NAME}-rollout"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"
THERE = LEASES.format(PLACE)
NODES = "/api/v1/nodes"
OURS, OTHER = "worker-1", "worker-2"
Object = dict[str, Any]


class Robbed:
    """Two nodes with a pod of ours and of the agent each: `callers` by account and node. `uids` are the
    nodes'."""

    def __init__(self, admin: Caller) -> None:
        self.admin = admin
        self.uids = dict[str, str]()
        self.callers = dict[tuple[str, str], Caller]()

    def make(self, path: str, body: Mapping[str, Any]) -> Object:
        answer = self.admin.call("POST", path, body)
        assert answer.ok or answer.code == 409, answer
        return answer.body

    def pause(self) -> None:
        """What there is to be robbed of; and the policies are in force."""
        there = {"metadata": {"name": "kube-controller-manager"}, "spec": {"holderIdentity": "theirs"}}
        self.make(LEASES.format(NAMESPACE), lease(there))
        self.make(THERE, build_lease("fleet", PLACE, "fleet"))
        paused = {"metadata": {"annotations": {PAUSE_ANNOTATION: "a Friday"}}}
        assert self.admin.call("PATCH", f"{THERE}/fleet", paused).ok
        self.make(THERE, build_lease("breaker-0a1b", PLACE, "0a1b", annotations={BREAKER: "{}"}))
        self._await_policies()

    def _await_policies(self) -> None:
        """They are in force a moment after they were created."""
        deadline, probe = time.monotonic() + 120, {"metadata": {"name": "permit-x"}}
        for policy, account, method, path, body in (
            ("own-lease", NAME, "POST", THERE, lease(probe)),
            ("own-node", NAME, "PATCH", f"{NODES}/{OTHER}", {"metadata": {"labels": {"probe": "x"}}}),
            ("agent-own-node", AGENT, "PATCH", f"{NODES}/{OTHER}", {"metadata": {"labels": {"probe": "x"}}}),
        ):
            while policy not in (answer := self.callers[account, OURS].call(method, path, body)).says:
                assert time.monotonic() < deadline, (policy, answer)
                if method == "POST" and answer.ok:
                    self.admin.call("DELETE", f"{path}/permit-x")
                body["metadata"]["labels"] = {"probe": str(random.random())}
                time.sleep(0.1)
        for name in (OURS, OTHER):
            self.admin.call("PATCH", f"{NODES}/{name}", {"metadata": {"labels": {"probe": None}}})

    @property
    def thief(self) -> Caller:
        """With the token of our pod on worker-1."""
        return self.callers[NAME, OURS]

    def identity(self, node: str) -> str:
        return f"{node}/{self.uids[node]}"

    def state(self) -> Object:
        """All that a thief could be after, without what the API server writes by itself."""
        paths = [f"{NODES}/{name}" for name in (OURS, OTHER)]
        listed = self.admin.call("GET", THERE).body["items"]
        found = {each["metadata"]["name"]: each for each in listed}
        found |= {path: self.admin.call("GET", path).body for path in paths}
        master = f"{LEASES.format(NAMESPACE)}/kube-controller-manager"
        return {
            key: _plain(each) for key, each in (found | {"": self.admin.call("GET", master).body}).items()
        }


def lease(found: Mapping[str, Any]) -> Object:
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", **found}


def _plain(found: Object) -> Object:
    plain = copy.deepcopy(found)
    for name in ("managedFields", "resourceVersion", "generation"):
        plain.get("metadata", {}).pop(name, None)
    for each in plain.get("status", {}).get("conditions", []):
        each.pop("lastHeartbeatTime", None)
    return plain
