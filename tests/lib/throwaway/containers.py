"""Pods and containers on a throwaway host, made as kubelet makes them: over CRI.

No registry is needed: the one image there is, a static busybox, is built here.
Pods use the host's network, so that no CNI plugin is needed either.
"""

import contextlib
import hashlib
import io
import json
import os
import shutil
import socket
import tarfile
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Protocol

from tests.lib.throwaway.furnish import IMAGE
from tests.lib.throwaway.host import HostError
from tests.lib.throwaway.standins.http2 import field, strings, unary

RUNTIME_SERVICE = "/runtime.v1.RuntimeService/"
CALL_SECONDS = 300.0  # for a container to start on a machine that has much else to do

#: NamespaceMode.NODE of the CRI.
NODE = 2

APPLETS = ("cat", "env", "id", "ls", "mount", "nproc", "ps", "sh", "sleep", "true", "false", "grep", "wget")

# The first process of a pid namespace gets no signal that it has no handler for.
IDLE = ("/bin/sh", "-c", "trap exit TERM INT; while :; do sleep 3600 & wait $!; done")


class RuntimeHost(Protocol):
    """What has a runtime: a throwaway host, or the machine on which this runs."""

    @property
    def root(self) -> Path:
        """Its root directory, as this machine reaches it."""

    @property
    def runtime_socket(self) -> str:
        """Where its runtime listens, as its own processes write it."""

    def run(self, *argv: str) -> CompletedProcess[str]:
        """Runs a command in it, as root, which has to end well."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A bind mount of a container."""

    container_path: str
    host_path: str
    readonly: bool = False


