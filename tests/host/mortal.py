"""Converges a host, once, and dies of SIGKILL after the n-th step. A process of its own, not a fork:
a bus connection of the test session would not live in one.

    python -m tests.host.mortal HOST_ROOT SETTINGS PAYLOAD CONFIGS MODE DIE_AFTER
"""

import os
import signal
import sys
from pathlib import Path

from installer.errors import InstallerError
from installer.host.real import build_host
from installer.model.event import Event
from installer.model.state import Mode
from installer.reconcile import Request, reconcile
from installer.settings import load_settings


def main(root: str, settings: str, payload: str, configs: str, mode: str, die_after: str) -> str:
    """`changed`, `nothing`, or the error; nothing at all if it has died."""
    done = 0

    def emit(event: Event) -> None:
        nonlocal done
        done += event.kind == "step.done"
        if event.kind == "step.done" and done == int(die_after):
            os.kill(os.getpid(), signal.SIGKILL)

    request = Request(Mode(mode), load_settings(Path(settings)), Path(payload), Path(configs))
    try:
        return "changed" if reconcile(request, build_host(Path(root)), emit).changed else "nothing"
    except InstallerError as error:
        return f"{type(error).__name__}: {error.message}"


if __name__ == "__main__":
    sys.stdout.write(main(*sys.argv[1:]))
