"""The daemon's picture of its host: taken in a thread, so that a read that hangs delays nothing else.

There is one thread at most. If it is overdue, that is reported, and no other begins before it has ended: a
broken disk does not pile up threads.
"""

from __future__ import annotations

import posixpath
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from installer.daemon.configuration import Command, Configuration, build_configuration
from installer.daemon.watch import EventLoop, Watched
from installer.errors import InstallerError, InvalidInputError, unforeseen
from installer.host.ports import Host
from installer.inputs.load import Request
from installer.inputs.settings import load_settings
from installer.model.event import Event
from installer.model.host import HostSnapshot, last_flag
from installer.model.names import Mode
from installer.model.paths import OUR_RUNTIME, OUR_STATE
from installer.model.result import BEGUN
from installer.node.picture import Picture, take_picture
from installer.node.preconditions import emit_warnings
from installer.node.reconcile import warn_of_health
from installer.report.events import error_event
from installer.report.planned import summarise_plan

_DEADLINE = 20.0  # seconds; a picture takes 0.1, and 4 on a host whose relay is silent
_MOST_DROPPED = 2  # pictures in a row, because something changed while they were taken


@dataclass(frozen=True, slots=True)
class Assessed:
    """What an assessment has found. `places`: the files that the picture rests on; directories among them end
    with a slash. `watched`: the directories to watch for it."""

    picture: Picture
    configuration: Configuration | None = None  # of the settings; None: they are invalid
    places: tuple[str, ...] | None = None  # None: as before
    watched: Watched | None = None  # None: as before
    warnings: tuple[Event, ...] = ()


class Engine:
    """Reads settings and host. The host is one of its own: the main loop has another connection to the
    bus."""

    def __init__(self, command: Command, host: Host) -> None:
        self._command, self._host = command, host

    def configure(self) -> Configuration:
        """Raises InvalidInputError with the faults of the settings."""
        return build_configuration(load_settings(self._command.config))

    def assess(self, mode: Mode | None) -> Assessed:
        """Take a picture for this mode, by default that of the settings. These count though it fails."""
        try:
            settings = load_settings(self._command.config)
        except InvalidInputError as error:
            return failed(error)
        configuration = build_configuration(settings)
        request = self._command.request(settings, mode or configuration.mode)
        return replace(attempted(lambda: self._assess(request)), configuration=configuration)

    def _assess(self, request: Request) -> Assessed:
        picture, found = take_picture(request, self._host)
        if found is None:
            return Assessed(picture)
        if found.plan.steps:
            picture = replace(picture, pending=summarise_plan(found.plan))
        warnings = list[Event]()
        emit_warnings(found.plan.warnings, warnings.append)
        warn_of_health(found, found.snapshot, warnings.append)
        places = tuple(sorted(_places(found.snapshot)))
        return Assessed(picture, places=places, warnings=tuple(warnings))


def _places(snapshot: HostSnapshot) -> Iterator[str]:
    """Our files, kubelet's unit files and drop-ins, its environment files and configuration."""
    base, process = snapshot.base, snapshot.kubelet.process
    argv = process.argv if process else ()
    directory = last_flag(argv, "--config-dir") or ""
    texts = (base.texts, base.config_dir or (), *base.environment_files.values())
    found = {*snapshot.files, last_flag(argv, "--config") or "", f"{directory.rstrip('/')}/"}
    found |= {text.path for each in texts for text in each}
    found |= {
        f"{posixpath.dirname(path)}/" if set("*?[") & set(path) else path for path in base.environment_files
    }
    for path in found:
        if path.startswith("/") and path != "/" and not path.startswith((f"{OUR_STATE}/", f"{OUR_RUNTIME}/")):
            yield path


class Assessor:
    """Calls `found` in the main loop for each `ask`; once for all that came while it was busy."""

    def __init__(
        self, loop: EventLoop, assess: Callable[[], Assessed], found: Callable[[Assessed], None]
    ) -> None:
        self._loop, self._assess, self._found = loop, assess, loop.guarded(found, None)
        self._asked = self._is_at_work = False
        self._timer = self._alarm = 0
        self._next_at = 0.0
        self._dropped = 0  # in a row

    @property
    def is_busy(self) -> bool:
        return self._is_at_work or self._timer != 0

    def ask(self, *, anew: bool = False) -> None:
        """Something may have changed. `anew`: what was seen until now does not count at all."""
        if self._is_at_work:
            self._asked = True
            if anew:
                self._dropped = 0
        elif not self._timer:
            self._timer = self._loop.after(max(0.0, self._next_at - time.monotonic()), self._begin)

    def _begin(self) -> None:
        self._timer = 0
        self._asked = False
        try:
            self._loop.beside(self._work, lambda found: self._came(*found))
        except RuntimeError as error:  # no thread can be started
            self._next_at = time.monotonic() + 1.0
            self._tell(f"the host cannot be assessed: {error}")
            return
        self._is_at_work = True
        self._alarm = self._loop.after(_DEADLINE, self._overdue)

    def _work(self) -> tuple[Assessed, float]:
        began = time.thread_time()  # CPU time, which does not grow with the load of the machine
        return attempted(self._assess), time.thread_time() - began

    def _came(self, assessed: Assessed, cost: float) -> None:
        self._is_at_work = False
        self._loop.cancel(self._alarm)
        # What has changed meanwhile may be seen half. Changes that never stop are not waited for.
        is_old = self._asked and self._dropped < _MOST_DROPPED
        self._dropped = self._dropped + 1 if is_old else 0
        self._next_at = time.monotonic() + (0.0 if is_old else rest_after(cost))
        if self._asked:
            self.ask()
            assessed = replace(assessed, picture=replace(assessed.picture, overtaken=True))
        if not is_old:
            self._found(assessed)

    def _overdue(self) -> None:
        """Reported again and again, because nobody takes the report while a child is at work."""
        self._alarm = self._loop.after(_DEADLINE, self._overdue)
        self._tell(f"the host could not be assessed within {_DEADLINE:.0f} s: a disk or a mount may hang")

    def _tell(self, why: str) -> None:
        self._found(failed(InstallerError(why)))


def rest_after(cost: float) -> float:
    """Return the seconds until the next picture, or the next look after a change: eight times the CPU time
    that the last one took, but at most four seconds."""
    return 8.0 * min(cost, 0.5)


def attempted(assess: Callable[[], Assessed]) -> Assessed:
    """Return what `assess` returns, or that it has failed."""
    try:
        return assess()
    except Exception as raised:
        return failed(raised if isinstance(raised, InstallerError) else unforeseen(raised))


def failed(error: InstallerError) -> Assessed:
    """Return why there is no picture, in the form of one."""
    ended = BEGUN.failed(error)
    why, told = ended.reason, error_event(error)
    return Assessed(Picture(code=ended.code, reason=why, inputs=why, installed=None, error=told))
