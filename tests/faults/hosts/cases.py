"""The table: every way in which a system misbehaves, in the groups that share a host."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import replace

from tests.faults.hosts.misfortune import (
    Act,
    Before,
    Case,
    Kubelet,
    both,
    fault,
    good_version,
    nothing,
    shell,
    unlinked,
    wait_until_healthy,
    written,
)
from tests.host.node import BINARY, DROP_IN, OURS, PROXY, PROXY_ENVIRONMENT, PROXY_UNIT

_LATE = f"enable {PROXY}"
_STARTING = f"write {PROXY_ENVIRONMENT}"  # the last line before the proxy's start
_MOVING = "write /etc/cri-resmgr/kubelet.env"  # the last line before kubelet's
_SLOW = '{"serveDelaySeconds": 2}'
_THEIR_DROP_IN = "/etc/systemd/system/kubelet.service.d/99-theirs.conf"
_BACK_IN_20 = "systemd-run --on-active=20 --timer-property=AccuracySec=100ms systemctl start containerd"
_RUNTIME_IS_BACK = "until systemctl is-active -q containerd; do sleep 0.2; done"
_LOCK = "/run/lock/cri-resmgr-installer.lock"
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


def _full(
    directory: str,
    code: int,
    *says: str,
    when: str = "",
    before: Before = Before.BARE,
    rare: bool = False,
) -> Case:
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
        rare=rare,
    )


# Each of these is a small tmpfs on the host of this group.
SMALL = {
    "/opt": "16m",
    "/etc/cri-resmgr": "256k",
    "/etc/systemd/system/kubelet.service.d": "64k",
    "/var/lib/cri-resmgr-installer": "16m",
}

_FULL = (
    _full("/opt", 4, "MiB free", "free some space", rare=True),
    _full("/var/lib/cri-resmgr-installer", 4, "MiB free", "free some space", rare=True),
    _full("/etc/cri-resmgr", 5, FULL, "free some space", "as it was before", rare=True),
    _full("/etc/systemd/system/kubelet.service.d", 5, FULL, "free some space"),
    _full("/opt", 4, "MiB free", before=Before.UPGRADE, rare=True),
    _full("/etc/cri-resmgr", 5, FULL, "free some space", before=Before.CONFIG),
    _full("/var/lib/cri-resmgr-installer", 5, FULL, "free some space", before=Before.CONFIG),
    _full("/var/lib/cri-resmgr-installer", 0, FULL, when=_STARTING, before=Before.UPGRADE),
    _full("/etc/systemd/system/kubelet.service.d", 5, FULL, "free some space", when=_LATE, rare=True),
    _full("/var/lib/cri-resmgr-installer", 0, before=Before.SAME, rare=True),
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
        theirs=("/run/filler",),
    ),
)

_DISK = (
    Case(
        "an immutable file of ours",
        shell(f"chattr +i {PROXY_ENVIRONMENT}"),
        shell(f"chattr -i {PROXY_ENVIRONMENT}"),
        5,
        ("Operation not permitted", "chattr -i"),
        rare=True,
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
        rare=True,
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
        rare=True,
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
            rare=when != _STARTING,
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
        rare=True,
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
        both(fault("kubelet", ""), shell("systemctl restart kubelet"), unlinked(_THEIR_DROP_IN)),
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
        rare=True,
    ),
    Case(
        "the proxy's unit is masked",
        shell(f"systemctl mask {PROXY}"),
        shell(f"systemctl unmask {PROXY}"),
        4,
        ("masked", f"systemctl unmask {PROXY}"),
        before=Before.BARE,
        theirs=(PROXY_UNIT,),
        reboot=True,
    ),
    Case(
        "the proxy's unit is masked until the next boot",
        shell(f"systemctl mask --runtime {PROXY}"),
        shell(f"systemctl unmask --runtime {PROXY}"),
        4,
        ("masked", f"systemctl unmask {PROXY}"),
        before=Before.BARE,
        theirs=(f"/run/systemd/system/{PROXY}",),
        rare=True,
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
        # Without what runs before, nobody says whether the relay is ready: what was composed last stands.
        kubelet=kubelet or (Kubelet.RELAY if "Pre" in lines else Kubelet.OWN),
        before=before,
        theirs=(posixpath.dirname(_THEIR_DROP_IN),),
        rare=(before is Before.BARE) is not ("ExecStart=" in lines) or "Environment" in lines,
        reboot=before is Before.SAME,
    )
    for what, lines in (
        ("the environment files", "EnvironmentFile=\n"),
        ("what runs before", "ExecStartPre=\n"),
        ("the command", "ExecStart=\nExecStart=/usr/bin/kubelet --config=/var/lib/kubelet/config.yaml\n"),
    )
    for before, then, code, says, kubelet in (
        (Before.BARE, "systemctl restart kubelet", 4, ("99-theirs.conf comes later", "rename"), Kubelet.OWN),
        (Before.SAME, "systemctl restart kubelet", 4, ("99-theirs.conf comes later", "rename"), None),
    )
)

_SICK = (
    Case(
        "kubelet is sick already, and the version does not work",
        fault("kubelet", '{"healthz": false}'),
        both(fault("kubelet", ""), good_version),
        5,
        ("does not stay up", "nothing is blamed"),
        kubelet=Kubelet.SICK,
        before=Before.BAD,
    ),
    Case(
        "the runtime is stopped, and the version does not work",
        shell("systemctl stop containerd"),
        both(shell("systemctl start containerd"), good_version),
        4,
        ("the container runtime does not answer", "crictl info"),
        before=Before.BAD,
        rare=True,
    ),
    Case(
        "the runtime is away for 20 s from the middle of an upgrade on",
        both(fault("cri-resmgr", _SLOW), shell(f"sleep 0.5; {_BACK_IN_20} && systemctl stop containerd")),
        both(fault("cri-resmgr", ""), shell(_RUNTIME_IS_BACK), wait_until_healthy),
        5,
        ("the container runtime does not answer", "nothing is blamed", "systemctl status containerd"),
        when=_STARTING,
    ),
    Case(
        "the runtime is away for 20 s, and nothing is to be done",
        shell(f"{_BACK_IN_20} && systemctl stop containerd"),
        both(shell(_RUNTIME_IS_BACK), wait_until_healthy),
        4,
        ("the container runtime does not answer",),
        before=Before.SAME,
        rare=True,
    ),
    Case(
        "kubelet becomes sick on the relay while it settles",
        fault("kubelet", '{"onRelay": {"sickAfterSeconds": 0.6}}'),
        both(fault("kubelet", ""), good_version),
        5,
        ("stopped being ok", "as it was before"),
        kubelet=Kubelet.OWN,
        before=Before.BARE,
    ),
    Case(
        "kubelet becomes sick on every endpoint when it is moved",
        fault("kubelet", '{"healthz": false}'),
        both(fault("kubelet", ""), good_version),
        6,
        ("is not ok", "NOT healthy", "systemctl restart kubelet.service"),
        kubelet=Kubelet.SICK,
        before=Before.BARE,
        when=_MOVING,
        as_before=False,
        seconds=40,
        rare=True,
    ),
    Case(
        "kubelet is sick, and nothing is to be done",
        fault("kubelet", '{"healthz": false}'),
        fault("kubelet", ""),
        0,
        ("nothing to do",),
        kubelet=Kubelet.SICK,
        before=Before.SAME,
        rare=True,
    ),
    Case(
        "another drop-in replaces the proxy's command",
        written(_THEIR_PROXY_DROP_IN, "[Service]\nExecStart=\nExecStart=/bin/sleep 1000\n"),
        both(unlinked(_THEIR_PROXY_DROP_IN), good_version),
        4,
        (_THEIR_PROXY_DROP_IN, "takes away", "ExecStart"),
        theirs=(posixpath.dirname(_THEIR_PROXY_DROP_IN),),
        reboot=True,
    ),
    Case(
        "another drop-in replaces the proxy's command, nothing of ours",
        written(_THEIR_PROXY_DROP_IN, "[Service]\nExecStart=\nExecStart=/bin/sleep 1000\n"),
        both(unlinked(_THEIR_PROXY_DROP_IN), good_version),
        4,
        (_THEIR_PROXY_DROP_IN, "takes away", "ExecStart"),
        before=Before.BARE,
        theirs=(posixpath.dirname(_THEIR_PROXY_DROP_IN),),
        rare=True,
    ),
)

_LEFTOVERS = (
    Case(
        "a lock that somebody left who is dead, with the number of a process that lives",
        shell(f"echo 'pid 1 on {{}}: cri-resmgr-installer install' >{_LOCK}"),
        nothing,
        0,
    ),
    Case(
        "a lock that somebody holds",
        shell(
            f"systemd-run --unit=holder flock {_LOCK} sleep 1000; until ! flock -n {_LOCK} true; do :; done"
        ),
        shell(f"systemctl stop holder; rm -f {_LOCK}"),
        75,
        ("another run holds the host's lock", "wait until it has ended"),
        theirs=(_LOCK,),
    ),
    Case(
        "a directory where the lock is",
        shell(f"mkdir {_LOCK}"),
        shell(f"rmdir {_LOCK}"),
        4,
        (_LOCK, "nothing was touched"),
        rare=True,
        theirs=(_LOCK,),
    ),
    Case(
        "a pid file with the number of another process",
        shell(f"systemctl kill -s KILL {PROXY}; echo 1 >/run/cri-resmgr.pid"),
        nothing,
        0,
        rare=True,
    ),
    Case(
        "half a file, by the number of a process that lives, and a removal",
        shell(
            "echo half >/etc/cri-resmgr/.fallback.cfg.cri-resmgr-installer.1;"
            "echo half >/var/lib/cri-resmgr-installer/.record.json.cri-resmgr-installer.1"
        ),
        nothing,
        0,
        kubelet=Kubelet.OWN,
        before=Before.SAME,
        verb="remove",
    ),
    Case(
        "a clock that was set back: every file of ours is of the next hour",
        shell(
            f"find {' '.join(OURS)} /var/lib/cri-resmgr-installer -exec touch -d '+1 hour' {{}} + &&"
            "systemctl daemon-reload"
        ),
        nothing,
        0,
    ),
    Case(
        "a clock that was set back, and a removal",
        shell(
            f"find {' '.join(OURS)} /var/lib/cri-resmgr-installer -exec touch -d '+1 hour' {{}} + &&"
            "systemctl daemon-reload"
        ),
        nothing,
        0,
        kubelet=Kubelet.OWN,
        before=Before.SAME,
        verb="remove",
        rare=True,
    ),
)

GROUPS: Mapping[str, tuple[Case, ...]] = {
    "full": _FULL,
    "disk": _DISK,
    "bus": _BUS,
    "units": _UNITS,
    "drop-ins": _DROP_INS,
    "sick": _SICK,
    "leftovers": _LEFTOVERS,
}
