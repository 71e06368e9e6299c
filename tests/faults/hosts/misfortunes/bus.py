"""The bus, locks, numbers of processes, clocks."""

from __future__ import annotations

from tests.faults.hosts.misfortunes.case import (
    Before,
    Case,
    Kubelet,
    both,
    fault,
    good_version,
    nothing,
    shell,
    soon,
)
from tests.faults.hosts.misfortunes.program import set_clock
from tests.host.node import KUBELET_ENVIRONMENT, OURS, PROXY, PROXY_ENVIRONMENT

_RELOADING = "daemon-reload"
_STARTING = f"write {PROXY_ENVIRONMENT}"  # the last line before the proxy's start
_MOVING = f"write {KUBELET_ENVIRONMENT}"  # the last line before kubelet's
_SLOW = '{"serveDelaySeconds": 2}'
_LOCK = "/run/cri-resmgr-installer.lock"
# Sets the number of the next process that the kernel starts on this host.
_REUSED = f"""
pid=$(systemctl show --value --property=MainPID {PROXY})
systemctl stop {PROXY}
mount -o remount,rw,bind /proc/sys
for i in 1 2 3 4 5 6 7 8 9; do
    echo $((pid - 1)) >/proc/sys/kernel/ns_last_pid
    sleep 1000 >/dev/null 2>&1 &
    [ $! != $pid ] || break
    kill $!
done
[ $! = $pid ] && grep -qx $pid /run/cri-resmgr.pid
"""

#: The systemctl commands, their effect, and the message about it in the middle of a job.
_BUS_DAEMON = (
    ("is stopped", "stop dbus.socket dbus.service", "start dbus.socket dbus.service", "system bus"),
    (
        *("is frozen", "kill --signal=STOP dbus.service", "kill --signal=CONT dbus.service"),
        "has not answered",
    ),
)

BUS = (
    *(
        Case(
            f"the bus daemon {what}",
            shell(f"systemctl {goes}"),
            shell(f"systemctl {comes}"),
            4,
            ("system bus", "systemctl status dbus"),
            rare="frozen" in what,
        )
        for what, goes, comes, _said in _BUS_DAEMON
    ),
    *(
        Case(
            f"the bus daemon is restarted before {when!r} is over",
            both(fault("cri-resmgr", _SLOW), soon("systemctl restart dbus.service")),
            fault("cri-resmgr", ""),
            0,
            kubelet=Kubelet.RELAY,
            before=before,
            when=when,
            rare=when != _STARTING,
        )
        for when, before in ((_STARTING, Before.UPGRADE), (_RELOADING, Before.BARE), (_MOVING, Before.BARE))
    ),
    *(
        Case(
            f"the bus daemon {what} in the middle of a job",
            both(fault("cri-resmgr", _SLOW), soon(f"systemctl {goes}")),
            both(fault("cri-resmgr", ""), shell(f"systemctl {comes}")),
            6,
            (said, "kubelet reports healthy", "systemctl restart dbus.service"),
            when=_STARTING,
        )
        for what, goes, comes, said in _BUS_DAEMON
    ),
)

LEFTOVERS = (
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
        ("another run holds the host lock", "wait until it has ended"),
        theirs=(_LOCK,),
    ),
    Case(
        "a directory where the lock is",
        shell(f"mkdir {_LOCK}"),
        shell(f"rm -df {_LOCK}"),  # a power cut has removed it
        4,
        ("cannot acquire the host lock", "clear the path"),
    ),
    Case(
        "a pid file with the number of another process",
        shell(f"systemctl kill -s KILL {PROXY}; echo 1 >/run/cri-resmgr.pid"),
        nothing,
        0,
        rare=True,
    ),
    Case(
        "the number of the proxy that has ended is another process's",
        shell(_REUSED),
        shell("pkill -x -f 'sleep 1000'; true"),
        0,
        before=Before.SAME,
        rare=True,
    ),
    Case(
        "half a file, by the number of a process that lives, and a removal",
        shell(
            "echo half >/etc/cri-resmgr/.fallback.cfg.cri-resmgr-installer;"
            "echo half >/var/lib/cri-resmgr-installer/.record.json.cri-resmgr-installer"
        ),
        nothing,
        0,
        kubelet=Kubelet.OWN,
        before=Before.SAME,
        verb="remove",
    ),
    *(
        Case(
            f"a clock that was set back: every file of ours is of the next hour, {verb}",
            shell(
                f"find {' '.join(OURS)} /var/lib/cri-resmgr-installer -exec touch -d '+1 hour' {{}} + &&"
                "systemctl daemon-reload"
            ),
            nothing,
            0,
            kubelet=kubelet,
            before=before,
            verb=verb,
            rare=verb == "remove",
        )
        for verb, before, kubelet in (
            ("install", Before.UPGRADE, Kubelet.STAYED),
            ("remove", Before.SAME, Kubelet.OWN),
        )
    ),
    *(
        Case(
            f"the clock is set back an hour after {when!r}, {verb}, {before}",
            set_clock("-3600"),
            nothing,
            0,
            kubelet=kubelet,
            before=before,
            verb=verb,
            when=when,
            clock=True,
            rare=verb == "remove",
        )
        for when, verb, before, kubelet in (
            (_STARTING, "install", Before.BARE, Kubelet.RELAY),
            ("wait until the relay", "install", Before.BARE, Kubelet.RELAY),
            (f"delete {KUBELET_ENVIRONMENT}", "remove", Before.SAME, Kubelet.OWN),
        )
    ),
    Case(
        "the clock is set back an hour, and the proxy does not work",
        both(fault("cri-resmgr", '{"exitAfterSeconds": 0.5}'), set_clock("-3600")),
        both(fault("cri-resmgr", ""), good_version),
        5,
        ("as it was before",),
        before=Before.BARE,
        when=_RELOADING,
        clock=True,
        rare=True,
    ),
)
