"""A transient service of systemd's: neither the process that started it nor that one's container ends it.

It is gone when it has ended, and there is never a second one of its name. Its output goes to the host's
journal.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Mapping, Sequence

from installer.errors import BusyHostError, InstallerError, KubeletKeptError, SystemdError
from installer.host.bus import CALL_SECONDS, SERVICE, UNIT, SystemBus
from installer.host.priority import NICE

UNIT_EXISTS = "org.freedesktop.systemd1.UnitExists"
UNKNOWN_END = 1  # if nothing tells how it has ended

_UNKNOWN_PROPERTY = "org.freedesktop.DBus.Error.PropertyReadOnly"  # of a systemd that is older
_ENDED = ("inactive", "failed")
_EXITED, _KILLED, _DUMPED = 1, 2, 3  # CLD_*: sigaction(2)
_MEMORY = 1 << 30  # bytes; more than ten times what it needs: only a bug reaches it
_OOM_SCORE = -997  # what kubelet gives to the containers of our pod (system-node-critical)


class TransientService:
    """The service of this name, on the system bus of a host. Every method may raise SystemdError,
    UnservableHostError and OSError as BusSystemd's do, unless it says otherwise."""

    def __init__(self, bus: SystemBus, name: str) -> None:
        self.name = name
        self._bus = bus
        # As bus_label_escape() of systemd's sd-bus does it. A unit has its path before it exists.
        escaped = "".join(c if c.isalnum() else f"_{ord(c):02x}" for c in name)
        self._path = f"/org/freedesktop/systemd1/unit/{escaped}"

    def start(
        self, argv: Sequence[str], description: str, environment: Mapping[str, str], seconds: float
    ) -> None:
        """Start it. `argv` names a program of the host by its path. After `seconds` systemd itself ends it,
        in case nobody is left to do so. It stays loaded until `release`, or until our connection ends.
        Raises SystemdError, with the name UNIT_EXISTS while there is one."""
        properties: dict[str, tuple[str, object]] = {
            "Description": ("s", description),
            "ExecStart": ("a(sasb)", [(argv[0], [word.replace("$", "$$") for word in argv], False)]),
            "Environment": ("as", [f"{name}={value}" for name, value in environment.items()]),
            "WorkingDirectory": ("s", "/"),
            "SyslogIdentifier": ("s", self.name.removesuffix(".service")),
            # The program gets SIGTERM and finishes its step; nothing that it has started is left behind.
            "KillMode": ("s", "mixed"),
            "RuntimeMaxUSec": ("t", round(seconds * 1_000_000)),
            "OOMScoreAdjust": ("i", _OOM_SCORE),
            "Nice": ("i", NICE),
            "MemoryMax": ("t", _MEMORY),
            "CollectMode": ("s", "inactive-or-failed"),
            "AddRef": ("b", True),
        }
        what = f"systemd-run --unit={self.name}"
        # If a program that it has started runs out of memory, it reports that and continues. And a pass that
        # had to wait has not failed, whatever its exit code: systemd would call it a failed unit.
        newer: dict[str, tuple[str, object]] = {
            "OOMPolicy": ("s", "continue"),
            "SuccessExitStatus": ("(aiai)", ([KubeletKeptError.exit_code, BusyHostError.exit_code], [])),
        }
        try:
            self._bus.start_transient(what, self.name, properties | newer)
        except SystemdError as error:
            if error.name != _UNKNOWN_PROPERTY:
                raise
            self._bus.start_transient(what, self.name, properties)

    def attach(self) -> bool:
        """Return whether a service is at work that another process has started. It stays loaded as after
        `start`."""
        if self.exit_code() is not None:
            return False
        self._bus.ask(f"systemctl show {self.name}", "RefUnit", self.name)
        return True

    def exit_code(self) -> int | None:
        """Return None while it is at work, 128 + n after signal n, UNKNOWN_END if there is none."""
        # One call, so one instant: before its start it is also inactive, but has a job.
        unit = self._bus.call(
            self.name, lambda: self._bus.unit(self._path).GetAll(UNIT, timeout=CALL_SECONDS)
        )
        if unit["ActiveState"] not in _ENDED or unit["Job"][0]:
            return None
        if unit["LoadState"] != "loaded":
            return UNKNOWN_END
        how, status = self._get("ExecMainCode"), self._get("ExecMainStatus")
        if how in (_KILLED, _DUMPED):
            return 128 + status
        return status if how == _EXITED else UNKNOWN_END

    def _get(self, key: str) -> int:
        value: int = self._bus.call(
            f"{self.name}: {key}",
            lambda: self._bus.unit(self._path).Get(SERVICE, key, timeout=CALL_SECONDS),
        )
        return value

    def kill(self, number: int) -> None:
        """Send the signal to its program; SIGKILL to all of its processes."""
        whom = "all" if number == signal.SIGKILL else "main"
        what = f"systemctl kill --kill-whom={whom} --signal={number} {self.name}"
        self._bus.ask(what, "KillUnit", self.name, whom, number)

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """The default main loop calls `changed` when something changes. Return what ends that."""
        return self._bus.watch(self._path, changed)

    def release(self) -> None:
        """Let systemd forget how it has ended. Raises nothing."""
        with contextlib.suppress(InstallerError, OSError):
            self._bus.ask(f"release {self.name}", "UnrefUnit", self.name)
