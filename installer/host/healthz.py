"""Kubelet's healthz, asked in the host's network namespace.

One status line is all that is wanted: plain HTTP/1.0 over a socket, because http.client takes
30 ms to import. No TLS, no proxy, no redirect: the address is the host's own loopback.
"""

from __future__ import annotations

import ipaddress
import socket
import time
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from installer.errors import InvalidInputError, is_shortage
from installer.host.netns import host_socket
from installer.model.limits import ANSWER_SECONDS


class HostHealthz:
    """The Healthz port."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def ok(self, url: str, timeout: float = ANSWER_SECONDS) -> bool:
        """See the port. Raises UnservableHostError when the network namespace cannot be entered."""
        if not url:
            return True
        address = _parse(url)
        host, port = address.hostname or "", address.port or 80
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        path = (address.path or "/") + (f"?{address.query}" if address.query else "")
        request = f"GET {path} HTTP/1.0\r\nHost: {address.netloc}\r\nConnection: close\r\n\r\n"
        deadline = time.monotonic() + timeout
        with host_socket(self._root, family) as stream:
            try:
                stream.settimeout(timeout)
                stream.connect((host, port))
                stream.sendall(request.encode("ascii"))
                return _status(stream, deadline) == 200
            except OSError as error:  # refused, hung up, timed out
                if is_shortage(error):
                    raise
                return False


def _parse(url: str) -> SplitResult:
    """Raises InvalidInputError for anything but http:// and an address: a name would be looked up
    in our namespace, not in the host's."""
    try:
        address = urlsplit(url)
        _ = address.port
        host = "127.0.0.1" if address.hostname == "localhost" else address.hostname or ""
        ipaddress.ip_address(host)
        if address.scheme != "http" or not url.isascii() or any(character.isspace() for character in url):
            raise ValueError
    except ValueError:
        raise InvalidInputError(
            [f"kubelet.healthzUrl: {url!r} is not http://ADDRESS:PORT/PATH with a numeric address"]
        ) from None
    return address


def _status(stream: socket.socket, deadline: float) -> int:
    """The status code of the reply, 0 if there is none in time."""
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
