"""What a program says of a list of pods, and how it is started where it can change nothing else."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

SECONDS = 30.0

# /sys, /run and three files of /proc are the machine's, for the program alone; `mounts` is its own.
_INSIDE = """
mount --bind "$0/sys" /sys && mount --bind "$0/run" /run && mount --bind "$0/proc/meminfo" /proc/meminfo &&
mount --bind "$0/proc/mounts" /proc/$$/mounts && exec "$@"
"""


@dataclass(frozen=True, slots=True)
class Placed:
    """What a container has in the end. `cpus` and `mems` are lists; empty: all of them. Of a container that
    was `refused`, for want of room or of its class, nothing else counts."""

    refused: Literal["", "room", "class"] = ""
    cpus: str = ""
    mems: str = ""
    shares: int = 0
    rdt: str = ""
    blockio: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """`refused`: why the program does not take the configuration. `containers` by NAMESPACE/POD/NAME."""

    refused: str = ""
    containers: Mapping[str, Placed] = field(default_factory=dict)


def missing() -> str:
    """Why no real program can be asked here; empty if one can."""
    if os.geteuid() != 0:
        return "needs root: each program gets a /sys of its own"
    return "" if shutil.which("unshare") else "needs unshare"


@contextmanager
def started(command: Sequence[str | Path], root: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The program, with the machine that lies below `root`. It writes to root/log."""
    (root / "run").mkdir(exist_ok=True)
    with (root / "log").open("wb") as log:
        words = ["unshare", "--mount", "sh", "-c", _INSIDE, root, *command]
        process = subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()


def last_words(root: Path) -> str:
    """Why a program has ended: the last of its lines that is an error, or its last one."""
    lines = (root / "log").read_text(errors="replace").splitlines()
    errors = [
        line for line in lines if line.startswith(("F", "E", "??? F", "panic: ")) or "level=ERROR" in line
    ]
    return (errors or lines or ["without a word"])[-1]
