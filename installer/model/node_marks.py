"""The names of what the installer writes on a Node, and looks for on its own objects in the API server."""

from __future__ import annotations

_PREFIX = "cri-resource-manager.intel.com"
STATUS = f"{_PREFIX}/installer"
"""Annotation: the daemon's state as JSON."""
LEFT = "left"
"""What `uninstall` says as the state of a node that it could not clean."""
LAST_FAILURE = f"{_PREFIX}/last-failure"
"""Annotation: the last failure as JSON. It outlives Events."""
READY_LABEL = f"{_PREFIX}/ready"
"""`true` or `false`: whether cri-resmgr serves the node."""
NOT_READY_TAINT = f"{_PREFIX}/not-ready"
"""A pool's nodes may register with this taint, so that pods wait for the proxy. It is only ever removed."""
READY_CONDITION = "CriResourceManagerReady"
UNINSTALLING = f"{_PREFIX}/uninstalling"
"""Annotation of rights and namespaces: `true` lets go of them, see manifests/admission.py."""
