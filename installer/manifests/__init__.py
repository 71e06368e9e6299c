"""The verb `manifests`: renders Kubernetes YAML from templates/manifests/ and the operator's values. Pure:
needs no host, no cluster and no root.

The pods share the host's network, because a node whose network plugin is down must still be rescued and
must reach the API server; and its process ids, because systemd reports those of the host. RBAC can only
allow access to all nodes and Leases: admission.yaml.j2 restricts it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from installer.manifests.build import build_objects
from installer.manifests.inputs import ManifestOptions, load_inputs
from installer.manifests.text import dump_objects

__all__ = ["ManifestOptions", "render_manifests", "render_objects"]


def render_manifests(options: ManifestOptions, warn: Callable[[str], None] = lambda _: None) -> str:
    """Return the YAML stream: the same input gives the same bytes. Calls `warn` with each warning about the
    input, with its place, also when the input is refused.

    Raises InvalidInputError with every fault of the input.
    """
    return dump_objects(render_objects(options, warn))


def render_objects(options: ManifestOptions, warn: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return the objects, each after those that it needs."""
    return build_objects(load_inputs(options, warn))
