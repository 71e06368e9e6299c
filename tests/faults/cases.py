"""The table: every way in which a system misbehaves, in the groups that share a host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tests.faults.misfortune import Act, Before, Case, Kubelet, both, fault, nothing, shell, unlinked, written
from tests.host.node import BINARY, DROP_IN, PROXY, PROXY_ENVIRONMENT, PROXY_UNIT

_LATE = f"enable {PROXY}"
_STARTING = f"write {PROXY_ENVIRONMENT}"  # the last line before the proxy's start
_MOVING = "write /etc/cri-resmgr/kubelet.env"  # the last line before kubelet's
_SLOW = '{"serveDelaySeconds": 2}'
_THEIR_DROP_IN = "/etc/systemd/system/kubelet.service.d/99-theirs.conf"
_THEIR_UNIT = f"/opt/theirs/{PROXY}"
_THEIR_PROXY_DROP_IN = f"{PROXY_UNIT}.d/99-theirs.conf"
FULL = "No space left on device"


def _fill(directory: str) -> Act:
    """Until nothing fits any more."""
    return shell(
        f"mkdir -p {directory}; dd if=/dev/zero of={directory}/filler bs=4k count=12k 2>/dev/null; true"
    )


def _free(directory: str) -> Act:
    return shell(f"rm -f {directory}/filler")


def _full(directory: str, code: int, *says: str, when: str = "", before: Before = Before.BARE) -> Case:
    moment = f"while it is {when}" if when else "from the start"
    return Case(
        f"{directory} is full {moment}, {before}",
        _fill(directory),
        _free(directory),
        code,
        says,
        before=before,
        when=when,
        theirs=(f"{directory}/filler",),
    )


# Each of these is a small tmpfs on the host of this group.
SMALL = {
    "/opt": "16m",
    "/etc/cri-resmgr": "256k",
    "/etc/systemd/system/kubelet.service.d": "64k",
    "/var/lib/cri-resmgr-installer": "16m",
}

_FULL = (
    _full("/opt", 4, "MiB free", "free some space"),
    _full("/var/lib/cri-resmgr-installer", 4, "MiB free", "free some space"),
    _full("/etc/cri-resmgr", 5, FULL, "free some space", "as it was before"),
    _full("/etc/systemd/system/kubelet.service.d", 5, FULL, "free some space"),
    _full("/opt", 4, "MiB free", before=Before.UPGRADE),
    _full("/etc/cri-resmgr", 5, FULL, "free some space", before=Before.CONFIG),
    _full("/var/lib/cri-resmgr-installer", 5, FULL, "free some space", before=Before.CONFIG),
    _full("/var/lib/cri-resmgr-installer", 0, FULL, when=_STARTING, before=Before.UPGRADE),
    _full("/etc/systemd/system/kubelet.service.d", 5, FULL, "free some space", when=_LATE),
    _full("/var/lib/cri-resmgr-installer", 0, before=Before.SAME),
    Case(
        "all is full, and a removal",
        both(*map(_fill, SMALL)),
        both(*map(_free, SMALL)),
        0,
        kubelet=Kubelet.OWN,
        before=Before.SAME,
        verb="remove",
        theirs=tuple(f"{directory}/filler" for directory in SMALL),
    ),
    _full("/run", 4, "/run has 0 MiB", "free some space"),
    replace(_full("/run", 6, "not enough space", "by hand, on the node", when=_LATE), as_before=False),
    Case(
        "/run has no room for one more file",
        shell("i=0; while touch /run/filler.$i 2>/dev/null; do i=$((i+1)); done"),
        shell("rm -f /run/filler.*"),
        4,
        ("/run has", "df -i", "nothing was touched"),
    ),
)

_DISK = (
    Case(
        "an immutable file of ours",
        shell(f"chattr +i {PROXY_ENVIRONMENT}"),
        shell(f"chattr -i {PROXY_ENVIRONMENT}"),
        5,
        ("Operation not permitted", "chattr -i"),
    ),
    Case(
        "an immutable binary of ours",
        shell(f"chattr +i {BINARY}"),
        shell(f"chattr -i {BINARY}"),
        5,
        ("Operation not permitted", "chattr -i"),
        reboot=True,
    ),
    Case(
        "an immutable drop-in, and a removal",
        shell(f"chattr +i {DROP_IN}"),
        shell(f"chattr -i {DROP_IN}"),
        5,
        ("Operation not permitted", "chattr -i"),
        before=Before.SAME,
        verb="remove",
    ),
    Case(
        "an immutable directory",
        shell("chattr +i /etc/default"),
        shell("chattr -i /etc/default"),
        4,
        ("/etc/default", "immutable"),
        before=Before.BARE,
    ),
    Case(
        "a directory that becomes read-only meanwhile",
        shell("mount --bind /etc/cri-resmgr /etc/cri-resmgr; mount -o remount,ro,bind /etc/cri-resmgr"),
        shell("umount /etc/cri-resmgr"),
        6,
        ("Read-only file system", "remount"),
        before=Before.BARE,
        when=_LATE,
        as_before=False,
    ),
)

_BUS = (
    Case(
        "the bus daemon is stopped",
        shell("systemctl stop dbus.socket dbus.service"),
        shell("systemctl start dbus.socket dbus.service"),
        4,
        ("system bus", "systemctl status dbus"),
    ),
    Case(
        "the bus daemon is frozen",
        shell("systemctl kill --signal=STOP dbus.service"),
        shell("systemctl kill --signal=CONT dbus.service"),
        4,
        ("system bus", "systemctl status dbus"),
    ),
    *(
        Case(
            f"the bus daemon is restarted before {when!r} is over",
            both(fault("cri-resmgr", _SLOW), shell("sleep 0.5; systemctl restart dbus.service")),
            fault("cri-resmgr", ""),
            0,
            kubelet=Kubelet.RELAY,
            before=before,
            when=when,
        )
        for when, before in ((_STARTING, Before.UPGRADE), (_LATE, Before.BARE), (_MOVING, Before.BARE))
    ),
    Case(
        "the bus daemon is stopped in the middle of a job",
        both(fault("cri-resmgr", _SLOW), shell("sleep 0.5; systemctl stop dbus.socket dbus.service")),
        both(fault("cri-resmgr", ""), shell("systemctl start dbus.socket dbus.service")),
        6,
        ("system bus", "kubelet says that it is healthy", "systemctl restart dbus.service"),
        when=_STARTING,
        as_before=False,
    ),
    Case(
        "the bus daemon is frozen in the middle of a job",
        both(fault("cri-resmgr", _SLOW), shell("sleep 0.5; systemctl kill --signal=STOP dbus.service")),
        both(fault("cri-resmgr", ""), shell("systemctl kill --signal=CONT dbus.service")),
        6,
        ("has not answered", "kubelet says that it is healthy", "systemctl restart dbus.service"),
        when=_STARTING,
        as_before=False,
    ),
)

_UNITS = (
    Case(
        "a proxy that takes its full time to stop",
        both(fault("cri-resmgr", '{"ignoreTerm": true}'), shell(f"systemctl restart {PROXY}")),
        fault("cri-resmgr", ""),
        0,
    ),
    Case(
        "a proxy that takes its full time to stop, and a removal",
        both(fault("cri-resmgr", '{"ignoreTerm": true}'), shell(f"systemctl restart {PROXY}")),
        fault("cri-resmgr", ""),
        0,
        kubelet=Kubelet.OWN,
        before=Before.SAME,
        verb="remove",
    ),
    Case(
        "a kubelet that takes its full time to stop",
        both(
            written(_THEIR_DROP_IN, "[Service]\nTimeoutStopSec=4\n"),
            fault("kubelet", '{"ignoreTerm": true}'),
            shell("systemctl restart kubelet"),
            wait_until_healthy,
        ),
        both(fault("kubelet", ""), unlinked(_THEIR_DROP_IN)),
        0,
        kubelet=Kubelet.RELAY,
        before=Before.BARE,
        theirs=(_THEIR_DROP_IN,),
    ),
    Case(
        "the proxy's start limit is hit",
        both(
            fault("cri-resmgr", '{"startup": "exit"}'),
            shell(f"i=0; while [ $i -lt 25 ]; do systemctl restart {PROXY}; i=$((i+1)); done; true"),
            fault("cri-resmgr", ""),
        ),
        nothing,
        0,
    ),
    Case(
        "kubelet's start limit is hit",
        both(
            written(_THEIR_DROP_IN, "[Unit]\nStartLimitIntervalSec=60\nStartLimitBurst=1\n"),
            shell("systemctl restart kubelet; systemctl restart kubelet; true"),
        ),
        both(unlinked(_THEIR_DROP_IN), shell("systemctl reset-failed kubelet; systemctl start kubelet")),
        4,
        ("does not stay up", "start-limit", "journalctl"),
        kubelet=Kubelet.SICK,
        theirs=(_THEIR_DROP_IN,),
    ),
    Case(
        "the proxy's unit is masked",
        shell(f"ln -s /dev/null {PROXY_UNIT}; systemctl daemon-reload"),
        nothing,
        4,
        ("masked", f"systemctl unmask {PROXY}"),
        before=Before.BARE,
    ),
    Case(
        "the proxy's unit is masked until the next boot",
        shell(f"systemctl mask --runtime {PROXY}"),
        shell(f"systemctl unmask --runtime {PROXY}"),
        4,
        ("masked", f"systemctl unmask {PROXY}"),
        before=Before.BARE,
    ),
    Case(
        "the proxy's unit is a link to somebody's own",
        both(
            written(
                _THEIR_UNIT, "[Service]\nExecStart=/bin/sleep 1000\n[Install]\nWantedBy=multi-user.target\n"
            ),
            shell(f"systemctl enable --now {_THEIR_UNIT}"),
        ),
        nothing,
        0,
        kubelet=Kubelet.RELAY,
        before=Before.BARE,
    ),
)

_DROP_INS = tuple(
    Case(
        f"another drop-in sorts after ours and resets {what}, {before}",
        both(written(_THEIR_DROP_IN, f"[Service]\n{lines}"), shell(then)),
        both(unlinked(_THEIR_DROP_IN), shell(then)),
        code,
        says,
        kubelet=kubelet,
        before=before,
        theirs=(_THEIR_DROP_IN,),
    )
    for what, lines in (
        ("the environment files", "EnvironmentFile=\n"),
        ("what runs before", "ExecStartPre=\n"),
        ("the command", "ExecStart=\nExecStart=/usr/bin/kubelet --config=/var/lib/kubelet/config.yaml\n"),
    )
    for before, then, code, says, kubelet in (
        (Before.BARE, "systemctl restart kubelet", 5, ("99-theirs.conf",), Kubelet.OWN),
        (Before.SAME, "systemctl restart kubelet", 5, ("99-theirs.conf",), Kubelet.OWN),
    )
)

_SICK = (
    Case(
        "kubelet is sick already, and the version is bad",
        fault("kubelet", '{"healthz": false}'),
        fault("kubelet", ""),
        5,
        ("nothing is blamed",),
        kubelet=Kubelet.SICK,
    ),
)

GROUPS: Mapping[str, tuple[Case, ...]] = {
    "full": _FULL,
    "disk": _DISK,
    "bus": _BUS,
    "units": _UNITS,
    "drop-ins": _DROP_INS,
}
