"""Nodes as other installers leave them, made as those make them.

The shell installer of the Gardener extension for cri-resmgr copies the release, deletes each line of
kubelet.service that has the word "containerd", and puts the relay's flag behind $KUBELET_EXTRA_ARGS, with a
backslash after it. People unpack the release by hand, and name the relay where their kubelet takes it from.
"""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.lib.throwaway.furnish import write
from tests.lib.throwaway.host import ThrowawayHost
from tests.lib.throwaway.kubelet import UNIT, wait_healthy
from tests.lib.throwaway.payload import lay_payload

PROXY = "cri-resource-manager.service"
RELAY = "/var/run/cri-resmgr/cri-resmgr.sock"
FALLBACK = "policy:\n  Active: none\n"
UNIT_FILE = "etc/systemd/system/kubelet.service"


def unpack_release(host: ThrowawayHost, payload: Path, fallback: str = FALLBACK) -> None:
    """The release with a configuration, enabled and running; kubelet does not know of it."""
    lay_payload(host, payload)
    write(host.disk / "etc/cri-resmgr/fallback.cfg", fallback)
    host.systemctl("daemon-reload")
    host.systemctl("enable", PROXY)
    host.systemctl("restart", PROXY)
    await_relay(host)


def await_relay(host: ThrowawayHost) -> None:
    """Until the proxy serves: it writes its pid file then."""
    host.run("sh", "-c", "until [ -s /run/cri-resmgr.pid ]; do sleep 0.05; done")


def shell_installer(host: ThrowawayHost, payload: Path) -> None:
    """A Gardener node after the shell installer."""
    unpack_release(host, payload)
    unit = host.disk / UNIT_FILE
    unit.write_text(cut(unit.read_text()))
    _restart_kubelet(host)


def cut(unit: str) -> str:
    """A kubelet.service as that installer edits it."""
    kept = [line for line in unit.split("\n") if "containerd" not in line]
    flag = f"    --container-runtime-endpoint={RELAY}\\"
    behind = re.compile(r"(KUBELET_EXTRA_ARGS)$", re.M)
    return behind.sub(lambda found: f"{found[1]} \\\n{flag}", "\n".join(kept))


def by_flag(host: ThrowawayHost, payload: Path) -> None:
    """A kubeadm node whose flags name the relay."""
    unpack_release(host, payload)
    _edit(host, "var/lib/kubelet/kubeadm-flags.env", r"unix://\S*/containerd\.sock", f"unix://{RELAY}")


def by_config(host: ThrowawayHost, payload: Path) -> None:
    """A newer kubeadm node whose kubelet configuration names the relay."""
    unpack_release(host, payload)
    _edit(host, "var/lib/kubelet/config.yaml", r"unix://\S*/containerd\.sock", f"unix://{RELAY}")


def by_drop_in(host: ThrowawayHost, payload: Path) -> None:
    """A drop-in names the relay, and ties kubelet to the proxy's unit."""
    unpack_release(host, payload)
    text = f"[Unit]\nAfter={PROXY}\nRequires={PROXY}\n[Service]\n"
    text += f'Environment="KUBELET_EXTRA_ARGS=--container-runtime-endpoint=unix://{RELAY}"\n'
    write(host.disk / f"{UNIT_FILE}.d/20-cri-resmgr.conf", text)
    for path in ("etc/default/kubelet", "etc/sysconfig/kubelet"):
        (host.disk / path).unlink(missing_ok=True)
    _restart_kubelet(host)


def packaged(host: ThrowawayHost, payload: Path) -> None:
    """The files where upstream's rpm has them, by hand, and the unit enabled for kubelet's alone; kubeadm's
    flags name the relay."""
    lay_payload(host, payload)
    moved = {
        f"etc/systemd/system/{PROXY}": f"usr/lib/systemd/system/{PROXY}",
        "etc/default/cri-resource-manager": "etc/sysconfig/cri-resource-manager",
        "opt/intel/bin/cri-resmgr": "usr/bin/cri-resmgr",
    }
    for source, target in moved.items():
        (host.disk / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(host.disk / source, host.disk / target)
    unit = host.disk / f"usr/lib/systemd/system/{PROXY}"
    text = unit.read_text().replace("/etc/default/", "/etc/sysconfig/")
    unit.write_text(text.replace("/opt/intel/bin/", "/usr/bin/"))
    write(host.disk / "etc/cri-resmgr/fallback.cfg", FALLBACK)
    host.systemctl("daemon-reload")
    host.systemctl("add-wants", UNIT, PROXY)
    host.systemctl("restart", PROXY)
    await_relay(host)
    _edit(host, "var/lib/kubelet/kubeadm-flags.env", r"unix://\S*/containerd\.sock", f"unix://{RELAY}")


def _edit(host: ThrowawayHost, path: str, old: str, new: str) -> None:
    file = host.disk / path
    text, count = re.subn(old, new, file.read_text())
    assert count, f"{path} has no {old}"
    file.write_text(text)
    _restart_kubelet(host)


def _restart_kubelet(host: ThrowawayHost) -> None:
    host.systemctl("daemon-reload")
    host.systemctl("restart", UNIT)
    wait_healthy(host)


#: How each kind of node is made, and on which kubelet.
KINDS: dict[str, tuple[str, Callable[[ThrowawayHost, Path], None]]] = {
    "shell-installer": ("gardener-set", shell_installer),
    "flag": ("kubeadm", by_flag),
    "config": ("kubeadm-136", by_config),
    "drop-in": ("kubeadm", by_drop_in),
    "packaged": ("kubeadm", packaged),
}
