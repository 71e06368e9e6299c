"""A few read-only pages over HTTP/1.1, served from the main loop: one small answer for each connection.

It is not a web server: it knows GET and HEAD, reads no body, keeps no connection, and drops slow ones. If
there are too many, it drops the oldest, so that no client can keep others out by waiting. http.server would
cost 6 MB and a thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gi.repository import Gio, GLib

from installer.errors import InstallerError

_REQUEST_LIMIT = 8192  # bytes
_CONNECTIONS = 32
_SECONDS = 5
_RETRY = 1  # seconds until a connection is accepted again, if that has failed
_PHRASES = {  # RFC 9110
    200: "OK",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


@dataclass(frozen=True, slots=True)
class Page:
    status: int  # 200, 500 or 503
    content_type: str
    text: str


class PageServer:
    """Serves `page(path)` until `close`; None means that there is no such page.

    `listen` is host:port. Raises InstallerError if it cannot listen.
    """

    def __init__(self, listen: str, page: Callable[[str], Page | None]) -> None:
        self._page = page
        self._open = dict[_Exchange, None]()  # the oldest is first
        # Not Gio.SocketService: without a free descriptor it tries, and logs, 80,000 times a second.
        self._listener: Any = Gio.SocketListener()
        self._cancel = Gio.Cancellable()
        host, _, port = listen.rpartition(":")
        try:
            # A number is not looked up.
            for address in Gio.Resolver.get_default().lookup_by_name(host.strip("[]"), None):
                place = Gio.InetSocketAddress.new(address, int(port))
                self._listener.add_address(place, Gio.SocketType.STREAM, Gio.SocketProtocol.TCP, None)
        except (GLib.Error, ValueError, OverflowError) as error:
            raise InstallerError(f"cannot listen on {listen}: {error}") from error
        self._accept()

    def close(self) -> None:
        self._cancel.cancel()
        self._listener.close()

    def _accept(self) -> None:
        self._listener.accept_async(self._cancel, self._accepted)

    def _accepted(self, listener: Any, result: Any) -> None:
        try:
            connection, _source = listener.accept_finish(result)
        except GLib.Error:
            if not self._cancel.is_cancelled():
                GLib.timeout_add_seconds(_RETRY, self._accept)
            return
        self._accept()
        if len(self._open) >= _CONNECTIONS:
            oldest = next(iter(self._open))
            self._closed(oldest)
            oldest.drop()
        connection.get_socket().set_timeout(_SECONDS)
        exchange = _Exchange(connection, self._page, self._closed)
        self._open[exchange] = None
        exchange.read()

    def _closed(self, exchange: _Exchange) -> None:
        self._open.pop(exchange, None)


class _Exchange:
    """One request and its answer."""

    def __init__(
        self, connection: Any, page: Callable[[str], Page | None], closed: Callable[[_Exchange], None]
    ) -> None:
        self._connection, self._page, self._closed = connection, page, closed
        self._request = b""
        self._timer = GLib.timeout_add_seconds(_SECONDS, self._late)
        self._cancel = Gio.Cancellable()

    def _late(self) -> bool:
        self._timer = 0
        self.drop()
        return False

    def drop(self) -> None:
        """Cancel whatever waits, which ends the connection."""
        self._cancel.cancel()

    def read(self) -> None:
        stream = self._connection.get_input_stream()
        stream.read_bytes_async(_REQUEST_LIMIT, GLib.PRIORITY_DEFAULT, self._cancel, self._received)

    def _received(self, stream: Any, result: Any) -> None:
        try:
            chunk = stream.read_bytes_finish(result).get_data()
        except GLib.Error:
            chunk = b""
        self._request += chunk or b""
        if b"\r\n\r\n" in self._request:
            self._answer()
        elif not chunk or len(self._request) > _REQUEST_LIMIT:
            self._end()
        else:
            self.read()

    def _answer(self) -> None:
        method, _, rest = self._request.partition(b"\r\n")[0].decode("latin-1").partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        page = self._page(path)
        if method not in ("GET", "HEAD"):
            page = Page(405, "text/plain", "only GET\n")
        elif page is None:
            page = Page(404, "text/plain", "no such page\n")
        body = page.text.encode()
        head = (
            f"HTTP/1.1 {page.status} {_PHRASES[page.status]}\r\n"
            f"Content-Type: {page.content_type}; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
            "Cache-Control: no-store\r\nConnection: close\r\n\r\n"
        ).encode()
        self._write(GLib.Bytes.new(head + (b"" if method == "HEAD" else body)))

    def _write(self, answer: Any) -> None:
        stream = self._connection.get_output_stream()
        stream.write_bytes_async(answer, GLib.PRIORITY_DEFAULT, self._cancel, self._written, answer)

    def _written(self, stream: Any, result: Any, answer: Any) -> None:
        try:
            written = stream.write_bytes_finish(result)
        except GLib.Error:
            written = 0
        if 0 < written < answer.get_size():
            self._write(GLib.Bytes.new(answer.get_data()[written:]))
        else:
            self._end()

    def _end(self) -> None:
        if self._timer:
            GLib.source_remove(self._timer)
        self._connection.close_async(GLib.PRIORITY_DEFAULT, None, None)
        self._closed(self)
