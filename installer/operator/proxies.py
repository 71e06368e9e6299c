"""Which proxy leads to an API server, as Go's net/http and httpproxy decide, and the SOCKS5 that urllib3 has
only with another library (RFC 1928, RFC 1929)."""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

_PORTS = {"http": 80, "https": 443, "socks5": 1080}
_REFUSALS = (
    "",
    "it failed",
    "its rules forbid it",
    "the network is unreachable",
    "the host is unreachable",
    "connection refused",
    "no answer in time",
    "it does not know the command",
    "it does not know this kind of address",
)


class Proxy(NamedTuple):
    """`scheme`: http, https or socks5, which resolves names itself."""

    scheme: str
    host: str
    port: int
    user: str = ""
    password: str = ""

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


def parse_proxy(text: str) -> Proxy:
    """Raises ValueError, which never repeats the text: it may have a password."""
    parts = urlsplit(text)
    scheme = "socks5" if parts.scheme == "socks5h" else parts.scheme
    if scheme not in _PORTS:
        raise ValueError("must begin with http://, https:// or socks5://")
    try:
        host, port = parts.hostname, parts.port or _PORTS[scheme]
    except ValueError:
        host, port = None, 0
    if not host:
        raise ValueError("has no usable host and port")
    return Proxy(scheme, host, port, unquote(parts.username or ""), unquote(parts.password or ""))


def proxy_of_environment(server: str, environment: Mapping[str, str]) -> Proxy | None:
    """Return the proxy for this URL; None: it is reached without one. Raises ValueError with the name of the
    variable."""
    url = urlsplit(server)
    names = (f"{url.scheme}_proxy".upper(), f"{url.scheme}_proxy")
    name = next((each for each in names if environment.get(each)), "")
    exceptions = environment.get("NO_PROXY") or environment.get("no_proxy") or ""
    port = url.port or _PORTS.get(url.scheme, 0)
    if not name or _is_direct((url.hostname or "").lower(), port, exceptions):
        return None
    text = environment[name].strip()
    try:
        return parse_proxy(text if "://" in text else f"http://{text}")
    except ValueError as error:
        raise ValueError(f"{name} {error}") from None


def _is_direct(host: str, port: int, exceptions: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        address = None
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    for each in filter(None, (part.strip().lower() for part in exceptions.split(","))):
        if each == "*":
            return True
        if address is not None and _is_in(address, each):
            return True
        name, separator, only = each.rpartition(":")
        name = name if separator and only.isdecimal() else each
        if separator and only.isdecimal() and int(only) != port:
            continue
        name = name.removeprefix("*")
        if host.endswith(name if name.startswith(".") else f".{name}") or host == name.strip("[]"):
            return True
    return False


def _is_in(address: ipaddress.IPv4Address | ipaddress.IPv6Address, network: str) -> bool:
    try:
        return address in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False


def dial(proxy: Proxy, host: str, port: int, timeout: float | None) -> socket.socket:
    """Connect to `host` through a SOCKS5 proxy. Raises OSError."""
    connection = socket.create_connection((proxy.host, proxy.port), timeout)
    try:
        _greet(connection, proxy)
        connection.sendall(b"\x05\x01\x00" + _address(host) + struct.pack(">H", port))
        _, reply, _, kind = _exactly(connection, 4)
        if reply:
            why = _REFUSALS[reply] if reply < len(_REFUSALS) else f"code {reply}"
            raise OSError(f"the SOCKS5 proxy {proxy.host} does not connect: {why}")
        length = {1: 4, 4: 16}.get(kind) or _exactly(connection, 1)[0]
        _exactly(connection, length + 2)
    except BaseException:
        connection.close()
        raise
    return connection


def _greet(connection: socket.socket, proxy: Proxy) -> None:
    connection.sendall(b"\x05\x02\x00\x02" if proxy.user else b"\x05\x01\x00")
    version, method = _exactly(connection, 2)
    if version != 5:
        raise OSError(f"{proxy.host} is not a SOCKS5 proxy")
    if method == 2 and proxy.user:
        name, password = proxy.user.encode()[:255], proxy.password.encode()[:255]
        connection.sendall(b"\x01" + bytes([len(name)]) + name + bytes([len(password)]) + password)
        method = _exactly(connection, 2)[1] and 255
    if method:
        raise OSError(f"the SOCKS5 proxy {proxy.host} does not accept these credentials")


def _address(host: str) -> bytes:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        name = host.encode("idna")[:255]
        return b"\x03" + bytes([len(name)]) + name
    return (b"\x01" if address.version == 4 else b"\x04") + address.packed


def _exactly(connection: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        more = connection.recv(count - len(found))
        if not more:
            raise OSError("the SOCKS5 proxy closed the connection")
        found += more
    return found
