"""A booted node, kubeadm's unless another is asked for, and the program for it."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.host.command import Command, Ended
from tests.lib.throwaway import real
from tests.lib.throwaway.host import ThrowawayHost
from tests.lib.throwaway.kubelet import UNIT, install_kubelet, on_relay, wait_healthy
from tests.lib.throwaway.payload import build_payload
from tests.lib.throwaway.snapshot import difference, snapshot

PROXY = "cri-resource-manager.service"
BINARY = "/opt/intel/bin/cri-resmgr"
GUARD = "/opt/intel/bin/cri-resmgr-kubelet-guard"
PROXY_UNIT = "/etc/systemd/system/cri-resource-manager.service"
PROXY_ENVIRONMENT = "/etc/default/cri-resource-manager"
FALLBACK = "/etc/cri-resmgr/fallback.cfg"
KUBELET_ENVIRONMENT = "/etc/cri-resmgr/kubelet.env"
DROP_IN = "/etc/systemd/system/kubelet.service.d/90-cri-resmgr.conf"
OURS = (BINARY, GUARD, PROXY_UNIT, PROXY_ENVIRONMENT, FALLBACK, KUBELET_ENVIRONMENT, DROP_IN)
STATE = "/var/lib/cri-resmgr-installer"


class Node:
    """`before` is the host as it was when the node was made."""

    def __init__(self, host: ThrowawayHost, scratch: Path, flavour: str = "kubeadm") -> None:
        self.host = host
        self.scratch = scratch
        install_kubelet(host, flavour)
        self.command = Command(host, scratch)
        self.before = snapshot(host)

    def path(self, path: str) -> Path:
        return self.host.root / path[1:]

    def replace(self, path: str, content: bytes) -> None:
        """As an editor does: a program that runs cannot be written to."""
        file = self.path(path)
        mode = file.stat().st_mode
        file.unlink()
        file.write_bytes(content)
        file.chmod(mode)

    def fallback(self, text: str) -> None:
        (self.command.configs / "fallback.cfg").write_text(text)

    def upgrade(self, fault: str | dict[str, object] = "", version: str = "v0.9.3") -> None:
        """From now on the payload is another version; with `fault`, a broken one."""
        build_payload(self.command.payload, version=version, fault=fault)

    def fault(self, unit: str, text: str) -> None:
        """What goes wrong on this host when the stand-in for `unit` starts; empty: nothing. Raises
        NeedsStandInError where the real program is there instead."""
        if text:
            real.require_stand_in(unit, text)
        file = self.path(f"/etc/standin-{unit}.json")
        file.write_text(text) if text else file.unlink(missing_ok=True)

    def run(self, *argv: str, code: int = 0) -> Ended:
        ended = self.command(*argv)
        assert ended.code == code, ended.said
        return ended

    def invocations(self) -> tuple[str, str]:
        """Which start of kubelet and of the proxy runs now."""
        shown = self.host.systemctl("show", "--property=InvocationID", UNIT, PROXY)
        kubelet, proxy = (line.partition("=")[2] for line in shown.split())
        return kubelet, proxy

    @contextmanager
    def restarts(self, kubelet: bool, proxy: bool) -> Iterator[None]:
        """Exactly these units restart in the block."""
        before = self.invocations()
        yield
        after = self.invocations()
        assert (before[0] != after[0], before[1] != after[1]) == (kubelet, proxy)

    def put_back(self) -> None:
        """On the relay again, without a restart: on a busy machine the next proxy may come so late that the
        guard moves kubelet."""
        with self.restarts(kubelet=False, proxy=False):
            self.run("install")

    def on_relay(self) -> bool:
        return on_relay(self.host)

    def expect_good(self) -> None:
        """Converged and healthy, by our own word and by systemd's and kubelet's."""
        assert self.run("status").out.splitlines()[-1] == "converged and healthy"
        wait_healthy(self.host)
        assert self.on_relay()
        assert self.host.systemctl("is-active", PROXY) == "active"
        assert self.host.systemctl("is-enabled", PROXY, check=False) == "static"

    def complaints(self) -> list[str]:
        """What systemd has disliked since the boot in unit files with our name."""
        self.host.sync_journal()
        said = self.host.run(
            "journalctl", "--no-pager", "--output=cat", "--priority=warning", "_PID=1"
        ).stdout
        return [line for line in said.splitlines() if re.match(r"/[^:]*cri-res", line)]

    def expect_untraced(self, *, allowed: str = "") -> None:
        """The host is as it was, but for `allowed` and what is below it."""
        wait_healthy(self.host)
        assert not self.on_relay()
        left = difference(self.before, snapshot(self.host))
        left = [
            line
            for line in left
            if not (allowed and line.split()[1].startswith((f"{allowed}:", f"{allowed}/")))
        ]
        assert not left, "\n".join(left)
