"""The names that the installer shares with a cluster: modes, labels, and what it writes on a Node; and those
of the options that a run remembers.

Labels follow "Recommended Labels" in the Kubernetes documentation.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from enum import StrEnum


class Mode(StrEnum):
    INSTALL = "install"
    REMOVE = "remove"


REMEMBERED = ("config", "payload", "configs", "default_configs")
"""The options whose values a run remembers, for the next run and for hints."""


def spell(options: Mapping[str, str]) -> str:
    """Return the options as a shell has them."""
    words = ((f"--{name.replace('_', '-')}", value) for name, value in options.items())
    return shlex.join(filter(None, (word for pair in words for word in pair)))


NAME_LABEL = "app.kubernetes.io/name"
INSTANCE_LABEL = "app.kubernetes.io/instance"
COMPONENT_LABEL = "app.kubernetes.io/component"
OURS = f"{NAME_LABEL}=cri-resmgr-installer"
COMPONENTS = {Mode.INSTALL: "installation", Mode.REMOVE: "removal"}
"""The component label of each mode's DaemonSet."""


def our_selector(instance: str = "", mode: Mode | None = None) -> str:
    """Return the label selector of our DaemonSets and pods: of all instances and modes, unless given."""
    of_instance = f",{INSTANCE_LABEL}={instance}" if instance else ""
    return OURS + of_instance + (f",{COMPONENT_LABEL}={COMPONENTS[mode]}" if mode else "")


def mode_of(component: object) -> Mode | None:
    """The mode of the DaemonSet with this component; None for any other."""
    return next((mode for mode, name in COMPONENTS.items() if name == component), None)


_PREFIX = "cri-resource-manager.intel.com"
STATUS = f"{_PREFIX}/installer"
"""Annotation: the daemon's state as JSON."""
LEFT = "left"
"""The state that `uninstall` writes for a node that it could not clean."""
LAST_FAILURE = f"{_PREFIX}/last-failure"
"""Annotation: the last failure as JSON. Unlike an Event it does not expire."""
READY_LABEL = f"{_PREFIX}/ready"
"""`true` or `false`: whether cri-resmgr serves the node."""
SUCCESSOR_LABEL = f"{_PREFIX}/successor"
"""`nri` on a node that cri-resmgr has handed over to an NRI plugin, for the `nodeSelector` of its chart."""
NOT_READY_TAINT = f"{_PREFIX}/not-ready"
"""Nodes of a pool may register with this taint so that pods wait for the proxy. We only remove it."""
READY_CONDITION = "CriResourceManagerReady"
UNINSTALLING = f"{_PREFIX}/uninstalling"
"""Annotation of RBAC objects and namespaces: `true` permits their deletion
(templates/manifests/admission.yaml.j2)."""
CONFIG_NAMESPACE = f"{_PREFIX}/config-namespace"
"""Annotation of the agent's ClusterRoleBinding: the namespace whose ConfigMaps the agent reads."""
