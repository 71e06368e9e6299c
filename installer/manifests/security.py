"""What the installer's container may reach on the node. Its security context is in daemon-set.yaml.j2.

`privileged` sees the whole host. `restricted` sees less, but who may write units and ask systemd to start
them is root on the node: it protects the rest of the host from mistakes, not from an attacker.
"""

from __future__ import annotations

from dataclasses import dataclass

from installer.manifests.values import Values

# Renaming and removing need the directory of a path, so that is mounted. Read-only are the host's own
# programs, libraries and units, its processes, its journal. Where /bin and /lib are links into /usr, one of
# each would do.
_RESTRICTED_PATHS = (
    ("/bin", True),
    ("/etc", False),
    ("/lib", True),
    ("/lib64", True),
    ("/opt", False),
    ("/proc", True),
    ("/run", False),
    ("/usr", True),
    ("/var/lib", False),
    ("/var/log", True),
    ("/var/run", False),  # a symlink on the host; the container gets a mount of the directory behind it
)
# A runtime creates a missing directory on the host, and that would stay: on arm64 the program loader is in
# /lib, and many distributions have no /lib64.
_ONLY_ON = {"/lib64": "amd64"}

SCRATCH = {"scratch-run-cri-resmgr-installer": "/run/cri-resmgr-installer", "scratch-tmp": "/tmp"}
"""Of the restricted profile, whose root is read-only: the files for the probes, and what cri-resmgr needs to
check a configuration."""

APPARMOR = {"container.apparmor.security.beta.kubernetes.io/installer": "unconfined"}
"""Of the restricted profile: a runtime's default profile hides other processes. An annotation of the pod,
because Kubernetes knows the field only since 1.30, and still reads the annotation."""


@dataclass(frozen=True, slots=True)
class HostMount:
    """A path of the host that the container sees below /host; `name` is the volume's."""

    name: str
    path: str
    read_only: bool


def build_host_mounts(values: Values) -> list[HostMount]:
    """What the profile gives."""
    if values.profile == "privileged":
        return [HostMount("host", "/", False)]
    return [
        HostMount(f"host{path.replace('/', '-')}", path, read_only)
        for path, read_only in _RESTRICTED_PATHS
        if _ONLY_ON.get(path, values.arch) == values.arch
    ]
