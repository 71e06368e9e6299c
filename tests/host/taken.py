"""A node that another installer has been at, for tests of its takeover."""

from __future__ import annotations

from pathlib import Path

from installer.model.paths import same_endpoint
from tests.host.node import Node
from tests.lib.throwaway.earlier import KINDS
from tests.lib.throwaway.host import ThrowawayHost
from tests.lib.throwaway.kubelet import running_arguments, running_endpoint, wait_healthy
from tests.lib.throwaway.payload import build_payload
from tests.lib.throwaway.snapshot import difference, snapshot

DROP_INS = "/etc/systemd/system/kubelet.service.d"
#: What a takeover changes for good: kubelet's own file, and for how long it has been there.
REPAIRED = {
    "shell-installer": "/etc/systemd/system/kubelet.service",
    "flag": "/var/lib/kubelet/kubeadm-flags.env",
    "config": "/var/lib/kubelet/config.yaml",
    "drop-in": f"{DROP_INS}/20-cri-resmgr.conf",
    "packaged": "/var/lib/kubelet/kubeadm-flags.env",
}


class Taken(Node):
    """`kind` is one of KINDS; `pristine` is the host before the other installer came."""

    def __init__(self, host: ThrowawayHost, scratch: Path, kind: str) -> None:
        flavour, make = KINDS[kind]
        super().__init__(host, scratch, flavour)
        self.kind = kind
        self.pristine = self.before
        self.arguments = running_arguments(host)
        self.endpoint = running_endpoint(host)
        self.fallback("policy:\n  Active: none\n")
        make(host, build_payload(scratch / "release", version="v0.9.0"))

    def expect_neither(self) -> None:
        """Neither us nor the other installer: kubelet is on the runtime, and nothing else is left."""
        wait_healthy(self.host)
        assert same_endpoint(running_endpoint(self.host), self.endpoint)
        left = {line.split()[1].rstrip(":") for line in difference(self.pristine, snapshot(self.host))}
        left -= {REPAIRED[self.kind], "/etc/sysconfig"}
        if self.kind == "drop-in":  # theirs, and stays
            left -= {"/etc/default/kubelet", DROP_INS, "kubelet:DropInPaths", "kubelet:Environment"}
        if self.kind == "shell-installer":  # what it has deleted is only named
            left -= {"kubelet:After", "kubelet:Wants", "kubelet:ExecStart", "kubelet:ExecStartEx"}
            kept = tuple(word for word in self.arguments if not word.startswith("--runtime-cgroups="))
            assert tuple(running_arguments(self.host)) == kept
        assert not left, left
