"""An HTTPS server that remembers what it was asked, and proxies that lead to it: for what a client sends with
each request."""

from __future__ import annotations

import contextlib
import json
import socket
import socketserver
import ssl
import struct
import threading
from base64 import b64encode
from collections.abc import Iterator
from email.message import Message
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import trustme

_NODES = {"kind": "NodeList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []}
_SOCKS = 5


class SeenRequests:
    """`with SeenRequests() as server:`. `answer` is that to each request; `names` are those of its
    certificate."""

    def __init__(self, *names: str) -> None:
        self.seen: list[Message] = []
        self.answer: tuple[int, bytes] = (200, json.dumps(_NODES).encode())
        self.authority = trustme.CA()
        seen = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                seen.seen.append(self.headers)
                code, content = seen.answer
                content = content.replace(b"TOKEN", self.headers.get("Authorization", "").encode())
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing: a test reads `seen`."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.authority.issue_cert(*(names or ("127.0.0.1",))).configure_cert(context)
        self.authority.configure_trust(context)
        context.verify_mode = ssl.CERT_OPTIONAL
        # Each connection has its handshake in a thread of its own: one that says nothing holds up no other.
        plain = self._server.socket
        self._server.socket = context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
        self.port: int = self._server.server_address[1]

    def __enter__(self) -> Self:
        threading.Thread(target=partial(self._server.serve_forever, 0.02), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def headers(self, name: str) -> list[str]:
        """What the last request said so."""
        return self.seen[-1].get_all(name, [])

    def kubeconfig(self, user: object = None, **cluster: object) -> dict[str, Any]:
        authority = b64encode(self.authority.cert_pem.bytes()).decode()
        ours = {"server": f"https://127.0.0.1:{self.port}", "certificate-authority-data": authority}
        found = {key: value for key, value in (ours | cluster).items() if value is not None}
        return {
            "clusters": [{"name": "c", "cluster": found}],
            "users": [{"name": "u", "user": {} if user is None else user}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }


class _Tunnel(socketserver.StreamRequestHandler):
    server: _Proxies

    def handle(self) -> None:
        with contextlib.suppress(OSError, ValueError, struct.error):
            first = self.rfile.peek(1)[:1]  # type: ignore[attr-defined]
            with self._socks() if first == b"\x05" else self._connect() as far:
                back = threading.Thread(target=_pump, args=(far, self.connection), daemon=True)
                back.start()
                while data := self.rfile.read1(65536):
                    far.sendall(data)

    def _connect(self) -> socket.socket:
        target = self.rfile.readline().split()[1].decode()
        headers = {}
        while line := self.rfile.readline().strip():
            key, _, value = line.decode().partition(": ")
            headers[key.lower()] = value
        self.server.used.append(("http", target, headers.get("proxy-authorization", "")))
        self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
        return self.server.reach()

    def _socks(self) -> socket.socket:
        _, count = self.rfile.read(2)
        methods, user = self.rfile.read(count), ""
        self.wfile.write(b"\x05\x02" if 2 in methods else b"\x05\x00")
        if 2 in methods:
            user = self.rfile.read(self.rfile.read(2)[1]).decode()
            user += ":" + self.rfile.read(self.rfile.read(1)[0]).decode()
            self.wfile.write(b"\x01\x00")
        kind = self.rfile.read(4)[3]
        host = self.rfile.read({1: 4, 4: 16}.get(kind) or self.rfile.read(1)[0])
        name = host.decode() if kind == 3 else socket.inet_ntop({1: 2, 4: 10}[kind], host)
        (port,) = struct.unpack(">H", self.rfile.read(2))
        self.server.used.append(("socks5", f"{name}:{port}", user))
        refusal = self.server.refusal
        self.wfile.write(bytes([_SOCKS, refusal]) + b"\x00\x01" + bytes(6))
        if refusal:
            raise OSError
        return self.server.reach()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)


class _Proxies(socketserver.ThreadingTCPServer):
    daemon_threads = True
    refusal = 0  # as SOCKS5 says it

    def __init__(self, target: int) -> None:
        super().__init__(("127.0.0.1", 0), _Tunnel)
        self._target = target
        self.used: list[tuple[str, str, str]] = []  # how, where to, as whom
        self.port: int = self.server_address[1]

    def reach(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self._target))


@contextlib.contextmanager
def serve_proxy(target: int) -> Iterator[_Proxies]:
    """Both an HTTP and a SOCKS5 proxy. Wherever a client wants to go, it comes to this port."""
    with _Proxies(target) as proxy:
        threading.Thread(target=partial(proxy.serve_forever, 0.02), daemon=True).start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
