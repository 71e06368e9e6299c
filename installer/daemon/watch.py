"""The main loop of GLib: files, signals, timers and children, whichever comes first.

It says that something happened, never what: the callback looks again. One function gets whatever a callback
raises, and the loop keeps running; PyGObject would print the error and drop the timer or watch.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from gi.repository import Gio, GLib

from installer.errors import UnservableHostError, is_shortage
from installer.host.chase import resolved
from installer.host.command import start
from installer.model.daemon import Job

_P = ParamSpec("_P")
_T = TypeVar("_T")

NO_WATCH_LEFT = (
    "the kernel has no inotify watch left: changed files and pause files are noticed late, by some seconds",
    "raise fs.inotify.max_user_instances or fs.inotify.max_user_watches with sysctl",
)
"""What is wrong if `EventLoop.sees` is false, and what helps."""

_CHUNK = 65536
_LAST_CHUNKS = 16  # a pipe holds 1 MiB at most (pipe(7)), unless another process writes on
_REAP_SECONDS = 5.0  # what a killed process may take to disappear
_RATE_MILLISECONDS = 50  # between two calls for a file that is written all the time


@dataclass(frozen=True, slots=True)
class WatchSpec:
    """A directory below a root, and the names in it that matter; no names: all."""

    root: Path
    directory: str
    names: frozenset[str] = frozenset()


Watched = Mapping[tuple[str, int, int], frozenset[str]]
"""Directories by their path, device and inode, and the names in each that matter; none: all."""


def find_directories(specs: Iterable[WatchSpec]) -> Watched:
    """Return those that exist. This may hang as long as a mount does. A link that replaces one afterwards may
    lead the monitor out of the root: that costs a needless call, because its path is never used. Raises
    OSError where descriptors or memory are used up: nothing says then which directories exist."""
    found: dict[tuple[str, int, int], frozenset[str]] = {}
    for spec in specs:
        try:
            path, status = resolved(spec.root, spec.directory)
        except (OSError, UnservableHostError) as error:
            if is_shortage(error):
                raise
            continue
        if stat.S_ISDIR(status.st_mode):
            key = (path, status.st_dev, status.st_ino)
            before = found.get(key, spec.names)
            found[key] = before | spec.names if before and spec.names else frozenset()
    return found


class _Clock(GLib.Source):  # type: ignore[misc]
    """Rings at its ready time. All timers share it: of each new source, PyGObject loses 112 bytes for ever,
    which would be 2 MB a day at rest."""

    def __init__(self, ring: Callable[[], None]) -> None:
        super().__init__()
        self._ring = ring

    def prepare(self) -> tuple[bool, int]:
        return False, -1

    def check(self) -> bool:
        return False

    def dispatch(self, *_: object) -> bool:
        with contextlib.suppress(Exception):  # PyGObject removes a source that raises: all timers would go
            self._ring()
        return True


class EventLoop:
    """The default main loop. It calls everything from inside `run`, one thing at a time, and `failed` with
    whatever a callback has raised."""

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        self._loop = GLib.MainLoop()
        self._failed = failed
        self._monitors: dict[tuple[str, int, int], Any] = {}
        self._names: Watched = {}
        self._sees = False  # counted since the last `watch`
        self._timers: dict[int, tuple[int, Callable[[], None]]] = {}  # when each is due
        self._timer_number = 0
        self._clock: Any = None  # exists while the loop runs
        self._winds = threading.RLock()  # a timer that another thread sets must not be overlooked

    def run(self) -> None:
        clock = _Clock(self._ring)
        clock.attach(None)
        with self._winds:
            self._clock = clock
            self._wind()
        try:
            self._loop.run()
        finally:
            with self._winds:
                self._clock = None
            clock.destroy()

    def quit(self) -> None:
        self._loop.quit()

    def guarded(self, call: Callable[_P, _T], otherwise: _T) -> Callable[_P, _T]:
        """Return `call`, which now returns `otherwise` instead of raising."""

        def run(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            try:
                return call(*args, **kwargs)
            except Exception as error:
                self._failed(error)
                return otherwise

        return run

    def after(self, seconds: float, call: Callable[[], None]) -> int:
        """Call once from the main loop, in `seconds`; any thread may ask. Return a timer for `cancel`: no
        other one will have its number."""
        due = GLib.get_monotonic_time() + round(seconds * 1e6)
        with self._winds:
            self._timer_number = number = self._timer_number + 1
            self._timers[number] = (due, self.guarded(call, None))
            self._wind()
        return number

    def cancel(self, timer: int) -> None:
        """Does nothing for one that has called already, and for 0, which is none."""
        self._timers.pop(timer, None)

    def _wind(self) -> None:
        """Set the clock to the next timer. The caller holds `_winds`."""
        if self._clock is not None:
            timers = list(self._timers.values())
            self._clock.set_ready_time(min((due for due, _ in timers), default=-1))

    def _ring(self) -> None:
        now = GLib.get_monotonic_time()
        timers = list(self._timers.items())
        for _, number in sorted((due, number) for number, (due, _) in timers if due <= now):
            if number in self._timers:  # else another one has just cancelled it
                self._timers.pop(number)[1]()
        with self._winds:
            self._wind()

    def beside(self, work: Callable[[], _T], then: Callable[[_T], None]) -> None:
        """Call `work`, which may take long and raises nothing, in a thread; and then, from the main loop,
        `then` with what it returned. Raises RuntimeError if no thread can be started."""
        threading.Thread(target=lambda: self.after(0.0, partial(then, work())), daemon=True).start()

    def while_readable(self, descriptor: int, call: Callable[[], None]) -> Callable[[], None]:
        """Call as long as there is something to read. Return what ends that."""
        guarded = self.guarded(call, None)
        source = GLib.io_add_watch(
            descriptor, GLib.PRIORITY_DEFAULT, GLib.IO_IN, lambda *_: guarded() is None
        )
        return lambda: GLib.source_remove(source)

    def on_signal(self, number: int, call: Callable[[], None]) -> None:
        """Call soon after the signal, once for all that have come by then. GLib takes signals in the thread
        that reads inotify. That thread hangs when a watched directory is gone and a mount in its place does
        not answer."""
        came = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

        def take() -> None:
            os.eventfd_read(came)
            call()

        self.while_readable(came, take)
        signal.signal(number, lambda *_: os.eventfd_write(came, 1))

    def start(self, job: Job) -> Child:
        """Raises OSError."""
        return Child(self, job)

    def watch(self, found: Watched, changed: Callable[[], None]) -> bool:
        """Watch exactly these from now on. Return whether one of them was not watched before. A directory
        that was moved away or replaced is watched again once it is found again."""
        # Before a new monitor for the same path: GIO keeps one watch for each path.
        for key in self._monitors.keys() - found.keys():
            self._monitors.pop(key).cancel()
        self._names = found
        new = found.keys() - self._monitors.keys()
        for key in new:
            with contextlib.suppress(GLib.Error):  # the kernel has no watch left: the next call tries again
                self._monitors[key] = self._monitor(key, changed)
        self._sees = self._is_watched()
        return bool(new)

    @property
    def sees(self) -> bool:
        """Whether each watched directory had a watch of the kernel's when it was last found. GIO does not say
        when there is none left (`fs.inotify.max_user_watches`). They are counted once after each `watch`,
        which costs half a millisecond: a directory that goes takes its watch along, and reports that, and may
        be back at once with the same inode (a mount, or a file system that uses it again). None of them is
        looked at: it may be on a mount that hangs."""
        self._sees = self._sees or self._is_watched()
        return self._sees

    def _is_watched(self) -> bool:
        return _kernel_watches() >= len({key[1:] for key in self._names})

    def _monitor(self, key: tuple[str, int, int], changed: Callable[[], None]) -> Any:
        def on_event(_monitor: Any, file: Any, *_: object) -> None:
            names = self._names.get(key)
            if names is not None and (not names or file.get_basename() in names or file.get_path() == key[0]):
                changed()

        monitor = Gio.File.new_for_path(key[0]).monitor_directory(Gio.FileMonitorFlags.NONE, None)
        monitor.set_rate_limit(_RATE_MILLISECONDS)
        monitor.connect("changed", self.guarded(on_event, None))
        return monitor


def _kernel_watches() -> int:
    """Return how many this process has: a line each (proc(5), /proc/PID/fdinfo). -1 if that is unknown, for
    lack of descriptors."""
    count = 0
    try:
        descriptors = list(Path("/proc/self/fdinfo").iterdir())
    except OSError:
        return -1
    for found in descriptors:
        with contextlib.suppress(OSError):  # the descriptor of this iteration is closed by now
            count += found.read_bytes().count(b"\ninotify wd:")
    return count


class Bounded:
    """A job that runs beside the loop and has to end. What even SIGKILL does not end, because its system call
    hangs, counts as ended with 137."""

    outlives_us = False  # it would continue if this process ended

    def __init__(self, loop: EventLoop, job: Job) -> None:
        self.overdue = self.stopping = False  # overdue: it got its SIGTERM for the deadline
        self._loop, self._grace = loop, job.grace
        self._on_line, self._on_end = loop.guarded(job.on_line, None), loop.guarded(job.on_end, None)
        self._has_ended = False
        self._timer = loop.after(job.deadline, self._deadline_passed)

    def _send(self, number: int) -> None:
        """Send the signal to the program, SIGKILL also to all that it has started."""
        raise NotImplementedError

    def read(self) -> None:
        """Take the lines that it has written by now."""
        raise NotImplementedError

    def _release(self) -> None:
        """Read the last lines, and release what belongs to it."""
        raise NotImplementedError

    def _end(self, code: int) -> None:
        """It has ended with this code, -n after signal n. Only the first call counts."""
        if self._has_ended:
            return
        self._has_ended = True
        self._loop.cancel(self._timer)
        self._release()
        self._on_end(code if code >= 0 else 128 - code)

    def stop(self, grace: float = 0.0) -> None:
        """Send SIGTERM, and SIGKILL after `grace` seconds (0: its own grace). Further calls do nothing: a
        second SIGTERM would end an installation in the middle of a step. SIGCONT lets a stopped process end
        by itself."""
        if self.stopping or self._has_ended:
            return
        self.stopping = True
        self._send(signal.SIGTERM)
        self._send(signal.SIGCONT)
        self._set_timer(grace or self._grace, self._kill)

    def kill(self) -> None:
        """SIGKILL, at once."""
        if not self._has_ended:
            self.stopping = True
            self._kill()

    def _deadline_passed(self) -> None:
        self.overdue = True
        self.stop()

    def _kill(self) -> None:
        self._send(signal.SIGKILL)
        self._set_timer(_REAP_SECONDS, lambda: self._end(-signal.SIGKILL))

    def _set_timer(self, seconds: float, call: Callable[[], None]) -> None:
        self._loop.cancel(self._timer)
        self._timer = self._loop.after(seconds, call)


class Child(Bounded):
    """A process that runs beside the loop, in a session of its own. One that counts as ended is reaped later.
    Raises OSError if it cannot be started."""

    def __init__(self, loop: EventLoop, job: Job) -> None:
        self._rest = b""
        self._process: Any = start(job.argv)
        super().__init__(loop, job)
        self._descriptor = self._process.stdout.fileno()
        os.set_blocking(self._descriptor, False)
        self._output = GLib.io_add_watch(
            self._descriptor, GLib.PRIORITY_DEFAULT, GLib.IO_IN | GLib.IO_HUP, self._readable
        )
        GLib.child_watch_add(GLib.PRIORITY_DEFAULT, self._process.pid, self._reaped)

    @property
    def is_gone(self) -> bool:
        return self._process.returncode is not None

    def _send(self, number: int) -> None:
        if not self.is_gone:
            with contextlib.suppress(ProcessLookupError):
                (os.killpg if number == signal.SIGKILL else os.kill)(self._process.pid, number)

    def _readable(self, *_: object) -> bool:
        if self._read() is not None:
            return True
        self._output = 0  # returning False removes the source
        return False

    def _read(self) -> bool | None:
        """Read one chunk of output. Return whether there was one, None at its end."""
        try:
            chunk = os.read(self._descriptor, _CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            return None
        if not chunk:
            return None
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            self._on_line(line.decode("utf-8", "replace"))
        return True

    def read(self) -> None:
        for _ in range(_LAST_CHUNKS):
            if not self._read():
                break

    def _reaped(self, _pid: int, status: int) -> None:
        self._process.returncode = os.waitstatus_to_exitcode(status)
        self._end(self._process.returncode)

    def _release(self) -> None:
        """Processes that it has started may hold the pipe open: what can be read now is all that counts."""
        self.read()
        output, self._output = self._output, 0
        if output:
            GLib.source_remove(output)
        self._process.stdout.close()
        if self._rest:
            self._on_line(self._rest.decode("utf-8", "replace"))
