"""How the daemon starts a pass: as a service of systemd's where that can be, else as its child.

A restarted kubelet admits its pods again, and ends one that no longer belongs on the node: together with its
children, half-way through what had restarted kubelet. A service outlives the pod. It works in the pod's own
file system, which the host's nsenter enters, and which lives as long as a process is in it
(mount_namespaces(7)).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from installer.daemon.decision import Action, Order
from installer.daemon.pass_log import PassLogReader, begin_pass_log
from installer.daemon.transient import UNIT_EXISTS, TransientService
from installer.daemon.unit_run import UnitRun
from installer.daemon.watch import EventLoop
from installer.errors import BusyHostError, InstallerError, SystemdError
from installer.host.ports import Files
from installer.host.run import ENVIRONMENT
from installer.model.jsontext import to_json
from installer.model.paths import PASS_UNIT

_MAY_RESTART_KUBELET = (Action.INSTALL, Action.REMOVE, Action.RESCUE, Action.HOLD)
_NSENTER = ("/usr/bin/nsenter", "/bin/nsenter")
_SLACK = 30.0  # seconds after which systemd ends what we should have ended
_BUSY = f"another pass is at work in {PASS_UNIT}"

Say = Callable[[str, str], None]
"""(message, hint): a warning that is not repeated for a while."""


class Begun(Protocol):
    """A pass that has begun. See Bounded."""

    overdue: bool
    stopping: bool

    @property
    def outlives_us(self) -> bool: ...

    def stop(self, grace: float = 0.0) -> None: ...


@dataclass(frozen=True, slots=True)
class Pass:
    """One that is to begin. `argv` is what the order follows. `bounds`: its deadline and its grace, in
    seconds."""

    order: Order
    argv: tuple[str, ...]
    on_line: Callable[[str], None]
    on_end: Callable[[int], None]
    bounds: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A pass that an earlier daemon has begun."""

    action: Action
    log: PassLogReader


class PassStarter:
    """Of one host. Decides once how passes are started, and tells `say` why not as a service."""

    def __init__(self, loop: EventLoop, files: Files, service: TransientService, say: Say) -> None:
        self._loop, self._files, self._service, self._say = loop, files, service, say
        self._nsenter = self._find_nsenter()

    def _find_nsenter(self) -> str:
        """The host's nsenter; empty where passes are children: on the host itself, on a host that is seen
        from outside, and where something is missing, with a warning."""
        try:
            with self._files.opened("/proc") as proc:
                ours = os.readlink("/proc/self/ns/mnt")
                if os.readlink(proc / "1/ns/mnt") == ours or _mount_namespace(proc, os.getpid()) != ours:
                    return ""
        except FileNotFoundError:
            return ""
        except (InstallerError, OSError) as error:
            self._not_outside(f"the mount namespaces of the host cannot be compared: {error}")
            return ""
        found = [path for path in _NSENTER if self._files.status(path, follow=True) is not None]
        if not found:
            self._not_outside(f"the host has no nsenter ({', '.join(_NSENTER)})")
        return next(iter(found), "")

    def _not_outside(self, why: str) -> None:
        hint = "if kubelet stops this pod in the middle of a pass, the next pod finishes it"
        self._say(f"passes run inside this pod: {why}", hint)

    def start(self, given: Pass) -> Begun:
        """Raises OSError where nothing can be started, and BusyHostError while a pass is at work that another
        daemon has started."""
        if given.order.action in _MAY_RESTART_KUBELET and self._nsenter:
            try:
                return self._start_unit(given)
            except BusyHostError:
                raise
            except (InstallerError, OSError) as error:
                if isinstance(error, SystemdError) and error.name == UNIT_EXISTS:
                    raise BusyHostError(_BUSY) from error
                self._not_outside(str(error))
        argv = (*given.argv, to_json(given.order))
        return self._loop.start(argv, given.on_line, given.on_end, *given.bounds)

    def _start_unit(self, given: Pass) -> Begun:
        if self._service.exit_code() is None:  # whose log is not to be replaced
            raise BusyHostError(_BUSY)
        action, why = given.order.action.value, given.order.why
        log = begin_pass_log(self._files, action, why)
        try:
            # People read the journal, as text; the daemon reads the log, as JSON.
            entered = (self._nsenter, f"--mount=/proc/{os.getpid()}/ns/mnt", "--", *given.argv)
            words = (*entered, "--output=text", "--log", to_json(given.order))
            description = f"CRI-Resource-Manager installer: {action} ({why})"
            self._service.start(words, description, ENVIRONMENT, sum(given.bounds) + _SLACK)
        except BaseException:
            log.forget()
            raise
        heard = list[str]()

        def hear(line: str) -> None:
            heard[:] = [line]
            given.on_line(line)

        def end(code: int) -> None:
            if 0 < code < 128 and not heard:
                self._nsenter = ""
                self._not_outside(f"{PASS_UNIT} could not start the program; `journalctl -u {PASS_UNIT}`")
            given.on_end(code)

        return UnitRun(self._loop, self._service, log, hear, end, *given.bounds)

    # -- what an earlier daemon has begun ---------------------------------------------------

    def unfinished(self) -> Unfinished | None:
        """What an earlier daemon has begun and not accounted for; it may have ended since."""
        if not self._nsenter:
            return None
        log, at_work = PassLogReader(self._files), False
        with contextlib.suppress(InstallerError, OSError):
            at_work = self._service.attach()
        if not at_work and not log.has_lines:
            log.forget()
            return None
        # A removal takes its log along. Only its deadline stops one, which is right for what is unknown.
        action = Action(log.action) if log.action in _MAY_RESTART_KUBELET else Action.REMOVE
        return Unfinished(action, log)

    def follow(
        self,
        found: Unfinished,
        on_line: Callable[[str], None],
        on_end: Callable[[int], None],
        bounds: tuple[float, float],
    ) -> Begun:
        """As if it had begun now."""
        return UnitRun(self._loop, self._service, found.log, on_line, on_end, *bounds)


def _mount_namespace(proc: Path, pid: int) -> str:
    """Empty where the host has no such process: its numbers are not ours."""
    try:
        return os.readlink(proc / f"{pid}/ns/mnt")
    except FileNotFoundError:
        return ""
