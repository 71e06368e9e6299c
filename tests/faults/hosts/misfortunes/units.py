"""Units that are masked, linked, stopped slowly, started too often; drop-ins that come after ours."""

from __future__ import annotations

import posixpath

from tests.faults.hosts.misfortunes.case import (
    Before,
    Case,
    Kubelet,
    both,
    fault,
    nothing,
    once_started,
    shell,
    unlinked,
    wait_until_healthy,
    written,
)
from tests.host.node import KUBELET_ENVIRONMENT, PROXY, PROXY_ENVIRONMENT
from tests.lib.throwaway.kubelet import UNIT

_THEIR_DROP_IN = "/etc/systemd/system/kubelet.service.d/99-theirs.conf"
_THEIR_UNIT = f"/opt/theirs/{PROXY}"
_STARTING = f"write {PROXY_ENVIRONMENT}"  # the last line before the proxy's start
_MOVING = f"write {KUBELET_ENVIRONMENT}"  # the last line before kubelet's

UNITS = (
    *(
        Case(
            f"somebody else {verb}s the proxy while it {does}",
            both(fault("cri-resmgr", slow), once_started(PROXY, state, f"systemctl {verb} {PROXY}")),
            both(fault("cri-resmgr", ""), shell(f"systemctl start {PROXY}"), wait_until_healthy),
            5,
            (said, "it will be retried"),
            when=_STARTING,
            rare=rare,
        )
        for verb, does, state, slow, said, rare in (
            (
                "stop",
                "starts",
                "activating",
                '{"serveDelaySeconds": 2}',
                "the job ended as 'canceled'",
                False,
            ),
            ("stop", "settles", "active", "", "somebody else stopped it", True),
            ("restart", "settles", "active", "", "somebody else restarted it", False),
        )
    ),
    Case(
        "somebody else restarts kubelet while it settles",
        once_started(UNIT, "active", f"systemctl restart {UNIT}"),
        wait_until_healthy,
        5,
        ("somebody else restarted it", "it will be retried", "as it was before"),
        kubelet=Kubelet.OWN,
        before=Before.BARE,
        when=_MOVING,
    ),
    *(
        Case(
            f"a proxy that takes its full time to stop, {verb}",
            both(fault("cri-resmgr", '{"ignoreTerm": true}'), shell(f"systemctl restart {PROXY}")),
            fault("cri-resmgr", ""),
            0,
            kubelet=kubelet,
            before=before,
            verb=verb,
            rare=verb == "install",
        )
        for verb, before, kubelet in (
            ("install", Before.UPGRADE, Kubelet.STAYED),
            ("remove", Before.SAME, Kubelet.OWN),
        )
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
        ("keeps crashing", "start-limit", "journalctl"),
        kubelet=Kubelet.SICK,
        theirs=(_THEIR_DROP_IN,),
        rare=True,
    ),
    *(
        Case(
            f"the proxy's unit is masked below {place}",
            shell(f"systemctl mask {option} {PROXY}"),
            shell(f"systemctl unmask {option} {PROXY}"),
            4,
            ("masked", f"systemctl unmask {PROXY}"),
            before=Before.BARE,
            theirs=(f"{place}/systemd/system/{PROXY}",),
            rare=place == "/run",
        )
        for place, option in (("/etc", ""), ("/run", "--runtime"))
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
    Case(
        "a kubelet that takes longer to stop than its restart may take",
        both(
            written(_THEIR_DROP_IN, "[Service]\nTimeoutStopSec=60\n"),
            fault("kubelet", '{"ignoreTerm": true}'),
            shell("systemctl restart kubelet"),
            wait_until_healthy,
        ),
        both(
            unlinked(_THEIR_DROP_IN),
            fault("kubelet", ""),
            shell("systemctl kill --signal=KILL kubelet; systemctl restart kubelet"),
        ),
        5,
        ("it is still stopping", "TimeoutStopUSec", "it will be retried", "as it was before"),
        kubelet=Kubelet.OWN,
        before=Before.BARE,
        theirs=(_THEIR_DROP_IN, f"{posixpath.dirname(_THEIR_DROP_IN)}:"),
        seconds=90,
        rare=True,
    ),
    Case(
        "kubelet's unit is masked",
        shell("systemctl mask kubelet"),
        both(shell("systemctl unmask kubelet; systemctl start kubelet"), wait_until_healthy),
        4,
        ("masked", "systemctl unmask kubelet.service"),
        before=Before.BARE,
        theirs=("/etc/systemd/system/kubelet.service",),
        boots_sick=True,
        rare=True,
    ),
    Case(
        "kubelet's unit is linked from elsewhere",
        shell(
            "mkdir /opt/theirs; cp -p /usr/lib/systemd/system/kubelet.service /opt/theirs/;"
            "systemctl link /opt/theirs/kubelet.service"
        ),
        shell("rm -r /etc/systemd/system/kubelet.service /opt/theirs; systemctl daemon-reload"),
        0,
        kubelet=Kubelet.RELAY,
        before=Before.BARE,
        rare=True,
    ),
    Case(
        "the directory of kubelet's drop-ins is a link",
        shell("mkdir -p /opt/theirs; ln -sfn /opt/theirs /etc/systemd/system/kubelet.service.d"),
        nothing,
        0,
        kubelet=Kubelet.RELAY,
        before=Before.BARE,
        rare=True,
    ),
    Case(
        "a file of ours has become a link, and a removal",
        shell(
            f"mkdir /opt/theirs; mv {PROXY_ENVIRONMENT} /opt/theirs/; ln -s /opt/theirs/* {PROXY_ENVIRONMENT}"
        ),
        nothing,
        0,
        kubelet=Kubelet.OWN,
        before=Before.SAME,
        verb="remove",
        theirs=("/opt/theirs",),
        rare=True,
    ),
)

DROP_INS = tuple(
    Case(
        f"another drop-in sorts after ours and resets {what}, {before}",
        both(written(_THEIR_DROP_IN, f"[Service]\n{lines}"), shell(then)),
        both(unlinked(_THEIR_DROP_IN), shell(then)),
        code,
        says,
        kubelet=Kubelet.OWN,
        before=before,
        theirs=(posixpath.dirname(_THEIR_DROP_IN),),
        rare=(before is Before.BARE) is not ("ExecStart=" in lines) or "Environment" in lines,
    )
    for what, lines in (
        ("the environment files", "EnvironmentFile=\n"),
        ("what runs before", "ExecStartPre=\n"),
        ("the command", "ExecStart=\nExecStart=/usr/bin/kubelet --config=/var/lib/kubelet/config.yaml\n"),
    )
    for before, then, code, says in (
        (Before.BARE, "systemctl restart kubelet", 4, ("99-theirs.conf comes later", "rename")),
        (Before.SAME, "systemctl restart kubelet", 4, ("99-theirs.conf comes later", "rename")),
    )
)
