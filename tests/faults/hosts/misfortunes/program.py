"""The real command line as a process that waits at a given point, and whose clock can be set.

A throwaway host has the clock of the machine: libfaketime answers for the time of day of one process, and
the clocks that nobody sets go on as they are.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.faults.hosts.misfortunes.case import Act
from tests.host.node import Node

_LIBRARIES = Path("/usr/lib")
_MAIN = """
import sys
from installer.cli import main
sys.exit(main())
"""
_WAITS = """
import os, sys

def write(text, write=sys.stdout.write):
    write(text)
    sys.stdout.flush()
    os.read(0, 1)

sys.stdout.write = write
"""
# libfaketime fails a sleep that ends at an instant of a clock which it leaves alone; Python's is one.
_CLOCK = """
import select, time
time.sleep = lambda seconds: select.select((), (), (), seconds)
"""


def argv(*, waits: bool = False, clock: bool = False) -> list[str]:
    """`waits`: after each line that it says, for a byte on its standard input, or its end. `clock`: in
    the environment below."""
    return [sys.executable, "-c", (_WAITS if waits else "") + (_CLOCK if clock else "") + _MAIN]


def _file(node: Node) -> Path:
    return node.scratch / "clock"


def set_clock(offset: str) -> Act:
    """For a process with the environment below, the time of day is now this far from the real one."""
    return lambda node: _file(node).write_text(f"{offset}\n")


def clock_environment(node: Node) -> Mapping[str, str]:
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
