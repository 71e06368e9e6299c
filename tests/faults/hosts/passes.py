"""One converging pass in a process of its own, on a hasty clock, which may die at a chosen effect.

Not in the test's own process: a pass that dies takes its process along, and a bus connection outlives
neither a fork nor the host.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from installer.errors import InstallerError
from installer.host.clock import SystemClock
from installer.host.ports import Clock, Host
from installer.host.real import build_host
from installer.model.event import Event
from installer.model.state import Mode
from installer.reconcile import Request, look, reconcile
from installer.settings import load_settings

_ON_FILES = ("rename", "unlink", "mkdir", "rmdir", "symlink")
_ON_UNITS = ("daemon_reload", "enable", "disable", "restart", "stop", "kill", "reset_failed")
_SECONDS = 90.0  # more than any pass may take
_FASTER = 4.0


class _HastyClock:
    """A clock on which time passes faster: what only waits out a settle time is over sooner."""

    def __init__(self) -> None:
        self._clock: Clock = SystemClock()
        self.now = self._clock.now
        self.check = self._clock.check

    def monotonic(self) -> float:
        return self._clock.monotonic() * _FASTER

    def sleep(self, seconds: float) -> None:
        self._clock.sleep(seconds / _FASTER)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a pass ended: `changed`, `nothing`, `killed`, or the error's class; and what it said."""

    how: str
    said: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Pass:
    """One run with these inputs. It dies before its effect number `die_before`, if it comes to that.
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
        host = replace(build_host(self.root), clock=_HastyClock())
        if self.die_before:
            _Effects(self.die_before).arm(host)
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


class _Effects:
    """Counts what changes the host; the last one does not take place."""

    def __init__(self, last: int) -> None:
        self._left = last

    def arm(self, host: Host) -> None:
        """Every effect of this process is counted: only for a process that is made for it."""
        tempfile.gettempdir()  # tries the directory out, once: a file that a kill in between would leave
        for name in _ON_FILES:
            setattr(os, name, self._before(getattr(os, name)))
        for name in _ON_UNITS:
            setattr(host.systemd, name, self._before(getattr(host.systemd, name)))

    def _before(self, effect: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return effect(*args, **kwargs)

        return counted


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
