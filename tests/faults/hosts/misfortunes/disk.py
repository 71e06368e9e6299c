"""Disks: full, immutable, read-only."""

from __future__ import annotations

from tests.faults.hosts.misfortunes.case import Act, Before, Case, Kubelet, shell
from tests.host.node import (
    BINARY,
    DROP_IN,
    FALLBACK,
    GUARD,
    KUBELET_ENVIRONMENT,
    PROXY,
    PROXY_ENVIRONMENT,
    PROXY_UNIT,
)

_RELOADING = "daemon-reload"
_STARTING = f"write {PROXY_ENVIRONMENT}"  # the last line before the proxy's start
_MOVING = f"write {KUBELET_ENVIRONMENT}"  # the last line before kubelet's
_NO_SPACE = "No space left on device"

#: Each of these is a small file system on the host of this group.
SMALL = {
    "/opt": "16m",
    "/etc/cri-resmgr": "256k",
    "/etc/default": "256k",
    "/etc/systemd/system": "256k",
    "/var/lib/cri-resmgr-installer": "16m",
}
_UNMOUNT = "! mountpoint -q /etc/cri-resmgr || umount /etc/cri-resmgr"


def _fill(*directories: str) -> Act:
    """Until nothing fits any more."""
    fillers = " ".join(f"{directory}/filler" for directory in directories)
    return shell(f"for f in {fillers}; do dd if=/dev/zero of=$f bs=4k count=12k 2>/dev/null; done; true")


def _free(*directories: str) -> Act:
    return shell("rm -f " + " ".join(f"{directory}/filler" for directory in directories))


def _full(
    directory: str, code: int, *says: str, when: str = "", before: Before = Before.BARE, rare: bool = True
) -> Case:
    return Case(
        f"{directory} is full {_moment(when)}, {before}",
        _fill(directory),
        _free(directory),
        code,
        says,
        before=before,
        when=when,
        theirs=(f"{directory}/filler",),
        rare=rare,
    )


def _all_full(
    when: str, code: int, kubelet: Kubelet, before: Before, verb: str = "install", rare: bool = True
) -> Case:
    return Case(
        f"no disk has room {_moment(when)}, {verb}, {before}",
        _fill(*SMALL),
        _free(*SMALL),
        code,
        (_NO_SPACE, "free some space") if code else (),
        kubelet,
        before,
        verb,
        when,
        theirs=tuple(f"{directory}/filler" for directory in SMALL),
        rare=rare,
    )


def _moment(when: str) -> str:
    return f"after {when!r}" if when else "from the start"


FULL = (
    _full("/opt", 4, "MiB free", "free some space"),
    _full("/var/lib/cri-resmgr-installer", 4, "MiB free", "free some space"),
    _full("/etc/cri-resmgr", 5, _NO_SPACE, "free some space", "as it was before"),
    _full("/etc/systemd/system", 5, _NO_SPACE, "free some space", rare=False),
    _full("/opt", 4, "MiB free", before=Before.UPGRADE),
    _full("/etc/cri-resmgr", 5, _NO_SPACE, "free some space", before=Before.CONFIG, rare=False),
    _full("/var/lib/cri-resmgr-installer", 5, _NO_SPACE, "free some space", before=Before.CONFIG, rare=False),
    _full("/var/lib/cri-resmgr-installer", 0, _NO_SPACE, when=_STARTING, before=Before.UPGRADE, rare=False),
    _full("/var/lib/cri-resmgr-installer", 0, before=Before.SAME),
    # At each write of a first installation: the next one fails.
    *(
        _all_full(when, 5, Kubelet.STAYED, Before.BARE, rare=when != _RELOADING)
        for when in (
            f"note in {PROXY_ENVIRONMENT} that a restart is due",
            f"write {BINARY}",
            f"write {GUARD}",
            f"write {FALLBACK}",
            f"write {PROXY_UNIT}",
            _RELOADING,
            _STARTING,
            f"restart {PROXY}",
            "wait until the relay",
            f"note in {KUBELET_ENVIRONMENT} that a restart is due",
            f"write {DROP_IN}",
            "check that our lines",
        )
    ),
    *(
        _all_full(when, 0, Kubelet.RELAY, Before.BARE)
        for when in (_MOVING, "restart kubelet", "wait until kubelet")
    ),
    # ... of an upgrade ...
    *(
        _all_full(when, 6, Kubelet.STAYED, Before.UPGRADE)  # the way back has no room either
        for when in (f"note in {PROXY_ENVIRONMENT} that a restart is due", f"write {BINARY}")
    ),
    *(
        _all_full(when, 0, Kubelet.STAYED, Before.UPGRADE)
        for when in (_STARTING, f"restart {PROXY}", "wait until the relay")
    ),
    # ... and of a removal, which needs no room.
    *(
        _all_full(when, 0, Kubelet.OWN, Before.SAME, "remove", rare=bool(when))
        for when in ("", f"delete {KUBELET_ENVIRONMENT}", "wait until kubelet", f"delete {PROXY_ENVIRONMENT}")
    ),
    _full("/run", 4, "/run has less than 16 MiB", "free some space", rare=False),
    _full("/run", 6, "not enough space", "by hand, on the node", when=_RELOADING, rare=False),
    Case(
        "/run has no room for one more file",
        shell("i=0; while touch /run/filler.$i 2>/dev/null; do i=$((i+1)); done"),
        shell("rm -f /run/filler.*"),
        4,
        ("/run", "df -i", "nothing was touched"),
        theirs=("/run/filler",),
    ),
)

DISK = (
    *(
        Case(
            f"{path} is immutable, {verb}",
            shell(f"chattr +i {path}"),
            shell(f"chattr -i {path}"),
            4,
            (path, "chattr -i", "nothing was touched"),
            before=before,
            verb=verb,
            rare=path == PROXY_ENVIRONMENT,
        )
        for path, before, verb in (
            (PROXY_ENVIRONMENT, Before.UPGRADE, "install"),
            (BINARY, Before.UPGRADE, "install"),
            (DROP_IN, Before.SAME, "remove"),
        )
    ),
    Case(
        "an immutable directory",
        shell("chattr +i /etc/default"),
        shell("chattr -i /etc/default"),
        4,
        ("/etc/default", "immutable"),
        before=Before.BARE,
        rare=True,
    ),
    Case(
        "a directory that becomes read-only meanwhile",
        shell("mount --bind /etc/cri-resmgr /etc/cri-resmgr; mount -o remount,ro,bind /etc/cri-resmgr"),
        shell(_UNMOUNT),
        6,
        ("Read-only file system", "remount"),
        before=Before.BARE,
        when=_RELOADING,
    ),
    Case(
        "a directory that is read-only",
        shell(
            "echo '/etc/cri-resmgr /etc/cri-resmgr none bind,ro 0 0' >/etc/fstab;"
            "systemctl daemon-reload; mount /etc/cri-resmgr"
        ),
        shell(f"{_UNMOUNT}; : >/etc/fstab; systemctl daemon-reload"),
        4,
        ("/etc/cri-resmgr", "read-only", "mount the host's root read-write"),
        before=Before.CONFIG,
        theirs=("/etc/fstab",),
        rare=True,
    ),
)
