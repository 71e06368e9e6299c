"""The pod context: where the API is and who we are in it, from the pod's environment and files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from installer.errors import InvalidInputError

PROGRAM = "cri-resmgr-installer"
SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"

_ROLLOUT = "CRI_RESMGR_INSTALLER_ROLLOUT_NAMESPACE"
_NAME_LIMIT = 253  # of an object (Kubernetes documentation, "Object Names and IDs")
_GENERATED_LIMIT, _RANDOM_LENGTH = 58, 5  # characters of a pod's name


@dataclass(frozen=True, slots=True)
class PodContext:
    """If `pod`, `namespace` or `daemonset` are empty, what needs them is left out."""

    host: str
    port: int
    account: str  # the directory with the pod's token
    node: str
    pod: str = ""
    namespace: str = ""
    daemonset: str = ""
    annotate: bool = False  # write a status to the Node
    rollout_namespace: str = ""  # with the permits; empty: no permit is needed

    @property
    def daemonset_path(self) -> str:
        return f"/apis/apps/v1/namespaces/{self.namespace}/daemonsets/{self.daemonset}"

    @property
    def installation(self) -> str:
        """The installation that its DaemonSet belongs to, as NAMESPACE/NAME; empty if it is not known. Its
        own name may end as that of its removal does."""
        name = re.sub(r"(-removal)+$", "", self.daemonset)
        return f"{self.namespace}/{name}" if self.namespace and name else ""

    @property
    def is_of_daemonset(self) -> bool:
        """Whether the pod has a name that the controller gives to pods of this DaemonSet: the DaemonSet's
        name and a dash, cut to 58 characters, then five random ones (SimpleNameGenerator of
        k8s.io/apiserver/pkg/storage/names)."""
        start = f"{self.daemonset}-"[:_GENERATED_LIMIT]
        random = self.pod[len(start) :]
        ours = bool(self.daemonset) and self.pod.startswith(start)
        return ours and len(random) == _RANDOM_LENGTH and "-" not in random

    @property
    def node_path(self) -> str:
        return f"/api/v1/nodes/{self.node}"


def find_pod_context(environment: Mapping[str, str]) -> PodContext | None:
    """Return None outside a pod, and in a pod without a token.

    Raises InvalidInputError with every fault if the pod's manifest lacks something that is needed.
    """
    account = Path(environment.get("CRI_RESMGR_INSTALLER_SERVICE_ACCOUNT") or SERVICE_ACCOUNT)
    host = environment.get("KUBERNETES_SERVICE_HOST", "")
    if not host or not (account / "token").is_file():
        return None
    ports = ("KUBERNETES_SERVICE_PORT_HTTPS", "KUBERNETES_SERVICE_PORT")
    port = next((environment[name] for name in ports if environment.get(name)), "443")
    node = environment.get("NODE_NAME", "")
    faults = []
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
        faults.append(f"KUBERNETES_SERVICE_PORT: must be a port, not {port!r}")
    faults += [
        f"{name}: {environment.get(name)!r} is not an object name"
        for name in ("NODE_NAME", "POD_NAMESPACE", "CRI_RESMGR_INSTALLER_DAEMONSET", _ROLLOUT)
        if environment.get(name) and not is_name(environment[name])
    ]
    if not node:
        faults.append("NODE_NAME: must be set in a pod (fieldRef spec.nodeName)")
    if faults:
        raise InvalidInputError(faults, "correct the environment of the pod; nothing was touched")
    return PodContext(
        host=host,
        port=int(port),
        account=str(account.absolute()),
        node=node,
        pod=environment.get("POD_NAME", ""),
        namespace=environment.get("POD_NAMESPACE") or _namespace(account),
        daemonset=environment.get("CRI_RESMGR_INSTALLER_DAEMONSET", ""),
        annotate=environment.get("CRI_RESMGR_INSTALLER_ANNOTATE_NODE", "") == "true",
        rollout_namespace=environment.get(_ROLLOUT, ""),
    )


def _namespace(account: Path) -> str:
    try:
        found = (account / "namespace").read_text("utf-8").strip()
    except (OSError, ValueError):
        return ""
    return found if is_name(found) else ""


def is_name(text: str) -> bool:
    """Whether a path may contain it as the name of an object."""
    allowed = "abcdefghijklmnopqrstuvwxyz0123456789-."
    return 0 < len(text) <= _NAME_LIMIT and not text.strip(allowed) and text[0] not in "-."
