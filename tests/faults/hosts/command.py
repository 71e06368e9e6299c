"""The real command line, while it is at work."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

from installer.model.names import Mode
from tests.host.command import PROGRAM
from tests.host.mortal import STARTED, DieSoon, temporary_directory
from tests.host.node import Node


def start_command(node: Node, mode: Mode) -> subprocess.Popen[str]:
    """The real command line, which tells all that happens as JSON lines."""
    verb = "install" if mode is Mode.INSTALL else "remove"
    return subprocess.Popen(
        [str(PROGRAM), *node.command.globals(), "--output", "json", verb],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={"TMPDIR": str(temporary_directory(node.scratch)), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
    )


def until_due(process: subprocess.Popen[str], soon: DieSoon) -> Iterator[str]:
    """What the command says until the step from which the seconds count, or until its end."""
    assert process.stdout is not None
    if soon.is_due(STARTED.kind):
        return
    while line := process.stdout.readline():
        yield line
        if line.startswith("{") and soon.is_due(json.loads(line)["kind"]):
            return
