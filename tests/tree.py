"""The system that throwaway hosts and machines are made from: a Debian or an Ubuntu as this machine is one.

It is bootstrapped once and then stays as it is, whatever is installed on this machine meanwhile.
"""

import functools
import os
from pathlib import Path

from tests.bootstrap import Bootstrap
from tests.cache import CACHE, keep_newest, locked, partial_of

PLACE = CACHE / "machine"
LOCK = "machine.lock"
KEPT = 3  # of each kind; half a GiB each

#: A node's, and what the program needs of the distribution.
PACKAGES = (
    *("usr-is-merged", "systemd-sysv", "udev", "kmod", "dbus", "apparmor", "procps", "iproute2", "mount"),
    *("containerd", "runc", "python3", "python3-gi", "gir1.2-glib-2.0", "python3-yaml", "busybox-static"),
)
SELINUX_PACKAGES = ("policycoreutils", "selinux-policy-default", "selinux-utils")

#: The kernel and its modules, where the distribution has this one; without its package's scripts, which
#: would make an initrd.
ADD_KERNEL = """chroot "$1" sh -euc '
apt-cache show linux-image-cloud-amd64 >/dev/null 2>&1 || exit 0
mkdir /kernel && cd /kernel
apt-get --quiet download "$(apt-cache depends linux-image-cloud-amd64 | sed -n "s/.*Depends: //p")"
dpkg-deb --extract linux-image-*.deb .
mv boot/vmlinuz-* /boot/vmlinuz
for modules in lib/modules usr/lib/modules; do [ ! -d $modules ] || mv $modules /usr/lib/; done
cd / && rm -r /kernel
depmod "$(ls /usr/lib/modules)"
'"""


@functools.cache
def tree(selinux: bool = False, more: tuple[str, ...] = ()) -> Path:
    """Its root directory, which nobody is to write to; made if it is not there yet, in one to two minutes.
    `more` are packages besides."""
    system = Bootstrap((*PACKAGES, *(SELINUX_PACKAGES if selinux else ()), *more), [ADD_KERNEL])
    place = PLACE / f"tree-{system.digest}"
    with locked(LOCK):
        if not place.exists():
            with partial_of(place) as partial:
                system.make(partial)
        os.utime(place)
        keep_newest(PLACE, "tree-*", KEPT)
    return place
