"""The verb `manifests`: Kubernetes YAML from templates/manifests/ and the operator's values. Pure: no
host, no cluster, no root.

The pods share the host's network, because a node whose network plugin is down must still be rescued,
and the API server reached; and its process ids, because what systemd reports are the host's. Their
Leases can only be allowed all at once in a namespace: who minds that in kube-system gives them a
`namespace` of their own. A node may be patched only with `annotateNode`, as that cannot be allowed
for one node alone.
"""

from __future__ import annotations

from installer.manifests.build import build_documents
from installer.manifests.inputs import Request, load_inputs
from installer.manifests.text import join_documents

__all__ = ["Request", "render_manifests"]


def render_manifests(request: Request) -> str:
    """The YAML stream: the same input gives the same bytes.

    Raises InvalidInputError with every fault of the input.
    """
    return join_documents(build_documents(load_inputs(request)))
