"""The share of the CPUs that we get on a busy host."""

from __future__ import annotations

import os
from contextlib import suppress

NICE = -15  # nice(2): 28 times the share of a process of nice 0


def raise_priority() -> None:
    """Let this process and its children work although the host is busy: what it repairs, the node needs.
    Between control groups nice counts nothing, there their weights do. It stays as it is where that is
    forbidden."""
    with suppress(OSError):  # a seccomp filter may give any error
        os.setpriority(os.PRIO_PROCESS, 0, NICE)
