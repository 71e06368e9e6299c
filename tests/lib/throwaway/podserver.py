"""A stand-in for the API server of one pod of ours: its Node, its DaemonSet, its service account."""

from __future__ import annotations

import sys
import tempfile
import uuid
from pathlib import Path
from typing import Any

from installer.cluster.node_status import EVENTS_PATH
from tests.lib.throwaway.kubeserver import KubeServer, Name, parse_path

_CHILD = """
import sys
from installer.cluster.sync_child import sync
print(sync(sys.argv[2]))
"""
#: What a daemon starts to talk to an API server.
CHILD = (sys.executable, "-P", "-c", _CHILD)


class ApiServer(KubeServer):
    """Serves by TLS who has `token`. `directory` is the service account's.

    `node` and `daemonset` are the objects themselves: a test may edit what no watch has to tell of.
    """

    host = "127.0.0.1"

    def __init__(self, node: str = "node-1", network: str = "") -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="apiserver-")
        self.directory = Path(self._scratch.name)
        super().__init__(self.directory, network)
        self.namespace, self.node_name = "kube-system", node
        self.node_path = f"/api/v1/nodes/{node}"
        self.daemonset_path = f"/apis/apps/v1/namespaces/{self.namespace}/daemonsets/cri-resmgr-installer"
        (self.directory / "namespace").write_text(self.namespace)
        self.add_node(node)
        selector = {"nodeSelector": {"kubernetes.io/os": "linux"}}
        self.put(
            self.daemonset_path,
            {"kind": "DaemonSet", "apiVersion": "apps/v1", "spec": {"template": {"spec": selector}}},
        )

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._scratch.cleanup()

    def add_node(self, name: str) -> None:
        """A Node that is Ready."""
        labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}
        self.put(
            f"/api/v1/nodes/{name}",
            {
                "kind": "Node",
                "apiVersion": "v1",
                "metadata": {"labels": labels},
                "status": {"conditions": [{"type": "Ready", "status": "True"}]},
            },
        )

    # -- objects ------------------------------------------------------------------------------------

    def put(self, path: str, body: dict[str, Any]) -> None:
        """Creates the object at this path, or replaces it."""
        name = parse_path(path)[0]
        body = {**body, "metadata": {**body.get("metadata", {}), "name": name.name}}
        if name in self.objects:
            self.replace(name, body)
        else:
            self.create(name.kind, name.namespace, body)

    def at(self, path: str) -> dict[str, Any]:
        """The object at this path; empty if there is none."""
        return self.objects.get(parse_path(path)[0], {})

    def below(self, path: str) -> list[Name]:
        """The names of the objects of this collection."""
        collection = parse_path(path)[0]
        with self.changed:
            return [name for name in self.objects if name._replace(name="") == collection]

    @property
    def node(self) -> dict[str, Any]:
        return self.at(self.node_path)

    @property
    def annotations(self) -> dict[str, str]:
        found: dict[str, str] = self.node["metadata"].setdefault("annotations", {})
        return found

    @property
    def daemonset(self) -> dict[str, Any]:
        return self.at(self.daemonset_path)

    def delete_daemonset(self) -> None:
        self.delete(parse_path(self.daemonset_path)[0])

    @property
    def events(self) -> list[dict[str, Any]]:
        """The Events that were posted, in their order."""
        return [self.objects[name] for name in self.below(EVENTS_PATH)]

    # -- the pod ------------------------------------------------------------------------------------

    def environment(self) -> dict[str, str]:
        """What a pod of ours has in its environment."""
        return {
            "KUBERNETES_SERVICE_HOST": self.host,
            "KUBERNETES_SERVICE_PORT": str(self.port),
            "CRI_RESMGR_INSTALLER_SERVICE_ACCOUNT": str(self.directory),
            "NODE_NAME": self.node_name,
            "POD_NAME": "cri-resmgr-installer-x7k2p",
            "POD_NAMESPACE": self.namespace,
            "CRI_RESMGR_INSTALLER_POD_UID": "00000000-0000-0000-0000-000000000001",
            "CRI_RESMGR_INSTALLER_DAEMONSET": "cri-resmgr-installer",
        }

    def rotate_token(self) -> None:
        """Makes the old token invalid and writes a new one to the file."""
        self.token = uuid.uuid4().hex
        (self.directory / "token").write_text(self.token)
