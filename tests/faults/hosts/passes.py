"""One converging pass in a process of its own, on a hasty clock, which may die at a chosen effect.

Not in the test's own process: a pass that dies takes its process along, and a bus connection outlives
neither a fork nor the host.
"""

from __future__ import annotations

import multiprocessing
import signal
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from installer.errors import InstallerError
from installer.model.event import Event
from installer.model.state import Mode
from installer.reconcile import Request, look, reconcile
from installer.settings import load_settings
from tests.host.mortal import Effects, Instant, build_mortal_host

_SECONDS = 90.0  # more than any pass may take


@dataclass(frozen=True, slots=True)
class Ended:
    """How a pass ended: `changed`, `nothing`, `killed`, or the error's class; and what it said."""

    how: str
    said: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Pass:
    """One run with these inputs. It dies before its effect number `die_before` (0: never).
    With `only_look` it ends as it would, `changed` or `nothing`, without doing it."""

    root: Path
    config: Path
    payload: Path
    configs: Path
    mode: Mode
    die_before: int = 0
    only_look: bool = False

    def __call__(self, answer: Connection) -> None:
        said: list[str] = []

        def hear(event: Event) -> None:
            said.append(event.message)

        request = Request(self.mode, load_settings(self.config), self.payload, self.configs)
        host = build_mortal_host(self.root, Effects(Instant(self.die_before)))
        try:
            if self.only_look:
                changed = bool(look(request, host).plan.steps)
            else:
                changed = reconcile(request, host, hear).changed
            how = "changed" if changed else "nothing"
        except InstallerError as error:
            how = type(error).__name__
            said.append(f"{error.message} ({error.hint})")
        answer.send((how, said))


# Forks of a server that never had a bus connection. A fork imports the program's main module anew:
# what takes long in it, and in a pass, is there already.
_FORKS = multiprocessing.get_context("forkserver")
_LIBRARIES = ("pydantic", "jinja2", "yaml", "psutil", "grpc", "pytest", "hypothesis.stateful")
_FORKS.set_forkserver_preload([__name__, *_LIBRARIES])


def converge(run: Pass) -> Ended:
    """Runs it to its end. Raises TimeoutError when there is none."""
    receiver, sender = _FORKS.Pipe(duplex=False)
    process = _FORKS.Process(target=run, args=(sender,))
    process.start()
    sender.close()
    try:
        if not receiver.poll(_SECONDS):
            raise TimeoutError(f"a pass did not end within {_SECONDS} s")
        how, said = receiver.recv()
    except EOFError:
        how, said = "it said nothing", []
    finally:
        if process.is_alive():
            process.join(5)
        process.kill()
        process.join()
        receiver.close()
    return Ended("killed" if process.exitcode == -signal.SIGKILL and not said else how, tuple(said))
