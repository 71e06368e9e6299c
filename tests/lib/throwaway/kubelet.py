"""Puts a kubelet of one of several distributions on a throwaway host.

kubelets/<flavour>/ is a tree that is laid over the host: units, drop-ins and
configuration as that distribution has them. The binary is the stand-in, or the
real one, where it is named: see real_kubelet for what that one needs.
"""

import functools
import math
import os
import re
import shutil
import tempfile
import time
from pathlib import Path

import trustme

from tests.lib.throwaway import real, real_kubelet
from tests.lib.throwaway.furnish import write
from tests.lib.throwaway.host import HostError, ThrowawayHost
from tests.lib.throwaway.payload import build_executable
from tests.lib.throwaway.standins import kubelet as standin
from tests.lib.throwaway.standins import kubelet_api

TREES = Path(__file__).parent / "kubelets"

FLAVOURS = tuple(sorted(path.name for path in TREES.iterdir()))

#: The flavours whose runtime is not containerd, or not where it usually is.
RUNTIMES = {"config-dir": "containerd-node", "crio": "crio", "script": "containerd-node"}

UNIT = "kubelet.service"


def runtime_of(flavour: str) -> str:
    """The `runtime` that a host for this flavour is to be made with."""
    return RUNTIMES.get(flavour, "containerd")


def kubelet_path(flavour: str) -> str:
    """Where that distribution has its kubelet."""
    if flavour == "aks":
        return "/usr/local/bin/kubelet"
    return "/opt/bin/kubelet" if flavour.startswith("gardener") else "/usr/bin/kubelet"


@functools.cache
def executable() -> bytes:
    """The kubelet of all hosts, built once per process."""
    if named := real.named("kubelet"):
        return named.read_bytes()
    with tempfile.TemporaryDirectory() as scratch:
        return build_executable(standin.__name__, Path(scratch) / "kubelet").read_bytes()


@functools.cache
def certificate() -> tuple[str, str]:
    """A certificate of a kubelet's own, and its key: nobody else knows its authority."""
    issued = trustme.CA().issue_cert("localhost", "127.0.0.1")
    chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
    return chain.decode(), issued.private_key_pem.bytes().decode()


def lay_kubelet(host: ThrowawayHost, flavour: str) -> None:
    """Puts the files of a flavour on a host's disk, enabled; the host may be off."""
    if runtime_of(flavour) != host.runtime:
        raise HostError(f"{flavour} needs a host with runtime {runtime_of(flavour)}")
    lay_kubelet_below(host.disk, flavour)


def lay_kubelet_below(root: Path, flavour: str) -> None:
    """As `lay_kubelet`, below the root directory of any system."""
    tree = TREES / flavour
    for source in sorted(tree.rglob("*")):
        target = root / source.relative_to(tree)
        if source.is_symlink():
            target.symlink_to(source.readlink())
        elif source.is_dir():
            target.mkdir(exist_ok=True)
        else:
            shutil.copyfile(source, target)
            target.chmod(0o755 if os.access(source, os.X_OK) else 0o644)
    binary = root / kubelet_path(flavour)[1:]
    binary.parent.mkdir(parents=True, exist_ok=True)
    binary.write_bytes(executable())
    binary.chmod(0o755)
    if real.named("kubelet"):
        real_kubelet.furnish(root, tree)
    for path, content in zip((kubelet_api.CERTIFICATE, kubelet_api.KEY), certificate(), strict=True):
        write(root / path[1:], content, 0o600)
    wants = root / "etc/systemd/system/multi-user.target.wants"
    own = os.path.lexists(tree / "etc/systemd/system" / UNIT)
    (wants / UNIT).symlink_to(f"{'/etc' if own else '/lib'}/systemd/system/{UNIT}")


def install_kubelet(host: ThrowawayHost, flavour: str, timeout: float = 60.0) -> None:
    """Lays a kubelet on a running host, enabled, starts it, waits until it is healthy."""
    lay_kubelet(host, flavour)
    host.systemctl("daemon-reload")
    host.systemctl("start", UNIT)
    wait_healthy(host, timeout)


def healthz(host: ThrowawayHost, timeout: float = 2.0) -> str:
    """What kubelet's healthz answers on the host; "" when nobody does."""
    address, port = kubelet_api.HEALTHZ
    words = ["busybox", "nc", "-w", f"{math.ceil(timeout)}", address, str(port)]
    request = "GET /healthz HTTP/1.0\r\n\r\n"
    said = host.run(*words, check=False, timeout=timeout + 10, input=request).stdout
    return said.partition("\n\n")[2].strip()


def wait_healthy(host: ThrowawayHost, timeout: float = 60.0) -> None:
    """Waits until kubelet's healthz says ok. Raises HostError with its journal if not."""
    deadline = time.monotonic() + timeout
    while healthz(host) != "ok":
        if time.monotonic() > deadline:
            raise HostError(f"kubelet is not healthy within {timeout} s:\n{host.journal(UNIT)}")
        time.sleep(0.01)


def running_arguments(host: ThrowawayHost, unit: str = UNIT) -> list[str]:
    """The arguments of the running kubelet, without its interpreter's. Raises HostError if none runs."""
    pid = int(host.show(unit, "MainPID"))
    try:
        command_line = (host.root / f"proc/{pid}/cmdline").read_bytes()  # /proc/0: there is none
    except (FileNotFoundError, ProcessLookupError) as error:
        raise HostError("kubelet does not run") from error
    words = command_line.decode().split("\0")[:-1]
    return words[3:] if words[1:2] == ["-IS"] else words[1:]


BUILT_IN = "unix:///run/containerd/containerd.sock"  # since kubelet 1.27


def running_endpoint(host: ThrowawayHost) -> str:
    """The endpoint that kubelet said it uses, at its last start; where our link leads, if it is that. A real
    one does not say it: that is of its flag, else of the file that it is configured with."""
    named = _named_endpoint(host)
    link = Path(f"{host.root}{named.removeprefix('unix://')}")
    return f"unix://{link.readlink()}" if "/endpoint/" in named and link.is_symlink() else named


def on_relay(host: ThrowawayHost) -> bool:
    """Whether the endpoint of the running kubelet is the relay, or a link that leads there. Raises HostError
    if none runs."""
    named = _flag(host)
    link = Path(f"{host.root}{named.removeprefix('unix://')}")
    return "cri-resmgr.sock" in (str(link.readlink()) if named and link.is_symlink() else named)


def has_our_flag(host: ThrowawayHost) -> bool:
    """Whether the running kubelet has the relay or our link as its endpoint, wherever the link leads. Raises
    HostError if none runs."""
    named = _flag(host)
    return "cri-resmgr.sock" in named or "/endpoint/" in named


def _flag(host: ThrowawayHost) -> str:
    return standin.flag(running_arguments(host), "container-runtime-endpoint") or ""


def _named_endpoint(host: ThrowawayHost) -> str:
    if real.named("kubelet"):
        arguments = running_arguments(host)
        config = Path(f"{host.root}{standin.flag(arguments, 'config') or '/none'}")
        text = config.read_text() if config.is_file() else ""
        found = re.search(r"^containerRuntimeEndpoint: *[\"']?([^\s\"']*)", text, re.MULTILINE)
        configured = found[1] if found else ""
        return standin.flag(arguments, "container-runtime-endpoint") or configured or BUILT_IN
    marker = 'endpoint="'
    lines = [line for line in host.journal(UNIT).splitlines() if "Using container runtime" in line]
    if not lines:
        raise HostError("kubelet has not said which endpoint it uses")
    return lines[-1].split(marker)[1].split('"')[0]
