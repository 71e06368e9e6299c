"""A pass that systemd runs as a service of its own, seen from the daemon: the same as a child process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from installer.daemon.pass_log import PassLogReader
from installer.daemon.transient import TransientService
from installer.daemon.watch import Bounded, EventLoop
from installer.errors import InstallerError

_READ_SECONDS = 0.05  # between two looks into the log, while a pass is at work
_LOOKS = 40  # of them until systemd is asked, should its signal be lost with the bus daemon


class UnitRun(Bounded):
    """`service` is at work, or has ended before anybody has asked; `on_line` gets each line of `log`,
    `on_end` the exit code when it has ended and all is read. The log is forgotten when that has returned."""

    outlives_us = True

    def __init__(
        self,
        loop: EventLoop,
        service: TransientService,
        log: PassLogReader,
        on_line: Callable[[str], None],
        on_end: Callable[[int], None],
        deadline: float,
        grace: float,
    ) -> None:
        super().__init__(loop, deadline, grace)
        self._service, self._log = service, log
        self._on_line, self._on_end = loop.guarded(on_line, None), loop.guarded(on_end, None)
        self._looks = 0
        self._unwatch: Callable[[], None] = lambda: None
        with contextlib.suppress(InstallerError, OSError):
            self._unwatch = service.watch(loop.guarded(self._check, None))
        self._tick = loop.after(_READ_SECONDS, self._look)

    def _send(self, number: int) -> None:
        with contextlib.suppress(InstallerError, OSError):  # it has ended, or the next signal comes later
            self._service.kill(number)

    def _look(self) -> None:
        self._tick = self._loop.after(_READ_SECONDS, self._look)
        self._read()
        if self._looks % _LOOKS == 0:
            self._check()
        self._looks += 1

    def _read(self) -> None:
        for line in self._log.lines():
            self._on_line(line)

    def _check(self) -> None:
        if self._told:
            return
        with contextlib.suppress(InstallerError, OSError):  # asked again soon
            code = self._service.exit_code()
            if code is not None:
                self._tell(code)

    def _tell(self, code: int) -> None:
        if self._told:
            return
        self._told = True
        self._read()
        self._cancel_timer()
        tick, self._tick = self._tick, 0
        if tick:
            self._loop.cancel(tick)
        self._unwatch()
        self._service.release()
        # Before it is deleted: a daemon that is killed meanwhile rather counts a restart twice than never.
        self._on_end(code if code >= 0 else 128 - code)
        self._log.forget()
