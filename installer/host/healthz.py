"""Ask kubelet's healthz in the host's network namespace, and believe it only if kubelet itself listens there.

The port is unprivileged: whoever binds it first could answer in kubelet's name.

Only the status line matters, so this is plain HTTP/1.0 over a socket: http.client takes 30 ms to import. No
TLS, no proxy, no redirect: the address is the host's own loopback.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from installer.errors import UnservableHostError, is_shortage, remedy_for
from installer.host.chase import opened
from installer.model.host import Health
from installer.model.limits import ANSWER_SECONDS

# Sockets in the host's network namespace, for a container with its own.
#
# A socket stays in the namespace where it was created. So the calling thread enters the host's only for that,
# and is back in its own before it connects. Needs CAP_SYS_ADMIN if the namespaces differ.

_CLONE_NEWNET = 0x40000000  # linux/sched.h


def host_socket(root: Path, family: socket.AddressFamily) -> socket.socket:
    """A TCP socket in the network namespace of the host's first process.

    Raises UnservableHostError if entering it is not permitted.
    """
    ours = "/proc/thread-self/ns/net"
    try:
        with opened(root, "/proc/1/ns", follow=True) as (place, _status):
            theirs = f"{place}/net"  # leads to the namespace, not to a path
            if os.stat(theirs).st_ino == os.stat(ours).st_ino:
                return socket.socket(family, socket.SOCK_STREAM)
            there = os.open(theirs, os.O_RDONLY | os.O_CLOEXEC)
        back = os.open(ours, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _enter(there)
            try:
                return socket.socket(family, socket.SOCK_STREAM)
            finally:
                _enter(back)
        finally:
            os.close(back)
            os.close(there)
    except OSError as error:
        raise UnservableHostError(
            f"cannot enter the host's network namespace ({root}/proc/1/ns/net): {error}",
            remedy_for(error)
            or "run as root in a privileged container with the host's /proc, or with hostNetwork: true",
        ) from error


def _enter(descriptor: int) -> None:
    """setns(2) of the calling thread. The os module has it only since Python 3.12."""
    if hasattr(os, "setns"):
        os.setns(descriptor, _CLONE_NEWNET)
        return
    import ctypes

    if _libc().setns(descriptor, _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@cache
def _libc() -> Any:
    """Loaded once: each load leaves a class behind, in a reference cycle."""
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


_LISTEN = "0A"  # TCP_LISTEN of the kernel


class HostHealthz:
    """The Healthz port."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def ask(self, url: str, pid: int, timeout: float = ANSWER_SECONDS) -> Health:
        """See the port. Raises UnservableHostError if the network namespace cannot be entered."""
        if not url:
            return Health.OK
        address = urlsplit(url)
        host = "127.0.0.1" if address.hostname == "localhost" else address.hostname or ""
        port = address.port or 80
        try:
            listening = _listening(self._root, pid, host, port) if pid else Health.OK
        except (FileNotFoundError, ProcessLookupError):
            return Health.UNWELL  # it has ended
        except PermissionError as error:
            raise UnservableHostError(
                f"not allowed to see what process {pid} listens on: {error}",
                "this needs CAP_SYS_PTRACE: run as root, privileged",
            ) from error
        if listening is not Health.OK:
            return listening
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        path = (address.path or "/") + (f"?{address.query}" if address.query else "")
        request = f"GET {path} HTTP/1.0\r\nHost: {address.netloc}\r\nConnection: close\r\n\r\n"
        deadline = time.monotonic() + timeout
        with host_socket(self._root, family) as stream:
            try:
                stream.settimeout(timeout)
                stream.connect((host, port))
                stream.sendall(request.encode("ascii"))
                return Health.OK if _status(stream, deadline) == 200 else Health.UNWELL
            except OSError as error:  # refused, hung up, timed out
                if is_shortage(error):
                    raise
                return Health.UNWELL


def _listening(root: Path, pid: int, host: str, port: int) -> Health:
    """Who listens there. OK: that process; FOREIGN: another one; UNWELL: none. Raises OSError if the process
    cannot be read."""
    with opened(root, "/proc", follow=True) as (proc, _stat):
        place = Path(proc) / str(pid)
        sockets = {f"socket:[{inode}]" for inode in _listeners(place / "net", host, port)}
        if not sockets:
            return Health.UNWELL
        for descriptor in os.listdir(place / "fd"):
            with suppress(FileNotFoundError):  # closed meanwhile
                sockets.discard(os.readlink(place / "fd" / descriptor))
            if not sockets:
                return Health.OK
        return Health.FOREIGN


def _listeners(net: Path, host: str, port: int) -> Iterator[str]:
    """The inodes of the sockets that listen at that address or at any (proc_net_tcp(5)). Listening sockets
    come first in these files; the others, which may be very many, are not read."""
    address = ipaddress.ip_address(host)
    mapped = address if address.version == 6 else ipaddress.IPv6Address(f"::ffff:{host}")
    wanted = {"tcp6": {_kernel(mapped.packed), _kernel(bytes(16))}}
    if address.version == 4:
        wanted["tcp"] = {_kernel(address.packed), _kernel(bytes(4))}
    for name, addresses in wanted.items():
        with (
            suppress(FileNotFoundError),
            (net / name).open(encoding="ascii") as lines,
        ):  # a kernel without IPv6
            next(lines, "")  # the heading
            for line in lines:
                fields = line.split()
                if fields[3] != _LISTEN:
                    break
                place, _, number = fields[1].partition(":")
                if place in addresses and int(number, 16) == port:
                    yield fields[9]


def _kernel(packed: bytes) -> str:
    """An address as the kernel prints it: each 32-bit word in the machine's byte order."""
    words = struct.unpack(f"!{len(packed) // 4}I", packed)
    return "".join(f"{socket.ntohl(word):08X}" for word in words)


def _status(stream: socket.socket, deadline: float) -> int:
    """The status code of the reply; 0 if none arrives in time."""
    line = b""
    while b"\n" not in line and len(line) < 1024:
        left = deadline - time.monotonic()
        if left <= 0:
            return 0
        stream.settimeout(left)
        chunk = stream.recv(1024)
        if not chunk:
            break
        line += chunk
    words = line.split(b"\n")[0].split()
    return int(words[1]) if len(words) > 1 and words[0].startswith(b"HTTP/") and words[1].isdigit() else 0
