"""Kubelets, proxies and runtimes that do not do what they should."""

from __future__ import annotations

import posixpath

from tests.faults.hosts.misfortunes.case import (
    Before,
    Case,
    Kubelet,
    both,
    fault,
    good_version,
    shell,
    soon,
    unlinked,
    version,
    wait_until_healthy,
    written,
)
from tests.host.node import KUBELET_ENVIRONMENT, PROXY_ENVIRONMENT, PROXY_UNIT, Node

_STARTING = f"write {PROXY_ENVIRONMENT}"  # the last line before the proxy's start
_MOVING = f"write {KUBELET_ENVIRONMENT}"  # the last line before kubelet's
_SLOW = '{"serveDelaySeconds": 2}'
_CRASHING = version({"exitAfterSeconds": 0.5})
_SOCKET = "/run/containerd/containerd.sock"
_KUBELET_RUNS = "until systemctl is-active -q kubelet; do sleep 0.2; done"
_RUNTIME_IS_BACK = "until systemctl is-active -q containerd; do sleep 0.2; done"
_SOCKET_IS_BACK = f"until [ -S {_SOCKET} ]; do sleep 0.2; done"
_THEIR_PROXY_DROP_IN = f"{PROXY_UNIT}.d/99-theirs.conf"


def _install(node: Node) -> None:
    node.run("install")


SICK = (
    Case(
        "kubelet is sick already, and the version does not work",
        both(_CRASHING, fault("kubelet", '{"healthz": false}')),
        # A proxy that dies while kubelet starts on it may have taken kubelet with it.
        both(fault("kubelet", ""), shell(_KUBELET_RUNS), good_version),
        5,
        ("keeps crashing", "it will be retried"),
        kubelet=Kubelet.SICK,
    ),
    Case(
        "the runtime is stopped, and the version does not work",
        both(_CRASHING, shell("systemctl stop containerd")),
        both(shell("systemctl start containerd"), good_version),
        4,
        ("the container runtime is not ready", "crictl info"),
        rare=True,
    ),
    *(
        Case(
            f"{what} is away for 20 s from the middle of an upgrade on",
            both(fault("cri-resmgr", _SLOW), soon(goes), soon(comes, 20.5)),
            both(fault("cri-resmgr", ""), over, wait_until_healthy),
            5,
            (
                "the container runtime does not answer",
                "the same command again",
                "systemctl status containerd",
            ),
            when=_STARTING,
            rare=rare,
        )
        for what, goes, comes, over, rare in (
            (
                *("the runtime", "systemctl stop containerd", "systemctl start containerd"),
                shell(_RUNTIME_IS_BACK),
                False,
            ),
            (
                *("the runtime's socket", f"mv {_SOCKET} {_SOCKET}.gone", f"mv {_SOCKET}.gone {_SOCKET}"),
                shell(_SOCKET_IS_BACK),
                True,
            ),
        )
    ),
    Case(
        "the runtime is away for 20 s, and nothing is to be done",
        both(soon("systemctl start containerd", 20), shell("systemctl stop containerd")),
        both(shell(_RUNTIME_IS_BACK), wait_until_healthy),
        4,
        ("the container runtime is not ready",),
        before=Before.SAME,
        rare=True,
    ),
    Case(
        "kubelet becomes sick on the relay while it settles",
        fault("kubelet", '{"onRelay": {"sickAfterAnswers": 1}}'),
        both(fault("kubelet", ""), good_version),
        5,
        ("stopped being ok", "as it was before"),
        kubelet=Kubelet.OWN,
        before=Before.BARE,
        boots_sick=True,
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
        "the runtime's socket is away for 20 s, and there is another version to install",
        both(soon(f"mv {_SOCKET}.gone {_SOCKET}", 20), shell(f"mv {_SOCKET} {_SOCKET}.gone")),
        shell(_SOCKET_IS_BACK),
        4,
        ("the container runtime is not ready",),
        rare=True,
    ),
    *(
        Case(
            f"another drop-in replaces the proxy's command, {before}",
            written(_THEIR_PROXY_DROP_IN, "[Service]\nExecStart=\nExecStart=/bin/sleep 1000\n"),
            both(unlinked(_THEIR_PROXY_DROP_IN), good_version),
            4,
            (_THEIR_PROXY_DROP_IN, "overrides", "ExecStart"),
            before=before,
            theirs=(posixpath.dirname(_THEIR_PROXY_DROP_IN),),
            rare=before is Before.BARE,
        )
        for before in (Before.UPGRADE, Before.BARE)
    ),
)


_PROXIES: tuple[tuple[str, dict[str, object]], ...] = (
    ("never listens", {"startup": "hang"}),
    ("accepts and never answers", {"startup": "listen-only"}),
    ("answers and then dies", {"exitAfterSeconds": 0.5}),
    ("dies when it has been on probation", {"exitAfterSeconds": 2.6}),
)

PROXIES = (
    Case(
        "a proxy that exits",
        version("exit"),
        good_version,
        2,
        ("does not start with any configuration", "unpack or build the payload again"),
        rare=True,
    ),
    Case(
        "a proxy that exits on this node only",
        fault("cri-resmgr", '{"startup": "exit"}'),
        both(fault("cri-resmgr", ""), good_version),
        5,
        ("this build is broken", "as it was before"),
        before=Before.BARE,
        rare=True,
    ),
    *(
        Case(
            f"a proxy that {what}, {before}",
            version(faults),
            good_version,
            5,
            (said,),
            kubelet=Kubelet.OWN if "probation" in what and before is Before.BARE else Kubelet.STAYED,
            before=before,
            crashes="exitAfterSeconds" in faults,
            rare=True,
        )
        for what, faults in _PROXIES
        for before, said in (
            (Before.BARE, "as it was before"),
            (Before.UPGRADE, "the last good generation is in place again"),
        )
        # Nobody looks at an upgrade for so long.
        if "probation" not in what or before is Before.BARE
    ),
    Case(
        "a proxy that accepts and never answers, and so does the last good one",
        fault("cri-resmgr", '{"startup": "listen-only"}'),
        fault("cri-resmgr", ""),
        6,
        ("healthy on its base endpoint and held there", " install --retry`"),
        kubelet=Kubelet.OWN,
        rare=True,
    ),
)

KUBELETS = (
    *(
        Case(
            f"a kubelet that {what} on the relay",
            fault("kubelet", f'{{"onRelay": {faults}}}'),
            both(fault("kubelet", ""), good_version),
            5,
            ("as it was before", "journal of kubelet.service"),
            kubelet=Kubelet.OWN,
            before=Before.BARE,
            boots_sick=True,
            rare=True,
        )
        for what, faults in (
            ("exits", '{"startup": "exit"}'),
            ("is never healthy", '{"startup": "hang"}'),
            ("flaps", '{"exitAfterSeconds": 0.4}'),
        )
    ),
    Case(
        "a kubelet that becomes sick on the relay when it has settled",
        both(_install, fault("kubelet", '{"onRelay": {"healthz": false}}')),
        fault("kubelet", ""),
        3,
        ("kubelet.service", "not healthy"),
        kubelet=Kubelet.SICK,
        before=Before.BARE,
        verb="status",
        rare=True,
    ),
)
