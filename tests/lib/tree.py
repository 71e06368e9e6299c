"""The system that throwaway hosts and machines are made from: a Debian or an Ubuntu, of the release that was
named or as this machine is one.

It is bootstrapped once and then stays as it is, whatever is installed on this machine meanwhile.
"""

import functools
import os
from pathlib import Path

from tests.lib.bootstrap import Bootstrap, named_release
from tests.lib.cache import CACHE, keep_newest, locked, partial_of

PLACE = CACHE / "machine"
LOCK = "machine.lock"
KEPT = 6  # of each kind, for two releases; half a GiB each

#: A node's, and what the program needs of the distribution.
PACKAGES = (
    *("usr-is-merged", "systemd-sysv", "udev", "kmod", "dbus", "apparmor", "procps", "iproute2", "mount"),
    *("busybox-static", "containerd", "e2fsprogs", "runc"),
    *("gir1.2-glib-2.0", "libstdc++6", "python3", "python3-gi", "python3-yaml"),
)
SELINUX_PACKAGES = ("policycoreutils", "selinux-policy-default", "selinux-utils")

#: The kernel and its modules, where the distribution has this one, in one package or several; without their
#: scripts, which would make an initrd.
ADD_KERNEL = """chroot "$1" sh -euc '
apt-cache show linux-image-cloud-amd64 >/dev/null 2>&1 || exit 0
mkdir /kernel && cd /kernel
apt-cache depends --recurse --important linux-image-cloud-amd64 | grep "^linux-[a-z]*-[0-9].*-cloud-" |
    xargs apt-get --quiet download
for package in *.deb; do dpkg-deb --extract "$package" .; done
find . -name "vmlinuz*" -exec mv {} /boot/vmlinuz ";"
for modules in lib/modules usr/lib/modules; do [ ! -d $modules ] || mv $modules /usr/lib/; done
cd / && rm -r /kernel
depmod "$(ls /usr/lib/modules)"
'"""


@functools.cache
def tree(selinux: bool = False, more: tuple[str, ...] = ()) -> Path:
    """Its root directory, which nobody is to write to; made if it is not there yet, in one to two minutes.
    `more` are packages besides."""
    packages = (*PACKAGES, *(SELINUX_PACKAGES if selinux else ()), *more)
    system = Bootstrap(packages, [ADD_KERNEL], named_release())
    place = PLACE / f"tree-{system.digest}"
    with locked(LOCK):
        if not place.exists():
            with partial_of(place) as partial:
                system.make(partial)
        os.utime(place)
        keep_newest(PLACE, "tree-*", KEPT)
    return place
