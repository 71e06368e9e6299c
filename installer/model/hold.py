"""Who keeps the node as it is: a hold of kubelet on its base endpoint, or a person's pause."""

from __future__ import annotations

from collections.abc import Callable

from installer.model import paths
from installer.model.jsontext import parse_json

# Who holds kubelet on its base endpoint: the hold file's first line says why, and by its prefix who set it.
#
# A hold that the installer set ends by itself when its cause is gone. One that a person wrote (`echo broken
# CPU map > /var/lib/cri-resmgr-installer/hold`) ends by a person only: `install` by hand, or deleting the
# file.

BY_DAEMON = "run: "
BY_ROLLBACK = "rollback: "
BY_RUN = "install: "  # one that is at work, and ends it itself; if it was cut off, the next run does


def read_hold(read: Callable[[str], bytes | None]) -> str:
    """Why kubelet is held on its base endpoint; empty if it is not. `read` gives the content of a host path,
    None if nothing is there."""
    found = (content for path in paths.HOLDS if (content := read(path)) is not None)
    return next(map(reason_in, found), "")


def reason_in(content: bytes) -> str:
    """Why kubelet is held, from the content of a hold file that exists; never empty."""
    return content.decode("utf-8", "replace").partition("\n")[0].strip() or "no reason given"


def is_operators(reason: str) -> bool:
    """Whether a person set the hold of this reason. An empty reason is no hold."""
    return bool(reason) and not reason.startswith((BY_DAEMON, BY_ROLLBACK, BY_RUN))


def is_of_a_run(reason: str) -> bool:
    """Whether a run set the hold that is at work, or was cut off."""
    return reason.startswith(BY_RUN)


# A pause: nothing changes the node while a person is at work there, neither the daemon nor a command by hand.
# Of a fleet: no planned work begins anywhere.
#
# It is a file on the node or an annotation of the node. The annotation is known to the daemon, which keeps
# what the API server has last said in a file below /run: a command by hand reads it there.

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
