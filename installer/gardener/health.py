"""Whether the controller is alive, for the probes of its pod: each of its threads says by when it will be
heard of again, and one that is overdue hangs. An API server that is away is no reason: every request has a
deadline, and a restart would not bring it back.
"""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from installer.errors import InvalidInputError

_READ_SECONDS = 5.0  # for the request of a probe


class Pulses:
    """`clock` is in seconds and only moves on. All methods may be called from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due: dict[str, float] = {}
        self._lock = threading.Lock()

    def expect(self, who: str, seconds: float) -> None:
        """`who` is heard of again within `seconds`."""
        with self._lock:
            self._due[who] = self._clock() + seconds

    def rest(self, who: str) -> None:
        """Nothing is expected of `who` until it begins again."""
        with self._lock:
            self._due.pop(who, None)

    def overdue(self) -> list[str]:
        with self._lock:
            now = self._clock()
            return sorted(who for who, due in self._due.items() if due < now)


class HealthServer:
    """`with HealthServer(listen, pulses):` answers GET /healthz and /readyz: 200, or 503 with who hangs.
    `listen` is host:port; an empty host means all addresses, and port 0 any that is free.

    Raises InvalidInputError where it cannot listen.
    """

    def __init__(self, listen: str, pulses: Pulses) -> None:
        host, _, port = listen.rpartition(":")
        try:
            self._server = _Server((host.strip("[]"), int(port)), pulses)
        except (OSError, ValueError, OverflowError) as error:
            raise InvalidInputError(
                [f"--listen {listen}: {error}"], "it is host:port, such as :8081"
            ) from None
        self.port = int(self._server.server_address[1])

    def __enter__(self) -> HealthServer:
        threading.Thread(target=self._server.serve_forever, args=(0.2,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], pulses: Pulses) -> None:
        self.pulses = pulses
        every = not address[0] and socket.has_dualstack_ipv6()
        self.address_family = socket.AF_INET6 if every or ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """For both families where all addresses are meant. HTTPServer's own would ask the DNS for a name."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        socketserver.TCPServer.server_bind(self)


class _Handler(BaseHTTPRequestHandler):
    timeout = _READ_SECONDS
    server: _Server

    def do_GET(self) -> None:
        known = self.path in ("/healthz", "/readyz")
        hanging = self.server.pulses.overdue()
        text = f"hangs: {', '.join(hanging)}" if hanging else "ok"
        content = f"{text if known else 'not found'}\n".encode()
        self.send_response((503 if hanging else 200) if known else 404)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: probes come every few seconds."""
