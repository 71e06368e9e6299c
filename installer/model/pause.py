"""A pause: nobody changes the node while a person is at work there, neither the daemon nor a command by hand.
Of a fleet: no planned work begins anywhere.

It is a file on the node or an annotation of the node. The annotation is known to the daemon, which keeps what
the API server has last said in a file below /run: a command by hand reads it there.
"""

from __future__ import annotations

from installer.model import paths
from installer.model.jsontext import parse_json

PAUSE_FILE = "/etc/cri-resmgr/pause"
PAUSE_ANNOTATION = "cri-resource-manager.intel.com/pause"
"""Of a Node; and of the Lease of a fleet, whatever its value, which says why."""
CLUSTER_MEMORY = f"{paths.OUR_RUNTIME}/cluster.json"


def why_paused(file: bytes | None, memory: bytes | None) -> str:
    """Why the node is paused and how that ends; empty if it is not. `file` is the content of PAUSE_FILE, None
    if there is none; its first line may say why. `memory` is that of CLUSTER_MEMORY."""
    if file is not None:
        reason = file.decode("utf-8", "replace").partition("\n")[0].strip()
        return f"{PAUSE_FILE} exists{f' ({reason})' * bool(reason)}; it ends with that file"
    if annotation_pauses(memory):
        end = f"`kubectl annotate node NODE {PAUSE_ANNOTATION}-`"
        return f"by the node's annotation {PAUSE_ANNOTATION}, as the API server has last said; {end} ends it"
    return ""


def annotation_pauses(memory: bytes | None) -> bool:
    """Whether the API server has last said that the node has the annotation, from CLUSTER_MEMORY."""
    try:
        found = parse_json(memory or b"{}")
    except ValueError:
        return False
    return isinstance(found, dict) and found.get("paused") is True
