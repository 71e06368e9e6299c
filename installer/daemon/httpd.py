"""A few read-only pages over HTTP/1.1, served from the main loop: one small answer for each connection.

It is not a web server: it knows GET and HEAD, reads no body, keeps no connection, and drops slow ones. If
there are too many, it drops the oldest, so that no client can keep others out by waiting. http.server would
cost 6 MB and a thread; GIO's sockets half a kilobyte for each connection, for ever.
"""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from installer.daemon.watch import EventLoop
from installer.errors import InstallerError

Addresses = Mapping[tuple[int, Any], None]
"""Families and addresses, as socket(7) has them."""

_REQUEST_LIMIT = 8192  # bytes
_CONNECTIONS = 32
_SECONDS = 5.0
_RETRY = 1.0  # seconds until a connection is accepted again, if that has failed


@dataclass(frozen=True, slots=True)
class Page:
    status: str  # the code, and its phrase by RFC 9110
    content_type: str
    text: str


@dataclass(slots=True, eq=False)
class _Exchange:
    """One request and its answer."""

    socket: socket.socket
    until: float
    request: bytes = b""
    answer: bytes = b""  # the part that is still to be sent


class PageServer:
    """Serves pages on these addresses until `close`. `page` returns None for a path that has none. Raises
    InstallerError if it cannot listen."""

    def __init__(self, loop: EventLoop, addresses: Addresses, page: Callable[[str], Page | None]) -> None:
        self._loop, self._page = loop, page
        self._open = dict[_Exchange, None]()  # the oldest is first
        self._timer = 0
        try:
            with contextlib.ExitStack() as opened:
                self._ready = opened.enter_context(selectors.EpollSelector())
                self._listeners = _listen(addresses, opened)
                for listener in self._listeners:
                    self._ready.register(listener, selectors.EVENT_READ)
                opened.pop_all()
        except (OSError, OverflowError) as error:
            where = ", ".join(f"{host}:{port}" for _, (host, port, *_) in addresses)
            raise InstallerError(f"cannot listen on {where}: {error}") from error
        self._ignore = loop.while_readable(self._ready.fileno(), self._serve)

    def close(self) -> None:
        self._ignore()
        self._loop.cancel(self._timer)
        for each in (*self._listeners, *(exchange.socket for exchange in self._open)):
            each.close()
        self._ready.close()

    def _serve(self) -> None:
        """Somebody has connected or sent something, or takes more."""
        for key, _ in self._ready.select(0):
            if key.data is None:
                self._accept(key.fileobj)
            elif key.data in self._open:  # still
                self._go_on(key.data)

    def _await_connections(self, listener: socket.socket) -> None:
        try:
            listener.listen()  # `ss --kill` may have ended that
            self._ready.register(listener, selectors.EVENT_READ)
        except OSError:  # fs.epoll.max_user_watches
            self._loop.after(_RETRY, partial(self._await_connections, listener))

    def _accept(self, listener: Any) -> None:
        try:
            connection, _address = listener.accept()
        except (BlockingIOError, ConnectionError):  # its client has gone
            return
        except OSError:  # the listener stays readable: the loop would try again at once, for ever
            self._ready.unregister(listener)
            self._loop.after(_RETRY, partial(self._await_connections, listener))
            return
        connection.setblocking(False)
        exchange = _Exchange(connection, time.monotonic() + _SECONDS)
        try:
            self._ready.register(connection, selectors.EVENT_READ, exchange)
        except OSError:  # fs.epoll.max_user_watches
            connection.close()
            return
        if len(self._open) >= _CONNECTIONS:
            self._drop(next(iter(self._open)))
        self._open[exchange] = None
        self._timer = self._timer or self._loop.after(_SECONDS, self._drop_late)

    def _drop_late(self) -> None:
        now = time.monotonic()
        for exchange in [exchange for exchange in self._open if exchange.until <= now]:
            self._drop(exchange)
        oldest = next(iter(self._open), None)
        self._timer = self._loop.after(oldest.until - now, self._drop_late) if oldest else 0

    def _drop(self, exchange: _Exchange) -> None:
        del self._open[exchange]
        self._ready.unregister(exchange.socket)
        exchange.socket.close()

    def _go_on(self, exchange: _Exchange) -> None:
        is_over = True  # also if its page raises: it would stay readable, and be asked for again at once
        try:
            is_over = self._send(exchange) if exchange.answer else self._receive(exchange)
        except BlockingIOError:
            is_over = False
        except OSError:
            pass
        finally:
            if is_over:
                self._drop(exchange)

    def _receive(self, exchange: _Exchange) -> bool:
        """Return whether there will be no answer."""
        chunk = exchange.socket.recv(_REQUEST_LIMIT)
        exchange.request += chunk
        if b"\r\n\r\n" not in exchange.request:
            return not chunk or len(exchange.request) > _REQUEST_LIMIT
        exchange.answer = self._answer(exchange.request)
        self._ready.modify(exchange.socket, selectors.EVENT_WRITE, exchange)
        return False

    def _send(self, exchange: _Exchange) -> bool:
        """Return whether all is sent."""
        exchange.answer = exchange.answer[exchange.socket.send(exchange.answer) :]
        return not exchange.answer

    def _answer(self, request: bytes) -> bytes:
        method, _, rest = request.partition(b"\r\n")[0].decode("latin-1").partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        page = self._page(path)
        if method not in ("GET", "HEAD"):
            page = Page("405 Method Not Allowed", "text/plain", "only GET\n")
        elif page is None:
            page = Page("404 Not Found", "text/plain", "no such page\n")
        body = page.text.encode()
        head = (
            f"HTTP/1.1 {page.status}\r\n"
            f"Content-Type: {page.content_type}; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
            "Cache-Control: no-store\r\nConnection: close\r\n\r\n"
        ).encode()
        return head + (b"" if method == "HEAD" else body)


def find_addresses(listen: str) -> Addresses:
    """Return those of host:port. A number is not looked up; a name may be, for many seconds. Raises
    InstallerError."""
    host, _, port = listen.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except (OSError, ValueError, OverflowError) as error:
        raise InstallerError(f"cannot listen on {listen}: {error}") from error
    return dict.fromkeys((family, address) for family, *_, address in found)


def _listen(addresses: Addresses, opened: contextlib.ExitStack) -> list[socket.socket]:
    """A name may also have addresses that are not here. Raises OSError."""
    listeners, missing = list[socket.socket](), list[OSError]()
    for family, address in addresses:
        dual = family == socket.AF_INET6
        try:
            listener = socket.create_server(address, family=family, dualstack_ipv6=dual)
        except OSError as error:
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                raise
            missing.append(error)
            continue
        opened.enter_context(listener).setblocking(False)
        listeners.append(listener)
    if not listeners:
        raise missing[0]
    return listeners
