"""What keeps the node as it is: a hold of kubelet on its base endpoint, or a pause."""

from __future__ import annotations

from collections.abc import Callable

from installer.model import paths
from installer.model.jsontext import parse_object

# A hold keeps kubelet on its base endpoint. The first line of the hold file says why, and its prefix says who
# set it.
#
# The installer ends its own holds when their cause is gone. Only a person ends a hold that a person wrote
# (`echo broken CPU map > /var/lib/cri-resmgr-installer/hold`): with `install` by hand, or by deleting the
# file.

BY_DAEMON = "run: "
BY_ROLLBACK = "rollback: "
BY_RUN = "install: "  # a run of an earlier build, which was cut off: the next run ends the hold


def read_hold(read: Callable[[str], bytes | None]) -> str:
    """Why kubelet is held on its base endpoint; empty if it is not. `read` returns the content of a host
    path, or None if nothing is there."""
    found = (content for path in paths.HOLDS if (content := read(path)) is not None)
    return next(map(reason_in, found), "")


def reason_in(content: bytes) -> str:
    """The reason in the content of a hold file. Never empty."""
    return content.decode("utf-8", "replace").partition("\n")[0].strip() or "no reason given"


def is_operators(reason: str) -> bool:
    """Whether a person set the hold with this reason. An empty reason is no hold."""
    return bool(reason) and not reason.startswith((BY_DAEMON, BY_ROLLBACK, BY_RUN))


def is_of_a_run(reason: str) -> bool:
    """Whether a run of an earlier build set the hold."""
    return reason.startswith(BY_RUN)


# A pause of a node: neither the daemon nor a command by hand changes it while a person works there. A pause
# of a fleet: no planned work begins on any node.
#
# A node is paused by a file on it or by an annotation of the Node. The daemon reads the annotation, and keeps
# what the API server last said in a file below /run, where commands by hand read it.

PAUSE_FILE = "/etc/cri-resmgr/pause"
PAUSE_ANNOTATION = "cri-resource-manager.intel.com/pause"
"""On a Node, or on the Lease of a fleet. Any value pauses; the value is the reason."""
CLUSTER_MEMORY = f"{paths.OUR_RUNTIME}/cluster.json"


def why_paused(file: bytes | None, memory: bytes | None) -> str:
    """Why the node is paused and how to end that; empty if it is not paused.

    `file` is the content of PAUSE_FILE, None if there is none; its first line may give a reason. `memory` is
    the content of CLUSTER_MEMORY.
    """
    if file is not None:
        reason = file.decode("utf-8", "replace").partition("\n")[0].strip()
        return f"{PAUSE_FILE} exists{f' ({reason})' * bool(reason)}; delete that file to end the pause"
    if annotation_pauses(memory):
        found = f"it has the annotation {PAUSE_ANNOTATION}, as last read from the API server"
        return f"{found}; `kubectl annotate node NODE {PAUSE_ANNOTATION}-` ends the pause"
    return ""


def annotation_pauses(memory: bytes | None) -> bool:
    """Whether the API server last said that the node has the annotation, according to CLUSTER_MEMORY."""
    return parse_object(memory or b"").get("paused") is True
