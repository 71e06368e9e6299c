"""What the installer's container may do on the node: its mounts, capabilities and profile. Pure.

`privileged` sees the whole host. `restricted` has less, but honestly: who may write units and ask
systemd to start them is root on the node. It keeps mistakes and strangers' code from the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from installer.manifests.values import Values

HOST_ROOT = "/host"
CAPABILITIES = (
    "CHOWN",  # files go back to the owners they had
    "DAC_OVERRIDE",  # directories and files of others, whatever their mode
    "FOWNER",  # modes of what is not ours
    "SYS_CHROOT",  # the host's own systemctl and journalctl
    "SYS_PTRACE",  # the environment, executable and namespaces of processes that are not the container's
)
"""Of the restricted profile, each with what needs it. systemd asks for none: to its bus, root is root. In
the host's network no namespace has to be entered, which would take SYS_ADMIN."""

# Renaming and removing need the directory around a path, so it is mounted and not the path. What is
# only read is the host's own programs, libraries and units, its processes, its journal. Where /bin and
# /lib are links into /usr, one of each would do.
HOST_PATHS: tuple[tuple[str, bool], ...] = (
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
    ("/var/run", False),  # a link on the host; the container's is made of the directory behind it
)
"""Of the restricted profile: path on the host, and whether it is read-only."""

# A runtime makes what is to be mounted and is not there, and that would be a trace: on arm64 the
# program loader is in /lib, and many distributions have no /lib64.
_ONLY_ON = {"/lib64": "amd64"}

SCRATCH = ("/run/cri-resmgr-installer", "/tmp")
"""What the restricted profile may write in its own file system: the readiness file, and what
cri-resmgr needs to check a configuration."""


@dataclass(frozen=True, slots=True)
class Rights:
    """As they stand in the pod template. `annotations` are the pod's."""

    security: dict[str, Any]
    mounts: list[dict[str, Any]]
    volumes: list[dict[str, Any]]
    annotations: dict[str, str]


def build_rights(values: Values) -> Rights:
    """What the profile gives."""
    return _restricted(values.arch) if values.profile == "restricted" else _privileged()


def _privileged() -> Rights:
    return Rights(
        security={"privileged": True},
        mounts=[_mount("host", HOST_ROOT, False)],
        volumes=[{"name": "host", "hostPath": {"path": "/"}}],
        annotations={},
    )


def _restricted(arch: str) -> Rights:
    paths = [(path, only_read) for path, only_read in HOST_PATHS if _ONLY_ON.get(path, arch) == arch]
    named = [(f"host{path.replace('/', '-')}", path, only_read) for path, only_read in paths]
    scratch = [(f"scratch{path.replace('/', '-')}", path) for path in SCRATCH]
    return Rights(
        security={
            "privileged": False,
            "runAsUser": 0,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"], "add": list(CAPABILITIES)},
            # The default one of a runtime may forbid to look at processes of others, on some kernels.
            "seccompProfile": {"type": "Unconfined"},
            "seLinuxOptions": {"type": "spc_t"},
        },
        mounts=[_mount(name, HOST_ROOT + path, only_read) for name, path, only_read in named]
        + [{"name": name, "mountPath": path} for name, path in scratch],
        volumes=[{"name": name, "hostPath": {"path": path}} for name, path, _ in named]
        + [{"name": name, "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}} for name, _ in scratch],
        # AppArmor's default profile of a runtime keeps processes of others out of sight. The field for
        # it is unknown before Kubernetes 1.30, which still reads the annotation.
        annotations={"container.apparmor.security.beta.kubernetes.io/installer": "unconfined"},
    )


def _mount(name: str, path: str, only_read: bool) -> dict[str, Any]:
    """Mounts that the host makes later are seen as well."""
    mount: dict[str, Any] = {"name": name, "mountPath": path, "mountPropagation": "HostToContainer"}
    return {**mount, "readOnly": True} if only_read else mount
