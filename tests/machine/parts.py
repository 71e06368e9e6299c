"""What a machine is made of: Debian's kernel, a disk with a node on it, and a kit with what the tests bring.

All of it comes from this machine's distribution, by way of the tree that throwaway hosts are made from. What
takes long is kept between runs. Each machine gets a copy of the disk, so that all start alike.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import uuid
from pathlib import Path

from tests.lib.cache import digest_of, keep_newest, locked, partial_of, run, tree_parts
from tests.lib.program import KIT, lay_program
from tests.lib.throwaway import furnish as furnishing
from tests.lib.throwaway import real
from tests.lib.throwaway.furnish import furnish_runtime, write
from tests.lib.throwaway.host import may_not_mount
from tests.lib.throwaway.kubelet import lay_kubelet_below
from tests.lib.tree import KEPT, LOCK, PLACE, tree
from tests.machine import agent
from tests.machine.machine import QEMU, Parts

NEEDED = (QEMU, "mmdebstrap", "mkfs.ext4", "lz4", "setpriv", "zstd")

#: How a kernel in its image begins, as its build packs it, and what unpacks it: lz4's legacy frame, zstd.
PACKED = {b"\x02\x21\x4c\x18": "lz4", b"\x28\xb5\x2f\xfd": "zstd"}

DISK_SIZE = "2G"  # sparse

#: Neither of use on this machine nor quick: consoles, timers, and AppArmor profiles of no program here.
MASKED = (
    *("apparmor.service", "apt-daily-upgrade.timer", "apt-daily.timer", "dpkg-db-backup.timer"),
    *("e2scrub_all.timer", "e2scrub_reap.service", "fstrim.timer", "getty@tty1.service"),
    *("serial-getty@ttyS0.service", "systemd-logind.service", "systemd-pstore.service"),
    "systemd-logind-varlink.socket",
    *("systemd-binfmt.service", "systemd-update-utmp.service", "systemd-update-utmp-runlevel.service"),
    *("console-getty.service", "systemd-tmpfiles-clean.timer", "proc-sys-fs-binfmt_misc.automount"),
)
AGENT = "usr/local/sbin/machine-agent"
AGENT_UNIT = f"""\
[Unit]
Description=runs what the tests ask for
Requires=dev-virtio\\x2dports-agent.device
After=dev-virtio\\x2dports-agent.device dbus.socket

[Service]
# Of systemctl, which asks for 25 s only; on a busy machine a list of all unit files takes longer.
Environment=SYSTEMD_BUS_TIMEOUT=600
ExecStart=/usr/bin/python3 -IS /{AGENT}

[Install]
WantedBy=multi-user.target
"""


#: A disk that comes after 90 s on a busy machine is not one that is missing: without it, there is no agent.
PATIENT = """\
[Manager]
DefaultDeviceTimeoutSec=10min
DefaultTimeoutStartSec=10min
"""

#: As kubeadm's nodes have it: systemd makes the cgroup of each container.
SYSTEMD_CGROUPS = """
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
    SystemdCgroup = true
"""


def missing_parts() -> list[str]:
    """What keeps this machine from running a machine; empty if nothing."""
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    missing = [f"{name} is not installed" for name in NEEDED if shutil.which(name, path=path) is None]
    if platform.machine() != "x86_64":
        missing.append(f"this processor is {platform.machine()}, not x86_64")
    if os.geteuid() != 0:
        missing.append("not root")
    else:
        missing += may_not_mount()
    release = dict(line.partition("=")[::2] for line in Path("/etc/os-release").read_text().splitlines())
    if release.get("ID") != "debian":
        missing.append("only Debian has the kernel linux-image-cloud-amd64")
    return missing


def kernel(system: Path) -> Path:
    """The kernel of a tree."""
    place = PLACE / f"kernel-{system.name}"
    if not place.exists():
        with partial_of(place) as partial:
            unpack_kernel(system / "boot/vmlinuz", partial)
    os.utime(place)
    keep_newest(PLACE, "kernel-*", KEPT)
    return place


def unpack_kernel(image: Path, target: Path) -> None:
    """The kernel itself, which qemu starts at once; the image would unpack itself under emulation, in 5 to 10
    seconds. An image that is packed in another way than Debian's is taken as it is."""
    packed = image.read_bytes()
    for magic, program in PACKED.items():
        # What follows the packed kernel is no part of it, about which both complain.
        done = subprocess.run(
            [program, "-dc"], input=packed[packed.find(magic) :], capture_output=True, check=False
        )
        if magic in packed and done.stdout.startswith(b"\x7fELF"):
            target.write_bytes(done.stdout)
            return
    shutil.copyfile(image, target)


