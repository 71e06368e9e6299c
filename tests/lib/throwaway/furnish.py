"""Turns a bootstrapped system into the root of a small node.

Works on a tree below a root directory, before the host's first boot. Keeps what
a node of any distribution has (systemd, journald, D-Bus, a container runtime)
and takes away the rest: enabled services, its identity, and a kubelet or
cri-resmgr, if there is one.
"""

import os
import shutil
import uuid
from pathlib import Path

#: What systemd is to start by itself; everything else that some directory wants
#: (timers, consoles, device managers) is forgotten.
WANTED = frozenset(
    {
        "dbus.service",
        "dbus.socket",
        "systemd-journal-flush.service",
        "systemd-journald-dev-log.socket",
        "systemd-journald.service",
        "systemd-journald.socket",
        "systemd-tmpfiles-setup-dev.service",
        "systemd-tmpfiles-setup.service",
    }
)

UNIT_DIRECTORIES = (
    "etc/systemd/system",
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
)

#: Emptied or removed: what the installer, a kubelet or a runtime would put there.
PRIVATE = (
    "etc/cni",
    "etc/containerd",
    "etc/cri-resmgr",
    "etc/crio",
    "etc/default/cri-resource-manager",
    "etc/default/kubelet",
    "etc/kubernetes",
    "etc/sysconfig/kubelet",
    "etc/systemd/system",
    "usr/bin/kubelet",
    "var/lib/cri-resmgr",
    "var/lib/cri-resmgr-installer",
    "var/lib/kubelet",
    "var/log/journal",
)

RUNTIME_SOCKETS = {
    "containerd": "/run/containerd/containerd.sock",
    "crio": "/var/run/crio/crio.sock",
    "containerd-node": "/run/node/private/containerd.sock",
}

#: Where images are served, if that is another socket.
IMAGE_SOCKETS = {"crio": "/run/crio/images.sock"}

#: The only image there is, for sandboxes too: a pull would have to fail.
IMAGE = "localhost/throwaway/busybox:1"

# restrict_oom_score_adj: some kernels withhold CAP_SYS_RESOURCE.
CONTAINERD_CONFIG = f"""\
version = 2
disabled_plugins = [
  "io.containerd.internal.v1.tracing",
  "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs",
  "io.containerd.tracing.processor.v1.otlp",
]

[grpc]
  address = "@SOCKET@"

[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true
  sandbox_image = "{IMAGE}"
"""

#: What containerd needs beside it, and where a distribution has each.
RUNTIME_PROGRAMS = {
    "containerd": "usr/bin",
    "containerd-shim-runc-v2": "usr/bin",
    "ctr": "usr/bin",
    "runc": "usr/sbin",
}

# Before=: not every kubelet unit waits for its runtime, and whether the first try
# fails (and costs RestartSec) would be left to chance at each boot.
# The remount: nspawn shows the controllers of cgroup v1 read-only, which no container would
# start under. With cgroup v2 there is nothing to do.
RUNTIME_SERVICE = """\
[Unit]
Description=@NAME@ container runtime
After=network.target local-fs.target
Before=kubelet.service

[Service]
Type=notify
ExecStartPre=/bin/sh -c 'for d in /sys/fs/cgroup/*/; do mount -o remount,rw,bind "$d" 2>/dev/null || :; done'
ExecStart=/usr/bin/containerd --config @CONFIG@
Delegate=yes
KillMode=process
Restart=always
RestartSec=5
LimitNPROC=infinity
LimitCORE=infinity
LimitNOFILE=infinity
TasksMax=infinity
OOMScoreAdjust=-999

[Install]
WantedBy=multi-user.target
"""


def remove(path: Path) -> None:
    """Removes a file, link or directory; nothing there is fine."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def write(path: Path, content: str, mode: int = 0o644) -> None:
    """Writes a file with the directories it needs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    path.chmod(mode)


def furnish(root: Path, runtime: str) -> None:
    """Makes `root`, a bootstrapped system, a node with `runtime` enabled."""
    for name in PRIVATE:
        remove(root / name)
    for name in ("etc/systemd/system", "opt", "usr/local/bin", "usr/local/sbin"):
        (root / name).mkdir(mode=0o755, parents=True, exist_ok=True)
    for name in UNIT_DIRECTORIES:
        for pattern in ("*.wants/*", "*.requires/*"):
            for link in (root / name).glob(pattern):
                if link.name not in WANTED:
                    link.unlink()
        remove(root / name / "kubelet.service")
        remove(root / name / "kubelet.service.d")
    for directory in root.glob("etc/rc?.d"):
        remove(directory)
    write(root / "etc/fstab", "")
    write(root / "etc/machine-id", uuid.uuid4().hex + "\n")
    remove(root / "etc/hostname")
    default = root / "etc/systemd/system/default.target"
    default.symlink_to("/lib/systemd/system/multi-user.target")
    furnish_runtime(root, runtime)


def furnish_runtime(root: Path, runtime: str) -> None:
    """Enables containerd, by that name, with a socket at an unusual place, or in the place of CRI-O.

    As CRI-O it has the other's sockets, unit and directories; all are containerd.
    """
    config = "/etc/crio/containerd.toml" if runtime == "crio" else "/etc/containerd/config.toml"
    socket = RUNTIME_SOCKETS[runtime]
    write(root / config[1:], CONTAINERD_CONFIG.replace("@SOCKET@", socket))
    unit = RUNTIME_SERVICE.replace("@NAME@", runtime).replace("@CONFIG@", config)
    units = root / "usr/lib/systemd/system"
    remove(units / "containerd.service")
    write(units / f"{runtime}.service", unit)
    # Every pod gets a copy; a bootstrapped system has none.
    write(root / "etc/hosts", "127.0.0.1 localhost\n")
    wants = root / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir(exist_ok=True)
    if runtime in IMAGE_SOCKETS:
        link = f"L+ {IMAGE_SOCKETS[runtime]} - - - - {socket}\n"
        write(root / "etc/tmpfiles.d/images.conf", link)
    os.symlink(f"/lib/systemd/system/{runtime}.service", wants / f"{runtime}.service")
    from tests.lib.throwaway import real  # late: modules that run inside a machine have no pytest

    if containerd := real.named("containerd"):
        for name, place in RUNTIME_PROGRAMS.items():
            if (program := containerd.with_name(name)).is_file():
                shutil.copy(program, root / place / name)
