"""The labels by which our objects in a cluster are found (Kubernetes documentation, "Recommended Labels")."""

from __future__ import annotations

from installer.model.state import Mode

NAME_LABEL = "app.kubernetes.io/name"
INSTANCE_LABEL = "app.kubernetes.io/instance"
COMPONENT_LABEL = "app.kubernetes.io/component"
OURS = f"{NAME_LABEL}=cri-resmgr-installer"
COMPONENTS = {Mode.INSTALL: "installation", Mode.REMOVE: "removal"}
"""What the DaemonSet of each mode has as its component."""


def mode_of(component: object) -> Mode | None:
    """The mode of the DaemonSet with this component; None for another one."""
    return next((mode for mode, name in COMPONENTS.items() if name == component), None)
