"""A machine that is busy with something else."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

WITHOUT_REST = "while True: pass"


@contextmanager
def busy(count: int, code: str = WITHOUT_REST) -> Iterator[None]:
    """This many processes run this Python code meanwhile."""
    processes = [subprocess.Popen((sys.executable, "-c", code)) for _each in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()