def disk(system: Path, selinux: bool) -> Path:
    """A tree as a disk, with a kubeadm node and the stand-in for kubelet; not to be written to.

    With `selinux`, every file on it has the label of the default policy.
    """
    sources = (Path(__file__), Path(agent.__file__), Path(furnishing.__file__).parent)
    place = PLACE / f"disk-{digest_of([system.name.encode(), *tree_parts(*sources), real.identity()])}.img"
    if not place.exists():
        with partial_of(place) as partial:
            root = partial.with_name(f"{partial.name}.root")
            run("rm", "-rf", root)
            run("cp", "-a", system, root)
            furnish(root)
            if selinux:
                label(root)
            make_disk(root, partial, DISK_SIZE)
            run("rm", "-rf", root)
    os.utime(place)
    keep_newest(PLACE, "disk-*", KEPT)
    return place


def furnish(root: Path) -> None:
    """Makes a node of a bootstrapped system."""
    write(root / "etc/fstab", f"/dev/vda {KIT} ext4 ro,noatime 0 0\n")
    write(root / "etc/machine-id", uuid.uuid4().hex + "\n")
    write(root / "etc/hostname", "machine\n")
    (root / KIT[1:]).mkdir()
    shutil.copyfile(agent.__file__, root / AGENT)
    units = root / "etc/systemd/system"
    for name in MASKED:
        (units / name).unlink(missing_ok=True)
        (units / name).symlink_to("/dev/null")
    write(units / "machine-agent.service", AGENT_UNIT)
    write(root / "etc/systemd/system.conf.d/patient.conf", PATIENT)
    wants = units / "multi-user.target.wants"
    (wants / "containerd.service").unlink()
    furnish_runtime(root, "containerd")
    config = root / "etc/containerd/config.toml"
    write(config, config.read_text() + SYSTEMD_CGROUPS)
    (wants / "machine-agent.service").symlink_to("/etc/systemd/system/machine-agent.service")
    lay_kubelet_below(root, "kubeadm")


def label(root: Path) -> None:
    """Gives every file below `root` the label of its default policy, as an installation with SELinux does."""
    write(root / "etc/selinux/config", "SELINUX=permissive\nSELINUXTYPE=default\n")
    contexts = "/etc/selinux/default/contexts/files/file_contexts"
    # It names a file by its descriptor in /proc. -m: as this kernel has it, no mount takes labels.
    script = 'mount --bind /proc "$1/proc" && exec chroot "$1" setfiles -F -m -e /proc "$2" /'
    run("unshare", "--mount", "--propagation", "private", "sh", "-ec", script, "sh", root, contexts)


def make_disk(root: Path, target: Path, size: str) -> None:
    """A sparse file with the file system's image of a directory."""
    run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0", "-d", root, target, size)


def assemble(scratch: Path, kit: Path, selinux: bool = False) -> Parts:
    """A machine with a new disk below `scratch`; `kit` is a directory, to which the program is added."""
    system = tree(selinux)
    with locked(LOCK):
        lay_program(kit / "program", system)
        parts = Parts(kernel(system), scratch / "disk.img", scratch / "kit.img")
        run("cp", "--sparse=always", disk(system, selinux), parts.disk)
    used = int(run("du", "--summarize", "--block-size=1M", kit).split()[0])
    make_disk(kit, parts.kit, f"{used + used // 5 + 16}M")
    return parts
