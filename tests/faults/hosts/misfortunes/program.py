"""A clock that somebody sets, as one process sees it: a throwaway host has the clock of the machine.

libfaketime answers for the time of day; the clocks that nobody sets go on as they are.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.faults.hosts.misfortunes.case import Act
from tests.host.node import Node

_LIBRARIES = Path("/usr/lib")
# libfaketime fails a sleep that ends at an instant of a clock which it leaves alone; Python's is one.
_PROGRAM = """\
import select, sys, time
time.sleep = lambda seconds: select.select((), (), (), seconds)
from installer.cli import main
sys.exit(main())
"""
#: The program, to be started with the environment below.
ARGV = (sys.executable, "-c", _PROGRAM)


def _file(node: Node) -> Path:
    return node.scratch / "clock"


def set_clock(offset: str) -> Act:
    """For a process with the environment below, the time of day is now this far from the real one."""
    return lambda node: _file(node).write_text(f"{offset}\n")


def environment(node: Node) -> Mapping[str, str]:
    """That of a process whose clock can be set; now it is right."""
    set_clock("+0")(node)
    (library,) = _LIBRARIES.glob("*/faketime/libfaketimeMT.so.1")
    return {
        **os.environ,
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(_file(node)),
        "FAKETIME_NO_CACHE": "1",
        "DONT_FAKE_MONOTONIC": "1",
        "NO_FAKE_STAT": "1",
    }
