"""How the daemon starts a pass: as a service of systemd's if possible, else as its child.

A restarted kubelet admits its pods again, and kills one that no longer belongs on the node: together with its
children, in the middle of what had restarted kubelet. A service outlives the pod. It works in the pod's own
file system, which the host's nsenter enters, and which lives as long as a process is in it
(mount_namespaces(7)).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from installer.daemon.decision import Action, Order
from installer.daemon.pass_log import PassLogReader, begin_pass_log
from installer.daemon.transient import UNIT_EXISTS, TransientService
from installer.daemon.watch import Bounded, EventLoop
from installer.errors import BusyHostError, InstallerError, SystemdError
from installer.host.command import ENVIRONMENT
from installer.host.ports import Files
from installer.model.daemon import Job
from installer.model.jsontext import to_json
from installer.model.paths import PASS_UNIT

_MAY_RESTART_KUBELET = (Action.INSTALL, Action.REMOVE, Action.RESCUE, Action.HOLD)
_NSENTER = ("/usr/bin/nsenter", "/bin/nsenter")
_SLACK = 30.0  # seconds after which systemd ends what we should have ended
_BUSY = f"another pass is running in {PASS_UNIT}"
_READ_SECONDS = 0.05  # between two reads of the log while a pass is at work
_READS = 40  # of them until systemd is asked, in case its signal was lost with the bus daemon

Warn = Callable[[str, str], None]
"""(message, hint): a warning that is not repeated for a while."""


class PassService(Bounded):
    """A pass that systemd runs as a service, for the loop the same as a child. The service is at work, or has
    ended before this daemon came. The log is forgotten when `on_end` has returned: a daemon that is killed
    meanwhile may count a restart twice, but never misses one."""

    outlives_us = True

    def __init__(self, loop: EventLoop, service: TransientService, log: PassLogReader, job: Job) -> None:
        super().__init__(loop, job)
        self._service, self._log = service, log
        self._reads = 0
        self._unwatch: Callable[[], None] = lambda: None
        with contextlib.suppress(InstallerError, OSError):
            self._unwatch = service.watch(loop.guarded(self._check, None))
        self._tick = loop.after(_READ_SECONDS, self._read_on)

    def _send(self, number: int) -> None:
        with contextlib.suppress(InstallerError, OSError):  # it has ended, or the next signal comes later
            self._service.kill(number)

    def _read_on(self) -> None:
        self._tick = self._loop.after(_READ_SECONDS, self._read_on)
        self.read()
        if self._reads % _READS == 0:
            self._check()
        self._reads += 1

    def read(self) -> None:
        for line in self._log.lines():
            self._on_line(line)

    def _check(self) -> None:
        with contextlib.suppress(InstallerError, OSError):  # the next tick checks again
            code = None if self._has_ended else self._service.exit_code()
            if code is not None:
                self._end(code)

    def _end(self, code: int) -> None:
        super()._end(code)
        self._log.forget()

    def _release(self) -> None:
        self.read()
        self._loop.cancel(self._tick)
        self._unwatch()
        self._service.release()


class PassStarter:
    """Starts the passes of one host. It decides once how, and warns if not as a service."""

    def __init__(self, loop: EventLoop, files: Files, service: TransientService, warn: Warn) -> None:
        self._loop, self._files, self._service, self._warn = loop, files, service, warn
        self._nsenter = self._find_nsenter()

    def _find_nsenter(self) -> str:
        """Return the host's nsenter. Empty if passes are children: on the host itself, on a host that is seen
        from outside, and with a warning if something is missing."""
        try:
            with self._files.opened("/proc") as proc:
                ours = os.readlink("/proc/self/ns/mnt")
                if os.readlink(proc / "1/ns/mnt") == ours or _mount_namespace(proc, os.getpid()) != ours:
                    return ""
        except FileNotFoundError:
            return ""
        except (InstallerError, OSError) as error:
            self._warn_inside(f"the mount namespaces of the host cannot be compared: {error}")
            return ""
        found = [path for path in _NSENTER if self._files.status(path, follow=True) is not None]
        if not found:
            self._warn_inside(f"the host has no nsenter ({', '.join(_NSENTER)})")
        return next(iter(found), "")

    def _warn_inside(self, why: str) -> None:
        hint = "if kubelet stops this pod in the middle of a pass, the next pod finishes it"
        self._warn(f"passes run inside this pod: {why}", hint)

    def start(self, order: Order, job: Job) -> Bounded:
        """The order is the last argument of the job. Raises OSError if nothing can be started, and
        BusyHostError while a pass is at work that another daemon has started."""
        if order.action in _MAY_RESTART_KUBELET and self._nsenter:
            try:
                return self._start_service(order, job)
            except BusyHostError:
                raise
            except (InstallerError, OSError) as error:
                if isinstance(error, SystemdError) and error.name == UNIT_EXISTS:
                    raise BusyHostError(_BUSY) from error
                self._warn_inside(str(error))
        return self._loop.start(replace(job, argv=(*job.argv, to_json(order))))

    def _start_service(self, order: Order, job: Job) -> Bounded:
        if self._service.exit_code() is None:  # do not replace its log
            raise BusyHostError(_BUSY)
        log, is_certain = begin_pass_log(self._files, order.action), True
        try:
            # People read the journal, as text; the daemon reads the log, as JSON.
            entered = (self._nsenter, f"--mount=/proc/{os.getpid()}/ns/mnt", "--", *job.argv)
            argv = (*entered, "--output=text", "--log", to_json(order))
            description = f"CRI-Resource-Manager installer: {order.action} ({order.why})"
            self._service.start(argv, description, ENVIRONMENT, job.deadline + job.grace + _SLACK)
        except BaseException as error:
            is_certain = not (isinstance(error, SystemdError) and error.lost)
            if is_certain:  # else systemd may start it once it has the time
                log.forget()
                raise

        def on_end(code: int) -> None:
            if is_certain and 0 < code < 128 and not log.has_lines:
                self._nsenter = ""
                self._warn_inside(f"{PASS_UNIT} could not start the program; `journalctl -u {PASS_UNIT}`")
            job.on_end(code)

        return PassService(self._loop, self._service, log, replace(job, on_end=on_end))

    # -- what an earlier daemon has begun ---------------------------------------------------

    def unfinished(self) -> tuple[Action, PassLogReader] | None:
        """Return what an earlier daemon has begun and not accounted for; it may have ended since."""
        if not self._nsenter:
            return None
        log, at_work = PassLogReader(self._files), False
        with contextlib.suppress(InstallerError, OSError):
            at_work = self._service.attach()
        if not at_work and not log.has_lines:
            log.forget()
            return None
        # A removal deletes its log. Only its deadline stops one, which is also right for an unknown pass.
        return Action(log.action) if log.action in _MAY_RESTART_KUBELET else Action.REMOVE, log

    def follow(self, log: PassLogReader, job: Job) -> Bounded:
        """Follow an unfinished pass as if it had begun now."""
        return PassService(self._loop, self._service, log, job)


def _mount_namespace(proc: Path, pid: int) -> str:
    """Return it, empty if the host has no such process: its numbers are not ours."""
    try:
        return os.readlink(proc / f"{pid}/ns/mnt")
    except FileNotFoundError:
        return ""
