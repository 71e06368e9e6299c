"""Nodes of other installers: refused without --adopt, taken over with it, then removed without a trace."""

from pathlib import Path

import pytest

from installer.model.paths import same_endpoint
from tests.host.command import untouched
from tests.host.node import Node
from tests.rules import rule
from tests.throwaway.earlier import KINDS
from tests.throwaway.host import ThrowawayHost
from tests.throwaway.kubelet import running_arguments, running_endpoint, wait_healthy
from tests.throwaway.payload import build_payload
from tests.throwaway.snapshot import difference, snapshot

DROP_INS = "/etc/systemd/system/kubelet.service.d"
#: What a takeover changes for good: kubelet's own file, and for how long it has been there.
REPAIRED = {
    "shell-installer": "/etc/systemd/system/kubelet.service",
    "flag": "/var/lib/kubelet/kubeadm-flags.env",
    "config": "/var/lib/kubelet/config.yaml",
    "drop-in": "/etc/systemd/system/kubelet.service.d/20-cri-resmgr.conf",
    "packaged": "/var/lib/kubelet/kubeadm-flags.env",
}


class Taken(Node):
    """A node that another installer has been at; `pristine` is how it was before."""

    def __init__(self, host: ThrowawayHost, scratch: Path, kind: str) -> None:
        flavour, make = KINDS[kind]
        super().__init__(host, scratch, flavour)
        self.pristine = self.before
        self.arguments = running_arguments(host)
        self.endpoint = running_endpoint(host)
        self.fallback("policy:\n  Active: none\n")
        make(host, build_payload(scratch / "release", version="v0.9.0"))

    def differences(self) -> list[str]:
        return difference(self.pristine, snapshot(self.host))


@pytest.fixture(params=sorted(REPAIRED))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def node(host: ThrowawayHost, tmp_path: Path, kind: str) -> Taken:
    return Taken(host, tmp_path, kind)


@rule("R3", "R6")
def test_taken_over_with_one_restart_each_and_removed_without_a_trace(node: Taken, kind: str) -> None:
    with untouched(node.host):
        refused = node.run("install", code=4).err
        planned = node.run("plan", "--adopt", "--diff", code=3).out
    assert "--adopt" in refused
    assert f"restore {REPAIRED[kind]} (an earlier installation has edited it)" in planned
    assert "containerd.sock" in planned

    cache = node.path("/var/lib/cri-resmgr/cache").stat().st_ino
    with node.restarts(kubelet=True, proxy=True):
        node.run("install", "--adopt")
    assert node.path("/var/lib/cri-resmgr/cache").exists(), cache
    node.expect_good()
    assert node.run("install").out == "nothing to do\n"

    node.run("remove")
    wait_healthy(node.host)
    assert same_endpoint(running_endpoint(node.host), node.endpoint)
    left = {line.split()[1].rstrip(":") for line in node.differences()}
    left -= {REPAIRED[kind], "/etc/sysconfig"}
    if kind == "drop-in":  # theirs, and stays
        left -= {"/etc/default/kubelet", DROP_INS, "kubelet:DropInPaths", "kubelet:Environment"}
    assert not left
    if kind == "shell-installer":
        assert running_arguments(node.host) == node.arguments
