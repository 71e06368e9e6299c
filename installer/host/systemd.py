"""The host's system manager: units, jobs and reloads over D-Bus.

Jobs are awaited to their result, and every call has a deadline. This module does not judge: a job that is
`done` means that a unit started, not that it stayed up.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from installer.errors import NO_SUCH_UNIT, TIMEOUT, SystemdError, UnservableHostError
from installer.host.bus import CALL_SECONDS, MANAGER, MANAGER_PATH, SERVICE, UNIT, SystemBus
from installer.host.files import RootedFiles
from installer.host.unit_files import find_drop_ins, is_listed, set_properties
from installer.model.host import ExecLine, UnitDetail, UnitState

_NO_UNIT = "cri-resmgr-installer-looks-for-nothing.service"  # does not exist
_FILELESS_UNIT = "init.scope"  # it has no file to edit
_LOADS = ("UnitsLoadStartTimestamp", "UnitsLoadTimestamp")  # at the boot and at the last reload, in µs
# What only services have, and what stands for it in other units.
_OF_SERVICE: dict[str, Any] = {"NRestarts": 0, "Result": "success", "MainPID": 0, "Environment": ()}
_CHANGED = "StateChangeTimestampMonotonic"  # when the unit's state last changed
_BEGUN, _UP = "InactiveExitTimestampMonotonic", "ActiveEnterTimestampMonotonic"  # its last start, and its end
_READS = 10  # then a unit that never rests is taken as it was read
_CANCEL_SECONDS = 2.0
_UNPRINTABLE = "org.freedesktop.DBus.Error.InvalidArgs"  # a property that D-Bus cannot carry
_LOST_REPLY_GRACE = 1.0  # seconds for the reply to arrive after the signal that systemd has reloaded


class BusSystemd:
    """The Systemd port over the system bus below a host root. Connects on first use. Every method may raise
    UnservableHostError if the bus or systemd cannot be reached, and OSError."""

    def __init__(self, files: RootedFiles, bus: SystemBus | None = None) -> None:
        self._bus = bus or SystemBus(files)
        self._files = files

    def close(self) -> None:
        """Close the connection. Not needed before the process ends; the next call opens another."""
        self._bus.close()

    def listen(self, names: Iterable[str], changed: Callable[[], None]) -> None:
        """Have the default main loop call `changed` when one of these units changes or systemd reloads. Call
        it again now and then: it reconnects after a lost connection."""
        self._bus.listen([self._load(name) for name in names], changed)

    @property
    def is_listening(self) -> bool:
        """Whether `listen` is in force, which ends with the connection."""
        return self._bus.is_listening

    # -- reading ----------------------------------------------------------------

    def unit(self, name: str) -> UnitState:
        path = self._load(name)
        # At least up to systemd 252, NeedDaemonReload misses a drop-in whose directory is newer than
        # systemd's list of unit directories. Looking for a unit that does not exist refreshes that list.
        self._load(_NO_UNIT)
        for _attempt in range(_READS):
            of_unit = self._bus.read(name, lambda: self._bus.unit(path).GetAll(UNIT, timeout=CALL_SECONDS))
            if of_unit["LoadState"] == "not-found" and of_unit["ActiveState"] == "inactive":
                return UnitState(name)
            of_service = dict(_OF_SERVICE)
            if str(of_unit["Id"]).endswith(".service"):
                of_service = {key: self._get(path, key) for key in _OF_SERVICE}
            if self._get(path, _CHANGED, UNIT) == of_unit[_CHANGED]:
                break  # it has not changed meanwhile: all values are of the same state
        return UnitState(
            name=name,
            load_state=of_unit["LoadState"],
            active_state=of_unit["ActiveState"],
            sub_state=of_unit["SubState"],
            unit_file_state=self._enablement(name),
            need_daemon_reload=of_unit["NeedDaemonReload"] and self._is_edited(of_unit),
            n_restarts=of_service["NRestarts"],
            result=of_service["Result"],
            invocation_id=bytes(of_unit["InvocationID"]).hex(),
            main_pid=of_service["MainPID"],
            has_job=of_unit["Job"][0] != 0,
            came_up=0 < of_unit[_BEGUN] <= of_unit[_UP],
            environment=tuple(of_service["Environment"]),
            fragment_path=of_unit["FragmentPath"],
            drop_in_paths=tuple(of_unit["DropInPaths"]),
        )

    def _is_edited(self, of_unit: Mapping[str, Any]) -> bool:
        """Whether a reload, for which a unit asks, would change anything of it. Up to systemd 252 a unit also
        asks after `systemctl set-property`, whose file systemd has applied, but lists where it does not sort.
        Since systemd 257 every unit asks once links of any unit have changed, as between their deletion and
        the reload. Contents and timestamps tell."""
        found = [path for path in (of_unit["FragmentPath"], *of_unit["DropInPaths"]) if path]
        read = {path: set_properties(self._files, path) for path in found}
        applied = {path: values for path, values in read.items() if values is not None}
        if applied:
            there = set(find_drop_ins(self._files, of_unit["Names"]))
            lost = there.symmetric_difference(path for path in of_unit["DropInPaths"] if is_listed(path))
            if lost or not all(self._is_applied(of_unit["Id"], values) for values in applied.values()):
                return True
        elif not self._get(self._load(_FILELESS_UNIT), "NeedDaemonReload", UNIT):
            return True
        loaded = max(self._get(MANAGER_PATH, key, MANAGER) for key in _LOADS)
        states = [self._files.status(path, follow=True) for path in found if path not in applied]
        return any(state is None or state.st_mtime_ns // 1000 > loaded for state in states)

    def _is_applied(self, name: str, values: Mapping[str, int | None]) -> bool:
        """Whether the unit has these values. One that cannot be compared, as that of AllowedCPUs=0, a list of
        bytes, counts as applied."""
        for key, value in values.items():
            if value is None:
                continue
            with contextlib.suppress(SystemdError):
                loaded = self._get(self._load(name), key)
                if isinstance(loaded, int) and loaded != value:
                    return False
        return True

    def _enablement(self, name: str) -> str:
        """From the links on disk. The unit's own property dates from the last reload, so it misses the links
        of a run that was killed before its reload."""
        try:
            state: str = self._bus.read(
                f"systemctl is-enabled {name}",
                lambda: self._bus.manager.GetUnitFileState(name, timeout=CALL_SECONDS),
            )
        except SystemdError as error:
            if error.lost:
                raise
            return ""  # it has no unit file
        return state

    def detail(self, name: str) -> UnitDetail:
        path = self._load(name)
        try:
            return UnitDetail(
                exec_start=_exec_lines(self._get(path, "ExecStart")),
                exec_start_pre=_exec_lines(self._get(path, "ExecStartPre")),
                environment_files=tuple(
                    (file, optional) for file, optional in self._get(path, "EnvironmentFiles")
                ),
                timeout_start_usec=self._get(path, "TimeoutStartUSec"),
            )
        except SystemdError as error:
            if error.name != _UNPRINTABLE:
                raise
            raise UnservableHostError(
                f"systemd cannot say what {name} runs: its command lines contain bytes that are not UTF-8",
                "write the characters themselves in its unit files, not escapes like \\xe9",
            ) from error

    def related(self, name: str, kind: str) -> tuple[str, ...]:
        try:
            return tuple(self._get(self._load(name), kind, UNIT))
        except SystemdError as error:
            if error.lost:
                raise
            return ()  # an older systemd knows no such relation, or nothing can have that name

    def _load(self, name: str) -> str:
        """The object path of a unit, loaded if necessary. A unit that does not exist has a path as well."""
        path: str = self._bus.read(name, lambda: self._bus.manager.LoadUnit(name, timeout=CALL_SECONDS))
        return path

    def _get(self, path: str, key: str, interface: str = SERVICE) -> Any:
        return self._bus.read(
            f"{path}: {key}", lambda: self._bus.unit(path).Get(interface, key, timeout=CALL_SECONDS)
        )

    # -- jobs -------------------------------------------------------------------

    def stop(self, name: str, timeout: float) -> str:
        try:
            return self._job("StopUnit", "stop", name, timeout)
        except SystemdError as error:
            if error.name != NO_SUCH_UNIT:
                raise
            return "done"  # it has no file, and does not run

    def restart(self, name: str, timeout: float, *, at_once: bool = False) -> str:
        mode = "ignore-dependencies" if at_once else "replace"
        return self._job("RestartUnit", "restart", name, timeout, mode)

    def _job(self, method: str, verb: str, name: str, timeout: float, mode: str = "replace") -> str:
        """Queue a job and wait for its result. Cancel it when `timeout` passes."""
        bus = self._bus
        asked = time.monotonic()
        deadline = asked + timeout
        # Before the call: a short job may end before the reply arrives.
        bus.subscribe()
        bus.job_results.clear()
        what = f"systemctl {verb} {name}"
        try:
            job: str = bus.ask(what, method, name, mode, seconds=min(timeout, CALL_SECONDS))
        except SystemdError as error:
            hint = error.hint if error.lost else f"`systemctl status {name}` says more"
            raise SystemdError(error.message, hint, error.name, error.lost) from error
        if bus.wait(lambda: job in bus.job_results, deadline):
            return bus.job_results[job]
        if bus.is_closed:
            return self._follow(what, verb, name, job, asked, deadline)
        answers = self._cancel(job)
        bus.wait(lambda: job in bus.job_results, time.monotonic() + (1.0 if answers else 0.0))
        result = bus.job_results.get(job, "")
        if result in ("", "canceled"):
            raise _not_done(what, name, timeout, lost=not answers)
        return result  # it ended just before it was cancelled

    def _follow(self, what: str, verb: str, name: str, job: str, asked: float, deadline: float) -> str:
        """The result of a job whose signal was lost with the bus daemon. The unit's state tells it once the
        job is no longer the unit's current one."""
        while True:
            with contextlib.suppress(SystemdError, UnservableHostError):
                path = self._load(name)
                if self._get(path, "Job", UNIT)[1] != job:
                    if verb != "stop" and self._get(path, _BEGUN, UNIT) < asked * 1e6:
                        return "canceled"  # the process is that of before
                    state = self.unit(name).active_state
                    if verb == "stop":
                        return "done" if state in ("inactive", "failed") else "canceled"
                    return "done" if state in ("active", "reloading") else "failed"
            if time.monotonic() > deadline:
                raise SystemdError(
                    f"{what}: the connection to the bus was lost, and the result of the job is unknown",
                    "see `systemctl status dbus` on the host",
                    lost=True,
                )
            time.sleep(0.1)

    def _cancel(self, job: str) -> bool:
        """Whether systemd answers."""
        number = int(job.rpartition("/")[2])
        try:
            self._bus.ask(f"cancel {number}", "CancelJob", number, seconds=_CANCEL_SECONDS)
        except SystemdError as error:
            # It has ended, or cannot be cancelled. The error to report is the missed deadline.
            return not error.lost
        return True

    # -- the manager ------------------------------------------------------------

    def daemon_reload(self, timeout: float) -> None:
        """See the port. The reply may be lost while systemd reloads. Then the signal that it has reloaded,
        and the answer to a ping, count."""
        bus = self._bus
        deadline = time.monotonic() + timeout
        answered, reply = self._reload(deadline)
        while bus.is_closed and time.monotonic() < deadline:
            # Whether systemd received the call is unknown. A second reload does no harm.
            time.sleep(0.1)
            answered, reply = self._reload(deadline)
        # Here a closed bus means that the time is over: only a reply that came before counts.
        if not answered or (bus.is_closed and reply() != (True, None)):
            raise SystemdError(f"daemon-reload: not done after {timeout:g} s", "systemctl status 1", TIMEOUT)
        if not reply()[0]:
            grace = min(deadline, time.monotonic() + _LOST_REPLY_GRACE)
            bus.wait(lambda: reply()[0], grace)
        error = reply()[1]
        if error is not None and not error.lost:
            raise error
        bus.read("daemon-reload", lambda: bus.manager.Ping(timeout=max(0.1, deadline - time.monotonic())))

    def _reload(self, deadline: float) -> tuple[bool, Callable[[], tuple[bool, SystemdError | None]]]:
        """Whether there is a sign that systemd has reloaded, and what `begin_reload` returns."""
        bus = self._bus
        bus.subscribe()
        bus.reloading = None
        reply = bus.begin_reload()
        return bus.wait(lambda: reply()[0] or bus.reloading is False, deadline), reply

    def reset_failed(self, name: str) -> None:
        try:
            self._bus.ask(f"systemctl reset-failed {name}", "ResetFailedUnit", name)
        except SystemdError as error:
            if error.name != NO_SUCH_UNIT:
                raise

    def kill(self, name: str, signal_number: int) -> None:
        what = f"systemctl kill --kill-whom=main --signal={signal_number} {name}"
        self._bus.ask(what, "KillUnit", name, "main", signal_number)


def _not_done(what: str, name: str, timeout: float, *, lost: bool) -> SystemdError:
    if lost:
        message = f"{what}: systemd has not answered for {timeout:g} s"
        return SystemdError(message, "see `systemctl status dbus` on the host", TIMEOUT, lost=True)
    return SystemdError(
        f"{what}: not done after {timeout:.1f} s; the job was cancelled",
        f"`systemctl status {name}` and `journalctl -u {name} -n 50` show what it was doing",
        TIMEOUT,
    )


def _exec_lines(lines: list[tuple[Any, ...]]) -> tuple[ExecLine, ...]:
    return tuple(ExecLine(path=line[0], argv=tuple(line[1])) for line in lines)
