"""The one door for starting processes: a deadline, no stdin, a small fixed environment.

No shell, and nothing stays behind: the process group dies with the call.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shlex
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OURSELVES = (sys.executable, "-P", f"{_PACKAGE}/cli/__main__.py")
KEPT_BYTES = 1 << 18
_REAP_SECONDS = 5.0  # what a killed process may take to disappear: its system call may hang


@dataclass(frozen=True, slots=True)
class Finished:
    """How a process ended."""

    argv: tuple[str, ...]
    code: int | None  # None: killed at its deadline, or because of `seen`; 127: it could not be started
    output: str  # or why it could not be started
    seen: bool = False  # the output contained what the caller waited for
    errno: int = 0  # why it could not be started

    @property
    def lines(self) -> tuple[str, ...]:
        return tuple(self.output.splitlines())

    @property
    def failure(self) -> str:
        """One line: the command as typed in a shell, how it ended, its last line."""
        how = "did not end in time" if self.code is None else describe_exit(self.code)
        last = next((line.strip() for line in reversed(self.lines) if line.strip()), "")
        return f"`{shlex.join(self.argv)}`: {how}" + (f": {last}" if last else "")


def describe_exit(code: int) -> str:
    """For people: how a process ended with this code (-n or 128 + n after signal n)."""
    number = -code if code < 0 else code - 128
    if not 0 < number < signal.NSIG:
        return f"exit code {code}"
    if number == signal.SIGKILL:
        return "killed by signal 9 (out of memory?)"
    return f"ended by signal {number}"


def start(argv: Sequence[str], environment: Mapping[str, str] = ENVIRONMENT) -> Any:
    """Start `argv` in a session of its own and return the Popen at once. Standard output and error share one
    pipe. The caller ends it. Raises OSError."""
    import subprocess

    return subprocess.Popen(
        tuple(argv),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=dict(environment),
        cwd="/",
        start_new_session=True,
    )


def run(
    argv: Sequence[str],
    timeout: float,
    until: str = "",
    more: Mapping[str, str] = MappingProxyType({}),
    keep: int = KEPT_BYTES,
) -> Finished:
    """Run `argv` for at most `timeout` seconds. Kill it as soon as `until` appears in its output (standard
    output and error together; the last `keep` bytes). `more` is added to its environment."""
    try:
        process = start(argv, {**ENVIRONMENT, **more})
    except OSError as error:
        return Finished(tuple(argv), 127, f"{error.strerror or error}", errno=error.errno or 0)
    try:
        output, ended = _follow(process, time.monotonic() + timeout, until.encode(), keep)
    finally:
        code = process.poll()
        # Kill its children as well: a left-over child would hold the pipe open.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        _ended(process, time.monotonic() + _REAP_SECONDS)
        process.stdout.close()
    seen = bool(until) and until.encode() in output
    return Finished(
        tuple(argv), code if ended and not seen else None, output[-keep:].decode("utf-8", "replace"), seen
    )


def _follow(process: Any, deadline: float, until: bytes, keep: int) -> tuple[bytearray, bool]:
    """Read until the process has ended, the deadline passes or `until` appears: (output, ended)."""
    output = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                return output, False
            if not selector.select(min(left, 0.1)):
                if process.poll() is None:
                    continue
                if not selector.select(0):  # all of its output is read: a child of it still holds the pipe
                    return output, True
            chunk = os.read(process.stdout.fileno(), 65536)
            output += chunk
            if len(output) > 2 * keep:  # not each time: it copies what is kept
                del output[:-keep]
            if until and until in output:
                return output, False
            if not chunk:
                return output, _ended(process, deadline)


def _ended(process: Any, deadline: float) -> bool:
    import subprocess

    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return False
    return True
