"""Every way a run can end other than well: a message, what would help, and the exit code.

Only the CLI turns these into an exit; nothing else in the package exits.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence


class InstallerError(Exception):
    """The root of the tree. `message` says what is wrong and where, `hint` what would help."""

    exit_code = 1

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
    """This host cannot or should not be served (exit 4). Nothing was touched."""

    exit_code = 4


class SystemdError(InstallerError):
    """A call to systemd failed or its deadline passed. `name` is the D-Bus error name, if any; `lost`
    says that the bus or systemd did not answer, so that nobody knows what became of the call."""

    def __init__(self, message: str, hint: str = "", name: str = "", lost: bool = False) -> None:
        super().__init__(message, hint)
        self.name = name
        self.lost = lost


class StepFailedError(InstallerError):
    """A step of a plan did not have its effect; caught by the rollback, never seen by a user.

    `interfered`: it is the host's doing or somebody else's (a full disk, a lost bus, an edit of what was
    just applied), so no generation is to blame.
    """

    def __init__(self, message: str, hint: str = "", interfered: bool = False) -> None:
        super().__init__(message, hint)
        self.interfered = interfered


class RolledBackError(InstallerError):
    """The run failed and the previous state is in place (exit 5). `remembered`: the same is not tried
    again until an input changes."""

    exit_code = 5

    def __init__(self, message: str, hint: str = "", remembered: bool = False) -> None:
        super().__init__(message, hint)
        self.remembered = remembered


class RollbackFailedError(InstallerError):
    """The run failed and so did the way back (exit 6): `hint` says what to do by hand."""

    exit_code = 6


class KubeletKeptError(InstallerError):
    """The plan would restart kubelet, and this run was told not to; nothing was touched."""

    exit_code = 3


class BusyHostError(InstallerError):
    """Another run holds the host's lock (exit 75)."""

    exit_code = 75


class InterruptedRunError(InstallerError):
    """A signal ended the run between two steps (exit 128 + its number)."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(
            f"ended by signal {signal_number} between two steps", "run the same command again: it goes on"
        )
        self.exit_code = 128 + signal_number


_REMEDIES = {
    errno.ENOSPC: "the disk is full: `df -h` and `df -i` on the host show where; free some space there",
    errno.EDQUOT: "the quota of root on this disk is used up: free some space there, or raise it",
    errno.EROFS: "the disk has become read-only: `dmesg` and `findmnt` on the host say why; remount it",
    errno.EIO: "the disk gives errors: `dmesg` on the host says more; repair or replace it",
    errno.EPERM: "the disk refuses the change: `lsattr -d` shows whether somebody has set the file or its "
    "directory immutable, and `chattr -i` ends that",
}


def failed_on_disk(what: str, error: OSError) -> StepFailedError:
    """The failure of `what` by the host's disk, with what would help. No generation is to blame for it."""
    remedy = _REMEDIES.get(error.errno or 0, "look at the host's disk: `df -h`, `dmesg`")
    return StepFailedError(f"{what}: {error}", remedy, interfered=True)
