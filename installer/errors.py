"""Every way a run can fail: a message, what would help, and the exit code.

Only the CLI turns these into an exit.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from installer.model.fleet import PlannedWork


class InstallerError(Exception):
    """The base class: `message` says what is wrong and where, `hint` what would help."""

    exit_code = 1
    faults: tuple[str, ...] = ()  # the parts of a message that lists several
    codes: tuple[str, ...] = ()  # of findings; without any, the exit code says where to read on
    waits = False  # nothing is wrong; the run has to wait
    remembered = False  # the generation is not tried again until an input changes
    fleet_generation = ""  # that was asked for, if it is known
    planned: PlannedWork | None = None  # the work that waits for a permit

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class InvalidInputError(InstallerError):
    """Settings, configs, payload or usage are wrong (exit 2). Nothing was touched.

    `faults` has one line for every fault, each beginning with its place (a YAML path, file:line or a key).
    """

    exit_code = 2

    def __init__(self, faults: Sequence[str], hint: str = "") -> None:
        super().__init__("\n".join(faults), hint)
        self.faults = tuple(faults)


class UnservableHostError(InstallerError):
    """This host cannot or should not be changed (exit 4). Nothing was touched. `faults` has one text per
    reason if there are several, `codes` their codes."""

    exit_code = 4

    def __init__(
        self, message: str, hint: str = "", faults: Sequence[str] = (), codes: Sequence[str] = ()
    ) -> None:
        super().__init__(message, hint)
        self.faults, self.codes = tuple(faults), tuple(codes)


NO_SUCH_UNIT = "org.freedesktop.systemd1.NoSuchUnit"
UNIT_MASKED = "org.freedesktop.systemd1.UnitMasked"
DESTRUCTIVE = "org.freedesktop.systemd1.TransactionIsDestructive"
TIMEOUT = "org.freedesktop.DBus.Error.Timeout"


class SystemdError(InstallerError):
    """A call to systemd failed or timed out. `name` is the D-Bus error name, if any. `lost`: the bus or
    systemd did not answer, so the effect of the call is unknown."""

    def __init__(self, message: str, hint: str = "", name: str = "", lost: bool = False) -> None:
        super().__init__(message, hint)
        self.name = name
        self.lost = lost


class StepFailedError(InstallerError):
    """A step of a plan failed. The rollback catches it; users never see it.

    `interfered`: the cause is outside of the generation (a full disk, a lost bus, an edit of a file that was
    just written), so the generation is not blamed.
    """

    def __init__(self, message: str, hint: str = "", interfered: bool = False) -> None:
        super().__init__(message, hint)
        self.interfered = interfered


class RolledBackError(InstallerError):
    """The run failed and the previous state is in place (exit 5). `remembered`: the generation is not retried
    until an input changes. `fleet_generation`: which one, if it was not tried now."""

    exit_code = 5

    def __init__(
        self, message: str, hint: str = "", remembered: bool = False, fleet_generation: str = ""
    ) -> None:
        super().__init__(message, hint)
        self.remembered, self.fleet_generation = remembered, fleet_generation


class RollbackFailedError(InstallerError):
    """The run failed and so did its rollback (exit 6). `hint` says what to do by hand."""

    exit_code = 6


class KubeletKeptError(InstallerError):
    """The plan would restart kubelet or end its hold, which this run may not do (exit 3). This is not a
    failure: a later run does it. Nothing was touched, or kubelet waits on its base endpoint."""

    exit_code = 3
    waits = True


class ApiServerError(InstallerError):
    """The API server does not answer, or refuses a request (exit 69): of a command for a whole cluster. What
    it has done before stays done; the same command continues."""

    exit_code = 69


class BusyHostError(InstallerError):
    """Another run holds the host's lock (exit 75)."""

    exit_code = 75


class InterruptedRunError(InstallerError):
    """A signal ended the run between two steps (exit 128 + its number)."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(
            f"ended by signal {signal_number} between two steps", "run the same command again: it continues"
        )
        self.exit_code = 128 + signal_number


_IMMUTABLE = (
    "the file system refuses the change: `lsattr -d` shows whether the file or its directory is immutable, "
    "and `chattr -i` clears that flag"
)
_REMEDIES = {
    errno.ENOSPC: "the disk is full: `df -h` and `df -i` on the host show where; free some space there",
    errno.EDQUOT: "root's disk quota is used up: free some space there, or raise the quota",
    errno.EROFS: "the file system is read-only: `dmesg` and `findmnt` on the host say why; remount it",
    errno.EIO: "the disk returns I/O errors: `dmesg` on the host says more; repair or replace it",
    errno.EMFILE: "this process has too many files open: raise LimitNOFILE= of its service or container",
    errno.ENFILE: "the host has too many files open: raise fs.file-max (`sysctl fs.file-nr` shows the use)",
    errno.EAGAIN: "no process or thread can be started: raise the limit of the pids cgroup (pids.max, "
    "TasksMax=) or of processes (`ulimit -u`), or end what uses them up",
    errno.ENOBUFS: "the network buffers of the host are used up: free memory on the host",
    errno.ENOMEM: "memory is used up: raise the memory limit of the container, or free memory on the host",
}


def remedy_for(error: OSError) -> str:
    """What helps against a shortage of the host's resources; empty for any other error."""
    return _REMEDIES.get(error.errno or 0, "")


def unforeseen(error: Exception) -> InstallerError:
    """An unforeseen error is a bug, unless the host lacks what every program needs."""
    if isinstance(error, ImportError) and (error.name or "").partition(".")[0] in ("gi", "pydbus"):
        return UnservableHostError(
            f"this Python cannot import {error.name}: {error}",
            "install python3-gi and gir1.2-glib-2.0 of the distribution (`apt-get install python3-gi "
            "gir1.2-glib-2.0`), and run the program with the distribution's Python; nothing was touched",
        )
    remedy = remedy_for(error) if isinstance(error, OSError) else ""
    if remedy:
        return InstallerError(f"{error}", f"{remedy}; then run the same command again")
    return InstallerError(
        f"{type(error).__name__}: {error}", "this is a bug, please report it; -v shows where"
    )


def is_shortage(error: Exception) -> bool:
    """Whether this process or the host ran out of file descriptors or memory. Such an error says nothing
    about the file, process or socket in question."""
    shortages = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)
    return isinstance(error, OSError) and error.errno in shortages


def failed_on_disk(what: str, error: OSError) -> StepFailedError:
    """`what` failed because the host lacks a resource. The hint says what helps; no generation is blamed."""
    immutable = error.errno == errno.EPERM  # elsewhere it means a missing capability
    remedy = _IMMUTABLE if immutable else remedy_for(error) or "`dmesg` on the host may say more"
    return StepFailedError(f"{what}: {error}", remedy, interfered=True)