def build_image() -> bytes:
    """A tar archive in OCI layout with busybox in it, called IMAGE."""
    busybox = shutil.which("busybox")
    if busybox is None:
        raise HostError("busybox is not installed: run hack/setup")
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for name in ("bin", "dev", "etc", "proc", "sys", "tmp"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        content = Path(busybox).read_bytes()
        entry = tarfile.TarInfo("bin/busybox")
        entry.size, entry.mode = len(content), 0o755
        tar.addfile(entry, io.BytesIO(content))
        for name in APPLETS:
            entry = tarfile.TarInfo(f"bin/{name}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(entry)
    return _layout(layer.getvalue())


def _layout(layer: bytes) -> bytes:
    machine = {"x86_64": "amd64", "aarch64": "arm64"}
    blobs: dict[str, bytes] = {}

    def blob(media_type: str, content: bytes) -> dict[str, object]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = content
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}

    prefix = "application/vnd.oci.image."
    layer_descriptor = blob(prefix + "layer.v1.tar", layer)
    architecture = machine.get(os.uname().machine, "amd64")
    config = {
        "architecture": architecture,
        "os": "linux",
        "config": {"Cmd": list(IDLE), "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [layer_descriptor["digest"]]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": prefix + "manifest.v1+json",
        "config": blob(prefix + "config.v1+json", json.dumps(config).encode()),
        "layers": [layer_descriptor],
    }
    index = blob(prefix + "manifest.v1+json", json.dumps(manifest).encode())
    index["annotations"] = {"io.containerd.image.name": IMAGE}
    blobs["index.json"] = json.dumps({"schemaVersion": 2, "manifests": [index]}).encode()
    blobs["oci-layout"] = b'{"imageLayoutVersion": "1.0.0"}'
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in blobs.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def ctr(host: RuntimeHost, *argv: str) -> str:
    """Runs ctr in the namespace of the CRI, straight on the host's runtime."""
    return host.run("ctr", "--address", host.runtime_socket, "--namespace", "k8s.io", *argv).stdout


def import_image(host: RuntimeHost) -> None:
    """Makes sure that the host's runtime has IMAGE."""
    if IMAGE in ctr(host, "images", "list", "--quiet").split():
        return
    archive = host.root / "tmp/throwaway-image.tar"
    archive.write_bytes(build_image())
    ctr(host, "images", "import", "/tmp/throwaway-image.tar")
    archive.unlink()


def reach(host: RuntimeHost, address: str) -> str:
    """The path of a host's socket as this machine can open it.

    /var/run is an absolute link on the host and would lead out of it.
    """
    path = address.removeprefix("unix://")
    if path.startswith("/var/run/"):
        path = path.removeprefix("/var")
    return f"{host.root}{path}"


def listens(host: RuntimeHost, path: str) -> bool:
    """Whether somebody listens on a unix socket of the host."""
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as probe:
        try:
            probe.connect(reach(host, path))
        except OSError:
            return False
        return True


def call(
    host: RuntimeHost, socket: str, method: str, message: bytes = b"", timeout: float = CALL_SECONDS
) -> bytes:
    """One call of the CRI's RuntimeService on a socket of the host.

    Raises OSError when nobody answers there, CallError when an error is answered.
    """
    return unary(reach(host, socket), RUNTIME_SERVICE + method, message, timeout)


def cri_version(host: RuntimeHost, socket: str, timeout: float = 5.0) -> str:
    """The runtime's name and version as answered on a socket of the host."""
    found = strings(call(host, socket, "Version", timeout=timeout))
    return f"{found[2]} {found[3]}"


def sandbox_config(name: str, uid: str = "", cgroup_parent: str = "") -> bytes:
    """What kubelet says of a pod."""
    metadata = field(1, name) + field(2, uid) + field(3, "default")
    linux = field(1, cgroup_parent) + field(2, field(1, field(1, NODE)))
    return field(1, metadata) + field(8, linux)


def _labels(pod: "Pod", name: str) -> tuple[tuple[str, str], ...]:
    """What kubelet says of a container."""
    return (
        ("io.kubernetes.container.name", name),
        ("io.kubernetes.pod.name", pod.name),
        ("io.kubernetes.pod.namespace", "default"),
        ("io.kubernetes.pod.uid", pod.uid),
    )


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod's sandbox that runs."""

    name: str
    identity: str
    config: bytes
    uid: str


def run_pod(host: RuntimeHost, socket: str, name: str, cgroup_parent: str | None = None) -> Pod:
    """Runs a sandbox, through a CRI socket of the host. `cgroup_parent` is the pod's own cgroup, as kubelet's
    cgroup driver says it; None: a burstable pod's, of the driver cgroupfs; empty: the runtime's choice, as
    kubelet leaves it with `cgroupsPerQOS: false`."""
    import_image(host)
    uid = str(uuid.uuid4())
    parent = f"/kubepods/burstable/pod{uid}" if cgroup_parent is None else cgroup_parent
    config = sandbox_config(name, uid, parent)
    return Pod(name, strings(call(host, socket, "RunPodSandbox", field(1, config)))[1], config, uid)


def create_container(
    host: RuntimeHost,
    socket: str,
    name: str,
    mounts: Sequence[Mount] = (),
    command: Sequence[str] = IDLE,
    cpuset: str = "",
    cpu_shares: int = 1024,
    cpu_quota: int = 0,
    memory_limit: int = 0,
    pod: Pod | None = None,
    starts: bool = True,
    attempt: int = 0,
) -> str:
    """Runs a container, in a pod of its own unless one is given, through a CRI socket of the host. Unless it
    `starts`, it is created only, as where kubelet's start of it is cut off.

    Returns the container's id; it runs when this returns. Raises CallError when
    the runtime refuses (why, stands in the runtime's journal).
    """
    pod = pod or run_pod(host, socket, name)
    container = field(1, field(1, name) + field(2, attempt)) + field(2, field(1, IMAGE))
    container += b"".join(field(3, word) for word in command)
    for mount in mounts:
        container += field(
            7,
            field(1, mount.container_path) + field(2, mount.host_path) + field(3, mount.readonly),
        )
    resources = field(3, cpu_shares) + (field(6, cpuset) if cpuset else b"")
    if cpu_quota:
        resources += field(1, 100_000) + field(2, cpu_quota)
    if memory_limit:
        resources += field(4, memory_limit)
    container += field(15, field(1, resources))
    container += b"".join(field(9, field(1, key) + field(2, value)) for key, value in _labels(pod, name))
    message = field(1, pod.identity) + field(2, container) + field(3, pod.config)
    identity = strings(call(host, socket, "CreateContainer", message))[1]
    if starts:
        call(host, socket, "StartContainer", field(1, identity))
    return identity


def container_pid(host: RuntimeHost, identity: str) -> int | None:
    """The first process of a container, as the host counts; None if it does not run."""
    for line in ctr(host, "tasks", "list").splitlines()[1:]:
        task, pid, state = line.split()[:3]
        if task == identity and state == "RUNNING":
            return int(pid)
    return None
