"""Every way a run can fail: a message, what would help, and the exit code.

Only the CLI turns these into an exit; nothing else in the package exits.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence


class InstallerError(Exception):
    """The base class. `message` says what is wrong and where, `hint` what would help. `faults` are the parts
    of the message, where it tells of several. `waits`: nothing is wrong, the run has to wait.

    Of an unattended run, `fleet_generation` is what it was asked for, and `installed` what is there
    all the same (`generation`, `policy`, `policySource`); None where that could not be looked at."""

    exit_code = 1
    faults: tuple[str, ...] = ()
    waits = False
    fleet_generation = ""
    installed: Mapping[str, str] | None = None

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class InvalidInputError(InstallerError):
    """Settings, configs, payload or usage are wrong (exit 2). Nothing was touched.

    `faults` has one line for every fault found, each beginning with where it is
    (a YAML path, file:line or a key).
    """

    exit_code = 2

    def __init__(self, faults: Sequence[str], hint: str = "") -> None:
        super().__init__("\n".join(faults), hint)
        self.faults = tuple(faults)


class UnservableHostError(InstallerError):
    """This host cannot or should not be served (exit 4). Nothing was touched. `faults` has one text for each
    reason, where there are several."""

    exit_code = 4

    def __init__(self, message: str, hint: str = "", faults: Sequence[str] = ()) -> None:
        super().__init__(message, hint)
        self.faults = tuple(faults)


class SystemdError(InstallerError):
    """A call to systemd failed or its deadline passed. `name` is the D-Bus error name, if any; `lost`: the
    bus or systemd did not answer, and the effect of the call is unknown."""

    def __init__(self, message: str, hint: str = "", name: str = "", lost: bool = False) -> None:
        super().__init__(message, hint)
        self.name = name
        self.lost = lost


class StepFailedError(InstallerError):
    """A step of a plan failed; caught by the rollback, never seen by a user.

    `interfered`: the cause is outside of the generation (a full disk, a lost bus, an edit of a file that was
    just applied), so it is not blamed.
    """

    def __init__(self, message: str, hint: str = "", interfered: bool = False) -> None:
        super().__init__(message, hint)
        self.interfered = interfered


class RolledBackError(InstallerError):
    """The run failed and the previous state is in place (exit 5). `remembered`: this generation is not tried
    again until an input changes. `fleet_generation`: which one, where it was not tried again now."""

    exit_code = 5

    def __init__(
        self, message: str, hint: str = "", remembered: bool = False, fleet_generation: str = ""
    ) -> None:
        super().__init__(message, hint)
        self.remembered, self.fleet_generation = remembered, fleet_generation


class RollbackFailedError(InstallerError):
    """The run failed and so did its rollback (exit 6): `hint` says what to do by hand."""

    exit_code = 6


class KubeletKeptError(InstallerError):
    """The plan would restart kubelet or end its hold, and this run may not do that (exit 3). That is no
    failure: another run does it when it may. Nothing was touched, or kubelet waits on its base endpoint."""

    exit_code = 3
    waits = True


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
    "and `chattr -i` ends that"
)
_REMEDIES = {
    errno.ENOSPC: "the disk is full: `df -h` and `df -i` on the host show where; free some space there",
    errno.EDQUOT: "root's disk quota is used up: free some space there, or raise the quota",
    errno.EROFS: "the file system is read-only: `dmesg` and `findmnt` on the host say why; remount it",
    errno.EIO: "the disk returns I/O errors: `dmesg` on the host says more; repair or replace it",
    errno.EMFILE: "this process has too many files open: raise LimitNOFILE= of its service or container",
    errno.ENFILE: "the host has too many files open: raise fs.file-max (`sysctl fs.file-nr` shows the use)",
    errno.EAGAIN: "no process or thread can be started: raise the limit of the pids cgroup (pids.max, "
    "TasksMax=) or of processes (`ulimit -u`), or end what uses it up",
    errno.ENOBUFS: "the network buffers of the host are used up: free memory on the host",
    errno.ENOMEM: "memory is used up: raise the memory limit of the container, or free memory on the host",
}


def remedy_for(error: OSError) -> str:
    """What helps against an error of the host's own resources; empty for any other error."""
    return _REMEDIES.get(error.errno or 0, "")


def unforeseen(error: Exception) -> InstallerError:
    """An unforeseen error is a bug, unless the host lacks what every program needs."""
    remedy = remedy_for(error) if isinstance(error, OSError) else ""
    if remedy:
        return InstallerError(f"{error}", f"{remedy}; then run the same command again")
    return InstallerError(
        f"{type(error).__name__}: {error}", "this is a bug, please report it; -v shows where"
    )


def is_shortage(error: OSError) -> bool:
    """Whether this process or the host ran out of descriptors or memory: the error says nothing about the
    file, process or socket that was asked for."""
    return error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)


def failed_on_disk(what: str, error: OSError) -> StepFailedError:
    """`what` failed for lack of a resource of the host; the hint says what helps. Blames no generation."""
    immutable = error.errno == errno.EPERM  # which elsewhere means a missing capability
    remedy = _IMMUTABLE if immutable else remedy_for(error) or "`dmesg` on the host may say more"
    return StepFailedError(f"{what}: {error}", remedy, interfered=True)
