"""What cri-resmgr says, as far as it decides something for us."""

from __future__ import annotations

import re
from collections.abc import Iterable

# How its last words begin: its own logger (in the journal, and elsewhere), the Go runtime, Go's flag package;
# and kubelet's, so that a failed start of either is told by its cause.
_FATAL = re.compile(
    r"(?:^|: )((?:\?\?\? )?F(?:: |\d{4} ).*|panic: .*|fatal error: .*|flag provided but .*|"
    r'E\d{4} .*"command failed" err=.*)'
)


def fatal_lines(lines: Iterable[str]) -> list[str]:
    """Why a process has ended, in its own words, without what the journal writes before them."""
    return [found[1] for line in lines if (found := _FATAL.search(line.strip()))]
