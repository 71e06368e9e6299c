"""Who holds kubelet on its base endpoint: the hold file's first line says why, and by its prefix who set it.

A hold that the installer set ends by itself when its cause is gone. One that a person wrote (`echo broken
CPU map > /var/lib/cri-resmgr-installer/hold`) ends by a person only: `install` by hand, or deleting the file.
"""

from __future__ import annotations

from collections.abc import Callable

from installer.model import paths

BY_DAEMON = "run: "
BY_ROLLBACK = "rollback: "
BY_RUN = "install: "  # one that is at work, and ends it itself; if it was cut off, the next run does
_BY_OLDER_ROLLBACK = "the way back failed too"  # how version 0.1.0 began it


def read_hold(read: Callable[[str], bytes | None]) -> str:
    """Why kubelet is held on its base endpoint; empty if it is not. `read` gives the content of a host path,
    None if nothing is there."""
    found = (content for path in paths.HOLDS if (content := read(path)) is not None)
    return next(map(reason_in, found), "")


def reason_in(content: bytes) -> str:
    """Why kubelet is held, from the content of a hold file that exists; never empty."""
    return content.decode("utf-8", "replace").partition("\n")[0].strip() or "no reason given"


def is_operators(reason: str) -> bool:
    """Whether a person set the hold of this reason. No hold (an empty reason) is nobody's."""
    ours = (BY_DAEMON, BY_ROLLBACK, BY_RUN, _BY_OLDER_ROLLBACK)
    return bool(reason) and not reason.startswith(ours)


def is_of_a_run(reason: str) -> bool:
    """Whether a run set the hold that is at work, or was cut off."""
    return reason.startswith(BY_RUN)
