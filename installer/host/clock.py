"""Time, and requests to stop.

A signal only sets a flag. It takes effect between two steps and while sleeping, never inside a step. A second
signal of the same kind has its default effect at once.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable

from installer.errors import InterruptedRunError

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class _StopRequest:
    """The first signal received, and a pipe that is readable from then on. One per process."""

    def __init__(self) -> None:
        self.number = 0
        self.pipe: tuple[int, int] | None = None

    def listen(self) -> None:
        if self.pipe is None:
            self.pipe = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as with nohup(1)
                signal.signal(number, self._receive)

    def _receive(self, number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        self.number = self.number or number
        if self.pipe is not None:
            os.write(self.pipe[1], b"!")


_stop = _StopRequest()


def install_signal_handlers() -> None:
    """From now on SIGTERM, SIGINT and SIGHUP make `check` and `sleep` raise, unless they are ignored. Main
    thread only."""
    _stop.listen()


def ignore_suspension() -> None:
    """From now on Ctrl-Z does nothing: a stopped run would keep the host's lock, and with it the daemon from
    a rescue. Main thread only."""
    signal.signal(signal.SIGTSTP, signal.SIG_IGN)


def since_boot() -> float:
    """Seconds on a clock that nobody can set, for what does not survive a reboot either."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SystemClock:
    """The Clock port. Calls `on_wait` before it sleeps, so that the reason can be shown."""

    def __init__(self, on_wait: Callable[[], None] = lambda: None) -> None:
        self._on_wait = on_wait

    def now(self) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep_through(self, seconds: float) -> None:
        self._on_wait()
        time.sleep(max(0.0, seconds))

    def sleep(self, seconds: float) -> None:
        self._on_wait()
        self.check()
        if _stop.pipe is None:
            time.sleep(max(0.0, seconds))
        else:
            poll = select.poll()
            poll.register(_stop.pipe[0], select.POLLIN)
            poll.poll(max(0.0, seconds) * 1000)
        self.check()

    def check(self) -> None:
        if _stop.number:
            raise InterruptedRunError(_stop.number)
