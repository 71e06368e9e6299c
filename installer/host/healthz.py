"""Ask kubelet's healthz in the host's network namespace, and believe it only if kubelet's unit listens there.

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
from pathlib import Path
from urllib.parse import urlsplit

from installer.errors import UnservableHostError, is_shortage
from installer.host.chase import opened
from installer.host.namespaces import host_socket
from installer.host.unit_processes import others_of_unit
from installer.model.host import Health
from installer.model.limits import ANSWER_SECONDS

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
    """Who listens there. OK: a process of that one's service; FOREIGN: another one; UNWELL: none. Raises
    OSError if the process cannot be read."""
    with opened(root, "/proc", follow=True) as (place, _stat):
        proc = Path(place)
        sockets = _listeners(proc / str(pid) / "net", host, port)
        if not sockets:
            return Health.UNWELL
        sockets -= _open_files(proc, pid)
        for other in others_of_unit(proc, pid) if sockets else ():
            with suppress(OSError):  # it has ended
                sockets -= _open_files(proc, other)
        return Health.FOREIGN if sockets else Health.OK


def _open_files(proc: Path, pid: int) -> set[str]:
    found, place = set[str](), proc / str(pid) / "fd"
    for descriptor in os.listdir(place):
        with suppress(FileNotFoundError):  # closed meanwhile
            found.add(os.readlink(place / descriptor))
    return found


def _listeners(net: Path, host: str, port: int) -> set[str]:
    """The sockets that get what is sent to that address, as /proc/PID/fd names them: those that listen there,
    or else at any address of its version, or else at any address at all (which an IPv6 socket may refuse)."""
    address, any4, any6 = ipaddress.ip_address(host), bytes(4), bytes(16)
    mapped = address if address.version == 6 else ipaddress.IPv6Address(f"::ffff:{host}")
    exact, version4 = {("tcp6", _kernel(mapped.packed))}, set[tuple[str, str]]()
    if address.version == 4:
        exact.add(("tcp", _kernel(address.packed)))
        version4.add(("tcp", _kernel(any4)))
    found = list(_read_listeners(net, port))
    for tier in (exact, version4, {("tcp6", _kernel(any6))}):
        if sockets := {f"socket:[{inode}]" for place, inode in found if place in tier}:
            return sockets
    return set()


def _read_listeners(net: Path, port: int) -> Iterator[tuple[tuple[str, str], str]]:
    """File and address, and the inode of each socket that listens on that port (proc_net_tcp(5)). Listening
    sockets come first in these files; the others, which may be very many, are not read."""
    for name in ("tcp", "tcp6"):
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
                if int(number, 16) == port:
                    yield (name, place), fields[9]


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
